"""Device memory outside tensors: library workspaces, the allocator's overhead, the CUDA context, NCCL's buffers.

Most figures are published observations. Expect errors of some hundred MiB until a probe has measured them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ..estimate import Formula, MemoryEstimate, Phase, Terms, total_bytes
from ..hardware import Cluster, Gpu
from ..machine_parts import pcie_bytes_per_s
from ..plan import Plan
from ..workload import Software
from .trainable import ShardedTensors, optimizer_group_numels

MIB = 1 << 20

CUBLAS_HANDLES = 2
"""Number of cuBLAS handles: the main thread (forward) and autograd's (backward) have one with a workspace each."""

CONTEXT_BYTES = {"hopper": 600 * MIB, "ampere": 480 * MIB, "older": 400 * MIB}
"""Memory of the CUDA context by GPU generation. A bare context with lazily loaded kernels takes 256 MiB (RTX 3090,
torch 2.7 + CUDA 12.8: invoke-ai/InvokeAI issue 9413) to 426 MiB (RTX 6000 Ada, torch 2.10 + CUDA 13.0:
unslothai/unsloth-zoo pull 1053). Training adds some hundred MiB of kernels (0.47 to 0.92 GiB in all:
stas00/ml-engineering)."""

NCCL_CHANNELS = {"nvlink": 24, "pcie": 4}
NCCL_CONNECTIONS = 4
"""Peers with a receive buffer per channel: about four, for ring and tree."""
NCCL_CONNECTION_BYTES = 10 * MIB
"""LL, LL128 and Simple buffers of one connection: 10,485,760 bytes (NVIDIA/nccl issue 1685: 1.06 GB of context and NCCL
before the first all-to-all on 8 H100). The total is linear in the channels (NCCL opens as many as the links need) and
constant beyond two nodes (NVIDIA/nccl issue 864)."""

SLACK_SHARE = {0: 0.025, 1: 0.025, 2: 0.025, 3: 0.055}
"""Share of transient bytes, by ZeRO stage, that the caching allocator cannot return while the peak's tensors live,
because their pages are partly used. ZeRO-3 gathers and releases tensors of many sizes on two streams."""

SEGMENT_BYTES = 20 * MIB
"""Minimum segment for requests over 1 MiB, and page of an expandable one (torch 2.13 CUDACachingAllocator)."""

FIXED_SEGMENTS_SHARE = 0.0749
"""`SLACK_SHARE` without expandable segments when a request fails: the median of the shares in data/memory_spread.csv,
so that a plan that needs the whole memory of a GPU fits with probability one half."""

EARLIER_BATCHES = 2.0
"""Tokens of the batches that were a run's longest before its longest one, relative to that one. In fixed segments each
found no free block for the tensors of its loss, except blocks of other components, and left its own behind. The
expected sum of the successive maxima of n lengths is the sum over x of x p(x) (1 - F(x)^n) / (1 - F(x)), with F(x) the
share of shorter samples. For Alpaca's 52,000 samples it is 2.0 after 100 batches of one, and 2.2 after 1,000 if a cap
cuts off 2 % (`python -m benchmarks.dry_run.varying_lengths`)."""

CPU_PROCESS_BYTES = {0: 70 * 10**6, 1: 160 * 10**6, 2: 160 * 10**6, 3: 200 * 10**6}
"""Resident memory of a rank on the CPU by ZeRO stage, loaded by deepspeed.initialize and the first step. Not included:
the model's tensors and libraries loaded before. Fitted with `CPU_HEAP_SHARE` (benchmarks/probes/cpu_memory.py)."""

CPU_HEAP_SHARE = 0.4
"""Share of transient bytes that glibc's heap holds. glibc returns blocks of more than 32 MiB at once, and smaller ones
only at the heap's end. With `MALLOC_MMAP_THRESHOLD_` set it returns every block, and a step takes 1.5 times as long."""

_ON_CPU = "benchmarks/probes/cpu_memory.py"

SLACK_PAGES = 4
"""Number of partly used pages with `expandable_segments:True`, at both ends of the runs of live blocks, independent of
the transient bytes.

`SLACK_PAGES` and `SLACK_SHARE` are the smallest round values that the dry run's replay of the allocator exceeds by at
most 2 % of the peak in `benchmarks.dry_run.analytic_vs_dry_run` (docs/closed-form.md). The replay loses 40 to 225 MiB,
almost independently of the transient bytes: for a large model the share is probably too large.
"""

