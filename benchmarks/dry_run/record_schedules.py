"""What published runs execute in one step, recorded by dry runs of the real engine: the second depth of the time model.

    python -m benchmarks.dry_run.record_schedules          # minutes a run; writes into benchmarks/data/schedules/
                                                          # what is not there yet

`accuracy.time` plays the recorded schedules and compares them with the closed form and the measurement; it needs no
torch.
"""

from __future__ import annotations

import sys

from ds_advise.advisor.question.model_source import load_config
from ds_advise.probes.dry_run.run import dry_run
from ds_advise.probes.recording.result import DryRunResult
from ds_advise.probes.run import Run

from ..accuracy.questions import model_source
from ..accuracy.timed_runs import SCHEDULES, TimedRun, read_runs, schedule_file
from ..schedule_files import write_schedule

CHOSEN = {
    "seed 000": ("7", "9", "11", "12", "13", "14"),
    "seed 002": ("exp2-3", "exp2-4", "exp2-6"),
    "seed 003": ("1.2", "1.4"),
    "DeepSpeed blogs/zenflow-corebinding": ("542", "543"),
    "gist.github.com/chenyaofo": ("llama7b-1", "llama7b-2", "llama7b-5", "llama7b-6"),
    "DeepSpeed blogs/deepcompile": ("2-68", "2-107", "2-118"),
    "DeepSpeedExamples training/autotuning": ("2-129", "2-131", "2-132"),
    "huggingface/blog deepspeed-to-fsdp-and-back": ("2-152",),
}
"""By the beginning of the source: rows of DeepSpeed runs whose model is small enough to be executed in minutes."""


def is_chosen(run: TimedRun) -> bool:
    return any(run.source.startswith(source) and run.name in rows for source, rows in CHOSEN.items())


def record(run: TimedRun) -> DryRunResult:
    """The dry run of the run's plan."""
    description = load_config(model_source(run.asked.model_name), offline=True)
    return dry_run(Run.from_plan(run.plan, run.model, run.workload, run.cluster, description=description))


def main() -> int:
    SCHEDULES.mkdir(exist_ok=True)
    for run in read_runs():
        if is_chosen(run) and not schedule_file(run).exists():
            result = record(run)
            assert result.schedule is not None
            write_schedule(schedule_file(run), result.schedule, versions=result.versions)
            print(f"{run.source} {run.name}: {result.versions}, {result.seconds:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
