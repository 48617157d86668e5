"""`ds-advise explain KEY`: every key of the engine with its meaning, default, place and cost."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from ds_advise import advise, estimate
from ds_advise.advisor.answer.config_settings import ConfigSettings
from ds_advise.advisor.answer.explained_key import explain_key, is_key
from ds_advise.advisor.answer.key_costs import KeyContext, successor_path
from ds_advise.advisor.answer.key_example import value_at
from ds_advise.advisor.answer.recommendation import Recommendation
from ds_advise.advisor.cli.main import run
from ds_advise.ds_configs.config_keys import CONFIG_KEYS
from ds_advise.estimators.errors import ConfigFileError
from ds_advise.validate.lint import lint, read_document
from ds_advise.validate.lint.facts import ConfigBlock
from ds_advise.validate.lint.unknown_names import OLD_NAMES

from tests.validate.lint.lint_cases import facts


def context_of(answer: Recommendation) -> KeyContext:
    """The context of the recommended plan."""
    assert answer.recommended is not None
    return KeyContext.of_plan(answer.recommended.plan, answer.question, is_recommended=True)


def test_one_peak_of_all_values_is_named_without_a_file_too(capsys: pytest.CaptureFixture[str]) -> None:
    question = ["--model", "Qwen2.5-1.5B", "--gpus", "2x24GB", "--strategy", "zero2", "--micro-batch", "2", "--offline"]
    assert run(["explain", "overlap_comm", *question]) == 0
    assert "whatever the value is." in capsys.readouterr().out


def test_every_key_of_the_engine_has_a_meaning() -> None:
    """Ours, or DeepSpeed's own words; explained without an error, also where its block is a list of keys."""
    explained = {}
    for block in facts().blocks:
        for key in block.names():
            path = block.qualified_path(key)
            if not path.startswith("bfloat16."):
                explained[path] = explain_key(path, facts=facts())
    assert len(explained) > 220
    assert not [path for path, found in explained.items() if not found.meaning]
    blocks = {path: found for path, found in explained.items() if found.keys}
    assert {"zero_optimization", "aio", "checkpoint.writer"} <= set(blocks)
    assert not [path for path, found in blocks.items() if not all(found.keys.values())]


@pytest.mark.parametrize("name", ["overlapcomm", "overlap-comm", "OVERLAP_COMM", "Zero_Optimization.overlap_comm"])
def test_case_and_characters_between_words_are_no_obstacle(name: str) -> None:
    assert explain_key(name, facts=facts()).path == "zero_optimization.overlap_comm"


def test_what_deepspeed_refuses_is_told_and_no_example() -> None:
    """Stages and combinations (lint's DS360); an example has the stage that its key needs."""
    old = explain_key("legacy_stage1", facts=facts())
    assert not old.example and "DeepSpeed refuses it if legacy_stage1 is on above stage 0." in old.acts
    summed = explain_key("gradient_allreduce_op", facts=facts())
    assert any("if gradients are summed at stage 3;" in each for each in summed.acts)
    assert explain_key("super_offload", facts=facts()).example["zero_optimization"]["stage"] == 3
    assert explain_key("loss_scale_window", facts=facts()).type == "a whole number, above 0"


def test_a_block_whose_keys_are_not_listed_says_so() -> None:
    for path in ("data_efficiency", "expert_parallel"):
        assert any(each.startswith("Its keys are not listed here") for each in explain_key(path, facts=facts()).acts)