_SYMBOLS = {
    "handles": "cuBLAS handles of a process",
    "workspace": "bytes of one handle's workspace",
    "pages": "bytes of pages that are only partly used",
    "segment": "bytes of a segment",
    "share": "share of temporary memory that the allocator cannot release",
    "transient": "bytes that are allocated and freed within a step",
    "stream": "most bytes at a moment on one CUDA stream (computation, gathering, reducing, or the step's copies)",
    "component": "most bytes of one component at any moment",
    "earlier": "bytes left by earlier batches that were the longest so far",
    "kept": "bytes at the peak and the pages that are only partly used",
    "memory": "bytes of the GPU's memory",
    "needed": "bytes that the process needs of it",
    "passes": "bytes at the peak of the forward and backward passes",
    "peak": "bytes at the step's peak",
    "context": "bytes of a context with the kernels of a training on a GPU of this generation",
    "rank": "bytes of a rank's process without its tensors at this ZeRO stage",
    "channels": "channels that NCCL opens",
    "connections": "peers of a channel",
    "buffer": "bytes of one buffer",
}
_WORKSPACE = Formula(
    "library_workspace",
    "handles workspace",
    "torch 2.13 aten/src/ATen/cuda/CublasHandlePool.cpp getChosenWorkspaceSize",
    _SYMBOLS,
)
_SLACK = Formula(
    "allocator_overhead",
    "pages + share transient",
    "torch 2.13 c10/cuda/CUDACachingAllocator.cpp: 512-byte blocks, pages of 2 and 20 MiB; the dry run's replay",
    _SYMBOLS,
    "settings other than expandable_segments:True",
)
FIXED_SEGMENTS = Formula(
    "allocator_overhead", "segment + share transient", "benchmarks/accuracy/memory_spread.py wasted_shares", _SYMBOLS
)
_STREAM_CACHE = Formula(
    "cache",
    "sum of stream - kept",
    "torch 2.13 c10/cuda/CUDACachingAllocator.cpp: requests of two streams never share a segment, and pages are "
    "returned when a request fails",
    _SYMBOLS,
    "gaps between tensors of different sizes other than those of the logits",
)
_COMPONENT_CACHE = _STREAM_CACHE._replace(
    text="sum of component - kept",
    not_covered="segments that another component can use, and blocks that wait for another stream",
)
_LENGTHS_CACHE = _STREAM_CACHE._replace(
    text="sum of component + earlier - kept",
    not_covered=f"{_COMPONENT_CACHE.not_covered}, and other distributions of lengths than Alpaca's",
)
_ROOM = Formula("cache", "memory - needed", "an allocator holds no more than the GPU has", _SYMBOLS)
_HEAP = Formula("allocator_overhead", "passes + share transient - peak", _ON_CPU, _SYMBOLS)
_PROCESS = Formula("process", "rank", _ON_CPU, _SYMBOLS, "optimizers and libraries that were not measured")
_CONTEXT = Formula(
    "cuda_context",
    "context",
    "InvokeAI issue 9413, unsloth-zoo pull 1053, stas00/ml-engineering",
    _SYMBOLS,
    "kernels that a library loads later, and other processes on the GPU",
)
_NCCL = Formula(
    "nccl_buffers",
    "channels connections buffer",
    "NVIDIA/nccl issues 864, 1685",
    _SYMBOLS,
    "NCCL_BUFFSIZE and NVLink SHARP",
)


def _generation(capability: float | None) -> str:
    if capability is None or capability >= 9.0:
        return "hopper"
    return "ampere" if capability >= 8.0 else "older"


