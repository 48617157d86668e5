"""Seconds that a GPU computes for one micro batch: matrix products, attention, and what is bound by memory.

Counts of FLOPs stand in `flops`, of bytes in `memory_bound`; `roofline` turns both into seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from ..hardware.cluster import Gpu
from ..memory.activations.activation_memory import recorded
from ..memory.activations.recording import Recording
from ..models.model_shape import Block, ModelShape
from ..workload import Workload
from .flops import Product, attended_len, attention_backward, block_attention, block_products, head_product
from .memory_bound import block_weight_bytes, loss_bytes
from .roofline import attention_rate, memory_rate, product_rate, product_s


@dataclass(slots=True)
class PassTime:
    """Seconds of one pass of a micro batch, by what the GPU runs."""

    products_s: float = 0.0
    attention_s: float = 0.0
    elementwise_s: float = 0.0
    loss_s: float = 0.0

    @property
    def total_s(self) -> float:
        return self.products_s + self.attention_s + self.elementwise_s + self.loss_s


class ComputeTime(NamedTuple):
    """Seconds of one micro batch on one GPU, by pass."""

    forward: PassTime
    backward: PassTime
    recompute: PassTime
    """What checkpointing runs again; nothing without it."""
    after_layers_s: float
    """Of the forward pass, what follows the last layer: the head and the loss."""

    @property
    def forward_s(self) -> float:
        return self.forward.total_s

    @property
    def backward_s(self) -> float:
        """The backward pass with what it recomputes."""
        return self.backward.total_s + self.recompute.total_s


@lru_cache(maxsize=512)
def compute_time(
    model: ModelShape,
    workload: Workload,
    gpu: Gpu,
    micro_batch: int,
    gradient_checkpointing: bool,
) -> ComputeTime:
    """Seconds of one micro batch; see the module's formulas. Raises ClusterError for a GPU without any published
    rate."""
    passes = _Passes(model, workload, gpu, micro_batch)
    for block in model.blocks:
        for product in block_products(model, block, workload, micro_batch):
            passes.add_product(product, block.count, again=product.again or workload.software.reentrant)
        passes.add_attention(block)
        weights_forward, weights_backward = block_weight_bytes(model, block, workload)
        passes.add_bytes(block.count * weights_forward, block.count * weights_backward)
    # What ZeRO changes of a recording moves nothing.
    made = recorded(model, workload, gradient_checkpointing, gpu.compute_capability, False, True)
    for (block, _), layer in zip(made.blocks, made.layers, strict=True):
        passes.add_recorded(layer, block.count)
    passes.again.attention_s, passes.again.elementwise_s = passes.forward.attention_s, passes.forward.elementwise_s
    in_layers_s = passes.forward.total_s
    passes.add_recorded(made.end.recording, 1)
    head = head_product(model, workload, micro_batch)
    if head is not None:
        passes.add_product(head, 1, again=False)
    loss_forward, loss_backward = loss_bytes(model, workload, micro_batch)
    passes.forward.loss_s, passes.backward.loss_s = loss_forward / passes.bandwidth, loss_backward / passes.bandwidth
    again = passes.again if gradient_checkpointing else PassTime()
    return ComputeTime(
        forward=passes.forward,
        backward=passes.backward,
        recompute=again,
        after_layers_s=passes.forward.total_s - in_layers_s,
    )


class _Passes:
    """The passes of one micro batch while its layers are added to them."""

    def __init__(self, model: ModelShape, workload: Workload, gpu: Gpu, micro_batch: int) -> None:
        self.model, self.workload, self.gpu = model, workload, gpu
        self.micro_batch = micro_batch
        self.rate, self.bandwidth = product_rate(gpu, workload.precision), memory_rate(gpu)
        self.forward, self.backward, self.again = PassTime(), PassTime(), PassTime()

    def add_product(self, product: Product, layers: int, *, again: bool) -> None:
        rows, inner, columns = product.rows, product.inner, product.columns
        once = self._product_s(product, rows, inner, columns)
        # The gradient of the input sums over the output's width, that of the weight over the rows.
        of_input = self._product_s(product, rows, columns, inner) if product.backward else 0.0
        of_weight = self._product_s(product, inner, rows, columns) if product.backward == 2 else 0.0
        self.forward.products_s += layers * once
        self.backward.products_s += layers * (of_input + of_weight)
        self.again.products_s += layers * once if again else 0.0

    def _product_s(self, product: Product, rows: int, inner: int, columns: int) -> float:
        copies, element = product.copies, self.workload.weight_bytes
        return product_s(
            rows,
            inner,
            columns,
            copies=copies,
            rate=self.rate,
            bandwidth=self.bandwidth,
            element=element,
            is_cpu=self.gpu.is_cpu,
        )

    def add_attention(self, block: Block) -> None:
        workload = self.workload
        for attention, flops in block_attention(self.model, block, workload, self.micro_batch):
            keys = attended_len(workload, workload.seq_len)
            keys = min(attention.chunk or attention.window or keys, keys)
            forward, backward = (
                attention_rate(self.gpu, workload.precision, workload.attention, keys, backward=back)
                for back in (False, True)
            )
            backward_flops = block.count * flops * attention_backward(workload.attention)
            self.forward.attention_s += block.count * flops / forward
            self.backward.attention_s += backward_flops / backward

    def add_recorded(self, recording: Recording, times: int) -> None:
        forward, backward = (times * size.at(self.micro_batch) for size in recording.moved)
        self.add_bytes(forward, backward)

    def add_bytes(self, forward: float, backward: float) -> None:
        self.forward.elementwise_s += forward / self.bandwidth
        self.backward.elementwise_s += backward / self.bandwidth
