"""Seconds that a GPU computes for one micro batch: matrix products, attention, and what is bound by memory.

A matrix product takes the longer of its arithmetic and its memory traffic, and a ramp on top:

    t = max(2 M N K / R, e (M K + K N + M N) / W) + RAMP_S

R is the rate of a large product, W the memory's. The ramp (filling and draining the GPU's pipelines and the last,
partly empty wave of tiles) is what makes small products slow.

Not covered: fp8, torch.compile, power caps below the card's default, several processes on one GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from .cluster import Gpu
from .errors import ClusterError
from .flops import Product, attention_backward, block_attention, block_products, head_product
from .memory_bound import BACKWARD_SHARE, block_forward_bytes, block_weight_bytes, loss_bytes
from .model_shape import ModelShape
from .workload import Precision, Workload

TYPICAL_OF_BEST = 0.85
"""A model's products against the best shape that anyone timed (what `gemm_*` of the data file holds).

Fitted: with it, the runs of one A100 in `tests/test_throughput.py` (transformers and torchtune, 3 and 7 B, full and
LoRA) are neither all too fast nor all too slow.
"""

BEST_OF_PEAK = 0.8
"""Best timed product against the data sheet's peak, where nobody published one.

From the data file: A100 0.87, H100 0.80, B200 0.78, V100 0.79.
"""

RAMP_S = 8e-6
"""Per matrix product. Chosen so that on an A100 a product of 1024^3 runs at half of the full rate and one of 4096^3 at
0.98."""

MEMORY_SHARE = 0.85
"""Reached part of the data sheet's memory bandwidth. Assumed: no published table covers these kernels."""

ATTENTION_OF_PEAK = {"Volta": 0.35, "Turing": 0.35, "Ampere": 0.64, "Ada": 0.64, "Hopper": 0.34, "Blackwell": 0.3}
"""Flash attention's rate for long sequences, both passes, against the card's dense 16-bit peak, by generation.

FlashAttention-2, which torch runs: 50 to 73 % on A100 (arXiv:2307.08691); 53 % at 512 keys to 71 % at 8192 on RTX A5000
(gpu-mode/ring-attention #10); 21 to 31 % on H100 for a head width of 64 (Dao-AILab/flash-attention #2688), whose
instructions it does not use. Ada as Ampere, Blackwell as Hopper; Volta and Turing run torch's memory-efficient kernel,
taken as half.
"""

ATTENTION_HALF_TOKENS = 600
"""Keys at which flash attention has reached half of that.

Between the 180 of the A5000's rows, where every query sees all keys, and the 1000 of causal ones (B200: 31, 41 and 48 %
at 1k, 2k and 4k, Dao-AILab/flash-attention #2605).
"""


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
        return (self.products_backward_s + self.attention_backward_s + self.elementwise_backward_s
                + self.loss_backward_s + self.recompute_s)


@lru_cache(maxsize=512)
def compute_time(
    model: ModelShape, workload: Workload, gpu: Gpu, micro_batch: int, gradient_checkpointing: bool
) -> ComputeTime:
    """Seconds of one micro batch; see the module's formulas. Raises ClusterError for a GPU without any published
    rate."""
    rate, bandwidth = product_rate(gpu, workload.precision), memory_rate(gpu)
    element = workload.weight_bytes
    forward = backward = attention_forward = elementwise_forward = elementwise_backward = 0.0
    for block in model.blocks:
        for product in block_products(model, block, workload, micro_batch):
            seconds = block.count * product_s(product, rate, bandwidth, element)
            forward += seconds
            backward += seconds * product.backward
        for attention, flops in block_attention(model, block, workload, micro_batch):
            keys = min(attention.window or workload.seq_len, workload.seq_len)
            attention_forward += block.count * flops / attention_rate(gpu, workload, keys)
        activations = block_forward_bytes(model, block, workload, micro_batch)
        weights_forward, weights_backward = block_weight_bytes(model, block, workload)
        elementwise_forward += block.count * (activations + weights_forward) / bandwidth
        elementwise_backward += block.count * (activations * BACKWARD_SHARE + weights_backward) / bandwidth
    again = 1.0 if gradient_checkpointing else 0.0
    recompute = forward * again
    head = head_product(model, workload, micro_batch)
    if head is not None:
        seconds = product_s(head, rate, bandwidth, element)
        forward += seconds
        backward += seconds * head.backward
    loss_forward, loss_backward = loss_bytes(model, workload, micro_batch)
    return ComputeTime(
        products_forward_s=forward, products_backward_s=backward, products_recompute_s=recompute,
        attention_forward_s=attention_forward,
        attention_backward_s=attention_forward * attention_backward(workload.attention),
        attention_recompute_s=attention_forward * again,
        elementwise_forward_s=elementwise_forward, elementwise_backward_s=elementwise_backward,
        elementwise_recompute_s=elementwise_forward * again,
        loss_forward_s=loss_forward / bandwidth, loss_backward_s=loss_backward / bandwidth)


def product_s(product: Product, rate: float, bandwidth: float, element: int) -> float:
    """Seconds of a matrix product and its copies."""
    rows, inner, columns = product.rows, product.inner, product.columns
    moved = element * product.copies * (rows * inner + inner * columns + rows * columns)
    return max(product.forward_flops / rate, moved / bandwidth) + RAMP_S


def product_rate(gpu: Gpu, precision: Precision) -> float:
    """FLOP/s of a large matrix product in a model.

    fp32 runs without TF32, as torch does by default. bf16 on a GPU without it is emulated in fp32.
    """
    best = {"bf16": gpu.gemm_bf16_flops_per_s, "fp16": gpu.gemm_fp16_flops_per_s, "fp32": None}[precision]
    # Both 16-bit formats run on the same units; published timings differ by a few percent.
    if best is None and precision != "fp32" and (precision == "fp16" or gpu.has_bf16):
        best = gpu.gemm_fp16_flops_per_s or gpu.gemm_bf16_flops_per_s
    peak = {"bf16": gpu.bf16_flops_per_s, "fp16": gpu.fp16_flops_per_s, "fp32": gpu.fp32_flops_per_s}[precision]
    if best is None and peak is None:
        peak = gpu.fp32_flops_per_s
    if best is None and peak is not None:
        best = peak * BEST_OF_PEAK
    if best is None:
        raise ClusterError(
            f"no speed of the {gpu.name} is known in {precision}", why="its time cannot be predicted",
            fix="describe the GPU by its memory, such as --gpus 2x24GB")
    return best * TYPICAL_OF_BEST


def attention_rate(gpu: Gpu, workload: Workload, keys: int) -> float:
    """FLOP/s of the attention kernel over sequences of `keys`."""
    products = product_rate(gpu, workload.precision)
    peak = gpu.bf16_flops_per_s if workload.precision == "bf16" else gpu.fp16_flops_per_s
    if workload.attention == "eager" or workload.precision == "fp32" or peak is None:
        return products
    share = ATTENTION_OF_PEAK.get(gpu.architecture, 0.3)
    return min(products, peak * share) * keys / (keys + ATTENTION_HALF_TOKENS)


def memory_rate(gpu: Gpu) -> float:
    """Bytes per second that large operations get from the GPU's memory."""
    if gpu.memory_bytes_per_s is None:
        raise ClusterError(
            f"the memory bandwidth of the {gpu.name} is not known", why="its time cannot be predicted",
            fix="describe the GPU by its memory, such as --gpus 2x24GB")
    return gpu.memory_bytes_per_s * MEMORY_SHARE
