"""Types and ranges of values (DS02x): those of DeepSpeed's pydantic classes, and those that its code needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import Any, NamedTuple

from ...ds_configs.config_keys import CONFIG_KEYS
from ...ds_configs.conversions import TRUTHS
from . import rule_conditions as when
from .config_file import Replace
from .facts import ConfigField, DeepSpeedFacts
from .linted_config import LintedConfig
from .rule import Violation, error_rule, section, violation, warning_rule
from .rule_conditions import Condition, key_name, that
from .values import FieldType, find_problem, json_text, parsed_text

_DTYPE_NAMES = {
    "fp16": ("fp16", "float16", "half", "torch.float16"),
    "fp32": ("fp32", "float32", "float", "torch.float32"),
    "bf16": ("bf16", "bfloat16", "torch.bfloat16"),
    "int8": ("int8", "torch.int8"),
}
DTYPES = {name: dtype for dtype, names in _DTYPE_NAMES.items() for name in names}
"""Dtype names of `runtime/config.py DtypeEnum`."""

_ABOVE_ZERO = (("gt", 0.0),)
_POSITIVE = FieldType(name="int", bounds=_ABOVE_ZERO)
_COUNT = FieldType(name="int", bounds=_ABOVE_ZERO, optional=True)
_NUMBER = FieldType(name="float", optional=True)
_FLOAT = FieldType(name="float")
_PAIR = FieldType(name="tuple", parts=(FieldType(name="float"),) * 2)
_OBJECT = FieldType(name="dict")
_NAME = FieldType(name="str", optional=True)
_NAMES = FieldType(name="list", parts=(FieldType(name="str"),))
_DTYPE = FieldType(name="literal", choices=tuple(DTYPES), optional=True)
_COLLECTIVE_DTYPE = FieldType(name="choice", choices=("fp32", "fp16", "bf16"), optional=True)


def _one_of(*choices: Any, optional: bool = False) -> FieldType:
    """A word, in `CODE_TYPES` in any case of letters, or another constant."""
    return FieldType(name="choice", choices=choices, optional=optional)


def grad_dtype(config: LintedConfig) -> str | None:
    """The type in which gradients are accumulated; None if the file does not say it."""
    return DTYPES.get(config.text("data_types.grad_accum_dtype"))


TOTAL, MICRO, STEPS = _SIZES = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
)
_ADAM = "optimizer.params."
_WARM_UP = "scheduler.params.warmup_"
_linear = when.scheduler("WarmupLR", "WarmupDecayLR")
_sets_lr = when.scheduler("LRRangeTest", "OneCycle") | (_linear & ~when.is_missing(_WARM_UP + "max_lr"))
_lr_is_replaced = _sets_lr & ~when.offloaded & ~when.torch_adam
"""A scheduler replaces lr when it is made (runtime/lr_schedules.py update_lr), before FusedAdam's first step.
DeepSpeedCPUAdam and torch's Adam use it when they are made, WarmupCosineLR as the rate that it scales, and WarmupLR
without warmup_max_lr as that."""
_of_torch = when.torch_adam | that(
    lambda config: config.optimizer in {*config.facts.torch_optimizers} - {*config.facts.optimizers}
)
"""The optimizer is a class of torch."""
_since_0_19_6 = that(lambda config: config.facts.at_least("0.19.6"))
_averages = when.stages(3) | that(lambda config: config.text("gradient_allreduce_op").lower() != "sum")
_is_scattered = ~when.is_off("zero_optimization.reduce_scatter")
scatters_means = when.stages(2, 3) & _is_scattered & _averages
"""DeepSpeed asserts then that gradients are neither pre-scaled nor pre-divided."""
has_bf16_optimizer = when.bf16 & that(lambda config: grad_dtype(config) == "fp32")
"""At stage 1 without offload DeepSpeed then uses its BF16_Optimizer (runtime/engine.py _do_optimizer_sanity_check)."""
_divides_after = _averages & that(lambda config: not config.get("prescale_gradients"))
_predivides = scatters_means | (_divides_after & ~(when.stages(1) & _is_scattered & ~has_bf16_optimizer))
"""Gradients that are pre-scaled, summed, or scattered at stage 1 do not use the factor (runtime/engine.py
allreduce_bucket; runtime/zero/stage_1_and_2.py gradient_reduction_w_predivide, average_tensor)."""

CODE_TYPES: dict[str, tuple[FieldType, Condition]] = {
    # runtime/config.py
    **dict.fromkeys(_SIZES, (_COUNT, when.always)),
    "sequence_parallel_size": (_POSITIVE, when.always),
    "wall_clock_breakdown": (FieldType(name="bool"), when.always),
    "flops_profiler.enabled": (FieldType(name="bool"), when.always),
    "vocabulary_size": (_NUMBER, when.always),
    "gradient_clipping": (FieldType(name="float"), when.always),
    "gradient_predivide_factor": (FieldType(name="float"), _predivides),
    "communication_data_type": (_COLLECTIVE_DTYPE, when.always),
    "seq_parallel_communication_data_type": (_COLLECTIVE_DTYPE, when.always),
    "gradient_allreduce_op": (_one_of("mean", "sum"), when.always),
    "data_types.grad_accum_dtype": (_DTYPE, when.always),
    "data_types.param_dtype": (_DTYPE, when.always),
    "data_types.buffer_dtype": (_DTYPE, when.fp16 | when.bf16),
    "data_types.keep_in_fp32_modules": (FieldType(name="union", parts=(_one_of("auto"), _NAMES)), when.always),
    "torch_autocast.dtype": (FieldType(name="literal", choices=tuple(DTYPES)), when.always),
    "torch_autocast.lower_precision_safe_modules": (
        FieldType(name="union", parts=(_NAMES, FieldType(name="str"), _OBJECT)),
        when.always,
    ),
    # runtime/engine.py _take_model_step: step % steps_per_print
    "steps_per_print": (FieldType(name="float", optional=True, bounds=(("ne", 0.0),)), when.always),
    # runtime/model_checkpointing/config.py
    "checkpoint.tag_validation": (_one_of("warn", "ignore", "fail"), when.always),
    "checkpoint.writer.type": (_one_of("mock", "python", "fast", optional=True), when.always),
    "checkpoint.writer.data_parallel": (_one_of("replica", "socket", "machine", optional=True), when.always),
    "checkpoint.parallel_write.pipeline_stage": (_one_of(True, False), when.always),
    # runtime/swap_tensor/partitioned_param_swapper.py _configure_aio
    "aio.block_size": (_COUNT, when.swaps),
    "aio.queue_depth": (_COUNT, when.swaps),
    "aio.intra_op_parallelism": (_COUNT, when.swaps),
    # runtime/engine.py _is_supported_optimizer, _scheduler_from_config, _configure_basic_optimizer
    "optimizer.type": (_NAME, when.always),
    "scheduler.type": (_NAME, when.always),
    "optimizer.params": (FieldType(name="dict", optional=True), that(lambda config: bool(config.optimizer))),
    # csrc/adam: multi_tensor_adam, create_adam; csrc/lion, csrc/lamb; torch/optim compares them with 0
    _ADAM + "lr": (_FLOAT, (when.has_betas & ~_lr_is_replaced) | _of_torch),
    _ADAM + "weight_decay": (_FLOAT, when.has_betas | _of_torch),
    _ADAM + "eps": (_FLOAT, when.has_adam),
    _ADAM + "betas": (_PAIR, when.has_betas),
    # runtime/lr_schedules.py; before 0.19.6 it computes with the steps, since then it validates them
    _WARM_UP + "min_lr": (_NUMBER, _linear),
    _WARM_UP + "max_lr": (_NUMBER, _linear),
    "scheduler.params.total_num_steps": (_NUMBER, _linear),
    _WARM_UP + "num_steps": (_POSITIVE, _since_0_19_6 & when.scheduler("WarmupLR", "WarmupDecayLR", "WarmupCosineLR")),
}
"""Path -> the type that DeepSpeed's code needs where no class validates the value, and when it uses the value."""

