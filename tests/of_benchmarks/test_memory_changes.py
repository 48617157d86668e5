"""The benchmark of the changes that `why` proposes: its configurations, and how it applies a change."""

from __future__ import annotations

import sys

import pytest

from benchmarks import memory_changes
from benchmarks.document import written
from benchmarks.failure_logs import cases
from benchmarks.memory_changes import CONFIGURATIONS, changed_training


def test_each_configuration_is_in_the_table():
    table = written("why.md", "memory_changes")
    failed = cases(CONFIGURATIONS)
    assert len({case["source"] for case in failed}) == len(failed) >= 30
    for case in failed:
        assert f"[{case['model']}, {case['gpus']}, " in table
        assert f"({case['source']})" in table


def test_a_batch_is_changed_where_the_training_has_it():
    change = {
        "file": {"zero_optimization": {"stage": 2}},
        "removed": ["optimizer"],
        "arguments": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 8, "use_liger_kernel": True},
    }
    config = {"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": "auto", "optimizer": {}}

    new, options = changed_training(config, {"accumulation": 2, "seq_len": 4096}, change)

    assert new == {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": "auto",
        "zero_optimization": {"stage": 2},
    }
    assert options == {"accumulation": 8, "seq_len": 4096, "loss": "fused"}


def test_some_trainings_do_not_replace_the_whole_table(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["memory_changes", "--write", "https://a.invalid/1"])
    monkeypatch.setattr(memory_changes, "outcomes", lambda _: [])
    monkeypatch.setattr("benchmarks.document.put", lambda *_: pytest.fail("written"))
    with pytest.raises(SystemExit):
        memory_changes.main()
    assert "--write needs all trainings" in capsys.readouterr().err
