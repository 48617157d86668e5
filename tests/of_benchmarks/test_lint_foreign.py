"""Lint over configurations that other projects train with."""

from __future__ import annotations

import json
from importlib.metadata import version

import pytest
from ds_advise.validate.lint.installed_facts import BUNDLED

from benchmarks.lint.documents import MANUAL, installed_facts, manual
from benchmarks.lint.engine import EngineQuestion, answers
from benchmarks.lint.foreign import engines_verdicts, read_configs
from tests.validate.lint.lint_cases import codes, facts, judged


def test_lint_refuses_what_the_engine_refuses_and_nothing_else() -> None:
    """The engine's verdicts as `python -m benchmarks.lint.foreign --write` wrote them down."""
    deepspeed, configs = read_configs()
    if version("deepspeed") != deepspeed:
        pytest.skip(f"the verdicts are those of DeepSpeed {deepspeed}")
    found = {(each.repository, each.path): each.lint_errors(facts()) for each in configs}
    different = [each for each in configs if bool(each.engine) != bool(found[each.repository, each.path])]
    assert not different, [(each.path, each.engine, found[each.repository, each.path]) for each in different]
    assert len(configs) == len(found) >= 120
    assert 20 < sum(bool(each.engine) for each in configs) < 100
    assert all(each.licence for each in configs)


@pytest.mark.slow
@pytest.mark.usefixtures("engine_in_a_fork")
def test_the_engine_judges_foreign_configurations_as_written_down() -> None:
    """Every twelfth, by transformers', accelerate's and DeepSpeed's own code."""
    deepspeed, configs = read_configs()
    if version("deepspeed") != deepspeed:
        pytest.skip(f"the verdicts are those of DeepSpeed {deepspeed}")
    assert engines_verdicts(configs[::12]) == [each.engine for each in configs[::12]]


AUTO = {"train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"}}
UNFILLED = {**AUTO, "zero_optimization": {"stage": 3, "stage3_max_live_parameters": "auto"}}
MISSPELLED = {**AUTO, "micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}
OVERWRITTEN = {**AUTO, "steps_per_print": "auto", "zero_optimization": {"stage": 2}}
TWO = {**AUTO, "zero_optimization": {"stage": "auto"}}
DROPPED = {
    "train_batch_size": 2,
    "zero_optimization": {
        "stage": 3,
        "stage3_max_live_parameters": "auto",
        "offload_param": {"device": "cpu", "buffer_size": "auto"},
    },
}
LISTED = {
    "autotuning": {"enabled": True},
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": [0, 1], "reduce_bucket_size": [1000, 2000]},
}
INDIVISIBLE = {"train_batch_size": 4, "gradient_accumulation_steps": 8}
READ = {
    "unfilled": (UNFILLED, "hf", "DS151"),
    "misspelled": (MISSPELLED, "hf", "DS151"),
    "overwritten": (OVERWRITTEN, "hf", ""),
    "accelerate's own": (TWO, "hf", ""),
    "dropped by DeepSpeed": (DROPPED, "deepspeed", ""),
    "choices of the autotuner": (LISTED, "deepspeed", ""),
    "no number of ranks": (INDIVISIBLE, "deepspeed", "DS101"),
    "nor of the Trainer's": ({**AUTO, **INDIVISIBLE, "zero_optimization": {"stage": 2}}, "hf", "DS101"),
}


@pytest.mark.parametrize("name", READ)
def test_errors_depend_on_the_reader(name: str) -> None:
    """Accelerate stops at every "auto" that is left; DeepSpeed drops it from the blocks that it checks. Neither takes
    a total batch that the accumulation steps do not divide."""
    config, reader, code = READ[name]
    report = judged(config)
    assert report.framework == reader
    assert codes(report, "error") == ({code} if code else set())


@pytest.mark.slow
@pytest.mark.usefixtures("engine_in_a_fork")
def test_readers_stop_as_lint_says() -> None:
    """The same configurations, by the real readers and the engine."""
    refusals = answers([EngineQuestion(config=json.loads(json.dumps(c)), framework=r) for c, r, _ in READ.values()])  # type: ignore[arg-type]
    assert {name: bool(words) for name, words in zip(READ, refusals, strict=True)} == {
        name: bool(code) for name, (_, _, code) in READ.items()
    }


def test_the_bundled_facts_and_the_manuals_table_are_current() -> None:
    """`python -m benchmarks.lint.documents --write` renews them."""
    assert MANUAL.read_text(encoding="utf-8") == manual()
    if json.loads(BUNDLED.read_text(encoding="utf-8"))["version"] == facts().version:
        assert BUNDLED.read_text(encoding="utf-8") == installed_facts()
