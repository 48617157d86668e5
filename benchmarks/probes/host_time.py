"""The unit costs of the host (`estimators/time/host_costs.py`), solved from measured passes of the real engine.

    python -m benchmarks.probes.host_time    # unit costs solved from data/host_time.csv and committed, and their errors

Each row is one micro batch of a narrow model on one core (AMD EPYC, Zen 5): bf16, four tokens, rank 0 of eight whose
collectives return at once. Seconds are medians over seven steps, in which the process had the core; a dispatch mode
counted the operations, module calls and hooks of the same passes. Seconds are counts times unit costs, which are the
non-negative least squares of the relative errors. Each family is also predicted by costs that the others gave, and by
the counts that the closed form derives.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from ds_advise.advisor.question.model_source import model_shape
from ds_advise.estimators.hardware import HOST_SCORE_S
from ds_advise.estimators.time.host_costs import HostCosts
from ds_advise.estimators.time.host_time import host_work
from ds_advise.estimators.workload import Software, Workload

DATA = Path(__file__).parents[1] / "data" / "host_time.csv"
_RESIDENT = 10**8
"""ZeRO-3's persistence threshold of a row without gathers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A measured case."""

    family: str
    layers: int
    zero_stage: int
    lora: bool
    checkpointing: str
    gathers: bool
    """Whether stage 3 gathers the weights of linear layers; otherwise every rank keeps all of them."""
    width: int
    seconds: Mapping[str, float]
    """By pass, on the reference core."""
    counts: Mapping[str, Counter[str]]
    """By pass; the last backward pass of a step reduces gradients that the others only sum."""

    @property
    def label(self) -> str:
        words = [self.family, f"x{self.layers}", f"stage {self.zero_stage}", "lora" if self.lora else "full"]
        words += [self.checkpointing] * (self.checkpointing != "none") + ["no gathers"] * (not self.gathers)
        return " ".join(words)


def read() -> list[Row]:
    with DATA.open(newline="", encoding="utf-8") as file:
        return [_row(row) for row in csv.DictReader(file)]


def _row(row: dict[str, str]) -> Row:
    counts: dict[str, Counter[str]] = {}
    for name, value in row.items():
        phase, _, what = name.partition(": ")
        if what:
            counts.setdefault(phase, Counter())[what] = int(value)
    on_reference = HOST_SCORE_S / float(row["score_s"])
    passes = {"forward": "forward_s", "backward": "backward_s", "last backward": "last_backward_s", "step": "step_s"}
    return Row(
        family=row["family"],
        layers=int(row["layers"]),
        zero_stage=int(row["zero_stage"]),
        lora=bool(row["lora_targets"]),
        checkpointing=row["checkpointing"],
        gathers=row["gathers"] == "True",
        width=int(row["width"]),
        seconds={name: float(row[column]) * on_reference for name, column in passes.items()},
        counts=counts,
    )


