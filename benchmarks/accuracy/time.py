"""Time: published throughput against `estimate_time`, run by run and group by group.

The error that counts is that of a run whose origin no constant was fitted on; under the committed constants it stands
beside.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from statistics import median

from . import questions, spread
from .between_sources import Error, by_source
from .between_sources import percentile as percentile_by_source
from .report import Section, Table, percent
from .timed_runs import DATA, TIE, Group, TimedRun, groups, read_runs, recorded_schedules

MEDIAN_TARGET, P90_TARGET, TAU_TARGET, REGRET_TARGET = 0.12, 0.30, 0.85, 0.05
FAR = 0.30
"""A run further off is listed with what is known of it."""


def section() -> Section:
    runs = read_runs()
    counted = [run for run in runs if run.counted]
    ranked = groups(runs)
    missed = [group for group in ranked if group.tau < TAU_TARGET or group.regret > REGRET_TARGET]
    far = sorted((run for run in counted if abs(run.unseen_error) > FAR), key=lambda run: run.source)
    return Section(
        title="Time",
        summary=(
            Table(
                title="Step time of runs whose origin no constant was fitted on: |predicted / measured - 1|",
                header=_HEADER,
                rows=tuple(_subsets(counted)),
            ),
            spread.table(spread.errors(counted)),
            Table(
                title="Both depths: the closed form, and the schedule that a dry run of the same plan recorded",
                header=("source", "run", " measured s", " closed form", " schedule", " schedule / closed form"),
                rows=tuple(_both_depths(runs)),
            ),
            Table(
                title=f"Groups that miss tau {TAU_TARGET} or a regret of {REGRET_TARGET:.0%}",
                header=("group", " runs", " tau", " regret"),
                rows=tuple(_ranking(group) for group in missed),
            ),
            Table(
                title=f"Runs more than {FAR:.0%} off",
                header=("source", "run", " error", " all seen", "what is known of it"),
                rows=tuple(
                    (run.source, run.label, percent(run.unseen_error), percent(run.error), run.note) for run in far
                ),
            ),
            Table(
                title="Unmodelled kernels, or facts that decide and are not stated: predicted, in no statistic",
                header=("source", " runs", " median", "why"),
                rows=tuple(_set_aside(runs)),
            ),
            Table(
                title="Published throughput that is not predicted",
                header=("source", " rows", "why"),
                rows=tuple(_unused()),
            ),
        ),
        details=Table(
            title="Every run",
            header=("source", "row", "run", " measured s", " predicted s", " error", " unseen"),
            rows=tuple(_detail(run) for run in runs),
        ),
        notes=(
            f"Targets: median at most {MEDIAN_TARGET:.0%}, 90th percentile at most {P90_TARGET:.0%}; in every group "
            f"tau at least {TAU_TARGET} and a regret of at most {REGRET_TARGET:.0%}. {len(ranked) - len(missed)} of "
            f"{len(ranked)} groups meet theirs, {sum(group.regret <= REGRET_TARGET for group in ranked)} the regret. "
            f"Pairs that were measured within {TIE:.0%} are not ranked. A factor is the larger of predicted over "
            "measured and its inverse; the last two columns are under the committed constants, fitted on all runs. "
            "Each source once: a run's weight is 1 / the runs of its source in the subset; a source is a repository or "
            "a page.",
        ),
        data={
            "runs": [
                {
                    "source": run.source,
                    "row": run.name,
                    "run": run.label,
                    "measured_s": run.measured_s,
                    "predicted_s": run.step_s,
                    "unseen_s": run.left_out_s,
                    "counted": run.counted,
                }
                for run in runs
            ],
            "groups": [{"group": group.name, "tau": group.tau, "regret": group.regret} for group in ranked],
        },
    )


def asked() -> list[dict[str, str]]:
    """The rows of `questions.FILE`."""
    return [
        {
            "half": "time",
            "source": run.source,
            "row": run.name,
            "quantity": "step_seconds + evaluation" if run.evaluated else "step_seconds",
            "measured": f"{run.measured_s:.6g}",
            "predicted": f"{run.step_s:.10g}",  # the digits on which all versions of Python agree
            "question": questions.command_of(run.asked),
        }
        for run in read_runs()
    ]


def headline() -> str:
    """README's line on step times."""
    counted = [run for run in read_runs() if run.counted]
    several = [run for run in counted if _deepspeed_on_several(run)]
    return (
        f"- Step time: {_stated(counted)}, over {len(counted)} published runs, each judged by constants fitted on runs "
        f"of other origins only; DeepSpeed on several GPUs, the least certain: {_stated(several)}, over {len(several)}."
    )


