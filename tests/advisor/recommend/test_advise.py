"""The recommendation: every strategy judged, the fastest that fits taken, the question's constraints kept."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import ds_advise
import pytest
from ds_advise.advisor.advise import answer as answer_to
from ds_advise.advisor.advise import build_question as question_of
from ds_advise.advisor.answer.reasons import reasons
from ds_advise.advisor.answer.recommendation import Recommendation
from ds_advise.advisor.answer.verdict import answer_verdict
from ds_advise.advisor.question.model_source import load_model
from ds_advise.advisor.search.candidate import FIT_THRESHOLD, LadderStep, predict
from ds_advise.advisor.search.choice import SAME_SPEED
from ds_advise.advisor.text.units import gib, whole_gib
from ds_advise.estimators.errors import DsAdviseError
from ds_advise.estimators.memory.fit_probability import host_bytes_to_fit
from ds_advise.estimators.models import catalogue
from ds_advise.estimators.models.training_dtype import trained_in_bf16
from ds_advise.estimators.objectives import LOSSES
from ds_advise.estimators.optimizers import OPTIMIZERS

from tests.helpers import printed


def build_question(model: str, spec: str, **settings: object) -> Recommendation:
    return ds_advise.advise(model, gpus=spec, offline=True, deepspeed_estimate=False, **settings)  # type: ignore[arg-type]


QUESTIONS = [
    ("Qwen2.5-14B", "2x32GB", {}),
    ("gpt2-xl", "A40", {}),
    ("llama3.1-8b", "8xA100-80GB", {"global_batch": 96}),
    ("mixtral-8x7b", "2x8xH100", {"method": "lora"}),
    ("bert-base-uncased", "T4", {"precision": "fp16"}),
    ("t5-large", "2x24GB", {"gradient_checkpointing": "off"}),
]


@pytest.fixture(scope="module", params=QUESTIONS, ids=lambda question: f"{question[0]} on {question[1]}")
def answer(request: pytest.FixtureRequest) -> Recommendation:
    model, spec, settings = request.param
    return build_question(model, spec, **settings)


def test_the_recommended_plan_is_the_fastest_that_fits(answer: Recommendation) -> None:
    """Within the resolution of the time model; no fitting candidate of any strategy beats it by more."""
    fitting = [candidate for candidate in answer.candidates if candidate.fit.fits]
    assert (answer.recommended is None) == (not fitting)
    if answer.recommended is not None:
        best = max(candidate.tokens_per_s for candidate in fitting)
        assert answer.recommended.tokens_per_s >= best * (1 - SAME_SPEED) ** 2


def test_every_candidate_is_consistent(answer: Recommendation) -> None:
    """The verdict follows the probability, and what is sure to fit leaves room; kinds of memory are ordered, and parts
    add up; micro batch x accumulation x GPUs is the global batch that was asked for, and a fixed micro batch stays."""
    question, offer = answer.question, answer.question.cluster.gpu.memory_bytes
    for candidate in answer.candidates:
        fit, memory, plan = candidate.fit, candidate.memory, candidate.plan
        assert fit.fits == (fit.verdict == "fits") == (fit.probability >= FIT_THRESHOLD)
        assert not fit.fits or candidate.device_bytes < offer
        assert fit.limit in ("host", "nvme") or fit.probability < 0.6 or candidate.device_bytes < 1.02 * offer
        assert 0 < memory.allocated_bytes_per_gpu <= memory.reserved_bytes_per_gpu <= memory.device_bytes_per_gpu
        assert sum(memory.components.values()) == memory.device_bytes_per_gpu
        assert all(size_bytes >= 0 for size_bytes in memory.components.values())
        assert question.workload.global_batch_size in (None, plan.samples_per_step(question.cluster.world_size))
        assert question.micro_batch_size in (None, plan.micro_batch_size)
        assert question.options["gradient_checkpointing"] in ("auto", "on" if plan.gradient_checkpointing else "off")


def test_a_step_on_the_host_gets_its_threads() -> None:
    """No offload, no word of it; threads that the user chose stay, at the speed that they give."""
    answer = build_question("Qwen2.5-14B", "2x32GB")
    words = " ".join(printed(answer, details=True).split())
    assert "export OMP_NUM_THREADS" in words
    # torchrun sets one thread for several ranks, as accelerate does; for one rank it sets none, as deepspeed.
    assert re.search(r"x as fast by torchrun or accelerate, 0\.\d\d x as fast by deepspeed\)", words)
    alone = " ".join(printed(build_question("Qwen2.5-7B", "1x32GB"), details=True).split())
    assert re.search(r"\(without it 0\.\d\d x as fast by accelerate\)", alone)
    assert "OMP_NUM_THREADS" not in printed(build_question("Qwen2.5-0.5B", "2x24GB"), details=True)
    here = replace(answer.question.cluster, is_this_machine=True, cpu_cores_per_node=32, threads_per_rank=1)
    chosen = answer_to(replace(answer.question, cluster=here))
    assert chosen.recommended is not None and answer.recommended is not None
    assert chosen.recommended.tokens_per_s < answer.recommended.tokens_per_s
    assert "export OMP_NUM_THREADS" not in printed(chosen, details=True)


def test_a_model_that_a_reference_pass_gathers_whole_fits_without_that_pass() -> None:
    """At stage 3 with adapters."""
    dpo = build_question("Llama-3.1-70B", "8xH100", objective="dpo", method="lora")
    assert dpo.recommended is None
    (change,) = (each for each in dpo.changes if each.flags == "--precompute-ref-log-probs")
    assert change.outcome.startswith("fits: zero3")


@pytest.mark.parametrize("model", ["Qwen3-30B-A3B", "Qwen2.5-32B"])
def test_a_reference_engine_takes_the_difference_of_two_estimates(model: str) -> None:
    """At stage 3 the peak is its gathered weights, or its weights are in host RAM. The answer without it is the first
    of the changes."""
    answer = build_question(model, "8xH100", objective="dpo")
    chosen, question = answer.recommended, answer.question
    assert chosen is not None
    workload = replace(question.workload, precompute_ref_log_probs=True)
    without = predict(question.model, workload, question.cluster, chosen.plan)
    ram = chosen.memory.host_bytes_per_node - without.memory.host_bytes_per_node
    screen = " ".join(printed(answer).split())
    vram = gib(chosen.device_bytes - without.device_bytes)
    assert f"a second engine takes {vram} GiB per GPU, {whole_gib(ram)} GiB of RAM and" in screen
    change = next(each for each in answer.changes if not each.assumed)
    assert change.flags == "--precompute-ref-log-probs"
    assert change.tokens_per_second is not None and change.tokens_per_second > 1.15 * chosen.tokens_per_s
    assert "--precompute-ref-log-probs zero3, " in screen


@pytest.mark.parametrize(
    ("model", "gpus", "options"),
    [
        ("Qwen2.5-14B", "2x32GB", {}),
        ("Qwen2.5-72B", "8xA100-80GB", {}),
        ("Llama-3.1-405B", "RTX3090", {}),
        ("Llama-3.1-8B", "8xH100", {"seq_len": 16384}),
        ("gemma-2-9b", "V100-32GB", {"seq_len": 16384, "global_batch": 256}),  # the GPUs that help have bf16
        ("Qwen3-30B-A3B", "2x1xRTX4090", {"ram": "256GB"}),  # and another network between nodes
        ("Qwen2.5-14B", "2x32GB", {"samples": "20000"}),  # and the job's batch is of their number
    ],
)
def test_every_change_keeps_its_promise(model: str, gpus: str, options: dict[str, Any]) -> None:
    """The question asked again with the flags of each change has the strategy and the speed that are promised, or fits
    nothing where that is promised. It presumes no more RAM than the answer or the change names."""
    answer = build_question(model, gpus, **options)
    known = 0 if answer.recommended is None else answer.recommended.fit.assumed_host_bytes
    assert [*answer.changes]
    for change in answer.changes:
        flags = re.findall(r"--([\w-]+) (\S+)", change.flags)
        again = {name.replace("-", "_"): value.replace("PATH", "/nvme") for name, value in flags}
        numbers = {name: int(value) for name, value in again.items() if value.isdigit()}
        asked = options | again | numbers
        best = build_question(model, asked.pop("gpus", gpus), **asked).recommended
        if change.outcome == "nothing fits":
            assert best is None, change
        else:
            assert best is not None, change
            promised = re.search(r"([\w-]+), ([\d,.]+) tokens/s", change.outcome)
            assert promised is not None, change
            assert best.strategy == promised[1], change
            assert best.tokens_per_s == pytest.approx(float(promised[2].replace(",", "")), rel=0.03), change
            named = re.search(r"needs ([\d,]+) GiB RAM", change.outcome)
            most = max(known, int(named[1].replace(",", "")) * 2**30 if named else 0)
            assert best.fit.assumed_host_bytes <= most, change


@pytest.mark.parametrize(("model", "gpus"), [("Qwen2.5-14B", "2x32GB"), ("Llama-3.1-70B", "8xH100")])
def test_the_ram_of_the_condition_gives_the_same_plan(model: str, gpus: str) -> None:
    """The plan that fits if the host has an amount of RAM is the answer with that amount, and needs no less."""
    unknown = build_question(model, gpus).recommended
    assert unknown is not None and unknown.fit.assumed_host_bytes
    least = -(-unknown.fit.assumed_host_bytes // 2**30)
    known, less = (build_question(model, gpus, ram=f"{gib}GiB").recommended for gib in (least, least - 1))
    assert known is not None and known.plan == unknown.plan
    assert known.fit.utilization >= known.memory.host_bytes_per_node / (least * 2**30) > 0.89
    assert less is not None and less.plan.strategy == unknown.strategy
    assert less.memory.host_bytes_per_node < known.memory.host_bytes_per_node


def test_the_least_ram_that_helps_is_offered() -> None:
    """Between two plans that only RAM stops, both are offered: the fast one, and the slow one that needs less."""
    answer = build_question("Qwen2.5-14B", "2x32GB", ram="32GB", nvme="/nvme:2TB")
    assert answer.recommended is None
    offered = [
        int(change.flags.split()[1].removesuffix("GiB"))
        for change in answer.changes
        if change.flags.startswith("--ram")
    ]
    needs = [
        step.candidate.estimate.memory.host_bytes_per_node
        for step in answer.ladder
        if step.candidate is not None and step.candidate.fit.limit == "host"
    ]
    assert len(offered) == 2 and offered[0] < offered[1]
    assert offered[0] == -(-host_bytes_to_fit(min(needs)) // 2**30)


def test_a_loss_without_logits_is_offered_where_they_are_too_large() -> None:
    """A long sequence on a small card: Liger's loss makes it fit, and where Liger has none it is not offered."""
    long = build_question("llama3.1-8b", "RTX4090", method="qlora", seq_len=16384, loss="standard")
    assert long.recommended is None and any(change.flags == "--loss fused" for change in long.changes)
    assert not any(
        change.flags == "--loss fused" for change in build_question("bloom-7b1", "RTX4090", loss="standard").changes
    )


