"""ZeRO without offload (DS3xx)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ...ds_configs.config_keys import CONFIG_KEYS, acts_at
from ...estimators.gpu_catalogue import gpus
from ...estimators.plan import ConfigKey
from ...estimators.units import alternatives, gib, listed
from . import rule_conditions as when
from .config_file import Remove
from .linted_config import GAIN, LintedConfig
from .rule import STAGE_3, STAGE_12, Severity, Violation, advice_rule, error_rule, section, violation, warning_rule
from .rule_conditions import at, key_name, that
from .rules_types import scatters_means


def _other_stage(config: LintedConfig) -> Iterator[Violation]:
    if config.existing_stage is None:
        return
    unused = list[tuple[str, bool, tuple[int, ...], str]]()  # (path, whether it has the default, its stages, its user)
    for known in CONFIG_KEYS.values():
        if not known.stages or config.stage in known.stages or known.refused_elsewhere:
            continue
        block, _, name = known.path.removeprefix("zero_optimization.").rpartition(".")
        # a whole offload is reported at stage 0, and that of parameters at all others
        if not known.path.startswith("zero_optimization.") or (block and not _offloads_without(config, known)):
            continue
        path = known.path if block else config.zero_path(name)
        field = config.facts.find_field(path)
        if config.has(path) and not config.is_auto(path) and not (field and field.deprecated):
            why = _TO_SAVE if path in _GATHERS else _OF_STAGES[known.stages]
            unused.append((path, config.get(path) == config.facts.default(path), known.stages, why))
    block = "zero_optimization.offload_param"
    if config.stage < 3 and config.offload("param") != "none" and config.has(block):
        unused.append((block, False, (3,), _OFFLOADS_SHARDS))
    if config.stage_is_missing and unused:
        are_defaults = all(is_default for _, is_default, *_ in unused)
        yield replace(
            _without_stage(config, [path for path, *_ in unused]), severity="advice" if are_defaults else None
        )
        return
    for path, is_default, stages, why in unused:
        what = f"{key_name(path)} has no effect at stage {config.stage}"
        severity: Severity | None = "advice" if is_default else None
        fix = f"remove it, or use stage {alternatives([*map(str, stages)])}"
        yield violation(path, what, why=why, fix=fix, edits=(Remove(tuple(path.split("."))),), severity=severity)


def _offloads_without(config: LintedConfig, known: ConfigKey) -> bool:
    """Whether the optimizer is offloaded at a stage that does not use a key of its block. DS418 is about keys of NVMe
    without NVMe."""
    is_inside = known.path.startswith("zero_optimization.offload_optimizer.")
    device = config.offload("optimizer")
    return is_inside and config.stage > 0 and device != "none" and (device == "nvme" or not known.nvme_only)


def _without_stage(config: LintedConfig, unused: Sequence[str]) -> Violation:
    """The violation of a block whose keys need a stage that it does not name: what the keys say is meant, or what
    accelerate's environment decides (ACCELERATE_DEEPSPEED_ZERO_STAGE)."""
    path, names = "zero_optimization.stage", [key_name(each) for each in unused]
    state = 'is "auto", which plain DeepSpeed drops' if config.has(path) else "is missing"
    if config.stage:
        state = f'is "auto", for which accelerate fills in {config.stage}'
    keys = f"{listed(names)} {'have' if len(names) > 1 else 'has'}"
    is_third = any(acts_at(each, 3) and not acts_at(each, 2) for each in unused)
    stage, why = "3" if is_third else "1, 2 or 3", "DeepSpeed's default is stage 0, which uses none of them"
    if config.stage:
        why = f"ACCELERATE_DEEPSPEED_ZERO_STAGE may name another stage than {config.stage}, which uses none of them"
    fix = f'write "stage": {stage} in zero_optimization, or remove the {"keys" if len(names) > 1 else "key"}'
    return violation(
        path,
        f"stage {state}{'' if config.stage else ', so ZeRO is off'}: {keys} no effect",
        why=why,
        fix=fix,
        missing=((*path.split("."),),),
    )


_OF_STAGES = {
    (3,): "only the code of stage 3 uses it",
    (1, 2): "only the optimizer of stages 1 and 2 uses it",
    (1, 2, 3): "DeepSpeed passes it only to the optimizers of stages 1 to 3",
}
"""Stages of a key -> why it has no effect at others."""
_OFFLOADS_SHARDS = "DeepSpeed passes it only to the optimizer of stage 3; at other stages the weights stay on the GPUs"
_TO_SAVE = "DeepSpeed reads it only to save the weights that stage 3 partitions; otherwise each GPU has all of them"


