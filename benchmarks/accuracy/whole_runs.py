"""Whole trainings with a published duration, against `job_duration`.

    python -m benchmarks.accuracy.whole_runs            # one line a run
    python -m benchmarks.accuracy --write               # the table of docs/job.md, among the rest

`data/whole_runs.csv` has the runs. One that is `like` a run of `timed_runs` (its source and row) is that run as a job:
its step is the one predicted under constants fitted on other origins. Others say their plan; no constant was fitted on
them, unless `like` names an origin, whose runs' median of left out over committed then corrects the step. What a source
leaves open is assumed, as `note` states.

`counts` states what the published time covers: all, the steps alone, or an epoch with its evaluation and checkpoint.
`evaluated` samples were evaluated one by one. `lengths` "alpaca" are those of
`data/alpaca_lengths.csv`, read off the histogram in tloen/alpaca-lora's lengths.ipynb (52,002 rows with their prompt,
LLaMA's tokenizer; its bars add up to 126 tokens a row for 128 in the notebook's curve); "grouped": batches of equal
lengths.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal, cast

from ds_advise.estimators.time.job import Job, JobDuration, SamplesOfLength, job_duration
from ds_advise.estimators.time.step_time import estimate_time

from ..document import put
from ..numbers import printed
from .timed_runs import DATA, TimedRun, read_runs, run_of

_SHORTEST_MEAN = 8
_UNSAID = {
    "offload_optimizer": "none",
    "offload_param": "none",
    "adapters_fp32": "no",
    "plan": "",
    "value": "1",
    "unit": "s/step",
    "tflop_per_sample": "",
    "group": "",
    "tolerance": "0.25",
    "counted": "yes",
    "reason": "",
}
"""Columns of published_throughput.csv that no whole run needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRun:
    """One published training from start to end."""

    run: TimedRun
    source: str
    name: str
    job: Job
    unseen_ratio: float
    """The step under constants that have not seen the origin, over the committed one."""
    counts: Literal["all", "steps", "epoch"]
    measured_s: float
    set_aside: str
    """Why the run is in no median, where the estimators lack something that decided its time; "" for most."""
    note: str

    @property
    def duration(self) -> JobDuration:
        run = self.run
        time = estimate_time(run.model, run.workload, run.cluster, run.plan)
        terms = tuple(term._replace(seconds=term.seconds * self.unseen_ratio) for term in time.terms)
        return job_duration(run.model, run.workload, run.cluster, run.plan, replace(time, terms=terms), self.job)

    @property
    def predicted_s(self) -> float:
        found = self.duration
        if self.counts == "all":
            return found.duration_s
        return found.training_s + (found.evaluation_s + found.saving.total_s if self.counts == "epoch" else 0.0)

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1

    @property
    def is_within(self) -> bool:
        """Whether the measured time lies in the 80 % interval."""
        spread = self.duration.spread
        assert spread is not None
        return spread.low <= self.predicted_s / self.measured_s <= spread.high


def read_whole_runs() -> list[WholeRun]:
    known = {f"{run.source}|{run.name}": run for run in read_runs()}
    with (DATA / "whole_runs.csv").open(newline="", encoding="utf-8") as file:
        return [_whole_run(row, known) for row in csv.DictReader(file)]


def _whole_run(row: dict[str, str], known: dict[str, TimedRun]) -> WholeRun:
    run = known.get(row["like"]) or run_of({**_UNSAID, **row})
    return WholeRun(
        run=run,
        source=row["source"],
        name=row["row"],
        job=_job(row, run.workload.seq_len),
        unseen_ratio=_unseen_ratio(row["like"], run, known.values()),
        counts=cast(Literal["all", "steps", "epoch"], row["counts"]),
        measured_s=float(row["measured_s"]),
        set_aside=row["set_aside"],
        note=row["note"],
    )


def _unseen_ratio(like: str, run: TimedRun, known: Iterable[TimedRun]) -> float:
    if not like:
        return 1.0
    if "|" in like:  # the run itself; one that no fit has seen has no other prediction
        return 1.0 if run.left_out_s is None else run.left_out_s / run.step_s
    same = (each for each in known if each.origin == like and each.cluster.gpu.name == run.cluster.gpu.name)
    return median(each.left_out_s / each.step_s for each in same if each.left_out_s is not None)


