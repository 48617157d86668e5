"""Values that DeepSpeed takes alone, and refuses at a ZeRO stage or beside another key (DS360)."""

from __future__ import annotations

from collections.abc import Iterator

from ...ds_configs.config_keys import CONFIG_KEYS
from ...estimators.plan import ConfigKey
from ...estimators.units import alternatives
from . import rule_conditions as when
from .linted_config import LintedConfig
from .rule import STAGE_3, STAGE_12, Violation, error_rule, section, violation
from .rule_conditions import Condition, at, key_name, that
from .rules_types import DTYPES, has_bf16_optimizer
from .values import find_problem, json_text, read_value


def _at_another_stage(config: LintedConfig) -> Iterator[Violation]:
    for known in CONFIG_KEYS.values():
        if known.refused_elsewhere and config.existing_stage not in (None, *known.stages):
            field, value = config.facts.find_field(known.path), config.get(known.path)
            if field is None or value in (None, "auto") or find_problem(field.type, value) is not None:
                continue
            if read_value(field.type, value) != field.default:
                yield _only_at(known, f"{key_name(known.path)} is {json_text(value)} at stage {config.stage}")


def _only_at(known: ConfigKey, what: str) -> Violation:
    stages = alternatives([*map(str, known.stages)])
    why = f"DeepSpeed takes another value than the default only at stage {stages}"
    return violation(known.path, what, why=why, fix=f"remove {key_name(known.path)}, or use stage {stages}")


_ZERO = "zero_optimization."
_ZENFLOW = f"{_ZERO}zenflow"
_SUM, _NORM, _SCRIPT_STEPS = "gradient_allreduce_op", f"{_ZERO}compute_grad_norm", "managed_gradient_accumulation"
_LOSS_SCALE, _EXPERT_TP = "fp16.loss_scale", "expert_parallel.expert_tensor_parallel_size"
_sums = Condition(lambda config, path: config.text(path).lower() == "sum")
_zenflow = that(lambda config: config.has_zenflow)
_deepcompile = when.is_on("compile.deepcompile")
_overlaps = when.is_on(f"{_ZERO}overlap_comm")
_never_overlaps = when.is_off(f"{_ZERO}overlap_comm") | (when.stages(0, 1, 2) & ~_overlaps)
"""Without the key only stage 3 overlaps (runtime/zero/config.py overlap_comm_valid)."""
_false = when.present & ~when.truthy
"""As a flag is read that no class checks."""
_autoep = when.is_on("expert_parallel.enabled") & when.stages(3)
_several = when.number(lambda size: size > 1)
_fused_adam = when.has_adam & ~when.offloaded & ~when.torch_adam


def _clips_gradients(config: LintedConfig) -> bool:
    value = config.get("gradient_clipping")
    value = config.facts.default("gradient_clipping") if value is None else config.number("gradient_clipping")
    return (value or 0) > 0


_clips = that(_clips_gradients)


def _selects_by(*strategies: str) -> Condition:
    return that(lambda config: (config.text(f"{_ZENFLOW}.select_strategy") or "auto") in strategies)


_no_interval = that(lambda config: config.get(f"{_ZENFLOW}.select_interval") in (None, "auto"))


def _updates_late(config: LintedConfig) -> bool:
    select, update = (config.positive(f"{_ZENFLOW}.{name}") for name in ("select_interval", "update_interval"))
    return 0 < select < update


def _names_other_type(config: LintedConfig) -> bool:
    return DTYPES.get(config.text("data_types.param_dtype")) not in (None, config.model_type)


def _other_dtype(config: LintedConfig, path: str) -> str:
    return f"param_dtype is {json_text(config.get(path))}, but the weights are {config.model_type}"