@pytest.mark.parametrize(
    ("model", "question", "loss", "words"),
    [
        ("Llama-3.1-8B", {"seq_len": 524288}, "fused", "no plan fits with the standard loss"),
        ("Llama-3.1-8B", {"seq_len": 524288, "loss": "standard"}, "standard", ""),
        ("Llama-3.1-8B", {}, "standard", ""),
        ("Qwen2.5-14B", {"gpus": "2x32GB"}, "fused", "standard loss: "),
        ("Qwen2.5-14B", {"gpus": "2x32GB", "framework": "deepspeed"}, "chunked-softmax", "standard loss: "),
        ("Qwen2.5-14B", {"gpus": "2x32GB", "framework": "trl"}, "chunked-head", ""),
        ("Qwen2.5-14B", {"gpus": "2x32GB", "framework": "trl", "software": "trl=1.6"}, "fused", "standard loss"),
    ],
)
def test_a_loss_of_one_argument_is_turned_on_where_it_decides(
    model: str, question: dict[str, Any], loss: str, words: str
) -> None:
    """Where nothing fits without it, or the plan is faster by a tenth. The answer names its argument or line."""
    answer = build_question(model, question.pop("gpus", "8xH100"), **question)
    assert answer.question.workload.loss == loss
    shown_text = " ".join(fact.words for fact in answer_verdict(answer).facts if fact.title == "loss")
    assert words in shown_text if words else "loss" not in shown_text
    if answer.without_loss is not None:
        assert answer.recommended is not None and f"({LOSSES[loss].switch})" in shown_text  # type: ignore[index]
        shown = printed(answer, details=True)
        assert LOSSES[loss].switch in shown  # type: ignore[index]
        within = answer.without_loss.fit.fits
        assert not within or answer.recommended.tokens_per_s > 1.1 * answer.without_loss.tokens_per_s


