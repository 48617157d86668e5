"""Precision, ZeRO and offload (DS2xx to DS4xx)."""

from __future__ import annotations

from collections.abc import Iterator

from ...ds_configs.config_keys import CONFIG_KEYS
from ...estimators.memory.plan_memory import has_room_for_pinned
from ...estimators.time.offload_time import PAGEABLE_BYTES_PER_S
from ...estimators.time.step_time import gain_of_bf16
from ...estimators.units import gib
from . import rule_conditions as when
from .config_file import Remove
from .linted_config import GAIN, LintedConfig
from .rule import Severity, Violation, advice_rule, error_rule, section, violation, warning_rule
from .rule_conditions import Condition, at, key_name, that
from .rules_types import DTYPES

_STAGE_12 = "runtime/zero/stage_1_and_2.py"
_STAGE_3 = "runtime/zero/stage3.py"
_SWAPPER = "runtime/swap_tensor/partitioned_param_swapper.py"
_FP16_MASTERS = "fp16.fp16_master_weights_and_grads"
_MASTERS, _STATES = "bf16.bf16_master_weights_and_grads", "bf16.bf16_optimizer_states"


def _capability(config: LintedConfig) -> float:
    """The compute capability of the GPUs; 0 if unknown."""
    return (config.cluster.gpu.compute_capability or 0) if config.cluster is not None else 0


def _compute_capability(config: LintedConfig, _: str) -> str:
    assert config.cluster is not None, "its capability is known"
    return f"the {config.cluster.gpu.name} has compute capability {_capability(config):.1f}"


def _grad_dtype(config: LintedConfig) -> str | None:
    return DTYPES.get(config.text("data_types.grad_accum_dtype"))


_no_block = that(lambda config: not any(map(config.has, ("fp16", "bf16", "bfloat16"))))
"""accelerate then adds the block that mixed_precision names."""
_states_in_bf16_on_gpu = when.is_on(_STATES) & ~when.offloaded

PRECISION_RULES = section(
    "Precision",
    error_rule(
        "DS201 fp16 and bf16 are both enabled",
        at("fp16.enabled", when.fp16 & when.bf16, "fp16 and bf16 are both enabled"),
        why="DeepSpeed asserts that at most one of them is",
        fix='keep one of them; "auto" lets the Trainer choose',
        source="runtime/config.py _initialize_params",
    ),
    warning_rule(
        "DS202 bf16 on GPUs without bf16",
        at(
            "bf16.enabled",
            when.bf16 & that(lambda config: 0 < _capability(config) < 8),
            _compute_capability,
        ),
        why="GPUs before Ampere (compute capability 8.0) emulate it at a fraction of their fp16 speed",
        fix="use fp16",
        source="torch.cuda.is_bf16_supported (emulation counts); NVIDIA data sheets",
    ),
    advice_rule(
        "DS203 training in fp32",
        at(
            "bf16",
            ~(when.fp16 | when.bf16 | that(lambda config: config.precision_is_auto) | (when.for_trainer & _no_block))
            & ~when.is_on("torch_autocast.enabled"),
            "neither bf16 nor fp16 is enabled",
        ),
        why="weights and gradients take four bytes each, and matrix products run without half-precision tensor cores",
        fix='add "bf16": {"enabled": true}, or fp16 before Ampere',
        source="runtime/engine.py get_data_types",
    ),
    error_rule(
        "DS208 half-precision master weights that DeepSpeed rejects",
        at(
            (_FP16_MASTERS, _MASTERS, _STATES),
            when.on & when.stages(0),
            lambda _, path: f"{key_name(path)} is on at stage 0",
        ),
        at(
            (_FP16_MASTERS, _MASTERS),
            when.on & ~when.stages(0) & ~(when.offloaded & when.cpu_adam) & ~_states_in_bf16_on_gpu,
            "the optimizer is not DeepSpeed's CPU Adam",
        ),
        at(_STATES, when.on & ~when.stages(0) & ~when.is_on(_MASTERS), "bf16_master_weights_and_grads is off"),
        why="ZeRO supports them with its CPU Adam; bf16 masters may stay on the GPU if bf16_optimizer_states is on",
        fix='use ZeRO with AdamW and "offload_optimizer": {"device": "cpu"}, or remove the key',
        source="runtime/config.py _do_error_check; runtime/base_optimizer.py _configure_master_weights",
    ),
    error_rule(
        "DS213 gradients of another type without ZeRO",
        at(
            "data_types.grad_accum_dtype",
            when.decided & when.stages(0) & that(lambda config: _grad_dtype(config) not in (None, config.model_type)),
            lambda config, _: (
                f"gradients are accumulated in {_grad_dtype(config)}, but the weights are {config.model_type}, "
                "at stage 0"
            ),
        ),
        why="at stage 0 DeepSpeed accumulates in the model's type only, and raises NotImplementedError",
        fix="use ZeRO stage 1 or more, or remove grad_accum_dtype",
        source="runtime/engine.py _do_optimizer_sanity_check",
    ),
    advice_rule(
        "DS214 stage 1 with unsharded fp32 gradients",
        at(
            "data_types.grad_accum_dtype",
            when.stages(1) & when.bf16 & that(lambda config: _grad_dtype(config) == "fp32") & ~when.offloaded,
            "every GPU holds the fp32 gradients of all parameters",
        ),
        why="for bf16 with fp32 accumulation DeepSpeed uses its BF16_Optimizer at stage 1, which holds four bytes per "
        "parameter on every GPU that stage 2 does not need",
        fix="use stage 2",
        source="runtime/bf16_optimizer.py _setup_for_real_optimizer",
    ),
)


