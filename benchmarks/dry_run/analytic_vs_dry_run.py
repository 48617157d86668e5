"""The closed form against the dry run of the real engine: GPU memory at the peak, by component; host memory; NVMe.

    python -m benchmarks.dry_run.analytic_vs_dry_run [NAME ...] [--sample K] [--workers N] [--answers FILE
                                                       [--offline]] [--autoep] [--write] [--figures GROUP]

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
--without-vocabulary: classification and embeddings instead. --dora: adapters with magnitudes.
--preferences: trainings on preferences and of reward models instead, with TRL. --rollouts: GRPO, without what is
generated; --ppo: the same of PPO, with "trl<1.13".
--write:   put the tables into docs/closed-form.md.
--figures: put the number of cases, the mean and the worst error into this group of docs/numbers.json, and so into the
documents.

Exit 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

from ds_advise.probes.run_errors import DryRunError

from .. import numbers
from ..document import show
from .cases import (
    DORA,
    EXPERTS_SPREAD,
    GRID,
    PPO,
    PREFERENCES,
    RECORDED_CASES,
    ROLLOUTS,
    SPECIAL,
    WITHOUT_VOCABULARY,
    Case,
    spread,
)
from .compare import COMPONENTS, Comparison, Measured, Setting, relative_error
from .forked_dry_runs import answers

OUTLIER = 0.03
"""Of the allocated peak; a case that is further off gets a line of its own."""


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    everything = EXPERTS_SPREAD if options.autoep else RECORDED_CASES if options.recorded else (*GRID, *SPECIAL)
    everything = PREFERENCES if options.preferences else ROLLOUTS if options.rollouts else everything
    everything = PPO if options.ppo else everything
    everything = WITHOUT_VOCABULARY if options.without_vocabulary else DORA if options.dora else everything
    cases = [case for case in everything if all(word in case.name.split() for word in options.names)]
    if options.sample:
        cases = spread(cases, options.sample)
    known = _known(options.answers)
    if options.offline:
        cases = [case for case in cases if case.name in known]
    rows, versions = [], ""
    for case, answer in _measured(cases, known, options):
        if isinstance(answer, DryRunError):
            print(f"{case.name}: {answer}", flush=True)
            continue
        rows.append(Setting.of(case).compare(answer))
        versions = ", ".join(f"{name} {version}" for name, version in answer.versions.items())
        if abs(relative_error(rows[-1].allocated)) > OUTLIER:
            print(_line(rows[-1]), flush=True)
    failed = len(cases) - len(rows)
    text = report(rows, versions=versions, total=len(everything)) if rows else "no case\n"
    show("closed-form.md", "dry_run/analytic_vs_dry_run", text, writes=options.write)
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
    parser.add_argument("--autoep", action="store_true")
    parser.add_argument("--recorded", action="store_true")
    parser.add_argument("--preferences", action="store_true")
    parser.add_argument("--without-vocabulary", action="store_true")
    parser.add_argument("--dora", action="store_true")
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
) -> Iterator[tuple[Case, Measured | DryRunError]]:
    """Each case with what its dry run says, or with its error; new answers go into the file."""
    yield from ((case, known[case.name]) for case in cases if case.name in known)
    unknown = [case for case in cases if case.name not in known]
    dry_runs = [Setting.of(case).dry_run for case in unknown]
    for case, answer in zip(unknown, answers(dry_runs, workers=options.workers), strict=True):
        if isinstance(answer, DryRunError):
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


MEAN_ALLOCATED, WORST_ALLOCATED, WORST_HOST, WORST_NVME = 0.03, 0.08, 0.05, 0.02
"""Targets: errors of the allocated peak, of host bytes and of NVMe bytes."""

LARGE_BYTES = 4 << 30
"""Peaks beside which the constant part of the allocator's slack is small."""

_AXES: tuple[tuple[str, Callable[[Comparison], object]], ...] = (
    ("strategy", lambda row: row.case.strategy),
    ("family", lambda row: row.case.model),
    ("checkpointing", lambda row: "on" if row.case.checkpointing else "off"),
    ("method", lambda row: row.case.method),
    ("sequence", lambda row: row.case.seq_len),
    ("world size", lambda row: row.case.world_size),
)