def table_row() -> str:
    """The row of docs/how-true.md on step times."""
    counted = [run for run in read_runs() if run.counted]
    ranked = groups(counted)
    largest = max(run.cluster.world_size for run in counted)
    several = [run for run in counted if _deepspeed_on_several(run)]
    seen = [abs(run.error) for run in counted]
    found = sum(group.regret <= REGRET_TARGET for group in ranked)
    what = f"{len(counted)} published runs: V100 to GB200, GeForce and others, 1 to {largest} GPUs, full, LoRA, QLoRA"
    result = (
        f"{_stated(counted)} ({_share(median(seen))} and {_share(percentile_90(seen))} with all seen); DeepSpeed "
        f"on several GPUs, {len(several)} of them: {_stated(several)}, worst factor {max(map(_factor, several)):.1f}. "
        f"In {found} of {len(ranked)} groups the run that the advice would take is within {_share(REGRET_TARGET)} of "
        "the fastest"
    )
    judged = "each judged by constants fitted on runs of other origins only"
    return f"| step time | {what}; {judged} | {result} | [published runs](accuracy.md), `benchmarks/fit_speed.py` |"


_NOT_JUDGED = {
    "lengths or batches not stated": ("length", "batch", "packed"),
    "activations offloaded": ("activations",),
    "kernels, adapters or optimizers that no plan here has": (
        "kernels",
        "adapter",
        "bitsandbytes",
        "optimizer",
        "torch.compile",
        "tiled",
    ),
    "other parallelism": ("parallelism", "ZeRO++", "ZenFlow", "FSDP"),
    "links that decide and are not stated": ("lanes",),
}
"""Words in the reasons of rows that are not predicted, by what they are called; the first that is found counts."""


def limit() -> str:
    """The line of docs/how-true.md that counts the published speeds which are not predicted."""
    counts = dict.fromkeys([*_NOT_JUDGED, "others"], 0)
    for _, rows, reason in _unused():
        found = (name for name, words in _NOT_JUDGED.items() if any(word in reason for word in words))
        counts[next(found, "others")] += int(rows)
    listed = ", ".join(f"{name} {count}" for name, count in counts.items())
    predicted = sum(not run.counted for run in read_runs())
    return (
        f"- Not judged: {sum(counts.values())} published speeds ({listed}), and {predicted} that are predicted but in "
        "no statistic; [each has its reason](accuracy.md)."
    )


def _stated(runs: Sequence[TimedRun]) -> str:
    """Each run once, and each source once."""
    sizes = [abs(run.unseen_error) for run in runs]
    once = [_share(percentile_by_source(_sizes(runs), share)) for share in (0.5, 0.9)]
    return (
        f"median error {_share(median(sizes))}, 90th percentile {_share(percentile_90(sizes))}; each of "
        f"{len(by_source(_sizes(runs)))} sources once: {' and '.join(once)}"
    )


def _sizes(runs: Sequence[TimedRun]) -> list[Error]:
    return [Error(run.origin, abs(run.unseen_error)) for run in runs]


def _share(share: float) -> str:
    """As the documents write it."""
    return f"{share * 100:.0f} %"


def _factor(run: TimedRun) -> float:
    return max(run.unseen_s / run.measured_s, run.measured_s / run.unseen_s)


