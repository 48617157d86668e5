"""The closed form of the step's time against the schedule that a dry run of the real engine records, term by term.

    python -m benchmarks.dry_run.schedule_vs_closed_form [NAME ...] [--sample K] [--workers N] [--schedules FOLDER
                                                         [--offline]] [--autoep | --recorded] [--write]

The plans are those of `cases`: eight families x eight strategies x checkpointing x sequences x world sizes x full and
LoRA, and special settings. Each is dry run once, and its schedule is played on several GPUs; the closed form estimates
the same. Both use the same constants, so what differs is what each of them counts and how things wait for each other.

NAME:        only cases whose name has all of these words.
--sample:    K of the cases, a fixed pseudorandom sample (100 by default).
--schedules: keep what the dry runs record in FOLDER, and do not run again what is in it: an interrupted run goes on.
--offline:   run nothing, take the cases that the folder has: so the closed form is mended, in seconds.
--autoep:    the cases of experts that are spread over ranks instead, which need transformers 5.0 to 5.22.
--recorded:  models whose layers are recorded instead.
--write:     put the table into docs/closed-form.md.

Exit 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

from ds_advise.estimators.gpu_catalogue import find_gpu
from ds_advise.estimators.schedule.recorded import Schedule
from ds_advise.estimators.schedule.simulate import simulate
from ds_advise.estimators.time.step_time import estimate_time
from ds_advise.probes.run_errors import DryRunError

from ..document import show
from ..schedule_files import read_schedule, write_schedule
from .cases import EXPERTS_SPREAD, GRID, RECORDED_CASES, SPECIAL, spread
from .compare import Setting
from .forked_dry_runs import answers

GPUS = ("A100-80GB", "H100-80GB", "RTX4090")
"""Links by NVLink twice, and by PCIe."""

MEAN, WORST = 0.05, 0.20
"""Targets of the relative error."""

GROUPS = {
    "gpu compute": "computing",
    "gpu memory": "computing",
    "launch": "host",
    "gpu links": "links",
    "network": "links",
    "pcie": "copies",
    "cpu": "CPU optimizer",
    "nvme": "NVMe",
}
"""Parts of the step by the resource of their terms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A case on a kind of GPU: seconds by group, the critical path's and the closed form's."""

    case: str
    strategy: str
    gpu: str
    scheduled: dict[str, float]
    closed: dict[str, float]

    @property
    def error(self) -> float:
        return sum(self.closed.values()) / sum(self.scheduled.values()) - 1


def _grouped(components: Sequence[tuple[str, float]]) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for resource, seconds in components:
        found[GROUPS[resource]] += seconds
    return dict(found)


def rows(options: argparse.Namespace) -> Iterator[Row]:
    everything = EXPERTS_SPREAD if options.autoep else RECORDED_CASES if options.recorded else (*GRID, *SPECIAL)
    cases = [case for case in everything if all(word in case.name.split() for word in options.names)]
    for setting, schedule in schedules([Setting.of(case) for case in spread(cases, options.sample)], options):
        plan, tokens = setting.plan, setting.workload.seq_len
        for name in GPUS:
            network = 50e9 if setting.cluster.nodes > 1 else None
            cluster = replace(setting.cluster, gpu=find_gpu(name), interconnect_bytes_per_s=network)
            step = simulate(schedule, cluster, tokens_per_step=tokens)
            closed = estimate_time(setting.model, setting.workload, cluster, plan)
            row = Row(
                case=setting.case.name,
                strategy=setting.case.strategy,
                gpu=name,
                scheduled=_grouped([(term.resource, term.seconds) for term in step.time.terms]),
                closed=_grouped([(term.resource, term.seconds) for term in closed.terms]),
            )
            if abs(row.error) > WORST:
                print(_line(row), flush=True)
            yield row


def schedules(settings: Sequence[Setting], options: argparse.Namespace) -> Iterator[tuple[Setting, Schedule]]:
    """What each setting's dry run records; the folder keeps it."""

    def file_of(setting: Setting) -> Path | None:
        folder: Path | None = options.schedules
        return folder and folder / f"{setting.case.name.replace(' ', '_')}.json.gz"

    known = {setting.case.name: file for setting in settings if (file := file_of(setting)) and file.exists()}
    for setting in settings:
        if setting.case.name in known:
            yield setting, read_schedule(known[setting.case.name])
    unknown = [] if options.offline else [setting for setting in settings if setting.case.name not in known]
    found = answers([setting.dry_run for setting in unknown], workers=options.workers)
    for setting, answer in zip(unknown, found, strict=True):
        if isinstance(answer, DryRunError) or answer.schedule is None:
            print(f"{setting.case.name}: {answer}", flush=True)
            continue
        if file := file_of(setting):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_schedule(file, answer.schedule)
        yield setting, answer.schedule


def _line(row: Row) -> str:
    groups = {*row.scheduled, *row.closed}
    parts = (
        f"{group} {row.closed.get(group, 0.0) * 1e3:.1f} for {row.scheduled.get(group, 0.0) * 1e3:.1f}"
        for group in sorted(groups)
    )
    return f"{row.case} {row.gpu}: {row.error:+.0%} (ms: {', '.join(parts)})"


def report(found: Sequence[Row]) -> str:
    """By strategy: the error of the step, and of each group as a share of the step."""
    groups = list(dict.fromkeys(GROUPS.values()))
    lines = [
        f"| strategy | n | mean | worst | {' | '.join(groups)} |",
        f"|---|---:|---:|---:|{'---:|' * len(groups)}",
    ]
    by_strategy: dict[str, list[Row]] = defaultdict(list)
    for row in found:
        by_strategy[row.strategy].append(row)
    for name, own in [*by_strategy.items(), ("all", list(found))]:
        worst = max((row.error for row in own), key=abs)
        shares = [
            mean(
                (row.closed.get(group, 0.0) - row.scheduled.get(group, 0.0)) / sum(row.scheduled.values())
                for row in own
            )
            for group in groups
        ]
        lines.append(
            f"| {name} | {len(own)} | {mean(abs(row.error) for row in own):.1%} | {worst:+.0%} | "
            + " | ".join(f"{share:+.1%}" for share in shares)
            + " |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="schedule_vs_closed_form", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--sample", type=int, default=100, metavar="K")
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    parser.add_argument("--schedules", type=Path, metavar="FOLDER")
    parser.add_argument("--offline", action="store_true")
    parser.add_argument("--autoep", action="store_true")
    parser.add_argument("--recorded", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    found = list(rows(options))
    show("closed-form.md", "dry_run/schedule_vs_closed_form", report(found), writes=options.write)
    errors = [abs(row.error) for row in found]
    return int(mean(errors) > MEAN or max(errors) > WORST)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