@pytest.mark.parametrize("name", [*OPTIMIZERS, "AdamW8bit", "SGD-momentum"])
def test_every_optimizer_can_be_asked_for(name: str) -> None:
    """It is found by its key, and with other dashes and capitals."""
    assert question_of("gpt2", gpus="T4", optimizer=name).workload.optimizer in OPTIMIZERS


def test_defaults_follow_the_model_and_the_gpu() -> None:
    """The sequence is the image, or the learned positions where they are fewer than 2048; Volta has no bf16 units."""
    lengths = {"vit-base-patch16-224": 197, "gpt2-xl": 1024, "Qwen2.5-0.5B": 2048}
    assert {model: build_question(model, "A40").question.workload.seq_len for model in lengths} == lengths
    precisions = {"V100-32GB": "fp16", "A100-80GB": "bf16"}
    assert {gpu: build_question("gpt2", gpu).question.workload.precision for gpu in precisions} == precisions


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "vit-base-patch16-224", "seq_len": 512}, "197 tokens"),
        ({"model": "gpt2-xl", "seq_len": 2048}, "1024 learned positions"),
        ({"spec": "T4", "precision": "bf16"}, "no bf16"),
        ({"global_batch": 7}, "is not divisible by 2 GPUs.*pass global_batch=8 or 6, or sequence_parallel_size=2$"),
        ({"global_batch": 9, "spec": "8x24GB"}, "pass global_batch=16 or 8$"),
        ({"global_batch": 12, "micro_batch": 4}, "not a multiple"),
        ({"lora_dropout": 1.0, "method": "lora"}, "lora_dropout is 1.0"),
        ({"optimizer": "adamx"}, "unknown optimizer 'adamx'"),
        ({"optimizer": "paged_adamw_8bit"}, "paged_adamw_8bit is not predicted"),
        ({"method": "lora", "lora_targets": ["nothing"]}, "nothing"),
    ],
)
def test_contradictory_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(DsAdviseError, match=message):
        build_question(**{"model": "Qwen2.5-0.5B", "spec": "2x24GB", **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "key", "step"),
    [
        ("adamw_torch", "adamw", "foreach"),
        ("adamw_torch_fused", "adamw", "fused"),
        ("adamw_bnb_8bit", "adamw_8bit", "auto"),
    ],
)
def test_an_optimizer_may_have_its_name_in_the_trainer(name: str, key: str, step: str) -> None:
    workload = build_question("Qwen2.5-0.5B", "2x32GB", optimizer=name).question.workload
    assert (workload.optimizer, workload.software.optimizer_step) == (key, step)


