"""Every rule of lint with its two examples, and what all rules have in common."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from ds_advise.ds_configs.conversions import TRUTHS
from ds_advise.probes.installed_packages import source_folder
from ds_advise.validate.lint import RULES, apply, load_facts, read_document
from ds_advise.validate.lint.rule import REMOVAL, Rule
from ds_advise.validate.lint.rules_types import DTYPES
from pydantic import TypeAdapter

from .lint_cases import MORE_BAD, codes, facts, facts_for, judged

DEEPSPEED = "runtime/", "ops/", "utils/", "comm/", "autotuning/", "profiling/", "launcher/"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_a_rule_finds_its_bad_example_and_not_its_good_one(rule: Rule) -> None:
    """The good example has no errors at all. A finding says what and how to fix it, and `--fix` corrects it without
    another error."""
    example, known, options = rule.example, facts_for(rule), rule.example.options
    bad = judged(example.bad, known, **options)
    found = [finding for finding in bad.findings if finding.code == rule.code]
    assert found and rule.why and rule.title and not rule.why.endswith(".")
    assert all(each.what and each.fix and each.line >= 1 and not each.fix.endswith(".") for each in found)
    assert all(each.edits for each in found if each.fix in REMOVAL)
    good = judged(example.good, known, **options)
    assert rule.code not in codes(good) and not codes(good, "error"), [finding.what for finding in good.findings]
    if edits := tuple(edit for finding in found for edit in finding.edits):
        text = example.bad if isinstance(example.bad, str) else json.dumps(example.bad, indent=2)
        corrected, made = apply(read_document(text.encode(), name="x", as_meant=True), edits)
        after = judged(corrected, known, **options)
        assert made and rule.code not in codes(after) and codes(after, "error") <= codes(bad, "error")


@pytest.mark.parametrize(("code", "keys", "what"), MORE_BAD)
def test_a_rule_of_several_keys_finds_each(code: str, keys: dict[str, Any], what: str) -> None:
    """The bad example with other keys."""
    rule = next(rule for rule in RULES if rule.code == code)
    assert isinstance(rule.example.bad, dict)
    found = judged(rule.example.bad | keys, facts_for(rule), **rule.example.options).findings
    assert any(what in finding.what for finding in found if finding.code == code)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_keys_and_values_keep_their_case_at_the_start_of_a_sentence(rule: Rule) -> None:
    example = rule.example.bad
    text = example if isinstance(example, str) else json.dumps(example)
    names = set(re.findall(r"\w+", text))
    for finding in judged(example, facts_for(rule), **rule.example.options).findings:
        first = finding.sentence.split(" ")[0]
        assert finding.sentence == finding.sentence.strip()
        assert first in names or first.lower() not in {name.lower() for name in names}, finding.sentence


def test_an_unknown_optimizer_is_reported_once() -> None:
    config = {"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    found = codes(judged({**config, "optimizer": {"type": "Foo", "params": {"lr": 1e-5}}}))
    assert "DS501" in found and "DS414" not in found


def _corrected(config: dict[str, Any], **options: Any) -> dict[str, Any]:
    report = judged(config, **options)
    corrected: dict[str, Any] = json.loads(apply(report.document, report.edits)[0])
    return corrected


def test_a_misspelled_optimizer_and_its_argument_are_found_and_corrected_together() -> None:
    """A name that is less like a known one may be the script's own, and is left."""
    config = {"train_batch_size": 8, "optimizer": {"type": "AdmW", "params": {"lr": 1e-5, "weight_decy": 0.1}}}
    words = {finding.code: finding.what for finding in judged(config).findings}
    assert "AdmW" in words["DS501"] and words["DS505"] == "AdamW has no argument 'weight_decy'"
    assert _corrected(config)["optimizer"] == {"type": "AdamW", "params": {"lr": 1e-5, "weight_decay": 0.1}}
    own = {"type": "MyAdam", "params": {"lr": 1e-5}}
    assert "DS501" in codes(judged({"train_batch_size": 8, "optimizer": own}))
    assert _corrected({"train_batch_size": 8, "optimizer": own})["optimizer"] == own


@pytest.mark.parametrize(
    ("kind", "proposed"),
    [
        ("Adamw8bit", "AdamW"),
        ("adamw_bnb_8bit", "AdamW"),
        ("PagedAdamW8bit", "AdamW"),
        ("AdamW8", "AdamW"),
        ("MyAdam", "Adam"),
    ],
)
def test_another_optimizer_is_created_in_the_script(kind: str, proposed: str) -> None:
    """The name of DeepSpeed's is another algorithm or another memory, so `--fix` leaves it."""
    config = {"train_batch_size": 8, "optimizer": {"type": kind, "params": {}}, "zero_optimization": {"stage": 2}}
    (found,) = [each for each in judged(config).findings if each.code == "DS501"]
    allowed = 'set "zero_allow_untested_optimizer": true, and create'
    assert found.fix == f'write "{proposed}", or remove the block, {allowed} "{kind}" in the script' and not found.edits


