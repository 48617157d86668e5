"""Precision (DS2xx)."""

from __future__ import annotations

from . import rule_conditions as when
from .linted_config import LintedConfig
from .rule import advice_rule, error_rule, section, warning_rule
from .rule_conditions import at, key_name, that
from .rules_types import grad_dtype, has_bf16_optimizer

_FP16_MASTERS = "fp16.fp16_master_weights_and_grads"
_MASTERS, _STATES = "bf16.bf16_master_weights_and_grads", "bf16.bf16_optimizer_states"


def _capability(config: LintedConfig) -> float:
    """The compute capability of the GPUs; 0 if unknown."""
    return (config.cluster.gpu.compute_capability or 0) if config.cluster is not None else 0


def _compute_capability(config: LintedConfig, _: str) -> str:
    assert config.cluster is not None, "its capability is known"
    return f"the {config.cluster.gpu.name} has compute capability {_capability(config):.1f}"


_no_block = that(lambda config: not any(map(config.has, ("fp16", "bf16", "bfloat16"))))
"""accelerate then adds the block that mixed_precision names."""
_is_left = that(lambda config: any(config.is_auto(f"{name}.enabled") for name in ("fp16", "bf16")))
"""The reader decides the precision; if that is plain DeepSpeed, DS156 is about it."""
_states_in_bf16_on_gpu = when.is_on(_STATES) & ~when.offloaded

PRECISION_RULES = section(
    "Precision",
    error_rule(
        "DS201 fp16 and bf16 are both enabled",
        at("fp16.enabled", when.fp16 & when.bf16, "fp16 and bf16 are both enabled"),
        why="DeepSpeed asserts that at most one of them is",
        fix='keep one of them; "auto" lets the Trainer choose',
        source="runtime/config.py _initialize_params",
    ),
    warning_rule(
        "DS202 bf16 on GPUs without bf16",
        at(
            "bf16.enabled",
            when.bf16 & that(lambda config: 0 < _capability(config) < 8),
            _compute_capability,
        ),
        why="GPUs before Ampere (compute capability 8.0) emulate it at a fraction of their fp16 speed",
        fix="use fp16",
        source="torch.cuda.is_bf16_supported (emulation counts); NVIDIA data sheets",
    ),
    advice_rule(
        "DS203 training in fp32",
        at(
            "bf16",
            ~(when.fp16 | when.bf16 | _is_left | (when.for_trainer & _no_block))
            & ~when.is_on("torch_autocast.enabled"),
            "neither bf16 nor fp16 is enabled",
        ),
        why="weights and gradients take four bytes each, and matrix products run without half-precision tensor cores",
        fix='add "bf16": {"enabled": true}, or fp16 before Ampere',
        source="runtime/engine.py get_data_types",
    ),
    error_rule(
        "DS208 half-precision master weights that DeepSpeed rejects",
        at(
            (_FP16_MASTERS, _MASTERS, _STATES),
            when.on & when.stages(0),
            lambda _, path: f"{key_name(path)} is on at stage 0",
        ),
        at(
            (_FP16_MASTERS, _MASTERS),
            when.on & when.stages(1, 2, 3) & ~(when.offloaded & when.cpu_adam) & ~_states_in_bf16_on_gpu,
            "the optimizer is not DeepSpeed's CPU Adam",
        ),
        at(_STATES, when.on & when.stages(1, 2, 3) & ~when.is_on(_MASTERS), "bf16_master_weights_and_grads is off"),
        why="ZeRO supports them with its CPU Adam; bf16 masters may stay on the GPU if bf16_optimizer_states is on",
        fix='use ZeRO with AdamW and "offload_optimizer": {"device": "cpu"}, or remove the key',
        source="runtime/config.py _do_error_check; runtime/base_optimizer.py _configure_master_weights",
    ),
    error_rule(
        "DS213 gradients of another type without ZeRO",
        at(
            "data_types.grad_accum_dtype",
            when.decided & when.stages(0) & that(lambda config: grad_dtype(config) not in (None, config.model_type)),
            lambda config, _: (
                f"gradients are accumulated in {grad_dtype(config)}, but the weights are {config.model_type}, "
                "at stage 0"
            ),
        ),
        why="at stage 0 DeepSpeed accumulates in the model's type only, and raises NotImplementedError",
        fix="use ZeRO stage 1 or more, or remove grad_accum_dtype",
        source="runtime/engine.py _do_optimizer_sanity_check",
    ),
    advice_rule(
        "DS214 stage 1 with unsharded fp32 gradients",
        at(
            "data_types.grad_accum_dtype",
            when.stages(1) & has_bf16_optimizer & ~when.offloaded,
            "every GPU holds the fp32 gradients of all parameters",
        ),
        why="for bf16 with fp32 accumulation DeepSpeed uses its BF16_Optimizer at stage 1, which holds four bytes per "
        "parameter on every GPU that stage 2 does not need",
        fix="use stage 2",
        source="runtime/bf16_optimizer.py _setup_for_real_optimizer",
    ),
)
