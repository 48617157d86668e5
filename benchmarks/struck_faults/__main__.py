"""Faults struck in real trainings, and what `ds-advise why` says of their logs.

    python -m benchmarks.struck_faults [NAME ...]     # all take about half an hour on two cores
    python -m benchmarks.struck_faults --write        # renews the table in docs/why.md
    python -m benchmarks.struck_faults --logs DIR     # keeps the logs, and does not strike those faults again

Each fault of `faults.toml` is struck in a training of a small model on the CPU, of one or two ranks on gloo, that a
real launcher starts with the installed DeepSpeed. A cause is right if it is a message that is expected, and a fix if it
has all expected words.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ds_advise.advisor.cli.main import run

from benchmarks.document import show

from .strike import Fault, faults, missing, strike


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What `why` says of the log of a fault."""

    fault: Fault
    found: str
    """The id of the message; "" for a cause that is not known."""
    certain: bool
    fix: str
    text: str
    """What the command prints."""

    @property
    def cause_is_right(self) -> bool:
        names_rank = self.fault.rank is None or f"rank {self.fault.rank}" in self.text
        return names_rank and (self.found in self.fault.cause if self.fault.cause else not self.found)

    @property
    def fix_is_right(self) -> bool:
        return self.cause_is_right and all(word in self.fix for word in self.fault.fix)


def outcome(fault: Fault, log: Path) -> Outcome:
    """The answer of the command to a log."""
    message = json.loads(_printed("why", str(log), "--json"))["message"] or {}
    return Outcome(
        fault=fault,
        found=message.get("id", ""),
        certain=message.get("certain", False),
        fix=message.get("fix", ""),
        text=" ".join(_printed("why", str(log)).split()),
    )


def _printed(*words: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        run(list(words))
    return out.getvalue()


def table(outcomes: Sequence[Outcome], left_out: Sequence[tuple[Fault, str]]) -> str:
    """The outcomes, and their totals."""
    causes, fixes = (sum(getattr(each, name) for each in outcomes) for name in ("cause_is_right", "fix_is_right"))
    wrong = sum(bool(each.found) and each.certain and not each.cause_is_right for each in outcomes)
    lines = [
        f"{len(outcomes)} faults: right cause {causes}, right fix {fixes}, a wrong cause stated as certain {wrong}.",
        "",
        "| fault | started by | expected | found | right fix |",
        "|---|---|---|---|---|",
    ]
    for each in outcomes:
        expected = " or ".join(f"`{name}`" for name in each.fault.cause) or "not known"
        found = ("" if each.cause_is_right else "wrong: ") + (f"`{each.found}`" if each.found else "not known")
        right = "yes" if each.fix_is_right else "no"
        lines.append(f"| {each.fault.name} | {each.fault.launcher} | {expected} | {found} | {right} |")
    lines += [f"\nNot struck, because this machine lacks {what}: {fault.name}." for fault, what in left_out]
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table into docs/why.md")
    parser.add_argument("--logs", metavar="DIR", type=Path, help="keep the logs here, and do not strike those again")
    parser.add_argument("names", nargs="*", metavar="NAME", help="words of the faults' names")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # no training stays behind
    if arguments.write and arguments.names:
        parser.error("--write needs all faults")
    chosen = [each for each in faults() if not arguments.names or any(word in each.name for word in arguments.names)]
    if not chosen:
        parser.error(f"no fault has one of these words in its name: {' '.join(arguments.names)}")
    left_out = [(each, what) for each in chosen if (what := missing(each))]
    lacks = [each for each, _ in left_out]
    outcomes = list[Outcome]()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.logs or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for fault in (each for each in chosen if each not in lacks):
            log, begin = folder / f"{fault.name.replace(' ', '_').replace('/', '_')}.log", time.monotonic()
            if not log.exists():
                strike(fault, log, folder)
            outcomes.append(each := outcome(fault, log))
            said = f"{each.found or 'not known'}, {'right' if each.fix_is_right else 'NOT RIGHT'}"
            print(f"{fault.name}: {said} ({time.monotonic() - begin:.0f} s)", flush=True)
    show("why.md", "struck_faults/__main__", table(outcomes, left_out), writes=arguments.write)


if __name__ == "__main__":
    main()