@pytest.mark.parametrize(
    ("kind", "params", "proposed"),
    [
        ("CosineAnnealing", {"warmup_num_steps": 9, "total_num_steps": 99}, "WarmupCosineLR"),
        (
            "CosineAnnealing",
            {"warmup_steps": 9, "T_max": 9},
            "WarmupCosineLR, and in its params add total_num_steps, rename warmup_steps to warmup_num_steps, "
            "remove T_max",
        ),
        ("linear", {"warmup_max_lr": 1e-5, "warmup_num_steps": 9, "total_num_steps": 99}, "WarmupDecayLR"),
        ("WarmupDecay", {"warmup_num_steps": 9, "total_num_steps": 99}, "WarmupDecayLR"),
    ],
)
def test_the_proposed_scheduler_takes_the_wrapped_optimizer_and_the_arguments(
    kind: str, params: dict[str, Any], proposed: str
) -> None:
    config = {"train_batch_size": 8, "bf16": {"enabled": True}, "scheduler": {"type": kind, "params": params}}
    findings = judged(config).findings
    (found,) = [each for each in findings if each.code == "DS501"]
    assert found.fix.replace('"', "") == f"write {proposed}"
    assert "DS505" not in {each.code for each in findings}, "an error of a class that the file does not name"


def test_a_correction_after_which_there_are_more_errors_is_not_made() -> None:
    config = {"train_batch_size": 8, "scheduler": {"type": "CosineAnneal", "params": {"eta_min": 0}}}
    assert _corrected(config | {"bf16": {"enabled": False}})["scheduler"]["type"] == "CosineAnnealingLR"
    (wrapped,) = [each for each in judged(config | {"bf16": {"enabled": True}}).findings if each.code == "DS501"]
    assert not wrapped.edits
    text = {"train_batch_size": 8, "zero_optimization": 3, "optimizer": {"type": "Muon", "params": {}}}
    assert "zero_optimization" in str(judged({"train_batch_size": 8, "zero_optimization": 3}).edits)
    assert not judged(text | {"prescale_gradients": True}).edits, "stage 3 rejects both"


@pytest.mark.parametrize(("text", "corrected"), [("true", True), ("maybe", "maybe"), ("no", "no"), ("", "")])
def test_text_as_a_flag_is_what_deepspeed_takes_it_for(text: str, corrected: object) -> None:
    """Only a text that means what it is taken for is corrected."""
    flag = "zero_allow_untested_optimizer"
    config = {"train_batch_size": 8, flag: text}
    (finding,) = [finding for finding in judged(config).findings if finding.code == "DS023"]
    taken = bool(import_module("deepspeed.runtime.config").get_zero_allow_untested_optimizer(config))
    assert finding.what == f'{flag} is the text "{text}", which DeepSpeed takes as {str(taken).lower()}'
    assert _corrected(config)[flag] == corrected
    assert "DS023" not in codes(judged({**config, flag: 1})) | codes(judged({"wall_clock_breakdown": text}))


@pytest.mark.parametrize(
    ("path", "text", "fix", "corrected"),
    [
        ("fp16.loss_scale", "dynamic", "write 0, which is dynamic loss scaling", 0),
        (
            "zero_optimization.offload_optimizer.device",
            "gpu",
            'write "none": the states stay on the GPU',
            "none",
        ),
        ("zero_optimization.offload_param.device", "CPU", 'write "cpu"', "cpu"),
        ("fp16.loss_scale", "high", "write a number", "high"),
    ],
)
def test_a_rejected_text_with_a_plain_meaning_is_corrected(path: str, text: str, fix: str, corrected: object) -> None:
    config: dict[str, Any] = {"train_batch_size": 8, "fp16": {"enabled": True}, "zero_optimization": {"stage": 3}}
    *owners, name = path.split(".")

    def block(values: dict[str, Any]) -> dict[str, Any]:
        for owner in owners:
            values = values.setdefault(owner, {})
        return values

    block(config)[name] = text
    (finding,) = [each for each in judged(config).findings if each.code == "DS020"]
    assert finding.fix == fix and block(_corrected(config))[name] == corrected


@pytest.mark.parametrize(
    ("keys", "is_used"),
    [
        ({"zero_optimization": {"stage": 0}}, True),
        ({"zero_optimization": {"stage": 0}, "prescale_gradients": True}, False),
        ({"zero_optimization": {"stage": 0}, "gradient_allreduce_op": "sum"}, False),
        ({"zero_optimization": {"stage": 1}}, False),
        ({"zero_optimization": {"stage": 1, "reduce_scatter": False}}, True),
        ({"zero_optimization": {"stage": 1}, "data_types": {"grad_accum_dtype": "fp32"}}, True),
        ({"zero_optimization": {"stage": 2}}, True),
        ({"zero_optimization": {"stage": 3}}, True),
    ],
)
def test_text_as_the_factor_of_gradients_is_an_error_only_where_it_is_used(keys: dict[str, Any], is_used: bool) -> None:
    config = {"train_batch_size": 8, "bf16": {"enabled": True}, "gradient_predivide_factor": "2", **keys}
    assert ("DS020" in codes(judged(config))) == is_used


@pytest.mark.parametrize(("value", "severity"), [(1e8, "warning"), (1_000_000_000, "advice")])
def test_a_setting_of_stage_3_has_no_effect_below_even_as_the_default(value: float, severity: str) -> None:
    config = {"train_batch_size": 8, "zero_optimization": {"stage": 2, "stage3_max_live_parameters": value}}
    (finding,) = [finding for finding in judged(config).findings if finding.code == "DS302"]
    assert (finding.severity, finding.what) == (severity, "stage3_max_live_parameters has no effect at stage 2")


