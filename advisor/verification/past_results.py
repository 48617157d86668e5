"""Earlier dry runs and probes in the store that are valid for the same run.

Two runs are the same if everything that determines their result is equal: the whole configuration, the workload, the
versions of the libraries, and the conditions of each kind below.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from ...estimators.errors import ClusterError
from ...estimators.hardware import Cluster
from ...estimators.json_form import from_json
from ...estimators.models.model_shape import ModelShape
from ...estimators.plan import Plan
from ...estimators.workload import Workload
from ...probes.dry_run.run import dry_run
from ...probes.installed_packages import installed_version
from ...probes.machine import host_memory_bytes, this_machine
from ...probes.real_run.result import ProbeResult
from ...probes.real_run.run import probe
from ...probes.recording.result import DryRunResult
from ...probes.run import Run
from ...probes.store import LIBRARIES, Record, build_record, model_key, stored_workload, try_store
from ...probes.worker_process import OnProgress
from ..answer.command_answer import CommandAnswer
from ..question.cluster import machines_label
from ..text.units import shown_path
from .prediction import Prediction, is_timed

_PACKAGE = Path(__file__).parents[2]


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _versions(*libraries: str) -> dict[str, str]:
    return {library: installed_version(library) for library in libraries}


def dry_run_once(
    run: Run,
    *,
    figures: Callable[[DryRunResult], Mapping[str, Any]],
    on_progress: OnProgress = lambda _phase: None,
    **settings: Any,
) -> tuple[DryRunResult, float | None]:
    """Return (the result, its age in seconds or None if it ran now).

    An earlier result is reused if model, cluster, settings and the code of ds-advise are also the same. A user's module
    is run each time, because the files that it imports may have changed. figures: those of a result's verdict, which
    are kept with it. on_progress, settings: of `dry_run`. Raises DryRunError as `dry_run`
    does.
    """
    if isinstance(run.model, str):
        return dry_run(run, on_progress=on_progress, **settings), None
    # Size and time stand for the content of the code, which would take longer to read.
    code = [
        (str(file), file.stat().st_size, file.stat().st_mtime_ns)
        for folder in ("estimators", "probes")
        for file in sorted((_PACKAGE / folder).rglob("*.py"))
    ]
    question = _digest(
        asdict(replace(run, shape=None, model_name="")), settings, _versions(*LIBRARIES, "accelerate", "peft"), code
    )
    nothing: list[Record] = []
    for record in try_store(lambda store: store.find(kind="dry-run", question=question, limit=1), nothing):
        names = {each.name for each in fields(DryRunResult)}
        stored = {name: value for name, value in record.result.items() if name in names}
        return from_json(DryRunResult, stored), record.age_s
    result = dry_run(run, on_progress=on_progress, **settings)
    kept = {**result.to_json(), **figures(result)}
    _keep_dry_run(kept, run, config=result.config, question=question)
    return result, None


def keep_command(answer: CommandAnswer, config_file: Path | None) -> None:
    """Keep the dry run of a command, without the operations of its schedule: it is listed, and not used again.
    config_file: the configuration in front of a command that names none."""
    kept = replace(answer.result, schedule=None, timeline=()).to_json() | answer.stored_figures()
    length = answer.training.seq_len
    conditions = {"command": shlex.join(answer.words), "observed_seq_len": length}
    conditions |= {} if config_file is None else {"config_file": shown_path(config_file)}
    _keep_dry_run(kept | {"unit": answer.unit}, answer.run, **conditions)


def _keep_dry_run(kept: Mapping[str, Any], run: Run, **conditions: Any) -> None:
    if not is_timed(run.cluster):
        kept = {**kept, "step_s": None, "tokens_per_s": None}
    record = build_record(run, "dry-run", kept, gpus=machines_label(run.cluster), **conditions)
    try_store(lambda store: store.add(record), None)


def probe_and_keep(
    run: Run, *, memory_limit_bytes: int | None = None, predicted: Prediction | None = None, **settings: Any
) -> ProbeResult:
    """Probe a run on this machine and keep the result. predicted: what `keep_probe` stores. settings: of `probe`."""
    result = probe(run, memory_limit_bytes=memory_limit_bytes, **settings)
    keep_probe(result, run, memory_limit_bytes=memory_limit_bytes, predicted=predicted)
    return result


def keep_probe(
    result: ProbeResult,
    run: Run,
    *,
    memory_limit_bytes: int | None,
    predicted: Prediction | None = None,
    **conditions: Any,
) -> int | None:
    """Keep a probe, also a failed one. Return its number; None if the store cannot be used (a line on stderr).

    A successful result has the configuration complete. predicted, conditions: stored with the workload.
    """
    conditions |= {} if predicted is None else {"predicted": predicted.stored()}
    conditions["gpus"] = machines_label(run.cluster)
    record = build_record(run, "probe", result.to_json(), memory_limit_bytes=memory_limit_bytes, **conditions)
    return try_store(lambda store: store.add(record), None)


@dataclass(frozen=True, kw_only=True)
class PastProbe:
    """An earlier probe: its number in the store, its age, its result."""

    id: int
    age_s: float
    result: ProbeResult


class PastProbes:
    """The earlier probes of a model on this machine.

    A probe is valid for a run on the same number of ranks. Among failures, only a lack of memory is reused: a crash or
    a timeout may have had a temporary reason. Solo probes have no usable time.
    """

    def __init__(self, shape: ModelShape, workload: Workload, cluster: Cluster) -> None:
        self._inputs = shape, workload, cluster
        machine, key = this_machine(), model_key(shape)
        nothing: list[Record] = []
        self._records: dict[str, list[Record]] = {}
        for record in try_store(lambda store: store.find(kind="probe", machine=machine, model=key), nothing):
            same = _probe_digest(record.plan, record.workload, record.versions)
            self._records.setdefault(same, []).append(record)

    def find_plan(self, plan: Plan) -> PastProbe | None:
        """Return the newest valid probe for a plan, in the configuration that is written for it."""
        if not self._records:
            return None
        try:
            return self.find(Run.from_plan(plan, *self._inputs))
        except ClusterError:  # a plan that needs NVMe without a folder never ran
            return None

    def find(self, run: Run) -> PastProbe | None:
        """Return the newest valid probe for a run of this model."""
        for record in self._records.get(
            _probe_digest(run.config_with_batch, stored_workload(run), _versions(*LIBRARIES)), ()
        ):
            assert record.id is not None, "it is from the store"
            try:
                result = from_json(ProbeResult, record.result)
            except (TypeError, AttributeError):  # written by another version of ds-advise
                continue
            if _is_valid(result, record.workload.get("memory_limit_bytes"), run.cluster):
                return PastProbe(id=record.id, age_s=record.age_s, result=result)
        return None


def _probe_digest(config: Mapping[str, Any], workload: Mapping[str, Any], versions: Mapping[str, str]) -> str:
    """Return the digest of a probe. It excludes the batch (part of the configuration), the memory limit (compared by
    size), the number of ranks (compared with the result's), the evaluation (not part of a probe), the prediction, and
    the command line."""
    left_out = (
        "global_batch_size",
        "memory_limit_bytes",
        "eval_batch",
        "eval_logits",
        "eval_samples",
        "eval_new_tokens",
        "gpus",
        "command_line",
        "predicted",
    )
    return _digest(config, {name: value for name, value in workload.items() if name not in left_out}, versions)


def _is_valid(result: ProbeResult, limit_bytes: int | None, cluster: Cluster) -> bool:
    """Whether a probe is valid for the question's cluster. limit_bytes: the probe's memory limit on the CPU; None means
    the rank's share of the RAM."""
    if result.solo or cluster.nodes > 1:  # a probe of all ranks covers this machine only
        return False
    if result.world_size != cluster.world_size or (result.device == "cpu") != cluster.gpu.is_cpu:
        return False
    if result.failure is not None and result.failure.kind != "out_of_memory":
        return False
    if not cluster.gpu.is_cpu:
        return True
    had = host_memory_bytes() // result.world_size if limit_bytes is None else limit_bytes
    limit = cluster.gpu.memory_bytes
    return had <= limit if result.failure is None else had >= limit  # success holds for more memory, failure for less