def test_a_key_is_explained_with_where_it_acts(capsys: pytest.CaptureFixture[str]) -> None:
    """The key is found by its last name; 80 columns suffice; `lint --explain` explains rules only."""
    assert run(["explain", "overlap_comm"]) == 0
    out = capsys.readouterr().out
    facts_of = dict(re.findall(r"^ (\S.*?)  +(\S.*)$", out, re.MULTILINE))
    assert out.startswith(" zero_optimization.overlap_comm\n") and "overlap the reduction" in out
    assert facts_of["default"] == "false, true at stage 3" and facts_of["ZeRO stage"] == "1, 2, 3"
    assert max(map(len, out.splitlines())) <= 80
    assert run(["lint", "--explain", "overlap_comm"]) == 2
    assert "not a rule; write ds-advise explain overlap_comm" in capsys.readouterr().err
    assert run(["explain", "offload_optimizer.buffer_count", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert run(["explain", "zero_optimization"]) == 0
    assert "ZeRO stage  every stage\n" in capsys.readouterr().out
    assert (found["default"], found["default_in_words"]) == (4, "4")
    assert found["acts"] == ["It takes effect only with offload to NVMe."]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("enabled", "fp16.enabled, bf16.enabled"),
        ("overlap_com", "did you mean overlap_comm?"),
        ("zero", "; did you mean zero_optimization?"),
        ("max_grad_norm", "an argument of TrainingArguments; gradient_clipping must agree with it: write ds-advise"),
        ("learning_rate", "; optimizer.params.lr must agree with it: write ds-advise explain optimizer.params.lr"),
        ("lerning_rate", ": learning_rate is an argument of TrainingArguments; optimizer.params.lr must agree"),
        ("per_device_train_batch_size", "; train_micro_batch_size_per_gpu must agree with it"),
        ("adam_beta1", "; optimizer.params.betas must agree with it"),
        ("optim", ": it is an argument of TrainingArguments; in a question it is --optimizer NAME"),
        ("eval_accumulation_steps", ": it is an argument of TrainingArguments; pass it to TrainingArguments"),
        ("no_cuda", ": it was an argument of TrainingArguments that transformers 5 no longer has; use use_cpu\n"),
        ("evaluation_strategy", " that transformers 5 no longer has; use eval_strategy\n"),
        ("evaluation_stratgy", ": evaluation_strategy was an argument of TrainingArguments that transformers 5 no "),
        ("fsdp", "it is an argument of TrainingArguments; write ds-advise explain MODEL --strategy fsdp2\n"),
        ("save_safetensors", " that transformers 5 no longer has; leave it out\n"),
        ("per_device_batch_size", ": per_device_eval_batch_size and per_device_train_batch_size are arguments of "),
        ("gradient_checkpointing", ", and --gradient-checkpointing an option of ds-advise: Recompute"),
        ("seq-len", "--seq-len is an option of ds-advise: Tokens per sample; max: the longest that fits; add it to a"),
        ("risk", "add it to a question: --risk safe|balanced|bold"),
        ("offload", "pass its path: zero_optimization.offload_param, zero_optimization.offload_optimizer, "),
        ("offload_optimiser.device", "did you mean offload_optimizer.device?"),
        ("amp", "; leave it out of the configuration"),
        ("amp", "amp is not in DeepSpeed 0.19"),
        ("mics_shard_size", "zero_optimization.mics_shard_size is not in DeepSpeed 0.19"),
        ("elasticity", "elasticity is not in DeepSpeed 0.19"),
        ("zero.stage", "did you mean zero_optimization.stage?"),
        ("zero_optimization/stage", "did you mean zero_optimization.stage?"),
        ("optimizer.lr", "did you mean optimizer.params.lr?"),
        ("scheduler.warmup_num_steps", "did you mean scheduler.params.warmup_num_steps?"),
        (
            "aio.thread_count",
            "no key 'aio.thread_count': it is now intra_op_parallelism; name aio.intra_op_parallelism",
        ),
        ("thread_count", "no key 'thread_count': it is now intra_op_parallelism; name aio.intra_op_parallelism"),
        ("cpu_offload_params", "did you mean offload_param?"),
        ("zero_optimization.cpu_ofload", "did you mean zero_optimization.offload_optimizer?"),
        ("overlap_comm=true", "did you mean zero_optimization.overlap_comm?"),
        ("overlap_comm:", "did you mean zero_optimization.overlap_comm?"),
        ("grad_accum", "did you mean gradient_accumulation_steps or"),
        ("curriculum_learning", "Use 'data_efficiency.data_sampling.curriculum_learning' instead"),
    ],
)
def test_an_unclear_name_is_answered_with_paths(name: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", name]) == 2
    assert words in capsys.readouterr().err


def test_the_other_name_of_a_key_of_the_root_is_its_path(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that DeepSpeed moves, and one that it renamed."""
    known = facts()
    zero = known.block("zero_optimization")
    assert zero is not None
    old = next(field for field in zero.fields if field.deprecated and field.moves)
    root = ConfigBlock(path="", strict=True, fields=zero.fields)
    assert successor_path(old.name, replace(known, blocks=(root,))) == zero.successor_name(old)
    assert successor_path(f"zero_optimization.{old.name}", known) == f"zero_optimization.{zero.successor_name(old)}"
    monkeypatch.setitem(OLD_NAMES, "old_clipping", "gradient_clipping")
    assert run(["explain", "old_clipping"]) == 2
    assert "it is now gradient_clipping; name gradient_clipping" in capsys.readouterr().err


def test_a_setting_that_changes_no_figure_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """A key that only old versions of torch used, and one of another stage."""
    question = ["explain", "Qwen2.5-1.5B", "--gpus", "2x24GB", "--strategy", "zero2", "--offline", "--json"]
    assert run(question) == 0
    without = capsys.readouterr().out
    assert run([*question, "--set", "allgather_bucket_size=1e8,stage3_prefetch_bucket_size=1e6"]) == 0
    out, error = capsys.readouterr()
    assert out == without
    assert "zero_optimization.allgather_bucket_size: it has no effect at any stage" in error
    assert "zero_optimization.stage3_prefetch_bucket_size: it has no effect at stage 2" in error


def test_a_word_that_is_nothing_is_refused_before_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """There is no GPU here, which is not what is wrong."""
    assert run(["explain", "grad_hooks"]) == 2
    assert "'grad_hooks' is neither a model nor a key" in capsys.readouterr().err
    for key in ("torch_adam", "adam_w_mode", "freeze_step"):
        assert run(["explain", key]) == 0
        assert f"optimizer.params.{key}" in capsys.readouterr().out


def test_models_and_files_are_not_keys() -> None:
    assert is_key("fp16") and not is_key("gpt2") and not is_key("Qwen/Qwen2.5-7B")
    Path("fp16").touch()
    assert not is_key("fp16")


def test_the_cost_is_predicted_by_value() -> None:
    """For the recommended plan; a key that the plan has no use for says why it costs nothing."""
    answer = advise("Qwen2.5-7B", gpus="4xRTX4090", ram="512GB", deepspeed_estimate=False, offline=True)
    context = context_of(answer)
    assert answer.recommended is not None and answer.recommended.plan.zero_stage == 3
    found = explain_key("reduce_bucket_size", facts=facts(), context=context)
    need = [cost.device_bytes_per_gpu for cost in found.costs]
    # In between, a gradient larger than the bucket stays until the next one comes.
    assert len(need) == 5 and min(need) == need[0] < need[-1] == max(need)
    assert found.costs[-1].value == found.default == 500_000_000, "DeepSpeed's default is among the values"
    (own,) = [cost for cost in found.costs if cost.is_the_plans]
    assert own.tokens_per_second == pytest.approx(answer.recommended.tokens_per_s)
    assert found.acts == ('"auto": the Trainer fills in 12,845,056, computed from the hidden size.',)
    assert "NVMe" in explain_key("max_in_cpu", facts=facts(), context=context).no_cost
    for unseen in ("wall_clock_breakdown", "flops_profiler.enabled", "comms_logger.enabled", "memory_breakdown"):
        no_cost = explain_key(unseen, facts=facts(), context=context).no_cost
        assert "same in dry runs" in no_cost and "not predicted" in no_cost, "a dry run does not wait for the GPU"
    assert "without engine.compile()" in explain_key("deepcompile", facts=facts(), context=context).no_cost


def test_a_group_of_ranks_has_the_figures_of_the_gpus_of_a_node() -> None:
    answer = advise("Llama-3.1-70B", gpus="4x8xH100", offline=True)
    found = explain_key("zero_hpz_partition_size", facts=facts(), context=context_of(answer))
    assert 8 in [cost.value for cost in found.costs]


def test_a_default_is_its_value_unless_it_depends_on_the_stage() -> None:
    found = {key: explain_key(key, facts=facts()) for key in ("sub_group_size", "overlap_comm", "zero_optimization")}
    assert found["sub_group_size"].default == 1_000_000_000
    assert found["overlap_comm"].default is None
    assert found["overlap_comm"].default_in_words == "false, true at stage 3"
    assert (found["zero_optimization"].default, found["zero_optimization"].default_in_words) == (None, "")


def test_a_key_that_an_option_sets_has_the_figures_of_the_option() -> None:
    """The figures are those of the question with another value, at the same plan."""
    question: dict[str, Any] = {"gpus": "8xH100", "strategy": "zero1", "micro_batch": 1, "global_batch": 32}
    question["offline"] = True
    answer = advise("Qwen2.5-7B", gpus="8xH100", deepspeed_estimate=False, offline=True)
    context = context_of(answer)
    assert context.plan.strategy == "zero1" and context.plan.micro_batch_size == 1
    checkpointing = "on" if context.plan.gradient_checkpointing else "off"
    question |= {"gradient_checkpointing": checkpointing, "loss": context.workload.loss}
    for key, option, value in (
        ("bf16.enabled", "precision", "fp32"),
        ("fp16.enabled", "precision", "fp16"),
        ("optimizer.type", "optimizer", "sgd"),
        ("train_batch_size", "global_batch", 64),
    ):
        found = explain_key(key, facts=facts(), context=context)
        (cost,) = [each for each in found.costs if each.value == value]
        (own,) = [each for each in found.costs if each.is_the_plans]
        other = estimate("Qwen2.5-7B", **question | {option: value})
        assert cost.fits == other.fits
        assert found.option == option and own.tokens_per_second != cost.tokens_per_second
        assert cost.tokens_per_second == pytest.approx(other.tokens_per_second), key
        assert cost.device_bytes_per_gpu == other.device_bytes_per_gpu, key


def test_a_setting_that_an_option_sets_names_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    question = ["explain", "Qwen2.5-1.5B", "--gpus", "2x24GB", "--strategy", "zero2", "--offline"]
    assert run([*question, "--set", "bf16.enabled=false,wall_clock_breakdown=true"]) == 0
    error = capsys.readouterr().err
    assert "bf16.enabled: it follows --precision" in error
    assert "wall_clock_breakdown: memory and operations are the same in dry runs" in error


def test_a_key_is_explained_at_the_value_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also without naming the model of a file that records it."""
    path = tmp_path / "own.json"
    zero = {"stage": 2, "overlap_comm": False, "reduce_bucket_size": 30_000_000}
    batch = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}
    path.write_text(json.dumps({**batch, "bf16": {"enabled": True}, "zero_optimization": zero}))
    question = ["--model", "Qwen2.5-0.5B", "--gpus", "2x24GB", "--offline"]
    assert run(["explain", str(path), "reduce_bucket_size", *question]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^> 30,000,000 .* in the file$", out, re.MULTILINE)
    assert 'in the file  {"zero_optimization": {"reduce_bucket_size": 30000000}}' in out
    assert run(["explain", str(path), "reduce_bucket_size", "--gpus", "2x24GB"]) == 0
    assert "--model MODEL --gpus SPEC adds" in capsys.readouterr().out
    assert run(["explain", "nope.json", "--model", "Qwen2.5-0.5B"]) == 2
    assert "nope.json: no such file" in capsys.readouterr().err
    assert run(["rent", str(path)]) == 2
    assert f"write ds-advise lint {path}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "stages"),
    [("ratio", (3,)), ("super_offload", (3,)), ("cpuadam_cores_perc", (3,)), ("pipeline_read", (3,))],
)
def test_a_key_of_an_offload_names_the_stages_that_use_it(name: str, stages: tuple[int, ...]) -> None:
    """Stages 1 and 2 have neither SuperOffload nor NVMe, and refuse a ratio below 1."""
    assert explain_key(name, facts=facts()).stages == stages


def test_predicted_speeds_that_are_not_told_apart_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "reduce_bucket_size", "--model", "Qwen2.5-7B", "--gpus", "8xH100", "--offline"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Speeds within 3 % are not told apart; the faster values take more GPU memory." in out
    assert '"auto" The Trainer fills in' in out and "condition" not in out


def test_a_page_has_no_empty_table_and_no_paragraphs_of_a_block(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "torch_adam"]) == 0
    assert "\n\n\n" not in capsys.readouterr().out
    assert run(["explain", "zero_optimization"]) == 0
    assert len(capsys.readouterr().out.splitlines()) < 130


