"""Host time of the real engine over a grid of model families, and the unit costs that follow from it.

    python -m benchmarks.probes.host_time --measure qwen2 opt    # these families into benchmarks/data/host_time.csv
                                                                 # (each 1 to 2 minutes on an idle core)
    python -m benchmarks.probes.host_time                        # unit costs solved from the file, residuals, committed

A case is one micro batch of one structure at two depths. Its seconds are modelled as counts times unit costs
(`estimators/time/host_costs.py`), counts being those of a dispatch mode in the same run; unit costs are the
non-negative least squares of the relative errors. Every family is also predicted by costs that the others gave.

Seconds are brought to the reference core by the single-thread score that was measured around each case, so that what
else the machine did meanwhile hardly matters.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from statistics import mean, median
from time import thread_time
from typing import Any

from ds_advise.advisor.question.model_source import model_shape
from ds_advise.estimators.hardware import HOST_SCORE_S
from ds_advise.estimators.time.host_costs import HostCosts
from ds_advise.estimators.time.host_time import host_work
from ds_advise.estimators.workload import Software, Workload
from ds_advise.probes.benchmark_rank import HostScore
from ds_advise.probes.machine import cpu_model

from .host_time_cases import PHASES, HostCounts, HostTime, HostTimeCase, defaults, host_times, narrow

DATA = Path(__file__).parents[1] / "data" / "host_time.csv"

FAMILIES = ("qwen2", "gemma2", "phi3", "opt", "gpt2", "falcon", "gpt_neox", "qwen3_moe")
DEPTHS, WIDTH = (2, 5), 16
THOROUGH = "qwen2"
"""The family with every kind of case; the other families have those that differ most."""

_COUNTS = tuple(field.name for field in fields(HostCounts))
_SECONDS = ("forward_s", "backward_s", "last_backward_s", "step_s")
_LARGE = 10**8


def cases(family: str, *, width: int = WIDTH) -> Iterator[HostTimeCase]:
    """What is measured of a family."""
    for layers in DEPTHS:
        plain = HostTimeCase(model={"model_type": family}, layers=layers, zero_stage=0, width=width)
        adapted = replace(plain, lora_targets=("all-linear",))
        yield plain
        yield replace(plain, checkpointing="non-reentrant")
        yield replace(plain, zero_stage=3, checkpointing="non-reentrant")
        yield adapted
        yield replace(adapted, zero_stage=2)
        yield replace(adapted, zero_stage=3, checkpointing="non-reentrant")
        if family != THOROUGH:
            continue
        yield replace(plain, zero_stage=1)
        yield replace(plain, zero_stage=2)
        yield replace(plain, zero_stage=3)
        yield replace(adapted, zero_stage=3)
        yield replace(adapted, checkpointing="non-reentrant")
        yield replace(plain, checkpointing="reentrant")
        yield replace(plain, zero_stage=3, checkpointing="reentrant")
        yield replace(plain, zero_stage=2, reduce_bucket=_LARGE)
        yield replace(plain, zero_stage=3, reduce_bucket=_LARGE)
        yield replace(plain, zero_stage=3, gathers=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A measured case."""

    family: str
    case: HostTimeCase
    time: HostTime

    @property
    def label(self) -> str:
        case = self.case
        words = [self.family, f"x{case.layers}", f"stage {case.zero_stage}", "lora" if case.lora_targets else "full"]
        words += [case.checkpointing] if case.checkpointing != "none" else []
        words += ["large bucket"] if case.reduce_bucket else []
        words += ["no gathers"] if not case.gathers else []
        words += [f"width {case.width}"] if case.width != WIDTH else []
        return " ".join(words)


def measure(families: Sequence[str], width: int) -> list[Row]:
    rows = []
    for family in families:
        chosen = list(cases(family, width=width))
        rows += [
            Row(family=family, case=case, time=time) for case, time in zip(chosen, host_times(chosen), strict=True)
        ]
    return rows


def write(rows: Sequence[Row]) -> None:
    names = [f"{phase}: {count}" for phase in PHASES for count in _COUNTS]
    versions = {name: version(name) for name in ("torch", "deepspeed", "transformers", "peft")}
    cpu = cpu_model()
    with DATA.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((*_CASE, *_SECONDS, "score_s", "parameters", *names, "cpu", *versions))
        for row in rows:
            case, time = row.case, row.time
            counts = [getattr(time.counts.get(phase, HostCounts()), count) for phase in PHASES for count in _COUNTS]
            described = (row.family, *(_text(getattr(case, name)) for name in _CASE[1:]))
            seconds = [f"{getattr(time, name):.6f}" for name in (*_SECONDS, "score_s")]
            writer.writerow((*described, *seconds, time.parameters, *counts, cpu, *versions.values()))


_CASE = ("family", "layers", "zero_stage", "lora_targets", "checkpointing", "reduce_bucket", "gathers", "width")


