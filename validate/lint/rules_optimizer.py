"""The optimizer and scheduler blocks (DS5xx, DS6xx)."""

from __future__ import annotations

from collections.abc import Iterator

from ...estimators.phrase import named, phrase
from . import rule_conditions as when
from .config_file import Replace
from .facts import Parameter
from .linted_config import LintedConfig, nearest, number_in, shown
from .rule import Rules, Severity, Violation, bad_value, unknown_name, unquoted, violation
from .rule_conditions import Condition, at

OPTIMIZER_RULES = Rules("Optimizer")

_lamb = Condition(lambda config, _: config.optimizer == "lamb")
_ENGINE = "runtime/engine.py _configure_basic_optimizer"
_SCHEDULES = "runtime/lr_schedules.py"
_ONE_BIT = ("onebitadam", "zerooneadam", "onebitlamb")
"""1-bit optimizers, which DeepSpeed 0.18 still has (runtime/config.py ONEBIT_ADAM_OPTIMIZER and the two after it)."""


@OPTIMIZER_RULES.error(
    "DS501 an unknown optimizer or scheduler",
    why="DeepSpeed asserts that the type is one of its own names or a class of torch",
    fix="correct the name, or create it in the script and remove the block",
    source="runtime/engine.py _is_supported_optimizer, _scheduler_from_config",
)
def unknown(config: LintedConfig) -> Iterator[Violation]:
    facts = config.facts
    for block, name, own, of_torch in (
        ("optimizer", config.optimizer, facts.optimizers, facts.torch_optimizers),
        ("scheduler", config.text("scheduler.type"), facts.schedulers, facts.torch_schedulers),
    ):
        path, kind, names = f"{block}.type", config.get(f"{block}.type"), (*own, *of_torch)
        if kind is not None and not isinstance(kind, str):
            yield bad_value(config, path, fix=phrase("write the name of the {block}", block=named(block)))
        elif kind is None or not of_torch or name in names:
            continue
        elif kind.lower() in _ONE_BIT:
            what = phrase(
                "the 1-bit optimizers are gone from DeepSpeed, and {version} has no {value}",
                version=facts.version,
                value=shown(kind),
            )
            yield violation(path, what, fix='write "AdamW", without the arguments for compression in params')
        else:
            near = nearest(kind, names) or nearest(kind.lower(), names)
            what = phrase("neither DeepSpeed nor torch has the {block} {value}", block=named(block), value=shown(kind))
            yield violation(path, what, fix=phrase("write {value}", value=shown(near)) if near else "")


OPTIMIZER_RULES.warning(
    "DS502 an optimizer or scheduler block without a type",
    at(("optimizer", "scheduler"), when.without_type, "the block has no type"),
    why="DeepSpeed then ignores the whole block",
    fix='add "type"',
    source="runtime/config.py get_optimizer_name, get_scheduler_name",
)
OPTIMIZER_RULES.error(
    "DS503 max_grad_norm in the optimizer",
    at("optimizer.params.max_grad_norm", when.given & ~when.is_missing("optimizer.type")),
    why="DeepSpeed itself clips the gradients, and refuses the key in optimizer.params",
    fix='move it to the top level as "gradient_clipping"',
    source=_ENGINE,
)


_exists = Condition(lambda config, _: config.optimizer in (*config.facts.optimizers, *config.facts.torch_optimizers))
_tested = Condition(lambda config, _: config.optimizer_spec is not None and config.optimizer_spec.tested_with_zero)
_allowed = Condition(lambda config, _: bool(config.get("zero_allow_untested_optimizer")))

OPTIMIZER_RULES.error(
    "DS504 an optimizer that ZeRO has not tested",
    at("optimizer.type", _exists & ~_tested & ~_allowed & when.stages(1, 2, 3), "{optimizer} is untested with ZeRO"),
    why="ZeRO accepts Adam, AdamW, Adagrad, Lion and Muon; for any other it asserts that you allowed it",
    fix='add "zero_allow_untested_optimizer": true',
    source="runtime/engine.py _do_optimizer_sanity_check",
)


@OPTIMIZER_RULES.error(
    "DS505 an argument that the optimizer or scheduler does not take",
    why="DeepSpeed passes params to the class, which raises a TypeError",
    fix="remove it, or correct its name",
    source=_ENGINE + "; " + _SCHEDULES,
)
def wrong_argument(config: LintedConfig) -> Iterator[Violation]:
    given = config.get("optimizer.params")
    if config.optimizer and given is not None and not isinstance(given, dict):
        yield bad_value(config, "optimizer.params", fix="write an object")
    for block, kind, taken in (
        ("optimizer", config.optimizer, _arguments(config)),
        ("scheduler", config.text("scheduler.type"), _names(_parameters(config))),
    ):
        if taken is None:
            continue
        for name in config.block(f"{block}.params"):
            if name not in taken and (block, name) != ("optimizer", "max_grad_norm"):  # DS503 reports it
                yield unknown_name(
                    (block, "params", name),
                    phrase("{kind} takes no {name}", kind=kind, name=f"{name[:40]!r}"),
                    taken,
                    cutoff=0.5,
                )