def test_findings_name_the_missing_key_and_the_command_of_this_model_and_these_gpus() -> None:
    (missing,) = [each for each in judged({"train_micro_batch_size_per_gpu": "auto"}).findings if each.code == "DS153"]
    assert missing.sentence == "zero_optimization is missing"
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}
    (large,) = [each for each in judged(config, model="Qwen2.5-14B", gpus="2x24GB").findings if each.code == "DS901"]
    assert large.fix.startswith(
        "`ds-advise Qwen2.5-14B --gpus 2x24GB --offline` writes a plan that fits: zero3-offload if"
    )
    assert large.severity == "error"  # its memory is beyond that of the GPU by more than the error


def test_what_fits_is_named_where_no_offload_does() -> None:
    """Storage and GPUs that the search finds, for the RAM and for the memory of the GPUs."""
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
    for offload, code in ((zero, "DS902"), ({"stage": 3}, "DS901")):
        config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": offload}
        report = judged(config, model="Qwen2.5-72B", gpus="4xRTX4090", ram="125GiB")
        (fix,) = [each.fix for each in report.findings if each.code == code]
        assert fix.startswith("no stage and no offload fits these machines; a plan fits with `--ram ")
        assert "--nvme PATH:" in fix and "--gpus " in fix


@pytest.mark.parametrize(
    ("stage", "key", "value", "stages", "why"),
    [
        (1, "offload_param", {"device": "cpu"}, "3", "passes it only to the optimizer of stage 3"),
        (2, "offload_param", {"device": "cpu"}, "3", "passes it only to the optimizer of stage 3"),
        (2, "stage3_gather_16bit_weights_on_model_save", True, "3", "only to save the weights that stage 3 partitions"),
        (1, "stage3_prefetch_bucket_size", 9, "3", "only the code of stage 3 uses it"),
        (3, "round_robin_gradients", True, "1 or 2", "only the optimizer of stages 1 and 2 uses it"),
        (0, "reduce_bucket_size", 9, "1, 2 or 3", "passes it only to the optimizers of stages 1 to 3"),
        (0, "overlap_comm", False, "1, 2 or 3", "passes it only to the optimizers of stages 1 to 3"),
        (0, "reduce_scatter", True, "1, 2 or 3", "passes it only to the optimizers of stages 1 to 3"),
        (0, "contiguous_gradients", True, "1, 2 or 3", "passes it only to the optimizers of stages 1 to 3"),
        (2, "offload_optimizer", {"device": "cpu", "super_offload": True}, "3", "only the code of stage 3 uses it"),
    ],
)
def test_a_setting_of_another_stage_says_what_reads_it(stage: int, key: str, value: Any, stages: str, why: str) -> None:
    config = {"train_batch_size": 8, "zero_optimization": {"stage": stage, key: value}}
    (finding,) = [each for each in judged(config).findings if each.code == "DS302"]
    assert finding.fix == f"remove it, or use stage {stages}"
    assert why in finding.why


@pytest.mark.parametrize(
    ("kind", "params", "what"),
    [
        ("WarmupDecayLR", {"warmup_num_steps": 100, "total_num_steps": 50}, "below the 100 of warmup_num_steps"),
        ("WarmupDecayLR", {"total_num_steps": 500}, "below the 1000 of warmup_num_steps (the default)"),
        ("WarmupCosineLR", {"warmup_num_steps": 100, "total_num_steps": 50}, "total_num_steps is 50"),
        ("WarmupLR", {"warmup_min_lr": 1e-3, "warmup_max_lr": 1e-4}, "warmup_min_lr is 0.001, above the 0.0001"),
        ("WarmupDecayLR", {"warmup_num_steps": 50, "total_num_steps": 50}, ""),
        ("WarmupDecayLR", {"warmup_num_steps": "auto", "total_num_steps": 50}, ""),
        ("WarmupLR", {"warmup_min_lr": 0, "warmup_max_lr": 1e-4}, ""),
    ],
)
def test_a_warm_up_ends_within_the_schedule_and_rises(kind: str, params: dict[str, Any], what: str) -> None:
    report = judged({"train_batch_size": 8, "scheduler": {"type": kind, "params": params}})
    found = [each.what for each in report.findings if each.code == "DS611"]
    assert len(found) == bool(what) and all(what in each for each in found)


@pytest.mark.parametrize(("kind", "may_leave_out"), [("WarmupLR", True), ("WarmupDecayLR", False)])
def test_only_the_warm_up_alone_takes_the_optimizers_rate(kind: str, may_leave_out: bool) -> None:
    """Without warmup_max_lr WarmupDecayLR has 0.001."""
    scheduler = {"type": kind, "params": {"warmup_max_lr": 1e-4, "warmup_num_steps": 5, "total_num_steps": 50}}
    optimizer = {"type": "AdamW", "params": {"lr": 1e-5}}
    report = judged({"train_batch_size": 8, "optimizer": optimizer, "scheduler": scheduler})
    (found,) = [each for each in report.findings if each.code == "DS608"]
    assert found.fix == "write the same number in both" + ", or leave warmup_max_lr out" * may_leave_out


def test_a_bucket_below_the_default_is_large_only_on_known_gpus() -> None:
    def advised(elements: float) -> bool:
        zero = {"stage": 2, "overlap_comm": True, "reduce_bucket_size": elements}
        report = judged({"train_batch_size": 8, "bf16": {"enabled": True}, "zero_optimization": zero})
        return "DS314" in {each.code for each in report.findings}

    assert advised(5e8) and not advised(2e8)


