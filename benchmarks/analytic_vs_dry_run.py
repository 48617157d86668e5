"""The closed form against the dry run of the real engine: GPU memory allocated and reserved at the peak, host memory.

    python -m benchmarks.analytic_vs_dry_run [NAME ...]

Prints one line per case and the mean and largest error. Each case runs the configuration that the rung's preset emits, on
the rank that the closed form takes for the fullest, in a subprocess (10 to 60 s). NAME picks the cases that contain it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any, cast

from ds_advise.ds_configs.emit import ds_config
from ds_advise.ds_configs.presets import plan_for
from ds_advise.estimators.cluster import Cluster
from ds_advise.estimators.estimate import Moment
from ds_advise.estimators.families import shape_from_config
from ds_advise.estimators.hardware import find_gpu
from ds_advise.estimators.host_memory import PROCESS_BYTES
from ds_advise.estimators.memory import estimate_memory
from ds_advise.estimators.model_shape import ModelShape
from ds_advise.estimators.partition import rank_loads
from ds_advise.estimators.plan import Plan, Rung
from ds_advise.estimators.trainable import tensor_set
from ds_advise.estimators.workload import Method, Workload
from ds_advise.probes.dry_run import dry_run

MEAN_ERROR, WORST_ERROR = 0.03, 0.08

_GIB = 2**30
_QWEN = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "max_position_embeddings": 32768}
MODELS: dict[str, dict[str, Any]] = {
    # Qwen2.5-0.5B as it is: a tied embedding that outweighs the layers.
    "0.5B": {**_QWEN, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
             "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True},
    # Qwen2.5-7B with 8 of its 28 layers.
    "7B/8": {**_QWEN, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 8, "num_attention_heads": 28,
             "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One plan to compare; `changes` are applied to the rung's preset."""

    model: str
    rung: Rung
    world_size: int
    micro_batch_size: int = 1
    seq_len: int = 1024
    gradient_accumulation_steps: int = 1
    checkpointing: bool = True
    method: Method = "full"
    changes: tuple[tuple[str, object], ...] = ()

    @property
    def name(self) -> str:
        parts = [self.model, self.rung, f"N={self.world_size}", f"B={self.micro_batch_size}", f"S={self.seq_len}"]
        parts += [f"gas={self.gradient_accumulation_steps}"] * (self.gradient_accumulation_steps > 1)
        parts += ["no-ckpt"] * (not self.checkpointing) + [self.method] * (self.method != "full")
        return " ".join([*parts, *(f"{key}={value}" for key, value in self.changes)])


