"""What published runs execute in one step, recorded by dry runs of the real engine: the second depth of the time model.

    python -m benchmarks.dry_run.record_operations         # about a minute a run; writes
    benchmarks/data/recorded_operations.csv

`accuracy.time` times the recorded operations and sets them beside the closed form and the measurement; it needs no
torch.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

from ds_advise.advisor.question.model_source import load_config
from ds_advise.estimators.time.recorded_time import RecordedOperation
from ds_advise.probes.dry_run import DryRunResult, dry_run
from ds_advise.probes.run import Run

from ..accuracy.timed_runs import RECORDED, TimedRun, read_runs

CHOSEN = {
    ("seed 000", "7"),
    ("seed 000", "9"),
    ("seed 000", "11"),
    ("seed 000", "12"),
    ("seed 000", "13"),
    ("seed 000", "14"),
    ("seed 003", "1.2"),
    ("seed 003", "1.4"),
    ("DeepSpeed blogs/zenflow-corebinding/README.md@edaa722", "542"),
    ("DeepSpeed blogs/zenflow-corebinding/README.md@edaa722", "543"),
}
"""Source and row of DeepSpeed runs whose model is small enough to be executed in a minute."""


def record(run: TimedRun) -> DryRunResult:
    """The dry run of the run's plan."""
    description = load_config(run.model.name, offline=True)
    return dry_run(Run.of_plan(run.plan, run.model, run.workload, run.cluster, description=description))


def write(path: Path, recorded: Iterable[tuple[TimedRun, DryRunResult]]) -> None:
    names = [field.name for field in fields(RecordedOperation)]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("source", "row", *names))
        for run, result in recorded:
            for operation in result.operations:
                values = [getattr(operation, name) for name in names]
                writer.writerow(
                    (
                        run.source,
                        run.name,
                        *("x".join(map(str, value)) if isinstance(value, tuple) else value for value in values),
                    )
                )


def main() -> int:
    recorded = []
    for run in read_runs():
        if (run.source, run.name) in CHOSEN:
            result = record(run)
            recorded.append((run, result))
            print(f"{run.source} {run.name}: {len(result.operations)} operations, {result.versions}", file=sys.stderr)
    write(RECORDED, recorded)
    return 0


if __name__ == "__main__":
    sys.exit(main())
