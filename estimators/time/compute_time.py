"""Seconds that a GPU computes in the forward and backward passes, without its waits for the host (`passes`).

FLOPs are counted in `flops`, bytes in `memory_bound`; `roofline` converts both into seconds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from ..hardware import Gpu
from ..memory.activations.activation_memory import recorded
from ..memory.activations.recording import LayerRecorder, Recording
from ..models.model_shape import Block, ModelShape
from ..models.vision_parts import has_backward
from ..workload import Workload
from .flops import (
    Product,
    attended_len,
    attention_backward,
    block_attention,
    block_products,
    head_launches,
    head_product,
)
from .memory_bound import (
    AUTOCAST_BYTES,
    block_weight_bytes,
    loss_bytes,
)
from .roofline import attention_rate, memory_rate, product_rate, product_s


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
    for product, launches in head_launches(model, workload, micro_batch):
        passes.add_product(product, launches, recomputed=False)
    head = head_product(model, workload, micro_batch)
    if head is not None:
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


_WEIGHTS = "weights unpacked, cast or summed"


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
        moved[_WEIGHTS] += round(block.count * sum(block_weight_bytes(model, block, workload)))
    if head := head_product(model, workload, micro_batch):
        moved[_WEIGHTS] += 2 * AUTOCAST_BYTES * head.inner * head.columns * workload.autocasts
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
