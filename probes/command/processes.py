"""The processes that the launcher in front of a command starts, read by the launcher's own parser in the interpreter of
the command (`launchers.read_launch`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ...estimators.errors import DsAdviseError
from ..scratch import scratch
from .words import interpreter_of

_READ = """import sys
sys.path[:1] = [sys.argv.pop(1)]
from ds_advise.probes.command.processes import main
main()"""
_LIMIT_S = 300.0


class Processes(NamedTuple):
    """None is what a launcher takes from the machine."""

    nodes: int | None
    per_node: int | None
    is_plain: bool = False
    """Whether the launcher starts one process that is no rank."""
    counted: int | None = None
    """What the launcher takes from this machine in place of an unset `per_node`; None if that is not known."""


def read_processes(words: Sequence[str], *, variables: Mapping[str, str]) -> Processes:
    """The processes of a command that is typed in this folder. variables: set for the launcher.

    Raises DsAdviseError if the launcher refuses its options, or its program is not there.
    """
    with scratch("launcher") as folder:
        (folder / "ds_advise").symlink_to(Path(__file__).parents[2], target_is_directory=True)
        answer = folder / "answer.json"
        done = subprocess.run(
            [str(interpreter_of(words) or sys.executable), "-c", _READ, str(folder), str(answer), *words],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
        )
        if not answer.exists():
            last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
            raise DsAdviseError("the launcher of the command cannot be read", why=last)
        found = json.loads(answer.read_text())
    if "what" in found:
        raise DsAdviseError(found["what"], why=found["why"], fix=found["fix"])
    return Processes(**found)


def main() -> None:
    """Read the command in the arguments, and write its processes into the file in the first one."""
    from .launchers import read_launch  # its libraries are the command's

    found: dict[str, object]
    try:
        launch = read_launch(sys.argv[2:], folder=Path.cwd())
        is_plain = any(start.is_plain for start in launch.starts)
        counted = launch.starts[-1].counted if launch.starts else None
        found = {"nodes": launch.nodes, "per_node": launch.gpus_per_node, "is_plain": is_plain, "counted": counted}
    except DsAdviseError as error:
        found = {"what": error.what, "why": error.why, "fix": error.fix}
    Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")