@pytest.mark.parametrize("value", [True, False, "true", "False", 1, 0, None, "on"])
@pytest.mark.parametrize(
    "old",
    ["cpu_offload", "cpu_offload_param", "cpu_offload_use_pin_memory", "stage3_gather_fp16_weights_on_model_save"],
)
def test_a_deprecated_key_is_one_finding_whose_edit_keeps_what_deepspeed_reads(old: str, value: object) -> None:
    """Also a truth value as text, which pydantic converts before `new_param_fn`."""
    read = import_module("deepspeed.runtime.zero.config").DeepSpeedZeroConfig
    zero = {"stage": 3, old: value}
    report = judged({"train_batch_size": 8, "bf16": {"enabled": True}, "zero_optimization": zero})
    found = [each for each in report.findings if each.path[-1:] == (old,)]
    if old.startswith("stage3") and value is None:
        assert [each.code for each in found if each.severity == "error"] == ["DS020"]
        assert not any(each.edits for each in found)
        return
    ((finding,), corrected) = found, _corrected({"zero_optimization": zero, "train_batch_size": 8})["zero_optimization"]
    assert finding.code == "DS014" and finding.edits and old not in corrected
    before, after = read(**zero), read(**corrected)
    for name in ("offload_optimizer", "offload_param", "gather_16bit_weights_on_model_save"):
        assert getattr(before, name) == getattr(after, name), name


def test_a_deprecated_key_that_no_code_reads_has_no_effect() -> None:
    """The only one that DeepSpeed's class does not hand to its successor is read nowhere."""
    (unread,) = [each.name for block in facts().blocks for each in block.fields if each.deprecated and not each.moves]
    files = Path(str(source_folder("deepspeed"))).rglob("*.py")
    assert [each.parent.name for each in files if unread in each.read_text("utf-8")] == ["zero"]  # its class
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu"}, unread: True}
    (found,) = judged({"train_batch_size": 8, "bf16": {"enabled": True}, "zero_optimization": zero}).findings
    assert found.what == "cpu_offload_use_pin_memory has no effect" and found.fix.startswith("remove it; pin_memory in")
    assert found.edits


def test_max_grad_norm_beside_gradient_clipping_is_removed() -> None:
    """Moving it would repeat the key."""
    optimizer = {"type": "AdamW", "params": {"lr": 1e-5, "max_grad_norm": 1.0}}
    for clipping, can_fix in ((1.0, True), (0.5, False)):
        config = {"train_batch_size": 8, "gradient_clipping": clipping, "optimizer": optimizer}
        (found,) = [each for each in judged(config, framework="hf").findings if each.code == "DS503"]
        assert (found.fix, bool(found.edits)) == (f"remove it: gradient_clipping is already {clipping}", can_fix)
    (found,) = [
        each for each in judged({"train_batch_size": 8, "optimizer": optimizer}).findings if each.code == "DS503"
    ]
    assert found.fix == 'move it to the top level as "gradient_clipping"'


@pytest.mark.parametrize("keys", [{"prescale_gradients": True}, {"gradient_predivide_factor": 2.0}])
@pytest.mark.parametrize("stage", [2, 3])
def test_scaled_gradients_with_reduce_scatter_are_left_to_the_user(keys: dict[str, Any], stage: int) -> None:
    """Either key can be meant."""
    config = {"train_batch_size": 8, "bf16": {"enabled": True}, **keys}
    (found,) = judged({**config, "zero_optimization": {"stage": stage}}).findings
    assert found.code == "DS312" and not found.edits and '"reduce_scatter": false' in found.fix
    assert not judged({**config, "zero_optimization": {"stage": stage, "reduce_scatter": False}}).findings


@pytest.mark.parametrize(("gpus", "expected"), [("8xA100-80GB", 2), ("2x8xA100-80GB", 0)])
def test_what_zeropp_ignores_on_one_node_is_said(gpus: str, expected: int) -> None:
    """stage3.py `__avg_scatter_grads` quantizes for num_nodes > 1; groups.py takes `min(group_size, world_size)`."""
    zero = {"stage": 3, "zero_quantized_gradients": True, "zero_quantized_weights": True, "zero_hpz_partition_size": 16}
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": zero}
    report = judged({**config, "communication_data_type": "fp16"}, gpus=gpus)
    assert [each.path[-1] for each in report.findings if each.code == "DS357"] == [
        "zero_quantized_gradients",
        "zero_hpz_partition_size",
    ][:expected]


def test_sub_groups_of_an_offloaded_optimizer_are_cast_on_the_host() -> None:
    """stage3.py _prepare_sub_group: without offload alone a sub-group's gradients are flattened on the GPU."""
    zero: dict[str, Any] = {"stage": 3, "offload_optimizer": {"device": "cpu"}}
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": zero}
    assert "DS307" not in codes(judged(config, model="Qwen2.5-7B", gpus="1xH200"))
    del zero["offload_optimizer"]
    assert "DS307" in codes(judged(config, model="Qwen2.5-7B", gpus="1xH200"))