def _large_sub_group(config: LintedConfig) -> Iterator[Violation]:
    model, ranks = config.model, config.world_size
    if config.stage != 3 or model is None or ranks is None or config.offload("optimizer") != "none":
        return
    if config.workload is not None and config.workload.method != "full":
        return
    elements = min(config.zero_number("sub_group_size"), model.parameters // ranks)
    if elements >= 5e8 and _saves_memory(config, sub_group_size=100_000_000):
        what = f"a sub-group takes {gib(elements * 6)} GiB per GPU during the step"
        yield violation(config.zero_path("sub_group_size"), what)


def _large_swaps(config: LintedConfig) -> Iterator[Violation]:
    """Sub-groups of an optimizer on NVMe, of which the host has whole buffers."""
    if config.stage != 3 or config.offload("optimizer") != "nvme":
        return
    path, elements, what = config.zero_path("sub_group_size"), config.zero_number("sub_group_size"), ""
    usual = config.facts.default(path)
    if config.model is not None and config.world_size is not None:
        share = config.model.parameters // config.world_size
        if config.model.parameters > usual * config.world_size and elements >= share:
            what = f"one sub-group holds the rank's whole share of {share:,} elements"
    elif elements > usual:
        what = f"a sub-group holds up to {elements:,} elements"
    if what:
        yield violation(path, what, why=_SWAPPED_WHOLE, fix=_SWAP_LESS)


_SWAPPED_WHOLE = (
    "each of the buffers in host RAM has the size of the largest sub-group: with one sub-group for all, the states are "
    "in host RAM as without NVMe"
)
_SWAP_LESS = "write 100000000: a buffer then takes 0.4 GiB"


def _saves_memory(config: LintedConfig, **fields: Any) -> bool:
    """Whether other values lower the predicted peak of a GPU's memory noticeably; True without a prediction."""
    situation = config.situation
    if situation is None:
        return True
    other = replace(situation, plan=situation.plan.replace_fields(**fields))
    saved = situation.memory().device_bytes_per_gpu - other.memory().device_bytes_per_gpu
    return saved > 0.01 * situation.cluster.gpu.memory_bytes


def _all_live(config: LintedConfig) -> Iterator[Violation]:
    names = "max_live_parameters", "max_reuse_distance"
    if config.stage == 3 and config.model and min(map(config.zero_number, names)) >= config.model.parameters:
        what = (
            f"max_live_parameters and max_reuse_distance are at least the model's {config.model.parameters:,} "
            "parameters"
        )
        yield violation(config.zero_path("max_live_parameters"), what)


def _large_buckets(config: LintedConfig) -> Iterator[Violation]:
    path = "zero_optimization.reduce_bucket_size"
    filled, elements = config.framework == "hf" and config.is_auto(path), config.zero_number("reduce_bucket_size")
    if not config.stage or filled or config.off("zero_optimization.contiguous_gradients"):
        return
    buckets = 2 if config.stage < 3 and config.flag("zero_optimization.overlap_comm") else 1
    width = 2 if config.fp16 or config.bf16 or config.precision_is_auto else 4
    needed = buckets * width * int(elements)
    what = f"reduce_bucket_size takes {gib(needed)} GiB per GPU: {buckets} x {elements:,} elements x {width} bytes"
    available = max(gpu.memory_bytes for gpu in (gpus() if config.cluster is None else [config.cluster.gpu]))
    if needed >= available:
        whose = "the largest GPU" if config.cluster is None else "the GPU"
        why = _WHOLE if buckets == 1 else ""
        yield violation(path, f"{what}; {whose} has {gib(available)} GiB", why=why, severity="error")
    elif (
        buckets == 2
        and elements >= (config.facts.default(path) if config.situation is None else 2e8)
        and _saves_memory(config, reduce_bucket_size=_USUAL_BUCKET)
    ):
        yield violation(path, what)


_WHOLE = "a bucket is allocated whole"
_TWO = "at stages 1 and 2 overlap_comm fills one bucket while the other is reduced, so both are allocated"


def _small_buckets(config: LintedConfig) -> Iterator[Violation]:
    path, situation = "zero_optimization.reduce_bucket_size", config.situation
    filled, elements = config.framework == "hf" and config.is_auto(path), config.zero_number("reduce_bucket_size")
    if not config.stage or filled or not 0 < elements < _USUAL_BUCKET or config.world_size == 1:
        return
    what, is_tiny = f"a bucket holds {elements:,} elements", elements < _MATRIX
    if is_tiny:
        what += ": every larger gradient is reduced alone"
    if situation is not None:
        usual = replace(situation, plan=situation.plan.replace_fields(reduce_bucket_size=_USUAL_BUCKET))
        own_s, usual_s = situation.time().step_s, usual.time().step_s
        if own_s / usual_s < (_NOTICEABLE if is_tiny else GAIN):
            return
        what += f"; a step is predicted to take {own_s / usual_s:.2f} x as long as with {_USUAL_BUCKET:,}"
    elif not is_tiny:
        return
    yield violation(path, what)


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
    return spec is not None and spec.has_cpu_kernel and not config.torch_adam


_GATHERS = (
    "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    "zero_optimization.gather_16bit_weights_on_model_save",
)
"""Both names of the key."""
_USUAL_BUCKET = 50_000_000
"""Elements of a bucket that DS314 and DS318 propose."""
_MATRIX = 1_000_000
"""Elements of a small model's weight matrix: a smaller bucket holds no whole one."""
_NOTICEABLE = 1.01
"""Least ratio of step times at which a bucket smaller than a matrix is reported."""
_params_on_nvme = that(lambda config: config.offload("param") == "nvme")
_on_one_node = that(lambda config: config.cluster is not None and config.cluster.nodes == 1)
_exceeds_ranks = when.Condition(
    lambda config, path: config.world_size is not None and config.positive(path) > config.world_size
)
_lacks_ram = that(lambda config: 0 < _ram_bytes(config) < _weight_bytes(config))

ZERO_RULES = section(
    "ZeRO",
    warning_rule(
        "DS302 a setting of another stage",
        _other_stage,
        why="only the code of stage 3, the optimizer of stages 1 and 2, or both use it",
        fix="remove it, or use that stage",
        source="runtime/engine.py _configure_zero_optimizer, save_16bit_model",
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
        source=STAGE_3 + " _create_fp16_sub_groups",
    ),
    advice_rule(
        "DS307 large sub-groups",
        _large_sub_group,
        _large_swaps,
        why="the step flattens a sub-group's gradients and casts them to fp32: six bytes per element of the sub-group, "
        "or of the rank's share if that is smaller; with an optimizer on NVMe, each buffer in host RAM holds one",
        fix="write 100000000, which costs 0.6 GiB at most",
        source=STAGE_3 + " _prepare_fp32_grad_for_sub_group",
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
            when.truthy & scatters_means,
            lambda config, _: f"gradients are pre-scaled at stage {config.stage}",
        ),
        at(
            "gradient_predivide_factor",
            when.number(lambda factor: factor != 1) & scatters_means,
            lambda config, path: f"gradients are pre-divided by {config.number(path):g} at stage {config.stage}",
        ),
        why="with reduce_scatter (the default), stages 2 and 3 assert that gradients are neither pre-scaled nor "
        "pre-divided",
        fix='remove it, or set "reduce_scatter": false in zero_optimization',
        source=STAGE_12 + ", " + STAGE_3,
    ),
    advice_rule(
        "DS314 large reduce buckets",
        _large_buckets,
        why=f"{_WHOLE}; {_TWO}",
        fix=f"write a smaller reduce_bucket_size, such as {_USUAL_BUCKET}",
        source=STAGE_12 + " setup_buckets; " + STAGE_3 + " _setup_for_real_optimizer",
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
    advice_rule(
        "DS318 small reduce buckets",
        _small_buckets,
        why="each bucket is a collective of its own, which takes a latency on every GPU however little it sends",
        fix=f"write {_USUAL_BUCKET}",
        source=STAGE_12 + " reduce_independent_p_g_buckets_and_remove_grads; estimators/time/collective_time.py",
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
    warning_rule(
        "DS357 a setting of ZeRO++ for more GPUs",
        at(
            "zero_optimization.zero_quantized_gradients",
            when.on & when.stages(3) & _on_one_node,
            "gradients are not quantized on one node",
            why="stage 3 quantizes the reduction only between nodes",
        ),
        at(
            "zero_optimization.zero_hpz_partition_size",
            when.stages(3) & _exceeds_ranks,
            lambda config, path: f"{config.positive(path)} ranks hold a second copy, but there are {config.world_size}",
            why="DeepSpeed takes the number of ranks in its place, without a message",
        ),
        why="stage 3 quantizes the reduction of gradients only between nodes, and a group has at most all ranks; there "
        "is no message",
        fix="remove it, unless the file is also for more GPUs",
        source=STAGE_3 + " __avg_scatter_grads; utils/groups.py _create_zero_param_parallel_group",
    ),
)
