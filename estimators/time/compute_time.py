"""Seconds of the forward and backward passes: computation of the GPU, and its waits for the host.

FLOPs are counted in `flops`, bytes in `memory_bound`; `roofline` converts both into seconds.

    pass = max(GPU computes, host launches) + the part of the shorter that is not hidden
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from ..estimate import TimeTerm
from ..hardware import Gpu
from ..memory.activations.activation_memory import recorded
from ..memory.activations.recording import LayerRecorder, Recording
from ..models.model_shape import Block, ModelShape
from ..models.vision_parts import has_backward
from ..workload import Workload
from .flops import Product, attended_len, attention_backward, block_attention, block_products, head_product
from .host_time import FSDP_SERIAL, ZERO3_SERIAL
from .memory_bound import (
    AUTOCAST_BYTES,
    DEQUANTIZED_BYTES,
    GATHERED_PASSES,
    SUMMED_PASSES,
    block_weight_bytes,
    concatenated_shares,
    loss_bytes,
)
from .roofline import RAMP_S, TILE_START, attention_rate, memory_rate, product_rate, product_s
from .step import Step
from .transfers import gradient_copies, gradient_copies_s


@dataclass(slots=True)
class PassTime:
    """Seconds of one pass of a micro batch, by kind of GPU work."""

    products_s: float = 0.0
    attention_s: float = 0.0
    elementwise_s: float = 0.0
    loss_s: float = 0.0

    @property
    def total_s(self) -> float:
        return self.products_s + self.attention_s + self.elementwise_s + self.loss_s


@dataclass(frozen=True, slots=True)
class ProductTime:
    """Equal matrix products of a micro batch's forward and backward passes, (rows x inner) by (inner x columns)."""

    rows: int
    inner: int
    columns: int
    copies: int
    """Products that are launched as one: the experts of a layer."""
    launches: int
    """Launches in a micro batch."""
    seconds: float
    """Seconds of one launch."""
    names: tuple[str, ...]
    """The modules with their pass: `gate_proj`, `input gradient of down_proj`, `weight gradient of gate_proj`."""


class AttentionKind(NamedTuple):
    """The attention of a model whose layers all have the same."""

    layers: int
    heads: int
    key_width: int
    value_width: int
    pairs: float
    """Pairs of a query and a key that a head computes."""
    forward_rate: float
    """Operations per second of the kernel."""
    backward_rate: float


class ComputeTime(NamedTuple):
    """Seconds of one micro batch on one GPU, by pass."""

    forward: PassTime
    backward: PassTime
    recompute: PassTime
    """Recomputation under checkpointing; 0 without it."""
    after_layers_s: float
    """The head and the loss in the forward pass."""
    launches: Mapping[tuple[int, int, int, int], int]
    """Launches of matrix products by (rows, inner, columns, copies), without recomputed ones."""
    names: Mapping[tuple[int, int, int, int], Mapping[str, None]]
    """Modules and passes of the products of a size."""
    attention: AttentionKind | None
    """None for a model with several kinds of attention, or with a recurrent one."""

    @property
    def forward_s(self) -> float:
        return self.forward.total_s

    @property
    def backward_s(self) -> float:
        return self.backward.total_s + self.recompute.total_s


@lru_cache(maxsize=512)
def compute_time(
    model: ModelShape, workload: Workload, gpu: Gpu, micro_batch: int, gradient_checkpointing: bool
) -> ComputeTime:
    """Return the seconds of one micro batch. Raises ClusterError for a GPU without any published rate."""
    passes = _Passes(model, workload, gpu, micro_batch)
    for block in model.blocks:
        backward = has_backward(model, block, workload, checkpointing=gradient_checkpointing)
        for product in block_products(model, block, workload, micro_batch):
            passes.add_product(
                product if backward else product._replace(backward=0, repeats=0),
                block.count,
                recomputed=backward and (product.recomputed or workload.software.reentrant),
            )
        passes.add_attention(block, backward_pass=backward)
        weights_forward, weights_backward = block_weight_bytes(model, block, workload)
        passes.add_bytes(block.count * weights_forward, block.count * weights_backward, recomputed=backward)
    # ZeRO's changes to a recording do not change the bytes moved.
    recordings = recorded(LayerRecorder(model, workload, gradient_checkpointing, gpu.compute_capability))
    for block, layer in recordings.layers:
        passes.add_recorded(layer, block.count, recomputed=layer.has_backward)
    in_layers_s = passes.forward.total_s
    passes.add_recorded(recordings.head, 1, recomputed=False)
    head = head_product(model, workload, micro_batch)
    if head is not None:
        passes.add_product(head, 1, recomputed=False)
        casts = AUTOCAST_BYTES * head.inner * head.columns * workload.autocasts
        passes.add_bytes(casts, casts, recomputed=False)
    loss_forward, loss_backward = loss_bytes(model, workload, micro_batch)
    passes.forward.loss_s, passes.backward.loss_s = loss_forward / passes.bandwidth, loss_backward / passes.bandwidth
    return ComputeTime(
        forward=passes.forward,
        backward=passes.backward,
        recompute=passes.recompute if gradient_checkpointing else PassTime(),
        after_layers_s=passes.forward.total_s - in_layers_s,
        launches=passes.launches,
        names=passes.names,
        attention=passes.only_attention(),
    )


def product_times(
    model: ModelShape, workload: Workload, gpu: Gpu, micro_batch: int, gradient_checkpointing: bool
) -> tuple[ProductTime, ...]:
    """Return the matrix products of one micro batch by size, the largest share first, without recomputed ones."""
    compute = compute_time(model, workload, gpu, micro_batch, gradient_checkpointing)
    seconds = _Passes(model, workload, gpu, micro_batch).product_seconds
    found = (
        ProductTime(*size, number, seconds(*size), (*compute.names[size],)) for size, number in compute.launches.items()
    )
    return tuple(sorted(found, key=lambda one: -one.launches * one.seconds))


