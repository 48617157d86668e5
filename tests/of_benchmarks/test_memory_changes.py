"""The benchmark of the changes that `why` proposes: its configurations, and how it applies a change."""

from __future__ import annotations

import json

from benchmarks.document import written
from benchmarks.memory_changes import CONFIGURATIONS, changed_training


def _lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_each_configuration_is_in_the_table():
    table = written("why.md", "memory_changes")
    cases = _lines(CONFIGURATIONS)
    assert len({case["source"] for case in cases}) == len(cases) >= 30
    for case in cases:
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
