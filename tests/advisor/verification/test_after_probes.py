"""A second question about the same machine and model uses the probes that were made before."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ds_advise import advise
from ds_advise.advisor.answer.recommendation import Recommendation
from ds_advise.advisor.cli.main import run
from ds_advise.advisor.question.this_machine import cpu_cluster
from ds_advise.advisor.search.candidate import Candidate
from ds_advise.advisor.verification.past_results import PastProbes, keep_probe
from ds_advise.advisor.verification.verify import run_series, runnable
from ds_advise.estimators.memory.device_overhead import CPU_HEAP_SHARE, CPU_PROCESS_BYTES
from ds_advise.probes.real_run.result import ProbeResult
from ds_advise.probes.run import Run
from ds_advise.probes.store import Store

from tests import helpers
from tests.helpers import SMALL_LLAMA, failed_probe

MODEL = SMALL_LLAMA | {"num_hidden_layers": 6, "intermediate_size": 1024, "vocab_size": 4096}
LIMIT = 2 * 10**9


@pytest.fixture
def model(tmp_path: Path) -> str:
    folder = tmp_path / "small-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(MODEL))
    return str(folder)


def ask(model: str, *, limit: int = LIMIT, ranks: int = 2, **changes: Any) -> Recommendation:
    return advise(
        model,
        **{
            "gpus": cpu_cluster(ranks, limit),
            "seq_len": 128,
            "global_batch": 4,
            "offline": True,
            "deepspeed_estimate": False,
            **changes,
        },
    )


def ran(candidate: Candidate, slower: float = 1.0) -> ProbeResult:
    """The candidate's probe on a machine slower than predicted by a factor."""
    time = candidate.estimate.time
    return helpers.ran(
        time.step_s * slower, world_size=2, device="cpu", tokens_per_step=time.tokens_per_step, host_peak_bytes=10**8
    )


def keep(answer: Recommendation, candidate: Candidate, result: ProbeResult, limit: int | None = LIMIT) -> None:
    """Keep a result as a series of probes does."""
    question = answer.question
    run = Run.from_plan(candidate.plan, question.model, question.workload, question.cluster)
    keep_probe(result, run, memory_limit_bytes=limit)


def first(answer: Recommendation) -> Candidate:
    assert answer.recommended is not None
    return answer.recommended


def test_a_plan_that_ran_has_its_speed_and_corrects_the_others(model: str) -> None:
    before = ask(model)
    keep(before, first(before), ran(first(before), slower=3.0))
    after = ask(model)
    assert first(after).estimate.plan == first(before).estimate.plan
    assert first(after).estimate.evidence == "probe"
    for old, new in zip(before.candidates, after.candidates, strict=True):
        assert new.tokens_per_s == pytest.approx(old.tokens_per_s / 3)
        assert new is first(after) or new.estimate.evidence == "analytic"
    assert [step.candidate for step in after.ladder].count(first(after)) == 1


def test_a_plan_out_of_memory_does_not_fit_nor_what_needs_more(model: str) -> None:
    before = ask(model)
    out = first(before)
    keep(before, out, failed_probe("out_of_memory"))
    after = ask(model)
    assert first(after).estimate.plan != out.estimate.plan
    for candidate in after.candidates:
        plan = candidate.estimate.plan
        if plan == out.estimate.plan:
            assert not candidate.fit.fits and candidate.fit.reason == "ran out of memory"
        same = (plan.strategy, plan.gradient_checkpointing) == (out.strategy, out.estimate.plan.gradient_checkpointing)
        if same and candidate.device_bytes >= out.device_bytes:
            assert not candidate.fit.fits


@pytest.mark.parametrize("kind", ["crash", "hang", "timeout", "killed", "stopped"])
def test_other_failures_do_not_count(model: str, kind: str) -> None:
    before = ask(model)
    keep(before, first(before), failed_probe(kind))
    assert ask(model).past_probes == () and first(ask(model)) == first(before)


ELSEWHERE: dict[str, Callable[[str], Recommendation]] = {
    "another sequence": lambda model: ask(model, seq_len=64),
    "another precision": lambda model: ask(model, precision="fp32"),
    "another method": lambda model: ask(model, method="lora"),
    "more ranks": lambda model: ask(model, ranks=4, global_batch=8),
    "less memory": lambda model: ask(model, limit=LIMIT - 1),
}


@pytest.mark.parametrize("other", ELSEWHERE.values(), ids=ELSEWHERE)
def test_another_question_is_not_answered_by_it(model: str, other: Callable[[str], Recommendation]) -> None:
    before = ask(model)
    for candidate in runnable(before):
        keep(before, candidate, ran(candidate))
    assert len(ask(model).past_probes) > 8 and other(model).past_probes == ()


