"""The closed form against the dry run of the real engine: GPU memory at the peak, by component; host memory; NVMe.

    python -m benchmarks.dry_run.analytic_vs_dry_run [NAME ...] [--sample K] [--workers N] [--answers FILE
                                                       [--offline]] [--autoep] [--json FILE] [--write]
                                                       [--figures GROUP]

Runs a grid of six families x eight strategies x checkpointing x three sequence lengths x world sizes 2, 8, 64 x full
and LoRA, and special settings (`cases`). Each case dry runs the configuration that the strategy's
preset emits, on the rank that the closed form takes for the fullest; 1 to 4 CPU seconds, several at a time
(`forked_dry_runs`).

NAME:      only cases whose name has all of these words.
--sample:  K of the cases, a fixed pseudorandom sample.
--answers: keep the results of dry runs in FILE, and reuse those in it: an interrupted run goes on.
--offline: run nothing, compare the cases of the file alone, in seconds.
--autoep:  the cases of experts that are spread over ranks instead, which need transformers 5.0 to 5.22.
--recorded: models whose layers are recorded instead.
--preferences: trainings on preferences and of reward models instead, with TRL. --rollouts: GRPO, without what is
generated; --ppo: the same of PPO, with "trl<1.13".
--json:    all rows.
--write:   put the tables into docs/closed-form.md.
--figures: put the number of cases, the mean and the worst error into this group of docs/numbers.json, and so into the
documents.

Exit 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from .. import numbers
from .cases import EXPERTS_SPREAD, GRID, PPO, PREFERENCES, RECORDED_CASES, ROLLOUTS, SPECIAL, Case, spread
from .compare import Comparison, Measured, Setting, relative_error
from .forked_dry_runs import answers
from .tables import figures, missed, report

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "closed-form.md"
START = "<!-- tables: written by benchmarks/dry_run/analytic_vs_dry_run.py -->\n"
END = "<!-- end of tables -->\n"
OUTLIER = 0.03
"""Of the allocated peak; a case that is further off gets a line of its own."""


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    everything = EXPERTS_SPREAD if options.autoep else RECORDED_CASES if options.recorded else (*GRID, *SPECIAL)
    everything = PREFERENCES if options.preferences else ROLLOUTS if options.rollouts else everything
    everything = PPO if options.ppo else everything
    cases = [case for case in everything if all(word in case.name.split() for word in options.names)]
    if options.sample:
        cases = spread(cases, options.sample)
    known = _known(options.answers)
    if options.offline:
        cases = [case for case in cases if case.name in known]
    rows, versions = [], ""
    for case, answer in _measured(cases, known, options):
        if isinstance(answer, str):
            print(f"{case.name}: {answer}", flush=True)
            continue
        rows.append(Setting.of(case).compare(answer))
        versions = ", ".join(f"{name} {version}" for name, version in answer.versions.items())
        if abs(relative_error(rows[-1].allocated)) > OUTLIER:
            print(_line(rows[-1]), flush=True)
    failed = len(cases) - len(rows)
    text = report(rows, versions=versions, total=len(everything)) if rows else "no case\n"
    print(text, end="")
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")
    if options.write:
        before, rest = DOCUMENT.read_text(encoding="utf-8").split(START)
        DOCUMENT.write_text(before + START + text + END + rest.split(END)[1], encoding="utf-8")
    if options.figures and rows:
        group = numbers.read()[options.figures]
        numbers.write({options.figures: group | figures(rows)})
    misses = missed(rows) + [f"{failed} dry runs failed"] * (failed > 0)
    for miss in misses:
        print(f"missed: {miss}")
    return int(bool(misses))


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="analytic_vs_dry_run", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--sample", type=int, metavar="K")
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    parser.add_argument("--answers", type=Path, metavar="FILE")
    parser.add_argument("--offline", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--autoep", action="store_true")
    parser.add_argument("--recorded", action="store_true")
    parser.add_argument("--preferences", action="store_true")
    parser.add_argument("--rollouts", action="store_true")
    parser.add_argument("--ppo", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--figures", metavar="GROUP", choices=numbers.read())
    return parser.parse_args(arguments)


def _known(kept: Path | None) -> dict[str, Measured]:
    """What the file holds, by the cases' names."""
    if kept is None or not kept.exists():
        return {}
    entries = [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()]
    return {entry["case"]: Measured(**entry["measured"]) for entry in entries}


def _measured(
    cases: Sequence[Case], known: dict[str, Measured], options: argparse.Namespace
) -> Iterator[tuple[Case, Measured | str]]:
    """Each case with what its dry run says, or with its error; new answers go into the file."""
    yield from ((case, known[case.name]) for case in cases if case.name in known)
    unknown = [case for case in cases if case.name not in known]
    requests = [Setting.of(case).request() for case in unknown]
    for case, answer in zip(unknown, answers(requests, workers=options.workers), strict=True):
        if isinstance(answer, str):
            yield case, answer
            continue
        measured = Measured.of(answer)
        if options.answers is not None:
            with options.answers.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"case": case.name, "measured": asdict(measured)}) + "\n")
        yield case, measured


def _line(row: Comparison) -> str:
    mib = [f"{size / 2**20:,.0f}" for size in row.allocated]
    return (
        f"{row.case.name:60s} {mib[0]} against {mib[1]} MiB, {relative_error(row.allocated):+.1%}, "
        f"{row.moment} / {row.phase}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
