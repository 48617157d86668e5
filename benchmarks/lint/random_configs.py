"""Random configurations, right and wrong: the same ones for the same seed."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ds_advise.validate.lint.facts import ConfigBlock, ConfigField, DeepSpeedFacts

VALUES: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "data" / "random_settings.json").read_text(encoding="utf-8")
)
"""`junk`: values of any type; `optimizers` and `schedulers`: the first ones are right; `settings`: by key, right and
wrong values."""
JUNK: list[Any] = VALUES["junk"]
RIGHT_OPTIMIZERS, RIGHT_SCHEDULERS = 9, 5
WITHOUT_RULES = {"exps_dir", "initial_scale_power", "results_dir"}
"""Keys whose refusal by DeepSpeed lint leaves to DeepSpeed: none of the recorded configurations has such a value."""
UNFIT = {
    "zenflow",
    "super_offload",
    "leaf_module",
    "zero_quantized_weights",
    "zero_quantized_gradients",
    "zero_quantized_nontrainable_weights",
}
"""Settings that the simulated GPU cannot run (their kernels compute what the engine then reads)."""


def random_configs(count: int, seed: int, facts: DeepSpeedFacts) -> list[dict[str, Any]]:
    """`count` configurations for two ranks: about half of them have nothing wrong."""
    rng = random.Random(seed)
    return [_config(rng, facts) for _ in range(count)]


def with_junk(configs: Sequence[dict[str, Any]], seed: int, facts: DeepSpeedFacts) -> list[dict[str, Any]]:
    """The configurations, each with any value at a key that DeepSpeed knows, in any of its blocks."""
    rng, found = random.Random(seed), []
    blocks = [block for block in facts.blocks if block.path != "bfloat16" and block.names()]
    for config in (copy.deepcopy(config) for config in configs):  # each apart: they share parts
        block = rng.choice(blocks)
        node: Any = config
        for name in block.path.split(".") if block.path else []:
            node = node.setdefault(name, {}) if isinstance(node, dict) else None
        if isinstance(node, dict):
            key = rng.choice(block.names())
            value = rng.choice(JUNK)
            # Apart: what needs a GPU, and a float that the file's reader would make an integer.
            if key not in {"use_gds"} | WITHOUT_RULES and not isinstance(value, float):
                node[key] = copy.deepcopy(value)
                found.append(config)
    return found


def _config(rng: random.Random, facts: DeepSpeedFacts) -> dict[str, Any]:
    wrong = rng.random() < 0.5
    config: dict[str, Any] = _batch(rng, wrong=wrong and rng.random() < 0.3)
    for name, choices in (
        ("optimizer", VALUES["optimizers"][: None if wrong else RIGHT_OPTIMIZERS]),
        ("scheduler", VALUES["schedulers"][: None if wrong else RIGHT_SCHEDULERS]),
    ):
        chosen = rng.choice(choices)
        if chosen is not None and (wrong or rng.random() < 0.8):
            config[name] = chosen
    if not wrong:
        config["zero_allow_untested_optimizer"] = True
    precision = rng.choice(["fp32", "bf16", "fp16"])
    if precision != "fp32":
        block = facts.block(precision)
        assert block is not None
        config[precision] = {"enabled": True, **_fields(rng, block, rng.choice([0, 0, 1, 2]), wrong=wrong)}
    if rng.random() < 0.9:
        config["zero_optimization"] = _zero(rng, facts, wrong=wrong)
    for name in rng.sample(sorted(VALUES["settings"]), rng.choice([0, 1, 1, 2])):
        if name not in config:
            config[name] = rng.choice(VALUES["settings"][name])
    return config


def _batch(rng: random.Random, *, wrong: bool) -> dict[str, Any]:
    if wrong:
        names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
        return {name: rng.choice([1, 2, 3, 4, 0, -2, "2", None]) for name in names if rng.random() < 0.6}
    return rng.choice(
        [
            {"train_batch_size": 2},
            {"train_batch_size": 4, "train_micro_batch_size_per_gpu": 1},
            {"train_micro_batch_size_per_gpu": 2},
            {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2},
        ]
    )


def _zero(rng: random.Random, facts: DeepSpeedFacts, *, wrong: bool) -> Any:
    if wrong and rng.random() < 0.05:
        return rng.choice([True, False, None, "2", []])
    block = facts.block("zero_optimization")
    assert block is not None
    zero = {"stage": rng.choice([0, 1, 2, 2, 3, 3, 3]), **_fields(rng, block, rng.choice([0, 1, 2, 4]), wrong=wrong)}
    for name in ("offload_optimizer", "offload_param"):
        owned = facts.block(f"zero_optimization.{name}")
        assert owned is not None
        if rng.random() < 0.35:
            devices = ["cpu", "cpu", "nvme", "none"]
            zero[name] = {
                "device": rng.choice(devices),
                "nvme_path": "/tmp",
                **_fields(rng, owned, rng.choice([0, 0, 1, 2]), wrong=wrong),
            }
            if wrong and rng.random() < 0.2:
                del zero[name]["nvme_path"]
    return zero


def _fields(rng: random.Random, block: ConfigBlock, count: int, *, wrong: bool) -> dict[str, Any]:
    fields = [field for field in block.fields if not field.block and field.name not in UNFIT | WITHOUT_RULES]
    found = {}
    for field in rng.sample(fields, min(count, len(fields))):
        key = field.alias or field.name
        if wrong and rng.random() < 0.1:
            key += "_"
        junk = wrong and rng.random() < 0.3
        found[key] = rng.choice(JUNK) if junk else _value(rng, field)
    return found


def _value(rng: random.Random, field: ConfigField) -> Any:
    """A value of the field's type; small sizes, as of the model that is run."""
    name = field.type.name
    if field.deprecated:
        return rng.choice([True, False])
    if name == "bool":
        return rng.choice([True, False])
    if name == "int":
        return rng.choice([1, 2, 10, 1000, 99_999, 10**6, 10**9])
    if name == "float":
        return rng.choice([0.5, 1.0, 0])
    if field.type.choices:
        return rng.choice(field.type.choices)
    return field.default if field.default_known else []
