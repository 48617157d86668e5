"""DS7xx: communication and the accumulation of gradients."""

from __future__ import annotations

from collections.abc import Iterator

from ..linted_config import LintedConfig, shown
from ..rule import Hit, Rules, hit
from .examples import ON, plain, zero

rules = Rules()


@rules.error(
    "DS701 an unknown communication type",
    why="DeepSpeed knows fp32, fp16 and bf16, and stops at any other",
    fix='write "fp32", "fp16" or "bf16", or remove it',
    source="runtime/config.py get_communication_data_type",
    bad=plain(communication_data_type="float16"),
    good=plain(communication_data_type="fp16"),
)
def unknown_type(config: LintedConfig) -> Iterator[Hit]:
    for name in ("communication_data_type", "seq_parallel_communication_data_type"):
        value = config.get(name)
        right = isinstance(value, str) and value.lower() in ("fp32", "fp16", "bf16", "auto")
        if value is not None and not right:
            yield hit(name, f"{name} is {shown(value)}")


@rules.advice(
    "DS702 gradients that travel in fp32",
    why="every reduction moves twice the bytes of 16-bit gradients",
    fix="remove it, unless sums over very many GPUs need it",
    source="runtime/engine.py communication_data_type",
    bad=plain(bf16=ON, communication_data_type="fp32"),
    good=plain(bf16=ON),
)
def wide(config: LintedConfig) -> Iterator[Hit]:
    if config.text("communication_data_type").lower() == "fp32" and (config.bf16 or config.fp16):
        yield hit("communication_data_type", "16-bit gradients are reduced in fp32")


@rules.error(
    "DS703 an unknown reduction of gradients",
    why='DeepSpeed knows "mean" and "sum"',
    fix='write "mean" or "sum"',
    source="runtime/config.py get_gradient_allreduce_op",
    since="0.19.6",
    bad=plain(gradient_allreduce_op="avg"),
    good=plain(gradient_allreduce_op="mean"),
)
def unknown_operation(config: LintedConfig) -> Iterator[Hit]:
    value = config.get("gradient_allreduce_op")
    known = isinstance(value, str) and value.lower() in ("mean", "sum", "auto")
    if config.has("gradient_allreduce_op") and not known and _knows(config, "gradient_allreduce_op"):
        yield hit("gradient_allreduce_op", f"gradient_allreduce_op is {shown(value)}")


@rules.error(
    "DS704 summed gradients where only means are reduced",
    why="stage 3, ZenFlow and DeepCompile refuse gradient_allreduce_op sum",
    fix='write "mean"',
    source="runtime/config.py _do_error_check",
    since="0.19.6",
    bad=plain(gradient_allreduce_op="sum", zero_optimization=zero(3)),
    good=plain(gradient_allreduce_op="sum", zero_optimization=zero(2)),
)
def sums(config: LintedConfig) -> Iterator[Hit]:
    if config.text("gradient_allreduce_op").lower() != "sum" or not _knows(config, "gradient_allreduce_op"):
        return
    for holds, what in (
        (config.stage == 3, "stage 3"),
        (config.get("zero_optimization.zenflow") is not None, "ZenFlow"),
        (config.flag("compile.deepcompile"), "DeepCompile"),
    ):
        if holds:
            yield hit("gradient_allreduce_op", f"gradients are summed under {what}")
            return


@rules.error(
    "DS705 unmanaged accumulation with overlapped communication",
    why="where the script decides when to step, overlap_comm needs stage 2 or 3, and DeepCompile is refused",
    fix='set "overlap_comm": false, or use stage 2',
    source="runtime/engine.py _do_sanity_check",
    since="0.19.6",
    bad=plain(managed_gradient_accumulation=False, zero_optimization=zero(1, overlap_comm=True)),
    good=plain(managed_gradient_accumulation=False, zero_optimization=zero(2, overlap_comm=True)),
)
def unmanaged(config: LintedConfig) -> Iterator[Hit]:
    path = "managed_gradient_accumulation"
    if not config.has(path) or config.get(path) or not _knows(config, path):
        return
    if config.flag("zero_optimization.overlap_comm") and config.stage < 2:
        yield hit(path, f"overlap_comm is on at stage {config.stage}")
    elif config.flag("compile.deepcompile"):
        yield hit(path, "DeepCompile is on")


@rules.error(
    "DS706 tensor parallelism that does not divide the GPUs",
    why="the ranks are divided into groups of autotp_size",
    fix="choose a divisor of the number of GPUs",
    source="utils/groups.py _init_tp_mesh_device",
    options={"gpus": "4x24GB"},
    bad={"train_micro_batch_size_per_gpu": 1, "tensor_parallel": {"autotp_size": 3}},
    good={"train_micro_batch_size_per_gpu": 1, "tensor_parallel": {"autotp_size": 2}},
)
def tensor_parallel(config: LintedConfig) -> Iterator[Hit]:
    size, ranks = config.number("tensor_parallel.autotp_size"), config.world_size
    if size and size > 1 and ranks and ranks % size:
        yield hit("tensor_parallel.autotp_size", f"{size:g} does not divide {ranks} GPUs")


def _knows(config: LintedConfig, key: str) -> bool:
    """Whether this version reads a key of the top level."""
    block = config.facts.block("")
    return block is not None and key in block.keys
