"""The recorded schedule against reality: real trainings on this machine's CPU, and their dry runs played on it.

    ds-advise bench --device cpu
    python -m benchmarks.dry_run.schedule_on_cpu ANSWERS [WORD ...] [--write]

Two models x five strategies x full and LoRA x one and four micro batches, two ranks over gloo; with WORDs those whose
name has all of them ("wide zero2 lora x4"). A case is trained several times, with all others in between, and its time
is the median. ANSWERS keeps what the real runs took, and what is in it is not run again, so an interrupted run goes on.
Times are wall times: run it on a machine that does nothing else, for three quarters of an hour. The speeds of the CPU
are those that `ds-advise bench` measured. --write puts the table into docs/dry-run.md. Exit 1 when a target is missed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median

from ds_advise.advisor.question.this_machine import cpu_cluster
from ds_advise.ds_configs.presets import plan_for
from ds_advise.estimators.models.families import shape_from_config
from ds_advise.estimators.plan import Strategy
from ds_advise.estimators.time.step_time import estimate_time
from ds_advise.estimators.workload import Method, Workload
from ds_advise.probes.dry_run.run import dry_run, simulated_step
from ds_advise.probes.real_run.run import probe
from ds_advise.probes.run import Run

from ..document import show
from ..probes.cpu_probes import LARGER, MODELS

RANKS = 2
STEPS = {"wide": 24, "larger": 6}
"""Optimizer steps of a run, by model: ZeRO-3 is slower until it has traced the model and gloo's links are open, and a
step of the larger one takes up to half a minute."""

TRAININGS = {"wide": 3, "larger": 1}
"""Trainings of a case, by model: short steps vary by a third from one to the next where the cores are virtual."""

STRATEGIES: tuple[Strategy, ...] = ("ddp", "zero1", "zero2", "zero2-offload", "zero3")
METHODS: tuple[Method, ...] = ("full", "lora")
MEDIAN, WORST = 0.10, 0.25
"""Targets of the relative error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One training: a model under a strategy's preset."""

    model: str
    strategy: Strategy
    method: Method
    micro_batches: int

    @property
    def name(self) -> str:
        return f"{self.model} {self.strategy} {self.method} x{self.micro_batches}"

    def run(self) -> Run:
        description, seq_len = (MODELS | LARGER)[self.model]
        shape, cluster = shape_from_config(description, name=self.model), cpu_cluster(RANKS)
        workload = Workload(method=self.method, seq_len=seq_len, framework="deepspeed")
        plan = plan_for(
            self.strategy,
            shape,
            workload,
            cluster,
            micro_batch_size=1,
            gradient_accumulation_steps=self.micro_batches,
            gradient_checkpointing=True,
        )
        return Run.from_plan(plan, shape, workload, cluster, description=description)


CASES = tuple(
    Case(model=model, strategy=strategy, method=method, micro_batches=micro_batches)
    for model, method, micro_batches, strategy in product(("wide", "larger"), METHODS, (1, 4), STRATEGIES)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A case: the median step of the slower rank, and what was predicted of it."""

    case: Case
    measured_s: float
    played_s: float
    closed_s: float

    @property
    def error(self) -> float:
        return self.played_s / self.measured_s - 1


def measure(file: Path, cases: Sequence[Case]) -> dict[str, float]:
    """Seconds of a step by case, from the file and from trainings that are run now and added to it."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    known: dict[str, list[float]] = {case.name: [] for case in cases}
    for values in map(json.loads, lines):
        known.setdefault(values["case"], []).append(values["step_s"])
    for number, case in product(range(max(TRAININGS.values())), cases):
        if number < TRAININGS[case.model] and len(known[case.name]) <= number:
            result = probe(case.run(), device="cpu", steps=STEPS[case.model])
            if result.failure is not None:
                sys.exit(f"{case.name}: {result.failure.kind}: {result.failure.message}")
            known[case.name].append(result.step_s)
            with file.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps({"case": case.name, "step_s": result.step_s, "load": result.load}) + "\n")
            print(f"{case.name}: {result.step_s:.3f} s, load {result.load:.1f}", flush=True)
    return {case.name: median(known[case.name]) for case in cases}


def rows(file: Path, cases: Sequence[Case]) -> Iterator[Row]:
    known = measure(file, cases)
    for case in cases:
        run = case.run()
        plan = run.plan()
        assert plan is not None and run.shape is not None
        step = simulated_step(dry_run(run), run.cluster, seq_len=run.workload.seq_len)
        assert step is not None
        closed = estimate_time(run.shape, run.workload, run.cluster, plan)
        row = Row(case=case, measured_s=known[case.name], played_s=step.time.step_s, closed_s=closed.step_s)
        print(f"{case.name}: measured {row.measured_s:.3f} s, schedule {row.error:+.0%}", flush=True)
        yield row


def report(found: Sequence[Row]) -> str:
    lines = [
        "| model | strategy | method | micro batches | measured s | schedule | closed form |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    for row in found:
        case = row.case
        lines.append(
            f"| {case.model} | {case.strategy} | {case.method} | {case.micro_batches} | {row.measured_s:.3f} | "
            f"{row.error:+.0%} | {row.closed_s / row.measured_s - 1:+.0%} |"
        )
    errors = [abs(row.error) for row in found]
    closed = [abs(row.closed_s / row.measured_s - 1) for row in found]
    lines.append(f"| median of sizes | | | | | {median(errors):.0%} | {median(closed):.0%} |")
    lines.append(f"| worst | | | | | {max(errors):.0%} | {max(closed):.0%} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    file, *words = [argument for argument in arguments if argument != "--write"] or sys.exit(__doc__)
    found = list(rows(Path(file), [case for case in CASES if set(words) <= set(case.name.split())]))
    if not found:
        sys.exit("no case has all of these words")
    show("dry-run.md", "dry_run/schedule_on_cpu", report(found), writes="--write" in arguments)
    errors = [abs(row.error) for row in found]
    return int(median(errors) > MEDIAN or max(errors) > WORST)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
