"""Whether `ds-advise why` names the phase in which a GPU's memory ran out: `python -m benchmarks.memory_phases`.

Each training of `trainings.py` runs for real on one CPU rank: once to count the operations of its phases, then once
for the first, the middle and the last operation of each phase, which raises torch's out-of-memory error (`strike.py`).
The output is the log; the phase that `why` reads from its frames is compared with the one in which the operation was.
The whole takes a few minutes of one core.

    python -m benchmarks.memory_phases [--write] [--all]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ds_advise.probes.failures.diagnosis import diagnose_text
from ds_advise.probes.real_run.torchrun import free_port

from ..document import show

_LIMIT_S = 120


@dataclass(frozen=True, kw_only=True)
class Struck:
    """One failure."""

    training: str
    phase: str
    ordinal: int
    log: str

    @property
    def named(self) -> str:
        """The phase that `why` names; "" for none."""
        found = diagnose_text(self.log).phase
        return "" if found is None else found.name


def failures() -> Iterator[Struck]:
    """Yield the failures of all trainings."""
    from .trainings import TRAININGS, prepare

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        prepare(folder)
        for training in TRAININGS:
            log = _run(training.__name__, folder, "", 0)
            try:
                counts = json.loads(log.rpartition("\ncounts ")[2])
            except ValueError:
                raise RuntimeError(f"{training.__name__} failed by itself:\n{log[-3000:]}") from None
            for phase, count in counts.items():
                for ordinal in sorted({1, (count + 1) // 2, count}):
                    log = _run(training.__name__, folder, phase, ordinal)
                    yield Struck(training=training.__name__, phase=phase, ordinal=ordinal, log=log)


def _run(name: str, folder: Path, phase: str, ordinal: int) -> str:
    """The output of a training in a forked process: the libraries are imported once."""
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".log") as output:
        child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            try:
                _train(name, folder, phase, ordinal)
            finally:  # also after an error: the parent owns the folder
                os._exit(0)
        os.waitpid(child, 0)
        return Path(output.name).read_text(encoding="utf-8", errors="replace")


def _train(name: str, folder: Path, phase: str, ordinal: int) -> None:
    import signal

    from . import trainings
    from .strike import Strike, print_without_strike

    signal.signal(signal.SIGALRM, _out_of_time)
    signal.alarm(_LIMIT_S)
    with tempfile.TemporaryDirectory(dir=folder) as own:
        Path(own, "model").symlink_to(folder / "model")
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
        os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "DS_ACCELERATOR": "cpu"}
        strike = Strike(phase, ordinal)
        strike.wrap(trainings.__name__)
        try:
            with strike:
                getattr(trainings, name)(Path(own))
        except BaseException as error:  # the output is the log of a training that failed
            print_without_strike(error)
        else:
            print(f"\ncounts {json.dumps(strike.counts)}")
        sys.stdout.flush()
        sys.stderr.flush()


def _out_of_time(*_: object) -> None:
    raise TimeoutError(f"the training took more than {_LIMIT_S} s")


def table(found: Sequence[Struck]) -> str:
    """The table of docs/why.md."""
    right = Counter((each.training, each.phase) for each in found if each.named == each.phase)
    count = Counter((each.training, each.phase) for each in found)
    trainings = list(dict.fromkeys(each.training for each in found))
    phases = list(dict.fromkeys(each.phase for each in found))
    lines = [
        f"The phase is right in {right.total()} of {count.total()} failures.",
        "",
        f"| phase | {' | '.join(name.replace('_', ' ') for name in trainings)} |",
        f"|---|{'---|' * len(trainings)}",
    ]
    for phase in phases:
        cells = (f"{right[name, phase]} of {count[name, phase]}" * bool(count[name, phase]) for name in trainings)
        lines.append(f"| {phase.replace('_', ' ')} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the table; with --write also put it into docs/why.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table into docs/why.md")
    parser.add_argument("--all", action="store_true", help="print the logs whose phase is wrong")
    asked = parser.parse_args()
    found = [*failures()]
    for each in found if asked.all else ():
        if each.named != each.phase:
            print(f"== {each.training}, operation {each.ordinal} of {each.phase}: {each.named}\n{each.log}")
    show("why.md", "memory_phases/__main__", table(found), writes=asked.write)


if __name__ == "__main__":
    main()