_POSITIVE_NUMBER = FieldType(name="int", bounds=_ABOVE_ZERO, refuses=("bool",))
_scales_dynamically = when.fp16 & that(lambda config: not config.number("fp16.loss_scale"))
_INTERVAL = FieldType(name="int", refuses=("str",))
VALIDATED_TYPES: dict[str, tuple[FieldType, Condition]] = {
    # runtime/precision_config.py _validate_loss_scale, _validate_dynamic_loss_scale_params
    "fp16.loss_scale": (FieldType(name="float", bounds=(("ge", 0.0), ("lt", inf)), refuses=("bool",)), when.always),
    "fp16.loss_scale_window": (_POSITIVE_NUMBER, _scales_dynamically),
    "fp16.min_loss_scale": (_POSITIVE_NUMBER, _scales_dynamically),
    # runtime/zenflow/zenflow_config.py validate_fields; "auto" is dropped before
    "zero_optimization.zenflow.select_strategy": (_one_of("auto", "step", "epoch"), when.always),
    "zero_optimization.zenflow.select_interval": (_INTERVAL, when.always),
    "zero_optimization.zenflow.update_interval": (replace(_INTERVAL, bounds=(("ge", 1.0),)), when.always),
}
"""Path -> the type that the validators of its class leave of the field's type, and when."""