def _text(value: Any) -> str:
    return " ".join(value) if isinstance(value, tuple) else "" if value is None else str(value)


def read() -> list[Row]:
    with DATA.open(newline="", encoding="utf-8") as file:
        return [_row(row) for row in csv.DictReader(file)]


def _row(row: dict[str, str]) -> Row:
    found = {phase: HostCounts(**{count: int(row[f"{phase}: {count}"]) for count in _COUNTS}) for phase in PHASES}
    case: dict[str, Any] = {
        "layers": int(row["layers"]),
        "zero_stage": int(row["zero_stage"]),
        "lora_targets": tuple(row["lora_targets"].split()) or None,
        "checkpointing": row["checkpointing"],
        "reduce_bucket": int(row["reduce_bucket"]) if row["reduce_bucket"] else None,
        "gathers": row["gathers"] == "True",
        "width": int(row["width"]),
    }
    return Row(
        family=row["family"],
        case=HostTimeCase(model={"model_type": row["family"]}, **case),
        time=HostTime(
            counts=found,
            parameters=int(row["parameters"]),
            score_s=float(row["score_s"]),
            **{name: float(row[name]) for name in _SECONDS},
        ),
    )


UNKNOWNS = (
    "operation_s",
    "view_s",
    "module_call_s",
    "backward_operation_s",
    "backward_view_s",
    "recomputed_operation_s",
    "checkpoint_s",
    "visit_forward_s",
    "visit_backward_s",
    "gather_s",
    "bucketed_gradient_s",
    "partitioned_gradient_s",
    "bucket_s",
    "fold_s",
    "micro_batch_s",
    "engine_step_s",
    "step_operation_s",
)
"""The unit costs that are solved for, fields of `HostCosts`."""


def equations(row: Row) -> Iterator[tuple[str, dict[str, float], float]]:
    """Each measured pass of a case: its name, the counts that the unit costs are multiplied by, and its seconds on the
    reference core."""
    time, stage, on_reference = row.time, row.case.zero_stage, HOST_SCORE_S / row.time.score_s
    forward = _forward(row, time.counts["forward"])
    forward["micro_batch_s"] = 1
    yield "forward", forward, time.forward_s * on_reference
    again = time.counts.get("recompute", HostCounts())
    for phase, seconds in (("backward", time.backward_s), ("last backward", time.last_backward_s)):
        counts = time.counts[phase]
        found = _forward(row, again) if again.calls else {}
        if again.calls:
            found["checkpoint_s"] = row.case.layers
        if row.case.checkpointing == "non-reentrant":
            found["recomputed_operation_s"] = again.kernels
        _add(found, backward_operation_s=counts.kernels, backward_view_s=counts.views)
        _add(
            found, backward_operation_s=counts.hook_kernels, backward_view_s=counts.hook_views, bucket_s=counts.buckets
        )
        if stage == 3:
            calls = time.counts["forward"].calls
            _add(found, visit_backward_s=calls, gather_s=counts.gathered, partitioned_gradient_s=counts.reduced)
        elif counts.buckets or counts.hook_kernels:
            _add(found, bucketed_gradient_s=counts.reduced)
        yield phase, found, seconds * on_reference
    step = time.counts["step"]
    yield (
        "step",
        {"step_operation_s": step.kernels + step.views, "engine_step_s": 1},
        time.step_s * on_reference,
    )


def _forward(row: Row, counts: HostCounts) -> dict[str, float]:
    found: dict[str, float] = {}
    _add(found, operation_s=counts.kernels, view_s=counts.views, module_call_s=counts.calls)
    _add(found, backward_operation_s=counts.hook_kernels, backward_view_s=counts.hook_views)
    if row.case.zero_stage == 3:
        _add(found, visit_forward_s=counts.calls, gather_s=counts.gathered)
    if row.case.lora_targets and row.family in _FOLDS:
        _add(found, fold_s=_FOLDS[row.family] * row.case.layers)
    return found


_FOLDS = {"qwen3_moe": 3}
"""Weights of a layer that peft folds: the router and two of fused experts."""


def _add(found: dict[str, float], **counts: float) -> None:
    for name, count in counts.items():
        found[name] = found.get(name, 0.0) + count


APART = {"view_s": 1.6e-6, "backward_view_s": 1.0e-6}
"""Timed in a loop by themselves (`views`): in a model they are as frequent as other operations, and no least squares
tells the two apart."""


def views() -> dict[str, float]:
    """Seconds of a view with and without autograd, on the reference core."""
    import torch

    score, values = HostScore(), torch.ones(1, 2, 8, requires_grad=True)
    found = {}
    for name, recorded in (("view_s", True), ("backward_view_s", False)):
        times = []
        for _ in range(9):
            on_reference = HOST_SCORE_S / score.measure()
            with torch.set_grad_enabled(recorded):
                started = thread_time()
                for _ in range(1000):
                    values.transpose(1, 2)
                times.append((thread_time() - started) / 1000 * on_reference)
        found[name] = median(times)
    return found


