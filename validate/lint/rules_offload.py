"""Offload and NVMe (DS4xx)."""

from __future__ import annotations

from collections.abc import Iterator

from ...ds_configs.config_keys import CONFIG_KEYS
from ...estimators.memory.plan_memory import has_room_for_pinned
from ...estimators.time.offload_time import PAGEABLE_BYTES_PER_S
from ...estimators.time.step_time import gain_of_bf16
from . import rule_conditions as when
from .config_file import Remove
from .linted_config import GAIN, LintedConfig
from .rule import STAGE_3, STAGE_12, Violation, advice_rule, error_rule, section, violation, warning_rule
from .rule_conditions import Condition, at, that

_SWAPPER = "runtime/swap_tensor/partitioned_param_swapper.py"

_RATIO = "zero_optimization.offload_optimizer.ratio"


def _both(name: str) -> tuple[str, ...]:
    """A key of both offload blocks."""
    return tuple(f"zero_optimization.{block}.{name}" for block in ("offload_optimizer", "offload_param"))


def _small_buffers(config: LintedConfig) -> Iterator[Violation]:
    model, ranks = config.model, config.world_size
    if config.stage != 3 or config.offload("param") != "nvme" or model is None or ranks is None:
        return
    path = "zero_optimization.offload_param.buffer_size"
    size = config.number(path)
    size = config.facts.default(path) if size is None else size
    largest = -(-max(tensor.numel for tensor, _ in model.tensor_counts) // ranks)
    if size < largest:
        what = f"a buffer holds {size:,.0f} elements, the largest parameter's shard has {largest:,}"
        yield violation(path, what, why=_HOLDS_SHARD, fix=f'write "buffer_size": {largest} or more')


_HOLDS_SHARD = "a buffer must hold the shard of a parameter"
_ONE_PER_TENSOR = "a swapped sub-group needs one for its parameter, one for its gradient and one for each state"


def _fits_pinned(config: LintedConfig) -> bool:
    """Whether the RAM can hold the offloaded tensors in page-locked memory; True if unknown."""
    known = config.situation
    return known is None or has_room_for_pinned(known.model, known.workload, known.cluster, known.plan)


_unpinned = when.off | (when.null & Condition(lambda config, path: config.facts.default(path) is False))
_may_use_bf16 = that(lambda config: config.cluster is None or config.cluster.gpu.has_bf16)


def _pageable_copies(config: LintedConfig, path: str) -> str:
    what = f"{path.split('.')[1]} is not pinned: copies at most {PAGEABLE_BYTES_PER_S / 1e9:g} GB/s"
    known = config.situation
    gain = known.gain(known.plan.replace_fields(pin_memory=True)) if known is not None else 0.0
    return what + (f"; pinned it is predicted {gain:.1f} x as fast" if gain else "")


def _checked_on_host(config: LintedConfig, _: str) -> str:
    what = "the host checks the gradients of every step for infinities"
    known = config.situation
    gain = gain_of_bf16(known.model, known.workload, known.cluster, known.plan) if known is not None else 0.0
    return what + (f": bf16 is predicted {gain:.1f} x as fast" if gain >= GAIN else "")


_partly_offloaded = when.number(lambda ratio: 0 <= ratio < 1) & when.stages(3) & when.offloaded
_without_cpu_class = when.known_optimizer & that(
    lambda config: not (config.optimizer_spec and config.optimizer_spec.cpu_class)
)


def _no_cpu_class(config: LintedConfig, path: str) -> str:
    return f"{config.text(path)} has no CPU implementation"


def _without_nvme(config: LintedConfig) -> Iterator[Violation]:
    for known in CONFIG_KEYS.values():
        block, _, name = known.path.rpartition(".")
        device = config.text(f"{block}.device")
        is_given = config.has(known.path) and not config.is_auto(known.path)
        if known.nvme_only and is_given and device in ("cpu", "none"):
            what = f"{name} has no effect: the device is {device}"
            yield violation(known.path, what, edits=(Remove(tuple(known.path.split("."))),))


_CPU_CLASSES = "DeepSpeed implements Adam, AdamW, Adagrad and Lion for the CPU"
_TORCH_IS_SLOW, _LAMB_NEEDS_GPU = "torch's optimizers run there slowly", "LAMB is a GPU kernel"
_steps_on_cpu = when.stages(1, 2, 3) & when.offloaded

OFFLOAD_RULES = section(
    "Offload and NVMe",
    error_rule(
        "DS401 NVMe without a path",
        at(
            _both("nvme_path"),
            when.stages(3) & when.to_nvme & when.equals(None, "auto"),
            lambda _, path: f"nvme_path of {path.split('.')[1]} is missing",
        ),
        why="DeepSpeed joins the path with the name of its swap folder, and raises a TypeError or fails an assertion",
        fix='add "nvme_path": a folder on the local NVMe drive',
        source=STAGE_3 + " _configure_tensor_swapping; " + _SWAPPER,
    ),
    warning_rule(
        "DS402 an optimizer on NVMe below stage 3",
        at(
            "zero_optimization.offload_optimizer.device",
            when.stages(1, 2) & when.to_nvme,
            lambda config, _: f"at stage {config.stage} the states stay in host RAM",
        ),
        why='stages 1 and 2 have one kind of offload: any device but "none" keeps the states in host RAM',
        fix='use stage 3, or write "device": "cpu"',
        source=STAGE_12 + " __init__ (cpu_offload)",
    ),
    error_rule(
        "DS404 NVMe buffers that are too small or too few",
        _small_buffers,
        at(
            "zero_optimization.offload_optimizer.buffer_count",
            when.stages(3) & when.to_nvme & when.number(lambda count: count < 4) & when.may_have_adam,
            lambda config, path: (
                f"there are {config.number(path):g} buffers for Adam's parameter, gradient and two states"
            ),
            severity="warning",
            why=_ONE_PER_TENSOR,
        ),
        why=f"{_HOLDS_SHARD}; {_ONE_PER_TENSOR}",
        fix='write "buffer_count": 4 or more for Adam',
        source=_SWAPPER + " (elements_per_buffer), runtime/swap_tensor/partitioned_optimizer_swapper.py "
        "swap_in_optimizer_state",
    ),
    advice_rule(
        "DS414 an offloaded optimizer without a CPU implementation",
        at(
            "optimizer.type",
            _steps_on_cpu & _without_cpu_class & ~when.lamb,
            _no_cpu_class,
            why=f"{_CPU_CLASSES}; {_TORCH_IS_SLOW}",
        ),
        at(
            "optimizer.type",
            _steps_on_cpu & when.lamb,
            _no_cpu_class,
            severity="warning",
            why=f"{_CPU_CLASSES}; {_LAMB_NEEDS_GPU}",
        ),
        at(
            "optimizer.params.torch_adam",
            _steps_on_cpu & when.has_adam & when.on,
            "torch's Adam steps on the CPU",
            severity="warning",
            why=f"{_CPU_CLASSES}; {_TORCH_IS_SLOW}",
        ),
        why=f"{_CPU_CLASSES}; {_TORCH_IS_SLOW}, and {_LAMB_NEEDS_GPU}",
        fix="use AdamW without torch_adam, or do not offload the optimizer",
        source="runtime/engine.py _configure_basic_optimizer",
    ),
    advice_rule(
        "DS415 offload to memory that is not pinned",
        at(_both("pin_memory"), _unpinned & when.in_use & that(_fits_pinned), _pageable_copies),
        why="copies from and to pageable memory are slower and do not overlap with computation; without the key, "
        "memory is pinned from 0.19.5 on",
        fix='set "pin_memory": true',
        source="runtime/zero/offload_config.py, estimators/time/offload_time.py",
    ),
    advice_rule(
        "DS416 fp16 gradients that the host checks",
        at("fp16.enabled", when.fp16 & ~when.bf16 & when.stages(3) & when.offloaded & _may_use_bf16, _checked_on_host),
        why="with an offloaded optimizer, stage 3 looks for infinities in all fp16 gradients on the host",
        fix="use bf16, which is not checked, on GPUs that have it",
        source=STAGE_3 + " has_overflow, estimators/time/offload_time.py",
    ),
    warning_rule(
        "DS417 a partly offloaded optimizer",
        at(_RATIO, _partly_offloaded & when.may_have_adam),
        why="a second AdamW steps the part on the GPU: it reads the learning rate once, so schedules do not change it, "
        "and checkpoints do not contain its states, so a resumed training starts them at zero",
        fix="remove ratio, unless the learning rate is constant and training never resumes",
        source=STAGE_3 + " __init__, state_dict (backup_optimizer)",
    ),
    advice_rule(
        "DS418 a key of NVMe without NVMe",
        _without_nvme,
        why="DeepSpeed reads it only for offload to NVMe",
        fix="remove it",
        source=STAGE_3 + " _configure_tensor_swapping; " + _SWAPPER,
    ),
    advice_rule(
        "DS453 NVMe with one thread",
        at("aio.intra_op_parallelism", when.swaps & when.equals(None, 1), "one thread reads and writes"),
        why="DeepSpeed's defaults, 8 requests in flight from one thread, do not use the bandwidth of a modern drive",
        fix='set "intra_op_parallelism": 8 and "queue_depth": 32, or the values that ds_nvme_tune finds',
        source="runtime/swap_tensor/aio_config.py",
    ),
)