def test_a_key_has_an_example_that_lint_accepts_and_the_value_of_the_recommended_plan() -> None:
    """Each example is read by lint without a finding on the key's value."""
    examples = {}
    for block in facts().blocks:
        for key in block.names():
            path = block.qualified_path(key)
            if not path.startswith("bfloat16.") and (example := explain_key(path, facts=facts()).example):
                examples[path] = example
    assert len(examples) > 180
    for path, example in examples.items():
        report = lint(read_document(json.dumps(example).encode(), name="x"), facts=facts())
        assert not [each for each in report.findings if each.code in ("DS010", "DS011", "DS020", "DS022")], path
    answer = advise("Qwen2.5-7B", gpus="4xRTX4090", ram="512GB", deepspeed_estimate=False, offline=True)
    context = context_of(answer)
    found = explain_key("reduce_bucket_size", facts=facts(), context=context)
    assert found.recommended == {"zero_optimization": {"reduce_bucket_size": 50_000_000}}
    assert explain_key("wall_clock_breakdown", facts=facts(), context=context).recommended == {}


def test_no_example_is_refused_or_warned_of() -> None:
    """Alone with a batch size, as DeepSpeed reads it."""
    for block in facts().blocks:
        for path in map(block.qualified_path, block.names()):
            config = {} if path.startswith("bfloat16") else explain_key(path, facts=facts()).example
            text = json.dumps(
                {**({} if "train_batch_size" in config else {"train_micro_batch_size_per_gpu": 1}), **config}
            )
            report = lint(read_document(text.encode(), name="x"), facts=facts(), framework="deepspeed")
            refused = [each.what for each in report.findings if each.severity != "advice" and each.code != "DS858"]
            assert not refused, path  # DS858: a package that this machine lacks
            import_module("deepspeed.runtime.zero.config").DeepSpeedZeroConfig(**config.get("zero_optimization", {}))
    for path, value in (("fp16.hysteresis", 4), ("fp16.initial_scale_power", 12), ("fp16.loss_scale", 128)):
        assert explain_key(path, facts=facts()).example == {"fp16": {"enabled": True, path.partition(".")[2]: value}}
    found = explain_key("overlap_comm", facts=facts()).example
    assert found == {"zero_optimization": {"stage": 2, "overlap_comm": True}}, "true is the default of stage 3"
    found = explain_key("offload_optimizer.device", facts=facts()).example
    assert found == {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}


