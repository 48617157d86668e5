"""One plan by name and settings, the baseline of plain PyTorch, and other software."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ds_advise
import pytest
from click.testing import CliRunner
from ds_advise.advisor.cli.advise import advise
from ds_advise.estimators.errors import WorkloadError
from ds_advise.estimators.plan import STRATEGIES

MODEL, GPUS = "Qwen2.5-1.5B", "2xA100-80GB"
ONE: dict[str, Any] = {"gpus": GPUS, "micro_batch": 2, "global_batch": 8, "gradient_checkpointing": "on"}


def phases(**options: Any) -> dict[str, int]:
    """Bytes by phase of an estimate."""
    made = ds_advise.estimate(MODEL, **{**ONE, **options})
    return {phase.name: phase.allocated_bytes for phase in made.memory.phases}


def test_an_estimate_is_the_tables_row_of_that_plan() -> None:
    """With the shape fixed, the strategy's best plan in the advice and the estimate are one."""
    answer = ds_advise.advise(MODEL, **ONE, deepspeed_estimate=False)
    for step in answer.ladder:
        if step.candidate is not None and step.strategy != "zero3-nvme":
            assert ds_advise.estimate(MODEL, strategy=step.strategy, **ONE) == step.candidate.estimate


def test_settings_change_the_plan_and_nothing_else() -> None:
    """As text and as a mapping; a smaller bucket takes less memory."""
    text = ds_advise.estimate(MODEL, strategy="zero2", settings="reduce_bucket_size=2e6,overlap_comm=no", **ONE)
    settings = {"reduce_bucket_size": 2_000_000, "overlap_comm": False}
    assert text == ds_advise.estimate(MODEL, strategy="zero2", settings=settings, **ONE)
    assert (text.plan.reduce_bucket_size, text.plan.overlap_comm) == (2_000_000, False)
    smaller = phases(strategy="zero2", settings=settings)["gradient_reduction"]
    assert smaller < phases(strategy="zero2")["gradient_reduction"]


def test_plain_pytorch_is_a_baseline_and_never_recommended() -> None:
    """`--sharding fsdp` adds it to the table and to the JSON, and leaves everything else as it is."""
    asked = [MODEL, "--gpus", GPUS, "--no-write", "--no-deepspeed-estimate"]
    usual, with_baseline = (
        json.loads(CliRunner().invoke(advise, [*asked, *more, "--json"], standalone_mode=False).stdout)
        for more in ([], ["--sharding", "fsdp"])
    )
    assert with_baseline["pytorch_baseline"]["strategy"] == "fsdp2" and usual["pytorch_baseline"] is None
    assert [step["strategy"] for step in with_baseline["ladder"]] == list(STRATEGIES)
    assert {**with_baseline, "pytorch_baseline": None} == usual
    printed = CliRunner().invoke(advise, [*asked, "--sharding", "fsdp"], standalone_mode=False).stdout
    assert "  fsdp2 " in printed and "--emit accelerate writes its configuration" in " ".join(printed.split())


def test_a_plan_that_swaps_nothing_to_nvme_still_needs_its_folder(tmp_path: Path) -> None:
    """All tensors of a small model stay in RAM; DeepSpeed joins the path in any case."""
    settings = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1}
    settings |= {"num_attention_heads": 4, "vocab_size": 128}
    (tmp_path / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    estimate = ds_advise.estimate(str(tmp_path), gpus="2x24GB", strategy="zero3-nvme", offline=True)
    assert estimate.memory.nvme_bytes_per_node == 0
    assert not estimate.fits and estimate.fit.reason == "needs --nvme"
    named = ds_advise.estimate(str(tmp_path), gpus="2x24GB", nvme="/nvme:1TB", strategy="zero3-nvme", offline=True)
    assert named.fits and named.ds_config is not None


def test_a_strategy_may_be_written_in_any_case() -> None:
    assert ds_advise.estimate("gpt2", gpus="1x24GB", strategy="ZeRO-3", offline=True).strategy == "zero3"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"strategy": "zero4"}, "unknown strategy"),
        ({"settings": "reduce_bucket=1"}, "no setting"),
        ({"settings": "reduce_bucket_size=many"}, "reduce_bucket_size"),
        ({"settings": {"offload_optimizer": "disk"}}, "offload_optimizer"),
        ({"software": "python=3.11"}, "no setting"),
        ({"software": "transformers=new"}, "pass a version such as"),
        ({"software": "reentrant=perhaps"}, "reentrant"),
        ({"document_len": 512}, 'pass attention="flash"'),
        ({"document_len": 4096, "attention": "flash"}, "do not fit"),
        ({"kernels": "liger", "model": "gpt2"}, "Liger does not patch gpt2"),
        ({"strategy": "zero3", "method": "qlora", "quantization": "int8"}, "cannot run"),
    ],
)
def test_impossible_questions_are_refused_in_one_line(changed: dict[str, Any], words: str) -> None:
    """Names and values that do not exist, and combinations that do not run."""
    question = {"model": MODEL, "strategy": "zero2", "seq_len": 1024, **ONE, **changed}
    with pytest.raises(WorkloadError, match=words):
        ds_advise.estimate(**question)


def test_older_software_holds_more_of_the_logits() -> None:
    """transformers 4.46 makes the largest copies; DeepSpeed before 0.19 flattens on the host, so ZeRO-1 starts with
    less."""
    peaks = [phases(strategy="zero1", software=how) for how in (None, "transformers=4.46", "deepspeed=0.18")]
    assert peaks[1]["loss_peak"] > peaks[0]["loss_peak"]
    assert "initialize" in peaks[0] and "initialize" not in peaks[2]


@pytest.mark.parametrize(
    ("name", "value", "kind", "advice"),
    [
        ("seq_len", "x", "whole number", "leave seq_len out"),
        ("epochs", "x", "number", "leave epochs out"),
        ("lora_rank", "x", "whole number", "pass lora_rank=8"),
    ],
)
def test_a_number_of_another_type_is_an_error_of_one_line(name: str, value: str, kind: str, advice: str) -> None:
    with pytest.raises(WorkloadError) as error:
        ds_advise.advise(MODEL, gpus=GPUS, **{name: value})
    assert str(error.value) == f"{name} is '{value}': it must be a {kind}; {advice}"


@pytest.mark.parametrize(
    ("model", "gpus"),
    [("Qwen2.5-32B", "8xA800-80GB"), ("Qwen1.5-32B", "8xA100-80GB"), ("Llama-3-70B", "2x8xA100-80GB")],
)
def test_losses_without_a_known_cause_are_not_predicted_to_fit(model: str, gpus: str) -> None:
    """Their sources (XTuner, LLaMA-Factory in `published_memory_excluded.csv`) state no lengths. This is the least."""
    estimate = ds_advise.estimate(
        model,
        gpus=gpus,
        strategy="zero3",
        micro_batch=1,
        seq_len=1024,
        global_batch="no-accumulation",
        gradient_checkpointing="on",
        software="optimizer-step=foreach,transformers=4.46,deepspeed=0.16,expandable-segments=no",
        settings="sub-group-size=1e9",
        offline=True,
    )
    assert not estimate.fit.fits
