"""Seconds of one operation on one GPU, from its FLOPs and its bytes.

    matrix product   t = max(2 M N (K + TILE_START) / R, e (M K + K N + M N) / W) + RAMP_S
                     on a CPU 2 M N K / R + e (M K + K N + M N) / W + RAMP_S
    attention        t = FLOPs / rate(keys)
    anything else    t = bytes / W

R is the rate of a large product, W the memory's. What makes a small product slow is in two terms: every tile of the
result is loaded and stored once, however short the sum K behind it; and a kernel fills and drains the GPU once, the
last, partly empty wave of tiles included.

The closed form (`compute_time`) and the schedule of a dry run (`estimators/schedule`) both end here, so there is one
set of constants. Those called fitted are what `benchmarks/fit_speed.py` finds on published runs.

Not covered: fp8, power caps below the card's default, several processes on one GPU.
"""

from __future__ import annotations

from ..errors import ClusterError
from ..hardware import Gpu
from ..phrase import phrase
from ..workload import AttentionKernel, MatmulPrecision

HALF_RATE = "half rate"
"""Cards whose tensor cores sum in fp32 at half their rate (`Gpu.is_half_rate`), which power does not slow down."""

SUSTAINED = {"Ampere": 0.91, "Ada": 0.95, "Hopper": 0.84, HALF_RATE: 0.99, "cpu": 1.0}
"""A model's products against the best shape that anyone timed (`gemm_*` of the data file), by architecture. Fitted,
but for a CPU, whose products are timed where it trains, and on which every shape is about as fast as any other, and for
half-rate cards, where products of 10240 are at 0.99 of the best on average (twelve series of
benchmarks/data/published_gemm.csv, 0.93 to 1.0), those of A100 and H100 at 0.9.

Between them lie other shapes, and power: an H100 that multiplies random numbers without a pause clocks down.
"""

SUSTAINED_ELSEWHERE = 0.9
"""The same where no runs are published: about the mean of the fitted ones."""

BEST_OF_PEAK, FP32_BEST_OF_PEAK, HALF_RATE_BEST_OF_PEAK = 0.8, 0.85, 1.05
"""Best timed product against the data sheet's peak, where nobody published one.

From the data file: A100 0.87, H100 0.80, B200 0.78, A40 0.82, V100 0.78. Without tensor cores a product is nearer its
peak: 11.4 of an RTX 2080 Ti's 13.4 TFLOP/s (bewantbe/busy-gemm-benchmark). Half-rate cards run above the clock that
their peak is stated for: RTX 3080 1.09, 3090 1.08, 4090 0.99, 5090 1.13, A10G 0.99.
"""

TILE_START, RAMP_S = 160, 9e-6
"""Additions that starting and ending a tile costs as much as, and seconds per matrix product.

Fitted on 78 published timings of square products of 1024 to 4096 on twelve GPUs (`benchmarks/data/published_gemm.csv`):
a mean error of 11 %, where neither term alone comes below 12 %.
"""

KERNEL_S = 3e-6
"""The least that a kernel occupies a GPU: launched back to back, empty kernels follow each other every 2 to 4 us."""

MEMORY_SHARE = 0.72
"""Reached part of the data sheet's memory bandwidth by the operations that `memory_bound` counts. Fitted."""

ATTENTION_OF_PEAK = {
    "Volta": 0.35,
    "Turing": 0.35,
    "Ampere": 0.67,
    "Ada": 0.67,
    "Hopper": 0.37,
    "Blackwell": 0.53,
    HALF_RATE: 0.89,
}
"""Rate of FlashAttention-2's forward pass, which torch runs, for long sequences against the card's dense 16-bit peak.

Ampere and Hopper fitted. Published: up to 73 % on A100 (arXiv:2307.08691); 71 % on RTX A5000 (gpu-mode/ring-attention
#10); 21 to 31 % on H100 for a head width of 64 (Dao-AILab/flash-attention #2688), whose instructions it does not use.
B200 31, 41 and 48 % at 1k, 2k and 4k keys (Dao-AILab/flash-attention #2605), which is 0.53 with the keys below. Ada as
Ampere; Volta and Turing run torch's memory-efficient kernel, taken as half. Where the tensor cores run at half rate,
the exponentials limit less: torch's kernel reaches 89 % of an RTX 5090's peak at 8192 keys (gau-nernst,
"Writing Speed-of-Light Flash Attention for 5090").
"""

