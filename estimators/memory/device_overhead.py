"""Device memory beside tensors: library workspaces, the allocator's slack, the CUDA context, NCCL's buffers.

These figures come from published observations, not from this model's arithmetic: expect them to be off by some hundred
MiB until a probe has measured them.
"""

from __future__ import annotations

from ..estimate import Formula, Terms
from ..hardware.cluster import Cluster, Gpu
from ..plan import Plan

MIB = 1 << 20

CUBLAS_HANDLES = 2
"""The main thread runs the forward pass, autograd's thread the backward pass; each has a handle and a workspace of its
own."""

CONTEXT_BYTES = {"hopper": 600 * MIB, "ampere": 480 * MIB, "older": 400 * MIB}
"""A bare context with lazily loaded kernels takes 256 MiB (RTX 3090, torch 2.7 + CUDA 12.8: invoke-ai/InvokeAI issue
9413) to 426 MiB (RTX 6000 Ada, torch 2.10 + CUDA 13.0: unslothai/unsloth-zoo pull 1053); training loads some hundred
MiB of kernels on top (0.47 to 0.92 GiB in all: stas00/ml-engineering)."""

NCCL_CHANNELS = {"nvlink": 24, "pcie": 4}
NCCL_CONNECTIONS = 4
"""Ring and tree: about four peers' receive buffers per channel."""
NCCL_CONNECTION_BYTES = 10 * MIB
"""The LL, LL128 and Simple buffers of one connection take 10,485,760 bytes (NVIDIA/nccl issue 1685, which reports
1.06 GB of context and NCCL before its first all-to-all on 8 H100). NCCL's memory is linear in its channels, of which it
opens as many as the links need, and stops growing beyond two nodes (NVIDIA/nccl issue 864)."""

SLACK_SHARE = {0: 0.025, 1: 0.025, 2: 0.025, 3: 0.055}
"""The share of the bytes that come and go which the caching allocator cannot give back while the peak's tensors live,
because pages are partly used. ZeRO-3 gathers and releases tensors of many sizes on two streams, so its cache fits
worse."""

SEGMENT_BYTES = 20 * MIB
"""Smallest segment for requests over 1 MiB, and a page of an expandable one (torch 2.13 CUDACachingAllocator)."""

FIXED_SEGMENTS_SHARE = 0.0983
"""Share of what comes and goes in a step that the allocator cannot give back without expandable segments when a request
fails: the median of the shares by which `fit_probability` judges (data/memory_spread.csv), so that a plan which is as
likely to fit as not needs just what the GPU has."""

HELD_SHARE = 0.28
"""The share that it holds while nobody asks it back, the last one included: nvidia-smi shows it. Fitted: the median
over the published runs that nearly filled their GPU and whose sources print both the peak of allocated memory and
nvidia-smi (`benchmarks.accuracy.memory.fitted_slack` recomputes it)."""

CPU_PROCESS_BYTES = {0: 70 * 10**6, 1: 160 * 10**6, 2: 160 * 10**6, 3: 200 * 10**6}
"""Resident memory of a rank on the CPU beyond its model's tensors and the libraries that were loaded before, by ZeRO
stage: what deepspeed.initialize and the first step load. Fitted together with the next
(benchmarks/probes/cpu_memory.py)."""

CPU_HEAP_SHARE = 0.4
"""The share of the bytes that come and go in the passes of a step which glibc's heap holds beyond them. It returns
blocks of more than 32 MiB at once, and of the smaller ones only those at the heap's end; with `MALLOC_MMAP_THRESHOLD_`
set, which has every block returned, this share is gone and a step takes half as long again."""

_ON_CPU = "benchmarks/probes/cpu_memory.py"

SLACK_PAGES = 4
"""Pages of `expandable_segments:True`, as the launch commands set it, that are partly used however little comes and
goes: at both ends of the runs of live blocks.

Both constants are the smallest round ones that the dry run's replay of the allocator exceeds nowhere in
benchmarks/analytic_vs_dry_run by more than 2 % of the peak (docs/closed-form.md). There the replay loses 40 to 225 MiB,
which hardly grows with the bytes that come and go: the share is rather too much than too little for a large model."""