_LEAF = "zero_optimization.leaf_module"
"""The block that accepts a name instead of a list of names, and null for itself (runtime/zero/leaf_module_config.py
`_coerce_container_types`)."""
_NESTED = ("timers.throughput", "checkpoint.writer", "checkpoint.parallel_write")
NOT_READ_HERE = (
    "pipeline",
    "data_efficiency",
    "expert_parallel",
    "compression_training",
    "elasticity",
    "curriculum_learning",
    "nebula",
)
"""Blocks whose keys are not among the facts."""
_MAY_BE_NULL = ("bf16", "aio", "checkpoint.writer", "expert_parallel")


def key_type(facts: DeepSpeedFacts, path: str) -> FieldType | None:
    """The type of a key, whether a class, its validators or the code need it; None if it is unknown."""
    if path in VALIDATED_TYPES and facts.knows(path):
        return VALIDATED_TYPES[path][0]
    if field := facts.find_field(path):
        return field.type
    return CODE_TYPES[path][0] if path in CODE_TYPES else _OBJECT if facts.block(path) is not None else None


class _Typed(NamedTuple):
    """A key of the file with its type. by_class: whether a pydantic class reads it, which converts texts."""

    path: str
    kind: FieldType
    value: Any
    by_class: bool


def _typed(config: LintedConfig) -> Iterator[_Typed]:
    """The keys with a known type, without `auto`, which DS151 is about."""
    unread = "bfloat16" if config.get("bf16") is not None else ""
    for block in config.facts.blocks:
        for key, value in config.block(block.path).items() if block.strict and block.path != unread else ():
            field, path = block.field(key), block.qualified_path(key)
            is_names = block.path == _LEAF and isinstance(value, str)
            if field is not None and value != "auto" and not is_names and not (path == _LEAF and value is None):
                kind, used = VALIDATED_TYPES.get(path, (field.type, when.always))
                yield _Typed(path, kind if used.holds(config, path) else field.type, value, True)
    blocks = [block.path for block in config.facts.blocks if block.path and "." not in block.path]
    for path in (*blocks, *_NESTED, *filter(config.facts.knows, NOT_READ_HERE)):
        value = config.get(path)
        old_form = path == "zero_optimization" and isinstance(value, bool)
        if config.has(path) and path != unread and not old_form:
            yield _Typed(path, FieldType(name="dict", optional=path in _MAY_BE_NULL), value, False)
    for path, (kind, used) in CODE_TYPES.items():
        value = config.get(path)
        if config.has(path) and value != "auto" and config.facts.knows(path) and used.holds(config, path):
            word = value.lower() if kind.name == "choice" and isinstance(value, str) else value
            yield _Typed(path, kind, word, False)


def _wrong_values(config: LintedConfig) -> Iterator[Violation]:
    for path, kind, value, by_class in _typed(config):
        wrong = find_problem(kind, value, converts_text=by_class)
        if wrong is None:
            continue
        plain = as_object(config, path, value) if kind.name == "dict" else parsed_text(kind, value)
        plain, effect = _MEANT.get((path, value), (plain, "")) if isinstance(value, str) else (plain, "")
        fix = f"write {wrong.wanted if plain is None else json_text(plain)}{effect}"
        if (filled := _auto_meant(config, path, value)) is not None:
            plain, fix = filled
        edits = () if plain is None else (Replace(tuple(path.split(".")), plain),)
        why = _CLASS_REJECTS if by_class else _SIZE_FAILS if path in _SIZES and wrong.is_range else _CODE_FAILS
        yield violation(path, f"{key_name(path)} {wrong.what}", why=why, fix=fix, edits=edits)


def _auto_meant(config: LintedConfig, path: str, value: Any) -> tuple[str | None, str] | None:
    """(the value to write, the fix) for an "auto" with other letters, which the readers compare exactly. It is written
    only where the file is known to be for a reader that fills the key."""
    is_auto = isinstance(value, str) and value.strip().lower() == "auto"
    known = CONFIG_KEYS.get(path)
    if not is_auto or known is None or not known.filled:
        return None
    if config.framework == "hf":
        return "auto", 'write "auto"'
    return (None, 'write "auto" for the Trainer or accelerate, or a value') if config.framework_is_assumed else None