@pytest.mark.parametrize(
    ("code", "zero"),
    [("DS307", {"stage": 3}), ("DS314", {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 5e8})],
)
def test_a_smaller_buffer_is_proposed_only_where_the_predicted_peak_falls(code: str, zero: dict[str, Any]) -> None:
    config = {"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": True}, "zero_optimization": zero}
    assert code not in codes(judged(config, model="llama-3-8b", gpus="8xA100-80GB"))


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_bucket_that_no_gpu_holds_is_an_error(stage: int) -> None:
    def found(**more: Any) -> list[tuple[str, str]]:
        config = {"train_batch_size": 8, "bf16": {"enabled": True}, "zero_optimization": {"stage": stage, **more}}
        return [(each.severity, each.what) for each in judged(config).findings if each.code == "DS314"]

    ((severity, what),) = found(reduce_bucket_size=1e12, overlap_comm=False)
    assert severity == "error" and what.startswith(
        "reduce_bucket_size takes 1,863 GiB per GPU: 1 x 1,000,000,000,000 elements x 2 bytes; "
    )
    assert not found(reduce_bucket_size=5e8, overlap_comm=False)
    assert not found(reduce_bucket_size=1e12, overlap_comm=False, contiguous_gradients=False)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("path", ["disable_allgather", "allgather_size", "zero_optimization.allgather_bucket_size"])
def test_a_key_that_nothing_reads_is_one_advice_at_every_stage(stage: int, path: str) -> None:
    block, _, name = path.rpartition(".")
    zero = {"stage": stage, **({name: 2} if block else {})}
    config = {"train_batch_size": 8, "zero_optimization": zero, **({} if block else {name: 2})}
    (found,) = [each for each in judged(config).findings if each.path[-1] == name]
    assert (found.code, found.severity) == ("DS019", "advice") and name not in json.dumps(_corrected(config))
    assert ("stages 1 and 2 only assert that it is even" in found.why) == (name == "allgather_bucket_size")


@pytest.mark.parametrize(("zenflow", "is_found"), [(None, True), ({}, False)])
def test_zenflow_alone_reads_the_size_of_a_gathered_bucket(zenflow: Any, *, is_found: bool) -> None:
    """null is no block."""
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu"}, "allgather_bucket_size": 2, "zenflow": zenflow}
    assert ("DS019" in codes(judged({"train_batch_size": 8, "zero_optimization": zero}))) == is_found


def test_the_old_form_of_zero_takes_its_bucket_along() -> None:
    """allgather_size beside the object is read by nothing (runtime/zero/config.py read_zero_config_deprecated)."""
    corrected = _corrected({"train_batch_size": 8, "zero_optimization": True, "allgather_size": 5e8})
    assert corrected["zero_optimization"] == {"stage": 1, "allgather_bucket_size": 5e8}
    assert "allgather_size" not in corrected


@pytest.mark.parametrize(("size", "model", "is_found"), [
    (1e14, "", True), (1e9, "", False), (1e14, "Qwen2.5-7B", True), (1e8, "Qwen2.5-7B", False),
    (1e14, "Qwen2.5-0.5B", False),
])  # fmt: skip
def test_one_sub_group_for_all_on_nvme_is_advised_against(size: float, model: str, is_found: bool) -> None:
    """The swapper's buffers have the size of the largest one."""
    offload = {"device": "nvme", "nvme_path": "/local_nvme"}
    zero = {"stage": 3, "sub_group_size": size, "offload_optimizer": offload}
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": zero}
    options = {"model": model, "gpus": "2xA100-80GB", "ram": "1TB"} if model else {}
    assert ("DS307" in codes(judged(config, **options))) == is_found


def test_numbers_below_zero_are_found_where_they_are_taken_without_a_message() -> None:
    config = {"train_batch_size": 8, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}
    for kind, severity in (("AdamW", "warning"), ("SGD", "error")):
        report = judged({**config, "optimizer": {"type": kind, "params": {"lr": -1e-4}}})
        assert [each.severity for each in report.findings if each.code == "DS024"] == [severity]
        schedule = {"type": "WarmupLR", "params": {"warmup_max_lr": -1e-3}}
        report = judged({**config, "optimizer": {"type": kind, "params": {"lr": 1e-3}}, "scheduler": schedule})
        found = [(each.path[-1], each.severity) for each in report.findings if each.code == "DS024"]
        assert found == [("warmup_max_lr", "warning")], "no optimizer judges what a scheduler sets"
    assert "DS024" in codes(judged({**config, "gradient_clipping": -1}), "warning")


@pytest.mark.parametrize(
    ("params", "what", "severity"),
    [
        ({"betas": [0.9, 1.0]}, "betas[1] is 1, but must be below 1", "warning"),
        ({"betas": [9, 0.99]}, "betas[0] is 9, but must be below 1", "warning"),
        ({"betas": [0.9, -0.1]}, "betas[1] is -0.1, but must be at least 0", "warning"),
        ({"betas": [9, 0.99], "torch_adam": True}, "betas[0] is 9, but must be below 1", "error"),
        ({"betas": [0, 0.99]}, "", ""),
        ({"betas": "auto"}, "", ""),
    ],
)
def test_a_beta_of_one_or_more_is_found(params: dict[str, Any], what: str, severity: str) -> None:
    """torch raises a ValueError for it; DeepSpeed's own Adam computes with it."""
    config = {"train_batch_size": 8, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}
    report = judged({**config, "optimizer": {"type": "AdamW", "params": params}})
    found = [(each.what, each.severity) for each in report.findings if each.code == "DS025"]
    assert found == ([(what, severity)] if what else [])


