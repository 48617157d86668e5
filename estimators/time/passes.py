"""Seconds of the forward and backward passes: computation of the GPU, and its waits for the host.

A pass takes max(GPU computes, host launches) + the part of the shorter that is not hidden.
"""

from __future__ import annotations

from ..estimate import TimeTerm
from .compute_time import compute_time
from .flops import attention_backward
from .host_time import FSDP_SERIAL, ZERO3_SERIAL
from .memory_bound import (
    DEQUANTIZED_BYTES,
    GATHERED_PASSES,
    SUMMED_PASSES,
    concatenated_shares,
)
from .roofline import RAMP_S, TILE_START
from .step import Step
from .transfers import gradient_copies, gradient_copies_s


class Passes:
    def __init__(self, step: Step) -> None:
        plan, n, costs, host = step.plan, step.micro_batches, step.costs, step.host
        self.step = step
        self.compute_arguments = (
            step.model,
            step.workload.passes_cache_key(),
            step.cluster.gpu,
            plan.micro_batch_size,
            plan.gradient_checkpointing,
        )
        """Arguments of `compute_time` and `product_times`."""
        self.compute = compute_time(*self.compute_arguments)
        self.gradient_copies = gradient_copies(step)
        self.gradient_copies_s = gradient_copies_s(step, self.gradient_copies)
        # Number of times that all weights are assembled from the ranks' parts, forward and backward.
        self.concatenated_gathers = (0.0, 0.0)
        if step.zero3 and step.ring.ranks > 1:
            parts = concatenated_shares(step.tensors, plan)
            self.concatenated_gathers = step.gathers[0] * parts[0], step.gathers[1] * parts[1]
        elif step.plan.sharding == "fsdp2":  # every unit is copied out of its buffer
            self.concatenated_gathers = step.gathers
        self.gathered_copies_s = tuple(map(self._gathered_copies_s, self.concatenated_gathers, step.gathers))

        before_s = costs.micro_batch_s + self._trainer_s()
        forward_host = before_s + host.forward_s(costs, plan.zero_stage)
        backward_host = self._backward_host_s()
        self.host_s_of_passes = forward_host, backward_host
        """Host seconds of a micro batch's forward and backward pass."""
        self.host_s = n * (forward_host + backward_host)
        serial = _serial_share(step)
        # The GPU is idle until the host has finished the bookkeeping of the first micro batch, and of each one if
        # transformers' Trainer reads its loss (`logging_nan_inf_filter`). While the GPU computes head and loss, the
        # host is already launching the backward pass.
        begins_s = after_s = 0.0
        if not step.cluster.gpu.is_cpu:
            begins_s = before_s * (n if step.workload.uses_trainer else 1)
            after_s = n * self.compute.after_layers_s
        forward_s = n * self.compute.forward_s + self.gathered_copies_s[0]
        self.forward_s = _overlapped_s(forward_s + begins_s, n * forward_host, serial, after_s)
        self.forward_idle_s = max(0.0, n * forward_host + after_s - forward_s - begins_s)
        """Seconds that the GPU waits for the host in forward passes."""
        if plan.zero_hpz_partition_size > 1 and step.workload.method == "full":
            # The host waits for each tensor's second copy, which the first forward pass after a step creates.
            self.forward_s += (1 - serial) * min(self.compute.forward_s, forward_host)
        backward_s = n * self.compute.backward_s + self.gradient_copies_s + self.gathered_copies_s[1]
        left_host_s = max(0.0, n * backward_host - after_s)
        self.backward_s = _overlapped_s(backward_s, left_host_s, serial)
        # At the end of a pass stages 1 to 3 wait for the last reduction.
        self.host_ahead_s = 0.0 if plan.zero_stage else max(0.0, backward_s - left_host_s)
        """Seconds that the GPU still computes when stage 0's host has launched all backward passes."""

    def _trainer_s(self) -> float:
        """Return the average host time of the training loop around one micro batch."""
        step, costs = self.step, self.step.costs
        if not step.workload.uses_trainer:
            return 0.0
        return step.host.modules * (costs.trainer_module_s + costs.trainer_step_module_s / step.micro_batches)

    def _backward_host_s(self) -> float:
        """Return the average host time of one micro batch's backward pass."""
        step = self.step
        plan, n, costs, host, stage = step.plan, step.micro_batches, step.costs, step.host, step.plan.zero_stage
        buckets = sum(step.reduce_calls) if step.zero3 else step.reduce_calls.shared
        regathered = step.gathers[1] / step.gathers[0] if step.gathers[0] else 1.0
        seconds = (
            step.reductions * host.backward_s(costs, stage, buckets, regathered)
            + (n - step.reductions) * host.backward_s(costs, stage, 0, regathered)
        ) / n
        return seconds + (host.recompute_s(costs, stage) if plan.gradient_checkpointing else 0.0)

    def _gathered_copies_s(self, concatenated: float, gathers: float) -> float:
        """Return the seconds of copies that assemble gathered tensors, and of dequantization."""
        step = self.step
        moved = GATHERED_PASSES * concatenated * step.gathered_bytes
        if step.plan.zero_quantized_weights:
            moved += gathers * (DEQUANTIZED_BYTES + step.recast_bytes) * step.tensors.numel
        return moved / step.values["W"]

    def terms(self) -> list[TimeTerm]:
        step, n, forward, backward = self.step, self.step.micro_batches, self.compute.forward, self.compute.backward
        computing_s = n * (self.compute.forward_s + self.compute.backward_s)
        on_gpu = computing_s + self.gradient_copies_s + sum(self.gathered_copies_s)
        launched = max(0.0, self.forward_s + self.backward_s - on_gpu)
        products = n * (forward.products_s + backward.products_s)
        attention = n * (forward.attention_s + backward.attention_s)
        recomputed = n * self.compute.recompute.total_s
        elementwise, loss = forward.elementwise_s + backward.elementwise_s, forward.loss_s + backward.loss_s
        moved, loss_moved = elementwise * step.values["W"], loss * step.values["W"]
        moved_formula = "w (rows inner + inner columns + rows columns) / W"
        products_formula = f"n sum(launched max(2 rows (inner + tile) columns / R, {moved_formula}) + ramp)"
        element = {"w": step.workload.weight_bytes}
        if step.cluster.gpu.is_cpu:
            products_formula = f"n sum(launched (2 rows inner columns / R + {moved_formula}) + ramp)"
        attention_formula = "n L 2 B A (d + dv) pairs (1 / rate + again / backward)"
        recompute_formula = "n (products + scores + moves)"
        summed = "Pr" if step.plan.zero_stage >= 2 else "Pt"
        copied = f"(copies reductions Pt + {SUMMED_PASSES} (n - 1) {summed}) w / W"
        called, called_back = self.host_s_of_passes
        calls = {"called": called, "called_back": called_back, "waited": launched}
        launch = step.term("launch overhead", "launch", launched, "max(n (called + called_back), waited)", **calls)
        return [
            step.term(
                "matrix products", "gpu compute", products, products_formula, tile=TILE_START, ramp=RAMP_S, **element
            ),
            step.term("attention", "gpu compute", attention, attention_formula, **self._attention_numbers()),
            step.term("elementwise operations", "gpu memory", n * elementwise, "n bytes / W", bytes=moved),
            step.term("loss over the vocabulary", "gpu memory", n * loss, "n bytes / W", bytes=loss_moved),
            step.term("recomputation", "gpu compute", recomputed, recompute_formula, **self._repeated()),
            step.term("gradient copies", "gpu memory", self.gradient_copies_s, copied, copies=self.gradient_copies),
            self._gathered_copies(),
            launch._replace(hidden_s=max(0.0, self.host_s - launched)),
        ]

    def _attention_numbers(self) -> dict[str, float]:
        kind = self.compute.attention
        if kind is None:
            return {}
        sizes = {"L": kind.layers, "A": kind.heads, "d": kind.key_width, "dv": kind.value_width, "pairs": kind.pairs}
        rates = {"rate": kind.forward_rate, "backward": kind.backward_rate}
        return sizes | rates | {"again": attention_backward(self.step.workload.attention)}

    def _repeated(self) -> dict[str, float]:
        again = self.compute.recompute
        return {"products": again.products_s, "scores": again.attention_s, "moves": again.elementwise_s + again.loss_s}

    def _gathered_copies(self) -> TimeTerm:
        step, seconds = self.step, sum(self.gathered_copies_s)
        own = {"together": sum(self.concatenated_gathers), "weights": step.gathered_bytes}
        formula = f"{GATHERED_PASSES} together weights / W"
        if step.plan.zero_quantized_weights:
            dequantized = DEQUANTIZED_BYTES + step.recast_bytes
            formula = f"({GATHERED_PASSES} together weights + {dequantized} passes all) / W"
            own |= {"passes": sum(step.gathers), "all": step.tensors.numel}
        return step.term("gathered weights copied", "gpu memory", seconds, formula, **own)


def _overlapped_s(gpu_s: float, host_s: float, serial: float, after_s: float = 0.0) -> float:
    """Return the longer of GPU and host time plus the `serial` share of the shorter. `after_s`: GPU time at the end,
    after all earlier launches of the host."""
    # Launches are asynchronous: in eager PyTorch the slower of the two threads determines the time.
    return max(gpu_s, host_s + after_s) + serial * min(gpu_s - after_s, host_s)


def _serial_share(step: Step) -> float:
    """Return the share of the shorter of host and GPU time that is not hidden by the longer."""
    if step.cluster.gpu.is_cpu or step.host.synchronizes:  # a CPU itself computes what it launches
        return 1.0
    if not step.zero3:
        return FSDP_SERIAL if step.plan.zero_stage == 3 else 0.0
    # Until 0.6 the host waited at every fetch (stage3.py `fetch_sub_module`).
    return 1.0 if step.workload.software.deepspeed < (0, 6) else ZERO3_SERIAL
