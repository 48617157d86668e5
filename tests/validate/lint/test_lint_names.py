"""What is meant by a key that DeepSpeed does not know, and what `--fix` makes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ds_advise.validate.lint import LintFinding, apply
from ds_advise.validate.lint.unknown_names import OLD_NAMES

from .lint_cases import codes, facts, judged


def _found(config: dict[str, Any], name: str, **options: Any) -> LintFinding:
    (found,) = [each for each in judged(config, **options).findings if each.path and each.path[-1] == name]
    return found


def _corrected(config: dict[str, Any]) -> dict[str, Any]:
    report = judged(config)
    corrected: dict[str, Any] = json.loads(apply(report.document, report.edits)[0])
    return corrected


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("micro_batch_size", "rename it to train_micro_batch_size_per_gpu"),
        ("per_device_train_batch_size", "rename it to train_micro_batch_size_per_gpu"),
        ("batch_size", "rename it to train_batch_size or train_micro_batch_size_per_gpu"),
        ("gradient_accumulation", "rename it to gradient_accumulation_steps"),
        ("gradient_acumulation_steps", "rename it to gradient_accumulation_steps"),
        ("grad_clip", "rename it to gradient_clipping"),
        ("max_grad_norm", "rename it to gradient_clipping"),
        ("learning_rate", "write it as lr in optimizer.params, or set it where the script makes the optimizer"),
        ("pipeline_parallel_size", "remove it, unless the training script reads it"),
        ("gpu", "remove it, unless the training script reads it"),
        ("checkpoint-activations", "remove it, unless the training script reads it"),
    ],
)
def test_a_name_of_another_tool_or_a_shorter_one_is_recognized(name: str, fix: str) -> None:
    """By the names of TrainingArguments, by whole words and their beginnings, and by similar words; a similar name with
    another word is another thing, and so are the same words with a value of another type."""
    assert _found({name: 2, "zero_optimization": {"stage": 2}}, name).fix == fix


def test_a_key_of_an_optimizer_beside_its_params_is_misplaced() -> None:
    optimizer = {"type": "AdamW", "lr": 1e-5, "params": {}}
    found = _found({"train_batch_size": 8, "optimizer": optimizer}, "lr")
    assert (found.code, found.fix) == ("DS012", "move it into optimizer.params")
    found = _found({"train_batch_size": 8, "lr": 1e-5}, "lr")
    assert found.fix == "move it into optimizer.params, or set it where the script makes the optimizer"


def test_no_name_is_proposed_that_is_there() -> None:
    """Two names of one setting would be a repeated key, which DeepSpeed rejects. The name that is said to be set is."""
    config: dict[str, Any] = {"train_batch_size": 8, "batch_size": 8, "zero_optimization": {"stage": 2}}
    assert _found(config, "batch_size").fix == "remove it: train_batch_size is set"
    micro = {"train_micro_batch_size_per_gpu": 4}
    assert _found(micro | {"batch_size": 4}, "batch_size").fix == "remove it: train_micro_batch_size_per_gpu is set"
    for name in ("batch_size", "train_batchsize"):
        assert _found(micro | {name: 32}, name).fix == "rename it to train_batch_size"
    config = {"train_batch_size": 8, "max_grad_norm": 1.0, "clip_grad": 1.0}
    fixes = [_found(config, name).fix for name in ("max_grad_norm", "clip_grad")]
    assert fixes == ["rename it to gradient_clipping", "remove it: max_grad_norm stands for gradient_clipping too"]
    zero = {"stage": 2, "overlap_comm": True, "overlap_com": False}
    config = {"train_batch_size": 8, "zero_optimization": zero}
    found = _found(config, "overlap_com")
    assert found.fix == "remove it: overlap_comm is set" and not found.edits, "the values differ"
    assert _found({"train_batch_size": 8, "zero_optimization": {**zero, "overlap_com": True}}, "overlap_com").edits
    assert _found({**config, "overlap_comm": True}, "overlap_comm").fix == (
        "remove it: zero_optimization.overlap_comm is set"
    )


def test_a_longer_word_of_a_rejected_key_is_renamed_and_not_removed() -> None:
    zero = {"stage": 2, "overlap_communication": True}
    corrected = _corrected({"train_batch_size": 8, "zero_optimization": zero})["zero_optimization"]
    assert corrected == {"stage": 2, "overlap_comm": True}


def test_a_value_that_does_not_suit_the_right_name_is_not_renamed() -> None:
    """The finding says which value suits."""
    config = {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "beta1": 0.9}}}
    assert _found(config, "beta1").fix == "rename it to betas, and write a list of 2 numbers"
    assert _corrected(config) == config


@pytest.mark.parametrize("kind", ["AdamW", "Adam", "Lion"])
@pytest.mark.parametrize("names", [("beta1", "beta2"), ("beta_2", "beta_1"), ("adam_beta1", "adam_beta2")])
def test_two_betas_become_one_list(kind: str, names: tuple[str, str]) -> None:
    values = {name: 0.9 if "1" in name else 0.95 for name in names}
    config = {"train_batch_size": 8, "optimizer": {"type": kind, "params": {"lr": 1e-5, **values, "weight_decay": 0.1}}}
    report = judged(config)
    (found,) = [each for each in report.findings if each.code == "DS505"]
    assert found.fix == 'write "betas": [0.9, 0.95] instead'
    corrected = _corrected(config)
    assert corrected["optimizer"]["params"] == {"lr": 1e-5, "betas": [0.9, 0.95], "weight_decay": 0.1}
    assert not codes(judged(corrected), "error")


@pytest.mark.parametrize("name", ["bfloat", "bfloat_16", "bf_16"])
def test_a_deprecated_block_is_never_proposed(name: str) -> None:
    report = judged({"train_batch_size": 8, name: {"enabled": True}})
    (found,) = report.findings
    assert (found.code, found.fix) == ("DS011", "rename it to bf16")


@pytest.mark.parametrize("old", ["cpu_offload_params", "cpu_ofload_param"])
def test_a_name_like_a_deprecated_one_is_written_as_its_successor(old: str) -> None:
    zero = {"stage": 3, old: True}
    found = _found({"train_batch_size": 8, "bf16": {"enabled": True}, "zero_optimization": zero}, old)
    assert found.fix == 'rename it to offload_param, and write {"device": "cpu"}'


def test_a_misspelled_batch_size_is_one_error() -> None:
    for name in ("train_micro_batch_size", "train_batch_sizes"):
        (found,) = judged({name: 1, "bf16": {"enabled": True}}).findings
        right = "train_batch_size" if name.endswith("s") else "train_micro_batch_size_per_gpu"
        assert (found.code, found.severity, found.path) == ("DS102", "error", (name,))
        assert found.fix == f"rename it to {right}" and f"no key {name!r}" in found.what


def test_an_argument_of_the_trainer_is_the_optimizers() -> None:
    params = {"learning_rate": 1e-5}
    config = {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": params}}
    assert _found(config, "learning_rate").fix == "rename it to lr"
    assert _corrected(config)["optimizer"]["params"] == {"lr": 1e-5}


def test_an_old_name_is_renamed_with_its_value_and_its_successor_has_no_advice() -> None:
    """It would take effect under its new name, so it is left to the user."""
    offload = {"device": "nvme", "nvme_path": "/nvme"}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "aio": {"thread_count": 8},
        "zero_optimization": {"stage": 3, "offload_optimizer": offload},
    }
    found = _found(config, "thread_count")
    assert found.fix == "rename it to intra_op_parallelism" and not found.edits
    assert "DS453" not in codes(judged(config)) and "DS453" in codes(judged({**config, "aio": {}}))


def test_old_names_are_not_read_and_new_ones_are() -> None:
    for path, new in OLD_NAMES.items():
        block, _, old = path.rpartition(".")
        assert old not in facts().block(block).names() and new in facts().block(block).names()  # type: ignore[union-attr]


@pytest.mark.parametrize("path", ["train_batch_size", "bf16.enabled"])
def test_auto_in_other_letters_is_auto(path: str) -> None:
    """The readers compare it exactly."""
    block, _, key = path.rpartition(".")
    config: dict[str, Any] = {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}
    config |= {block: {key: "Auto"}} if block else {key: "Auto"}
    (finding,) = [each for each in judged(config, framework="hf").findings if each.code == "DS020"]
    assert finding.fix == 'write "auto"' and finding.edits
    (finding,) = [each for each in judged(config, framework="deepspeed").findings if each.code == "DS020"]
    assert finding.fix != 'write "auto"'


@pytest.mark.parametrize(
    ("key", "words"),
    [("mixed_precision", '"bf16": {"enabled": true}'), ("gradient_checkpointing", "TrainingArguments")],
)
def test_a_setting_of_another_tool_names_its_place(key: str, words: str) -> None:
    (finding,) = [each for each in judged({"train_batch_size": 8, key: True}).findings if each.code == "DS011"]
    assert words in finding.fix


def test_the_proposed_name_is_whole() -> None:
    zero = {"stage": 3, "stage3_gather_fp16_weights_on_model_save": True}
    (finding,) = [each for each in judged({"train_batch_size": 8, "zero_optimization": zero}).findings if each.edits]
    assert finding.fix == 'write "stage3_gather_16bit_weights_on_model_save": true instead'


@pytest.mark.parametrize(
    ("stage", "keys"),
    [(2, {"leaf_module": {"classes": ["OlmoeSparseMoeBlock"]}}), (3, {"ignore_unused_parameters": False})],
)
def test_a_key_of_another_stage_is_found(stage: int, keys: dict[str, Any]) -> None:
    report = judged({"train_batch_size": 8, "bf16": {"enabled": True}, "zero_optimization": {"stage": stage, **keys}})
    assert codes(report) == {"DS302"}


def test_the_name_of_an_optimizer_is_that_of_its_class() -> None:
    """DeepSpeed reads `adamw` as AdamW; at the start of a sentence it would be Adamw."""
    report = judged({"train_batch_size": 8, "optimizer": {"type": "adamw", "params": {"lr": 1e-5, "other": 1}}})
    assert "AdamW has no argument 'other'" in [each.sentence for each in report.findings]