def library_workspace(gpu: Gpu) -> Terms:
    """Return cuBLAS workspaces: 32 MiB each on Hopper and later, 8.125 MiB before (`:4096:2:16:8` in
    CUBLAS_WORKSPACE_CONFIG's notation); none on a CPU. PyTorch's allocator provides them, so they count as
    allocated."""
    if gpu.is_cpu:
        return ()
    # cuBLAS recommends 32 MiB from Hopper on, and torch follows it (`getChosenWorkspaceSize`).
    recent = _generation(gpu.compute_capability) == "hopper"
    size = 32 * MIB if recent else (2 * 4096 + 8 * 16) * 1024
    return _WORKSPACE.term(CUBLAS_HANDLES * size, handles=CUBLAS_HANDLES, workspace=size)


def allocator_overhead(plan: Plan, transient_bytes: int, *, expandable: bool) -> Terms:
    """Return the memory that the caching allocator holds beyond the live tensors at the peak and cannot return. It
    caches more if memory is free (nvidia-smi shows it), and returns that before a request fails.

    expandable: whether segments are expandable. Otherwise the overhead is a half-used segment and a larger share of
    transient bytes, since blocks of one phase (a layer's gradients) cannot be made of segments of another (the logits).
    """
    if not expandable:
        wasted = SEGMENT_BYTES + FIXED_SEGMENTS_SHARE * transient_bytes
        return FIXED_SEGMENTS.term(wasted, segment=SEGMENT_BYTES, share=FIXED_SEGMENTS_SHARE, transient=transient_bytes)
    share, pages = SLACK_SHARE[plan.zero_stage], SLACK_PAGES * SEGMENT_BYTES
    return _SLACK.term(pages + share * transient_bytes, pages=pages, share=share, transient=transient_bytes)


STREAMS = {"gathered_parameters": "gather", "reduce_buckets": "reduce", "offload_staging": "reduce"}
"""Stream of each component that has one of its own where communication overlaps (deepspeed 0.19.8
runtime/zero/stage3.py and stage_1_and_2.py, torch FSDP's unshard stream). The others are on the default stream."""


