"""Batch sizes and groups of GPUs, `auto` and the Trainer (DS1xx)."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from ...ds_configs.config_keys import CONFIG_KEYS
from ...ds_configs.emit import NOT_FILLED_PARAMS
from ...estimators.workload import Framework
from . import rule_conditions as when
from .document import KeyPath
from .facts import DeepSpeedFacts
from .linted_config import LintedConfig
from .rule import Severity, Violation, advice_rule, error_rule, section, violation, warning_rule
from .rule_conditions import Condition, at, that
from .rules_types import CODE_TYPES, MAIN_KEYS, MICRO, STEPS, TOTAL
from .values import json_text

_SOURCE = "runtime/config.py _set_batch_related_parameters, _batch_assertion"
_TRAINER = "transformers/integrations/deepspeed.py HfTrainerDeepSpeedConfig"


def _contradiction(config: LintedConfig) -> Iterator[Violation]:
    total, micro, ranks = config.positive(TOTAL), config.positive(MICRO), _data_parallel_ranks(config)
    # accelerate writes 1 into a file without the key (1.15, utils/dataclasses.py DeepSpeedPlugin.__post_init__)
    assumed = config.framework == "hf" and not config.has(STEPS)
    steps = 1 if assumed else config.positive(STEPS)
    samples, passes = f"{micro} sample{'s' * (micro != 1)} per GPU", f"{steps} accumulation step{'s' * (steps != 1)}"
    factors = {samples: micro, passes: steps}
    gpus = "GPUs" if ranks == config.world_size else "groups of GPUs"
    factors[f"{ranks} {gpus}" if ranks > 1 else "1 GPU"] = ranks
    known = {words: size for words, size in factors.items() if size}
    product = prod(known.values())
    if not total or (total == product if len(known) == 3 else total % product == 0):
        return
    what = f"{TOTAL} is {total}, which is not a multiple of {' x '.join(known)}"
    if len(known) > 1:
        what += f" = {product}"
    if len(known) == 3:
        what = f"{TOTAL} is {total}, but {' x '.join(known)} are {product}"
    if assumed:
        what += f" (accelerate sets {STEPS} to 1, because the file lacks it)"
    fix = f"write {product}" if len(known) == 3 else f"write a multiple of {product}"
    yield violation(TOTAL, what, fix=f"{fix}, or remove it: DeepSpeed computes it" if micro else fix)


def _no_batch(config: LintedConfig) -> Iterator[Violation]:
    if config.get(MICRO) is None and config.get(TOTAL) is None:
        yield violation(MICRO, f"neither {TOTAL} nor {MICRO} is set", missing=((TOTAL,), (MICRO,)))


def _data_parallel_ranks(config: LintedConfig) -> int:
    """The number of ranks that a batch is divided over; 0 if unknown."""
    ranks = config.world_size or 0
    for path in ("sequence_parallel_size", "tensor_parallel.autotp_size"):
        size = config.positive(path) or 1
        ranks = 0 if ranks % size else ranks // size
    return ranks


_HPZ = "zero_optimization.zero_hpz_partition_size"


def _uneven(config: LintedConfig, path: str) -> str:
    return f"{config.positive(path)} does not divide {config.world_size} GPUs"


_within_ranks = Condition(lambda config, path: config.positive(path) <= (config.world_size or 0))

BATCH_RULES = section(
    "Batch sizes and groups of GPUs",
    error_rule(
        "DS101 contradictory batch sizes",
        _contradiction,
        why=f"{TOTAL} must be {MICRO} x {STEPS} x the number of GPUs; otherwise DeepSpeed raises an error",
        source=_SOURCE,
    ),
    error_rule(
        "DS102 no batch size",
        _no_batch,
        why="DeepSpeed derives one of the two from the other, and raises an error if both are missing",
        fix='set train_micro_batch_size_per_gpu to a number, or to "auto" for the Trainer',
        source=_SOURCE,
    ),
    error_rule(
        "DS106 a group size that does not divide the number of GPUs",
        at(
            "sequence_parallel_size",
            when.splits_ranks_unevenly,
            _uneven,
            severity="warning",
            why="DeepSpeed continues with a fraction of a group",
        ),
        at(_HPZ, when.stages(3) & when.splits_ranks_unevenly & _within_ranks, _uneven),
        at("tensor_parallel.autotp_size", when.splits_ranks_unevenly, _uneven),
        at("expert_parallel.autoep_size", when.is_on("expert_parallel.enabled") & when.splits_ranks_unevenly, _uneven),
        why="DeepSpeed splits the GPUs into groups of this size and raises an error; for sequence parallelism it "
        "continues with a fraction of a group",
        fix="choose a divisor of the number of GPUs",
        source="runtime/config.py DeepSpeedConfig.__init__; utils/groups.py _create_zero_param_parallel_group, "
        "_init_tp_mesh_device; module_inject/auto_ep_folding.py",
    ),
    error_rule(
        'DS107 "auto" for the total batch with sequence parallelism',
        at(
            TOTAL,
            when.equals("auto")
            & when.for_trainer
            & that(lambda config: config.positive("sequence_parallel_size") > 1)
            & that(lambda config: config.get("zero_optimization.stage") == 3),
            "the Trainer writes the total as if every GPU had whole samples",
        ),
        why="at stage 3 DeepSpeed compares it with the batch of the groups that share a sample while the model is "
        "built, and raises an error",
        fix="remove train_batch_size: accelerate sets it for the groups",
        source=_TRAINER + ".trainer_config_process; runtime/config.py _batch_assertion",
    ),
)

_ACCELERATES = (
    "zero_optimization.stage",
    "zero_optimization.offload_optimizer.device",
    "zero_optimization.offload_optimizer.nvme_path",
    "zero_optimization.offload_param.device",
    "zero_optimization.offload_param.nvme_path",
    "zero_optimization.stage3_gather_16bit_weights_on_model_save",
)
"""Keys that accelerate's plugin fills from its environment."""


