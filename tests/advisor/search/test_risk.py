"""How sure it is that a plan fits, and what a plan that is only likely to fit would gain."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ds_advise import advise
from ds_advise.advisor.answer.advice import build_advice
from ds_advise.advisor.answer.recommendation import Recommendation
from ds_advise.advisor.answer.verdict import answer_verdict
from ds_advise.advisor.cli.main import main
from ds_advise.advisor.question.question import Question
from ds_advise.advisor.search.candidate import FIT_THRESHOLD, LEAST, LIKELY, LadderStep, dry_run_fit, fit_verdict
from ds_advise.advisor.search.choice import WORTH_A_RISK
from ds_advise.advisor.text.output import Output
from ds_advise.advisor.verification.verify import by_speed, verify
from ds_advise.estimators.estimate import Formula, MemoryEstimate, Phase, Terms
from ds_advise.estimators.gpu_catalogue import find_gpu
from ds_advise.estimators.hardware import Cluster
from ds_advise.estimators.json_form import to_json
from ds_advise.estimators.memory.device_overhead import allocator_overhead, outside_allocator
from ds_advise.estimators.memory.fit_probability import SourceSpread, fit_probability
from ds_advise.estimators.plan import Plan

from tests.helpers import printed

RISKY: dict[str, Any] = {"model": "llama3.1-8b", "gpus": "2x32GB", "method": "lora", "loss": "standard"}
"""Without offload only the smallest micro batch surely fits."""


def ask(**question: Any) -> Recommendation:
    return advise(**question, offline=True, deepspeed_estimate=False)


@pytest.fixture(scope="module")
def risky() -> Recommendation:
    return ask(**RISKY)


def test_a_run_that_was_seen_to_train_is_not_refused() -> None:
    """Qwen2.5-14B with LoRA trained on two GPUs of 32 GB under ZeRO 0, 1 and 2 without offload."""
    answer = ask(model="Qwen2.5-14B", gpus="2x32GB", method="lora", seq_len=51, micro_batch=16, loss="standard")
    by_strategy = {step.strategy: step.candidate for step in answer.ladder}
    for strategy in ("ddp", "zero1", "zero2"):
        candidate = by_strategy[strategy]
        assert candidate is not None and candidate.fit.probability >= LIKELY
    named = [each.strategy for each in (answer.recommended, answer.try_first) if each is not None]
    assert {"ddp", "zero1", "zero2"} & set(named)


def test_the_plan_to_try_first_is_likely_and_much_faster(risky: Recommendation) -> None:
    first, safe = risky.try_first, risky.recommended
    assert first is not None and safe is not None and safe.fit.fits
    assert LIKELY <= first.fit.probability < FIT_THRESHOLD and first.fit.verdict == "likely fits"
    assert first.tokens_per_s >= WORTH_A_RISK * safe.tokens_per_s
    lead = " ".join(printed(risky).split("\n\n")[0].split())
    assert "probably fits too" in lead and "as fast: try it first." in lead


def test_the_risk_decides_what_is_recommended(risky: Recommendation) -> None:
    chosen = [ask(**RISKY, risk=risk).recommended for risk in LEAST]
    assert chosen[0] is not None and risky.recommended is not None and chosen[0].plan == risky.recommended.plan
    speeds = [candidate.tokens_per_s for candidate in chosen if candidate is not None]
    assert len(speeds) == 3 and speeds == sorted(speeds) and speeds[2] > speeds[0]
    assert all(each.fit.probability >= least for each, least in zip(chosen, LEAST.values(), strict=True) if each)


def test_json_has_the_probability_of_each_plan(risky: Recommendation) -> None:
    form = to_json(build_advice(risky, all_candidates=True))
    assert form["try_first"]["verdict"] == "likely fits" and not form["try_first"]["fits"]
    for plan in (*form["candidates"], *form["ladder"], form["recommended"]):
        assert plan["fits"] == (plan["fit_probability"] >= FIT_THRESHOLD)
        assert plan["verdict"] == fit_verdict(plan["fit_probability"])
    assert to_json(build_advice(replace(risky, try_first=None)))["try_first"] is None


def test_both_configurations_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    question = "Qwen2.5-32B --gpus 8xA100-80GB --seq-len 8192 --offline --quiet"
    question += " --global-batch no-accumulation --sequence-parallel-size 1 --gradient-checkpointing on --loss standard"
    monkeypatch.setattr("sys.argv", ["ds-advise", *question.split(), "--no-deepspeed-estimate"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    safe, first = (json.loads((tmp_path / f"ds_config{end}.json").read_text()) for end in ("", "_try_first"))
    assert "offload_optimizer" in safe["zero_optimization"] and "offload_optimizer" not in first["zero_optimization"]


def test_dry_runs_start_with_the_plan_to_try_first(risky: Recommendation, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_question: Question, plan: Plan, **_: Any) -> None:
        assert risky.try_first is not None and plan is risky.try_first.plan
        raise InterruptedError

    monkeypatch.setattr("ds_advise.advisor.verification.verify.build_run", start)
    with pytest.raises(InterruptedError):
        verify(risky, offline=True, output=Output("quiet"))
    assert by_speed(risky)[0] is risky.recommended


def test_more_memory_is_never_less_sure() -> None:
    answer = ask(**RISKY)
    candidate = answer.try_first
    assert candidate is not None
    gpu, question = answer.question.cluster.gpu, answer.question
    found = []
    for percent in range(80, 121):
        sized = replace(gpu, memory_bytes=candidate.device_bytes * percent // 100)
        cluster = replace(question.cluster, gpu=sized)
        found.append(fit_probability(candidate.memory, cluster))
    assert found == sorted(found) and found[0] < 0.01 and found[-1] > 0.99
    assert 0.3 < found[20] < 0.7, "as much as is predicted"


@pytest.mark.parametrize(("sources", "nine_tenths"), [(2, 3.078), (3, 1.886), (5, 1.533), (10, 1.383), (13, 1.356)])
def test_the_spread_between_sources_is_students_t(sources: int, nine_tenths: float) -> None:
    """Quantiles of a table of Student's t. Fewer sources make wider tails, and none reaches certainty."""
    spread = SourceSpread(0.1, 0.05, sources)
    assert spread.share_below(0.1 + 0.05 * nine_tenths) == pytest.approx(0.9, abs=1e-4)
    assert spread.share_below(0.1 - 0.05 * nine_tenths) == pytest.approx(0.1, abs=1e-4)
    assert 0.0 < spread.share_below(-1.0) < spread.share_below(0.1) == 0.5 < spread.share_below(1.2) < 1.0


