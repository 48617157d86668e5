"""Recorded models against the same models by their rows: parameters, and allocated memory of three plans.

    python -m benchmarks.recorded_rows [TYPE ...]

TYPE: only these model types; by default all that have a row and a model in the catalogue, the first of each. Recordings
are made anew, in this process: 1 to 3 seconds each after the imports.

A model whose images its row computes is left out: recordings have text only.
"""

from __future__ import annotations

import sys
import time
from statistics import mean
from typing import Any

from ds_advise.advisor.question.cluster import parse_cluster
from ds_advise.estimators.errors import ModelConfigError, WorkloadError
from ds_advise.estimators.memory.plan_memory import estimate_memory
from ds_advise.estimators.models import catalogue
from ds_advise.estimators.models.families import FAMILIES, shape_from_config
from ds_advise.estimators.models.model_shape import ModelShape
from ds_advise.estimators.plan import Plan
from ds_advise.estimators.workload import Workload
from ds_advise.probes.model_recorder import recorded_model

PLANS = (
    (Plan(zero_stage=2, micro_batch_size=2), Workload(seq_len=512)),
    (Plan(zero_stage=3, micro_batch_size=2, gradient_checkpointing=False), Workload(seq_len=512)),
    (Plan(zero_stage=3, micro_batch_size=2), Workload(seq_len=512, method="lora")),
)


def errors(row: ModelShape, recorded: ModelShape) -> list[float]:
    """Of the allocated bytes of each plan, without LoRA where peft cannot adapt all layers."""
    cluster = parse_cluster("8xA100-80GB")
    found = []
    for plan, work in PLANS:
        try:
            ours, theirs = (estimate_memory(each, work, cluster, plan) for each in (row, recorded))
        except WorkloadError:
            continue
        found.append(theirs.allocated_bytes_per_gpu / ours.allocated_bytes_per_gpu - 1)
    return found


def main(chosen: list[str]) -> int:
    recorded_model.cached = recorded_model.keep = lambda *_: None  # type: ignore[assignment]
    configs: dict[str, dict[str, Any]] = {}
    for entry in catalogue._entries():
        if entry["config"]["model_type"] in FAMILIES:
            configs.setdefault(entry["config"]["model_type"], entry["config"])
    found, types, exact = list[float](), 0, 0
    for model_type in chosen or sorted(configs):
        row = shape_from_config(configs[model_type], name=model_type)
        if row.image is not None:
            continue
        began = time.perf_counter()
        try:
            recorded = recorded_model.recorded_model(configs[model_type], name=model_type, source="")
        except ModelConfigError as error:
            print(f"{model_type:18s} not recorded: {error.why}", flush=True)
            continue
        seconds = time.perf_counter() - began
        if row.architecture != recorded.architecture:
            print(
                f"{model_type:18s} left out: {row.architecture} by its row, recorded {recorded.architecture}",
                flush=True,
            )
            continue
        these = errors(row, recorded)
        found += these
        exact += row.parameters == recorded.parameters
        types += 1
        text = "  ".join(f"{error:+6.2%}" for error in these)
        print(f"{model_type:18s} {seconds:4.1f} s  {text}", flush=True)
    print(
        f"{types} types, parameters equal in {exact}; allocated: mean error {mean(map(abs, found)):.2%}, worst "
        f"{max(found, key=abs):+.2%}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
