"""The logs of the ranks of one training: files and folders that launchers write, one file per rank."""

from __future__ import annotations

import re
from pathlib import Path

_RANK_FILES = (
    re.compile(r"(?:^|/)attempt_\d+/(?P<rank>\d+)/(?P<stream>stdout|stderr)\.log$"),
    re.compile(r"(?:^|[/_.-])rank[_-]?(?P<rank>\d+)[^/]*\.(?:log|out|err|txt)(?:\.gz)?$"),
)
"""A path that tells its rank: of torchrun --log-dir, the local rank (torch 2.13 elastic/multiprocessing/api.py); of
deepspeed --enable_each_rank_log (0.19.8 launcher/launch.py) and of scripts."""


def _of_rank(path: Path) -> re.Match[str] | None:
    return next(filter(None, (form.search(path.as_posix()) for form in _RANK_FILES)), None)


def rank_of(path: Path) -> int | None:
    """The rank whose output a file is, by its path; None if the path does not tell it."""
    found = _of_rank(path)
    return None if found is None else int(found["rank"])


def rank_logs(folder: Path) -> list[Path]:
    """The files of the ranks in a folder and those below it, in the order of the ranks: of several files of one rank
    and stream the newest, since a folder may have those of earlier starts. Empty if no path tells a rank."""
    newest = dict[tuple[int, str], Path]()
    for path in sorted(folder.rglob("*"), key=_changed):
        found = _of_rank(path)
        if found is not None and path.is_file():
            newest[int(found["rank"]), found.groupdict().get("stream") or ""] = path
    return [path for _, path in sorted(newest.items())]


def _changed(path: Path) -> float:
    return path.stat().st_mtime