def _unfilled(config: LintedConfig) -> Iterator[Violation]:
    if config.framework == "hf":
        for path in _autos(config.values):
            if not _filled(path) and config.facts.block(".".join(path)) is None:  # DS020 is about a block
                what = 'neither the Trainer nor accelerate replaces "auto" here'
                yield Violation(path=path, what=what, why='accelerate raises an error for an "auto" that is left')
        return
    used = [path for path, (_, condition) in CODE_TYPES.items() if condition.holds(config, path)]
    used.remove("data_types.keep_in_fp32_modules")  # has an "auto" of its own
    for block in ("optimizer.params", "scheduler.params"):
        used += [f"{block}.{name}" for name in config.block(block)]
    for each in dict.fromkeys(used):
        if config.is_auto(each):
            why = "DeepSpeed computes with the text, and raises an error"
            yield violation(each, 'plain DeepSpeed does not replace "auto" here', why=why)


def _dropped(config: LintedConfig) -> Iterator[Violation]:
    for path in _autos(config.values) if config.framework == "deepspeed" else ():
        field = config.facts.find_field(".".join(path)) if config.facts.drops_auto(".".join(path[:-1])) else None
        if field is None or field.deprecated:
            continue
        default = f", which is {json_text(field.default)}" if field.default_known else ""
        # Numbers are tuned by the default too, but what switches a feature is not on.
        severity: Severity | None = None if path[-1] in MAIN_KEYS else "advice"
        yield Violation(
            path=path, what=f'"auto" is dropped: {".".join(path)} has its default{default}', severity=severity
        )


