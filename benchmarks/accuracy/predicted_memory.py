"""Every published run with what is predicted of its memory: by ds-advise, and by DeepSpeed's own estimators.

DeepSpeed's formulas are written out here so that the table needs no torch; a test compares them with the installed
functions. P counts every parameter as trained in 16 bits, L is the largest module's:

    ZeRO-2:  2 P + 18 P / N;  offloaded 2 P
    ZeRO-3:  4 L + 18 P / N;  optimizer offloaded 4 L + 2 P / N;  parameters too 4 L

Source: deepspeed 0.19.8 runtime/zero/stage_1_and_2.py `estimate_zero2_model_states_mem_needs`, runtime/zero/stage3.py
`estimate_zero3_model_states_mem_needs`. Stages 0 and 1 and runs without DeepSpeed get ZeRO-2's, FSDP ZeRO-3's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

from ds_advise.estimators.estimate import MemoryEstimate
from ds_advise.estimators.hardware import Cluster
from ds_advise.estimators.memory.plan_memory import estimate_memory
from ds_advise.estimators.models.model_shape import ModelShape
from ds_advise.estimators.plan import Plan
from ds_advise.validate.deepspeed_estimate import largest_module_parameters

from .rows import Run, runs

Kind = Literal["exact", "cached", "set aside"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run with its prediction; `error` is signed, relative to the measurement, None for a run that did not fit."""

    run: Run
    kind: Kind
    memory: MemoryEstimate
    predicted_bytes: int
    deepspeed_bytes: int

    @property
    def error(self) -> float | None:
        return error_of(self.predicted_bytes, self.run)


@cache
def results() -> tuple[Result, ...]:
    return tuple(result_of(run) for run in runs())


def predict(run: Run) -> MemoryEstimate:
    """What `ds_advise.estimate` says to the run's question (`questions`)."""
    return estimate_memory(run.model, run.workload, run.cluster, run.plan)


def result_of(run: Run) -> Result:
    memory = predict(run)
    predicted = {
        "allocated": memory.allocated_bytes_per_gpu,
        "reserved": memory.reserved_bytes_per_gpu + memory.cached_bytes_per_gpu,
        "device": memory.device_bytes_per_gpu + memory.cached_bytes_per_gpu,
    }[run.quantity]
    sharded = run.plan.zero_stage == 3
    return Result(
        run=run,
        kind=_kind(run),
        memory=memory,
        predicted_bytes=predicted,
        deepspeed_bytes=deepspeed_bytes(run.model, run.cluster, run.plan, stage3=sharded),
    )


def _kind(run: Run) -> Kind:
    if run.not_met_because:
        return "set aside"
    return "exact" if run.quantity == "allocated" else "cached"


def error_of(predicted: int, run: Run) -> float | None:
    """Of a number of bytes against the run's figure; None for a run that has none."""
    return None if run.measured_bytes is None else predicted / run.measured_bytes - 1


def deepspeed_bytes(model: ModelShape, cluster: Cluster, plan: Plan, *, stage3: bool) -> int:
    """GPU bytes of the model states as DeepSpeed's estimator prints them."""
    parameters, ranks = model.parameters, cluster.world_size
    largest = largest_module_parameters(model)
    if not stage3:
        return 2 * parameters if plan.offload_optimizer != "none" else int(2 * parameters + 18 * parameters / ranks)
    if plan.offload_optimizer == "none":
        return int(4 * largest + 18 * parameters / ranks)
    return 4 * largest if plan.offload_param != "none" else int(4 * largest + 2 * parameters / ranks)
