"""Wall time, processor time and memory of whole dry runs, as a user waits for them.

    python -m benchmarks.dry_run.speed [NAME ...]

Targets on a two-core machine: 14B at full depth 20 s, 70B on 64 GPUs 60 s. Where others use the
machine, processor time tells more: a run at full depth is one thread, so it would take that long alone.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from dataclasses import dataclass
from typing import Any

from ds_advise.estimators.hardware import Cluster, find_gpu
from ds_advise.estimators.workload import Method, Workload
from ds_advise.probes.dry_run.run import dry_run
from ds_advise.probes.run import Run

_GIB = 2**30
_ZERO3: dict[str, Any] = {
    "bf16": {"enabled": "auto"},
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
    "zero_optimization": {
        "stage": 3,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
    },
}
_QWEN_14B = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 5120,
    "intermediate_size": 13824,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
    "max_position_embeddings": 131072,
}
_LLAMA_70B = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "max_position_embeddings": 131072,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One dry run of at most four iterations at sequence 2048, with its target in seconds."""

    name: str
    model: dict[str, Any]
    nodes: int
    gpus_per_node: int
    method: Method = "full"
    offload: bool = False
    """README's example: optimizer and parameters in host memory, four samples at once."""
    target_s: float


_ON_TWO: dict[str, Any] = {"model": _QWEN_14B, "nodes": 1, "gpus_per_node": 2}
CASES = (
    Case(name="Qwen2.5-14B, ZeRO-3 offload, 2 GPUs", **_ON_TWO, offload=True, target_s=20),
    Case(name="Qwen2.5-14B, ZeRO-3, 2 GPUs", **_ON_TWO, target_s=20),
    Case(name="Qwen2.5-14B, ZeRO-3, 2 GPUs, LoRA", **_ON_TWO, method="lora", target_s=70),
    Case(name="Llama-3-70B, ZeRO-3, 64 GPUs", model=_LLAMA_70B, nodes=8, gpus_per_node=8, target_s=60),
)


def main(names: list[str]) -> int:
    """Print one line per case; 1 when one misses its target."""
    missed = 0
    for case in CASES:
        if names and not any(name in case.name for name in names):
            continue
        cluster = Cluster(nodes=case.nodes, gpus_per_node=case.gpus_per_node, gpu=find_gpu("H100-80GB"))
        started, before = time.monotonic(), os.times()
        offload = {f"offload_{what}": {"device": "cpu"} for what in ("optimizer", "param")} if case.offload else {}
        run = Run(
            config={**_ZERO3, "zero_optimization": {**_ZERO3["zero_optimization"], **offload}},
            model=case.model,
            cluster=cluster,
            workload=Workload(method=case.method),
            micro_batch_size=4 if case.offload else 1,
        )
        result = dry_run(run)
        wall_s, after = time.monotonic() - started, os.times()
        processor_s = after.children_user + after.children_system - before.children_user - before.children_system
        used = resource.getrusage(resource.RUSAGE_CHILDREN)  # the largest child so far
        missed += wall_s > case.target_s
        print(
            f"{case.name:44s} {wall_s:6.1f} s of {case.target_s:.0f} ({processor_s:.1f} s of processor time)   "
            f"{used.ru_maxrss / 2**20:5.2f} GiB of this host   peak {result.peak.allocated_bytes_per_gpu / _GIB:7.2f} "
            f"GiB   {result.versions}",
            flush=True,
        )
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
