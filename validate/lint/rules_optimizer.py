"""Optimizer and scheduler (DS50x, DS51x, DS608, DS609)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from . import rule_conditions as when
from .config_file import Remove, Rename, Replace
from .facts import Parameter
from .linted_config import LintedConfig
from .rule import Violation, error_rule, section, violation, warning_rule
from .rule_conditions import at, that
from .unknown_names import meant_by, unknown_name
from .values import json_text, nearest

_ENGINE = "runtime/engine.py _configure_basic_optimizer"
_SCHEDULES = "runtime/lr_schedules.py"
_ONE_BIT = ("onebitadam", "zerooneadam", "onebitlamb")
"""1-bit optimizers, which DeepSpeed 0.18 still has (runtime/config.py ONEBIT_ADAM_OPTIMIZER and the two after it)."""


def _unknown(config: LintedConfig) -> Iterator[Violation]:
    facts = config.facts
    for block, name, own, of_torch in (
        ("optimizer", config.optimizer, facts.optimizers, facts.torch_optimizers),
        ("scheduler", config.scheduler, facts.schedulers, facts.torch_schedulers),
    ):
        path, kind, names = f"{block}.type", config.text(f"{block}.type"), (*own, *of_torch)
        if not kind or not of_torch or name in names:
            continue
        if kind.lower() in _ONE_BIT:
            what = f"the 1-bit optimizers were removed from DeepSpeed, and {facts.version} has no {json_text(kind)}"
            yield violation(path, what, fix='write "AdamW", without the arguments for compression in params')
            continue
        what = f"neither DeepSpeed nor torch has the {block} {json_text(kind)}"
        near, fix = _meant_type(config, block, kind), ""
        # No training has a file that is rejected, so the right name cannot change one. MyAdam is no typing error.
        is_alike = kind[0].lower() == near[:1].lower() and nearest(kind, (near,), cutoff=0.8) != ""
        is_typo = is_alike and _DIGITS.findall(kind) == _DIGITS.findall(near)
        if near:
            fix = f"write {json_text(near)}"
            if block == "scheduler" and not is_typo:
                fix += _other_arguments(config, near)
            if block == "optimizer" and not is_typo:
                allowed = ', set "zero_allow_untested_optimizer": true,' * bool(config.stage)
                fix += f", or remove the block{allowed} and create {json_text(kind)} in the script"
        yield violation(path, what, fix=fix, edits=(Replace((block, "type"), near),) if is_typo else ())


def _meant_type(config: LintedConfig, block: str, kind: str) -> str:
    """The type of a block that an unknown one stands for; "" if there is none: the longest that is part of its name,
    as in PagedAdamW8bit; for a scheduler one that takes the block's arguments; else the nearest."""
    facts, given = config.facts, config.block(f"{block}.params")
    if block == "optimizer":
        names = [*dict.fromkeys((*facts.torch_optimizers, *facts.optimizers))]
        part_of = [name for name in names if len(name) > 2 and name.lower() in kind.lower()]
        if part_of:
            return max(part_of, key=len)
        return nearest(kind, names) or nearest(kind.lower(), names)
    known = facts.schedulers if _wraps_optimizer.holds(config, "") else {**facts.torch_schedulers, **facts.schedulers}
    suited = [name for name, taken in known.items() if given and {*given} <= {each.name for each in taken}]
    names = suited or [*known]
    shared = {name: len(_words(kind) & _words(name)) for name in names}
    alike = [name for name in names if shared[name] == max(shared.values()) > 0]
    only = suited[0] if len(suited) == 1 else ""
    return nearest(kind, names, cutoff=0.8) or nearest(kind, alike, cutoff=0.0) or nearest(kind, names) or only


def _other_arguments(config: LintedConfig, scheduler: str) -> str:
    """What else must be changed in the arguments for another scheduler."""
    taken = _scheduler_parameters(config, scheduler) or ()
    given, names = config.block("scheduler.params"), [each.name for each in taken]
    changes = []
    if missing := _missing(config, taken):
        changes.append(f"add {missing}{_filled(config)}")
    for name in given:
        meant = meant_by(("scheduler", "params", name), names).names if name not in names else ()
        if len(meant) == 1 and meant[0] not in given:
            changes.append(f"rename {name[:40]} to {meant[0]}")
        elif name not in names:
            changes.append(f"remove {name[:40]}")
    return f", and in its params {', '.join(changes)}" if changes else ""


def _missing(config: LintedConfig, taken: Sequence[Parameter]) -> str:
    """The scheduler's required arguments that the file lacks."""
    given = config.block("scheduler.params")
    return ", ".join(each.name for each in taken if each.required and each.name not in given)