def _other_stage(config: LintedConfig) -> Iterator[Violation]:
    unused = list[tuple[str, bool]]()  # (path, whether the value is the default)
    for known in CONFIG_KEYS.values():
        owner, _, name = known.path.rpartition(".")
        if owner == "zero_optimization" and known.stages in ((3,), (1, 2)) and config.stage not in known.stages:
            path = config.zero_path(name)
            if config.has(path) and not config.is_auto(path):
                unused.append((path, config.get(path) == config.facts.default(path)))
    block = "zero_optimization.offload_param"
    if config.stage < 3 and config.offload("param") != "none" and config.has(block):
        unused.append((block, False))
    for path, is_default in unused:
        what = f"{key_name(path)} has no effect at stage {config.stage}"
        severity: Severity | None = "advice" if is_default else None
        yield violation(path, what, edits=(Remove(tuple(path.split("."))),), severity=severity)


def _large_sub_group(config: LintedConfig) -> Iterator[Violation]:
    model, ranks = config.model, config.world_size
    if config.stage != 3 or model is None or ranks is None or config.offload("optimizer") == "nvme":
        return
    if config.workload is not None and config.workload.method != "full":
        return
    elements = min(config.zero_number("sub_group_size"), model.parameters // ranks)
    if elements >= 5e8:
        what = f"a sub-group takes {gib(elements * 6)} GiB per GPU during the step"
        yield violation(config.zero_path("sub_group_size"), what)


def _all_live(config: LintedConfig) -> Iterator[Violation]:
    names = "max_live_parameters", "max_reuse_distance"
    if config.stage == 3 and config.model and min(map(config.zero_number, names)) >= config.model.parameters:
        what = (
            f"max_live_parameters and max_reuse_distance are at least the model's {config.model.parameters:,} "
            "parameters"
        )
        yield violation(config.zero_path("max_live_parameters"), what)


def _two_buckets(config: LintedConfig) -> Iterator[Violation]:
    path = "zero_optimization.reduce_bucket_size"
    filled, elements = config.framework == "hf" and config.is_auto(path), config.zero_number("reduce_bucket_size")
    if config.stage in (1, 2) and config.flag("zero_optimization.overlap_comm") and not filled and elements >= 2e8:
        width = 2 if config.fp16 or config.bf16 or config.precision_is_auto else 4
        needed = gib(2 * width * elements)
        yield violation(path, f"2 x {elements:,} elements x {width} bytes are {needed} GiB per GPU")


def _saves_shards(config: LintedConfig) -> bool:
    gathers = any(map(config.flag, (*_GATHERS, "zero_optimization.stage3_gather_fp16_weights_on_model_save")))
    return config.stage == 3 and not gathers and config.offload("param") != "nvme"


def _weight_bytes(config: LintedConfig) -> int:
    return config.model.parameters * 2 if config.model is not None else 0


def _ram_bytes(config: LintedConfig) -> int:
    """The RAM of a node; 0 if unknown."""
    return (config.cluster.host_memory_bytes_per_node or 0) if config.cluster is not None else 0


def _cpu_kernel_steps(config: LintedConfig) -> bool:
    """Whether an offloaded optimizer is one of DeepSpeed's CPU optimizers, also if the script makes it."""
    if not config.optimizer:
        return not config.off("zero_force_ds_cpu_optimizer")
    spec = config.optimizer_spec
    return spec is not None and spec.has_cpu_kernel and not config.flag("optimizer.params.torch_adam")


_GATHERS = (
    "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    "zero_optimization.gather_16bit_weights_on_model_save",
)
"""Both names of the key."""
_averages = when.stages(3) | that(lambda config: config.text("gradient_allreduce_op").lower() != "sum")
_scatters_means = when.stages(2, 3) & ~when.is_off("zero_optimization.reduce_scatter") & _averages
_params_on_nvme = that(lambda config: config.offload("param") == "nvme")
_lacks_ram = that(lambda config: 0 < _ram_bytes(config) < _weight_bytes(config))

ZERO_RULES = section(
    "ZeRO",
    warning_rule(
        "DS302 a setting of another stage",
        _other_stage,
        why="DeepSpeed passes it to an optimizer that does not use it",
        fix="remove it, or use that stage",
        source="runtime/engine.py _configure_zero_optimizer",
    ),
    error_rule(
        "DS303 an offloaded optimizer at stage 0",
        at(
            "zero_optimization.offload_optimizer",
            when.stages(0) & when.offloaded & that(_cpu_kernel_steps),
            "the optimizer runs on the CPU, the weights stay on the GPU",
        ),
        why="DeepSpeed makes the CPU optimizer, but only ZeRO moves the weights to it: the first step fails on GPU "
        "tensors",
        fix="use stage 1, 2 or 3, or remove offload_optimizer",
        source="ops/adam/cpu_adam.py step; runtime/engine.py",
    ),
    warning_rule(
        "DS306 sub_group_size is 0",
        at("zero_optimization.sub_group_size", when.stages(3) & when.equals(0), "every sub-group has one parameter"),
        why="the optimizer then steps once per parameter",
        fix="remove it, or write a number such as 100000000",
        source=_STAGE_3 + " _create_fp16_sub_groups",
    ),
    advice_rule(
        "DS307 large sub-groups",
        _large_sub_group,
        why="the step flattens a sub-group's gradients and casts them to fp32: six bytes per element of the sub-group, "
        "or of the rank's share if that is smaller",
        fix="write 100000000, which costs 0.6 GiB at most",
        source=_STAGE_3 + " _prepare_fp32_grad_for_sub_group",
    ),
    advice_rule(
        "DS308 ZeRO-3 that keeps all weights gathered",
        _all_live,
        why="a weight that is used again within max_reuse_distance parameters is not released; with the defaults of "
        "1e9 every GPU holds a whole model of fewer than 1e9 parameters",
        fix="write both below the model's parameters, such as a few of its layers",
        source="runtime/zero/partitioned_param_coordinator.py",
    ),
    error_rule(
        "DS312 scaled gradients with reduce_scatter",
        at(
            "prescale_gradients",
            when.truthy & _scatters_means,
            lambda config, _: f"gradients are pre-scaled at stage {config.stage}",
        ),
        at(
            "gradient_predivide_factor",
            when.number(lambda factor: factor != 1) & _scatters_means,
            lambda config, path: f"gradients are pre-divided by {config.number(path):g} at stage {config.stage}",
        ),
        why="with reduce_scatter (the default), stages 2 and 3 assert that gradients are neither pre-scaled nor "
        "pre-divided",
        fix="remove it",
        source=_STAGE_12 + ", " + _STAGE_3,
    ),
    advice_rule(
        "DS314 two large reduce buckets",
        _two_buckets,
        why="at stages 1 and 2 overlap_comm fills one bucket while the other is reduced, so both are allocated",
        fix="write a smaller reduce_bucket_size, such as 50000000",
        source=_STAGE_12 + " setup_buckets",
    ),
    advice_rule(
        "DS316 ZeRO-3 that saves only shards",
        at(_GATHERS[0], when.for_trainer & that(_saves_shards), "weights are not gathered for saving"),
        why="without stage3_gather_16bit_weights_on_model_save a saved model contains no weights to load; "
        "zero_to_fp32.py must extract them from the checkpoint",
        fix='set "stage3_gather_16bit_weights_on_model_save": true',
        source="runtime/zero/config.py",
    ),
    warning_rule(
        "DS317 weights gathered into too little RAM",
        at(
            _GATHERS,
            when.stages(3) & when.on & _lacks_ram,
            lambda config, _: (
                f"the weights have {gib(_weight_bytes(config))} GiB, the RAM has {gib(_ram_bytes(config))} GiB"
            ),
        ),
        why="saving gathers all 16-bit weights in the first rank's RAM",
        fix='set "stage3_gather_16bit_weights_on_model_save": false',
        source="runtime/engine.py save_16bit_model",
    ),
    error_rule(
        "DS355 hpZ with parameters on NVMe",
        at(
            "zero_optimization.zero_hpz_partition_size",
            when.number(lambda size: size > 1) & when.stages(3) & _params_on_nvme,
            "the parameters are on NVMe",
        ),
        why="the second copy of the weights is allocated on the device of the first one, and torch has no device nvme",
        fix="remove zero_hpz_partition_size, or offload the parameters to the CPU",
        source="runtime/zero/partition_parameters.py _partition_param_sec",
    ),
    warning_rule(
        "DS356 quantized gradients in bf16",
        at(
            "zero_optimization.zero_quantized_gradients",
            when.on
            & when.stages(3)
            & when.bf16
            & that(lambda config: config.cluster is None or config.cluster.nodes > 1)
            & that(lambda config: config.text("communication_data_type") != "fp16"),
            "gradients in bf16 are quantized as if they were fp16",
        ),
        why="the kernel reads the bits of any 16-bit gradient as fp16, so bf16 gradients get wrong values",
        fix='write "communication_data_type": "fp16", or do not quantize gradients',
        source="csrc/quantization/pt_binding.cpp ds_swizzle_quant, runtime/comm/coalesced_collectives.py "
        "all_to_all_quant_reduce",
    ),
)

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
        yield violation(path, what, fix=f'write "buffer_size": {largest} or more')


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


_lamb = that(lambda config: config.optimizer == "lamb")
_steps_on_cpu = ~when.stages(0) & when.offloaded

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
        source=_STAGE_3 + " _configure_tensor_swapping; " + _SWAPPER,
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
        source=_STAGE_12 + " __init__ (cpu_offload)",
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
        ),
        why="a buffer must hold the shard of a parameter; a swapped sub-group needs one for its parameter, one for its "
        "gradient and one for each state",
        fix='write "buffer_count": 4 or more for Adam',
        source=_SWAPPER + " (elements_per_buffer), runtime/swap_tensor/partitioned_optimizer_swapper.py "
        "swap_in_optimizer_state",
    ),
    advice_rule(
        "DS414 an offloaded optimizer without a CPU implementation",
        at("optimizer.type", _steps_on_cpu & _without_cpu_class & ~_lamb, _no_cpu_class),
        at("optimizer.type", _steps_on_cpu & _lamb, _no_cpu_class, severity="warning"),
        at(
            "optimizer.params.torch_adam",
            _steps_on_cpu & when.has_adam & when.on,
            "torch's Adam steps on the CPU",
            severity="warning",
        ),
        why="DeepSpeed implements Adam, AdamW, Adagrad and Lion for the CPU; torch's optimizers run there slowly, and "
        "LAMB is a GPU kernel",
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
        source=_STAGE_3 + " has_overflow, estimators/time/offload_time.py",
    ),
    warning_rule(
        "DS417 a partly offloaded optimizer",
        at(_RATIO, _partly_offloaded & when.may_have_adam),
        why="a second AdamW steps the part on the GPU: it reads the learning rate once, so schedules do not change it, "
        "and checkpoints do not contain its states, so a resumed training starts them at zero",
        fix="remove ratio, unless the learning rate is constant and training never resumes",
        source=_STAGE_3 + " __init__, state_dict (backup_optimizer)",
    ),
    advice_rule(
        "DS453 NVMe with one thread",
        at("aio.intra_op_parallelism", when.swaps & when.equals(None, 1), "one thread reads and writes"),
        why="DeepSpeed's defaults, 8 requests in flight from one thread, do not use the bandwidth of a modern drive",
        fix='set "intra_op_parallelism": 8 and "queue_depth": 32, or the values that ds_nvme_tune finds',
        source="runtime/swap_tensor/aio_config.py",
    ),
)