@pytest.mark.parametrize("name", ["lr", "eps", "weight_decay"])
def test_null_is_no_number_of_deepspeeds_adam(name: str) -> None:
    """Its C++ raises a TypeError at the first step, which no simulated GPU makes. A scheduler replaces a lr."""
    config = {"train_batch_size": 8, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}
    config |= {"optimizer": {"type": "AdamW", "params": {name: None}}}
    report = judged(config)
    assert f"{name} is null, which is not a number" in [each.what for each in report.findings if each.code == "DS020"]
    scheduled = judged({**config, "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-3}}})
    assert ("DS020" in codes(scheduled)) == (name != "lr")


@pytest.mark.parametrize(("stage", "severity"), [(0, "warning"), (1, "error"), (2, "error"), (3, "warning")])
def test_an_optimizer_without_a_type_stops_where_the_stage_needs_one(stage: int, severity: str) -> None:
    """Stage 3 without an optimizer is inference. The name of its class is its type."""
    config = {"train_batch_size": 8, "bf16": {"enabled": True}, "zero_optimization": {"stage": stage}}
    report = judged({**config, "optimizer": {"name": "AdamW", "params": {"lr": 1e-5}}})
    assert [each.severity for each in report.findings if each.code == "DS502"] == [severity]
    assert [each.fix for each in report.findings if each.code == "DS011"] == ["rename it to type"]


def test_the_trainer_is_told_only_that_the_block_does_nothing() -> None:
    block = {"contiguous_memory_optimization": True, "partition_activations": True}
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}, "activation_checkpointing": block}
    assert codes(judged(config, framework="hf")) & {"DS804", "DS805"} == {"DS804"}
    assert codes(judged(config, framework="deepspeed")) & {"DS804", "DS805"} == {"DS805"}


@pytest.mark.parametrize(("value", "fix", "after"), [
    (False, "remove it", {"stage": 3}),
    (True, 'rename it to offload_param, and write {"device": "cpu"}', {"stage": 3, "cpu_offload_params": True}),
])  # fmt: skip
def test_an_old_flag_that_is_off_is_removed(value: bool, fix: str, after: dict[str, Any]) -> None:
    config = {"train_batch_size": 8, "bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}
    config["zero_optimization"] |= {"cpu_offload_params": value}  # type: ignore[operator]
    assert [each.fix for each in judged(config).findings if each.code == "DS010"] == [fix]
    assert _corrected(config)["zero_optimization"] == after


def test_the_reason_names_the_assertion_where_there_is_one() -> None:
    """runtime/config.py _batch_assertion names the size."""
    (found,) = [each for each in judged({"train_batch_size": 0}).findings if each.code == "DS020"]
    assert found.why == "DeepSpeed asserts that each batch size is above 0"


def test_names_of_types_are_deepspeeds() -> None:
    runtime = import_module("deepspeed.runtime.config")
    assert {value: kind.name for kind in runtime.DtypeEnum for value in kind._all_values[1:]} == DTYPES


def test_words_for_true_and_false_are_pydantics() -> None:
    taken = TypeAdapter(bool)
    assert {word: taken.validate_python(word) for word in TRUTHS} == TRUTHS


def test_every_rule_has_a_code_and_names_files_that_deepspeed_has() -> None:
    """A claim that was read in a file can be read there again."""
    folder = source_folder("deepspeed")
    assert folder is not None
    assert len({rule.code for rule in RULES}) == len(RULES) >= 60
    for rule in RULES:
        assert rule.code.startswith("DS") and len(rule.code) == 5 and rule.source
        for name in (word.strip(",;()") for word in rule.source.split()):
            if name.startswith(DEEPSPEED) and name.endswith(".py"):
                assert (folder / name).is_file(), (rule.code, name)


def test_no_remedy_is_guessed_from_another_blocks_key() -> None:
    """wandb takes its key from the environment; comet's key of the same name is another thing."""
    report = judged({"train_batch_size": 8, "wandb": {"enabled": True, "api_key": "0123"}, "workspace": "x"})
    (secret,) = [finding for finding in report.findings if finding.path == ("wandb", "api_key")]
    assert (secret.code, secret.severity) == ("DS855", "error") and "WANDB_API_KEY" in secret.fix
    assert not any("comet" in finding.what + finding.fix for finding in report.findings)
    moved = judged({"train_batch_size": 8, "overlap_comm": True})
    assert any("into zero_optimization" in finding.fix for finding in moved.findings), "it can be nothing else"


@pytest.mark.parametrize("name", ["OneBitAdam", "ZeroOneAdam", "OneBitLamb"])
def test_one_bit_optimizers_are_reported_as_removed(name: str) -> None:
    """They are no typing errors."""
    config = {"train_batch_size": 8, "optimizer": {"type": name, "params": {"lr": 1e-4, "freeze_step": 400}}}
    (finding,) = [finding for finding in judged(config).findings if finding.code == "DS501"]
    assert "removed from DeepSpeed" in finding.what and "correct the name" not in finding.fix


def test_accelerate_takes_an_absent_accumulation_as_1() -> None:
    """A total batch of more micro batches is refused there, and accumulated by plain DeepSpeed."""
    config = {"train_batch_size": 128, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1}}
    assert "DS101" in codes(judged(config, framework="hf", gpus="2xA100-80GB"))
    assert "DS101" not in codes(judged(config, framework="deepspeed", gpus="2xA100-80GB"))