def percentile_90(values: Iterable[float]) -> float:
    """The smallest value that nine tenths do not exceed."""
    ordered = sorted(values)
    return ordered[-(-9 * len(ordered) // 10) - 1]


_HEADER = (
    "runs",
    " n",
    " sources",
    " median",
    " 90 %",
    " median, each source once",
    " 90 %, each source once",
    " bias",
    " worst factor",
    " within tolerance",
    " median, all seen",
    " 90 %, all seen",
)


def _subsets(runs: Sequence[TimedRun]) -> Iterable[tuple[str, ...]]:
    yield _row("all", runs)
    for kind, belongs in KINDS.items():
        yield _row(kind, [run for run in runs if belongs(run)])
    for method in ("full", "lora", "qlora"):
        yield _row(f"method {method}", [run for run in runs if run.workload.method == method])
    for name in sorted({run.origin for run in runs}):
        yield _row(name, [run for run in runs if run.origin == name])


def _deepspeed_on_several(run: TimedRun) -> bool:
    return run.cluster.world_size > 1 and run.plan.sharding == "zero"


def _offloads(run: TimedRun) -> bool:
    return run.plan.offload_optimizer != "none"


KINDS: dict[str, Callable[[TimedRun], bool]] = {
    "one GPU": lambda run: run.cluster.world_size == 1 and not _offloads(run),
    "one GPU, offload": lambda run: run.cluster.world_size == 1 and _offloads(run),
    "several GPUs, FSDP": lambda run: run.cluster.world_size > 1 and run.plan.sharding != "zero",
    "several GPUs, FSDP2": lambda run: run.plan.sharding == "fsdp2",
    "several GPUs, DeepSpeed": _deepspeed_on_several,
    "several GPUs, DeepSpeed, no offload": lambda run: _deepspeed_on_several(run) and not _offloads(run),
    "several GPUs, DeepSpeed, offload": lambda run: _deepspeed_on_several(run) and _offloads(run),
}
"""Kinds of runs, by name: FSDP2's are FSDP's too, and DeepSpeed's on several GPUs those with and without offload."""


def _row(name: str, runs: Sequence[TimedRun]) -> tuple[str, ...]:
    errors, seen = [run.unseen_error for run in runs], sorted(abs(run.error) for run in runs)
    sizes = sorted(map(abs, errors))
    return (
        name,
        str(len(runs)),
        str(len({run.origin for run in runs})),
        f"{median(sizes):.1%}",
        f"{percentile_90(sizes):.1%}",
        *(f"{percentile_by_source(_sizes(runs), share):.1%}" for share in (0.5, 0.9)),
        percent(median(errors)),
        f"{max(map(_factor, runs)):.2f}",
        f"{sum(size <= run.tolerance for size, run in zip(map(abs, errors), runs, strict=True)) / len(runs):.0%}",
        f"{median(seen):.1%}",
        f"{percentile_90(seen):.1%}",
    )


def _ranking(group: Group) -> tuple[str, ...]:
    return group.name, str(len(group.runs)), f"{group.tau:+.2f}", f"{group.regret:.1%}"


def _detail(run: TimedRun) -> tuple[str, ...]:
    unseen = percent(run.unseen_error) if run.counted else ""
    return (
        run.source,
        run.name,
        run.label,
        f"{run.measured_s:.3f}",
        f"{run.step_s:.3f}",
        percent(run.error),
        unseen,
    )


def _both_depths(runs: Sequence[TimedRun]) -> Iterable[tuple[str, ...]]:
    sizes: list[tuple[float, float]] = []
    for run, schedule in recorded_schedules(runs):
        played_s = run.played_s(schedule)
        sizes.append((abs(run.error), abs(played_s / run.measured_s - 1)))
        yield (
            run.source,
            run.label,
            f"{run.measured_s:.3f}",
            percent(run.error),
            percent(played_s / run.measured_s - 1),
            percent(played_s / run.step_s - 1),
        )
    closed, played = ([pair[index] for pair in sizes] for index in (0, 1))
    yield "median of sizes", "", "", f"{median(closed):.1%}", f"{median(played):.1%}", ""


def _set_aside(runs: Sequence[TimedRun]) -> Iterable[tuple[str, ...]]:
    found: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        if not run.counted:
            found.setdefault((run.source, run.note), []).append(run.error)
    for (source, note), errors in found.items():
        yield source, str(len(errors)), percent(median(errors)), note


def _unused() -> Iterable[tuple[str, ...]]:
    with (DATA / "published_throughput_unused.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            yield row["source"], row["rows"], row["reason"]
