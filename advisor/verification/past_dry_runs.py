"""Dry runs of earlier times, which answer the same question again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ...probes.dry_run import DryRunResult, dry_run
from ...probes.recording.result import from_json
from ...probes.run import Run
from ...probes.store import LIBRARIES, Record, record_of, try_store

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
        return from_json(dict(record.result)), record.age_s
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