def _job(row: dict[str, str], seq_len: int) -> Job:
    epochs = float(row["epochs"])
    if row["tokens"]:
        return Job(tokens=int(row["tokens"]), epochs=epochs)
    samples = int(row["samples"])
    if not row["lengths"]:
        evaluated = int(row["evaluated"] or 0)
        return Job(samples=samples, epochs=epochs, evaluation_samples=evaluated, evaluation_batch=1)
    lengths = tuple(alpaca(seq_len, scaled=seq_len > 512))
    counted = sum(each.samples for each in lengths)
    if "grouped" in row["lengths"]:
        mean = round(sum(each.tokens * each.samples for each in lengths) / counted / _SHORTEST_MEAN) * _SHORTEST_MEAN
        lengths = (SamplesOfLength(mean, counted),)
    return Job(samples=counted, epochs=epochs * samples / counted, lengths=lengths)


def alpaca(seq_len: int, *, scaled: bool) -> Iterator[SamplesOfLength]:
    """The lengths of Alpaca's rows; scaled: the longest has `seq_len` tokens, otherwise longer ones are cut."""
    with (DATA / "alpaca_lengths.csv").open(newline="", encoding="utf-8") as file:
        rows = [(int(row["tokens"]), int(row["samples"])) for row in csv.DictReader(file)]
    factor = seq_len / rows[-1][0] if scaled else 1.0
    for tokens, samples in rows:
        yield SamplesOfLength(min(round(tokens * factor), seq_len), samples)


def table(runs: list[WholeRun]) -> str:
    """Medians by source and of all, and those that are set aside, as Markdown."""
    counted = _by_source(run for run in runs if not run.set_aside)
    aside = _by_source(run for run in runs if run.set_aside)
    lines = [
        "| source | runs | measured | median error | in the interval | what is known of them |",
        "|---|---:|---:|---:|---:|---|",
        *(_row(source, own, own[0].note) for source, own in counted.items()),
    ]
    every = [run for own in counted.values() for run in own]
    of_sources = median(_median_error(own) for own in counted.values())
    lines.append(f"| **all** | {_figures(every)} | every source counted once: median {printed(of_sources)} |")
    lines += [_row(f"*set aside:* {source}", own, own[0].set_aside) for source, own in aside.items()]
    return "\n".join(lines) + "\n"


def figures() -> dict[str, dict[str, str]]:
    """The group of docs/numbers.json on whole trainings."""
    runs = read_whole_runs()
    counted = [run for run in runs if not run.set_aside]
    sources = [_median_error(own) for own in _by_source(counted).values()]
    return {
        "job": {
            "runs": str(len(counted)),
            "sources": str(len(sources)),
            "median": printed(_median_error(counted)),
            "median_by_source": printed(median(sources)),
            "within": str(sum(run.is_within for run in counted)),
            "set_aside": str(len(runs) - len(counted)),
        }
    }


def _by_source(runs: Iterable[WholeRun]) -> dict[str, list[WholeRun]]:
    found: dict[str, list[WholeRun]] = {}
    for run in runs:
        found.setdefault(run.source, []).append(run)
    return found


def _row(source: str, runs: list[WholeRun], words: str) -> str:
    return f"| {source} | {_figures(runs)} | {words} |"


def _figures(runs: list[WholeRun]) -> str:
    least, most = (_hours(choose(run.measured_s for run in runs)) for choose in (min, max))
    span = least if len(runs) == 1 else f"{least} to {most}"
    return (
        f"{len(runs)} | {span} | {printed(_median_error(runs))} | {sum(run.is_within for run in runs)} of {len(runs)}"
    )


def _hours(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.0f} h"


def _median_error(runs: list[WholeRun]) -> float:
    return median(abs(run.error) for run in runs)


def main() -> int:
    for run in read_whole_runs():
        print(
            f"{run.source[:30]:30} {run.name:16} {run.run.label[:70]:70} {run.measured_s:10,.0f} s "
            f"{run.predicted_s:10,.0f} s {run.error:+.0%}"
        )
    return 0


def write() -> None:
    """Bring the table of docs/job.md up to date."""
    put("job.md", "accuracy/whole_runs", table(read_whole_runs()))


if __name__ == "__main__":
    sys.exit(main())
