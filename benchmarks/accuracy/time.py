"""Time: published throughput against `estimate_time`, run by run and group by group.

The error that counts is that of a run whose origin no constant was fitted on; under the committed constants it stands
beside.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from statistics import median

from .. import seed_ranking
from ..numbers import printed
from . import questions, software, spread
from .between_sources import Error, by_source, coverage
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
            spread.software_table(counted),
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
        notes=(
            f"Targets: median at most {MEDIAN_TARGET:.0%}, 90th percentile at most {P90_TARGET:.0%}; in every group "
            f"tau at least {TAU_TARGET} and a regret of at most {REGRET_TARGET:.0%}. {len(ranked) - len(missed)} of "
            f"{len(ranked)} groups meet theirs, {sum(group.regret <= REGRET_TARGET for group in ranked)} the regret. "
            f"Pairs that were measured within {TIE:.0%} are not ranked. A factor is the larger of predicted over "
            "measured and its inverse; the last two columns are under the committed constants, fitted on all runs. "
            "Each source once: a run's weight is 1 / the runs of its source in the subset; a source is a repository or "
            "a page.",
        ),
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


def figures() -> dict[str, dict[str, str]]:
    """The groups of docs/numbers.json on step times: of all runs, and of each group of software."""
    runs = read_runs()
    counted = [run for run in runs if run.counted]
    ranked = groups(counted)
    several = [run for run in counted if _deepspeed_on_several(run)]
    held = coverage(spread.errors(counted)["offload"]).by_source
    found = {
        "step_offload": _stated(spread.by_kind(counted)["offload"]) | {"held": printed(held)},
        "not_judged": _not_judged() | {"predicted": str(len(runs) - len(counted))},
        "schedule": _schedule_figures(runs),
        "groups": {
            "all": str(len(ranked)),
            "met": str(sum(group.regret <= REGRET_TARGET for group in ranked)),
            "regret": printed(REGRET_TARGET),
        },
        "order": _order(),
        "zeropp_steps": _stated([run for run in counted if run.plan.zero_quantized_weights]),
        "fsdp2_steps": _stated([run for run in counted if run.plan.sharding == "fsdp2"]),
    }
    for name, belongs in software.SELECTIONS.items():
        found[f"step{name}"] = _stated([run for run in counted if belongs(run.source)])
        found[f"step_deepspeed{name}"] = _stated([run for run in several if belongs(run.source)])
    seen = [abs(run.error) for run in counted]
    found["step"] |= {
        "median_seen": printed(median(seen)),
        "p90_seen": printed(percentile_90(seen)),
        "gpus": str(max(run.cluster.world_size for run in counted)),
    }
    found["step_deepspeed"]["factor"] = f"{max(map(_factor, several)):.1f}"
    return found


_NOT_JUDGED = {
    "lengths": ("length", "batch", "packed"),
    "activations": ("activations",),
    "kernels": (
        "kernels",
        "adapter",
        "bitsandbytes",
        "optimizer",
        "torch.compile",
        "tiled",
    ),
    "parallelism": ("parallelism", "ZeRO++", "ZenFlow", "FSDP"),
    "links": ("lanes",),
}
"""Words in the reasons of rows that are not predicted, by what they are called; the first that is found counts."""


def _order() -> dict[str, str]:
    """Groups of the project's first runs, and those whose fastest plan is found."""
    verdicts = seed_ranking.judge(seed_ranking.read_runs())
    return {"groups": str(len(verdicts)), "found": str(sum(verdict.passes for verdict in verdicts))}


def _not_judged() -> dict[str, str]:
    """Published speeds that are not predicted, by reason."""
    counts = dict.fromkeys([*_NOT_JUDGED, "others"], 0)
    for _, rows, reason in _unused():
        found = (name for name, words in _NOT_JUDGED.items() if any(word in reason for word in words))
        counts[next(found, "others")] += int(rows)
    return {name: str(count) for name, count in (counts | {"all": sum(counts.values())}).items()}


def _schedule_figures(runs: Sequence[TimedRun]) -> dict[str, str]:
    """Median errors of the closed form and of the simulated schedule on the same runs, and how far the two differ."""
    found = [(run, run.played_s(schedule)) for run, schedule in recorded_schedules(runs)]
    apart = [abs(played_s / run.step_s - 1) for run, played_s in found]
    return {
        "runs": str(len(found)),
        "closed_form": printed(median(abs(run.error) for run, _ in found)),
        "schedule": printed(median(abs(played_s / run.measured_s - 1) for run, played_s in found)),
        "apart": printed(median(apart)),
        "apart_worst": printed(max(apart)),
    }


def _stated(runs: Sequence[TimedRun]) -> dict[str, str]:
    """Median and 90th percentile, each run once and each source once; the number alone where there is no run."""
    if not runs:
        return {"runs": "0"}
    sizes = _sizes(runs)
    return {
        "runs": str(len(runs)),
        "sources": str(len(by_source(sizes))),
        "median": printed(median(size.value for size in sizes)),
        "worst": printed(max(size.value for size in sizes)),
        "p90": printed(percentile_90(size.value for size in sizes)),
        "median_by_source": printed(percentile_by_source(sizes, 0.5)),
        "p90_by_source": printed(percentile_by_source(sizes, 0.9)),
    }


def _sizes(runs: Sequence[TimedRun]) -> list[Error]:
    return [Error(run.origin, abs(run.unseen_error)) for run in runs]


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