@OPTIMIZER_RULES.error(
    "DS506 amsgrad",
    why="DeepSpeed's Adams do not have it and raise a RuntimeError",
    fix="set it to false",
    source="ops/adam/fused_adam.py, ops/adam/cpu_adam.py",
)
def amsgrad(config: LintedConfig) -> Iterator[Violation]:
    path = "optimizer.params.amsgrad"
    adam = config.has_adam and not config.flag("optimizer.params.torch_adam")
    refuses = adam or (config.optimizer == "lamb" and config.offload("optimizer") == "none")
    if refuses and config.get(path):
        severity: Severity | None = "warning" if config.is_auto(path) else None
        yield violation(
            path, "DeepSpeed has no {optimizer} with AMSGrad", optimizer=config.optimizer, severity=severity
        )


OPTIMIZER_RULES.error(
    "DS507 LAMB with a static loss scale",
    at("fp16.loss_scale", when.number(lambda scale: scale > 0) & _lamb, "the loss scale is always {number}"),
    why="DeepSpeed asserts that LAMB comes with dynamic loss scaling",
    fix='set "loss_scale": 0 in fp16',
    source="runtime/engine.py _do_sanity_check",
)
OPTIMIZER_RULES.error(
    "DS508 Muon with reduce_scatter at stage 3",
    at("zero_optimization.reduce_scatter", when.per_matrix & when.stages(3) & ~when.off, "gradients are scattered"),
    why="Muon needs whole gradient matrices, and stage 3 refuses it where gradients are scattered (the default)",
    fix='set "reduce_scatter": false',
    source="runtime/zero/stage3.py __init__",
    since="0.19",
)


_before_0_19_7 = Condition(lambda config, _: not config.facts.at_least("0.19.7"))

OPTIMIZER_RULES.warning(
    "DS511 Muon as DeepSpeed before 0.19.8 steps it",
    at(
        "optimizer.type",
        when.per_matrix & _before_0_19_7 & when.stages(3) & when.for_trainer,
        "no parameter is updated by Muon, all are by AdamW",
    ),
    at(
        "optimizer.type",
        when.per_matrix & _before_0_19_7 & when.stages(0),
        "matrices are updated by their gradient alone",
    ),
    at(
        "gradient_accumulation_steps",
        when.per_matrix & when.stages(3) & when.number(lambda steps: steps > 1),
        "Muon's momentum advances {number} times a step",
    ),
    why="before 0.19.7 zero.Init at stage 3 leaves Muon no matrix (PR 8438), and stage 0 orthogonalizes nothing (PR "
    "8442); before 0.19.8 stage 3 orthogonalizes each micro batch instead of their sum (PR 8600)",
    fix="install DeepSpeed 0.19.8, or use stage 1 or 2",
    since="0.19",
    until="0.19.8",
    source="__init__.py set_optimizer_flags; runtime/zero/muon/muon_optimizer.py step; runtime/zero/stage3.py",
)


@OPTIMIZER_RULES.error(
    "DS510 a number of the optimizer or the warm-up that is text",
    why="the compiled optimizer and the scheduler compute with it, and raise a TypeError",
    fix="write a number",
    source="csrc/adam: multi_tensor_adam, create_adam; " + _SCHEDULES,
)
def text(config: LintedConfig) -> Iterator[Violation]:
    paths = [f"optimizer.params.{name}" for name in ("lr", "weight_decay", "eps")] if config.has_adam else []
    if config.text("scheduler.type") in ("WarmupLR", "WarmupDecayLR"):
        paths += [f"scheduler.params.{name}" for name in ("warmup_min_lr", "warmup_max_lr", "total_num_steps")]
        if not config.facts.at_least("0.19.6"):  # since then the scheduler refuses it itself (DS604)
            paths.append("scheduler.params.warmup_num_steps")
    for path in paths:
        value, number = config.get(path), number_in(config.get(path))
        if value != "auto" and isinstance(value, str | list | dict):
            set_later = path == "optimizer.params.lr" and config.has("scheduler")  # before the first step
            fix = "" if number is None else phrase("write {number} without quotes", number=f"{number:g}")
            severity: Severity | None = "warning" if set_later else None
            yield bad_value(config, path, severity=severity, fix=fix, edits=unquoted(path, value))
    betas = config.get("optimizer.params.betas")
    if config.has_adam and isinstance(betas, list) and any(isinstance(beta, str) for beta in betas):
        numbers = [beta if number_in(beta) is None else number_in(beta) for beta in betas]
        mended = not any(isinstance(number, str) for number in numbers)
        edits = (Replace(("optimizer", "params", "betas"), numbers),) if mended else ()
        yield bad_value(config, "optimizer.params.betas", fix="write the numbers without quotes", edits=edits)