def _filled(config: LintedConfig) -> str:
    return ' (the Trainer replaces "auto")' * (config.framework == "hf")


def _scheduler_parameters(config: LintedConfig, scheduler: str) -> tuple[Parameter, ...] | None:
    """The arguments of a scheduler; None if unknown."""
    return config.facts.schedulers.get(scheduler) or config.facts.torch_schedulers.get(scheduler)


def _words(name: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(name)}


_WORD = re.compile(r"[A-Z]?[a-z]+")
"""A word of a class name or of a name with underscores, without the LR of schedulers."""
_DIGITS = re.compile(r"\d")
_warms_up = when.scheduler("WarmupLR", "WarmupDecayLR", "WarmupCosineLR")
_wraps_optimizer = when.stages(1, 2, 3) | when.fp16 | when.bf16
"""DeepSpeed wraps the optimizer in a class of its own."""


def _as_proposed(config: LintedConfig) -> LintedConfig:
    """The configuration with the corrected names of `_unknown`, whose arguments are then known. A name that is no
    typing error stays: its arguments are those of another class."""
    values = config.values
    for found in _unknown(config):
        block, *_ = found.path
        if found.edits:
            meant = _meant_type(config, block, config.text(f"{block}.type"))
            values = {**values, block: {**values[block], "type": meant}}
    return replace(config, values=values)


def _arguments(config: LintedConfig) -> Iterator[Violation]:
    config = _as_proposed(config)
    for block, kind, taken in (
        ("optimizer", config.optimizer, _optimizer_parameters(config)),
        ("scheduler", config.scheduler, _scheduler_parameters(config, config.scheduler)),
    ):
        path = f"{block}.params"
        params, names = config.block(path), [parameter.name for parameter in taken or ()]
        pair = _separate_betas(config, names) if block == "optimizer" else ()
        if pair:
            first, second = pair
            both = [params[name] for name in pair]
            what = f"{_class_name(config, block)} takes {first} and {second} as one list, betas"
            merged = ("optimizer", "params", "betas")
            edits = (
                Rename((*merged[:-1], first), "betas"),
                Replace(merged, both),
                Remove((*merged[:-1], second)),
            )
            fix = f'write "betas": {json_text(both)} instead'
            yield violation(f"{path}.{first}", what, fix=fix, edits=edits)
        for name in params if taken is not None else ():
            # DS503 reports max_grad_norm.
            if name not in (*names, *pair) and (block, name) != ("optimizer", "max_grad_norm"):
                what = f"{_class_name(config, block)} has no argument {name[:40]!r}"
                fix = "remove it, or correct its name"
                yield unknown_name(config, (block, "params", name), what, names, fix=fix, is_safe=True)
        if block == "scheduler" and taken is not None:
            if not isinstance(config.get(path), dict):
                yield violation(path, "the scheduler has no params", fix='add "params": {} with its arguments')
            elif missing := _missing(config, taken):
                yield violation(path, f"{kind} needs {missing}", fix=f"add {missing}{_filled(config)}")


def _class_name(config: LintedConfig, block: str) -> str:
    """The type of a block as its class is written, for `adamw` AdamW."""
    spec = config.optimizer_spec if block == "optimizer" else None
    return (spec.block_type if spec is not None else "") or config.text(f"{block}.type")


def _separate_betas(config: LintedConfig, known: Sequence[str]) -> tuple[str, ...]:
    """The names of the two numbers, such as beta1 and beta2, that are written instead of the list betas; empty if they
    are not."""
    params = config.block("optimizer.params")
    if "betas" not in known or "betas" in params:
        return ()
    found = {match[1]: name for name in params if (match := _BETA.fullmatch(name)) and name not in known}
    are_numbers = all(config.number(f"optimizer.params.{name}") is not None for name in found.values())
    return (found["1"], found["2"]) if len(found) == 2 and are_numbers else ()


_BETA = re.compile(r"(?:adam_)?beta_?([12])")


def _optimizer_parameters(config: LintedConfig) -> tuple[Parameter, ...] | None:
    """The arguments that the configuration can pass to the optimizer's class; None if unknown."""
    on_cpu = config.offload("optimizer") != "none"
    return config.facts.optimizer_parameters(config.optimizer, on_cpu=on_cpu, torch_adam=config.torch_adam)


def _clips_twice(config: LintedConfig) -> Iterator[Violation]:
    path, clipping = "optimizer.params.max_grad_norm", config.get("gradient_clipping")
    if not config.has(path) or config.get("optimizer.type") is None:
        return
    value, fix = config.get(path), 'move it to the top level as "gradient_clipping"'
    if clipping is not None:
        fix = f"remove it: gradient_clipping is already {json_text(clipping)}"
    edits = (Remove(tuple(path.split("."))),) if clipping is not None and clipping == value else ()
    yield violation(path, f"max_grad_norm is {json_text(value)}", fix=fix, edits=edits)


