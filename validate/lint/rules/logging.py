"""DS85x: logging and profiling."""

from __future__ import annotations

from collections.abc import Iterator

from ..linted_config import LintedConfig, number_in, shown
from ..rule import Hit, Rules, hit, unquoted
from .examples import ON, plain

rules = Rules()


@rules.error(
    "DS851 steps_per_print that cannot divide",
    why="DeepSpeed computes step % steps_per_print after every step",
    fix="write a whole number above zero, or remove it",
    source="runtime/engine.py _take_model_step",
    bad=plain(steps_per_print=0),
    good=plain(steps_per_print=10),
)
def steps_per_print(config: LintedConfig) -> Iterator[Hit]:
    value = config.get("steps_per_print")
    if value is not None and value != "auto" and (not isinstance(value, int | float) or value == 0):
        edits = unquoted("steps_per_print", value) if number_in(value) else ()
        yield hit("steps_per_print", f"steps_per_print is {shown(value)}", edits=edits)


@rules.advice(
    "DS852 timing of every phase (wall_clock_breakdown)",
    why="every phase of every step then waits for the GPU to finish",
    fix="set it to false when you have seen the times",
    source="runtime/engine.py, utils/timer.py",
    bad=plain(wall_clock_breakdown=True),
    good=plain(wall_clock_breakdown=False),
)
def breakdown(config: LintedConfig) -> Iterator[Hit]:
    if config.get("wall_clock_breakdown") is True:
        yield hit("wall_clock_breakdown", "the phases of every step are timed")


@rules.advice(
    "DS853 the FLOPs profiler in a training",
    why="at profile_step it hooks into every module; it also turns wall_clock_breakdown on for all steps",
    fix="disable it when you have its table",
    source="runtime/config.py, profiling/config.py",
    bad=plain(flops_profiler=ON),
    good=plain(flops_profiler={"enabled": False}),
)
def profiler(config: LintedConfig) -> Iterator[Hit]:
    if config.flag("flops_profiler.enabled"):
        yield hit("flops_profiler.enabled", "the profiler is on")


@rules.advice(
    "DS854 logging of every collective",
    why="each one is timed with a synchronization of the GPU",
    fix="disable it when you have its table",
    source="comm/comm.py timed_op, utils/comms_logging.py",
    bad=plain(comms_logger=ON),
    good=plain(comms_logger={"enabled": False}),
)
def collectives(config: LintedConfig) -> Iterator[Hit]:
    if config.flag("comms_logger.enabled"):
        yield hit("comms_logger.enabled", "every collective is logged")


@rules.warning(
    "DS855 a secret in the file",
    why="DeepSpeed prints the whole configuration to the log when it starts",
    source="runtime/config.py print_user_config",
    bad=plain(comet=ON | {"api_key": "0123456789"}),
    good=plain(comet=ON),
)
def secret(config: LintedConfig) -> Iterator[Hit]:
    if config.text("comet.api_key") not in ("", "auto"):
        fix = "remove it and set COMET_API_KEY in the environment"
        yield hit("comet.api_key", "an API key stands in the configuration", fix=fix)
    if "api_key" in config.block("wandb") and not config.is_auto("wandb.api_key"):
        yield hit(
            "wandb.api_key",
            "an API key stands in the configuration, and DeepSpeed's wandb block refuses it",
            fix="remove it and set WANDB_API_KEY in the environment, which wandb reads",
            severity="error",
        )


@rules.advice(
    "DS856 autotuning in a training",
    why="the launcher reads it: with --autotuning it starts many short jobs",
    fix="disable it, or see `ds-advise MODEL --gpus SPEC`",
    source="autotuning/config.py, launcher/runner.py",
    bad=plain(autotuning=ON),
    good=plain(autotuning={"enabled": False}),
)
def autotuning(config: LintedConfig) -> Iterator[Hit]:
    if config.flag("autotuning.enabled"):
        yield hit("autotuning.enabled", "autotuning is on")


@rules.error(
    "DS857 autotuning without a folder",
    why="DeepSpeed asserts that the folders' names are not empty, even with autotuning off",
    fix="remove the key",
    source="autotuning/config.py _initialize",
    bad=plain(autotuning={"enabled": False, "results_dir": ""}),
    good=plain(autotuning={"enabled": False, "results_dir": "results"}),
)
def no_folder(config: LintedConfig) -> Iterator[Hit]:
    block = config.block("autotuning")
    for name in ("results_dir", "exps_dir"):
        if name in block and not block[name]:
            yield hit(f"autotuning.{name}", f"{name} is {shown(block[name])}")
