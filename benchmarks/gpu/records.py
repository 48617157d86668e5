"""Records of measurements: one line of JSON each, written at once, so that a run that is cut off loses nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

FILE = "records.jsonl"

Outcome = Literal["measured", "out of memory", "not possible", "failed", "timed out"]

FINAL: tuple[Outcome, ...] = ("measured", "out of memory", "not possible")
"""Outcomes that another try would not change; what failed or ran out of its time is tried again after all the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The outcome of one measurement."""

    name: str
    kind: str
    """The module of `benchmarks.gpu.measure` that measured."""
    arguments: Mapping[str, Any]
    outcome: Outcome
    value: Mapping[str, Any] = field(default_factory=dict)
    """What was measured; of a failure, what was known until then."""
    reason: str = ""
    """Why nothing was measured, "" where something was."""
    device: str
    versions: Mapping[str, str]
    """Of Python packages and the driver; a measurement under other versions is another one."""
    machine: Mapping[str, Any]
    """`probes.machine.Machine`."""
    gpu: Mapping[str, Any]
    """Clocks, temperature and power while it was measured; empty without a GPU."""
    began: str
    """Date and time, UTC."""
    seconds: float


class Records:
    """The records of a folder; a line that was cut off is skipped."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / FILE
        self.all: list[Record] = list(read(self.file)) if self.file.exists() else []

    def add(self, record: Record) -> None:
        """Keep a record; it is on the disk when this returns."""
        self.all.append(record)
        with self.file.open("ab+") as stream:
            stream.seek(0, os.SEEK_END)
            cut_off = stream.tell() > 0 and (stream.seek(-1, os.SEEK_END), stream.read(1))[1] != b"\n"
            stream.write(b"\n" * cut_off + json.dumps(asdict(record)).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())

    def latest(
        self,
        name: str,
        *,
        device: str,
        versions: Mapping[str, str],
        gpus: Iterable[str] = (),
        arguments: Mapping[str, Any] | None = None,
    ) -> Record | None:
        """The newest record of that name, and of these arguments, that was measured under these versions on such GPUs.

        arguments: None for any.
        """
        for record in reversed(self.all):
            same_place = record.device == device and list(record.machine["gpus"]) == list(gpus)
            same = record.name == name and (arguments is None or _plain(record.arguments) == _plain(arguments))
            if same and same_place and record.versions == versions:
                return record
        return None


def _plain(arguments: Mapping[str, Any]) -> Any:
    """As they are once they were written and read again."""
    return json.loads(json.dumps(dict(arguments)))


def read(file: Path) -> Iterable[Record]:
    """The records of a file, in the order in which they were made."""
    with file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                yield Record(**json.loads(line))
            except (ValueError, TypeError):
                continue
