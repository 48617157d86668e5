"""Recorded schedules in files: what dry runs recorded once can be played again without torch."""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict
from pathlib import Path

from ds_advise.estimators.schedule.recorded import Schedule
from pydantic import TypeAdapter


def write_schedule(file: Path, schedule: Schedule, **more: object) -> None:
    """Write it, with `more` as further fields; the file is the same whenever it is written."""
    text = json.dumps({**more, "schedule": asdict(schedule)})
    file.write_bytes(gzip.compress(text.encode(), mtime=0))


def read_schedule(file: Path) -> Schedule:
    return TypeAdapter(Schedule).validate_python(json.loads(gzip.decompress(file.read_bytes()))["schedule"])