_WARM_UP_END, _WARM_UP_STEPS = "scheduler.params.warmup_max_lr", "scheduler.params.warmup_num_steps"
_TOTAL_STEPS, _DEFAULT_STEPS = "scheduler.params.total_num_steps", 1000
"""The default of warmup_num_steps."""
_other_lr = that(lambda config: bool(config.number("optimizer.params.lr"))) & when.Condition(
    lambda config, path: config.number(path) not in (None, config.number("optimizer.params.lr"))
)
_ends = when.scheduler("WarmupDecayLR", "WarmupCosineLR")


def _two_rates(config: LintedConfig, path: str) -> str:
    lr = config.number("optimizer.params.lr")
    return f"the optimizer's lr is {lr:g}, but warmup_max_lr is {config.number(path):g}"


def _warm_up_steps(config: LintedConfig) -> float | None:
    """The steps of the warm-up; None if they are not known."""
    return config.number(_WARM_UP_STEPS) if config.has(_WARM_UP_STEPS) else _DEFAULT_STEPS


def _outlasts(config: LintedConfig) -> bool:
    steps, total = _warm_up_steps(config), config.number(_TOTAL_STEPS)
    return steps is not None and total is not None and total < steps


def _falls(config: LintedConfig) -> bool:
    first, last = config.number("scheduler.params.warmup_min_lr"), config.number(_WARM_UP_END)
    return first is not None and last is not None and first > last


_tested = that(lambda config: config.optimizer_spec is not None and config.optimizer_spec.tested_with_zero)
_allowed = that(lambda config: bool(config.get("zero_allow_untested_optimizer")))
_has_no_type = when.Condition(
    lambda config, path: isinstance(config.get(path), dict) and config.get(f"{path}.type") is None
)
_needs_optimizer = when.stages(1, 2)
"""Stage 3 without one is inference. The Trainer leaves the optimizer of a file with the block to DeepSpeed."""
_IGNORES_BLOCK = "DeepSpeed then ignores the whole block"
_old_muon = when.per_matrix & that(lambda config: not config.facts.at_least("0.19.7"))

