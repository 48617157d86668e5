"""Every probe goes into the store, and a later question about the same machine and model finds it there.

A probe answers for a plan when the whole configuration, the workload, the number of ranks and the versions of torch,
DeepSpeed and transformers are the same. Of failures only want of memory is an answer: it says that the plan does not
fit; a crash or a timeout may have had a reason that is gone. Solo probes have no time that could be used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ...ds_configs.emit import ds_config
from ...estimators.errors import ClusterError
from ...estimators.hardware.cluster import Cluster
from ...estimators.models.model_shape import ModelShape
from ...estimators.plan import Plan
from ...estimators.workload import Workload
from ...probes.machine import this_machine
from ...probes.real_run import ProbeResult
from ...probes.real_run.result import from_json
from ...probes.store import Record, model_key, try_store
from ...probes.this_machine import host_memory_bytes

_LIBRARIES = ("torch", "deepspeed", "transformers")


def keep_probe(
    result: ProbeResult,
    *,
    model: ModelShape | None,
    name: str,
    config: Mapping[str, Any],
    workload: Workload,
    micro_batch_size: int,
    gradient_accumulation_steps: int,
    gradient_checkpointing: bool,
    memory_limit_bytes: int | None,
) -> int | None:
    """Keep a probe, failed ones too; answers its number, None where the store cannot be used (which it says on stderr).

    model: None for a module of the user's own, which `name` tells. config: as it was given, kept with its `auto` batch
        sizes
    filled; all that DeepSpeed filled is in the result of a run that succeeded.
    """
    record = Record(
        kind="probe",
        machine=this_machine(),
        model="" if model is None else model_key(model),
        # The last part of a path is a name; the rest says where somebody keeps their models.
        model_name=Path(name).name if ".py:" in name or Path(name).exists() else name,
        plan=_filled(config, micro_batch_size, gradient_accumulation_steps),
        result=result.to_json(),
        versions={library: version(library) for library in _LIBRARIES},
        workload={
            **asdict(workload),
            "gradient_checkpointing": gradient_checkpointing,
            "memory_limit_bytes": memory_limit_bytes,
        },
    )
    return try_store(lambda store: store.add(record), None)


@dataclass(frozen=True, kw_only=True)
class KeptProbe:
    """A probe of an earlier time: its number in the store, its age, what it said."""

    id: int
    age_s: float
    result: ProbeResult


class KeptProbes:
    """The probes of a model on this machine, the newest first."""

    def __init__(self, model: ModelShape, workload: Workload, cluster: Cluster) -> None:
        self._model, self._workload, self._cluster = model, workload, cluster
        machine, key = this_machine(), model_key(model)
        nothing: list[Record] = []
        records = try_store(lambda store: store.find(kind="probe", machine=machine, model=key), nothing)
        versions = _versions()
        self._records = [record for record in records if record.versions == versions]

    def of(self, plan: Plan) -> KeptProbe | None:
        """The newest probe that answers for a plan, in the configuration that is written for it."""
        if not self._records:
            return None
        try:
            config = ds_config(plan, self._model, self._workload, self._cluster, flavor=self._workload.framework)
        except ClusterError:  # it would swap to NVMe, and no folder was named: it never ran
            return None
        return self.of_config(
            config,
            plan.micro_batch_size,
            plan.gradient_accumulation_steps,
            gradient_checkpointing=plan.gradient_checkpointing,
        )

    def of_config(
        self,
        config: Mapping[str, Any],
        micro_batch_size: int,
        gradient_accumulation_steps: int,
        *,
        gradient_checkpointing: bool,
    ) -> KeptProbe | None:
        """The newest probe that answers for a configuration; batch sizes fill its `auto`."""
        wanted = _comparable(
            _filled(config, micro_batch_size, gradient_accumulation_steps),
            {**asdict(self._workload), "gradient_checkpointing": gradient_checkpointing},
        )
        for record in self._records:
            if _comparable(record.plan, record.workload) == wanted:
                kept = _kept(record)
                if kept is not None and _answers(kept.result, record.workload.get("memory_limit_bytes"), self._cluster):
                    return kept
        return None


def _filled(config: Mapping[str, Any], micro_batch_size: int, gradient_accumulation_steps: int) -> dict[str, Any]:
    """The configuration with its `auto` batch sizes filled."""
    batch = {
        "train_micro_batch_size_per_gpu": micro_batch_size,
        "gradient_accumulation_steps": gradient_accumulation_steps,
    }
    return {**config, **{key: size for key, size in batch.items() if config.get(key, "auto") == "auto"}}


def _comparable(config: Mapping[str, Any], workload: Mapping[str, Any]) -> str:
    """Text that is equal for equal runs; the batch is in the configuration, and the limit is compared by size."""
    beside = ("global_batch_size", "memory_limit_bytes")
    return json.dumps([config, {name: value for name, value in workload.items() if name not in beside}], sort_keys=True)


def _kept(record: Record) -> KeptProbe | None:
    """The record's result; None for one that another version of ds-advise wrote in another form."""
    assert record.id is not None, "it came out of the store"
    try:
        return KeptProbe(id=record.id, age_s=record.age_s, result=from_json(dict(record.result)))
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
        return {library: version(library) for library in _LIBRARIES}
    except PackageNotFoundError:
        return {}
