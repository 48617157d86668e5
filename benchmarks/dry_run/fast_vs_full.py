"""`--fast` against the dry run at full depth: where extrapolation is used, how far off it is, and what it saves.

    python -m benchmarks.dry_run.fast_vs_full [NAME ...]

Every case runs the models of the ladder and the full one, side by side in one process group. Allocated memory at the
peak must agree within 0.5 %, host memory within 1 %; the largest difference of any phase's peak, approximate ones left
out, is shown as a share of the run's.
Every model type in `families.FAMILIES that supports depth_extrapolation` is in the table.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from ds_advise.estimators.hardware.cluster import Cluster
from ds_advise.estimators.hardware.gpus import find_gpu
from ds_advise.estimators.models import catalogue
from ds_advise.estimators.workload import Method, Workload
from ds_advise.probes.dry_run.ask import ask
from ds_advise.probes.dry_run.extrapolate import DepthNotLinearError, depth_series, extrapolated
from ds_advise.probes.dry_run.run import request_for
from ds_advise.probes.recording.result import DryRunResult
from ds_advise.probes.run import Run

ALLOCATED, HOST = 0.005, 0.01
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model of the catalogue at a ZeRO stage on so many GPUs; `auto` buckets."""

    model: str
    stage: int
    world_size: int = 8
    method: Method = "full"
    checkpointing: bool = True
    accumulation: int = 1
    offload: str = ""
    """Where the optimizer is, and at stage 3 the parameters, if not on the GPU."""

    @property
    def name(self) -> str:
        parts = [self.model.split("/")[1], f"ZeRO-{self.stage}", f"{self.world_size} GPUs"]
        parts += [f"offload to {self.offload}"] * bool(self.offload)
        parts += ["LoRA"] * (self.method == "lora") + ["no checkpointing"] * (not self.checkpointing)
        return ", ".join(parts + [f"{self.accumulation} micro batches"] * (self.accumulation > 1))


_QWEN, _LLAMA = "Qwen/Qwen2.5-14B", "meta-llama/Llama-3.1-8B"
CASES = (
    Case(model=_QWEN, stage=3, world_size=2),
    Case(model=_QWEN, stage=3, world_size=2, offload="cpu"),
    Case(model=_QWEN, stage=3, world_size=8, offload="nvme"),
    Case(model=_LLAMA, stage=2, world_size=2, offload="cpu"),
    Case(model=_LLAMA, stage=0),
    Case(model=_LLAMA, stage=1, world_size=2),
    Case(model=_LLAMA, stage=2, world_size=2),
    Case(model=_LLAMA, stage=2, world_size=4),
    Case(model=_LLAMA, stage=2),
    Case(model=_LLAMA, stage=3),
    Case(model=_LLAMA, stage=3, world_size=64),
    Case(model=_LLAMA, stage=2, world_size=64),
    Case(model=_LLAMA, stage=3, checkpointing=False),
    Case(model=_LLAMA, stage=2, method="lora", world_size=2),
    Case(model=_LLAMA, stage=3, method="lora", world_size=2),
    Case(model=_LLAMA, stage=2, world_size=2, accumulation=2),
    Case(model="Qwen/Qwen2.5-0.5B", stage=2, world_size=64),
    Case(model="Qwen/Qwen2.5-0.5B", stage=3),
    Case(model="Qwen/Qwen3-8B", stage=3),
    Case(model="mistralai/Mistral-7B-v0.3", stage=3),
    Case(model="microsoft/Phi-3-mini-4k-instruct", stage=2, world_size=2),
    Case(model="microsoft/Phi-3-mini-4k-instruct", stage=3),
    Case(model="google/gemma-2-9b", stage=2, world_size=2),
    Case(model="google/gemma-2-9b", stage=3),
    Case(model="openai-community/gpt2-xl", stage=2, world_size=2),
    Case(model="mistralai/Mixtral-8x7B-v0.1", stage=2),
    Case(model="mistralai/Mixtral-8x7B-v0.1", stage=3),
)


def config(stage: int, offload: str = "") -> dict[str, Any]:
    """A ZeRO configuration of one stage, as the HF Trainer gets it."""
    zero: dict[str, Any] = {"stage": stage, "reduce_bucket_size": "auto"}
    for what in ("offload_optimizer", *(["offload_param"] if stage == 3 else [])):
        if offload:
            zero[what] = {"device": offload, "pin_memory": True} | ({"nvme_path": "/nvme"} if offload == "nvme" else {})
    if stage == 3:
        zero |= {"stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"}
    return {
        "bf16": {"enabled": "auto"},
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
        "zero_optimization": zero,
    }


def compare(case: Case) -> tuple[bool, str]:
    """Whether the case is within the limits, and its line of the table."""
    request = request_for(
        Run(
            config=config(case.stage, case.offload),
            model=catalogue.config(case.model),
            workload=Workload(method=case.method, seq_len=1024),
            micro_batch_size=1,
            gradient_accumulation_steps=case.accumulation,
            gradient_checkpointing=case.checkpointing,
            cluster=Cluster(
                nodes=-(-case.world_size // 8), gpus_per_node=min(8, case.world_size), gpu=find_gpu("H100-80GB-SXM")
            ),
        ),
        expandable_segments=True,
    )
    try:
        steps = depth_series(request)
    except DepthNotLinearError as reason:
        return True, f"not used: {reason}"
    *shallow, full = ask([*steps.requests, request], timeout_s=3600)
    try:
        fast = extrapolated(steps, shallow)
    except DepthNotLinearError as reason:
        return True, f"not used: {reason}"
    allocated = fast.peak.allocated_bytes_per_gpu / full.peak.allocated_bytes_per_gpu - 1
    required = fast.peak.required_bytes_per_gpu / full.peak.required_bytes_per_gpu - 1
    host = _host(fast) - _host(full)
    worst = max(
        abs(one.gpu_peak_bytes - other.gpu_peak_bytes)
        for one, other in zip(fast.phases, full.phases, strict=True)
        if one.phase not in fast.approximate
    )
    layers = f"{'+'.join(map(str, steps.depths))} for {steps.full}"
    good = abs(allocated) <= ALLOCATED and abs(host) <= max(HOST * _host(full), 1 << 20)
    return good, (
        f"{layers:>15}  {full.peak.allocated_bytes_per_gpu / _GIB:7.2f} GiB  allocated {allocated:+.3%}  "
        f"required {required:+.2%}  worst phase {worst / full.peak.allocated_bytes_per_gpu:.2%}"
        + (f"  approximate: {', '.join(fast.approximate)}" if fast.approximate else "")
    )


def _host(result: DryRunResult) -> int:
    return max(phase.host_held_peak_bytes for phase in result.phases)


def main(names: list[str]) -> int:
    """Print a line per case; 1 when one is off."""
    missed = 0
    for case in CASES:
        if not names or any(name in case.name for name in names):
            good, line = compare(case)
            missed += not good
            print(f"{case.name:52s} {line}", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