def _arguments(config: LintedConfig) -> list[str] | None:
    """The arguments that the configuration can pass to the optimizer's class; None if unknown."""
    facts, name = config.facts, config.optimizer
    offloaded = config.offload("optimizer") != "none"
    spec = config.optimizer_spec
    if spec is None:
        return _names(facts.torch_optimizers.get(name))
    cls = (spec.cpu_class if offloaded else "") or spec.gpu_class
    if spec.is_adam:
        own = ["torch_adam", "adam_w_mode", "fp32_optimizer_states"]
        if config.flag("optimizer.params.torch_adam"):
            return _names(facts.torch_optimizers.get(spec.block_type), own)
        return _names(facts.optimizer_classes.get(cls), own, but=("adamw_mode",))
    return _names(facts.optimizer_classes.get(cls) if cls else facts.torch_optimizers.get(spec.block_type))


def _names(
    found: tuple[Parameter, ...] | None, own: list[str] | None = None, but: tuple[str, ...] = ()
) -> list[str] | None:
    if found is None:
        return None
    return [parameter.name for parameter in found if parameter.name not in but] + (own or [])


SCHEDULER_RULES = Rules("Scheduler")


@SCHEDULER_RULES.error(
    "DS602 a scheduler without an argument that it needs",
    why="DeepSpeed passes scheduler.params to the class, which raises a TypeError where an argument without a default "
    "is missing",
    source=_SCHEDULES,
)
def incomplete(config: LintedConfig) -> Iterator[Violation]:
    taken = _parameters(config)
    if taken is None:
        return
    given = config.get("scheduler.params")
    if not isinstance(given, dict):
        yield bad_value(config, "scheduler.params", fix='add "params": {} with what it needs')
        return
    missing = ", ".join(known.name for known in taken if known.required and known.name not in given)
    if missing:
        fix = phrase("add {missing}", missing=missing)
        if config.framework == "hf":
            fix = phrase('{fix} (the Trainer fills "auto")', fix=fix)
        yield violation(
            "scheduler.params", "{name} needs {missing}", name=config.text("scheduler.type"), missing=missing, fix=fix
        )


@SCHEDULER_RULES.error(
    "DS604 a warm-up of no steps",
    why="the warm-up schedulers refuse anything but a whole number above zero",
    fix="write 1 for no warm-up",
    source=_SCHEDULES,
    since="0.19.6",
)
def no_warmup(config: LintedConfig) -> Iterator[Violation]:
    path = "scheduler.params.warmup_num_steps"
    value, number = config.get(path), number_in(config.get(path))
    warms = config.text("scheduler.type") in ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR")
    if warms and config.has(path) and value != "auto" and (not isinstance(value, int) or value <= 0):
        mended = isinstance(number, int) and number > 0
        fix = phrase("write {number} without quotes", number=number) if mended else ""
        yield bad_value(config, path, fix=fix, edits=unquoted(path, value) if mended else ())


_warms_up = Condition(lambda config, _: config.text("scheduler.type") in ("WarmupLR", "WarmupDecayLR"))
_rate = Condition(lambda config, _: bool(config.number("optimizer.params.lr")))
_other_rate = _rate & Condition(
    lambda config, path: config.number(path) not in (None, config.number("optimizer.params.lr"))
)

SCHEDULER_RULES.warning(
    "DS608 a scheduler that overrides the learning rate",
    at(
        "scheduler.params.warmup_max_lr",
        _warms_up & _other_rate,
        "lr is {rate}, but warmup_max_lr is {number}",
        rate=lambda config: f"{config.number('optimizer.params.lr'):g}",
    ),
    why="the warm-up ends at warmup_max_lr and ignores the optimizer's lr",
    fix="write the same number in both, or leave warmup_max_lr out of WarmupLR",
    source=_SCHEDULES,
)

_is_wrapped = when.stages(1, 2, 3) | when.fp16 | when.bf16
_torchs = Condition(
    lambda config, path: config.text(path) in {*config.facts.torch_schedulers} - {*config.facts.schedulers}
)

SCHEDULER_RULES.error(
    "DS609 torch's scheduler around DeepSpeed's optimizer",
    at(
        "scheduler.type",
        _torchs & _is_wrapped,
        "{kind} is torch's, and the optimizer is wrapped",
        kind=lambda config: config.text("scheduler.type"),
    ),
    why="ZeRO, fp16 and bf16 wrap the optimizer in a class of DeepSpeed's, which torch's schedulers refuse with a "
    "TypeError; DeepSpeed's own look inside it",
    fix="use one of DeepSpeed's schedulers, or create torch's in the script from the optimizer that it wraps",
    source="runtime/engine.py _configure_lr_scheduler",
)


def _parameters(config: LintedConfig) -> tuple[Parameter, ...] | None:
    """The arguments of the scheduler's class; None if the class is unknown."""
    kind = config.text("scheduler.type")
    return config.facts.schedulers.get(kind) or config.facts.torch_schedulers.get(kind)