def test_accelerate_does_not_see_the_old_key_of_offload() -> None:
    """It makes DeepSpeed's CPU Adam of the script's AdamW only by offload_optimizer (accelerate 1.15 accelerator.py
    `_prepare_deepspeed`); DeepSpeed refuses torch's (`zero_force_ds_cpu_optimizer`)."""
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2, "cpu_offload": True}}
    assert codes(judged(config, framework="hf"), "error") == {"DS014"}
    for other in ({"framework": "deepspeed"}, {"framework": "hf"}):
        found = judged({**config, "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}}, **other)
        assert "DS014" in codes(found, "warning")


def test_deepspeeds_reader_makes_whole_floats_integers() -> None:
    """`8.0` is 8 to hjson, and a batch size of 8 is right."""
    assert not codes(judged('{"train_batch_size": 8.0}'), "error")


@pytest.mark.parametrize(
    ("scheduler", "zero", "params", "is_used"),
    [
        ({"type": "WarmupLR", "params": {"warmup_max_lr": 1e-5}}, {}, {}, False),
        ({"type": "OneCycle", "params": {"cycle_min_lr": 1e-5, "cycle_max_lr": 1e-4}}, {}, {}, False),
        ({"type": "WarmupLR", "params": {}}, {}, {}, True),
        ({"type": "WarmupCosineLR", "params": {"total_num_steps": 9}}, {}, {}, True),
        ({"type": "WarmupLR", "params": {"warmup_max_lr": 1e-5}}, {"device": "cpu"}, {}, True),
        ({"type": "WarmupLR", "params": {"warmup_max_lr": 1e-5}}, {}, {"torch_adam": True}, True),
    ],
)
def test_a_rate_as_text_is_an_error_unless_a_scheduler_replaces_it_before_its_use(
    scheduler: dict[str, Any], zero: dict[str, str], params: dict[str, Any], is_used: bool
) -> None:
    """DeepSpeedCPUAdam passes it to C++ (`create_adam`, whose alpha is a float), torch's Adam compares it with 0, and
    both do when they are made."""
    config = {
        "train_batch_size": 8,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": "1e-5", **params}},
        "scheduler": scheduler,
        "zero_optimization": {"stage": 2, **({"offload_optimizer": zero} if zero else {})},
    }
    found = [each.fix for each in judged(config).findings if each.path[-1:] == ("lr",) and each.severity == "error"]
    assert found == ["write 1e-05"] * is_used


@pytest.mark.parametrize(
    ("path", "value", "written"),
    [
        ("bf16", True, {"enabled": True}),
        ("bf16", 1, {"enabled": True}),
        ("zero_optimization", 3, {"stage": 3}),
        ("zero_optimization.offload_optimizer", "cpu", {"device": "cpu"}),
        ("optimizer", "AdamW", {"type": "AdamW", "params": {}}),
        ("scheduler", "WarmupLR", {"type": "WarmupLR", "params": {}}),
        ("flops_profiler", True, {"enabled": True}),
        ("zero_optimization", None, None),
        ("zero_optimization.offload_optimizer", True, None),
        ("activation_checkpointing", True, None),
    ],
)
def test_the_value_of_a_blocks_main_key_becomes_the_block(path: str, value: object, written: object) -> None:
    """A block without such a key, or a value that does not suit it, is left."""
    *owners, name = path.split(".")
    inner: dict[str, Any] = {name: value}
    config = {"train_batch_size": 8, **({owners[0]: {"stage": 2, **inner}} if owners else inner)}
    (found,) = [each for each in judged(config).findings if each.code == "DS020"]
    assert bool(found.edits) == (written is not None)
    corrected = _corrected(config)
    assert (corrected[owners[0]] if owners else corrected)[name] == (value if written is None else written)
    if written is not None:
        assert found.fix == f"write {json.dumps(written)}" and not codes(judged(corrected), "error")


def test_auto_for_a_block_is_one_finding_with_the_key_that_the_trainer_fills() -> None:
    config = {"train_micro_batch_size_per_gpu": "auto", "bf16": "auto", "zero_optimization": {"stage": 2}}
    (found,) = [each for each in judged(config).findings if each.path == ("bf16",)]
    assert (found.code, found.fix) == ("DS020", 'write {"enabled": "auto"}')


@pytest.mark.parametrize("value", [True, False])
def test_the_old_form_of_zero_is_reported_and_accelerate_refuses_it(value: bool) -> None:
    """DeepSpeed reads it as stage 1 or 0 (runtime/zero/config.py read_zero_config_deprecated)."""
    config = {"train_batch_size": 8, "bf16": {"enabled": True}, "zero_optimization": value}
    assert import_module("deepspeed.runtime.zero.config").get_zero_config(config).stage == int(value)
    (found,) = [each for each in judged(config, framework="deepspeed").findings if each.code == "DS014"]
    assert found.severity == "warning" and _corrected(config)["zero_optimization"] == {"stage": int(value)}
    assert "DS014" in codes(judged(config, framework="hf"), "error")
    plugin = import_module("accelerate.utils").DeepSpeedPlugin
    with pytest.raises(AttributeError):
        plugin(hf_ds_config=config)


def test_the_fix_of_a_removed_feature_names_a_replacement_only_if_deepspeed_does() -> None:
    zero = {"stage": 3, "mics_shard_size": 8}
    config = {"train_batch_size": 8, "zero_optimization": zero, "sparse_attention": {"mode": "fixed"}}
    config |= {"amp": {"enabled": True}, "sparse_gradients": False, "elasticity": {"enabled": True}}
    fixes = {each.path[-1]: each.fix for each in judged(config).findings if each.code == "DS013"}
    assert fixes == {
        "mics_shard_size": "remove the key, and train without the feature",
        "sparse_attention": "remove the block, and train without the feature",
        "amp": "remove the block, and use DeepSpeed 'fp16', 'bf16', or 'torch_autocast' instead",
        "elasticity": "remove the block, and set train_batch_size / train_micro_batch_size_per_gpu / "
        "gradient_accumulation_steps directly",
        "sparse_gradients": "remove the key",
    }


def test_a_rule_is_silent_for_versions_that_it_does_not_hold_for() -> None:
    """`since` is respected."""
    config = {"train_batch_size": 8, "amp": {"enabled": True}}
    assert "DS013" in codes(judged(config))
    assert "DS013" not in codes(judged(config, replace(facts(), version="0.18.3")))


def test_a_flood_of_findings_is_cut() -> None:
    """A file that is not a configuration at all gives an answer of a readable length, at once. All are counted."""
    report = judged("{" + ",".join(f'"key{index}": 1' for index in range(5000)) + "}")
    assert len(report.shown) == 200 and report.count("warning") == 5000
    assert report.more == len(report.findings) - 200 > 4800


def test_memory_that_the_version_does_not_pin_by_itself_is_named_with_what_it_costs() -> None:
    """DS415 by the default of the version, and DS416, each with the predicted gain where the model is known."""
    block = facts().block("zero_optimization.offload_optimizer")
    assert block is not None and block.field("pin_memory") is not None
    older = replace(
        facts(),
        version="0.19.4",
        blocks=tuple(
            replace(each, fields=tuple(replace(known, default=False) for known in each.fields if known.default is True))
            if each.path == block.path
            else each
            for each in facts().blocks
        ),
    )
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "fp16": {"enabled": True},
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}},
    }
    context = {"model": "Qwen2.5-14B", "gpus": "1xRTX4090", "ram": "500GB"}
    found = {finding.code: finding.what for finding in judged(config, older, **context).findings}
    assert re.search(r"not pinned: copies at most \d.* pinned it is predicted 1\.\d x as fast", found["DS415"])
    assert re.search(r"bf16 is predicted \d\.\d x as fast", found["DS416"])
    assert "DS415" not in codes(judged(config, **context))


