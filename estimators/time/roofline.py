"""Seconds of one operation on one GPU, from its FLOPs and its bytes.

    matrix product   t = max(2 M N (K + TILE_START) / R, e (M K + K N + M N) / W) + RAMP_S
                     on a CPU 2 M N K / R + e (M K + K N + M N) / W + RAMP_S
    attention        t = FLOPs / rate(keys)
    anything else    t = bytes / W

R is the rate of a large product, W that of the memory. Two terms describe why a small product is slow: every tile of
the result is loaded and stored once, however small K is (TILE_START); and a kernel fills and drains the GPU once,
including the last, partly empty wave of tiles (RAMP_S).

The closed form (`compute_time`) and the schedule of a dry run (`estimators/schedule`) both use this module, so there is
one set of constants. `benchmarks/accuracy/speed_fit.py` determines the fitted ones from published runs.

Not covered: fp8, power caps below the card's default, several processes on one GPU.
"""

from __future__ import annotations

from ..errors import ClusterError
from ..hardware import Gpu
from ..workload import AttentionKernel, MatmulPrecision

HALF_RATE = "half rate"
"""Cards whose tensor cores accumulate in fp32 at half rate (`Gpu.is_half_rate`). The power limit does not slow them."""

SUSTAINED = {"Ampere": 0.91, "Ada": 0.95, "Hopper": 0.84, HALF_RATE: 0.99, "cpu": 1.0}
"""Rate of a model's products over that of the fastest published shape (`gemm_*` of the data file), by architecture.
Fitted, with two exceptions. The products of a CPU are timed on the training machine, and all shapes are about equally
fast there. On half-rate cards, products of 10240 reach 0.99 of the best on average (twelve series of
benchmarks/data/published_gemm.csv, 0.93 to 1.0); those of A100 and H100 reach 0.9.

The difference is due to other shapes and to power: an H100 that multiplies random numbers without a pause clocks down.
"""

SUSTAINED_ELSEWHERE = 0.9
"""`SUSTAINED` of architectures without published runs: about the mean of the fitted ones."""

BEST_OF_PEAK, FP32_BEST_OF_PEAK, HALF_RATE_BEST_OF_PEAK = 0.8, 0.85, 1.05
"""Rate of the fastest product over the data sheet's peak, for GPUs without published timings.

From the data file: A100 0.87, H100 0.80, B200 0.78, A40 0.82, V100 0.78. Without tensor cores a product is nearer its
peak: 11.4 of an RTX 2080 Ti's 13.4 TFLOP/s (bewantbe/busy-gemm-benchmark). Half-rate cards run above the clock that
their peak is stated for: RTX 3080 1.09, 3090 1.08, 4090 0.99, 5090 1.13, A10G 0.99.
"""

TILE_START, RAMP_S = 160, 9e-6
"""Cost of starting and ending a tile, in additions (elements of K), and seconds per matrix product.

Fitted on 78 published timings of square products of 1024 to 4096 on twelve GPUs (`benchmarks/data/published_gemm.csv`),
with a mean error of 11 %; with either term alone it is at least 12 %.
"""

KERNEL_S = 3e-6
"""Minimum seconds that a kernel occupies a GPU: empty kernels launched back to back take 2 to 4 us each."""

MEMORY_SHARE = 0.72
"""Share of the data sheet's memory bandwidth that the operations of `memory_bound` reach. Fitted."""

ATTENTION_OF_PEAK = {
    "Volta": 0.35,
    "Turing": 0.35,
    "Ampere": 0.67,
    "Ada": 0.67,
    "Hopper": 0.37,
    "Blackwell": 0.53,
    HALF_RATE: 0.89,
}
"""Rate of FlashAttention-2's forward pass, which torch runs, for long sequences over the card's dense 16-bit peak.

Ampere and Hopper fitted. Published: up to 73 % on A100 (arXiv:2307.08691); 71 % on RTX A5000 (gpu-mode/ring-attention
#10); 21 to 31 % on H100 for a head width of 64 (Dao-AILab/flash-attention #2688), whose instructions it does not use.
B200 31, 41 and 48 % at 1k, 2k and 4k keys (Dao-AILab/flash-attention #2605), which is 0.53 with the keys below. Ada as
Ampere; Volta and Turing run torch's memory-efficient kernel, taken as half. Where the tensor cores run at half rate,
the exponentials limit less: torch's kernel reaches 89 % of an RTX 5090's peak at 8192 keys (gau-nernst,
"Writing Speed-of-Light Flash Attention for 5090").
"""

CPU_ATTENTION = {"forward": (0.65, 250), "backward": (0.62, 250), "backward in 16 bits": (0.3, 800)}
"""Torch's flash attention on a CPU: (rate for long sequences over that of fp32 products, keys at which half of it is
reached). Used until `bench` has measured the machine. The kernel accumulates in fp32 for every type, and its backward
pass converts 16-bit numbers on the fly. Fitted by eye to one thread of a Xeon with AVX-512, whose 24 timings are within
a factor of 1.5 (`benchmarks/probes/cpu_kernels.py`); on an EPYC the 16-bit backward pass is four times as fast."""

