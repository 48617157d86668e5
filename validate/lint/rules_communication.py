"""Communication between GPUs (DS7xx)."""

from __future__ import annotations

from collections.abc import Iterator

from ...estimators.phrase import named, phrase
from . import rule_conditions as when
from .linted_config import LintedConfig, shown
from .rule import Rules, Violation, bad_value, violation
from .rule_conditions import at

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
"""Keys that no class of DeepSpeed checks, and the values that it knows, in any case of letters."""


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


@COMMUNICATION_RULES.error(
    "DS704 summed gradients where only means are reduced",
    why="stage 3, ZenFlow and DeepCompile refuse gradient_allreduce_op sum",
    fix='write "mean"',
    source="runtime/config.py _do_error_check",
    since="0.19.6",
)
def sums(config: LintedConfig) -> Iterator[Violation]:
    if config.text("gradient_allreduce_op").lower() != "sum" or not config.knows("gradient_allreduce_op"):
        return
    for holds, what in (
        (config.stage == 3, "stage 3"),
        (config.get("zero_optimization.zenflow") is not None, "ZenFlow"),
        (config.flag("compile.deepcompile"), "DeepCompile"),
    ):
        if holds:
            yield violation("gradient_allreduce_op", "gradients are summed under {what}", what=named(what))
            return


@COMMUNICATION_RULES.error(
    "DS705 unmanaged accumulation with overlapped communication",
    why="where the script decides when to step, overlap_comm needs stage 2 or 3, and DeepCompile is refused",
    fix='set "overlap_comm": false, or use stage 2',
    source="runtime/engine.py _do_sanity_check",
    since="0.19.6",
)
def unmanaged(config: LintedConfig) -> Iterator[Violation]:
    path = "managed_gradient_accumulation"
    if not config.has(path) or config.get(path) or not config.knows(path):
        return
    if config.flag("zero_optimization.overlap_comm") and config.stage < 2:
        yield violation(path, "overlap_comm is on at stage {stage}", stage=config.stage)
    elif config.flag("compile.deepcompile"):
        yield violation(path, "DeepCompile is on")


COMMUNICATION_RULES.error(
    "DS706 tensor parallelism that does not divide the GPUs",
    at("tensor_parallel.autotp_size", when.splits_ranks_unevenly, "{number} does not divide {ranks} GPUs"),
    why="the ranks are divided into groups of autotp_size",
    fix="choose a divisor of the number of GPUs",
    source="utils/groups.py _init_tp_mesh_device",
)
