"""Emitted configurations get no error and no warning; each of several hundred broken ones is caught by its code."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

from ds_advise.advisor.question.cluster import parse_cluster
from ds_advise.advisor.question.model_source import load_model
from ds_advise.ds_configs.emit import ds_config
from ds_advise.estimators.optimizers import OPTIMIZERS
from ds_advise.estimators.plan import STRATEGIES
from ds_advise.estimators.workload import Workload

from tests.helpers import preset

from .lint_cases import codes, facts, judged

BASE = {
    "train_batch_size": 16,
    "gradient_accumulation_steps": 2,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 2e-5, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 500, "warmup_num_steps": 50}},
    "zero_optimization": {"stage": 3},
}


def _emitted() -> Iterator[tuple[str, dict[str, Any]]]:
    model = load_model("Qwen2.5-7B", offline=True)
    cluster = parse_cluster("2x4xA100-80GB", ram="1TB", nvme="/local_nvme:4TB")
    kinds = [*itertools.product(("bf16",), OPTIMIZERS), ("fp16", "adamw"), ("fp32", "adamw")]
    for strategy, flavor, (precision, optimizer) in itertools.product(STRATEGIES, ("hf", "deepspeed"), kinds):
        workload = Workload(precision=precision, optimizer=optimizer, framework=flavor)  # type: ignore[arg-type]
        plan = preset(strategy, model, workload, cluster, steps=3)
        if plan.offload_optimizer != "none" and OPTIMIZERS[optimizer].cpu_state_bytes is None:
            continue
        yield flavor, ds_config(plan, model, workload, cluster, flavor=flavor)  # type: ignore[arg-type]


def test_every_configuration_that_this_program_writes_is_clean() -> None:
    """All strategies, flavours, precisions and optimizers, on the ranks that they were made for."""
    assert not codes(judged(BASE), "error", "warning")
    count = 0
    for flavor, config in _emitted():
        report = judged(config, framework=flavor, gpus="2x4xA100-80GB")
        assert not codes(report, "error", "warning"), (config, [finding.what for finding in report.findings])
        count += 1
    assert count > 100


Mutation = tuple[str, dict[str, Any], str]


def _changed(config: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The configuration with another value at a path; its blocks are made where they are missing."""
    changed = copy.deepcopy(config)
    node = changed
    *owners, name = path.split(".")
    for owner in owners:
        node = node.setdefault(owner, {})
    node[name] = value
    return changed


def _mutations() -> Iterator[Mutation]:
    """(what was done, the broken configuration, the code that must find it)."""
    base = BASE
    for block in facts().blocks:
        if block.path in ("bfloat16", "fp16", "") or not block.strict:
            continue
        for field in block.fields:
            key = field.alias or field.name
            yield f"typo {block.path}.{key}", _changed(base, f"{block.path}.{key}_", 1), "DS010"
            if field.type.name not in ("any", "list", "dict", "union"):
                yield f"list {block.path}.{key}", _changed(base, f"{block.path}.{key}", [1]), "DS020"
            if field.type.bounds:
                yield f"bound {block.path}.{key}", _changed(base, f"{block.path}.{key}", -1), "DS020"
            if field.type.name == "bool" and not field.deprecated:
                yield f"text {block.path}.{key}", _changed(base, f"{block.path}.{key}", "true"), "DS022"
    for block in facts().blocks:
        for key in block.keys:
            path = f"{block.path}.{key}" if block.path else key
            yield f"typo {path}", _changed(base, f"{path}_", 1), "DS011"
            if not block.path and facts().block(key) is not None and key not in ("bf16", "aio", "bfloat16"):
                yield f"null {path}", _changed(base, path, None), "DS020"
    for name in (
        "overlap_comm",
        "reduce_bucket_size",
        "offload_optimizer",
        "stage3_max_live_parameters",
        "sub_group_size",
    ):
        yield f"top level {name}", _changed(base, name, 1), "DS012"
    for path in facts().removed:
        yield f"removed {path}", _changed(base, path, {"enabled": True}), "DS013"


def test_systematic_mutations_are_caught_with_the_right_code() -> None:
    """Every key misspelled, of the wrong type, out of range, as text, in the wrong place, null, or of a removed
    feature."""
    count = 0
    for what, config, code in _mutations():
        found = codes(judged(config))
        assert code in found, (what, found)
        count += 1
    assert count >= 300