def cache(
    memory: MemoryEstimate,
    *,
    plan: Plan,
    cluster: Cluster,
    gap_bytes: int,
    sharded: ShardedTensors | None,
    software: Software,
) -> Terms:
    """Return the memory that the caching allocator holds beyond a plan's need and returns before a request fails. Every
    pool keeps the memory of its own peak, although the peaks are at different times. The GPU's free memory is the
    limit.

    Without expandable segments each component is a pool, since a segment is as large as the request it was made for. At
    stage 3 (of `sharded` tensors) the embedding and the head find the earlier blocks cut into layers' parameters, and a
    larger sub-group finds the blocks of the previous ones too small. With varying lengths, batches leave the tensors of
    their loss (`EARLIER_BATCHES`). With expandable segments each CUDA stream is a pool, and the loss leaves a gap of
    `gap_bytes` (`loss.logits_gap_bytes`). At stages 1 and 2 the remaining gradients are scattered in the memory that
    the backward pass freed, so that the step's flat copies get pages of their own.
    """
    if cluster.gpu.is_cpu:
        return ()
    streams = STREAMS if plan.overlap_comm or plan.is_fsdp else {}
    expandable, earlier, formula = software.expandable_segments, 0, _STREAM_CACHE
    if expandable and plan.zero_stage in (1, 2):
        streams = {**streams, "step_temporaries": "step"}
    peaks = Counter[str]()
    for phase in memory.phases:
        peaks |= _bytes_by_pool(phase, streams if expandable else None, gap_bytes)
    if not expandable:
        formula = _COMPONENT_CACHE
        if sharded is not None and plan.zero_stage == 3:
            layers = [_bytes_by_pool(phase) for phase in memory.phases if phase.name == "layer_backward"]
            gathered, tensors = sum(by_pool["gathered_parameters"] for by_pool in layers), sharded.tensors
            # On one GPU, or if the model stays whole, embedding and head are not gathered between layers' parameters.
            if sharded.world_size > 1 and tensors.numel > plan.stage3_max_live_parameters:
                gathered += tensors.workload.weight_bytes * (tensors.embedding + (0 if tensors.tied else tensors.head))
            peaks["gathered_parameters"] = max(peaks["gathered_parameters"], gathered)
            groups = optimizer_group_numels(sharded, plan.sub_group_size)
            # Sub-groups whose fp32 gradients need larger segments (multiples of 2 MiB) than all previous ones.
            segments = [-(-4 * numel // (2 * MIB)) for numel in groups]
            larger = [numel for at, numel in enumerate(groups) if segments[at] > max(segments[:at], default=0)]
            peaks["step_temporaries"] = peaks["step_temporaries"] * sum(larger) // max(groups)
        if software.varying_lengths:
            earlier, formula = _earlier_batches_bytes(memory, peaks, streams), _LENGTHS_CACHE
    kept, room = memory.reserved_bytes_per_gpu, max(0, cluster.gpu.memory_bytes - memory.device_bytes_per_gpu)
    cached = max(0, peaks.total() + earlier - kept)
    # When a request fails, the allocator returns its cached blocks and tries again, so a cache never exceeds the GPU.
    if cached > room:
        return _ROOM.term(room, memory=cluster.gpu.memory_bytes, needed=memory.device_bytes_per_gpu)
    return formula.term(cached, kept=kept, **({"earlier": earlier} if formula is _LENGTHS_CACHE else {}))


def _bytes_by_pool(phase: Phase, streams: Mapping[str, str] | None = None, gap_bytes: int = 0) -> Counter[str]:
    """Return the bytes of a phase by stream, or by component if `streams` is None."""
    by_pool = Counter[str]()
    if streams is not None and phase.name == "loss_peak":
        by_pool["default"] = gap_bytes
    for term in phase.terms:
        inputs = term.name == "retained_inputs" or term.name.endswith("layer inputs")  # the same tensors
        component = "layer inputs" if inputs else term.name
        by_pool[component if streams is None else streams.get(term.name, "default")] += term.size_bytes
    return by_pool


def _earlier_batches_bytes(memory: MemoryEstimate, peaks: Counter[str], streams: Mapping[str, str]) -> int:
    """Return the bytes of the loss's tensors left by earlier longest batches, less the bytes then free on the default
    stream, which such a batch can use."""

    def loss_bytes(phase: Phase) -> int:
        return total_bytes(term for term in phase.terms if "logits" in term.name or "log-softmax" in term.name)

    phase = max(memory.phases, key=loss_bytes)
    free = peaks - _bytes_by_pool(phase)
    reusable = free.total() - sum(free[name] for name in streams)
    return max(0, round(EARLIER_BATCHES * loss_bytes(phase)) - reusable)


def heap_overhead(peak_bytes: int, passes_bytes: int, transient_bytes: int) -> Terms:
    """Return the memory that glibc's heap, the allocator on a CPU, holds beyond the live tensors at the peak. The
    optimizer uses the memory that the passes leave free, so only the part above `peak_bytes`, the peak of the whole
    step, counts. passes_bytes: peak of the forward and backward passes."""
    # The step reuses the heap that the passes left, so the overheads of both are not added.
    size = max(0, round(passes_bytes + CPU_HEAP_SHARE * transient_bytes) - peak_bytes)
    return _HEAP.term(size, passes=passes_bytes, share=CPU_HEAP_SHARE, transient=transient_bytes, peak=peak_bytes)


def outside_allocator(cluster: Cluster, zero_stage: int | None = None) -> Terms:
    """Return the memory of the CUDA context and NCCL, which PyTorch's counters do not include. On a CPU: a rank's
    process without its tensors, () if `zero_stage` is None."""
    if cluster.gpu.is_cpu:
        size = 0 if zero_stage is None else CPU_PROCESS_BYTES[zero_stage]
        return _PROCESS.term(size, rank=size)
    size = CONTEXT_BYTES[_generation(cluster.gpu.compute_capability)]
    context = _CONTEXT.term(size, context=size)
    if cluster.world_size == 1:
        return context
    # A channel is one thread block of NCCL's kernel; fast links need many to be saturated.
    gpu = cluster.gpu
    is_slow = gpu.peer_link == "pcie" or (gpu.peer_bytes_per_s or 0) <= pcie_bytes_per_s(5, 16)  # a bridge of GeForce
    channels = NCCL_CHANNELS["pcie" if is_slow else "nvlink"]
    size = channels * NCCL_CONNECTIONS * NCCL_CONNECTION_BYTES
    return context + _NCCL.term(size, channels=channels, connections=NCCL_CONNECTIONS, buffer=NCCL_CONNECTION_BYTES)