ATTENTION_BACKWARD_SPEED = 0.86
"""Rate of flash attention's backward pass over its forward pass: at best 63 and 73 % of an A100's peak
(arXiv:2307.08691, 4.1)."""

ATTENTION_HALF_TOKENS = 600
"""Keys at which flash attention reaches half of its rate for long sequences.

It lies between 180 on the A5000, where every query sees all keys, and 1000 for causal attention (B200: 31, 41 and 48 %
at 1k, 2k and 4k, Dao-AILab/flash-attention #2605).
"""

TRITON_SPEED = (0.75, 0.45)
"""Forward and backward speed of FlashAttention's Triton kernel of 2023 over FlashAttention-2, read off the plots of
arXiv:2307.08691 (figures 5 and 6)."""

EFFICIENT_SPEED = (0.48, 0.45)
"""Forward and backward speed of torch's memory-efficient kernel, which supports masks, over FlashAttention-2: 108 of
225 TFLOP/s forward on an A100 with heads of 128 (facebookresearch/xformers #389 and #924; the kernel is xformers'),
24.4 of 54.4 backward at 8192 keys on a GeForce (Dao-AILab/flash-attention #416)."""


def product_s(
    rows: int, inner: int, columns: int, *, copies: int, rate: float, bandwidth: float, element: int, is_cpu: bool
) -> float:
    """Return the seconds of `copies` matrix products (rows x inner) by (inner x columns), launched as one.

    A CPU's caches hold the tiles, but the same core multiplies and also fetches and packs the operands, so both times
    add up (`benchmarks/probes/cpu_kernels.py`).
    """
    moved_s = element * copies * (rows * inner + inner * columns + rows * columns) / bandwidth
    if is_cpu:
        return 2.0 * rows * inner * columns * copies / rate + moved_s + RAMP_S
    return max(2.0 * rows * (inner + TILE_START) * columns * copies / rate, moved_s) + RAMP_S


def product_rate(gpu: Gpu, precision: MatmulPrecision) -> float:
    """Return the FLOP/s of a large matrix product in a model.

    TF32 is assumed to reach the same share of its peak as bf16; GPUs without TF32 compute in fp32. GPUs without bf16
    emulate it in fp32.
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
            f"no speed of the {gpu.name} is known in {precision}",
            why="its time cannot be predicted",
            fix="describe the GPU by its memory, such as --gpus 2x24GB",
        )
    return best * SUSTAINED.get(_kind(gpu), SUSTAINED_ELSEWHERE)


def _kind(gpu: Gpu) -> str:
    """Return the key of a GPU in the tables by architecture."""
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
    """Return the FLOP/s of the attention kernel over sequences of `keys`, in its forward or backward pass. masked:
    whether torch's memory-efficient kernel runs."""
    if masked and gpu.architecture not in ("Volta", "Turing"):  # these have no other kernel
        return EFFICIENT_SPEED[backward] * attention_rate(gpu, precision, kernel, keys, backward=backward)
    # Fused attention kernels ignore `allow_tf32`.
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
    # A short sequence leaves most of a tile masked and each block with little work between its loads.
    rate = min(products, peak * share) * keys / (keys + ATTENTION_HALF_TOKENS)
    return rate * TRITON_SPEED[backward] if kernel == "triton" else rate


def _measured_attention(gpu: Gpu, precision: MatmulPrecision, keys: int, backward: bool) -> float | None:
    """Return the FLOP/s measured on the device; None if not measured. Seconds per FLOP are interpolated linearly in
    1 / keys, extrapolated below the shortest length, and constant beyond the longest."""
    known = [speed for speed in gpu.attention if (speed.precision, speed.backward) == (precision, backward)]
    if not known:
        return None
    if keys >= known[-1].keys or len(known) == 1:
        return known[-1].flops_per_s
    longer = next(number for number in range(1, len(known)) if keys < known[number].keys)
    short, long = known[longer - 1], known[longer]
    # Time per FLOP is a constant plus a start-up cost shared by the keys, hence linear in 1 / keys.
    part = (1 / keys - 1 / long.keys) / (1 / short.keys - 1 / long.keys)
    return 1 / ((1 - part) / long.flops_per_s + part / short.flops_per_s)


def memory_rate(gpu: Gpu) -> float:
    """Return the bytes per second that large operations get from the GPU's memory."""
    if gpu.memory_bytes_per_s is None:
        raise ClusterError(
            f"the memory bandwidth of the {gpu.name} is not known",
            why="its time cannot be predicted",
            fix="describe the GPU by its memory, such as --gpus 2x24GB",
        )
    return gpu.memory_bytes_per_s * MEMORY_SHARE