CASES = (
    Case(model="0.5B", rung="ddp", world_size=2),
    Case(model="0.5B", rung="zero1", world_size=2),
    Case(model="0.5B", rung="zero1", world_size=8, gradient_accumulation_steps=2),
    Case(model="0.5B", rung="zero2", world_size=2, micro_batch_size=4),
    Case(model="0.5B", rung="zero2", world_size=64),
    Case(model="0.5B", rung="zero2", world_size=8, gradient_accumulation_steps=2, checkpointing=False),
    Case(model="0.5B", rung="zero2-offload", world_size=2),
    Case(model="0.5B", rung="zero2-offload", world_size=8, gradient_accumulation_steps=2),
    Case(model="0.5B", rung="zero3", world_size=2),
    Case(model="0.5B", rung="zero3", world_size=8, checkpointing=False, micro_batch_size=4),
    Case(model="0.5B", rung="zero3-offload", world_size=1),
    Case(model="0.5B", rung="zero3-offload", world_size=8, gradient_accumulation_steps=2),
    Case(model="0.5B", rung="zero2", world_size=2, method="lora"),
    Case(model="0.5B", rung="zero3", world_size=8, method="lora"),
    Case(model="7B/8", rung="zero2", world_size=8),
    Case(model="7B/8", rung="zero2", world_size=2, changes=(("reduce_bucket_size", 500_000_000),)),
    Case(model="7B/8", rung="zero2-offload", world_size=2),
    Case(model="7B/8", rung="zero3", world_size=8),
    Case(model="7B/8", rung="zero3", world_size=8, checkpointing=False),
    Case(model="7B/8", rung="zero3", world_size=64, changes=(
        ("stage3_max_live_parameters", 300_000_000), ("stage3_max_reuse_distance", 300_000_000))),
    Case(model="7B/8", rung="zero3-offload-param", world_size=8),
    Case(model="7B/8", rung="zero3-offload", world_size=2, gradient_accumulation_steps=2),
    Case(model="7B/8", rung="zero3-nvme", world_size=8),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Bytes of one case, both ways; host memory without what every process takes anyway.

    reserved_*: what the caching allocator must hold, without library workspaces; the dry run replays its allocations through
                a model of it, with expandable segments that keep only what live blocks touch.
    """

    case: Case
    gpu_analytic: int
    gpu_dry_run: int
    reserved_analytic: int
    reserved_dry_run: int
    moment: str
    phase: str
    host_analytic: int
    host_dry_run: int

    @property
    def error(self) -> float:
        return self.gpu_analytic / self.gpu_dry_run - 1


def compare(case: Case, nvme_path: str = "/tmp") -> Comparison:
    """Estimate a case and dry run it."""
    model = shape_from_config(MODELS[case.model], name=case.model)
    workload = Workload(method=case.method, seq_len=case.seq_len, framework="deepspeed")
    nodes = max(1, case.world_size // 8)
    cluster = Cluster(nodes=nodes, gpus_per_node=case.world_size // nodes, gpu=find_gpu("H100-80GB"), nvme_path=nvme_path)
    plan = plan_for(case.rung, model, workload, cluster, micro_batch_size=case.micro_batch_size,
                    gradient_accumulation_steps=case.gradient_accumulation_steps, gradient_checkpointing=case.checkpointing)
    plan = replace(plan, **cast("dict[str, Any]", dict(case.changes)))
    estimate = estimate_memory(model, workload, cluster, plan)
    # Loading is another matter: the dry run builds the model on the GPU. And its kernels have no workspaces.
    moment = max((moment for moment in estimate.moments if moment.name != "initialize"), key=_tensor_bytes)
    result = dry_run(
        ds_config(plan, model, workload, cluster, flavor="deepspeed"), MODELS[case.model], world_size=case.world_size,
        gpus_per_node=1, rank=_fullest_rank(model, workload, cluster, plan), workload=workload,
        micro_batch_size=case.micro_batch_size, gradient_accumulation_steps=case.gradient_accumulation_steps,
        gradient_checkpointing=case.checkpointing, expandable_segments=True)
    return Comparison(
        case=case, gpu_analytic=_tensor_bytes(moment), gpu_dry_run=result.peak.allocated_bytes_per_gpu, moment=moment.name,
        reserved_analytic=_tensor_bytes(moment) + sum(term.size_bytes for term in estimate.reserved_terms),
        reserved_dry_run=result.peak.required_bytes_per_gpu, phase=result.peak.phase,
        host_analytic=estimate.host_training_bytes_per_node - cluster.gpus_per_node * PROCESS_BYTES,
        host_dry_run=max(phase.host_held_peak_bytes for phase in result.phases if phase.iteration) * cluster.gpus_per_node)


def _tensor_bytes(moment: Moment) -> int:
    return sum(term.size_bytes for term in moment.terms if term.name != "library_workspace")


def _fullest_rank(model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan) -> int:
    if plan.zero_stage not in (1, 2):
        return 0
    loads = rank_loads(tensor_set(model, workload).trainable, cluster.world_size)
    return max(range(len(loads)), key=lambda rank: (loads[rank].touched, loads[rank].slice))


def main(names: list[str]) -> int:
    """Print the table; 1 when it misses its mark."""
    cases = [case for case in CASES if not names or any(name in case.name for name in names)]
    errors = []
    for case in cases:
        row = compare(case)
        errors.append(abs(row.error))
        gib = [f"{size / _GIB:.2f}" for size in (row.gpu_analytic, row.gpu_dry_run, row.reserved_analytic, row.reserved_dry_run,
                                                row.host_analytic, row.host_dry_run)]
        print(f"{case.name:60s} allocated {gib[0]} {gib[1]} {row.error:+.1%}  reserved {gib[2]} {gib[3]}  "
              f"host {gib[4]} {gib[5]} GiB  {row.moment} / {row.phase}", flush=True)
    mean, worst = sum(errors) / len(errors), max(errors)
    print(f"{len(errors)} cases: mean error {mean:.1%}, largest {worst:.1%}")
    return int(mean > MEAN_ERROR or worst > WORST_ERROR)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
