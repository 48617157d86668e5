"""Every probe goes into the store, and a later question about the same machine and model finds it there.

A probe answers for a run when the whole configuration, the workload, the number of ranks and the versions of torch,
DeepSpeed and transformers are the same. Of failures only a lack of memory is an answer: it says that the plan does not
fit; a crash or a timeout may have had a reason that is gone. Solo probes have no time that could be used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ...estimators.errors import ClusterError
from ...estimators.hardware.cluster import Cluster
from ...estimators.models.model_shape import ModelShape
from ...estimators.plan import Plan
from ...estimators.workload import Workload
from ...probes.machine import this_machine
from ...probes.real_run import ProbeResult, probe
from ...probes.real_run.result import from_json
from ...probes.run import Run
from ...probes.store import LIBRARIES, Record, model_key, record_of, try_store, workload_of
from ...probes.this_machine import host_memory_bytes


def probe_and_keep(run: Run, *, memory_limit_bytes: int | None = None, **settings: Any) -> ProbeResult:
    """Probe it on this machine and keep what came of it; settings: of `probe`."""
    result = probe(run, memory_limit_bytes=memory_limit_bytes, **settings)
    keep_probe(result, run, memory_limit_bytes=memory_limit_bytes)
    return result


def keep_probe(result: ProbeResult, run: Run, *, memory_limit_bytes: int | None) -> int | None:
    """Keep a probe, failed ones too; answers its number, None where the store cannot be used (which it says on stderr).

    The configuration is kept as it was given, with its `auto` batch sizes filled; all that DeepSpeed filled is in the
    result of a run that succeeded.
    """
    record = record_of(run, "probe", result.to_json(), config=_with_batch(run), memory_limit_bytes=memory_limit_bytes)
    return try_store(lambda store: store.add(record), None)


@dataclass(frozen=True, kw_only=True)
class PastProbe:
    """A probe of an earlier time: its number in the store, its age, what it says."""

    id: int
    age_s: float
    result: ProbeResult


class PastProbes:
    """The probes of a model on this machine, the newest first."""

    def __init__(self, shape: ModelShape, workload: Workload, cluster: Cluster) -> None:
        self._shape, self._workload, self._cluster = shape, workload, cluster
        machine, key = this_machine(), model_key(shape)
        nothing: list[Record] = []
        records = try_store(lambda store: store.find(kind="probe", machine=machine, model=key), nothing)
        versions = _versions()
        self._records = [record for record in records if record.versions == versions]

    def of_plan(self, plan: Plan) -> PastProbe | None:
        """The newest probe that answers for a plan, in the configuration that is written for it."""
        if not self._records:
            return None
        try:
            return self.of(Run.of_plan(plan, self._shape, self._workload, self._cluster))
        except ClusterError:  # it would swap to NVMe, and no folder was named: it never ran
            return None

    def of(self, run: Run) -> PastProbe | None:
        """The newest probe that answers for a run of this model."""
        wanted = _comparable(_with_batch(run), workload_of(run))
        for record in self._records:
            if _comparable(record.plan, record.workload) == wanted:
                past = _past_probe(record)
                if past is not None and _answers(past.result, record.workload.get("memory_limit_bytes"), run.cluster):
                    return past
        return None


def _with_batch(run: Run) -> dict[str, Any]:
    """The configuration with its `auto` batch sizes filled."""
    batch = {
        "train_micro_batch_size_per_gpu": run.micro_batch_size,
        "gradient_accumulation_steps": run.gradient_accumulation_steps,
    }
    return {**run.config, **{key: size for key, size in batch.items() if run.config.get(key, "auto") == "auto"}}


def _comparable(config: Mapping[str, Any], workload: Mapping[str, Any]) -> str:
    """Text that is equal for equal runs; the batch is in the configuration, and the limit is compared by size."""
    beside = ("global_batch_size", "memory_limit_bytes")
    return json.dumps([config, {name: value for name, value in workload.items() if name not in beside}], sort_keys=True)


def _past_probe(record: Record) -> PastProbe | None:
    """The record's result; None for one that another version of ds-advise wrote in another form."""
    assert record.id is not None, "it came out of the store"
    try:
        return PastProbe(id=record.id, age_s=record.age_s, result=from_json(dict(record.result)))
    except (TypeError, KeyError):
        return None


def _answers(result: ProbeResult, limit_bytes: int | None, cluster: Cluster) -> bool:
    """Whether a run under a limit (CPU; None: the rank's share of the RAM) says what would happen under the
    question's."""
    if result.solo or result.world_size != cluster.world_size or (result.device == "cpu") != cluster.gpu.is_cpu:
        return False
    if result.failure is not None and result.failure.kind != "out_of_memory":
        return False
    if not cluster.gpu.is_cpu:
        return True
    had = host_memory_bytes() // result.world_size if limit_bytes is None else limit_bytes
    wanted = cluster.gpu.memory_bytes
    return had <= wanted if result.failure is None else had >= wanted


def _versions() -> dict[str, str]:
    try:
        return {library: version(library) for library in LIBRARIES}
    except PackageNotFoundError:
        return {}