def solve(rows: Sequence[Row]) -> HostCosts:
    """Unit costs of the least squares of relative errors, none negative, by descent in one unknown after the other;
    views cost what they take apart."""
    terms = [
        {name: count / seconds for name, count in counts.items() if count}
        for row in rows
        for _, counts, seconds in equations(row)
    ]
    products = {
        name: {other: sum(term[name] * term.get(other, 0.0) for term in terms if name in term) for other in UNKNOWNS}
        for name in UNKNOWNS
    }
    wanted = {name: sum(term.get(name, 0.0) for term in terms) for name in UNKNOWNS}
    found = {name: getattr(HostCosts(), name) for name in UNKNOWNS} | APART  # what no row tells of stays
    for _ in range(SWEEPS):
        for name in (name for name in UNKNOWNS if name not in APART):
            own = products[name]
            if own[name]:
                others = sum(own[other] * found[other] for other in UNKNOWNS if other != name)
                found[name] = max(0.0, (wanted[name] - others) / own[name])
    return HostCosts()._replace(**found)


SWEEPS = 4000
"""Enough that costs change by less than a thousandth."""


def predicted(row: Row, costs: HostCosts) -> dict[str, tuple[float, float]]:
    """(measured, predicted) seconds of each pass."""
    return {
        name: (seconds, sum(count * getattr(costs, cost) for cost, count in counts.items()))
        for name, counts, seconds in equations(row)
    }


def error(row: Row, costs: HostCosts) -> float:
    """Of a whole micro batch that is not the last of its step."""
    passes = predicted(row, costs)
    measured, found = (sum(passes[name][side] for name in ("forward", "backward")) for side in (0, 1))
    return found / measured - 1


def closed_form_error(row: Row, costs: HostCosts) -> float:
    """The same with the counts that the closed form derives, of a CPU that launches nothing."""
    case, stage = row.case, row.case.zero_stage
    shape = model_shape(_described(case), name=row.family)
    software = Software(reentrant=case.checkpointing == "reentrant")
    workload = Workload(method="lora" if case.lora_targets else "full", software=software)
    threshold = 10 * case.width if case.gathers else _LARGE
    work, costs = host_work(shape, workload, threshold), costs._replace(launch_s=0.0)
    again = work.recompute_s(costs, stage) if case.checkpointing != "none" else 0.0
    buckets = row.time.counts["backward"].buckets if stage >= 2 else 0
    found = costs.micro_batch_s + work.forward_s(costs, stage) + work.backward_s(costs, stage, buckets) + again
    if stage >= 2 and not buckets:
        found += work.parameters * (costs.partitioned_s if stage == 3 else costs.bucketed_s)
    measured = sum(seconds for name, (seconds, _) in predicted(row, costs).items() if name in ("forward", "backward"))
    return found / measured - 1


def _described(case: HostTimeCase) -> dict[str, Any]:
    return narrow(defaults(case.model), layers=case.layers, width=case.width)


def report(rows: Sequence[Row]) -> None:
    costs = solve(rows)
    print("unit cost, us                solved  committed")
    for name in UNKNOWNS:
        print(f"  {name:26}{getattr(costs, name) * 1e6:9.2f}{getattr(HostCosts(), name) * 1e6:11.2f}")
    families = list(dict.fromkeys(row.family for row in rows))
    others = {family: solve([row for row in rows if row.family != family]) for family in families}
    print(f"\n{'case':58} ms measured   all  left out  closed form")
    kinds: dict[str, list[float]] = {"all": [], "left out": [], "closed form": []}
    for row in rows:
        errors = (error(row, costs), error(row, others[row.family]), closed_form_error(row, HostCosts()))
        for kind, found in zip(kinds, errors, strict=True):
            kinds[kind].append(abs(found))
        passes = predicted(row, costs)
        measured = passes["forward"][0] + passes["backward"][0]
        print(f"{row.label:58}{measured * 1e3:12.1f}" + "".join(f"{found:+9.0%}" for found in errors))
    for kind, sizes in kinds.items():
        within = sum(size <= 0.1 for size in sizes) / len(sizes)
        print(f"{kind}: mean {mean(sizes):.1%}, worst {max(sizes):.1%}, within 10 %: {within:.0%}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.probes.host_time", description=__doc__.splitlines()[0])
    parser.add_argument("--measure", nargs="+", choices=FAMILIES, default=[], help="families to measure again")
    parser.add_argument("--width", type=int, default=WIDTH, help="half of it shows what arithmetic takes")
    asked = parser.parse_args()
    if asked.measure:
        rows = measure(asked.measure, asked.width)
        kept = [row for row in read() if row.family not in asked.measure] if DATA.exists() else []
        if asked.width == WIDTH:
            write(sorted(kept + rows, key=lambda row: FAMILIES.index(row.family)))
        else:
            report(rows)
            return 0
    report(read())
    return 0


if __name__ == "__main__":
    sys.exit(main())
