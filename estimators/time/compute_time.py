"""Seconds that a GPU computes for one micro batch: matrix products, attention, and what is bound by memory.

Counts of FLOPs stand in `flops`, of bytes in `memory_bound`; `roofline` turns both into seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ..hardware.cluster import Gpu
from ..models.model_shape import ModelShape
from ..software import DEFAULT, Software
from ..workload import Workload
from .flops import Product, attention_backward, block_attention, block_products, head_product
from .memory_bound import block_bytes, block_weight_bytes, loss_bytes
from .roofline import attention_rate, memory_rate, product_rate, product_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeTime:
    """Seconds of one micro batch on one GPU, by pass. What checkpointing runs again is `recompute` of each kind."""

    products_forward_s: float
    products_backward_s: float
    products_recompute_s: float
    attention_forward_s: float
    attention_backward_s: float
    attention_recompute_s: float
    elementwise_forward_s: float
    elementwise_backward_s: float
    elementwise_recompute_s: float
    loss_forward_s: float
    loss_backward_s: float

    @property
    def forward_s(self) -> float:
        return self.products_forward_s + self.attention_forward_s + self.elementwise_forward_s + self.loss_forward_s

    @property
    def recompute_s(self) -> float:
        return self.products_recompute_s + self.attention_recompute_s + self.elementwise_recompute_s

    @property
    def backward_s(self) -> float:
        """The backward pass with what it recomputes."""
        return (
            self.products_backward_s
            + self.attention_backward_s
            + self.elementwise_backward_s
            + self.loss_backward_s
            + self.recompute_s
        )


@lru_cache(maxsize=512)
def compute_time(
    model: ModelShape,
    workload: Workload,
    gpu: Gpu,
    micro_batch: int,
    gradient_checkpointing: bool,
    software: Software = DEFAULT,
) -> ComputeTime:
    """Seconds of one micro batch; see the module's formulas. Raises ClusterError for a GPU without any published
    rate."""
    rate, bandwidth = product_rate(gpu, workload.precision), memory_rate(gpu)
    element = workload.weight_bytes

    def forward_and_backward(product: Product) -> tuple[float, float]:
        rows, inner, columns = product.rows, product.inner, product.columns

        def seconds(rows: int, inner: int, columns: int) -> float:
            return product_s(
                rows, inner, columns, copies=product.copies, rate=rate, bandwidth=bandwidth, element=element
            )

        # The gradient of the input sums over the output's width, that of the weight over the rows.
        of_input = seconds(rows, columns, inner) if product.backward else 0.0
        of_weight = seconds(inner, rows, columns) if product.backward == 2 else 0.0
        return seconds(rows, inner, columns), of_input + of_weight

    forward = backward = again = attention_forward_s = attention_backward_s = 0.0
    elementwise_forward = elementwise_backward = 0.0
    for block in model.blocks:
        for product in block_products(model, block, workload, micro_batch):
            once, back = forward_and_backward(product)
            forward += block.count * once
            backward += block.count * back
            again += block.count * once if product.again or software.reentrant else 0.0
        for attention, flops in block_attention(model, block, workload, micro_batch):
            keys = min(attention.window or workload.seq_len, workload.seq_len)
            rates = [
                attention_rate(gpu, workload.precision, workload.attention, keys, backward=back)
                for back in (False, True)
            ]
            attention_forward_s += block.count * flops / (rates[0] * software.attention_forward)
            attention_backward_s += (
                block.count * flops * attention_backward(workload.attention) / (rates[1] * software.attention_backward)
            )
        forward_bytes, backward_bytes = block_bytes(model, block, workload, micro_batch, fused=software.fused_kernels)
        weights_forward, weights_backward = block_weight_bytes(model, block, workload)
        elementwise_forward += block.count * (forward_bytes + weights_forward) / bandwidth
        elementwise_backward += block.count * (backward_bytes + weights_backward) / bandwidth
    head = head_product(model, workload, micro_batch)
    if head is not None:
        once, back = forward_and_backward(head)
        forward += once
        backward += back
    loss_forward, loss_backward = loss_bytes(model, workload, micro_batch)
    recomputed = 1.0 if gradient_checkpointing else 0.0
    return ComputeTime(
        products_forward_s=forward,
        products_backward_s=backward,
        products_recompute_s=again * recomputed,
        attention_forward_s=attention_forward_s,
        attention_backward_s=attention_backward_s,
        attention_recompute_s=attention_forward_s * recomputed,
        elementwise_forward_s=elementwise_forward,
        elementwise_backward_s=elementwise_backward,
        elementwise_recompute_s=elementwise_forward * recomputed,
        loss_forward_s=loss_forward / bandwidth,
        loss_backward_s=loss_backward / bandwidth,
    )