_MEANT: dict[tuple[str, str], tuple[Any, str]] = {
    ("fp16.loss_scale", "dynamic"): (0, ", which is dynamic loss scaling"),
    **{
        (f"zero_optimization.offload_{what}.device", gpu): ("none", f": {stay} on the GPU")
        for what, stay in (("optimizer", "the states stay"), ("param", "the parameters stay"))
        for gpu in ("gpu", "cuda")
    },
}
"""(path, a text that DeepSpeed rejects) -> (the value that has the meaning of the text, its effect). Source:
runtime/precision_config.py (loss_scale), runtime/zero/offload_config.py OffloadDeviceEnum."""


def as_object(config: LintedConfig, path: str, value: Any) -> dict[str, Any] | None:
    """The object of a block that a file gives as the value of its main key: whether it is enabled, its device, stage or
    type; None if no such key takes the value."""
    block = config.facts.block(path)
    if block is None or value is None:
        return None
    for key in (each for each in MAIN_KEYS if each in block.names()):
        path = block.qualified_path(key)
        kind, known = key_type(config.facts, path), CONFIG_KEYS.get(path)
        if kind is None and isinstance(block.defaults.get(key), bool):
            kind = FieldType(name="bool")
        if value == "auto":
            if config.framework == "hf" and known is not None and known.filled:
                return {key: value}
        elif kind is not None and ((plain := parsed_text(kind, value)) is not None or not find_problem(kind, value)):
            plain = bool(value) if kind.name == "bool" and isinstance(value, int) else plain
            whole: dict[str, Any] = {key: value if plain is None else plain}
            return whole | {"params": {}} if key == "type" and "params" in block.names() else whole
    return None


MAIN_KEYS = ("enabled", "device", "stage", "type")
"""Keys that decide whether, where or how a block acts."""


def successors_value(old: ConfigField, new: ConfigField, value: Any) -> Any:
    """The value that DeepSpeed gives to the successor of a deprecated key for a value that it accepts; None if that is
    the same as no key.

    Source: runtime/zero/config.py (`new_param_fn`: the flags of offload mean the CPU; other values stay).
    """
    plain = parsed_text(old.type, value) if isinstance(value, str) else value
    if new.type.name == "dict":
        return {"device": "cpu"} if plain else None
    return plain


_CLASS_REJECTS = "DeepSpeed's class of the block rejects the value when the configuration is read"
_SIZE_FAILS = "DeepSpeed asserts that each batch size is above 0"
"""runtime/config.py `_batch_assertion`."""
_CODE_FAILS = "no class checks this key: the code that uses it raises an error, often one that does not name the key"


def _converted_text(config: LintedConfig) -> Iterator[Violation]:
    for path, kind, value, by_class in _typed(config):
        plain = parsed_text(kind, value) if isinstance(value, str) else None
        field = config.facts.find_field(path)
        is_renamed = field is not None and field.deprecated  # DS014 writes its successor
        if by_class and plain is not None and find_problem(kind, value) is None and not is_renamed:
            edit = Replace(tuple(path.split(".")), plain)
            what = f"{key_name(path)} is the text {json_text(value)}"
            why = f"{_CONVERTS}; {_effect_of_text(path, plain)}"
            yield violation(path, what, why=why, fix=f"write {json_text(plain)}", edits=(edit,))


_CONVERTS = "DeepSpeed converts it"


def _effect_of_text(path: str, meant: Any) -> str:
    """What a reader that does not convert a text makes of it.

    Source: accelerate/utils/deepspeed.py is_zero2, is_zero3; transformers/integrations/deepspeed.py fill_match.
    """
    if path == "zero_optimization.stage" and meant in (2, 3):
        compare = f"transformers and accelerate compare with the number {meant}"
        return f"{compare}, so they do not treat it as ZeRO-{meant}"
    block, _, key = path.partition(".")
    if block in ("fp16", "bf16") and key == "enabled":
        return f"the Trainer compares it with its argument {block}, from which any text differs, and raises an error"
    return "other readers of the file get the text"


