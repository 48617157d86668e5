"""Communication between GPUs (DS7xx)."""

from __future__ import annotations

from collections.abc import Iterator

from . import rule_conditions as when
from .linted_config import LintedConfig
from .rule import Rules, Violation, violation
from .rule_conditions import at
from .rule_examples import ON, plain, zero

COMMUNICATION_RULES = Rules("Communication")

COMMUNICATION_RULES.error(
    "DS701 an unknown communication type",
    at(
        ("communication_data_type", "seq_parallel_communication_data_type"),
        when.not_null & ~when.like("fp32", "fp16", "bf16", "auto"),
    ),
    why="DeepSpeed knows fp32, fp16 and bf16, and stops at any other",
    fix='write "fp32", "fp16" or "bf16", or remove it',
    source="runtime/config.py get_communication_data_type",
    bad=plain(communication_data_type="float16"),
    good=plain(communication_data_type="fp16"),
)
COMMUNICATION_RULES.advice(
    "DS702 gradients that travel in fp32",
    at("communication_data_type", when.like("fp32") & when.half_precision, "16-bit gradients are reduced in fp32"),
    why="every reduction moves twice the bytes of 16-bit gradients",
    fix="remove it, unless sums over very many GPUs need it",
    source="runtime/engine.py communication_data_type",
    bad=plain(bf16=ON, communication_data_type="fp32"),
    good=plain(bf16=ON),
)
COMMUNICATION_RULES.error(
    "DS703 an unknown reduction of gradients",
    at("gradient_allreduce_op", when.given & ~when.like("mean", "sum", "auto") & when.known),
    why='DeepSpeed knows "mean" and "sum"',
    fix='write "mean" or "sum"',
    source="runtime/config.py get_gradient_allreduce_op",
    since="0.19.6",
    bad=plain(gradient_allreduce_op="avg"),
    good=plain(gradient_allreduce_op="mean"),
)


@COMMUNICATION_RULES.error(
    "DS704 summed gradients where only means are reduced",
    why="stage 3, ZenFlow and DeepCompile refuse gradient_allreduce_op sum",
    fix='write "mean"',
    source="runtime/config.py _do_error_check",
    since="0.19.6",
    bad=plain(gradient_allreduce_op="sum", zero_optimization=zero(3)),
    good=plain(gradient_allreduce_op="sum", zero_optimization=zero(2)),
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
            yield violation("gradient_allreduce_op", f"gradients are summed under {what}")
            return


@COMMUNICATION_RULES.error(
    "DS705 unmanaged accumulation with overlapped communication",
    why="where the script decides when to step, overlap_comm needs stage 2 or 3, and DeepCompile is refused",
    fix='set "overlap_comm": false, or use stage 2',
    source="runtime/engine.py _do_sanity_check",
    since="0.19.6",
    bad=plain(managed_gradient_accumulation=False, zero_optimization=zero(1, overlap_comm=True)),
    good=plain(managed_gradient_accumulation=False, zero_optimization=zero(2, overlap_comm=True)),
)
def unmanaged(config: LintedConfig) -> Iterator[Violation]:
    path = "managed_gradient_accumulation"
    if not config.has(path) or config.get(path) or not config.knows(path):
        return
    if config.flag("zero_optimization.overlap_comm") and config.stage < 2:
        yield violation(path, f"overlap_comm is on at stage {config.stage}")
    elif config.flag("compile.deepcompile"):
        yield violation(path, "DeepCompile is on")


COMMUNICATION_RULES.error(
    "DS706 tensor parallelism that does not divide the GPUs",
    at("tensor_parallel.autotp_size", when.splits_ranks_unevenly, "{number} does not divide {ranks} GPUs"),
    why="the ranks are divided into groups of autotp_size",
    fix="choose a divisor of the number of GPUs",
    source="utils/groups.py _init_tp_mesh_device",
    options={"gpus": "4x24GB"},
    bad={"train_micro_batch_size_per_gpu": 1, "tensor_parallel": {"autotp_size": 3}},
    good={"train_micro_batch_size_per_gpu": 1, "tensor_parallel": {"autotp_size": 2}},
)
