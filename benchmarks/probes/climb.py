"""The order of probes against trying every plan, on the CPU, with a limit on each rank's memory in place of a GPU's.

    ds-advise bench --device cpu
    python -m benchmarks.probes.climb ANSWERS [--write] [MODEL ...]

ANSWERS holds the runs of `cpu_probes`, which are made where they are missing: every plan of every model without a
limit. The limits are `SHARES` of what the neediest plan of the model took. A plan that took less than `CLEAR` below a
limit fits, one that took as much more does not; all between are run again under the limit. The order of probes sees of
each plan that it chooses what its run says, so its regret comes from its decisions alone: 1 - its plan's speed / the
speed of the fastest plan that fits.

MODEL: of `cpu_probes`, by default all. --write: put the table into docs/probe.md. Exit 1 when the regret of a pair
    exceeds
3 %, or more than half the plans were run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ds_advise.advisor.answer.recommendation import Recommendation
from ds_advise.advisor.question.this_machine import cpu_cluster
from ds_advise.advisor.search.candidate import Candidate, judge_fit
from ds_advise.advisor.verification.verify import run_series
from ds_advise.probes.real_run.result import ProbeResult, RankFailure

from .cpu_probes import MODELS, RANKS, Runs, ask, candidates, publish

SHARES = (1.3, 0.95, 0.8, 0.65)
CLEAR = 0.1
REGRET, RUNS = 0.03, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedProbes:
    """The order of probes for one model under one limit, compared with the outcome of trying every plan."""

    model: str
    limit_bytes: int
    plans: int
    fitting: int
    """Plans that fit."""
    runs: int
    bound: int
    """The most runs that the order may take."""
    found: str
    """The plan that the order ends with."""
    best: str
    """The fastest plan that fits."""
    regret: float


_OUT = ProbeResult(
    world_size=2,
    device="cpu",
    solo=False,
    tokens_per_step=0,
    ranks=(),
    versions={},
    failure=RankFailure(kind="out_of_memory", rank=0, phase="step 1", message="took more than the limit without one"),
)


def compare(model: str, limit_bytes: int, runs: Runs) -> OrderedProbes:
    prediction = _under(ask(model), limit_bytes)
    results = {
        _name(candidate): _result(prediction, candidate, limit_bytes, runs) for candidate in candidates(prediction)
    }
    series, _ = run_series(prediction, lambda candidate, _left_s: results[_name(candidate)], budget_s=1e9)
    speeds = {name: result.tokens_per_s for name, result in results.items() if result.failure is None}
    best = max(speeds, key=lambda name: speeds[name], default="")
    found = _name(series.best.candidate) if series.best else ""
    regret = 1 - speeds[found] / speeds[best] if found else float(bool(best))
    return OrderedProbes(
        model=model,
        limit_bytes=limit_bytes,
        plans=len(results),
        fitting=len(speeds),
        runs=series.runs,
        bound=series.bound,
        found=found or "nothing",
        best=best or "nothing",
        regret=regret,
    )


def _under(prediction: Recommendation, limit_bytes: int) -> Recommendation:
    """The same plans, buckets and all, judged by another limit."""
    cluster = cpu_cluster(RANKS, limit_bytes)
    return replace(
        prediction,
        question=replace(prediction.question, cluster=cluster),
        candidates=tuple(
            replace(candidate, fit=judge_fit(candidate.estimate.memory, cluster)) for candidate in prediction.candidates
        ),
    )


def _result(prediction: Recommendation, candidate: Candidate, limit_bytes: int, runs: Runs) -> ProbeResult:
    """What happens to a plan under a limit."""
    free = runs.get(prediction, candidate.estimate.plan)
    assert free.failure is None, free.failure
    need = free.highest("host_tensor_bytes") or 0
    if abs(need / limit_bytes - 1) >= CLEAR:
        return free if need < limit_bytes else _OUT
    limited = runs.get(prediction, candidate.estimate.plan, limit_bytes)
    return free if limited.failure is None else limited


def _name(candidate: Candidate) -> str:
    plan = candidate.estimate.plan
    return (
        f"{plan.strategy} {plan.micro_batch_size}x{plan.gradient_accumulation_steps}"
        f"{' checkpointed' if plan.gradient_checkpointing else ''}"
    )


def limits(model: str, runs: Runs) -> list[int]:
    """From what the plans of a model took without one."""
    prediction = ask(model)
    results = [runs.get(prediction, candidate.estimate.plan) for candidate in candidates(prediction)]
    most = max(result.highest("host_tensor_bytes") or 0 for result in results)
    return [round(most * share) for share in SHARES]


def report(rows: Sequence[OrderedProbes]) -> str:
    lines = [
        "| model | limit | plans that fit | runs | the climb's plan | the fastest | regret |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.model} | {row.limit_bytes / 1e6:.0f} MB | {row.fitting} of {row.plans} | "
        f"{row.runs} (at most {row.bound}) | {row.found} | {row.best} | {row.regret:.1%} |"
        for row in rows
    ]
    runs, plans = sum(row.runs for row in rows), sum(row.plans for row in rows)
    return "\n".join(lines) + f"\n\n{len(rows)} pairs: {runs} runs in place of {plans}.\n"


def main(arguments: Sequence[str]) -> int:
    if not arguments or not set(arguments[1:]) <= {*MODELS, "--write"}:
        sys.exit(__doc__)
    runs, models = Runs(Path(arguments[0])), [name for name in MODELS if name in arguments] or list(MODELS)
    rows = [compare(model, limit, runs) for model in models for limit in limits(model, runs)]
    text = report(rows)
    publish("climb", text, arguments)
    return int(any(row.regret > REGRET or row.runs > RUNS * row.plans for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
