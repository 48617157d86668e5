"""`ds-advise explain KEY`: every key of the engine with its meaning, default, place and cost."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from ds_advise import advise
from ds_advise.advisor.answer.explained_key import explain_key, is_key
from ds_advise.advisor.cli.main import run
from ds_advise.estimators.errors import ConfigFileError
from ds_advise.validate.lint import lint, read_document

from tests.validate.lint.lint_cases import facts


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


def test_a_key_is_explained_with_where_it_acts(capsys: pytest.CaptureFixture[str]) -> None:
    """The key is found by its last name; 80 columns suffice; `lint --explain` answers the same."""
    assert run(["explain", "overlap_comm"]) == 0
    out = capsys.readouterr().out
    facts_of = dict(re.findall(r"^ (\S.*?)  +(\S.*)$", out, re.MULTILINE))
    assert out.startswith(" zero_optimization.overlap_comm\n") and "overlap the reduction" in out
    assert facts_of["default"] == "false, true at stage 3" and facts_of["ZeRO stage"] == "1, 2, 3"
    assert max(map(len, out.splitlines())) <= 80
    assert run(["lint", "--explain", "overlap_comm"]) == 0
    assert capsys.readouterr().out == out
    assert run(["explain", "offload_optimizer.buffer_count", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert run(["explain", "zero_optimization"]) == 0
    assert "ZeRO stage  every stage\n" in capsys.readouterr().out
    assert found["default"] == "4" and found["acts"] == ["It takes effect only with offload to NVMe."]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("enabled", "fp16.enabled, bf16.enabled"),
        ("overlap_com", "did you mean overlap_comm?"),
        ("zero", "; did you mean zero_optimization?"),
    ],
)
def test_an_unclear_name_is_answered_with_paths(name: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", name]) == 2
    assert words in capsys.readouterr().err


def test_a_setting_that_changes_no_figure_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """A key that only old versions of torch used, and one of another stage."""
    question = ["explain", "Qwen2.5-1.5B", "--gpus", "2x24GB", "--strategy", "zero2", "--offline", "--json"]
    assert run(question) == 0
    without = capsys.readouterr().out
    assert run([*question, "--set", "allgather_bucket_size=1e8,stage3_prefetch_bucket_size=1e6"]) == 0
    out, error = capsys.readouterr()
    assert out == without
    assert "zero_optimization.allgather_bucket_size: it changes neither memory nor time" in error
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
    assert answer.recommended is not None and answer.recommended.plan.zero_stage == 3
    found = explain_key("reduce_bucket_size", facts=facts(), answer=answer)
    need = [cost.device_bytes_per_gpu for cost in found.costs]
    # In between, a gradient larger than the bucket stays until the next one comes.
    assert len(need) == 5 and min(need) == need[0] < need[-1] == max(need)
    assert str(found.costs[-1].value) == found.default == "500000000", "DeepSpeed's default is among the values"
    (own,) = [cost for cost in found.costs if cost.is_the_plans]
    assert own.tokens_per_s == pytest.approx(answer.recommended.tokens_per_s)
    assert found.acts == ('"auto": the Trainer fills in 12,845,056, computed from the hidden size.',)
    assert "NVMe" in explain_key("max_in_cpu", facts=facts(), answer=answer).no_cost
    assert "neither memory nor time" in explain_key("wall_clock_breakdown", facts=facts(), answer=answer).no_cost


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
    found = explain_key("reduce_bucket_size", facts=facts(), answer=answer)
    assert found.recommended == {"zero_optimization": {"reduce_bucket_size": 50_000_000}}
    assert explain_key("wall_clock_breakdown", facts=facts(), answer=answer).recommended == {}


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


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigFileError, match="no key 'quantum'"):
        explain_key("quantum", facts=facts())