def test_a_rival_that_might_gain_is_named_with_the_ram_that_it_takes() -> None:
    """For layer inputs as for states."""
    answer = build_question("gpt2", "2x24GB")
    plain = answer.recommended
    assert plain is not None and plain.strategy == "ddp"
    faster = replace(plain.time, tokens_per_step=round(plain.time.tokens_per_step * 1.05))
    estimate = replace(plain.estimate, time=faster)
    rivals: list[tuple[dict[str, Any], str]] = [
        ({"cpu_checkpointing": True}, f"takes {gib(estimate.memory.host_bytes_per_node)} GiB of host RAM."),
        ({"zero_stage": 3}, "which is within the error of the prediction."),
    ]
    for features, words in rivals:
        plan = plain.plan.replace_fields(**features)
        rival = replace(plain.replace_estimate(replace(estimate, plan=plan)), plan=plan)
        ladder = [LadderStep.from_candidate("ddp", each, 0.0) for each in (plain, rival)]
        assert reasons(answer.question, ladder, plain, [plain, rival])[0].endswith(words)


def test_plans_that_are_close_are_named() -> None:
    """All of them, equal ones too, with their speeds; nothing where no other strategy fits."""
    faster, close = build_question("Llama-2-7b", "8xA100-80GB", seq_len=4096, global_batch="no-accumulation").doubts
    assert re.fullmatch(
        r"zero3.*: predicted (up to )?[1-9]0? % faster, within the error; .* used"
        r", with [\d,.]+ GiB of RAM \(zero3: [\d.]+\)\.",
        faster,
    )
    assert re.fullmatch(r"zero2( and .*)? (is|are) close: [\d,]+( to [\d,]+)? tokens/s\.", close)
    assert build_question("Qwen2.5-14B", "2x32GB").doubts == ()