_WORKSPACE = Formula(
    "library_workspace",
    "handles workspace",
    "torch 2.13 aten/src/ATen/cuda/CublasHandlePool.cpp getChosenWorkspaceSize",
    {"handles": "cuBLAS handles of a process", "workspace": "bytes of one handle's workspace"},
)
_TRANSIENT = {
    "share": "share of what comes and goes that the allocator cannot give back",
    "transient": "bytes that come and go within a step",
}
_SLACK = Formula(
    "allocator_overhead",
    "pages + share transient",
    "torch 2.13 c10/cuda/CUDACachingAllocator.cpp: 512-byte blocks, pages of 2 and 20 MiB; the dry run's replay",
    {"pages": "bytes of pages that are only partly used", **_TRANSIENT},
    "settings other than expandable_segments:True",
)
FIXED_SEGMENTS = Formula(
    "allocator_overhead",
    "segment + share transient",
    "benchmarks/accuracy/memory_spread.py wasted_shares",
    {"segment": "bytes of a segment", **_TRANSIENT},
)
_CACHE = Formula(
    "cache",
    "share transient",
    "benchmarks/accuracy/memory.py fitted_slack",
    {
        "share": "share of what comes and goes that the allocator holds, but would give back",
        "transient": _TRANSIENT["transient"],
    },
    "GPUs with much room, where it grows further",
)
_HEAP = Formula(
    "allocator_overhead",
    "passes + share transient - peak",
    _ON_CPU,
    {
        "passes": "bytes at the peak of the forward and backward passes",
        "peak": "bytes at the step's peak",
        **_TRANSIENT,
    },
)
_PROCESS = Formula("process", "by ZeRO stage", _ON_CPU, not_covered="other optimizers and libraries than were measured")
_CONTEXT = Formula(
    "cuda_context",
    "by GPU generation",
    "InvokeAI issue 9413, unsloth-zoo pull 1053, stas00/ml-engineering",
    not_covered="kernels that a library loads later, and other processes on the GPU",
)
_NCCL = Formula(
    "nccl_buffers",
    "channels connections buffer",
    "NVIDIA/nccl issues 864, 1685",
    {"channels": "channels that NCCL opens", "connections": "peers of a channel", "buffer": "bytes of one buffer"},
    "NCCL_BUFFSIZE and NVLink SHARP",
)


def _generation(capability: float | None) -> str:
    if capability is None or capability >= 9.0:
        return "hopper"
    return "ampere" if capability >= 8.0 else "older"


def library_workspace(gpu: Gpu) -> Terms:
    """cuBLAS workspaces, which PyTorch takes from its own allocator: they count as allocated.

    32 MiB each on Hopper and later, 8.125 MiB before (`:4096:2:16:8` in CUBLAS_WORKSPACE_CONFIG's notation); none on a
    CPU.
    """
    if gpu.is_cpu:
        return ()
    recent = _generation(gpu.compute_capability) == "hopper"
    size = 32 * MIB if recent else (2 * 4096 + 8 * 16) * 1024
    return _WORKSPACE.term(CUBLAS_HANDLES * size, handles=CUBLAS_HANDLES, workspace=size)


def allocator_overhead(plan: Plan, transient_bytes: int) -> Terms:
    """What PyTorch's caching allocator holds beyond the live tensors at the peak and cannot give back.

    This decides whether a plan fits. With memory to spare the cache grows further: segments of the loss and of the
    backward pass stay reserved while the step asks for larger ones, and nvidia-smi shows them all, for a small model
    with a large vocabulary half as much again. Before a request fails, the allocator returns them.
    """
    share, pages = SLACK_SHARE[plan.zero_stage], SLACK_PAGES * SEGMENT_BYTES
    return _SLACK.term(pages + share * transient_bytes, pages=pages, share=share, transient=transient_bytes)


def fixed_segments_overhead(transient_bytes: int) -> Terms:
    """The same without expandable segments: a half-used segment, and a share of the bytes that come and go.

    A segment then serves only requests that fit into what is free of it, so blocks of one phase (a layer's gradients)
    cannot be made of those of another (the logits).
    """
    wasted = SEGMENT_BYTES + FIXED_SEGMENTS_SHARE * transient_bytes
    return FIXED_SEGMENTS.term(wasted, segment=SEGMENT_BYTES, share=FIXED_SEGMENTS_SHARE, transient=transient_bytes)


def fixed_segments_cache(transient_bytes: int) -> Terms:
    """What it holds besides and gives back before a request fails: no plan needs it, and nvidia-smi shows it."""
    share = HELD_SHARE - FIXED_SEGMENTS_SHARE
    return _CACHE.term(share * transient_bytes, share=share, transient=transient_bytes)


def heap_overhead(peak_bytes: int, passes_bytes: int, transient_bytes: int) -> Terms:
    """What glibc's heap, which is the allocator on a CPU, holds beyond the live tensors at the peak of a step.

    `passes_bytes` is the peak of the forward and backward passes, of which `transient_bytes` come and go. What the
    passes leave free the optimizer uses, so the overhead counts as far as it exceeds `peak_bytes`, the whole step's.
    """
    share, transient = CPU_HEAP_SHARE, transient_bytes
    size = max(0, round(passes_bytes + share * transient) - peak_bytes)
    return _HEAP.term(size, passes=passes_bytes, share=share, transient=transient, peak=peak_bytes)


def outside_allocator(cluster: Cluster, plan: Plan | None = None) -> Terms:
    """CUDA context and NCCL, which PyTorch's counters do not see and nvidia-smi does.

    A CPU has neither; there it is what a rank takes besides tensors once its model is there, which is not known without
    a plan.
    """
    if cluster.gpu.is_cpu:
        return () if plan is None else _PROCESS.term(CPU_PROCESS_BYTES[plan.zero_stage])
    context = _CONTEXT.term(CONTEXT_BYTES[_generation(cluster.gpu.compute_capability)])
    if cluster.world_size == 1:
        return context
    channels = NCCL_CHANNELS["pcie" if cluster.gpu.peer_link == "pcie" else "nvlink"]
    size = channels * NCCL_CONNECTIONS * NCCL_CONNECTION_BYTES
    return context + _NCCL.term(size, channels=channels, connections=NCCL_CONNECTIONS, buffer=NCCL_CONNECTION_BYTES)