CPU_ATTENTION = {"forward": (0.65, 250), "backward": (0.62, 250), "backward in 16 bits": (0.3, 800)}
"""Torch's flash attention on a CPU: (rate over long sequences against products in fp32, keys at which half of it is
reached), until `bench` has measured the machine's own. It sums in fp32 whatever the type, and its backward pass
converts 16-bit numbers as it goes. Measured on one thread of a Xeon with AVX-512, whose 24 times lie within a factor of
1.5 of this (`benchmarks/probes/cpu_attention.py`); on an EPYC that backward pass is four times as fast. Fitted by
eye."""

ATTENTION_BACKWARD_SPEED = 0.86
"""Rate of its backward pass against its forward pass: at best 63 and 73 % of an A100's peak (arXiv:2307.08691, 4.1)."""

ATTENTION_HALF_TOKENS = 600
"""Keys at which flash attention has reached half of that.

Between the 180 of the A5000's rows, where every query sees all keys, and the 1000 of causal ones (B200: 31, 41 and 48 %
at 1k, 2k and 4k, Dao-AILab/flash-attention #2605).
"""


TRITON_SPEED = (0.75, 0.45)
"""Forward and backward speed of FlashAttention's Triton kernel of 2023 against FlashAttention-2, read off the plots of
arXiv:2307.08691 (figures 5 and 6)."""

EFFICIENT_SPEED = (0.48, 0.45)
"""The share that torch's memory-efficient kernel, which takes masks, reaches: 108 of 225 TFLOP/s forward on an
A100 with heads of 128 (facebookresearch/xformers #389 and #924, whose kernel it is), 24.4 of 54.4 backward at 8192 keys
on a GeForce (Dao-AILab/flash-attention #416)."""


def product_s(
    rows: int,
    inner: int,
    columns: int,
    *,
    copies: int,
    rate: float,
    bandwidth: float,
    element: int,
    is_cpu: bool,
) -> float:
    """Seconds of `copies` matrix products (rows x inner) by (inner x columns), launched as one.

    A CPU's caches hold the tiles, but the core that multiplies is the one that fetches and packs the operands: both
    times add up (`benchmarks/probes/cpu_products.py`).
    """
    moved_s = element * copies * (rows * inner + inner * columns + rows * columns) / bandwidth
    if is_cpu:
        return 2.0 * rows * inner * columns * copies / rate + moved_s + RAMP_S
    return max(2.0 * rows * (inner + TILE_START) * columns * copies / rate, moved_s) + RAMP_S


def product_rate(gpu: Gpu, precision: MatmulPrecision) -> float:
    """FLOP/s of a large matrix product in a model.

    TF32 runs on the tensor cores at the share of its peak that bf16 reaches, on a GPU without it as fp32. bf16 on a GPU
    without it is emulated in fp32.
    """
    if precision == "tf32":
        if gpu.tf32_flops_per_s is None or gpu.bf16_flops_per_s is None:
            return product_rate(gpu, "fp32")
        return product_rate(gpu, "bf16") * gpu.tf32_flops_per_s / gpu.bf16_flops_per_s
    best = {"bf16": gpu.gemm_bf16_flops_per_s, "fp16": gpu.gemm_fp16_flops_per_s, "fp32": None}[precision]
    # Both 16-bit formats run on the same units; published timings differ by a few percent.
    if best is None and precision != "fp32" and (precision == "fp16" or gpu.has_bf16):
        best = gpu.gemm_fp16_flops_per_s or gpu.gemm_bf16_flops_per_s
    peak = {"bf16": gpu.bf16_flops_per_s, "fp16": gpu.fp16_flops_per_s, "fp32": gpu.fp32_flops_per_s}[precision]
    if best is None and peak is None:
        peak = gpu.fp32_flops_per_s
    if best is None and peak is not None:
        of_peak = HALF_RATE_BEST_OF_PEAK if gpu.is_half_rate else BEST_OF_PEAK
        best = peak * (FP32_BEST_OF_PEAK if precision == "fp32" else of_peak)
    if best is None:
        raise ClusterError(
            phrase("no speed of the {gpu} is known in {precision}", gpu=gpu.name, precision=precision),
            why="its time cannot be predicted",
            fix="describe the GPU by its memory, such as --gpus 2x24GB",
        )
    return best * SUSTAINED.get(_kind(gpu), SUSTAINED_ELSEWHERE)