def missed(rows: Sequence[Comparison]) -> list[str]:
    """The targets that the rows miss, in words."""
    allocated = [abs(relative_error(row.allocated)) for row in rows]
    host, nvme = _errors(rows, "host"), _errors(rows, "nvme")
    checks = (
        (fmean(allocated) if allocated else 0.0, MEAN_ALLOCATED, "mean error of the allocated peak"),
        (max(allocated, default=0.0), WORST_ALLOCATED, "largest error of the allocated peak"),
        (max(map(abs, host), default=0.0), WORST_HOST, "largest error of host bytes"),
        (max(map(abs, nvme), default=0.0), WORST_NVME, "largest error of NVMe bytes"),
    )
    return [f"{what} is {value:.1%}, the target is {target:.0%}" for value, target, what in checks if value > target]


def figures(rows: Sequence[Comparison]) -> dict[str, str]:
    """Figures of docs/numbers.json: how many cases there are, and the errors of the allocated peak."""
    errors = [abs(relative_error(row.allocated)) for row in rows]
    return {
        "plans": str(len(rows)),
        "mean": numbers.printed(fmean(errors), 2),
        "worst": numbers.printed(max(errors), 1),
    }


def report(rows: Sequence[Comparison], *, versions: str, total: int) -> str:
    """Every table; `total`: how many cases there are."""
    errors = [relative_error(row.allocated) for row in rows]
    worst = max(rows, key=lambda row: abs(relative_error(row.allocated)))
    lines = [
        f"{len(rows)} of {total} cases, {versions}. Allocated peak: mean error {_mean(errors):.2%}, largest "
        f"{relative_error(worst.allocated):+.1%} ({worst.case.name}).",
        "",
        "| | cases | mean error | lowest | highest |",
        "|---|---|---|---|---|",
    ]
    for axis, key in _AXES:
        for value in dict.fromkeys(sorted((key(row) for row in rows), key=_order)):
            some = [relative_error(row.allocated) for row in rows if key(row) == value]
            lines.append(f"| {axis} {value} | {_cells(some)} |")
    lines += ["", "| bytes | cases | mean error | lowest | highest |", "|---|---|---|---|---|"]
    for kind in ("allocated", "reserved", "host", "nvme"):
        some = _errors(rows, kind)
        if some:
            lines.append(f"| {kind} | {_cells(some)} |")
    for stage in ("ddp", "zero1", "zero2", "zero3"):
        some = [relative_error(row.reserved) for row in rows if row.case.strategy.startswith(stage)]
        if some:
            lines.append(f"| reserved, {stage} | {_cells(some)} |")
    large = [row for row in rows if row.allocated[1] >= LARGE_BYTES]
    if large:
        for name, pairs in (("reserved", [row.reserved for row in large]), ("held", [row.held for row in large])):
            lines.append(
                f"| {name}, peaks of {LARGE_BYTES >> 30} GiB and more | {_cells(list(map(relative_error, pairs)))} |"
            )
    lines += ["", "| component, as a share of the peak | mean error | lowest | highest |", "|---|---|---|---|"]
    for name in COMPONENTS:
        some = [row.component_error(name) for row in rows]
        lines.append(f"| {name} | {_mean(some):.2%} | {min(some):+.1%} | {max(some):+.1%} |")
    return "\n".join(lines) + "\n"


def _order(value: object) -> tuple[int, str]:
    return (value, "") if isinstance(value, int) else (0, str(value))


def _errors(rows: Iterable[Comparison], kind: str) -> list[float]:
    """Of one kind of bytes, where there are any."""
    pairs = (getattr(row, kind) for row in rows)
    return [relative_error(pair) for pair in pairs if pair[1]]


def _mean(errors: Sequence[float]) -> float:
    return fmean(map(abs, errors))


def _cells(errors: Sequence[float]) -> str:
    return f"{len(errors)} | {_mean(errors):.2%} | {min(errors):+.1%} | {max(errors):+.1%}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