def reader_of(framework: Framework | None, values: Any, facts: DeepSpeedFacts) -> Framework:
    """The reader of a file: plain DeepSpeed, or "hf" for the Trainer, accelerate and the tools on them.

    If none is given, it is assumed. A file must be meant for the Trainer or accelerate if they fill all its "auto"
    values, or if plain DeepSpeed does not replace one of them by its default.
    """
    if framework is not None:
        return "deepspeed" if framework == "deepspeed" else "hf"
    paths = list(_autos(values)) if isinstance(values, dict) else []
    dropped = all(facts.drops_auto(".".join(path[:-1])) for path in paths)
    return "hf" if paths and (all(map(_filled, paths)) or not dropped) else "deepspeed"


def _filled(path: KeyPath) -> bool:
    """Whether the Trainer or accelerate fills an "auto" at this path."""
    known = CONFIG_KEYS.get(".".join(path))
    return (known is not None and known.filled) or ".".join(path) in _ACCELERATES


def _autos(node: dict[str, Any], above: KeyPath = ()) -> Iterator[KeyPath]:
    """The paths of all "auto" values. accelerate searches objects, not lists."""
    for name, value in node.items():
        if isinstance(value, dict):
            yield from _autos(value, (*above, name))
        elif isinstance(value, str) and value == "auto":
            yield (*above, name)


def _in_both(config: LintedConfig) -> Iterator[Violation]:
    for path, known in CONFIG_KEYS.items():
        if config.framework != "hf" or not known.argument or (value := config.number(path)) is None:
            continue
        default, fix = NOT_FILLED_PARAMS.get(path.removeprefix("optimizer.params.")), ""
        if default is not None:  # accelerate refuses "auto" for it
            fix = f"pass {known.argument}={value:g} to TrainingArguments"
        if value != default:
            yield violation(
                path, f"with the Trainer, {path} must be equal to {known.argument} of TrainingArguments", fix=fix
            )


TRAINER_RULES = section(
    "`auto` and the Trainer",
    error_rule(
        'DS151 an "auto" value that is never replaced',
        _unfilled,
        why="only the Trainer and accelerate replace it, and only for some keys: accelerate raises an error for any "
        "that is left; DeepSpeed computes with the text and raises an error",
        fix="write a value, or remove the key",
        source=_TRAINER + "; accelerate/utils/dataclasses.py DeepSpeedPlugin.deepspeed_config_process",
    ),
    error_rule(
        "DS153 no zero_optimization for the Trainer",
        at("zero_optimization", ~when.present & when.for_trainer & ~when.is_on("autotuning.enabled")),
        why="accelerate rejects a configuration without it, even for plain data parallelism",
        fix='add "zero_optimization": {"stage": 0}',
        source="accelerate/utils/dataclasses.py DeepSpeedPlugin.__post_init__",
    ),
    advice_rule(
        "DS154 a number that TrainingArguments also has",
        _in_both,
        why="the Trainer compares them at the start, and raises an error if they differ; a script with accelerate "
        "alone has no TrainingArguments",
        fix='if the script uses the Trainer, write "auto", so that TrainingArguments decides',
        source=_TRAINER + ".fill_match",
    ),
    warning_rule(
        "DS155 a learning rate that TrainingArguments cannot set",
        at(
            "optimizer.params",
            when.for_trainer & when.has_adam & when.is_missing("optimizer.params.lr"),
            "params has no lr",
        ),
        why='the Trainer sets lr only if its value is "auto"; without the key DeepSpeed\'s Adam uses 1e-3 and ignores '
        "learning_rate",
        fix='add "lr": "auto" to optimizer.params',
        source=_TRAINER + ".fill_match; ops/adam/fused_adam.py",
    ),
    warning_rule(
        'DS156 an "auto" value that plain DeepSpeed drops',
        _dropped,
        why='DeepSpeed\'s classes drop "auto" before they read a block, without a message: only the Trainer and '
        "accelerate fill it in",
        fix="write a value, or remove the key",
        source="runtime/config_utils.py DeepSpeedConfigModel.__init__",
    ),
)