@pytest.mark.parametrize(
    ("model", "gpus", "options", "instead"),
    [
        ("t5-large", "T4", {}, "--precision fp32, or on a GPU with bf16"),
        ("flan-t5-xl", "4xV100-32GB", {}, "--precision fp32, or on a GPU with bf16"),
        ("gemma-2-9b", "8xV100-32GB", {}, "--precision fp32, or on a GPU with bf16"),
        ("gemma-3-4b", "4xT4", {"method": "lora"}, "--precision fp32, or on a GPU with bf16"),
        ("llama2-7b", "8xV100-32GB", {}, "--precision fp32, or on a GPU with bf16"),
        ("Qwen2.5-0.5B", "A40", {"precision": "fp16"}, "--precision bf16"),
        ("Qwen2.5-0.5B", "A40", {}, ""),
        ("gpt2", "T4", {}, ""),
        ("t5-large", "T4", {"precision": "fp32"}, ""),
    ],
)
def test_fp16_for_a_model_trained_in_bf16_is_doubted(
    model: str, gpus: str, options: dict[str, Any], instead: str
) -> None:
    found = build_question(model, gpus, **options)
    doubt = f"fp16 may overflow: the model was trained in bf16. Train with {instead}."
    assert [each for each in found.doubts if "fp16" in each] == [doubt] * bool(instead)
    assert (doubt.removesuffix(".") in " ".join(str(found).split())) == bool(instead)


@pytest.mark.parametrize(("state", "is_bf16"), [({"torch_dtype": "bfloat16"}, True), ({"dtype": "float16"}, False)])
def test_the_type_of_the_weights_is_that_of_the_config(state: dict[str, str], is_bf16: bool, tmp_path: Path) -> None:
    """Of the text model, where only its part states it."""
    config = catalogue.config("openai-community/gpt2")
    for name, shown in (("whole", config | state), ("part", config | {"text_config": state})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(shown), encoding="utf-8")
        assert trained_in_bf16(load_model(str(tmp_path / name))) == is_bf16


def test_a_gpu_too_old_for_triton_has_no_kernels_in_it() -> None:
    """The loss that one argument turns on is not offered, and what was asked is refused with the reason."""
    for gpus, is_offered in (("8xP100", False), ("8xV100-16GB", True)):
        assert (question_of("Qwen2.5-7B", gpus=gpus).offered_loss_question is not None) == is_offered
    why = r"Triton needs compute capability 7\.0, and the P100-PCIe-16GB has 6\.0"
    for asked in ({"loss": "fused"}, {"kernels": "liger"}, {"framework": "deepspeed", "loss": "chunked-softmax"}):
        with pytest.raises(DsAdviseError, match=why):
            build_question("Qwen2.5-0.5B", "P100", **asked)


def test_on_one_gpu_a_stage_without_offload_is_not_called_close() -> None:
    """It shares nothing there and can only be slower."""
    answer = build_question("Llama-3.1-8B", "1xA100-80GB", method="lora", global_batch="no-accumulation")
    assert answer.recommended is not None and answer.recommended.strategy == "ddp"
    near = 0.95 * answer.recommended.tokens_per_s
    assert any(
        step.strategy == "zero2" and step.candidate and step.candidate.tokens_per_s > near for step in answer.ladder
    )
    assert not re.search(r"zero\d\b(?!-)", " ".join(answer.doubts))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("google/vit-base-patch16-224", ("samples/s", "with 197 tokens per sample")),
        ("t5-small", ("target tokens, which are counted; the source has 512)",)),
    ],
)
def test_tokens_of_images_and_of_encoder_decoders_are_explained(model: str, words: tuple[str, ...]) -> None:
    """Images are counted in samples too; an encoder and a decoder have a sequence each."""
    answer = (
        build_question(model, "2x24GB") if model.startswith("google") else build_question(model, "2x24GB", seq_len=512)
    )
    shown_text = " ".join(printed(answer).split())
    assert all(word in shown_text for word in words)


def test_a_sequence_beyond_the_models_positions_is_named() -> None:
    words = "configuration states 32,768 positions; longer sequences need RoPE scaling"
    assert words in printed(build_question("Qwen2.5-0.5B", "H100", seq_len=40960)).replace("\n          ", "")
    assert "positions" not in printed(build_question("Qwen2.5-0.5B", "H100", seq_len=32768))