FIXED = {"view_s": 1.1e-6, "backward_view_s": 0.8e-6}
"""Timed in a loop of transposes with and without autograd. In a model views are as frequent as other operations, so
that least squares cannot distinguish them."""
UNKNOWNS = (
    "operation_s",
    "module_call_s",
    "backward_operation_s",
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
_FOLDS = {"qwen3_moe": 3}
"""Weights of a layer that peft folds: the router and two of fused experts."""


def equations(row: Row) -> Iterator[tuple[str, Counter[str], float]]:
    """Each pass of a row: its name, the counts by unit cost, its seconds."""
    forward = _forward(row, row.counts["forward"])
    forward["micro_batch_s"] = 1
    yield "forward", forward, row.seconds["forward"]
    recomputed = row.counts["recompute"]
    for name in ("backward", "last backward"):
        counts, found = row.counts[name], Counter[str]()
        if recomputed["calls"]:
            found = _forward(row, recomputed)
            found["checkpoint_s"] = row.layers
        if row.checkpointing == "non-reentrant":
            found["recomputed_operation_s"] = recomputed["kernels"]
        found["backward_operation_s"] += counts["kernels"] + counts["hook_kernels"]
        found["backward_view_s"] += counts["views"] + counts["hook_views"]
        found["bucket_s"] = counts["buckets"]
        if row.zero_stage == 3:
            found["visit_backward_s"] = row.counts["forward"]["calls"]
            found["gather_s"] += counts["gathered"]
            found["partitioned_gradient_s"] = counts["reduced"]
        elif counts["buckets"] or counts["hook_kernels"]:
            found["bucketed_gradient_s"] = counts["reduced"]
        yield name, found, row.seconds[name]
    step = row.counts["step"]
    yield (
        "step",
        Counter(step_operation_s=step["kernels"] + step["views"], engine_step_s=1),
        row.seconds["step"],
    )


def _forward(row: Row, counts: Counter[str]) -> Counter[str]:
    found = Counter(
        operation_s=counts["kernels"],
        view_s=counts["views"],
        module_call_s=counts["calls"],
        backward_operation_s=counts["hook_kernels"],
        backward_view_s=counts["hook_views"],
    )
    if row.zero_stage == 3:
        found["visit_forward_s"], found["gather_s"] = counts["calls"], counts["gathered"]
    if row.lora:
        found["fold_s"] = _FOLDS.get(row.family, 0) * row.layers
    return found


def solve(rows: Sequence[Row]) -> HostCosts:
    """Unit costs of the least squares of relative errors, none negative, by descent in one unknown after another. A
    cost that no row contains keeps its committed value."""
    names = (*UNKNOWNS, *FIXED)
    terms = [
        {name: count / seconds for name, count in counts.items() if count}
        for row in rows
        for _, counts, seconds in equations(row)
    ]
    products = {
        name: {other: sum(term[name] * term.get(other, 0.0) for term in terms if name in term) for other in names}
        for name in UNKNOWNS
    }
    targets = {name: sum(term.get(name, 0.0) for term in terms) for name in UNKNOWNS}
    found = {name: getattr(HostCosts(), name) for name in UNKNOWNS} | FIXED
    for _ in range(SWEEPS):
        for name in UNKNOWNS:
            own = products[name]
            if own[name]:
                others = sum(own[other] * found[other] for other in names if other != name)
                found[name] = max(0.0, (targets[name] - others) / own[name])
    return HostCosts()._replace(**found)


SWEEPS = 4000
"""Enough that costs change by less than a thousandth."""


def error(row: Row, costs: HostCosts) -> float:
    """Relative error of the forward and backward pass of a micro batch that is not the last of its step."""
    predicted: float = sum(
        count * getattr(costs, cost)
        for name, counts, _ in equations(row)
        if name in ("forward", "backward")
        for cost, count in counts.items()
    )
    return predicted / _micro_batch_s(row) - 1


def _micro_batch_s(row: Row) -> float:
    return row.seconds["forward"] + row.seconds["backward"]


def closed_form_error(row: Row, costs: HostCosts) -> float:
    """The same with the counts that the closed form derives, of a CPU that launches nothing."""
    stage, software = row.zero_stage, Software(reentrant=row.checkpointing == "reentrant")
    workload = Workload(method="lora" if row.lora else "full", software=software)
    shape = model_shape(narrow(row.family, layers=row.layers, width=row.width), name=row.family)
    work = host_work(shape, workload, 10 * row.width if row.gathers else _RESIDENT)
    costs = costs._replace(launch_s=0.0)
    buckets = row.counts["backward"]["buckets"] if stage >= 2 else 0
    found = costs.micro_batch_s + work.forward_s(costs, stage) + work.backward_s(costs, stage, buckets)
    if row.checkpointing != "none":
        found += work.recompute_s(costs, stage)
    if stage >= 2 and not buckets:
        found += work.parameters * (costs.partitioned_s if stage == 3 else costs.bucketed_s)
    return found / _micro_batch_s(row) - 1


_HEADS = 2
_EXPERTS = {"num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2}


def narrow(family: str, *, layers: int, width: int) -> dict[str, Any]:
    """A family's default configuration with `layers` layers of `width`, two heads and a vocabulary of `2 width`. What
    decides which modules and operations a layer has stays, except the number of experts."""
    from transformers import CONFIG_MAPPING

    found: dict[str, Any] = {**CONFIG_MAPPING[family]().to_dict(), "model_type": family}
    sizes = (
        (layers, ("num_hidden_layers", "n_layer", "num_layers", "n_layers")),
        (width, ("hidden_size", "n_embd", "d_model", "word_embed_proj_dim")),
        (2 * width, ("intermediate_size", "ffn_dim", "n_inner", "moe_intermediate_size", "ffn_hidden_size")),
        (2 * width, ("vocab_size",)),
        (_HEADS, ("num_attention_heads", "n_head", "num_key_value_heads", "num_kv_heads", "n_heads", "num_heads")),
        (width // _HEADS, ("head_dim", "query_pre_attn_scalar")),
    )
    values = {name: size for size, names in sizes for name in names} | _EXPERTS
    found |= {name: value for name, value in values.items() if found.get(name) is not None}
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        if isinstance(found.get(name), int):
            found[name] = 1
    for name in ("layer_types", "mlp_layer_types"):
        if found.get(name):
            found[name] = (list(found[name]) * layers)[:layers]
    return found


def main() -> None:
    rows, committed = read(), HostCosts()
    solved = solve(rows)
    print("unit cost, us                solved  committed")
    for name in UNKNOWNS:
        print(f"  {name:26}{getattr(solved, name) * 1e6:9.2f}{getattr(committed, name) * 1e6:11.2f}")
    families = dict.fromkeys(row.family for row in rows)
    others = {family: solve([row for row in rows if row.family != family]) for family in families}
    print(f"\n{'case':58} ms measured   all  left out  closed form")
    sizes: dict[str, list[float]] = {"all": [], "left out": [], "closed form": []}
    for row in rows:
        errors = (error(row, solved), error(row, others[row.family]), closed_form_error(row, committed))
        for found, each in zip(sizes.values(), errors, strict=True):
            found.append(abs(each))
        print(f"{row.label:58}{_micro_batch_s(row) * 1e3:12.1f}" + "".join(f"{each:+9.0%}" for each in errors))
    for kind, found in sizes.items():
        print(f"{kind}: mean {mean(found):.1%}, worst {max(found):.1%}")


if __name__ == "__main__":
    main()
