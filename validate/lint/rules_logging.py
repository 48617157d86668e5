"""Checkpointing, logging and profiling (DS8xx)."""

from __future__ import annotations

from collections.abc import Iterator

from ...probes.installed_packages import source_folder
from . import rule_conditions as when
from .linted_config import LintedConfig
from .rule import Severity, Violation, advice_rule, error_rule, section, violation, warning_rule
from .rule_conditions import at, that

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
        at(
            f"{_BLOCK}.contiguous_memory_optimization",
            ~when.for_trainer & when.on & ~_partitioned,
            "partition_activations is off",
        ),
        at(
            f"{_BLOCK}.number_checkpoints",
            ~when.for_trainer & when.null & _contiguous & _partitioned,
            "number_checkpoints is missing",
        ),
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
