"""What published runs execute in one step, recorded by dry runs of the real engine: the second depth of the time model.

    python -m benchmarks.dry_run.record_schedules          # about a minute a run; writes benchmarks/data/schedules/

`accuracy.time` plays the recorded schedules and sets them beside the closed form and the measurement; it needs no
torch.
"""

from __future__ import annotations

import gzip
import json
import sys
from dataclasses import asdict

from ds_advise.advisor.question.model_source import load_config
from ds_advise.probes.dry_run import DryRunResult, dry_run
from ds_advise.probes.run import Run

from ..accuracy.timed_runs import SCHEDULES, TimedRun, read_runs

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


def write(run: TimedRun, result: DryRunResult) -> None:
    assert result.schedule is not None
    text = json.dumps(
        {"source": run.source, "row": run.name, "versions": result.versions, "schedule": asdict(result.schedule)}
    )
    name = f"{run.source.split('@')[0]} {run.name}".replace("/", "-").replace(" ", "-")
    # Without a time of its own the file is the same whenever it is written.
    (SCHEDULES / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def main() -> int:
    SCHEDULES.mkdir(exist_ok=True)
    for run in read_runs():
        if (run.source, run.name) in CHOSEN:
            result = record(run)
            write(run, result)
            print(f"{run.source} {run.name}: {result.versions}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