def _kind(gpu: Gpu) -> str:
    """The key of a GPU in the tables by architecture."""
    return HALF_RATE if gpu.is_half_rate else gpu.architecture


def attention_rate(
    gpu: Gpu,
    precision: MatmulPrecision,
    kernel: AttentionKernel,
    keys: int,
    *,
    backward: bool = False,
    masked: bool = False,
) -> float:
    """FLOP/s of the attention kernel over sequences of `keys`, in its forward or backward pass. masked: torch's
    memory-efficient kernel runs."""
    if masked and gpu.architecture not in ("Volta", "Turing"):  # which have no other
        return EFFICIENT_SPEED[backward] * attention_rate(gpu, precision, kernel, keys, backward=backward)
    if precision == "tf32" and kernel != "eager":
        precision = "fp32"
    products = product_rate(gpu, precision)
    if kernel in ("sdpa", "flash") and (measured := _measured_attention(gpu, precision, keys, backward)):
        return measured * SUSTAINED.get(_kind(gpu), SUSTAINED_ELSEWHERE)
    if gpu.is_cpu and kernel != "eager":
        what = "forward" if not backward else "backward" if precision == "fp32" else "backward in 16 bits"
        share, half = CPU_ATTENTION[what]
        return product_rate(gpu, "fp32") * share * keys / (keys + half)
    peak = gpu.bf16_flops_per_s if precision == "bf16" else gpu.fp16_flops_per_s
    if kernel == "eager" or precision not in ("bf16", "fp16") or peak is None:
        return products
    share = ATTENTION_OF_PEAK.get(_kind(gpu), 0.3) * (ATTENTION_BACKWARD_SPEED if backward else 1.0)
    rate = min(products, peak * share) * keys / (keys + ATTENTION_HALF_TOKENS)
    return rate * TRITON_SPEED[backward] if kernel == "triton" else rate


def _measured_attention(gpu: Gpu, precision: MatmulPrecision, keys: int, backward: bool) -> float | None:
    """FLOP/s as measured on the device, None where they were not: seconds of an operation are linear in 1 / keys
    between two lengths, below the shortest as between the first two, and constant beyond the longest."""
    known = [speed for speed in gpu.attention if (speed.precision, speed.backward) == (precision, backward)]
    if not known:
        return None
    if keys >= known[-1].keys or len(known) == 1:
        return known[-1].flops_per_s
    longer = next(number for number in range(1, len(known)) if keys < known[number].keys)
    short, long = known[longer - 1], known[longer]
    part = (1 / keys - 1 / long.keys) / (1 / short.keys - 1 / long.keys)
    return 1 / ((1 - part) / long.flops_per_s + part / short.flops_per_s)


def memory_rate(gpu: Gpu) -> float:
    """Bytes per second that large operations get from the GPU's memory."""
    if gpu.memory_bytes_per_s is None:
        raise ClusterError(
            phrase("the memory bandwidth of the {gpu} is not known", gpu=gpu.name),
            why="its time cannot be predicted",
            fix="describe the GPU by its memory, such as --gpus 2x24GB",
        )
    return gpu.memory_bytes_per_s * MEMORY_SHARE
