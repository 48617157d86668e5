"""What is said of a command's training, and the change that would help most."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from ds_advise.advisor.answer.command_answer import Change, CommandAnswer
from ds_advise.advisor.document import blocks as doc
from ds_advise.advisor.question.cluster import build_cluster
from ds_advise.advisor.render.command import _training, remark_sentences
from ds_advise.advisor.render.dry_run import _notes, _other_allocator, _verdict
from ds_advise.advisor.search.candidate import Fit, dry_run_fit
from ds_advise.advisor.verification.command import tokens_per_step
from ds_advise.estimators.memory.fit_probability import host_bytes_to_fit
from ds_advise.estimators.workload import Workload
from ds_advise.probes.command.observed import InventedNumber, ObservedOption
from ds_advise.probes.recording.result import DryRunResult, Peak, PhaseMemory, Reserved
from ds_advise.probes.run import Run

from tests.advisor.observed_training import ARGUMENTS, ENGINE, GIB, OBSERVED, TRAINING
from tests.helpers import h100s, printed_document


def result_of(by_category: dict[str, int]) -> DryRunResult:
    reserved = Reserved(reserved_bytes_per_gpu=GIB, required_bytes_per_gpu=GIB)
    peak = Peak(
        iteration=2,
        phase="backward",
        allocated_bytes_per_gpu=sum(by_category.values()),
        reserved_bytes_per_gpu=GIB,
        required_bytes_per_gpu=GIB,
        with_expandable_segments=reserved,
        without_expandable_segments=reserved,
        device_bytes_per_gpu=GIB,
        host_bytes_per_node=0,
        by_category=by_category,
        by_module={},
        largest=(),
    )
    return DryRunResult(
        phases=(),
        iterations=3,
        peak=peak,
        peak_loading_gpu_bytes=GIB,
        peak_loading_host_bytes=2 * GIB,
        nvme_bytes_per_rank=0,
        parameters=ENGINE.parameters,
        trainable_parameters=ENGINE.trainable_parameters,
        world_size=8,
        rank=0,
        gpus_per_node=8,
        versions={},
        config=ENGINE.config,
        seconds=1.0,
        peak_by_phase={},
    )


def answer_of(
    by_category: dict[str, int] | None = None, *, engine: dict[str, Any] | None = None, **observed: Any
) -> CommandAnswer:
    changed = replace(ENGINE, **engine or {})
    run = Run(config=changed.config, model={}, cluster=h100s(8), workload=Workload(), model_name=changed.model)
    return CommandAnswer(
        run=run,
        result=result_of(by_category or {}),
        analytic=None,
        observed=replace(OBSERVED, engines=(changed,), **observed),
        training=TRAINING,
        arguments=ARGUMENTS,
        words=("train.py",),
    )


@pytest.mark.parametrize(("version", "helps"), [("1.14.0", True), ("1.15.0", False)])
def test_liger_is_no_loss_of_trl_s(version: str, helps: bool) -> None:
    training = replace(TRAINING, framework="trl", versions={"trl": version})
    change = replace(answer_of({"logits": 5 * GIB}), training=training).best_change
    assert (change is not None and "use_liger_kernel" in change.what) == helps


def said(answer: CommandAnswer) -> str:
    document = doc.Document(
        subject="",
        verdict="",
        tone="good",
        blocks=[*remark_sentences(answer.observed.remarks), *_training(answer)],
        data={},
    )
    return " ".join(printed_document(document, 400).split())


ON_GPU: dict[str, Any] = {"config": ENGINE.config | {"zero_optimization": {}}}
CHANGES: dict[str, tuple[dict[str, int], dict[str, Any], dict[str, Any], Change | None]] = {
    "nothing to save": ({"parameters": 9 * GIB}, {}, {}, None),
    "logits": (
        {"logits": 5 * GIB, "activations": GIB},
        {},
        {},
        Change("a loss that keeps no logits (use_liger_kernel)", 5 * GIB),
    ),
    "no checkpointing": (
        {"activations": 8 * GIB},
        {"checkpointing": False},
        {"recomputes": False},
        Change("gradient checkpointing", 8 * GIB),
    ),
    "evaluation mode": (
        {"activations": 8 * GIB},
        {},
        {"recomputes": False, "in_training_mode": False},
        Change("calling model.train(), so that gradient checkpointing runs", 8 * GIB),
    ),
    "checkpointed activations": ({"activations": 8 * GIB}, {}, {}, None),
    "a large micro batch": (
        {"activations": 6 * GIB, "logits": 2 * GIB},
        {"micro_batch_size": 4},
        {},
        Change("micro batch 1 with 16 accumulation steps", 6 * GIB),
    ),
    "stage 0": (
        {"optimizer states": 16 * GIB, "master weights": 8 * GIB, "gradients": 8 * GIB, "parameters": 4 * GIB},
        {"zero_stage": 0, **ON_GPU},
        {},
        Change("ZeRO stage 1", 21 * GIB),
    ),
    "stage 1": (
        {"optimizer states": GIB, "gradients": 8 * GIB, "parameters": 16 * GIB},
        {"zero_stage": 1},
        {},
        Change("ZeRO stage 3", 14 * GIB),
    ),
    "one GPU": (
        {"optimizer states": 16 * GIB, "parameters": 16 * GIB},
        {"zero_stage": 0, "data_parallel_size": 1, **ON_GPU},
        {},
        None,
    ),
    "shown as 0.00 GiB": ({"activations": 5_000_000}, {}, {}, None),
    "buckets of the default size": (
        {"buckets": 10 * GIB, "optimizer states": GIB},
        {"trainable_parameters": 10_000_000},
        {},
        Change("reduce_bucket_size 10000000", 10 * GIB * 49 // 50, is_free=True),
    ),
    "buckets of a usual size": (
        {"buckets": 2 * GIB},
        {"config": ENGINE.config | {"zero_optimization": {"stage": 2, "reduce_bucket_size": 50_000_000}}},
        {},
        None,
    ),
    "states on the GPU": (
        {"optimizer states": 4 * GIB, "master weights": 2 * GIB},
        ON_GPU,
        {},
        Change("offload of the optimizer to the host", 6 * GIB),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_change_that_helps_most(name: str) -> None:
    by_category, engine, observed, expected = CHANGES[name]
    answer = answer_of(by_category, engine=engine, **observed)
    if expected is None:
        assert answer.best_change is None
    else:
        assert answer.best_change == expected and answer.fit.fits
        words = f"What would help most: {expected.what}, up to {expected.saved_bytes // GIB}"
        assert words not in said(answer), "nobody looks for less where most of the memory is free"
        fuller = replace(answer.result.peak, required_bytes_per_gpu=60 * GIB)
        answer = replace(answer, result=replace(answer.result, peak=fuller))
        assert answer.fit.fits
        assert (words in said(answer)) == expected.is_free, "what costs speed helps only where it does not fit"
        answer.__dict__["fit"] = Fit(0.0, 0.0, reason="needs 2 x VRAM", utilization=2.0, limit="gpu")
        assert words in said(answer)


@pytest.mark.parametrize(
    ("change", "has_option", "words"),
    [
        ({}, True, "It trains in fp32, and the GPU computes in bf16: pass --bf16."),
        ({}, False, "set bf16=True in its TrainingArguments."),
        ({"config": {"bf16": {"enabled": True}}}, True, ""),
        ({"config": {"torch_autocast": {"enabled": True}}}, True, ""),
        ({"trainable_parameters": 1}, True, ""),  # adapters
    ],
)
def test_a_trainer_in_fp32_is_told_its_option(change: dict[str, Any], has_option: bool, words: str) -> None:
    in_fp32 = {"config": {}, "trainable_dtypes": {"float32": 1}, "trainable_parameters": ENGINE.parameters}
    options = (ObservedOption(flags=("--bf16",), value=False, is_switch=False),) * has_option
    answer = answer_of(engine=in_fp32 | change)
    answer = replace(answer, arguments=replace(ARGUMENTS, options=options, trainer={"output_dir": "out"}))
    assert words in said(answer) if words else "trains in fp32" not in said(answer)
    of_deepspeed = replace(TRAINING, framework="deepspeed")
    assert "trains in fp32" not in said(replace(answer, arguments=ARGUMENTS, training=of_deepspeed))


@pytest.mark.parametrize(
    ("words", "said_words"),
    [
        ("accelerate launch acc.py --lr 1", "start `accelerate launch --mixed_precision bf16 acc.py --lr 1`."),
        ("accelerate launch --mixed_precision no a.py", "start `accelerate launch --mixed_precision bf16 a.py`."),
        (
            "accelerate launch acc.py --mixed_precision no",
            "start `accelerate launch --mixed_precision bf16 acc.py --mixed_precision no`.",
        ),
        (
            "accelerate launch -m acc.train --mixed_precision no",
            "start `accelerate launch --mixed_precision bf16 -m acc.train --mixed_precision no`.",
        ),
        (
            "accelerate launch --module --mixed_precision no acc.train --mixed_precision no",
            "start `accelerate launch --module --mixed_precision bf16 acc.train --mixed_precision no`.",
        ),
        ("python acc.py", 'set mixed_precision="bf16" in its Accelerator.'),
    ],
)
def test_a_loop_of_accelerate_in_fp32_is_told_its_option(words: str, said_words: str) -> None:
    in_fp32 = {"config": {}, "trainable_dtypes": {"float32": 1}, "trainable_parameters": ENGINE.parameters}
    answer = replace(answer_of(engine=in_fp32), words=tuple(words.split()))
    assert f"It trains in fp32, and the GPU computes in bf16: {said_words}" in said(answer)


def test_the_batch_of_a_loop_without_a_loader_is_said() -> None:
    assert "tensors 2x2048 tokens" in said(answer_of(batch_shapes={}))


def test_the_training_is_described() -> None:
    text = said(answer_of())
    for part in (
        "model LlamaForCausalLM, 8.03 B parameters, 8.03 B trained in bfloat16",
        "optimizer AdamW fused",
        "engine ZeRO stage 3, optimizer on cpu",
        "tensors pixels 4x3x1024x1024, input_ids 1x2048, attention_mask 1x2048",
        "2048 tokens in every batch",
        "checkpointing on",
        "attention sdpa (flash kernel)",
        "peak 1.0 GiB on the GPU, 2.0 GiB of host memory",
    ):
        assert part in text, (part, text)
    assert "logits" not in text and "other engines" not in text and "evaluation" not in text


@pytest.mark.parametrize(
    ("observed", "part"),
    [
        ({"batch_lengths": (7, 300)}, "7 to 300 tokens"),
        ({"batch_lengths": (300, 300), "searched_batches": 1200}, "300 tokens, the longest of 1,200 batches"),
        ({"recomputes": False}, "checkpointing off"),
        ({"attention": ()}, "math (all scores in memory)"),
        ({"attention": ("flash", "efficient")}, "flash and efficient"),
        ({"logits_bytes": 3 * GIB}, "all of them in memory: 3.0 GiB"),
        ({"logits_bytes": 3 * GIB // 2048}, "all of them in memory: 1.5 MiB"),
        ({"evaluation_cut": True}, "evaluation"),
        ({"in_training_mode": False}, "the model is in evaluation mode. Call model.train()."),
        ({"remarks": ("the command starts 4 processes",)}, "The command starts 4 processes."),
        ({"ended": "steps", "batch_lengths": (7, 300)}, "--longest trains the longest batch"),
        ({"ended": "steps"}, "none repeats the one before it"),
        ({"rows": {"train": 5000}}, "rows the first 2,000 of 5,000 (train)"),
    ],
)
def test_what_differs_is_said(observed: dict[str, Any], part: str) -> None:
    plain, text = said(answer_of()), said(answer_of(**observed))
    assert part in text and part not in plain


def test_a_condition_on_weights_is_said_and_a_number_is_not() -> None:
    condition = InventedNumber(file="/home/me/train.py", line=7, number=0.0, decides=True)
    number = InventedNumber(file="/home/me/train.py", line=9, number=1.0, decides=False)
    text = said(answer_of(invented=(condition, number)))
    assert "train.py:7 has a condition on values of weights" in text and "train.py:9" not in text


@pytest.mark.parametrize(
    ("shapes", "tokens"),
    [
        ({"input_ids": (2, 100), "labels": (2, 90)}, 200 * 32),
        ({"labels": (2, 90), "other": (2, 5)}, 180 * 32),
        ({"pixels": (2, 3, 8, 8)}, 32),
        ({}, 32),
    ],
)
def test_tokens_of_a_step(shapes: dict[str, Any], tokens: int) -> None:
    """8 ranks make 4 micro steps; samples count where there are no tokens."""
    of_samples = replace(answer_of(batch_shapes=shapes).found, training=replace(TRAINING, seq_len=0))
    assert tokens_per_step(of_samples) == tokens


@pytest.mark.parametrize(("held", "shown"), [(5 * GIB, True), (4 * GIB, False)])
def test_what_pinned_blocks_are_rounded_up_is_named(held: int, shown: bool) -> None:
    """8 ranks hold 1 GiB more than their tensors."""
    sizes = {field.name: 0 for field in fields(PhaseMemory) if field.name not in ("iteration", "phase")}
    sizes |= {"host_peak_bytes": 4 * GIB, "host_held_peak_bytes": held}
    plain = answer_of()
    result = replace(plain.result, phases=(PhaseMemory(iteration=1, phase="step", **sizes),))
    notes = " ".join(_notes(replace(plain, result=result)))
    assert ("8.0 of them are added by torch, which rounds a pinned block up to a power of two" in notes) == shown


@pytest.mark.parametrize(
    ("host_gib", "ram", "reason", "headline"),
    [
        (40, None, "if RAM allows", "It fits if the host has 45 GiB of RAM: 13.0 of 23.5 GiB per GPU."),
        (20, None, "fits", "It fits: 13.0 of 23.5 GiB per GPU."),
        (40, "64GB", "fits", "It fits: 13.0 of 23.5 GiB per GPU."),
        (29, "32GB", "likely fits, 93 %", "It probably fits (93 %): 29.0 of 31.4 GiB of host RAM."),
        (40, "32GB", "needs 1.28 x RAM", "It does not fit: 40.0 of 31.4 GiB of host RAM."),
    ],
)
def test_a_dry_run_is_judged_on_ram_as_a_prediction(
    host_gib: int, ram: str | None, reason: str, headline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dry run of a plan that needs more RAM than any usual host has is no proof that it fits."""
    monkeypatch.setattr(CommandAnswer, "required_host_bytes_per_node", host_gib * GIB)
    monkeypatch.setattr(CommandAnswer, "required_device_bytes_per_gpu", 13 * GIB)
    answer = answer_of({"activations": GIB})
    cluster = build_cluster({"gpus": "1x24GB", "ram": ram})
    answer = replace(answer, run=replace(answer.run, cluster=cluster))
    assert (answer.fit.reason, _verdict(answer)) == (reason, headline)
    assert answer.to_json()["assumed_host_bytes"] == (host_bytes_to_fit(40 * GIB) if "if" in reason.split() else 0)