REFUSED = (
    at(
        f"{_ZERO}legacy_stage1",
        when.on & when.stages(1, 2, 3),
        "legacy_stage1 is on above stage 0",
        why="the old ZeRO-1 was removed in DeepSpeed 0.5.9, and the engine raises an error for the key",
        fix="remove the key",
    ),
    at(_SUM, _sums & when.stages(3), "gradients are summed at stage 3", fix='write "mean", or use stage 1 or 2'),
    at(
        _SUM,
        _sums & ~when.stages(3) & _zenflow,
        "gradients are summed with zenflow",
        fix='write "mean", or remove zenflow',
    ),
    at(
        _SUM,
        _sums & ~when.stages(3) & _deepcompile,
        "gradients are summed with DeepCompile",
        fix='write "mean", or remove compile.deepcompile',
    ),
    at(
        _NORM,
        when.off & when.stages(1, 2) & _clips,
        "compute_grad_norm is off, and gradients are clipped",
        why="clipping needs the norm",
        fix='remove compute_grad_norm, or write "gradient_clipping": 0',
    ),
    at(
        _NORM,
        when.off & when.stages(1, 2) & ~_clips & when.offloaded,
        "compute_grad_norm is off, and the optimizer is offloaded",
        fix="remove compute_grad_norm, or offload_optimizer",
    ),
    at(
        _NORM,
        when.off & when.stages(1) & ~_clips & ~when.offloaded & has_bf16_optimizer,
        "compute_grad_norm is off, and bf16 gradients are accumulated in fp32",
        fix="remove compute_grad_norm, or use stage 2",
    ),
    at(
        _ZENFLOW,
        _zenflow & when.stages(1, 2) & ~when.offloaded,
        "zenflow has no offloaded optimizer",
        fix='add "offload_optimizer": {"device": "cpu"}, or remove zenflow',
    ),
    at(
        f"{_ZENFLOW}.select_interval",
        _selects_by("auto") & when.number(lambda _: True),
        'select_interval is a number, and select_strategy is "auto"',
        why="the strategy auto has an interval of its own",
        fix='remove select_interval, or write "select_strategy": "step"',
    ),
    at(
        f"{_ZENFLOW}.select_strategy",
        _selects_by("step", "epoch") & _no_interval,
        "select_interval is missing",
        why="a strategy other than auto needs select_interval",
        fix="add select_interval, at least update_interval, or remove select_strategy",
    ),
    at(
        f"{_ZENFLOW}.select_interval",
        _selects_by("step") & that(_updates_late),
        lambda config, path: (
            f"select_interval {config.positive(path)} is below update_interval "
            f"{config.positive(f'{_ZENFLOW}.update_interval')}"
        ),
        fix="write a select_interval of at least update_interval",
    ),
    at(
        f"{_ZENFLOW}.offload",
        when.on & when.stages(1, 2, 3) & _never_overlaps,
        "zenflow offloads its own optimizer without overlap_comm",
        why="ZenFlow's optimizer asserts overlap_comm if it is offloaded",
        fix='set "overlap_comm": true, or remove offload from zenflow',
    ),
    at(
        _SCRIPT_STEPS,
        _false & when.stages(0, 1) & _overlaps,
        lambda config, path: f"{path} is off with overlap_comm at stage {config.stage}",
        fix='write "overlap_comm": false, or use stage 2',
    ),
    at(
        _SCRIPT_STEPS,
        _false & _deepcompile,
        f"{_SCRIPT_STEPS} is off with DeepCompile",
        fix=f"remove {_SCRIPT_STEPS}, or compile.deepcompile",
    ),
    at(
        f"{_ZERO}zero_quantized_weights",
        when.on & when.is_on("torch_autocast.enabled"),
        "weights are quantized under torch_autocast",
        fix="remove zero_quantized_weights, or use bf16 in place of torch_autocast",
    ),
    at(
        "data_types.param_dtype",
        when.decided & that(_names_other_type),
        _other_dtype,
        why="the type of the weights follows the blocks fp16 and bf16",
        fix="remove param_dtype, or enable the block of this type",
    ),
    at(
        _LOSS_SCALE,
        when.lamb & when.number(lambda scale: scale > 0),
        "the optimizer is LAMB, and the loss scale is constant",
        why="the engine asserts that LAMB has dynamic loss scaling",
        fix="remove loss_scale, or write 0: dynamic loss scaling",
    ),
    at(
        "optimizer.params.amsgrad",
        when.on & _fused_adam,
        "amsgrad is on",
        why="DeepSpeed's FusedAdam has no AMSGrad",
        fix='remove amsgrad, or add "torch_adam": true',
    ),
    at(
        f"{_ZERO}allgather_bucket_size",
        when.stages(1, 2) & when.number(lambda size: size % 2 == 1),
        lambda config, path: f"allgather_bucket_size is {config.number(path)}, which is odd",
        why="stages 1 and 2 assert that it is a multiple of 2",
        fix="remove allgather_bucket_size",
    ),
    at(
        "tensor_parallel.tp.tp_size",
        that(lambda config: config.positive("tensor_parallel.autotp_size") > 1)
        & Condition(
            lambda config, path: config.positive(path) not in (0, 1, config.positive("tensor_parallel.autotp_size"))
        ),
        lambda config, path: (
            f"tp_size is {config.positive(path)}, but autotp_size is {config.positive('tensor_parallel.autotp_size')}"
        ),
        fix="remove tp_size",
    ),
    at(
        ("sequence_parallel_size", f"{_ZERO}zero_hpz_partition_size", _EXPERT_TP),
        _autoep & _several,
        lambda config, path: f"{key_name(path)} is {config.positive(path)} with AutoEP at stage 3",
        fix="remove the setting, or use stage 2",
    ),
    at(
        f"{_ZERO}zero_quantized_gradients",
        _autoep & when.on,
        "gradients are quantized with AutoEP at stage 3",
        fix="remove zero_quantized_gradients, or use stage 2",
    ),
)
"""Checks of values that DeepSpeed refuses beside another key."""

COMBINATION_RULES = section(
    "Combinations that DeepSpeed refuses",
    error_rule(
        "DS360 a value that DeepSpeed refuses at this stage or beside another key",
        _at_another_stage,
        *REFUSED,
        why="DeepSpeed raises an error in this case, when the file is read or the engine is built",
        source="runtime/zero/config.py (model_validator); runtime/config.py _do_error_check; runtime/engine.py "
        "_do_sanity_check, _assert_valid_mixed_precision_config, _configure_zero_optimizer; "
        f"{STAGE_12} __init__; {STAGE_3} __init__; runtime/zenflow/zenflow_stage_1_and_2.py, "
        "runtime/zenflow/engine.py configure_zenflow; runtime/torch_autocast.py _validate_auto_cast_settings; "
        "ops/adam/fused_adam.py",
    ),
)
