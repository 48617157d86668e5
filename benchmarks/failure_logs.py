"""How well `ds-advise why` names the causes of public failed logs: `python -m benchmarks.failure_logs`.

`data/failure_logs.jsonl` has one log per line, rewritten from a public thread or repository (`source`) that was not
read for the table of messages: paths, sizes and numbers are replaced, the launcher's format is kept. `cause` lists the
messages that the thread, or a reader of the whole log, supports; empty where the table has none, so that "not known" is
right. `phase` is what the rank was doing, and `fix` holds words of the right fix. What was wrong on the first runs
(docs/why.md) is mended.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ds_advise.advisor.render.named_fix import named_fix, upgrade
from ds_advise.probes.failures.diagnosis import Diagnosis, diagnose_text

LOGS = Path(__file__).parent / "data/failure_logs.jsonl"


@dataclass(frozen=True, kw_only=True)
class Score:
    """The result for one log."""

    source: str
    expected: tuple[str, ...]
    found: str
    """The id of the message; "" for a cause that is not known."""
    certain: bool
    phase: bool | None
    """Whether the phase is right; None for a log without one."""
    fix: bool | None
    """Whether the printed fix has a word of the right one; None where none is known."""

    @property
    def right(self) -> bool:
        """Whether the cause is right, or is rightly not known."""
        return self.found in self.expected if self.expected else not self.found

    @property
    def wrong_as_certain(self) -> bool:
        return bool(self.found) and self.found not in self.expected and self.certain


def cases(path: Path = LOGS) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def scores(path: Path = LOGS) -> Iterator[Score]:
    """Yield the result for each log."""
    yield from map(_score, cases(path))


def _score(case: Mapping[str, Any]) -> Score:
    found = diagnose_text(case["log"])
    message, phase, words = found.message, found.phase, case["fix"]
    fix = _printed_fix(found)
    return Score(
        source=case["source"],
        expected=tuple(case["cause"]),
        found=message.id if message else "",
        certain=message is not None and message.certain,
        phase=(phase is not None and phase.name == case["phase"]) if case["phase"] else None,
        fix=any(word in fix for word in words) if words else None,
    )


def _printed_fix(found: Diagnosis) -> str:
    """The fix that `why` prints, or what it proposes to try for an error that is not known."""
    other = found.other_release
    return named_fix(found) if other is None else upgrade(other)


def main() -> None:
    """Print the figures, and with --all every log that is not right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="list the logs that are not right")
    shows = parser.parse_args().all
    found = [*scores()]
    known = [each for each in found if each.expected]
    print(f"{len(found)} logs, {len(known)} with a cause that the table has")
    print(f"right cause: {sum(each.right for each in known)} of {len(known)}")
    print(f"rightly not known: {sum(each.right for each in found if not each.expected)} of {len(found) - len(known)}")
    print(f"wrong cause, stated as certain: {sum(each.wrong_as_certain for each in found)}")
    phases = [each.phase for each in found if each.phase is not None]
    print(f"right phase of memory: {sum(phases)} of {len(phases)}")
    fixes = [each.fix for each in found if each.fix is not None]
    print(f"right fix: {sum(fixes)} of {len(fixes)}")
    for each in found if shows else ():
        if not each.right or each.phase is False or each.fix is False:
            print(f"{each.source}: {each.found or 'not known'}, expected {each.expected}; {each.phase}, {each.fix}")


if __name__ == "__main__":
    main()
