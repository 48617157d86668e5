"""Forward and backward passes: what the GPU computes, and what it waits for the host that launches it.

pass = max(GPU computes, host launches) + the part of the shorter that does not hide
"""

from __future__ import annotations

from ..estimate import TimeTerm
from . import gradients
from .compute_time import compute_time
from .host_time import FSDP_SERIAL, ZERO3_SERIAL
from .memory_bound import DEQUANTIZED_BYTES, GATHERED_PASSES, SUMMED_PASSES, put_together
from .step import Step


class Passes:
    """All passes of a step."""

    def __init__(self, step: Step) -> None:
        plan, n, costs, host = step.plan, step.micro_batches, step.costs, step.host
        self.step = step
        self.compute = compute_time(
            step.model, step.workload, step.cluster.gpu, plan.micro_batch_size, plan.gradient_checkpointing
        )
        self.gradient_copies = gradients.copies(step)
        self.gradient_copies_s = gradients.copies_s(step, self.gradient_copies)
        # Times that all weights are put together from the ranks' parts, forward and backward.
        self.together = (0.0, 0.0)
        if step.zero3 and step.ring.ranks > 1:
            parts = put_together(step.tensors, plan)
            self.together = step.gathers[0] * parts[0], step.gathers[1] * parts[1]
        self.gathered_copies_s = tuple(map(self._gathered_copies_s, self.together, step.gathers))

        forward_host = costs.micro_batch_s + host.forward_s(costs, plan.zero_stage)
        backward_host = self._backward_host_s()
        self.host_s = n * (forward_host + backward_host)
        serial = _serial(step)
        # The GPU has nothing to do until the host is through with the first micro batch's bookkeeping. While it
        # computes head and loss, the host is ahead with the backward pass.
        begins_s, after_s = 0.0, 0.0
        if not step.cluster.gpu.is_cpu:
            begins_s, after_s = costs.micro_batch_s, n * self.compute.after_layers_s
        forward_s = n * self.compute.forward_s + self.gathered_copies_s[0]
        self.forward_s = _together(forward_s + begins_s, n * forward_host, serial, after_s)
        self.forward_idle_s = max(0.0, n * forward_host + after_s - forward_s - begins_s)
        """What the GPU waits for the host in forward passes."""
        if plan.zero_hpz_partition_size > 1 and step.workload.method == "full":
            # The host waits for each tensor's second copy, which the first forward pass after a step makes.
            self.forward_s += (1 - serial) * min(self.compute.forward_s, forward_host)
        backward_s = n * self.compute.backward_s + self.gradient_copies_s + self.gathered_copies_s[1]
        left_host_s = max(0.0, n * backward_host - after_s)
        self.backward_s = _together(backward_s, left_host_s, serial)
        # At the end of a pass stages 1 to 3 wait for the last reduction.
        self.host_ahead_s = 0.0 if plan.zero_stage else max(0.0, backward_s - left_host_s)
        """What the GPU still computes of the backward passes when stage 0's host is through with them."""

    def _backward_host_s(self) -> float:
        """Of one micro batch, on average."""
        step = self.step
        plan, n, costs, host, stage = step.plan, step.micro_batches, step.costs, step.host, step.plan.zero_stage
        buckets = sum(step.reduce_calls) if step.zero3 else step.reduce_calls.shared
        again = step.gathers[1] / step.gathers[0] if step.gathers[0] else 1.0
        seconds = (
            step.reductions * host.backward_s(costs, stage, buckets, again)
            + (n - step.reductions) * host.backward_s(costs, stage, 0, again)
        ) / n
        return seconds + (host.recompute_s(costs, stage) if plan.gradient_checkpointing else 0.0)

    def _gathered_copies_s(self, together: float, gathers: float) -> float:
        """Seconds of putting together what was gathered, and of making it 16 bits again."""
        step = self.step
        moved = GATHERED_PASSES * together * step.gathered_bytes
        if step.plan.zero_quantized_weights:
            moved += gathers * (DEQUANTIZED_BYTES + step.recast) * step.tensors.numel
        return moved / step.values["W"]

    def terms(self) -> list[TimeTerm]:
        """What the GPU computes, and what it waits for launches."""
        step, n, forward, backward = self.step, self.step.micro_batches, self.compute.forward, self.compute.backward
        computing_s = n * (self.compute.forward_s + self.compute.backward_s)
        on_gpu = computing_s + self.gradient_copies_s + sum(self.gathered_copies_s)
        launched = max(0.0, self.forward_s + self.backward_s - on_gpu)
        products = n * (forward.products_s + backward.products_s)
        attention = n * (forward.attention_s + backward.attention_s)
        recomputed = n * self.compute.recompute.total_s
        elementwise, loss = forward.elementwise_s + backward.elementwise_s, forward.loss_s + backward.loss_s
        moved, loss_moved = elementwise * step.values["W"], loss * step.values["W"]
        products_formula = "n sum(max(2 rows (inner + tile start) columns / R, bytes / W) + ramp)"
        attention_formula = "n L 2 B A (d + dv) pairs (1 + backward) / rate(S)"
        recompute_formula = "n (forward of every layer, up to its last product)"
        summed = "Pr" if step.plan.zero_stage >= 2 else "Pt"
        launch = step.term(
            "launch overhead", "launch", launched, "host time that the GPU waits for, forward and backward apart", ""
        )
        return [
            step.term("matrix products", "gpu compute", products, products_formula, "n B S R W"),
            step.term("attention", "gpu compute", attention, attention_formula, "n B S"),
            step.term("elementwise operations", "gpu memory", n * elementwise, "n bytes / W", "n bytes W", bytes=moved),
            step.term("loss over the vocabulary", "gpu memory", n * loss, "n bytes / W", "n bytes W", bytes=loss_moved),
            step.term("recomputation", "gpu compute", recomputed, recompute_formula, "n"),
            step.term(
                "gradient copies",
                "gpu memory",
                self.gradient_copies_s,
                f"(copies reductions Pt + {SUMMED_PASSES} (n - 1) {summed}) w / W",
                "copies reductions n w Pt Pr W",
                copies=self.gradient_copies,
            ),
            self._gathered_copies(),
            launch._replace(hidden_s=max(0.0, self.host_s - launched)),
        ]

    def _gathered_copies(self) -> TimeTerm:
        step, seconds = self.step, sum(self.gathered_copies_s)
        own = {"together": sum(self.together), "weights": step.gathered_bytes}
        formula, symbols = f"{GATHERED_PASSES} together weights / W", "together weights W"
        if step.plan.zero_quantized_weights:
            dequantized = DEQUANTIZED_BYTES + step.recast
            formula = f"({GATHERED_PASSES} together weights + {dequantized} passes all) / W"
            symbols, own = f"{symbols} passes all", own | {"passes": sum(step.gathers), "all": step.tensors.numel}
        return step.term("gathered weights copied", "gpu memory", seconds, formula, symbols, **own)


def _together(gpu_s: float, host_s: float, serial: float, after_s: float = 0.0) -> float:
    """The host launches ahead of the GPU, so the slower one counts, and of the other the part that is `serial`. What
    the GPU does for `after_s` at the end comes after all that the host launched before."""
    return max(gpu_s, host_s + after_s) + serial * min(gpu_s - after_s, host_s)


def _serial(step: Step) -> float:
    """The part of the shorter of host and GPU time that does not hide behind the longer."""
    if step.cluster.gpu.is_cpu:  # it computes what it launches itself
        return 1.0
    if not step.zero3:
        return FSDP_SERIAL if step.plan.zero_stage == 3 else 0.0
    # Until 0.6 the host waited at every fetch (stage3.py `fetch_sub_module`).
    return 1.0 if step.workload.software.deepspeed < (0, 6) else ZERO3_SERIAL
