"""Optimizer, scheduler, experts, checkpointing and logging (DS5xx to DS8xx)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...ds_configs.read import FIRST_WITHOUT_AUTOEP
from ...estimators.models.families import leaf_classes_to_write
from ...probes.machine import installed_version
from .. import parse_version
from . import rule_conditions as when
from .config_file import Remove, Rename, Replace
from .facts import Parameter
from .installed_facts import source_folder
from .linted_config import LintedConfig
from .rule import Severity, Violation, advice_rule, error_rule, section, violation, warning_rule
from .rule_conditions import at, that
from .unknown_names import unknown_name
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


def _words(name: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(name)}


_WORD = re.compile(r"[A-Z]?[a-z]+")
"""A word of a class name or of a name with underscores, without the LR of schedulers."""
_DIGITS = re.compile(r"\d")
_wraps_optimizer = when.stages(1, 2, 3) | when.fp16 | when.bf16
"""DeepSpeed wraps the optimizer in a class of its own."""


def _as_proposed(config: LintedConfig) -> LintedConfig:
    """The configuration with the names that `_unknown` proposes, whose arguments are then known. An optimizer that is
    no typing error keeps its name: its arguments are the script's."""
    values = config.values
    for found in _unknown(config):
        block, *_ = found.path
        if found.edits or block == "scheduler":
            meant = _meant_type(config, block, config.text(f"{block}.type"))
            values = {**values, block: {**values[block], "type": meant or config.text(f"{block}.type")}}
    return replace(config, values=values)


def _arguments(config: LintedConfig) -> Iterator[Violation]:
    config = _as_proposed(config)
    for block, kind, taken in (
        ("optimizer", config.optimizer, _optimizer_parameters(config)),
        (
            "scheduler",
            config.scheduler,
            config.facts.schedulers.get(config.scheduler) or config.facts.torch_schedulers.get(config.scheduler),
        ),
    ):
        path = f"{block}.params"
        params, names = config.block(path), [parameter.name for parameter in taken or ()]
        pair = _separate_betas(config, names) if block == "optimizer" else ()
        if pair:
            first, second = pair
            both = [params[name] for name in pair]
            what = f"{config.text('optimizer.type')} takes {first} and {second} as one list, betas"
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
                what = f"{config.text(f'{block}.type')} has no argument {name[:40]!r}"
                fix = "remove it, or correct its name"
                yield unknown_name(config, (block, "params", name), what, names, fix=fix, is_safe=True)
        if block == "scheduler" and taken is not None:
            missing = ", ".join(known.name for known in taken if known.required and known.name not in params)
            fix = f"add {missing}"
            if not isinstance(config.get(path), dict):
                yield violation(path, "the scheduler has no params", fix='add "params": {} with its arguments')
            elif missing:
                if config.framework == "hf":
                    fix += ' (the Trainer replaces "auto")'
                yield violation(path, f"{kind} needs {missing}", fix=fix)


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
    facts, spec = config.facts, config.optimizer_spec
    if spec is None:
        return facts.torch_optimizers.get(config.optimizer)
    cls = (spec.cpu_class if config.offload("optimizer") != "none" else "") or spec.gpu_class
    found = facts.optimizer_classes.get(cls) if cls else facts.torch_optimizers.get(spec.block_type)
    if not spec.is_adam or found is None:
        return found
    if config.flag("optimizer.params.torch_adam"):
        found = facts.torch_optimizers.get(spec.block_type, ())
    own = ("torch_adam", "adam_w_mode", "fp32_optimizer_states")
    arguments = (parameter for parameter in found if parameter.name != "adamw_mode")
    return (*arguments, *(Parameter(name=name, required=False) for name in own))


