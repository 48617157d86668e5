"""Optimizer and parameters in host RAM or on NVMe (DS4xx)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...estimators.memory.plan_memory import has_room_for_pinned
from ...estimators.phrase import phrase
from . import rule_conditions as when
from .linted_config import LintedConfig
from .rule import Rules, Violation, violation
from .rule_conditions import Condition, at
from .rules_resources import Situation

OFFLOAD_RULES = Rules("Offload and NVMe")
_RATIO = "zero_optimization.offload_optimizer.ratio"


def _both(name: str) -> tuple[str, ...]:
    """A key of both offload blocks."""
    return tuple(f"zero_optimization.{block}.{name}" for block in ("offload_optimizer", "offload_param"))


def _fits_pinned(known: Situation | None) -> bool:
    """Whether the RAM can hold the offloaded tensors in page-locked memory; True if unknown."""
    return known is None or has_room_for_pinned(known.model, known.workload, known.cluster, known.plan)


def _is_part(ratio: Any) -> bool:
    return isinstance(ratio, bool | int | float) and 0 <= ratio < 1


_room_for_pinned = Condition(lambda config, _: _fits_pinned(Situation.of(config)))
_part = Condition(lambda config, path: _is_part(config.get(path)))
_cpu_adam = when.may_have_adam & ~when.torch_adam
_whole_above_zero = Condition(lambda config, path: type(config.get(path)) is int and config.get(path) > 0)


_STAGE_3 = "runtime/zero/stage3.py"
_SWAPPER = "runtime/swap_tensor/partitioned_param_swapper.py"

OFFLOAD_RULES.error(
    "DS401 NVMe without a path",
    at(_both("nvme_path"), when.stages(3) & when.to_nvme & when.equals(None, "auto"), "{name} of {block} is missing"),
    why="DeepSpeed joins the path with the name of its swap folder, and stops with a TypeError or an assertion",
    fix='add "nvme_path": a folder on the local NVMe drive',
    source=_STAGE_3 + " _configure_tensor_swapping; " + _SWAPPER,
)
OFFLOAD_RULES.warning(
    "DS402 an optimizer on NVMe below stage 3",
    at(
        "zero_optimization.offload_optimizer.device",
        when.stages(1, 2) & when.to_nvme,
        "at stage {stage} the states stay in host RAM",
    ),
    why='stages 1 and 2 know one kind of offload: any device but "none" keeps the states in host RAM',
    fix='use stage 3, or write "device": "cpu"',
    source="runtime/zero/stage_1_and_2.py __init__ (cpu_offload)",
)


@OFFLOAD_RULES.error(
    "DS404 NVMe buffers smaller than a parameter",
    why="a parameter's shard must fit into one buffer, and DeepSpeed stops at the first that does not",
    source=_SWAPPER + " (elements_per_buffer)",
)
def small_buffers(config: LintedConfig) -> Iterator[Violation]:
    model, ranks = config.model, config.world_size
    if config.stage != 3 or config.offload("param") != "nvme" or model is None or ranks is None:
        return
    block = "zero_optimization.offload_param"
    size = config.number(f"{block}.buffer_size")
    size = config.facts.default(f"{block}.buffer_size") if size is None else size
    largest = -(-max(tensor.numel for tensor, _ in model.tensor_counts) // ranks)
    if size < largest:
        yield violation(
            f"{block}.buffer_size",
            "a buffer holds {size} elements, the largest parameter's shard has {largest}",
            size=f"{size:,.0f}",
            largest=f"{largest:,}",
            fix=phrase('write "buffer_size": {largest} or more', largest=largest),
        )


OFFLOAD_RULES.warning(
    "DS406 fewer NVMe buffers than Adam has states",
    at(
        "zero_optimization.offload_optimizer.buffer_count",
        when.stages(3) & when.to_nvme & when.number(lambda count: count < 4) & when.may_have_adam,
        "there are {number} buffers for Adam's parameter, gradient and two states",
    ),
    why="a sub-group's parameter, gradient and states are in memory together, each in a buffer, and DeepSpeed asserts "
    "that there are enough once a sub-group is large enough to be swapped",
    fix='write "buffer_count": 4 or more for Adam',
    source="runtime/swap_tensor/partitioned_optimizer_swapper.py swap_in_optimizer_state",
)


OFFLOAD_RULES.error(
    "DS408 a partly offloaded optimizer that is not Adam at stage 3",
    at(_RATIO, _part & ~when.stages(3), "ratio is {value} at stage {stage}"),
    at(_RATIO, when.number(_is_part) & when.stages(3) & when.offloaded & ~_cpu_adam, "the optimizer is {optimizer}"),
    why="the class asserts that a ratio below 1 comes with stage 3, and stage 3 that the optimizer is DeepSpeed's CPU "
    "Adam, whose copy steps the part on the GPU",
    fix="use AdamW and stage 3, or remove ratio",
    source="runtime/zero/config.py offload_ratio_check; " + _STAGE_3 + " __init__ (Hybrid Optimizer)",
)


OFFLOAD_RULES.warning(
    "DS417 a partly offloaded optimizer with a separate optimizer on the GPU",
    at(_RATIO, when.number(_is_part) & when.stages(3) & when.offloaded & when.may_have_adam),
    why="a second AdamW steps that part; it reads the learning rate once, so no schedule reaches the sub-groups of the "
    "first parameter group, and no checkpoint holds its states, so a resumed training starts them at zero",
    fix="remove ratio, unless the learning rate is constant and training never resumes",
    source=_STAGE_3 + " __init__, state_dict (backup_optimizer)",
)


@OFFLOAD_RULES.advice(
    "DS414 an offloaded optimizer without a CPU form",
    why="DeepSpeed has CPU forms of Adam, AdamW, Adagrad and Lion; torch's optimizers run as they are, slower, and "
    "LAMB is a kernel for GPUs",
    fix="use AdamW without torch_adam, or do not offload the optimizer",
    source="runtime/engine.py _configure_basic_optimizer",
)
def no_cpu_form(config: LintedConfig) -> Iterator[Violation]:
    name, spec = config.optimizer, config.optimizer_spec
    if not config.stage or config.offload("optimizer") == "none" or not name:
        return
    if spec is None or not spec.cpu_class:
        yield violation(
            "optimizer.type", "{name} has no CPU form", name=name, severity="warning" if name == "lamb" else None
        )
    elif config.flag("optimizer.params.torch_adam"):
        yield violation("optimizer.params.torch_adam", "torch's Adam steps on the CPU", severity="warning")


OFFLOAD_RULES.advice(
    "DS415 offload to memory that is not pinned",
    at(_both("pin_memory"), when.off & when.in_use & _room_for_pinned, "{block} is not pinned"),
    why="the driver stages copies from and to pageable memory, which is slower and never overlaps with computation",
    fix='set "pin_memory": true',
    source="runtime/zero/offload_config.py",
)


AIO_RULES = Rules("Asynchronous I/O")
_SOURCE = "runtime/swap_tensor/aio_config.py"

AIO_RULES.advice(
    "DS453 NVMe with one thread",
    at("aio.intra_op_parallelism", when.swaps & when.equals(None, 1), "one thread reads and writes"),
    why="DeepSpeed's defaults, 8 requests in flight from one thread, leave a modern drive idle",
    fix='set "intra_op_parallelism": 8 and "queue_depth": 32, or what ds_nvme_tune finds',
    source=_SOURCE,
)
AIO_RULES.error(
    "DS454 aio settings that are not numbers",
    at(
        ("aio.block_size", "aio.queue_depth", "aio.intra_op_parallelism"),
        when.swaps & when.not_null & ~_whole_above_zero,
    ),
    why="DeepSpeed computes buffer sizes with them and hands them to the I/O library",
    fix="write a whole number above zero",
    source="runtime/swap_tensor/partitioned_param_swapper.py _configure_aio",
)