def test_a_key_that_lint_refuses_in_the_plan_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """DeepSpeed asserts at stages 2 and 3 that gradients are not pre-scaled."""
    asked = ["--model", "Qwen2.5-1.5B", "--gpus", "2x24GB", "--micro-batch", "1", "--offline", "--strategy"]
    for strategy, is_refused in (("zero1", False), ("zero2", True), ("zero3", True)):
        assert run(["explain", "prescale_gradients", *asked, strategy]) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert ("with true, lint has the error DS312: gradients are pre-scaled at stage" in out) == is_refused


def test_a_block_names_its_keys_with_a_cost(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--model", "Qwen2.5-1.5B", "--gpus", "2x24GB", "--micro-batch", "1", "--offline", "--strategy", "zero2"]
    for block, words in (
        ("zero_optimization", "name one of its keys for its cost: stage, contiguous_gradients, reduce_bucket_size,"),
        ("activation_checkpointing", "for each of its keys, memory and operations are the same in dry runs"),
    ):
        assert run(["explain", block, *asked]) == 0
        assert words in " ".join(capsys.readouterr().out.split())
    assert run(["explain", "activation_checkpointing"]) == 0
    assert "and what it costs" not in " ".join(capsys.readouterr().out.split())


def test_a_key_of_a_file_that_has_no_effect_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that DeepSpeed does not know, one that no code reads, and one that it reads as another."""
    path = tmp_path / "ds.json"
    zero = {"stage": 2, "cpu_offload": True, "cpu_offload_use_pin_memory": True}
    path.write_text(json.dumps({"train_micro_batch_size_per_gpu": 1, "moe": {"on": 1}, "zero_optimization": zero}))
    asked = ["--model", "Qwen2.5-1.5B", "--gpus", "2x24GB", "--offline"]
    for more in ([], asked):
        assert run(["explain", str(path), "moe", *more]) == 2
        assert "DeepSpeed has no key 'moe' (DS011 in lint): DeepSpeed never reads it" in capsys.readouterr().err
    for key, words in (
        ("cpu_offload", "DeepSpeed reads it as zero_optimization.offload_optimizer; name that for its cost."),
        ("cpu_offload_use_pin_memory", "it has no effect at any stage."),
    ):
        assert run(["explain", str(path), key, *asked]) == 0
        assert words in " ".join(capsys.readouterr().out.split())


def test_the_rules_of_lint_about_a_key_are_named() -> None:
    assert [rule[:5] for rule in explain_key("sub_group_size", facts=facts()).rules] == ["DS306", "DS307"]
    missing = explain_key("stage3_gather_16bit_weights_on_model_save", facts=facts()).rules
    assert "DS316 ZeRO-3 that saves only shards" in missing, "the mistake is that the key is left out"


def test_a_key_after_a_model_has_its_cost(capsys: pytest.CaptureFixture[str]) -> None:
    """As with `--model`; speeds are compared with the recommended value's."""
    question = ["--gpus", "4xRTX4090", "--ram", "512GB", "--offline"]
    assert run(["explain", "overlap_comm", "--model", "Qwen2.5-7B", *question]) == 0
    out = capsys.readouterr().out
    assert run(["explain", "Qwen2.5-7B", "overlap_comm", *question]) == 0
    assert capsys.readouterr().out == out
    assert re.search(r"^  false .* 0\.\d+ x$", out, re.MULTILINE)
    assert re.search(r"^> true .* recommended$", out, re.MULTILINE)


def test_a_cost_is_announced_only_for_a_key_that_may_have_one(capsys: pytest.CaptureFixture[str]) -> None:
    for key, announced in (("overlap_comm", True), ("bf16.enabled", True), ("tensorboard.job_name", False)):
        assert run(["explain", key]) == 0
        assert ("and what it costs" in " ".join(capsys.readouterr().out.split())) == announced


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigFileError, match="no key 'quantum'"):
        explain_key("quantum", facts=facts())