def moved_bytes(
    model: ModelShape, workload: Workload, gpu: Gpu, micro_batch: int, gradient_checkpointing: bool
) -> dict[str, float]:
    """Return the bytes that the elementwise operations of one micro batch move, forward and backward, by the label of
    their result, the largest first; without recomputed ones and the loss."""
    moved = Counter[str]()
    recordings = recorded(LayerRecorder(model, workload, gradient_checkpointing, gpu.compute_capability))
    for count, layer in (*((block.count, layer) for block, layer in recordings.layers), (1, recordings.head)):
        for moves in layer.moves():
            for label, size in moves.items():
                moved[label] += count * size.at(micro_batch)
    for block in model.blocks:
        moved["weights unpacked, cast or summed"] += round(
            block.count * sum(block_weight_bytes(model, block, workload))
        )
    if head := head_product(model, workload, micro_batch):
        moved["weights unpacked, cast or summed"] += 2 * AUTOCAST_BYTES * head.inner * head.columns * workload.autocasts
    return {label: size for label, size in moved.most_common() if size}


class _Passes:
    """Accumulates the passes of one micro batch layer by layer."""

    def __init__(self, model: ModelShape, workload: Workload, gpu: Gpu, micro_batch: int) -> None:
        self.model = model
        self.workload = workload
        self.gpu = gpu
        self.micro_batch = micro_batch
        self.rate = product_rate(gpu, workload.matmul_precision)
        self.bandwidth = memory_rate(gpu)
        self.forward = PassTime()
        self.backward = PassTime()
        self.recompute = PassTime()
        self.launches = Counter[tuple[int, int, int, int]]()
        self.names = defaultdict[tuple[int, int, int, int], dict[str, None]](dict)
        self.attentions = dict[tuple[int, int, int, float, float, float], int]()
        """Layers by kind of attention: heads, two widths, pairs, two rates. A recurrent one has no heads."""

    def product_seconds(self, rows: int, inner: int, columns: int, copies: int) -> float:
        return product_s(
            rows,
            inner,
            columns,
            copies=copies,
            rate=self.rate,
            bandwidth=self.bandwidth,
            element=self.workload.weight_bytes,
            is_cpu=self.gpu.is_cpu,
        )

    def only_attention(self) -> AttentionKind | None:
        found = list(self.attentions.items())
        if len(found) != 1 or not found[0][0][0]:
            return None
        (numbers, layers) = found[0]
        return AttentionKind(layers, *numbers)

    def add_product(self, product: Product, layers: int, *, recomputed: bool) -> None:
        rows, inner, columns, copies = product.rows, product.inner, product.columns, product.copies
        forward_s = self.product_seconds(rows, inner, columns, copies)
        self._launch((rows, inner, columns, copies), layers * (1 + product.repeats), product.name)
        input_s = weight_s = 0.0
        # The gradient of the input sums over the output's width, that of the weight over the rows.
        if product.backward:
            input_s = self.product_seconds(rows, columns, inner, copies)
            self._launch((rows, columns, inner, copies), layers, f"input gradient of {product.name}")
        if product.backward == 2:
            weight_s = self.product_seconds(inner, rows, columns, copies)
            self._launch((inner, rows, columns, copies), layers, f"weight gradient of {product.name}")
        self.forward.products_s += layers * forward_s
        self.backward.products_s += layers * (input_s + weight_s + product.repeats * forward_s)
        self.recompute.products_s += layers * forward_s if recomputed else 0.0

    def _launch(self, size: tuple[int, int, int, int], number: int, name: str) -> None:
        self.launches[size] += number
        self.names[size][name] = None

    def add_attention(self, block: Block, *, backward_pass: bool) -> None:
        """backward_pass: whether the layer has one."""
        workload = self.workload
        for attention, flops, masked in block_attention(self.model, block, workload, self.micro_batch):
            keys = attention.keys or attended_len(workload, workload.seq_len)
            # The rate depends on the keys of one kernel call, which a window or chunk limits.
            keys = min(attention.chunk or attention.window or keys, keys)
            forward, backward = (
                attention_rate(
                    self.gpu, workload.matmul_precision, workload.attention, keys, backward=which, masked=masked
                )
                for which in (False, True)
            )
            backward_flops = backward_pass * block.count * flops * attention_backward(workload.attention)
            heads, width, value_width = attention.heads, attention.head_dim, attention.v_head_dim
            pairs = flops / (2 * self.micro_batch * heads * (width + value_width))
            if attention.chunk or not backward_pass:
                heads = 0
            kind = heads, width, value_width, pairs, forward, backward
            self.attentions[kind] = self.attentions.get(kind, 0) + block.count
            self.forward.attention_s += block.count * flops / forward
            self.recompute.attention_s += backward_pass * block.count * flops / forward
            self.backward.attention_s += backward_flops / backward

    def add_recorded(self, recording: Recording, times: int, *, recomputed: bool) -> None:
        forward, backward = (times * size.at(self.micro_batch) for size in recording.moved_bytes)
        self.add_bytes(forward, backward, recomputed=recomputed)

    def add_bytes(self, forward: float, backward: float, *, recomputed: bool) -> None:
        self.forward.elementwise_s += forward / self.bandwidth
        self.recompute.elementwise_s += recomputed * forward / self.bandwidth
        self.backward.elementwise_s += backward / self.bandwidth


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
