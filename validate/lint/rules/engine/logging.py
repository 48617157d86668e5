"""DS85x: logging and profiling."""

from __future__ import annotations

from collections.abc import Iterator

from ...linted_config import LintedConfig
from ...rule import Hit, Rules, hit
from ...values import shown

rules = Rules()


@rules.rule(
    "DS851",
    "error",
    "steps_per_print that cannot divide",
    why="DeepSpeed computes step % steps_per_print after every step",
    fix="write a whole number above zero, or remove it",
    source="runtime/engine.py _take_model_step",
    bad={"train_batch_size": 8, "steps_per_print": 0},
    good={"train_batch_size": 8, "steps_per_print": 10},
)
def steps_per_print(config: LintedConfig) -> Iterator[Hit]:
    value = config.get("steps_per_print")
    if value is not None and value != "auto" and (not isinstance(value, int | float) or value == 0):
        yield hit("steps_per_print", f"steps_per_print is {shown(value)}")


@rules.rule(
    "DS852",
    "advice",
    "wall_clock_breakdown",
    why="every phase of every step then waits for the GPU to finish",
    fix="set it to false when you have seen the times",
    source="runtime/engine.py, utils/timer.py",
    bad={"train_batch_size": 8, "wall_clock_breakdown": True},
    good={"train_batch_size": 8, "wall_clock_breakdown": False},
)
def breakdown(config: LintedConfig) -> Iterator[Hit]:
    if config.get("wall_clock_breakdown") is True:
        yield hit("wall_clock_breakdown", "times of every step are measured")


@rules.rule(
    "DS853",
    "advice",
    "the FLOPs profiler in a training",
    why="at profile_step it hooks into every module; it also turns wall_clock_breakdown on for all steps",
    fix="disable it when you have its table",
    source="runtime/config.py, profiling/config.py",
    bad={"train_batch_size": 8, "flops_profiler": {"enabled": True}},
    good={"train_batch_size": 8, "flops_profiler": {"enabled": False}},
)
def profiler(config: LintedConfig) -> Iterator[Hit]:
    if config.flag("flops_profiler.enabled"):
        yield hit("flops_profiler.enabled", "the profiler is on")


@rules.rule(
    "DS854",
    "advice",
    "logging of every collective",
    why="each one is timed with a synchronization of the GPU",
    fix="disable it when you have its table",
    source="comm/comm.py timed_op, utils/comms_logging.py",
    bad={"train_batch_size": 8, "comms_logger": {"enabled": True}},
    good={"train_batch_size": 8, "comms_logger": {"enabled": False}},
)
def collectives(config: LintedConfig) -> Iterator[Hit]:
    if config.flag("comms_logger.enabled"):
        yield hit("comms_logger.enabled", "every collective is logged")


@rules.rule(
    "DS855",
    "warning",
    "a secret in the file",
    why="DeepSpeed prints the whole configuration to the log when it starts",
    fix="set COMET_API_KEY in the environment and remove the key",
    source="runtime/config.py print_user_config",
    bad={"train_batch_size": 8, "comet": {"enabled": True, "api_key": "0123456789"}},
    good={"train_batch_size": 8, "comet": {"enabled": True}},
)
def secret(config: LintedConfig) -> Iterator[Hit]:
    if config.text("comet.api_key") not in ("", "auto"):
        yield hit("comet.api_key", "an API key stands in the configuration")


@rules.rule(
    "DS856",
    "advice",
    "autotuning in a training",
    why="the launcher reads it: with --autotuning it starts many short jobs",
    fix="disable it, or see `ds-advise MODEL --gpus SPEC`",
    source="autotuning/config.py, launcher/runner.py",
    bad={"train_batch_size": 8, "autotuning": {"enabled": True}},
    good={"train_batch_size": 8, "autotuning": {"enabled": False}},
)
def autotuning(config: LintedConfig) -> Iterator[Hit]:
    if config.flag("autotuning.enabled"):
        yield hit("autotuning.enabled", "autotuning is on")


@rules.rule(
    "DS857",
    "error",
    "autotuning without a folder",
    why="DeepSpeed asserts that the folders' names are not empty, even with autotuning off",
    fix="remove the key",
    source="autotuning/config.py _initialize",
    bad={"train_batch_size": 8, "autotuning": {"enabled": False, "results_dir": ""}},
    good={"train_batch_size": 8, "autotuning": {"enabled": False, "results_dir": "results"}},
)
def no_folder(config: LintedConfig) -> Iterator[Hit]:
    block = config.block("autotuning")
    for name in ("results_dir", "exps_dir"):
        if name in block and not block[name]:
            yield hit(f"autotuning.{name}", f"{name} is {shown(block[name])}")