OPTIMIZER_RULES = section(
    "Optimizer and scheduler",
    error_rule(
        "DS501 an unknown optimizer or scheduler",
        _unknown,
        why="DeepSpeed asserts that the type is one of its own names or a class of torch",
        fix="correct the name, or create it in the script and remove the block",
        source="runtime/engine.py _is_supported_optimizer, _scheduler_from_config",
    ),
    warning_rule(
        "DS502 an optimizer or scheduler block without a type",
        at(
            ("optimizer", "scheduler"),
            _has_no_type & ~(_needs_optimizer & when.Condition(lambda _, path: path == "optimizer")),
            "the block has no type",
        ),
        at(
            "optimizer",
            _has_no_type & _needs_optimizer,
            lambda config, _: f"the block has no type, and ZeRO-{config.stage} needs an optimizer",
            severity="error",
            why=f"{_IGNORES_BLOCK}, and asserts that the stage has an optimizer, unless the script passes one to "
            "deepspeed.initialize",
        ),
        why=_IGNORES_BLOCK,
        fix='add "type"',
        source="runtime/config.py get_optimizer_name, get_scheduler_name; runtime/engine.py _configure_zero_optimizer",
    ),
    error_rule(
        "DS503 max_grad_norm in the optimizer",
        _clips_twice,
        why="DeepSpeed itself clips the gradients, and rejects the key in optimizer.params",
        source=_ENGINE,
    ),
    error_rule(
        "DS504 an optimizer that is untested with ZeRO",
        at(
            "optimizer.type",
            when.stages(1, 2, 3) & when.known_optimizer & ~_tested & ~_allowed,
            lambda config, _: f"{_class_name(config, 'optimizer')} is untested with ZeRO",
        ),
        why="ZeRO accepts Adam, AdamW, Adagrad, Lion and Muon; others need zero_allow_untested_optimizer",
        fix='add "zero_allow_untested_optimizer": true',
        source="runtime/engine.py _do_optimizer_sanity_check",
    ),
    error_rule(
        "DS505 arguments that do not match the optimizer or scheduler",
        _arguments,
        why="DeepSpeed passes params to the class, which raises a TypeError for an unknown or missing argument",
        source=_ENGINE + "; " + _SCHEDULES,
    ),
    error_rule(
        "DS508 Muon with reduce_scatter at stage 3",
        at("zero_optimization.reduce_scatter", when.per_matrix & when.stages(3) & ~when.off, "gradients are scattered"),
        why="Muon needs whole gradient matrices, and stage 3 rejects it if gradients are scattered (the default)",
        fix='set "reduce_scatter": false',
        source="runtime/zero/stage3.py __init__",
        since="0.19",
    ),
    warning_rule(
        "DS511 Muon in DeepSpeed before 0.19.8",
        at(
            "optimizer.type",
            _old_muon & when.stages(3) & when.for_trainer,
            "no parameter is updated by Muon, all are by AdamW",
        ),
        at("optimizer.type", _old_muon & when.stages(0), "matrices are updated by their gradient alone"),
        at(
            "gradient_accumulation_steps",
            when.per_matrix & when.stages(3) & when.number(lambda steps: steps > 1),
            lambda config, path: f"Muon's momentum advances {config.number(path):g} times a step",
        ),
        why="before 0.19.7 Muon gets no matrix from zero.Init at stage 3 (PR 8438), and stage 0 orthogonalizes nothing "
        "(PR 8442); before 0.19.8 stage 3 orthogonalizes each micro batch instead of their sum (PR 8600)",
        fix="install DeepSpeed 0.19.8, or use stage 1 or 2",
        since="0.19",
        until="0.19.8",
        source="__init__.py set_optimizer_flags; runtime/zero/muon/muon_optimizer.py step; runtime/zero/stage3.py",
    ),
    warning_rule(
        "DS608 a scheduler that overrides the learning rate",
        at(
            _WARM_UP_END,
            when.scheduler("WarmupLR") & _other_lr,
            _two_rates,
            fix="write the same number in both, or leave warmup_max_lr out",
        ),
        at(_WARM_UP_END, when.scheduler("WarmupDecayLR") & _other_lr, _two_rates),
        why="the warm-up ends at warmup_max_lr and ignores the optimizer's lr",
        fix="write the same number in both",
        source=_SCHEDULES,
    ),
    error_rule(
        "DS609 a torch scheduler with DeepSpeed's optimizer",
        at(
            "scheduler.type",
            that(lambda config: config.scheduler in {*config.facts.torch_schedulers} - {*config.facts.schedulers})
            & _wraps_optimizer,
            lambda config, _: f"{config.scheduler} is a class of torch, and DeepSpeed wraps the optimizer",
        ),
        why="ZeRO, fp16 and bf16 wrap the optimizer in a class of DeepSpeed, for which torch's schedulers raise a "
        "TypeError; DeepSpeed's schedulers use the wrapped optimizer",
        fix="use one of DeepSpeed's schedulers, or create torch's in the script from the wrapped optimizer",
        source="runtime/engine.py _configure_lr_scheduler",
    ),
    warning_rule(
        "DS610 an unknown form of the warm-up",
        at(
            "scheduler.params.warmup_type",
            when.present & _warms_up & ~when.equals("log", "linear", "auto"),
            lambda config, path: f"warmup_type is {json_text(config.get(path))}, so the warm-up is logarithmic",
        ),
        why="DeepSpeed has the forms log and linear, and takes log for any other, with a warning in the log",
        fix='write "linear" or "log"',
        source=_SCHEDULES + " (_initialize, WarmupCosineLR.__init__)",
    ),
    warning_rule(
        "DS611 a warm-up longer than the schedule, or with a falling rate",
        at(
            _TOTAL_STEPS,
            _ends & that(_outlasts),
            lambda config, path: (
                f"total_num_steps is {config.number(path):g}, below the {_warm_up_steps(config):g} of "
                f"warmup_num_steps{'' if config.has(_WARM_UP_STEPS) else ' (the default)'}"
            ),
            why="a training of total_num_steps ends inside the warm-up, below the full learning rate; DeepSpeed only "
            "warns in the log",
            fix="write fewer warmup_num_steps than total_num_steps",
        ),
        at(
            "scheduler.params.warmup_min_lr",
            when.scheduler("WarmupLR", "WarmupDecayLR") & that(_falls),
            lambda config, path: (
                f"warmup_min_lr is {config.number(path):g}, above the {config.number(_WARM_UP_END):g} of warmup_max_lr"
            ),
            why="the learning rate then falls to warmup_max_lr during the warm-up, without a message",
            fix="write a warmup_min_lr below warmup_max_lr, such as 0",
        ),
        why="the learning rate then never reaches its full value, or falls during the warm-up",
        source=_SCHEDULES + " WarmupDecayLR.__init__, WarmupCosineLR.__init__, WarmupLR.get_lr",
    ),
)
