"""Precision (DS2xx)."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...estimators.phrase import phrase
from . import rule_conditions as when
from .linted_config import LintedConfig
from .rule import Rules, Violation, bad_value, violation
from .rule_conditions import DTYPES, Condition, at

PRECISION_RULES = Rules("Precision")
_CLASSES = "runtime/precision_config.py"
_ENGINE = "runtime/engine.py"
_FP16_MASTERS = "fp16.fp16_master_weights_and_grads"


PRECISION_RULES.error(
    "DS201 fp16 and bf16 both on",
    at("fp16.enabled", when.fp16 & when.bf16, "fp16 and bf16 are both enabled"),
    why="DeepSpeed asserts that at most one of them is",
    fix='keep one of them; "auto" lets the Trainer choose',
    source="runtime/config.py _initialize_params",
)


@PRECISION_RULES.warning(
    "DS202 bf16 on GPUs without bf16",
    why="GPUs before Ampere (compute capability 8.0) emulate it at a fraction of their fp16 speed",
    fix="use fp16",
    source="torch.cuda.is_bf16_supported (emulation counts); NVIDIA data sheets",
)
def old_gpu(config: LintedConfig) -> Iterator[Violation]:
    gpu = config.cluster.gpu if config.cluster is not None else None
    if config.bf16 and gpu is not None and gpu.compute_capability is not None and gpu.compute_capability < 8:
        yield violation(
            f"{config.bf16_block}.enabled",
            "the {name} has compute capability {capability}",
            name=gpu.name,
            capability=f"{gpu.compute_capability:.1f}",
        )


_HALF = ("fp16", "bf16")
_filled = Condition(lambda config, _: any(config.is_auto(f"{name}.enabled") for name in _HALF))
_may_be_accelerates = when.for_trainer & Condition(
    lambda config, _: not any(config.has(name) for name in (*_HALF, "bfloat16"))
)
"""Under accelerate a file without either block gets the block that mixed_precision names."""

PRECISION_RULES.advice(
    "DS203 training in fp32",
    at(
        "bf16",
        ~(when.fp16 | when.bf16 | _filled | _may_be_accelerates | when.is_on("torch_autocast.enabled")),
        "neither bf16 nor fp16 is on",
    ),
    why="weights and gradients take four bytes each, and matrix products run without half-precision tensor cores",
    fix='add "bf16": {"enabled": true}, or fp16 before Ampere',
    source=_ENGINE + " get_data_types",
)


@PRECISION_RULES.error(
    "DS207 a loss scale that DeepSpeed refuses",
    why="the scale must be finite and at least 0; the window and the lowest value of a dynamic scale must be above 0",
    fix="correct it, or remove the key",
    source=_CLASSES + " DeepSpeedFP16Config",
    since="0.19.6",
)
def refused_scale(config: LintedConfig) -> Iterator[Violation]:
    scale = config.get("fp16.loss_scale")
    number = _number(scale)
    if isinstance(scale, bool) or (number is not None and (number < 0 or not math.isfinite(number))):
        yield bad_value(config, "fp16.loss_scale")
    dynamic = config.fp16 and (scale is None or scale == "auto" or number == 0)
    for name in ("loss_scale_window", "min_loss_scale"):
        value = config.get(f"fp16.{name}")
        size = _number(value)
        fraction = isinstance(value, str) and size is not None and not value.strip().lstrip("+-").isdigit()
        if isinstance(value, bool) or fraction or (dynamic and size is not None and size <= 0):
            yield bad_value(config, f"fp16.{name}")


@PRECISION_RULES.error(
    "DS208 half-precision master weights that DeepSpeed refuses",
    why="ZeRO's optimizers alone have them; DeepSpeed asserts that the optimizer is its CPU Adam (bf16 with "
    "bf16_optimizer_states may stay on the GPU), that bf16 states come with bf16 masters, and that fp16 has none then",
    fix='use ZeRO with AdamW and "offload_optimizer": {"device": "cpu"}, or remove the key',
    source="runtime/config.py _do_error_check; runtime/base_optimizer.py _configure_master_weights; "
    "runtime/swap_tensor/optimizer_utils.py release_memory",
)
def half_precision_masters(config: LintedConfig) -> Iterator[Violation]:
    block = config.bf16_block
    masters, states = f"{block}.bf16_master_weights_and_grads", f"{block}.bf16_optimizer_states"
    given = [path for path in (_FP16_MASTERS, masters, states) if config.flag(path)]
    if config.stage == 0:
        yield from (violation(path, "{name} is on at stage 0", name=path.rpartition(".")[2]) for path in given)
        return
    place = config.offload("optimizer")
    cpu_adam = place != "none" and config.may_have_adam and not config.flag("optimizer.params.torch_adam")
    other = phrase("the optimizer {optimizer} does not become DeepSpeed's CPU Adam", optimizer=config.optimizer)
    for path in (_FP16_MASTERS, masters):
        may_stay = path == masters and states in given and place == "none"
        if path in given and not cpu_adam and not may_stay:
            yield violation(path, "the optimizer is not offloaded" if place == "none" else other)
    if states in given and masters not in given:
        yield violation(states, "bf16_master_weights_and_grads is off")
    if _FP16_MASTERS in given and masters in given:
        yield violation(_FP16_MASTERS, "bf16_master_weights_and_grads is on, too")
    if masters in given and config.stage == 3 and place == "nvme":
        what = "the optimizer is on NVMe: the first step stops where a sub-group of 1 MiB or more was swapped out"
        yield violation(masters, what, severity="warning")


def _model_type(config: LintedConfig) -> str:
    return "fp16" if config.fp16 else "bf16" if config.bf16 else "fp32"


def _dtype(config: LintedConfig, path: str) -> str | None:
    return DTYPES.get(config.text(path))


_decided = ~when.for_trainer | Condition(
    lambda config, _: any(
        config.has(f"{name}.enabled") and not config.is_auto(f"{name}.enabled") for name in (*_HALF, "bfloat16")
    )
)
"""Neither the Trainer nor accelerate decides the precision."""
_other_type = Condition(lambda config, path: _dtype(config, path) not in (None, _model_type(config))) & _decided

PRECISION_RULES.error(
    "DS211 a param_dtype that contradicts the enabled precision",
    at(
        "data_types.param_dtype",
        _other_type,
        "param_dtype is {wanted}, the model's type is {own}",
        wanted=lambda config: _dtype(config, "data_types.param_dtype"),
        own=_model_type,
    ),
    why="the model's type follows from fp16 and bf16; DeepSpeed asserts that param_dtype is the same",
    fix="remove data_types.param_dtype, or enable that precision",
    source=_ENGINE + " _assert_valid_mixed_precision_config",
    since="0.19.6",
)


_is_read = Condition(lambda config, path: "data_types" in config.facts.owners(path.rpartition(".")[2]))
_is_dtype = Condition(lambda config, path: config.text(path) in DTYPES)
_lists_text = Condition(
    lambda config, path: isinstance(config.get(path), list) and all(isinstance(item, str) for item in config.get(path))
)
_has_type = Condition(lambda config, path: isinstance(config.get(path), str | dict))

PRECISION_RULES.error(
    "DS212 a type that DeepSpeed does not know",
    at(("data_types.grad_accum_dtype", "data_types.param_dtype"), _is_read & when.not_null & ~_is_dtype),
    at("data_types.buffer_dtype", _is_read & when.not_null & ~_is_dtype & (when.fp16 | when.bf16)),
    at("torch_autocast.dtype", when.given & ~_is_dtype),
    at(
        "torch_autocast.lower_precision_safe_modules",
        when.given & ~_has_type & ~_lists_text,
        fix="write a list of names of classes",
    ),
    at(
        "data_types.keep_in_fp32_modules",
        _is_read & when.given & ~when.equals("auto") & ~_lists_text,
        fix='write "auto" or a list of name patterns',
    ),
    why="DeepSpeed looks the name up and stops",
    fix='write "bf16", "fp16" or "fp32"',
    source="runtime/config.py DtypeEnum",
)


PRECISION_RULES.error(
    "DS213 gradients of another type without ZeRO",
    at(
        "data_types.grad_accum_dtype",
        _other_type & when.stages(0),
        "gradients are accumulated in {wanted}, but the weights are {own}, at stage 0",
        wanted=lambda config: _dtype(config, "data_types.grad_accum_dtype"),
        own=_model_type,
    ),
    why="at stage 0 DeepSpeed accumulates in the model's type only, and stops with NotImplementedError",
    fix="use ZeRO stage 1 or more, or remove grad_accum_dtype",
    source=_ENGINE + " _do_optimizer_sanity_check",
)


PRECISION_RULES.advice(
    "DS214 stage 1 with full fp32 gradients",
    at(
        "data_types.grad_accum_dtype",
        when.stages(1) & when.bf16 & when.accumulates_in_fp32 & ~when.states_in_ram,
        "fp32 gradients stay whole on every GPU",
    ),
    why="for bf16 with fp32 accumulation DeepSpeed takes its BF16_Optimizer at stage 1, which keeps fp32 gradients of "
    "all parameters on every GPU: four bytes per parameter that stage 2 does not have",
    fix="use stage 2",
    source="runtime/bf16_optimizer.py _setup_for_real_optimizer",
)


PRECISION_RULES.warning(
    "DS215 torch_autocast without a type",
    at(
        "torch_autocast.dtype",
        ~when.given & when.is_on("torch_autocast.enabled"),
        "torch_autocast is on without a dtype",
    ),
    why="DeepSpeed then has no type to compute in or to reduce gradients in",
    fix='add "dtype": "bfloat16"',
    source="runtime/config.py get_torch_autocast_dtype",
)


def _number(value: object) -> float | None:
    """The number in a value, also if it is written as text; None for anything else."""
    try:
        return float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else None
    except (ValueError, OverflowError):
        return None