def _flag_as_text(config: LintedConfig) -> Iterator[Violation]:
    """Flags that no class reads. The C++ of `aio` takes no text."""
    for block in config.facts.blocks:
        for key, default in block.defaults.items() if not block.strict and block.path != "aio" else ():
            path, text = block.qualified_path(key), config.get(block.qualified_path(key))
            if not isinstance(default, bool) or path in CODE_TYPES or not isinstance(text, str) or text == "auto":
                continue
            meant = TRUTHS.get(text.lower())
            fix = "write true or false" if meant is None else f"write {json_text(meant)}"
            edits = (Replace(tuple(path.split(".")), meant),) if meant is bool(text) else ()
            what = f"{key} is the text {json_text(text)}, which DeepSpeed takes as {json_text(bool(text))}"
            yield violation(path, what, fix=fix, edits=edits)


_below_zero = when.number(lambda value: value < 0)
_are_betas = Condition(lambda config, path: find_problem(_PAIR, config.get(path), converts_text=False) is None)
_beyond_one = _are_betas & Condition(lambda config, path: not all(0 <= beta < 1 for beta in config.get(path)))


def _beta_beyond_one(config: LintedConfig, path: str) -> str:
    at, beta = next((at, beta) for at, beta in enumerate(config.get(path)) if not 0 <= beta < 1)
    return f"betas[{at}] is {json_text(beta)}, but must be {'at least 0' if beta < 0 else 'below 1'}"


_IN_OPTIMIZER = tuple(_ADAM + name for name in ("lr", "eps", "weight_decay"))
_RAISES_LOSS = (
    "DeepSpeed's optimizers and schedulers take it without a message: with a rate below zero a step raises the loss"
)

_NO_MEAN = (
    "DeepSpeed's optimizers take it without a message: with a number out of this range the running averages of the "
    "gradients are wrong, and with 1 Adam divides by zero, which makes the weights NaN"
)

TYPE_RULES = section(
    "Types and ranges",
    error_rule(
        "DS020 a value of the wrong type or out of range",
        _wrong_values,
        why=f"{_CLASS_REJECTS}; or {_CODE_FAILS}",
        source="runtime/zero/config.py and the other classes of DeepSpeedConfigModel; runtime/config.py, "
        "runtime/engine.py, runtime/lr_schedules.py, csrc/adam",
    ),
    warning_rule(
        "DS022 a number or truth value written as text",
        _converted_text,
        why=f"{_CONVERTS}; transformers and accelerate do not: they compare the stage with the number 3, and the "
        "Trainer compares the precision with its argument",
        source="runtime/config_utils.py DeepSpeedConfigModel; accelerate/utils/deepspeed.py is_zero3; "
        "transformers/integrations/deepspeed.py HfTrainerDeepSpeedConfig.fill_match",
    ),
    warning_rule(
        "DS023 text as a flag that no class converts",
        _flag_as_text,
        why='Python takes every text as true, also "false", except the empty one',
        source="runtime/config_utils.py get_scalar_param",
    ),
    warning_rule(
        "DS024 a number below zero",
        when.at(
            "gradient_clipping",
            _below_zero,
            why="DeepSpeed clips only to a norm above zero, and has no message for another number",
            fix="write a number above 0, or 0 for no clipping",
        ),
        when.at(
            _IN_OPTIMIZER,
            _below_zero & _of_torch,
            severity="error",
            why="torch's optimizers raise a ValueError for it",
        ),
        when.at(_IN_OPTIMIZER, _below_zero & ~_of_torch, why=_RAISES_LOSS),
        when.at((_WARM_UP + "min_lr", _WARM_UP + "max_lr"), _below_zero, why=_RAISES_LOSS),
        why="without a message, gradients are not clipped, or the optimizer steps away from the minimum; torch's own "
        "optimizers raise a ValueError",
        fix="write a number above 0",
        source="runtime/zero/stage_1_and_2.py unscale_and_clip_grads; ops/adam/fused_adam.py; torch/optim/adam.py",
    ),
    warning_rule(
        "DS025 a beta that is not from 0 to below 1",
        when.at(
            _ADAM + "betas",
            _beyond_one & _of_torch,
            _beta_beyond_one,
            severity="error",
            why="torch's optimizers raise a ValueError for it",
        ),
        when.at(_ADAM + "betas", _beyond_one & when.has_betas & ~_of_torch, _beta_beyond_one, why=_NO_MEAN),
        why=f"{_NO_MEAN}; torch's own optimizers raise a ValueError",
        fix="write numbers from 0 to below 1, such as [0.9, 0.999]",
        source="csrc/adam/multi_tensor_adam.cu (bias_correction2); ops/adam/fused_adam.py; torch/optim/adam.py",
    ),
)