def test_a_limit_answers_for_the_limits_that_it_decides(model: str) -> None:
    before = ask(model)
    keep(before, first(before), ran(first(before)))
    assert ask(model, limit=2 * LIMIT).past_probes
    Store().forget("all")
    keep(before, first(before), failed_probe("out_of_memory"))
    # A limit that leaves the plan's buckets as they are: with others it is another plan.
    assert ask(model, limit=9 * LIMIT // 10).past_probes and not ask(model, limit=2 * LIMIT).past_probes


def test_other_versions_and_forms_do_not_count(model: str, own_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = ask(model)
    keep(before, first(before), ran(first(before)))
    with monkeypatch.context() as patched:
        patched.setattr("ds_advise.advisor.verification.past_results.installed_version", lambda _name: "0.0")
        assert ask(model).past_probes == ()
    assert ask(model).past_probes
    with sqlite3.connect(own_store) as connection:
        ((body,),) = connection.execute("SELECT body FROM records")
        connection.execute(
            "UPDATE records SET body = ?", (json.dumps({**json.loads(body), "result": {"failure": None}}),)
        )
    assert ask(model).past_probes == ()


def test_a_plan_that_swaps_to_an_unnamed_folder_never_ran(model: str) -> None:
    answer = ask(model)
    keep(answer, first(answer), ran(first(answer)))
    plan = replace(first(answer).estimate.plan, zero_stage=3, offload_optimizer="nvme", offload_param="nvme")
    kept = PastProbes(answer.question.model, answer.question.workload, answer.question.cluster)
    assert kept.find_plan(first(answer).estimate.plan) is not None
    assert kept.find_plan(plan) is None


def test_a_climb_does_not_run_again_what_ran(model: str) -> None:
    before = ask(model)
    runs: list[Candidate] = []

    def keeping(candidate: Candidate, _left_s: float) -> ProbeResult:
        runs.append(candidate)
        keep(before, candidate, ran(candidate))
        return ran(candidate)

    series, _ = run_series(before, keeping, budget_s=1e6)
    assert series.runs == len(runs) > 1
    again, _ = run_series(ask(model), keeping, budget_s=1e6)
    plans = [candidate.estimate.plan for candidate in runs]
    assert len(set(plans)) == len(plans) == series.runs + again.runs == len(again.probes)
    assert again.runs <= 1  # of all results together another plan may look as if it could still win
    assert again.best is not None and series.best is not None
    assert again.best.candidate.estimate.plan == series.best.candidate.estimate.plan
    assert sum(trial.age_s is not None for trial in again.probes) == series.runs


def test_plans_for_unnamed_nvme_cannot_be_run(model: str) -> None:
    tiny = ask(model, limit=10**8)
    assert any(candidate.strategy == "zero3-nvme" and candidate.fit.limit == "gpu" for candidate in tiny.candidates)
    assert "zero3-nvme" not in {candidate.strategy for candidate in runnable(tiny)}


WORDS = "--device cpu --ranks 2 --memory 2GB --seq-len 128 --global-batch 4 --offline --no-write"
QUESTION = [*WORDS.split(), "--no-deepspeed-estimate"]


def test_the_answer_names_its_probes(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = ask(model)
    keep(before, first(before), ran(first(before), slower=2.0))
    assert run([model, *QUESTION]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Evidence: probe, just now" in text and "Earlier probes on this machine" in text
    assert run([model, *QUESTION, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["recommended"]["evidence"] == "probe"
    assert [trial["result"]["failure"] for trial in answer["earlier_probes"]] == [None]


def test_an_answer_about_the_cpu_counts_in_ranks(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([model, *QUESTION, "--details"]) == run([model, *QUESTION[:5], "10MB", *QUESTION[6:]]) - 1 == 0
    text = capsys.readouterr().out
    assert "per rank" in text and "2 ranks on the CPU" in text and "x limit" in text
    assert "per GPU" not in text and "the GPU" not in text and "GPU GiB" not in text
    assert (
        "export DS_ACCELERATOR=cpu OMP_NUM_THREADS=" in text and "use_cpu=True" in text and 'ddp_backend="gloo"' in text
    )
    assert max(len(line) for line in text.splitlines() if not line.startswith("   ")) <= 80


def test_a_rank_on_the_cpu_is_its_tensors_heap_and_process(model: str) -> None:
    """No CUDA context; DeepSpeed loads more with ZeRO than without. What the heap keeps of the passes counts as far as
    the optimizer's step does not need more: in DDP, whose step holds all states' temporaries, it is nothing."""
    for candidate in ask(model).candidates:
        memory, stage = candidate.estimate.memory, candidate.estimate.plan.zero_stage
        heap = memory.components.get("allocator_overhead", 0)
        assert memory.components["process"] == CPU_PROCESS_BYTES[stage] > 0
        assert candidate.device_bytes == memory.allocated_bytes_per_gpu + heap + CPU_PROCESS_BYTES[stage]
        assert (heap > 0) == (stage > 0)
        if heap:
            transient = {key: value for term in memory.reserved_terms for key, value in term.inputs}["transient"]
            assert 0 < heap <= CPU_HEAP_SHARE * transient + 1


def test_an_unusable_store_costs_one_line(model: str, own_store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own_store.parent.mkdir(exist_ok=True)
    own_store.write_bytes(b"no database" * 100)
    assert run([model, *QUESTION, "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["recommended"]["evidence"] == "analytic"
    assert len(printed.err.splitlines()) == 1 and str(own_store) in printed.err