def test_without_an_installed_deepspeed_the_bundled_facts_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the report says whose they are."""
    monkeypatch.setattr("ds_advise.validate.lint.installed_facts.installed_version", lambda _package: "")
    found = load_facts()
    assert found.origin == "bundled" and found.block("zero_optimization") is not None
    report = judged({"train_batch_size": 8, "comet": {"enabled": True}}, found)
    assert "DS858" in codes(report, "advice"), "the training's packages are unknown where no DeepSpeed is"


@pytest.mark.parametrize(("framework", "text", "is_corrected"), [
    ("deepspeed", '{"train_batch_size": 8, "wall_clock_breakdown": False, "memory_breakdown": None}', True),
    ("deepspeed", '{"train_batch_size": 8, "wall_clock_breakdown": False,\n"memory_breakdown": false}', False),
    ("deepspeed", '{"wall_clock_breakdown": False,\n"zero_optimization": {"overlap_comm": True,\n"stage": 2}}', True),
    ("deepspeed", '{"wall_clock_breakdown": False, "zero_optimization": {\n"stage": 2}}', True),
    ("hf", '{"train_batch_size": 8, "wall_clock_breakdown": False,\n"zero_optimization": {"stage": 2}}', True),
])  # fmt: skip
def test_a_mistake_is_corrected_if_its_reader_rejects_the_file(framework: str, text: str, is_corrected: bool) -> None:
    """Hjson reads `False,` at the end of a line as text: true, or an error in a block that a class validates. The other
    findings are of what is meant."""
    found = judged(text, framework=framework).findings
    mistakes = [each for each in found if each.code == "DS006"]
    assert mistakes[0].sentence == "False is Python" and mistakes[0].path == ("wall_clock_breakdown",)
    assert all(bool(each.edits) == is_corrected for each in mistakes)
    corrected = apply(judged(text, framework=framework).document, mistakes[0].edits)[0]
    assert ("False" not in corrected) == is_corrected and ("None" in corrected) == ("None" in text)
    assert not {"DS020", "DS022", "DS023"} & {each.code for each in found}


@pytest.mark.parametrize(("path", "value", "why"), [
    ("zero_optimization.stage", "3", "compare with the number 3, so they do not treat it as ZeRO-3"),
    ("bf16.enabled", "true", "the Trainer compares it with its argument bf16, from which any text differs"),
    ("zero_optimization.overlap_comm", "true", "other readers of the file get the text"),
])  # fmt: skip
def test_a_number_as_text_names_who_does_not_convert_it(path: str, value: str, why: str) -> None:
    block, key = path.split(".")
    config = {"train_batch_size": 8, "zero_optimization": {"stage": 2}}
    (found,) = [each for each in judged({**config, block: {key: value}}).findings if each.code == "DS022"]
    assert found.why.startswith("DeepSpeed converts it; ") and why in found.why