def test_a_ratio_that_is_shown_as_1_is_not_what_is_lacking() -> None:
    cluster = build_cluster({"gpus": "1x24GB", "ram": "64GB"})
    over = cluster.gpu.memory_bytes + GIB // 64
    fit = dry_run_fit(device_bytes=over, transient_bytes=GIB, host_bytes=GIB, cluster=cluster)
    assert fit.reason == "needs 16 MiB more VRAM" and not fit.fits
    ram = cluster.most_host_bytes_per_node + GIB // 32
    fit = dry_run_fit(device_bytes=GIB, transient_bytes=GIB, host_bytes=ram, cluster=cluster)
    assert (fit.reason, fit.limit) == ("needs 32 MiB more RAM", "host")


@pytest.mark.parametrize(
    ("need", "other", "is_told"), [(20, 21, False), (20, 30, True), (75, 76, True), (20, 20, False)]
)
def test_the_other_allocator_is_named_only_where_it_matters(need: int, other: int, is_told: bool) -> None:
    """In GiB of a GPU of 80: by a twentieth of it, or near its end by any difference."""
    answer = answer_of()
    chosen, plain = (Reserved(reserved_bytes_per_gpu=GIB, required_bytes_per_gpu=size * GIB) for size in (need, other))
    peak = replace(
        answer.result.peak,
        required_bytes_per_gpu=need * GIB,
        with_expandable_segments=chosen,
        without_expandable_segments=plain,
    )
    assert bool(_other_allocator(replace(answer, result=replace(answer.result, peak=peak)))[0]) == is_told