_tested = that(lambda config: config.optimizer_spec is not None and config.optimizer_spec.tested_with_zero)
_allowed = that(lambda config: bool(config.get("zero_allow_untested_optimizer")))
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
            when.Condition(lambda config, path: isinstance(config.get(path), dict))
            & when.Condition(lambda config, path: config.get(f"{path}.type") is None),
            "the block has no type",
        ),
        why="DeepSpeed then ignores the whole block",
        fix='add "type"',
        source="runtime/config.py get_optimizer_name, get_scheduler_name",
    ),
    error_rule(
        "DS503 max_grad_norm in the optimizer",
        at("optimizer.params.max_grad_norm", when.present & ~when.is_missing("optimizer.type")),
        why="DeepSpeed itself clips the gradients, and rejects the key in optimizer.params",
        fix='move it to the top level as "gradient_clipping"',
        source=_ENGINE,
    ),
    error_rule(
        "DS504 an optimizer that is untested with ZeRO",
        at(
            "optimizer.type",
            ~when.stages(0) & when.known_optimizer & ~_tested & ~_allowed,
            lambda config, path: f"{config.text(path)} is untested with ZeRO",
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
            "scheduler.params.warmup_max_lr",
            that(lambda config: config.scheduler in ("WarmupLR", "WarmupDecayLR"))
            & that(lambda config: bool(config.number("optimizer.params.lr")))
            & when.Condition(
                lambda config, path: config.number(path) not in (None, config.number("optimizer.params.lr"))
            ),
            lambda config, path: (
                f"the optimizer's lr is {config.number('optimizer.params.lr'):g}, but warmup_max_lr is "
                f"{config.number(path):g}"
            ),
        ),
        why="the warm-up ends at warmup_max_lr and ignores the optimizer's lr",
        fix="write the same number in both, or leave warmup_max_lr out of WarmupLR",
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
)


def _no_leaf(config: LintedConfig) -> Iterator[Violation]:
    if config.stage != 3 or config.model is None or config.workload is None or config.world_size == 1:
        return
    needed = leaf_classes_to_write(config.model, config.workload.software)
    block = config.block("zero_optimization.leaf_module")
    classes = {str(name).rpartition(".")[2] for name in block.get("classes") or ()}
    if needed and not classes & {*needed} and not block.get("names") and not block.get("name_suffixes"):
        listed = ", ".join(f'"{name}"' for name in needed)
        fix = f'write "leaf_module": {{"classes": [{listed}]}}, or call set_z3_leaf_modules in the script'
        what = f"each expert of {config.model.name} is a module"
        yield violation("zero_optimization.leaf_module", what, fix=fix)


_transformers_without_autoep = that(
    lambda _: parse_version(installed_version("transformers") or "0").release >= FIRST_WITHOUT_AUTOEP
)

EXPERT_RULES = section(
    "Mixtures of experts",
    error_rule(
        "DS651 AutoEP with a newer transformers",
        at(
            "expert_parallel",
            when.is_on("expert_parallel.enabled") & _transformers_without_autoep,
            lambda *_: f"AutoEP cannot be initialized with transformers {installed_version('transformers')}",
        ),
        why="DeepSpeed replaces internals of transformers' modules; from 5.23 on, initialize raises "
        "`_CanRecordRegistry.get() takes 2 positional arguments but 3 were given`",
        fix="install transformers 5.8",
        since="0.19",
        source="module_inject/auto_ep_presets/base.py _install_instance_transformers_output_recorders",
    ),
    warning_rule(
        "DS655 experts at stage 3 that are not leaf modules",
        _no_leaf,
        why="ranks call different experts, and a rank that gathers an expert's weights waits for the ranks that do not "
        "call it: the training hangs. DeepSpeed makes leaf modules of Mixtral, Qwen2-MoE and Qwen3-MoE only",
        source="runtime/zero/leaf_module_config.py DEFAULT_LEAF_MODULE_CLASSES; utils/z3_leaf_module.py",
    ),
)

_BLOCK = "activation_checkpointing"
_contiguous = when.is_on(f"{_BLOCK}.contiguous_memory_optimization")
_partitioned = when.is_on(f"{_BLOCK}.partition_activations")
_CHECKPOINTING = "runtime/activation_checkpointing/checkpointing.py configure"

_WRITER = "checkpoint.writer"
_BUFFER_BYTES = 64 * 2**20
"""Default of io_buffer_size (0.19.8 runtime/model_checkpointing/constants.py)."""


def _write_buffer(config: LintedConfig, path: str) -> str:
    if config.text(f"{path}.type").lower() not in ("", "fast"):
        return "torchrun and accelerate do not start it"
    size = config.get(f"{path}.io_buffer_size")
    mib = (size if isinstance(size, int | float) else _BUFFER_BYTES) / 2**20
    return f"each rank takes {mib:,.0f} MiB of host memory for its buffer"


