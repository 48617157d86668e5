"""Dry runs of earlier times, which answer the same question again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ...estimators.errors import ClusterError
from ...estimators.hardware.cluster import Cluster
from ...estimators.models.model_shape import ModelShape
from ...estimators.plan import Plan
from ...estimators.workload import Workload
from ...probes.dry_run import DryRunResult, dry_run
from ...probes.machine import host_memory_bytes, this_machine
from ...probes.real_run.result import ProbeResult
from ...probes.real_run.result import from_json as probe_from_json
from ...probes.real_run.run import probe
from ...probes.recording.result import from_json as dry_run_from_json
from ...probes.run import Run
from ...probes.store import LIBRARIES, Record, model_key, record_of, try_store, workload_of

_PACKAGE = Path(__file__).parents[2]


def dry_run_once(run: Run, **settings: Any) -> tuple[DryRunResult, float | None]:
    """(the result, how long ago it was made; None where it was run for this answer).

    The answer of an earlier time is given where the configuration, model, workload, cluster, settings and versions are
    the same, and the code of ds-advise. A module of the user's own is run each time: what its file imports may have
    changed.

    settings: of `dry_run`. Raises DryRunError as it does.
    """
    if isinstance(run.model, str):
        return dry_run(run, **settings), None
    question = _question(run, settings)
    nothing: list[Record] = []
    for record in try_store(lambda store: store.find(kind="dry-run", question=question, limit=1), nothing):
        return dry_run_from_json(dict(record.result)), record.age_s
    result = dry_run(run, **settings)
    record = record_of(run, "dry-run", result.to_json(), config=result.config, question=question)
    try_store(lambda store: store.add(record), None)
    return result, None


def _question(run: Run, settings: dict[str, Any]) -> str:
    """Hexadecimal digits that are equal where nothing that decides the answer has changed."""
    parts = [
        {name: getattr(run, name) for name in ("config", "model", "input_shape", "micro_batch_size")},
        {
            name: getattr(run, name)
            for name in ("gradient_accumulation_steps", "gradient_checkpointing", "cpu_checkpointing")
        },
        asdict(run.workload),
        asdict(run.cluster),
        settings,
        {library: _version(library) for library in (*LIBRARIES, "accelerate", "peft")},
        list(_code()),
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return ""


def _code() -> Iterator[tuple[str, int, int]]:
    """What tells one state of ds-advise from another: name, size and time of the files that a dry run comes from."""
    for folder in ("estimators", "probes"):
        for file in sorted((_PACKAGE / folder).rglob("*.py")):
            status = file.stat()
            yield str(file), status.st_size, status.st_mtime_ns


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
        return PastProbe(id=record.id, age_s=record.age_s, result=probe_from_json(dict(record.result)))
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
