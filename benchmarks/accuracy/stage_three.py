"""Published pairs of runs that differ in stage 3 alone: how much longer it took, measured and predicted.

    python -m benchmarks.accuracy.stage_three

A pair: two runs of a group that trained the same samples in a step at the same length, with the same checkpointing and
with the optimizer in the same place, one under stage 3 and one under a lower stage. The last line has the mean of
log(predicted / measured) of their ratios, as a factor (`LEAST_GAIN` of `advisor.search.choice`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import exp, log
from statistics import mean

from .timed_runs import TimedRun, read_runs


def pairs() -> Iterator[tuple[TimedRun, TimedRun]]:
    """(under stage 3, under a lower stage), DeepSpeed's on several GPUs."""
    groups: dict[str, list[TimedRun]] = defaultdict(list)
    for run in read_runs():
        if run.counted and run.group and run.plan.sharding == "zero" and run.cluster.world_size > 1:
            groups[run.group].append(run)
    for runs in groups.values():
        for third in (run for run in runs if run.plan.zero_stage == 3):
            yield from ((third, lower) for lower in runs if lower.plan.zero_stage < 3 and _alike(third, lower))


def _alike(third: TimedRun, lower: TimedRun) -> bool:
    same = ("offload_optimizer", "gradient_checkpointing")
    return (
        all(getattr(third.plan, name) == getattr(lower.plan, name) for name in same)
        and third.plan.offload_param in ("none", third.plan.offload_optimizer)
        and third.workload.seq_len == lower.workload.seq_len
        and third.samples == lower.samples
    )


def main() -> None:
    errors = []
    print("measured  predicted  stage 3 over a lower stage")
    for third, lower in pairs():
        measured, predicted = third.measured_s / lower.measured_s, third.step_s / lower.step_s
        errors.append(log(predicted / measured))
        print(f"{measured:8.2f}  {predicted:9.2f}  {third.label}; over stage {lower.plan.zero_stage} ({third.group})")
    print(f"{len(errors)} pairs: predicted over measured {exp(mean(errors)):.2f} on average")


if __name__ == "__main__":
    main()