_MONITOR_PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "comet": "comet_ml"}
"""Block -> package that it imports (monitor/utils.py)."""


def _missing_package(config: LintedConfig) -> Iterator[Violation]:
    for block, package in _MONITOR_PACKAGES.items():
        if config.flag(f"{block}.enabled") and source_folder(package) is None:
            what = f"{block} is enabled, and the package {package} is not installed here"
            # Without an installed DeepSpeed the training may run elsewhere.
            severity: Severity | None = None if config.facts.origin == "installed" else "advice"
            yield violation(f"{block}.enabled", what, severity=severity)


def _secrets(config: LintedConfig) -> Iterator[Violation]:
    for block in ("comet", "wandb"):
        path, what = f"{block}.api_key", "the configuration contains an API key"
        severity: Severity | None = None
        if config.get(path) not in (None, "", "auto"):
            if block == "wandb":
                what, severity = f"{what}, and the wandb block rejects it", "error"
            fix = f"remove it, and set {block.upper()}_API_KEY in the environment"
            yield violation(path, what, fix=fix, severity=severity)


LOGGING_RULES = section(
    "Checkpointing, logging and profiling",
    advice_rule(
        "DS804 activation_checkpointing without effect",
        at(
            _BLOCK,
            when.for_trainer & that(lambda config: any(config.block(_BLOCK).values())),
            "the block does not checkpoint a transformers model",
        ),
        why="it configures deepspeed.checkpointing, but transformers' models use torch's checkpointing",
        fix="set gradient_checkpointing in TrainingArguments, and remove the block",
        source=_CHECKPOINTING,
    ),
    warning_rule(
        "DS805 contiguous checkpoints without the required settings",
        at(f"{_BLOCK}.contiguous_memory_optimization", when.on & ~_partitioned, "partition_activations is off"),
        at(f"{_BLOCK}.number_checkpoints", when.null & _contiguous & _partitioned, "number_checkpoints is missing"),
        why="deepspeed.checkpointing asserts that activations are partitioned and that the number of layers is known",
        fix='set "partition_activations": true and "number_checkpoints"',
        source=_CHECKPOINTING,
    ),
    error_rule(
        "DS807 a checkpoint writer without data_parallel",
        at(
            _WRITER,
            when.truthy & when.stages(0, 1, 2) & when.is_missing(f"{_WRITER}.data_parallel"),
            "data_parallel is missing",
        ),
        why="below stage 3, the engine stops at a field that it does not have (dp_rank)",
        fix='set "data_parallel": "replica" in checkpoint.writer, or remove the block',
        since="0.19",
        source="runtime/model_checkpointing/data_parallel_writer_factory.py _get_data_parallel_config",
    ),
    advice_rule(
        "DS808 a checkpoint writer",
        at(_WRITER, when.truthy, _write_buffer),
        why="writers read CROSS_SIZE and CROSS_RANK, which only the deepspeed launcher sets; the predicted host memory "
        "leaves out the fast one's buffer, which is page-locked",
        fix="start it by deepspeed, or set CROSS_SIZE (nodes) and CROSS_RANK (of each node)",
        since="0.19",
        source="runtime/model_checkpointing/utils.py, writer_factory.py _setup_for_aio",
    ),
    advice_rule(
        "DS852 profiling in a training",
        at(
            ("wall_clock_breakdown", "flops_profiler.enabled", "comms_logger.enabled"),
            when.on,
            lambda _, path: f"{path.removesuffix('.enabled')} is on",
        ),
        why="timing a phase or a collective waits for the GPU; the FLOPs profiler also turns wall_clock_breakdown on",
        fix="set it to false after profiling",
        source="utils/timer.py, profiling/config.py, comm/comm.py timed_op",
    ),
    warning_rule(
        "DS855 a secret in the file",
        _secrets,
        why="DeepSpeed prints the whole configuration to the log when it starts",
        fix="remove it, and set the key in the environment",
        source="runtime/config.py print_user_config",
    ),
    warning_rule(
        "DS858 a monitor without its package",
        _missing_package,
        why="rank 0 imports the package when the engine is built, and raises an ImportError",
        fix="install the package where the training runs, or disable the block",
        source="monitor/utils.py",
    ),
)
