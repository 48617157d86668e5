"""Mixtures of experts, communication, checkpoints, logging and profiling (DS65x, DS7xx, DS8xx)."""

from __future__ import annotations

from collections.abc import Iterator

from ...ds_configs.read import FIRST_WITHOUT_AUTOEP
from ...estimators.models.families import leaf_classes_to_write
from ...estimators.phrase import named, phrase
from ...probes.machine import installed_version
from .. import parse_version
from . import rule_conditions as when
from .installed_facts import source_folder
from .linted_config import LintedConfig, number_in, shown
from .rule import Rules, Violation, bad_value, unquoted, violation
from .rule_conditions import Condition, at

EXPERT_RULES = Rules("Mixtures of experts")
_SOURCE = "module_inject/auto_ep_config.py validate_autoep_post_detection; module_inject/auto_ep_folding.py"


def _size(config: LintedConfig) -> int:
    """autoep_size if AutoEP is on, else 0."""
    size = config.number("expert_parallel.autoep_size")
    return int(size if size is not None else 1) if config.flag("expert_parallel.enabled") else 0


_autoep = Condition(lambda config, _: bool(_size(config)))


@EXPERT_RULES.warning(
    "DS651 AutoEP with a transformers it does not know",
    why="DeepSpeed replaces modules of transformers by their inner workings; with 5.23 it stops at initialize with "
    "`_CanRecordRegistry.get() takes 2 positional arguments but 3 were given`",
    fix="install transformers 5.8",
    since="0.19",
    source="module_inject/auto_ep_presets/base.py _install_instance_transformers_output_recorders",
)
def unknown_transformers(config: LintedConfig) -> Iterator[Violation]:
    installed = installed_version("transformers")
    release = parse_version(installed).release
    if _size(config) and installed and not (5, 0) <= release < FIRST_WITHOUT_AUTOEP:
        worse = release >= FIRST_WITHOUT_AUTOEP
        what = phrase("AutoEP has not been seen to train with transformers {version}", version=installed)
        if worse:
            what = phrase("AutoEP cannot be initialized with transformers {version}", version=installed)
        yield violation("expert_parallel", what, severity="error" if worse else None)


@EXPERT_RULES.error(
    "DS652 experts or ranks that autoep_size does not divide",
    why="every rank of a group owns as many experts, and groups divide the ranks; DeepSpeed refuses anything else",
    since="0.19",
    source=_SOURCE,
)
def undividable_experts(config: LintedConfig) -> Iterator[Violation]:
    size, ranks = _size(config), config.world_size
    counts = {block.feed_forward.experts for block in config.model.blocks} - {0} if config.model else set()
    for number, things in [*((count, "experts") for count in sorted(counts)), (ranks or 0, "ranks")]:
        if size > 0 and number % size:
            what = named(things)
            problem = phrase(
                "{number} {things} do not divide into groups of {size}", number=number, things=what, size=size
            )
            fix = phrase("write a divisor of the number of {things}", things=what)
            yield violation("expert_parallel.autoep_size", problem, fix=fix)


EXPERT_RULES.error(
    "DS654 AutoEP at stage 3 with what it does not know",
    at(
        ("zero_optimization.zero_hpz_partition_size", "sequence_parallel_size"),
        when.number(lambda size: size > 1) & when.stages(3) & _autoep,
        "AutoEP at stage 3 does not go with {name}",
    ),
    at(
        "zero_optimization.zero_quantized_gradients",
        when.on & when.stages(3) & _autoep,
        "AutoEP at stage 3 does not go with {name}",
    ),
    why="DeepSpeed asserts that experts which ranks keep are partitioned neither over ranks that share samples nor in "
    "second copies, and that their gradients travel as they are",
    fix="remove it, or use stage 2",
    since="0.19",
    source="runtime/engine.py _validate_zero3_moe_compatibility",
)


@EXPERT_RULES.warning(
    "DS655 experts at stage 3 that are not leaf modules",
    why="ranks call different experts, and a rank that gathers the weights of an expert waits for the ranks that do "
    "not call it: the training hangs. DeepSpeed makes leaves of Mixtral, Qwen2-MoE and Qwen3-MoE only",
    source="runtime/zero/leaf_module_config.py DEFAULT_LEAF_MODULE_CLASSES; utils/z3_leaf_module.py",
)
def no_leaf(config: LintedConfig) -> Iterator[Violation]:
    if config.stage != 3 or config.model is None or config.workload is None or config.world_size == 1:
        return
    needed = leaf_classes_to_write(config.model, config.workload.software)
    given = config.block("zero_optimization.leaf_module")
    named = {str(name).rpartition(".")[2] for name in given.get("classes") or ()}
    if needed and not named & {*needed} and not given.get("names") and not given.get("name_suffixes"):
        classes = ", ".join(f'"{name}"' for name in needed)
        yield violation(
            "zero_optimization.leaf_module",
            "each expert of {name} is a module",
            name=config.model.name,
            fix=phrase(
                'write "leaf_module": {{"classes": [{classes}]}}, or call set_z3_leaf_modules in the script',
                classes=classes,
            ),
        )


CHECKPOINT_RULES = Rules("Checkpointing")

CHECKPOINT_RULES.advice(
    "DS804 activation_checkpointing that has no effect",
    at(
        "activation_checkpointing",
        when.for_trainer & when.any_set,
        "the block does not checkpoint a transformers model",
    ),
    why="it configures deepspeed.checkpointing; transformers' models use torch's checkpointing, so this block "
    "recomputes and saves nothing",
    fix="set gradient_checkpointing in TrainingArguments, and remove the block",
    source="runtime/activation_checkpointing/checkpointing.py configure",
)