@pytest.mark.parametrize(
    ("least", "verdict", "below"), [(0.975, "fits", "likely fits"), (0.5, "likely fits", "unlikely")]
)
def test_verdicts_have_the_thresholds_of_the_manual(least: float, verdict: str, below: str) -> None:
    assert (fit_verdict(least), fit_verdict(least - 0.001)) == (verdict, below)
    assert fit_verdict(0.026) == "unlikely" and fit_verdict(0.024) == "does not fit"


def _made_up(need: int, transient: int, overhead: Terms, cluster: Cluster) -> MemoryEstimate:
    rest = transient + sum(term.size_bytes for term in (*overhead, *outside_allocator(cluster)))
    states = Formula("parameters", "made up", "made up").term(need - rest)
    return MemoryEstimate(
        phases=(Phase(name="step", terms=states + Formula("inputs", "made up", "made up").term(transient)),),
        reserved_terms=overhead,
        device_terms=outside_allocator(cluster),
        host_pinned_terms=(),
        host_pageable_terms=(),
        host_loading_terms=(),
        nvme_terms=(),
    )


@pytest.mark.parametrize("transient_gib", [0.1, 1, 8, 64])
@pytest.mark.parametrize("expandable", [True, False])
def test_a_plan_above_the_memory_never_likely_fits(transient_gib: float, expandable: bool) -> None:
    cluster = Cluster(nodes=1, gpus_per_node=8, gpu=find_gpu("H100"))
    transient = round(transient_gib * 2**30)
    plan = Plan(zero_stage=3, micro_batch_size=1)
    overhead = allocator_overhead(plan, transient, expandable=expandable)
    for missing in (1, 2**20, 2**26):
        memory = _made_up(cluster.gpu.memory_bytes + missing, transient, overhead, cluster)
        assert memory.device_bytes_per_gpu == cluster.gpu.memory_bytes + missing
        assert fit_probability(memory, cluster) < LIKELY


def test_a_plan_that_ram_limits_says_so() -> None:
    """The GPU has room; the RAM may be short, and a higher risk accepts that."""
    answer = replace(
        ask(model="gpt2-xl", gpus="1x24GB", ram="32GB", global_batch=8), try_first=None, pytorch_baseline=None
    )
    cluster = answer.question.cluster
    need = round(0.95 * cluster.most_host_bytes_per_node)
    step = next(step for step in answer.ladder if step.strategy == "zero2-offload" and step.candidate is not None)
    assert step.candidate is not None
    host = dry_run_fit(device_bytes=2**30, transient_bytes=2**30, host_bytes=need, cluster=cluster)
    missed = replace(step.candidate, fit=host, measured_host_bytes=need)
    ladder = (LadderStep.from_candidate("zero2-offload", missed, FIT_THRESHOLD),)
    verdict = answer_verdict(
        replace(answer, ladder=ladder, candidates=(missed,), recommended=None, pytorch_baseline=None)
    )
    words = " ".join(sentence.text for sentence in verdict.sentences)
    assert verdict.headline == "Nothing fits." and "GiB of RAM per node (31.4 available), which fits with" in words
    assert re.search(r"a probability of 8\d %. --risk balanced accepts it\.", words), words
