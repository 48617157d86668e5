"""Keys of the engine's configuration that the predictions do not follow.

`key_effects.json` has the keys that change neither a byte nor an operation of a step in dry runs of the real engine
and, of the others, those whose effect the closed form does not have, with the base configurations at which it does not
(`benchmarks.engine_keys`). A key that it does not have, such as one of a newer DeepSpeed, counts as not followed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ...ds_configs.conversions import is_true
from ...ds_configs.read import UnmodeledFeature, unmodeled_features
from ...estimators.models.families import find_family
from ...estimators.models.model_shape import ModelShape
from ...estimators.plan import PLAN_FIELDS, Plan
from .facts import DeepSpeedFacts

_DECIDED = (
    "bf16.enabled",
    "fp16.enabled",
    "optimizer.",
    "scheduler.",
    "train_batch_size",
    "zero_optimization.offload_optimizer.nvme_path",
    "zero_optimization.offload_param.nvme_path",
)
"""Beginnings of keys that the workload, the batch and the cluster have, unless the file names one."""

BY_SCRIPT = ("data_efficiency", "pipeline")
"""Keys that act only with calls that a script of DeepSpeed's own kind makes: converted layers for random_ltd and the
engine's data sampler (`initialize(training_data=...)`), or a PipelineModule."""


@cache
def _effects() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(__file__).with_name("key_effects.json").read_text(encoding="utf-8"))
    return found


@cache
def without_effect() -> frozenset[str]:
    """Return the keys that change neither a byte nor an operation of a step."""
    return frozenset(_effects()["without_effect"])


@cache
def _followed() -> frozenset[str]:
    return frozenset((*_effects()["followed"], *(known.path for known in PLAN_FIELDS.values())))


def follows(path: str, plan: Plan | None = None) -> bool:
    """Return whether the closed form has the effect of a key, or the key has none: at the stage and the offload of a
    plan, or everywhere."""
    if path in BY_SCRIPT:
        return False
    if path in _effects()["unfollowed"]:
        return plan is not None and not is_unfollowed(path, plan)
    return path in without_effect() or path in _followed() or path.startswith(_DECIDED)


def is_unfollowed(path: str, plan: Plan) -> bool:
    """Return whether dry runs showed an effect of a key at the stage and the offload of a plan that the closed form
    does not have."""
    unfollowed: Mapping[str, list[str]] = _effects()["unfollowed"]
    return bool({*unfollowed.get(path, ())} & _bases(plan))


def _bases(plan: Plan) -> set[str]:
    """Return the base configurations with a plan's stage and offload; all if there is none."""
    device = next((each for each in (plan.offload_optimizer, plan.offload_param) if each != "none"), "")
    wanted = {f"stage {plan.zero_stage}", device, "AutoTP" * (plan.autotp_size > 1)} - {""}
    every: list[str] = _effects()["bases"]
    found = {base for base in every if {*base.split(", ")} - {"fp16"} == wanted - {"AutoTP"}}
    if "AutoTP" in wanted:  # at any stage
        found |= {base for base in every if "AutoTP" in base}
    return found or {*every}


def unpredicted(
    config: Mapping[str, Any], facts: DeepSpeedFacts, plan: Plan, model: ModelShape
) -> Iterator[UnmodeledFeature]:
    """Yield the features and keys of a configuration whose effect on memory and time the closed form does not have."""
    features = [*unmodeled_features(config)]
    yield from features
    leaves = find_family(model).leaf_classes
    for path, value in _written(config, facts):
        known = any(f"{path}.".startswith(f"{feature.key}.") for feature in features)
        known |= path.endswith(".pin_memory") and _pins_alike(config, facts)
        known |= path == "zero_optimization.leaf_module.classes" and value == [*leaves]  # experts are gathered so
        if not known and value not in (None, "auto", facts.default(path)) and not follows(path, plan):
            yield _key(path)
    if plan.autotp_size > 1 and model.tied:
        block = config.get("tensor_parallel")
        if isinstance(block, Mapping) and block.get("vocab_parallel_lm_head") is None:
            yield UnmodeledFeature(
                "tensor_parallel.vocab_parallel_lm_head",
                "a split head",
                "DeepSpeed splits a tied head over the ranks of AutoTP where vocab_parallel_lm_head is not set, and "
                "the predictions have it whole; a dry run shows it",
            )


def _pins_alike(config: Mapping[str, Any], facts: DeepSpeedFacts) -> bool:
    """Return whether all blocks of offload agree on `pin_memory`, which is one setting of a plan."""
    zero = config.get("zero_optimization")
    blocks = [zero.get(name) for name in ("offload_optimizer", "offload_param")] if isinstance(zero, Mapping) else []
    default = facts.default("zero_optimization.offload_optimizer.pin_memory")
    return len({block.get("pin_memory", default) for block in blocks if isinstance(block, Mapping)}) == 1


def _key(path: str) -> UnmodeledFeature:
    return UnmodeledFeature(path, path, not_predicted(path))


def not_predicted(path: str) -> str:
    """Return what the predictions of memory and time have instead of the effect of a key that they do not follow."""
    return _INSTEAD.get(path, "its effect is not predicted; a dry run shows it")


_OF_SCRIPTS = "its effect is not predicted; a dry run of the script that uses it shows it"
_INSTEAD = {
    **dict.fromkeys(BY_SCRIPT, _OF_SCRIPTS),
    # 0.19.8 module_inject/layers.py `AsyncColumnParallel`
    "tensor_parallel.tp_overlap_comm": "all-reduces of the backward pass run beside the gradients of weights, and the "
    "predictions add both; a dry run shows it",
}


def _written(block: Mapping[str, Any], facts: DeepSpeedFacts, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the keys of the engine with their values, under their usual names; none of blocks that are not enabled."""
    known = facts.block(path)
    if known is None:
        return
    if "enabled" in known.names() and path not in ("bf16", "fp16") and not is_true(block.get("enabled")):
        return
    for key, value in block.items():
        field = known.field(key)
        if field is None and key not in known.keys:
            continue
        name = "bf16" if not path and key == "bfloat16" else key if field is None else field.usual_name
        here = f"{path}.{name}".lstrip(".")
        if isinstance(value, Mapping) and facts.block(here) is not None:
            yield from _written(value, facts, here)
        elif here == "optimizer.params" and isinstance(value, Mapping):
            yield from ((f"{here}.{name}", each) for name, each in value.items() if each is not False)
        elif field is not None and field.deprecated:
            continue
        elif not isinstance(value, Mapping) or is_true(value.get("enabled", True)):
            yield here, value