_BLOCK = "activation_checkpointing"
_contiguous = when.is_on(f"{_BLOCK}.contiguous_memory_optimization")
_partitioned = when.is_on(f"{_BLOCK}.partition_activations")

CHECKPOINT_RULES.warning(
    "DS805 contiguous checkpoints without what they need",
    at(f"{_BLOCK}.contiguous_memory_optimization", when.on & ~_partitioned, "partition_activations is off"),
    at(f"{_BLOCK}.number_checkpoints", ~when.not_null & _contiguous & _partitioned, "{name} is missing"),
    why="deepspeed.checkpointing asserts that activations are partitioned and that the number of layers is known",
    fix='set "partition_activations": true and "number_checkpoints"',
    source="runtime/activation_checkpointing/checkpointing.py configure",
)


LOGGING_RULES = Rules("Logging and profiling")


@LOGGING_RULES.error(
    "DS851 steps_per_print that cannot divide",
    why="DeepSpeed computes step % steps_per_print after every step",
    fix="write a whole number above zero, or remove it",
    source="runtime/engine.py _take_model_step",
)
def steps_per_print(config: LintedConfig) -> Iterator[Violation]:
    value = config.get("steps_per_print")
    if value is not None and value != "auto" and (not isinstance(value, int | float) or value == 0):
        edits = unquoted("steps_per_print", value) if number_in(value) else ()
        yield bad_value(config, "steps_per_print", edits=edits)


LOGGING_RULES.advice(
    "DS852 profiling in a training",
    at(("wall_clock_breakdown", "flops_profiler.enabled", "comms_logger.enabled"), when.on, "{block} {name} is on"),
    why="timing a phase or a collective waits for the GPU; the FLOPs profiler turns wall_clock_breakdown on, too",
    fix="set it to false when you have seen the figures",
    source="utils/timer.py, profiling/config.py, comm/comm.py timed_op",
)


@LOGGING_RULES.warning(
    "DS855 a secret in the file",
    why="DeepSpeed prints the whole configuration to the log when it starts",
    source="runtime/config.py print_user_config",
)
def secret(config: LintedConfig) -> Iterator[Violation]:
    if config.text("comet.api_key") not in ("", "auto"):
        fix = "remove it and set COMET_API_KEY in the environment"
        yield violation("comet.api_key", "the configuration contains an API key", fix=fix)
    if "api_key" in config.block("wandb") and not config.is_auto("wandb.api_key"):
        yield violation(
            "wandb.api_key",
            "the configuration contains an API key, and DeepSpeed's wandb block refuses it",
            fix="remove it and set WANDB_API_KEY in the environment, which wandb reads",
            severity="error",
        )


_MONITOR_PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "comet": "comet_ml"}
"""Block -> package that it imports (monitor/utils.py)."""


@LOGGING_RULES.warning(
    "DS858 a monitor without its package",
    why="rank 0 imports the package when the engine is built, and stops with an ImportError",
    fix="install the package where the training runs, or disable the block",
    source="monitor/utils.py",
)
def missing_package(config: LintedConfig) -> Iterator[Violation]:
    for block, package in _MONITOR_PACKAGES.items():
        if config.flag(f"{block}.enabled") and source_folder(package) is None:
            yield violation(
                f"{block}.enabled",
                "{block} is enabled, and the package {package} is not installed here",
                block=block,
                package=package,
                severity=None if config.facts.origin == "installed" else "advice",  # it may run elsewhere
            )


COMMUNICATION_RULES = Rules("Communication")

_WORDS = {
    "communication_data_type": ("fp32", "fp16", "bf16", "auto"),
    "seq_parallel_communication_data_type": ("fp32", "fp16", "bf16", "auto"),
    "gradient_allreduce_op": ("mean", "sum", "auto"),
    "checkpoint.tag_validation": ("warn", "ignore", "fail"),
    "checkpoint.writer.type": ("mock", "python", "fast"),
    "checkpoint.writer.data_parallel": ("replica", "socket", "machine"),
    "checkpoint.parallel_write.pipeline_stage": (True, False, 0, 1),
}
"""Keys that no class of DeepSpeed validates -> accepted values, in any case of letters."""


@COMMUNICATION_RULES.error(
    "DS701 a word that DeepSpeed does not know",
    why="DeepSpeed stops at any other value",
    source="runtime/config.py, runtime/model_checkpointing/config.py",
)
def unknown_word(config: LintedConfig) -> Iterator[Violation]:
    for path, words in _WORDS.items():
        value = config.get(path)
        is_read = config.knows(path.partition(".")[0])
        may_be_null = path.startswith(("communication", "seq_parallel", "checkpoint.writer"))
        if not config.has(path) or not is_read or (value is None and may_be_null):
            continue
        if (value.lower() if isinstance(value, str) else value) not in words:
            yield bad_value(config, path, fix=phrase("write one of {values}", values=", ".join(map(shown, words))))


COMMUNICATION_RULES.error(
    "DS706 tensor parallelism that does not divide the GPUs",
    at("tensor_parallel.autotp_size", when.splits_ranks_unevenly, "{number} does not divide {ranks} GPUs"),
    why="the ranks are divided into groups of autotp_size",
    fix="choose a divisor of the number of GPUs",
    source="utils/groups.py _init_tp_mesh_device",
)
