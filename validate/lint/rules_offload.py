"""Optimizer and parameters in host RAM or on NVMe (DS4xx)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...ds_configs.config_keys import CONFIG_KEYS
from ...estimators.memory.trainable import tensor_set
from . import rule_conditions as when
from .linted_config import LintedConfig
from .rule import Rules, Violation, bad_value, removed, violation
from .rule_conditions import Condition, at
from .rule_examples import ADAMW, CPU, NVME, ON, plain, zero

OFFLOAD_RULES = Rules("Offload and NVMe")
_RATIO = "zero_optimization.offload_optimizer.ratio"


def _both(name: str) -> tuple[str, ...]:
    """A key of both offload blocks."""
    return tuple(f"zero_optimization.{block}.{name}" for block in ("offload_optimizer", "offload_param"))


def _is_part(ratio: Any) -> bool:
    return isinstance(ratio, bool | int | float) and 0 <= ratio < 1


def _is_tmpfs(folder: str) -> bool:
    """Whether a folder's file system is a tmpfs, by the kernel's table of mounts; nothing in the folder is read."""
    try:
        path = Path(folder).resolve()
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, RuntimeError, ValueError):  # a loop of links, a null byte, not Linux
        return False
    mounts = [(Path(fields[1]), fields[2]) for line in lines if len(fields := line.split()) > 2]
    holding = [(len(mount.parts), kind) for mount, kind in mounts if mount == path or mount in path.parents]
    return bool(holding) and max(holding)[1] in ("tmpfs", "ramfs")


_on_tmpfs = Condition(lambda config, path: bool(config.text(path)) and _is_tmpfs(config.text(path)))
_part = Condition(lambda config, path: _is_part(config.get(path)))
_whole_above_zero = Condition(lambda config, path: type(config.get(path)) is int and config.get(path) > 0)
_HALF = CPU | {"ratio": 0.5}
_ADAGRAD = {"type": "Adagrad", "params": {"lr": 0.01}}
_SGD = {"type": "SGD", "params": {"lr": 0.1}}
_TORCH_ADAM = {"type": "AdamW", "params": {"torch_adam": True}}
_ZENFLOW = "zero_optimization.zenflow"


def _zenflow(**settings: Any) -> dict[str, Any]:
    """A zero_optimization block with ZenFlow."""
    return zero(2, offload_optimizer=CPU, zenflow=settings)


_STAGE_3 = "runtime/zero/stage3.py"
_SWAPPER = "runtime/swap_tensor/partitioned_param_swapper.py"

OFFLOAD_RULES.error(
    "DS401 NVMe without a path",
    at(_both("nvme_path"), when.stages(3) & when.to_nvme & when.equals(None, "auto"), "{name} of {block} is missing"),
    why="DeepSpeed joins the path with the name of its swap folder, and stops with a TypeError or an assertion",
    fix='add "nvme_path": a folder on the local NVMe drive',
    source=_STAGE_3 + " _configure_tensor_swapping; " + _SWAPPER,
    bad=plain(zero_optimization=zero(3, offload_optimizer={"device": "nvme"})),
    good=plain(zero_optimization=zero(3, offload_optimizer=NVME)),
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
    bad=plain(zero_optimization=zero(2, offload_optimizer=NVME)),
    good=plain(zero_optimization=zero(2, offload_optimizer=CPU)),
)
OFFLOAD_RULES.warning(
    "DS403 swapping to memory",
    at(_both("nvme_path"), when.stages(3) & when.to_nvme & _on_tmpfs, "{value} is on a tmpfs on this machine"),
    why="a tmpfs is RAM: what is swapped there takes the memory that the swapping should save",
    fix="name a folder on a drive",
    source="statfs of the folder, /proc/self/mounts",
    bad=plain(zero_optimization=zero(3, offload_optimizer={"device": "nvme", "nvme_path": "/dev/shm"})),
    good=plain(zero_optimization=zero(3, offload_optimizer=NVME)),
)


@OFFLOAD_RULES.error(
    "DS404 NVMe buffers smaller than a parameter",
    why="a parameter's shard must fit into one buffer, and DeepSpeed stops at the first that does not",
    source=_SWAPPER + " (elements_per_buffer)",
    options={"model": "Qwen2.5-7B", "gpus": "2x24GB"},
    bad=plain(bf16=ON, zero_optimization=zero(3, offload_param=NVME)),
    good=plain(bf16=ON, zero_optimization=zero(3, offload_param=NVME | {"buffer_size": 3e8})),
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
            f"a buffer holds {size:,.0f} elements, the largest parameter's shard has {largest:,}",
            fix=f'write "buffer_size": {largest} or more',
        )


@OFFLOAD_RULES.warning(
    "DS405 NVMe buffers that pin more RAM than there is",
    why="every rank pins buffer_count buffers of one fp32 sub-group each",
    fix="write a smaller sub_group_size, such as 20000000",
    source="runtime/swap_tensor/optimizer_utils.py SwapBufferManager",
    options={"model": "Qwen2.5-72B", "gpus": "8xA100-80GB", "ram": "100GB"},
    bad=plain(bf16=ON, zero_optimization=zero(3, offload_optimizer=NVME)),
    good=plain(bf16=ON, zero_optimization=zero(3, sub_group_size=2e7, offload_optimizer=NVME)),
)
def pinned_sub_groups(config: LintedConfig) -> Iterator[Violation]:
    cluster, model = config.cluster, config.model
    ram = cluster.host_memory_bytes_per_node if cluster is not None else None
    if config.stage != 3 or config.offload("optimizer") != "nvme" or cluster is None or not ram or model is None:
        return
    trainable = (
        model.parameters
        if config.workload is None or config.workload.method == "full"
        else tensor_set(model, config.workload).trainable_numel
    )
    block = "zero_optimization.offload_optimizer"
    count = config.number(f"{block}.buffer_count")
    count = config.facts.default(f"{block}.buffer_count") if count is None else count
    group = min(config.zero_number("sub_group_size"), -(-trainable // cluster.world_size))
    pinned = int(count) * group * 4 * cluster.gpus_per_node
    if pinned > ram:
        yield violation(
            config.zero_place("sub_group_size"),
            f"{count:g} buffers x {group:,} elements x 4 bytes x {cluster.gpus_per_node} ranks are {pinned / 1e9:.0f} "
            f"GB of {ram / 1e9:.0f} GB",
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
    bad=plain(optimizer=ADAMW, zero_optimization=zero(3, offload_optimizer=NVME | {"buffer_count": 2})),
    good=plain(optimizer=ADAMW, zero_optimization=zero(3, offload_optimizer=NVME | {"buffer_count": 4})),
)


@OFFLOAD_RULES.advice(
    "DS407 NVMe settings without NVMe",
    why='they have no effect with "device": "cpu" or "none"',
    fix="remove them",
    source="runtime/zero/offload_config.py; " + _STAGE_3,
    bad=plain(zero_optimization=zero(3, offload_param=CPU | {"buffer_size": 1e9})),
    good=plain(zero_optimization=zero(3, offload_param=CPU)),
)
def unused_nvme(config: LintedConfig) -> Iterator[Violation]:
    for what in ("optimizer", "param"):
        block = f"zero_optimization.offload_{what}"
        paths = [path for path, known in CONFIG_KEYS.items() if known.nvme_only and path.startswith(f"{block}.")]
        given = [path.rpartition(".")[2] for path in paths if config.has(path)]
        if given and config.offload(what) != "nvme":
            edits = tuple(edit for name in given for edit in removed(f"{block}.{name}"))
            what = f"the device is {config.offload(what)}: no effect of {', '.join(given)}"
            yield violation(f"{block}.{given[0]}", what, edits=edits)


OFFLOAD_RULES.error(
    "DS408 a partly offloaded optimizer below stage 3",
    at(_RATIO, _part & when.stages(0, 1, 2), "{name} is {value} at stage {stage}"),
    why="the class asserts that a ratio below 1 comes with stage 3",
    fix="use stage 3, or remove ratio",
    source="runtime/zero/config.py offload_ratio_check",
    bad=plain(zero_optimization=zero(2, offload_optimizer=_HALF)),
    good=plain(zero_optimization=zero(3, offload_optimizer=_HALF)),
)
OFFLOAD_RULES.error(
    "DS409 a partly offloaded optimizer that is not Adam",
    at(
        _RATIO,
        when.number(_is_part) & when.stages(3) & when.offloaded & ~(when.may_have_adam & ~when.torch_adam),
        "the optimizer is {optimizer}",
    ),
    why="the part on the GPU is a copy of DeepSpeed's CPU Adam, and stage 3 asserts that it is one",
    fix="use AdamW, or remove ratio",
    source=_STAGE_3 + " __init__ (Hybrid Optimizer)",
    bad=plain(optimizer=_ADAGRAD, zero_optimization=zero(3, offload_optimizer=_HALF)),
    good=plain(optimizer=ADAMW, zero_optimization=zero(3, offload_optimizer=_HALF)),
)
OFFLOAD_RULES.warning(
    "DS417 a partly offloaded optimizer with a separate optimizer on the GPU",
    at(_RATIO, when.number(_is_part) & when.stages(3) & when.offloaded & when.may_have_adam),
    why="a second AdamW steps that part; it reads the learning rate once, so no schedule reaches the sub-groups of the "
    "first parameter group, and no checkpoint holds its states, so a resumed training starts them at zero",
    fix="remove ratio, unless the learning rate is constant and training never resumes",
    source=_STAGE_3 + " __init__, state_dict (backup_optimizer)",
    bad=plain(optimizer=ADAMW, zero_optimization=zero(3, offload_optimizer=_HALF)),
    good=plain(optimizer=ADAMW, zero_optimization=zero(3, offload_optimizer=CPU)),
)
OFFLOAD_RULES.warning(
    "DS410 SuperOffload below stage 3",
    at("zero_optimization.offload_optimizer.super_offload", when.on & when.stages(0, 1, 2)),
    why="only stage 3 has an optimizer for it; other stages ignore it",
    fix="remove it",
    source="runtime/engine.py _configure_zero_optimizer",
    bad=plain(zero_optimization=zero(2, offload_optimizer=CPU | {"super_offload": True})),
    good=plain(zero_optimization=zero(3, offload_optimizer=CPU | {"super_offload": True})),
)
OFFLOAD_RULES.error(
    "DS411 ZenFlow without CPU offload",
    at(_ZENFLOW, when.not_null & when.stages(1, 2) & ~when.offloaded, "the optimizer is not offloaded"),
    why="ZenFlow hides the CPU optimizer's time, and refuses to run where there is none",
    fix='add "offload_optimizer": {"device": "cpu"}, or remove zenflow',
    source="runtime/zenflow/zenflow_stage_1_and_2.py _configure_zenflow",
    bad=plain(optimizer=ADAMW, zero_optimization=zero(2, zenflow={"topk_ratio": 0.1})),
    good=plain(optimizer=ADAMW, zero_optimization=_zenflow(topk_ratio=0.1)),
)


@OFFLOAD_RULES.error(
    "DS412 ZenFlow's intervals in contradiction",
    why="select_strategy auto sets the interval itself and refuses a number; step and epoch need one",
    fix='with "select_strategy": "auto" leave select_interval out; else write a number',
    source="runtime/zenflow/engine.py configure_zenflow; runtime/zenflow/zenflow_config.py",
    bad=plain(optimizer=ADAMW, zero_optimization=_zenflow(select_interval=4)),
    good=plain(optimizer=ADAMW, zero_optimization=_zenflow(select_strategy="step", select_interval=4)),
)
def zenflow_intervals(config: LintedConfig) -> Iterator[Violation]:
    block = _ZENFLOW
    if not isinstance(config.get(block), dict):
        return
    strategy, interval = config.get(f"{block}.select_strategy"), config.get(f"{block}.select_interval")
    update = config.get(f"{block}.update_interval")
    if isinstance(strategy, str) and strategy not in ("auto", "step", "epoch"):
        yield bad_value(config, f"{block}.select_strategy", fix='write "auto", "step" or "epoch"')
        return
    automatic, numbered = strategy in (None, "auto"), isinstance(interval, int)
    if automatic and numbered:
        yield bad_value(config, f"{block}.select_interval")
    elif isinstance(strategy, str) and not automatic and interval in (None, "auto"):
        yield violation(f"{block}.select_interval", f"the strategy is {strategy}, but select_interval is missing")
    for name in ("select_interval", "update_interval"):
        text = config.get(f"{block}.{name}")
        if isinstance(text, str) and text != "auto":
            yield bad_value(config, f"{block}.{name}", fix='write a number or "auto"')
    if isinstance(update, int) and update < 1:
        yield bad_value(config, f"{block}.update_interval", fix="write 1 or more")
    elif strategy == "step" and numbered and isinstance(update, int) and 0 < interval < update:
        yield violation(
            f"{block}.select_interval",
            f"select_interval {interval} is below update_interval {update}",
            fix="write select_interval at least as large as update_interval",
        )


OFFLOAD_RULES.error(
    "DS416 ZenFlow without an optimizer block",
    at(_ZENFLOW, when.not_null & when.stages(1, 2) & ~when.is_block("optimizer.params"), "no optimizer.params"),
    why="ZenFlow makes its optimizer on the GPU from optimizer.params, and raises a TypeError without them",
    fix="add the optimizer block, with params",
    source="runtime/zenflow/zenflow_stage_1_and_2.py __init__",
    bad=plain(zero_optimization=_zenflow(topk_ratio=0.1)),
    good=plain(optimizer=ADAMW, zero_optimization=_zenflow(topk_ratio=0.1)),
)
OFFLOAD_RULES.warning(
    "DS413 torch's Adam on the CPU",
    at("optimizer.params.torch_adam", when.on & when.stages(1, 2, 3) & when.offloaded),
    why="torch_adam keeps DeepSpeed from its vectorized CPU Adam, which is several times as fast as torch's",
    fix='set "torch_adam": false',
    source="runtime/engine.py get_optimizer_configuration; ops/adam/cpu_adam.py",
    bad=plain(optimizer=_TORCH_ADAM, zero_optimization=zero(2, offload_optimizer=CPU)),
    good=plain(optimizer=ADAMW, zero_optimization=zero(2, offload_optimizer=CPU)),
)


@OFFLOAD_RULES.advice(
    "DS414 an offloaded optimizer without a CPU form",
    why="DeepSpeed has CPU forms of Adam, AdamW, Adagrad and Lion; others of torch run as they are, slower, and LAMB "
    "is a kernel for GPUs",
    fix="use AdamW, or do not offload the optimizer",
    source="runtime/engine.py _configure_basic_optimizer",
    bad=plain(optimizer=_SGD, zero_allow_untested_optimizer=True, zero_optimization=zero(2, offload_optimizer=CPU)),
    good=plain(optimizer=ADAMW, zero_optimization=zero(2, offload_optimizer=CPU)),
)
def no_cpu_form(config: LintedConfig) -> Iterator[Violation]:
    name = config.optimizer
    offloaded = config.stage and config.offload("optimizer") != "none"
    spec = config.optimizer_spec
    if offloaded and name and (spec is None or not spec.cpu_class):
        yield violation("optimizer.type", f"{name} has no CPU form", severity="warning" if name == "lamb" else None)


OFFLOAD_RULES.advice(
    "DS415 offload to memory that is not pinned",
    at(_both("pin_memory"), when.off & when.in_use, "{block} is not pinned"),
    why="the driver stages copies from and to pageable memory, which is slower and never overlaps with computation",
    fix='set "pin_memory": true',
    source="runtime/zero/offload_config.py",
    bad=plain(zero_optimization=zero(2, offload_optimizer=CPU | {"pin_memory": False})),
    good=plain(zero_optimization=zero(2, offload_optimizer=CPU | {"pin_memory": True})),
)


AIO_RULES = Rules("Asynchronous I/O")
_SOURCE = "runtime/swap_tensor/aio_config.py"
_SWAPS = zero(3, offload_optimizer=NVME)

AIO_RULES.warning(
    "DS451 aio.thread_count, which is an old name",
    at("aio.thread_count", when.given, "{name} is ignored"),
    why="the key's name is intra_op_parallelism; under the old one it is ignored",
    fix="write intra_op_parallelism",
    source=_SOURCE,
    bad=plain(zero_optimization=_SWAPS, aio={"thread_count": 8}),
    good=plain(zero_optimization=_SWAPS, aio={"intra_op_parallelism": 8, "queue_depth": 32}),
)
AIO_RULES.advice(
    "DS452 aio without NVMe",
    at("aio", when.block & ~when.empty & ~when.swaps, "nothing is swapped to NVMe"),
    why="only swapping to NVMe reads these settings",
    fix="remove the block",
    source="runtime/zero/stage3.py, runtime/swap_tensor/",
    bad=plain(zero_optimization=zero(2), aio={"queue_depth": 32}),
    good=plain(zero_optimization=_SWAPS, aio={"queue_depth": 32, "intra_op_parallelism": 8}),
)
AIO_RULES.advice(
    "DS453 NVMe with one thread",
    at("aio.intra_op_parallelism", when.swaps & when.equals(None, 1), "one thread reads and writes"),
    why="DeepSpeed's defaults, 8 requests in flight from one thread, leave a modern drive idle",
    fix='set "intra_op_parallelism": 8 and "queue_depth": 32, or what ds_nvme_tune finds',
    source=_SOURCE,
    bad=plain(zero_optimization=_SWAPS),
    good=plain(zero_optimization=_SWAPS, aio={"intra_op_parallelism": 8, "queue_depth": 32}),
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
    bad=plain(zero_optimization=_SWAPS, aio={"block_size": "1M", "intra_op_parallelism": 8}),
    good=plain(zero_optimization=_SWAPS, aio={"block_size": 1048576, "intra_op_parallelism": 8}),
)
