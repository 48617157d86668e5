"""What one probe teaches about the other strategies of the same model: predicted step times against measured ones, on
the CPU.

    ds-advise bench --device cpu
    python -m benchmarks.probes.transfer ANSWERS [--write] [MODEL ...]

ANSWERS holds the runs of `cpu_probes`, which are made where they are missing. For every model each plan in turn is the
one that was probed; the plans of all other strategies are predicted with that probe's calibration, and compared with
what they took. The error is that of the median step.

MODEL: of `cpu_probes`, by default all. --write: put the table into docs/probe.md.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ds_advise.advisor.search.candidate import Candidate
from ds_advise.advisor.verification.probe_order import calibration
from ds_advise.probes.real_run.result import ProbeResult

from .cpu_probes import MODELS, Runs, ask, candidates, publish

TARGET = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A candidate that ran."""

    candidate: Candidate
    result: ProbeResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One model's figures: errors are medians of the relative error of the step."""

    model: str
    plans: int
    before: float
    """The error for the plans of all strategies without a probe."""
    after: float
    """The error for the plans of other strategies than the probed one, over all choices of the probed plan."""
    recommended: float
    """The same where the plan that the prediction recommends was probed."""
    loads: tuple[float, float]


def measured(model: str, runs: Runs) -> list[Measured]:
    """Every plan of a model that ran, predicted with what a benchmark of this machine says."""
    prediction = ask(model)
    rows = [(candidate, runs.get(prediction, candidate.estimate.plan)) for candidate in candidates(prediction)]
    return [Measured(candidate=candidate, result=result) for candidate, result in rows if not result.failure]


def transfer(model: str, rows: Sequence[Measured]) -> Transfer:
    before = [abs(row.candidate.estimate.time.step_s / row.result.step_s - 1) for row in rows]
    after = {id(probed): _errors(probed, rows) for probed in rows}
    chosen = max(rows, key=lambda row: row.candidate.tokens_per_s)
    return Transfer(
        model=model,
        plans=len(rows),
        before=median(before),
        after=median(error for errors in after.values() for error in errors),
        recommended=median(after[id(chosen)]),
        loads=(min(row.result.load for row in rows), max(row.result.load for row in rows)),
    )


def _errors(probed: Measured, rows: Sequence[Measured]) -> list[float]:
    """Of the plans of other strategies, by the calibration of the probed one."""
    learned = calibration(probed.result, probed.candidate.estimate.time)
    others = [row for row in rows if row.candidate.strategy != probed.candidate.strategy]
    return [abs(learned.apply(row.candidate.estimate.time).step_s / row.result.step_s - 1) for row in others]


def report(rows: Sequence[Transfer]) -> str:
    lines = [
        "| model | plans | load | error before | after a probe of any plan | of the recommended plan |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        loads = f"{row.loads[0]:.0f} to {row.loads[1]:.0f}"
        errors = f"{row.before:.0%} | {row.after:.0%} | {row.recommended:.0%}"
        lines.append(f"| {row.model} | {row.plans} | {loads} | {errors} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    if not arguments or not set(arguments[1:]) <= {*MODELS, "--write"}:
        sys.exit(__doc__)
    runs, models = Runs(Path(arguments[0])), [name for name in MODELS if name in arguments] or list(MODELS)
    ran = {model: measured(model, runs) for model in models}
    rows = [transfer(model, ran[model]) for model in models]
    text = report(rows)
    publish("transfer", text, arguments)
    return int(median(row.recommended for row in rows) > TARGET)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