def test_a_key_of_a_file_without_a_model_has_the_files_value(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.json"
    path.write_text(json.dumps({"train_batch_size": 8, "zero_optimization": {"stage": 2, "overlap_comm": False}}))
    for key, words in (
        ("overlap_comm", 'in the file  {"zero_optimization": {"overlap_comm": false}}'),
        ("stage", 'in the file  {"zero_optimization": {"stage": 2}}'),
        ("scheduler", "in the file  not written"),
    ):
        assert run(["explain", str(path), key]) == 0
        assert words in capsys.readouterr().out
    assert run(["explain", str(path), "optimizer states"]) == 2
    command = f"ds-advise explain {path} 'optimizer states' --model MODEL --gpus 2x24GB"
    assert f"records no model; write {command}" in capsys.readouterr().err


def test_a_name_without_underscores_is_a_key_if_no_part_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    """The plan is that of --strategy, and is not said to be recommended."""
    question = ["explain", "Qwen2.5-1.5B", "--gpus", "2x24GB", "--offline", "--strategy", "zero2-offload"]
    assert run([*question, "stage"]) == 0
    assert re.search(r"^> 2 .* this plan$", capsys.readouterr().out, re.MULTILINE)
    assert run([*question, "gradients"]) == 0
    assert capsys.readouterr().out.startswith(" gradients: ")
    assert run([*question, "quantum"]) == 2
    assert "this plan has no part 'quantum'" in capsys.readouterr().err


def test_other_stages_are_without_the_offload_that_they_do_not_have(capsys: pytest.CaptureFixture[str]) -> None:
    """The figures of stage 2 are those of the strategy with its offload."""
    question: dict[str, Any] = {"gpus": "4xRTX4090", "ram": "512GB", "offline": True}
    answer = advise("Qwen2.5-7B", deepspeed_estimate=False, **question)
    context = context_of(answer)
    assert context.plan.offload_param == "cpu"
    found = explain_key("stage", facts=facts(), context=context)
    assert [cost.value for cost in found.costs] == [0, 1, 2, 3]
    assert [cost.left_out for cost in found.costs][1:] == [("offload_param",), ("offload_param",), ()]
    assert found.costs[0].left_out == ("offload_optimizer", "offload_param")
    assert run(["explain", "stage", "--model", "Qwen2.5-7B", "--gpus", "4xRTX4090", "--ram", "512GB", "--offline"]) == 0
    assert "without\n" in capsys.readouterr().out


def test_a_key_of_the_batch_shows_a_global_batch_that_grows(capsys: pytest.CaptureFixture[str]) -> None:
    """Another micro batch keeps it by accumulation, as far as that goes: a larger one is faster by itself."""
    question = ["--model", "Qwen2.5-1.5B", "--gpus", "2x24GB", "--offline"]
    assert run(["explain", "gradient_accumulation_steps", *question]) == 0
    out = capsys.readouterr().out
    rows = re.findall(r"^[> ] ([\d,]+) +(\d+) .*$", out, re.MULTILINE)
    assert "global batch" in out and len({int(batch) / int(value) for value, batch in rows}) == 1
    micro = ["explain", "train_micro_batch_size_per_gpu", *question, "--micro-batch", "2"]
    assert run([*micro, "--global-batch", "32"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "each with the accumulation that keeps the global batch value GPU GiB" in out
    assert run([*micro, "--global-batch", "4"]) == 0
    assert re.findall(r"^[> ] (\d) +(\d+) ", capsys.readouterr().out, re.MULTILINE) == [
        ("1", "4"),
        ("2", "4"),
        ("4", "8"),
        ("8", "16"),
    ]
    assert run(["explain", "overlap_comm", *question]) == 0
    assert "global batch" not in capsys.readouterr().out


def test_a_key_has_the_figures_of_the_plan_that_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """`explain KEY --model MODEL --strategy NAME` and `explain MODEL KEY --strategy NAME` are one question."""
    asked = ["--gpus", "2xA100-80GB", "--strategy", "zero2", "--json"]
    assert run(["explain", "overlap_comm", "--model", "Qwen2.5-0.5B", *asked]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "zero2" in found["plan"] and not found["is_recommended"]
    assert run(["explain", "Qwen2.5-0.5B", "overlap_comm", *asked]) == 0
    assert json.loads(capsys.readouterr().out) == found


TRAINERS = {
    "train_batch_size": "per_device_train_batch_size x gradient_accumulation_steps of TrainingArguments x the ranks",
    "optimizer.params.betas": "[adam_beta1, adam_beta2] of TrainingArguments",
    "optimizer.params.eps": "adam_epsilon of TrainingArguments",
    "bf16.enabled": "bf16 or bf16_full_eval of TrainingArguments",
    "scheduler.params.total_num_steps": "the number of optimizer steps of the training",
}


def test_what_the_trainer_does_with_a_value_is_what_transformers_does() -> None:
    """Each key is set to "auto" and to another value: transformers fills it in or not, and refuses it or not."""
    from types import SimpleNamespace

    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    for path, words in TRAINERS.items():
        assert explain_key(path, facts=facts()).acts == (
            f'"auto": the Trainer fills in {words}; it refuses a value that differs from it.',
        )
    assert explain_key("warmup_min_lr", facts=facts()).acts == ('"auto": the Trainer fills in 0.',)
    arguments = SimpleNamespace(
        **dict.fromkeys(["bf16", "bf16_full_eval", "fp16", "fp16_full_eval", "save_on_each_node"], False),
        **dict.fromkeys(["world_size", "per_device_train_batch_size", "gradient_accumulation_steps"], 1),
        **dict.fromkeys(
            ["max_grad_norm", "learning_rate", "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay"], 0.25
        ),
        get_warmup_steps=lambda _: 3,
    )
    model = SimpleNamespace(config=SimpleNamespace(hidden_size=64))
    for path, known in CONFIG_KEYS.items():
        for value in ("auto", 77):
            whole: dict[str, Any] = {"zero_optimization": {"stage": 3}}
            *blocks, name = path.split(".")
            node = whole
            for block in blocks:
                node = node.setdefault(block, {})
            node[name] = value
            read = HfTrainerDeepSpeedConfig(whole)
            with contextlib.suppress(ValueError):
                read.trainer_config_process(arguments)
                read.trainer_config_finalize(arguments, model, 10)
            if value == "auto":
                assert (read.get_value(path) != "auto") == (known.fill in ("match", "only")), path
            elif path != "zero_optimization.stage":
                assert bool(read.mismatches) == (known.fill == "match"), path


def test_a_value_that_accelerate_replaces_has_no_effect() -> None:
    from accelerate import DeepSpeedPlugin

    for value in (2000, "auto"):
        plugin = DeepSpeedPlugin(hf_ds_config={"steps_per_print": value, "zero_optimization": {"stage": 0}})
        assert plugin.deepspeed_config["steps_per_print"] == float("inf")
    (act,) = explain_key("steps_per_print", facts=facts()).acts
    assert act.startswith("Under the Trainer or accelerate it has no effect: any value is replaced by infinity")


@pytest.mark.parametrize(
    ("path", "has", "lacks"),
    [
        ("optimizer.params.lr", {"DS155", "DS505"}, {"DS414", "DS907"}),
        ("bf16.enabled", {"DS203", "DS202"}, {"DS416"}),
        ("bf16", {"DS203"}, {"DS416"}),
    ],
)
def test_a_rule_is_listed_at_the_key_that_it_is_about(path: str, has: set[str], lacks: set[str]) -> None:
    """Not at one that the correction of the rule's example also changes, or has in place of another block."""
    listed = {rule.split()[0] for rule in explain_key(path, facts=facts()).rules}
    assert has <= listed and not lacks & listed


def test_a_key_has_a_type_and_a_value_other_than_the_default() -> None:
    """Unless DeepSpeed's default is unknown, or a key has no default and takes anything."""
    found = [
        explain_key(path, facts=facts())
        for block in facts().blocks
        for path in map(block.qualified_path, block.names())
        if not path.startswith("bfloat16.")
    ]
    assert not [key.path for key in found if not key.type and key.default_in_words]
    for key in found:
        if key.default_in_words and key.example:
            default = ConfigSettings(key.example, facts()).default(key.path).value
            assert value_at(key.path, key.example) != default, key.path


def test_a_whole_number_is_shown_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`1e9` of a file, and the default as the table of values has it."""
    path = tmp_path / "own.json"
    path.write_text('{"zero_optimization": {"stage": 2, "reduce_bucket_size": 1e9}}')
    assert run(["explain", str(path), "reduce_bucket_size"]) == 0
    out = capsys.readouterr().out
    assert '{"reduce_bucket_size": 1000000000}' in out and re.search(r"default +500,000,000\n", out)


def test_equal_figures_are_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    question = ["--model", "Qwen2.5-7B", "--gpus", "2x24GB", "--offline"]
    assert run(["explain", "stage3_max_reuse_distance", *question]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "the same predicted figures for every value" in out and "1.00 x" not in out
    assert re.search(
        r"[\d.]+ GiB per GPU, .* for [\d,]+; [\d,]+; .*\. GPU memory peaks at .*, whatever the value is", out
    )
    assert run(["explain", "stage3_prefetch_bucket_size", *question]) == 0
    assert "1.00 x" not in capsys.readouterr().out, "all speeds are the same"


def test_a_word_of_the_trainer_behind_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a model too; a file of TrainingArguments is read by another command, and a file comes first."""
    own, arguments = tmp_path / "own.json", tmp_path / "args.json"
    own.write_text(json.dumps({"train_batch_size": 8, "zero_optimization": {"stage": 2}}))
    arguments.write_text(
        json.dumps({"model_name_or_path": "gpt2", "output_dir": "x", "gradient_accumulation_steps": 4})
    )
    context = ["--model", "Qwen2.5-0.5B", "--gpus", "2x24GB", "--offline"]
    lr = "optimizer.params.lr must agree with it"
    for words, expected in (
        ([str(own), "lerning_rate"], lr),
        ([str(own), "learning_rate", *context], lr),
        (
            [str(arguments)],
            f"is a file of TrainingArguments, not a DeepSpeed configuration; write ds-advise from {arguments}",
        ),
        (
            ["overlap_comm", str(own)],
            f"is a configuration file, and comes first; write ds-advise explain {own} overlap_comm",
        ),
        (["Qwen2.5-0.5B", str(own)], f"write ds-advise explain {own} --model Qwen2.5-0.5B"),
    ):
        assert run(["explain", *words]) == 2
        assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "value", "options", "origin"),
    [
        ("reduce_bucket_size", None, (), "default"),
        ("reduce_bucket_size", 10**8, (), "in the file"),
        ("zero_optimization.stage", 2, (), "in the file"),
        ("optimizer.type", None, (), "assumed"),
        ("optimizer.type", None, ("--optimizer", "lion"), "--optimizer"),
        ("bf16.enabled", True, (), "in the file"),
        ("train_batch_size", "auto", (), "assumed for auto"),
        ("train_batch_size", "auto", ("--global-batch", "64"), "for auto"),
        ("gradient_accumulation_steps", "auto", (), "assumed for auto"),
        ("gradient_accumulation_steps", "auto", ("--global-batch", "16"), "for auto"),
        ("train_micro_batch_size_per_gpu", "auto", (), "assumed for auto"),
        ("train_micro_batch_size_per_gpu", "auto", ("--micro-batch", "2"), "for auto"),
        ("train_batch_size", None, (), "computed"),
    ],
)
def test_the_value_of_a_files_plan_says_where_it_is_from(
    key: str, value: object, options: tuple[str, ...], origin: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config: dict[str, Any] = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}
    config |= {"train_micro_batch_size_per_gpu": 2}
    if value is not None and "_optimization" not in key and "enabled" not in key:
        (config["zero_optimization"] if "bucket" in key else config)[key] = value
    if config.get("train_batch_size") == "auto":
        config["gradient_accumulation_steps"] = "auto"
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps(config))
    asked = ["explain", str(path), key, "--model", "Qwen2.5-1.5B", "--gpus", "2x80GB", "--offline", *options]
    assert run(asked) == 0
    assert re.search(rf"^> .*  {re.escape(origin)}$", capsys.readouterr().out, re.MULTILINE)


def test_a_file_has_its_keys_before_the_parts_of_its_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a model and without one; what the plan has of this name follows."""
    path, asked = tmp_path / "ds_config.json", ("--model", "Qwen2.5-7B", "--gpus", "8xA100-80GB", "--offline")
    offload = {"offload_optimizer": {"device": "cpu"}}
    for block, words in ({}, "optimizer: "), (offload, "a name like this: optimizer states, optimizer on the host."):
        path.write_text(json.dumps({"zero_optimization": {"stage": 2, **block}, "train_micro_batch_size_per_gpu": 1}))
        assert run(["explain", str(path), "optimizer", *asked]) == 0
        page = " ".join(capsys.readouterr().out.split())
        assert page.startswith("optimizer DeepSpeed's or torch's optimizer") and words in page.partition("Read in")[2]
    assert run(["explain", str(path), "zero.stage", *asked]) == 2
    assert "did you mean zero_optimization.stage?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ds_config.jsn", "ds_config.jsn: no such file; write ds_config.json"),
        ("./ds_config.jason", "./ds_config.jason: no such file; write ds_config.json"),
        ("../none/ds_config.jsn", "no such file; name a configuration file"),
        ("broken.json", "broken.json: not JSON: the closing } of the { on line 1 is missing"),
        ("broken.json overlap_comm", "write } where the block ends"),
        ("ds_config.json zero.stage", "did you mean zero_optimization.stage?"),
    ],
)
def test_a_mistaken_file_is_told_before_the_machine(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ds_config.json").write_text('{"zero_optimization": {"stage": 2}}')
    (tmp_path / "broken.json").write_text('{"zero_optimization": {"stage": 2}')
    assert run(["explain", *name.split()]) == 2
    assert words in capsys.readouterr().err


def test_a_type_that_is_not_written_is_no_empty_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`""` is none of the types of communication_data_type."""
    path = tmp_path / "ds_config.json"
    config = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 1}
    path.write_text(json.dumps(config))
    asked = ["explain", str(path), "communication_data_type", "--model", "Qwen2.5-7B", "--gpus", "8xA100-80GB"]
    assert run([*asked, "--offline"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^> unset \(bf16\) .* default$", out, re.MULTILINE) and '""' not in out


def test_a_renamed_key_has_the_name_that_files_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "stage3_gather_fp16_weights_on_model_save"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "The deprecated name of stage3_gather_16bit_weights_on_model_save." in out
    assert len(re.findall(r"\bgather_16bit|\bstage3_gather_16bit", out)) == 1  # DeepSpeed's words name it by its field


_AUTO_BATCH = {
    "zero_optimization": {"stage": 2},
    "bf16": {"enabled": True},
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
}


def test_a_narrow_terminal_has_every_figure_behind_its_title(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps(_AUTO_BATCH))
    key = "train_micro_batch_size_per_gpu"
    assert run(["explain", str(path), key, "--model", "Qwen2.5-7B", "--gpus", "8xA100-80GB", "--offline"]) == 0
    rows = re.findall(r"^(?:  | > )\d: .*(?:\n     .*)*", capsys.readouterr().out, re.MULTILINE)
    assert len(rows) > 2 and all(re.search(r"RAM GiB [\d.]+, tokens/s [\d,]+\n", row) for row in rows)


def test_a_value_that_lint_finds_wrong_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    """The figures alone would recommend it. The configuration has "auto" for the precision of the plan."""
    question = ["--model", "llama-3-8b", "--gpus", "2x8xA100-80GB", "--strategy", "zero3", "--offline"]
    assert run(["explain", "zero_quantized_gradients", *question]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^  true .* DS356 warning$", out, re.MULTILINE)
    assert "With true, lint has DS356 warning: gradients in bf16 are quantized" in out
    assert not re.search(r"^> false .* DS", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("key", "stages"),
    [
        ("ignore_unused_parameters", (1, 2)),
        ("override_module_apply", (3,)),
        ("save_muon_momentum_buffer_in_memory", (3,)),
        ("log_trace_cache_warnings", (3,)),
        ("enable_sanity_checks", (3,)),
        ("cpu_offload_param", (3,)),
        ("cpu_offload", (1, 2, 3)),
        ("legacy_stage1", ()),
        ("leaf_module", (3,)),
        ("leaf_module.classes", (3,)),
        ("allgather_partitions", ()),
    ],
)
def test_stages_are_those_whose_code_reads_the_key(key: str, stages: tuple[int, ...]) -> None:
    assert explain_key(f"zero_optimization.{key}", facts=facts()).stages == stages


def test_an_effect_at_a_stage_without_a_prediction_is_not_denied(capsys: pytest.CaptureFixture[str]) -> None:
    """DeepSpeed takes its BF16_Optimizer at stage 1, and refuses the mix at stage 0."""
    question = ["--model", "llama-3-8b", "--gpus", "8xA100-80GB", "--offline"]
    for strategy, words in (("zero1", "its effect is not predicted; a dry run shows it"), ("ddp", "DS213")):
        assert run(["explain", "data_types.grad_accum_dtype", *question, "--strategy", strategy]) == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert words in printed and "no effect" not in printed


@pytest.mark.parametrize(
    ("key", "default", "condition"),
    [
        ("communication_data_type", "the type of the training: fp16, bf16 or fp32", ""),
        ("data_types.grad_accum_dtype", "the type of the weights", ""),
        ("bf16.immediate_grad_update", "false", "only in DeepSpeed's BF16_Optimizer"),
        ("ignore_unused_parameters", "true", "only with the optimizer in host RAM"),
    ],
)
def test_what_holds_without_a_key_and_when_it_acts_are_told(key: str, default: str, condition: str) -> None:
    found = explain_key(key, facts=facts())
    assert found.default_in_words == default and condition in " ".join(found.acts)


def test_names_of_classes_and_the_strategy_that_uses_a_key_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain_key("optimizer.type", facts=facts()).type.startswith("a name: adagrad, adam, adamw, ")
    assert "WarmupCosineLR" in explain_key("scheduler.type", facts=facts()).type
    question = ["--model", "llama-3-8b", "--gpus", "8xA100-80GB", "--strategy", "zero1", "--offline"]
    assert run(["explain", "sub_group_size", *question]) == 0
    assert "no effect at stage 1; --strategy zero3 has a plan that uses it" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("path", "codes"),
    [
        ("zero_optimization.reduce_scatter", ("DS312",)),
        ("zero_optimization.stage", ("DS302", "DS303")),
        ("zero_optimization.cpu_offload", ("DS014",)),
    ],
)
def test_the_rules_whose_fix_names_a_key_are_first(path: str, codes: tuple[str, ...]) -> None:
    rules = explain_key(path, facts=facts()).rules[:4]
    assert {*codes} <= {each.split()[0] for each in rules}
    assert not any(each.startswith("DS203") for each in explain_key("flops_profiler.enabled", facts=facts()).rules)


def test_a_block_has_its_deprecated_keys_last_and_one_kind_of_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "zero_optimization"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Deprecated: cpu_offload_param (now offload_param), cpu_offload (now offload_optimizer), " in out
    assert "cpu_offload_use_pin_memory No effect: pin_memory in offload_optimizer" in out
    assert "overlap_comm Communication overlaps" in out and "the deprecated name of" not in out


def test_a_block_without_a_class_names_the_documentation(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "data_efficiency"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "keys not listed here; DeepSpeed documents" in out and "config-json" in out and "condition" not in out
