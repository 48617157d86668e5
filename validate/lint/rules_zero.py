"""ZeRO's stages and their settings, ZeRO++ (DS3xx)."""

from __future__ import annotations

from collections.abc import Iterator

from ...ds_configs.config_keys import CONFIG_KEYS
from ...estimators.phrase import phrase
from . import rule_conditions as when
from .linted_config import LintedConfig
from .rule import Rules, Violation, removed, violation
from .rule_conditions import Condition, at

ZERO_RULES = Rules("ZeRO")
_CONFIG = "runtime/zero/config.py"
_GATHER_BUCKET = "zero_optimization.allgather_bucket_size"
_STAGE_12 = "runtime/zero/stage_1_and_2.py"
_STAGE_3 = "runtime/zero/stage3.py"
_ENGINE = "runtime/engine.py _configure_zero_optimizer"


@ZERO_RULES.warning(
    "DS302 a setting of another stage",
    why="DeepSpeed reads it and hands it to an optimizer that does not use it",
    fix="remove it, or use that stage",
    source=_ENGINE,
)
def other_stage(config: LintedConfig) -> Iterator[Violation]:
    unused = []
    for known in CONFIG_KEYS.values():
        owner, _, name = known.path.rpartition(".")
        if owner == "zero_optimization" and known.stages in ((3,), (1, 2)) and config.stage not in known.stages:
            path = config.zero_path(name)
            if path and config.get(path) not in ("auto", config.facts.default(path)):
                unused.append((path, known.stages))
    if config.stage < 3 and config.offload("param") != "none" and config.has("zero_optimization.offload_param"):
        unused.append(("zero_optimization.offload_param", (3,)))
    if config.stage < 3 and config.flag("zero_optimization.offload_optimizer.super_offload"):
        unused.append(("zero_optimization.offload_optimizer.super_offload", (3,)))
    for path, stages in unused:
        fields = {"name": path.rpartition(".")[2], "stage": config.stage}
        fields["stages"] = phrase("stage 3") if stages == (3,) else phrase("stages 1 and 2")
        what = phrase("{name} is for {stages}, and this is stage {stage}", **fields)
        yield violation(path, what, edits=removed(path))


@ZERO_RULES.error(
    "DS303 an offloaded optimizer at stage 0",
    why="DeepSpeed makes the CPU optimizer, but only ZeRO moves the weights to it: the first step fails on GPU tensors",
    fix="use stage 1, 2 or 3, or remove offload_optimizer",
    source="ops/adam/cpu_adam.py step; runtime/engine.py",
)
def offload_at_0(config: LintedConfig) -> Iterator[Violation]:
    if config.optimizer:
        spec = config.optimizer_spec
        moved = spec is not None and spec.has_cpu_kernel and not config.flag("optimizer.params.torch_adam")
    else:  # an optimizer of the script, which must be DeepSpeed's CPU Adam or Lion
        moved = not config.off("zero_force_ds_cpu_optimizer")
    offloaded = config.stage == 0 and config.offload("optimizer") != "none"
    if offloaded and isinstance(config.get("zero_optimization"), dict):
        what = "the optimizer runs on the CPU, the weights stay on the GPU"
        yield violation("zero_optimization.offload_optimizer", what, severity=None if moved else "warning")


ZERO_RULES.error(
    "DS305 an odd allgather_bucket_size",
    at(_GATHER_BUCKET, when.stages(1, 2) & when.number(lambda size: size % 2 == 1), "{number} is odd"),
    why="stages 1 and 2 assert that it is a multiple of 2, although nothing else uses it",
    fix="remove it",
    source=_STAGE_12 + " (nccl_start_alignment_factor)",
)


ZERO_RULES.warning(
    "DS306 sub_group_size 0",
    at("zero_optimization.sub_group_size", when.stages(3) & when.equals(0), "every sub-group has one parameter"),
    why="every parameter then is a sub-group of its own, for which the optimizer steps once",
    fix="remove it, or write a number such as 100000000",
    source=_STAGE_3 + " _create_fp16_sub_groups",
)


@ZERO_RULES.advice(
    "DS307 sub-groups of 1e9 elements",
    why="the step flattens a sub-group's gradients and casts them to fp32: six bytes per element on top of everything "
    "else, for as many as the rank's share has",
    fix="write 100000000, which costs 0.6 GB at most",
    source=_STAGE_3 + " _prepare_fp32_grad_for_sub_group",
)
def large_sub_group(config: LintedConfig) -> Iterator[Violation]:
    model, ranks = config.model, config.world_size
    if config.stage != 3 or model is None or ranks is None or config.offload("optimizer") == "nvme":
        return
    if config.workload is not None and config.workload.method != "full":
        return
    elements = min(config.zero_number("sub_group_size"), model.parameters // ranks)
    if elements >= 5e8:
        what = phrase("a sub-group takes {size} GB per GPU during the step", size=f"{elements * 6 / 1e9:.1f}")
        yield violation(config.zero_place("sub_group_size"), what)


@ZERO_RULES.advice(
    "DS308 ZeRO-3 that keeps every weight gathered",
    why="a weight that is used again within max_reuse_distance parameters is not released; with the defaults of 1e9, "
    "a model below 1e9 parameters is whole on every GPU",
    fix="write both below the model's parameters, such as a few of its layers",
    source="runtime/zero/partitioned_param_coordinator.py",
)
def all_live(config: LintedConfig) -> Iterator[Violation]:
    model = config.model
    if config.stage != 3 or model is None:
        return
    live, distance = config.zero_number("max_live_parameters"), config.zero_number("max_reuse_distance")
    if min(live, distance) >= model.parameters:
        what = phrase(
            "max_live_parameters and max_reuse_distance are at least the model's {parameters} parameters",
            parameters=f"{model.parameters:,}",
        )
        yield violation(config.zero_place("max_live_parameters"), what)


_averages = when.stages(3) | Condition(lambda config, _: config.text("gradient_allreduce_op").lower() != "sum")
_scatters_means = when.stages(2, 3) & ~when.is_off("zero_optimization.reduce_scatter") & _averages

ZERO_RULES.error(
    "DS312 scaled gradients with reduce_scatter",
    at("prescale_gradients", ~when.empty & _scatters_means, "gradients are pre-scaled at stage {stage}"),
    at(
        "gradient_predivide_factor",
        when.number(lambda factor: factor != 1) & _scatters_means,
        "gradients are pre-divided by {number} at stage {stage}",
    ),
    why="with reduce_scatter (the default), stages 2 and 3 assert that gradients are neither pre-scaled nor "
    "pre-divided",
    fix="remove it",
    source=_STAGE_12 + ", " + _STAGE_3,
)


@ZERO_RULES.advice(
    "DS314 two buckets of reduce_bucket_size",
    why="at stages 1 and 2 overlap_comm fills one bucket while the other is reduced, so both are allocated",
    fix="write a smaller reduce_bucket_size, such as 50000000",
    source=_STAGE_12 + " setup_buckets",
)
def two_buckets(config: LintedConfig) -> Iterator[Violation]:
    path = "zero_optimization.reduce_bucket_size"
    filled, elements = config.framework == "hf" and config.is_auto(path), config.zero_number("reduce_bucket_size")
    if config.stage in (1, 2) and config.flag("zero_optimization.overlap_comm") and not filled and elements >= 2e8:
        by_trainer = any(config.is_auto(f"{name}.enabled") for name in ("fp16", "bf16"))
        width = 2 if config.fp16 or config.bf16 or by_trainer else 4
        sizes = {"elements": f"{elements:,}", "width": width, "needed": f"{2 * width * elements / 1e9:.1f}"}
        what = phrase("2 x {elements} elements x {width} bytes are {needed} GB per GPU", **sizes)
        yield violation(path, what)


@ZERO_RULES.advice(
    "DS316 ZeRO-3 that saves only shards",
    why="without stage3_gather_16bit_weights_on_model_save a saved model holds no weights to load; zero_to_fp32.py "
    "must make them from the checkpoint",
    fix='set "stage3_gather_16bit_weights_on_model_save": true',
    source=_CONFIG,
)
def shards_only(config: LintedConfig) -> Iterator[Violation]:
    name = "gather_16bit_weights_on_model_save"
    gathers = config.zero(name) or config.flag("zero_optimization.stage3_gather_fp16_weights_on_model_save")
    if config.framework == "hf" and config.stage == 3 and not gathers and config.offload("param") != "nvme":
        yield violation(config.zero_place(name), "weights are not gathered for saving")


@ZERO_RULES.warning(
    "DS317 weights gathered into RAM that is too small",
    why="saving gathers all 16-bit weights in the first rank's RAM",
    fix='set "stage3_gather_16bit_weights_on_model_save": false',
    source="runtime/engine.py save_16bit_model",
)
def gathered_in_ram(config: LintedConfig) -> Iterator[Violation]:
    ram = config.cluster.host_memory_bytes_per_node if config.cluster is not None else None
    path = config.zero_path("gather_16bit_weights_on_model_save")
    need = 2 * config.model.parameters if config.model is not None else 0
    if config.stage == 3 and ram and need > ram and path and config.flag(path):
        need_gb, ram_gb = f"{need / 1e9:.0f}", f"{ram / 1e9:.0f}"
        yield violation(path, "the weights have {need} GB, the RAM has {ram} GB", need=need_gb, ram=ram_gb)


ZEROPP_RULES = Rules("ZeRO++")
_HPZ = "zero_optimization.zero_hpz_partition_size"
_QUANTIZED = "zero_optimization.zero_quantized_gradients"
_reduced_in_fp16 = Condition(lambda config, _: config.text("communication_data_type") == "fp16")
_above_ranks = Condition(lambda config, path: (config.number(path) or 0) > (config.world_size or 0))
_GROUPS = "utils/groups.py _create_zero_param_parallel_group"


ZEROPP_RULES.error(
    "DS352 hpZ groups that do not divide the GPUs",
    at(_HPZ, when.stages(3) & when.splits_ranks_unevenly & ~_above_ranks, "{number} does not divide {ranks} GPUs"),
    why="the ranks are divided into groups of zero_hpz_partition_size, each with a second copy of the weights",
    fix="write the number of GPUs per node",
    source=_GROUPS,
)


ZEROPP_RULES.error(
    "DS355 hpZ with parameters on NVMe",
    at(_HPZ, when.number(lambda size: size > 1) & when.stages(3) & when.param_on_nvme, "the parameters are on NVMe"),
    why="the second copy of the weights is allocated where the first one goes, and torch has no device nvme",
    fix="remove zero_hpz_partition_size, or offload the parameters to the CPU",
    source="runtime/zero/partition_parameters.py _partition_param_sec",
)
ZEROPP_RULES.error(
    "DS354 quantized gradients without reduce_scatter",
    at(_QUANTIZED, when.on & when.stages(3) & when.is_off("zero_optimization.reduce_scatter"), "reduce_scatter is off"),
    why="the quantized all-to-all is a reduce-scatter, and stage 3 asserts that both are on",
    fix='set "reduce_scatter": true',
    source="runtime/zero/stage3.py __init__ (all2all_process_group)",
)
ZEROPP_RULES.warning(
    "DS356 quantized gradients of bf16",
    at(
        _QUANTIZED,
        when.on & when.stages(3) & when.bf16 & ~when.one_node & ~_reduced_in_fp16,
        "gradients in bf16 are quantized as if they were fp16",
    ),
    why="the kernel reads the bits of any 16-bit gradient as fp16, so bf16 gradients become other numbers",
    fix='write "communication_data_type": "fp16", or leave gradients as they are',
    source="csrc/quantization/pt_binding.cpp ds_swizzle_quant, runtime/comm/coalesced_collectives.py "
    "all_to_all_quant_reduce",
)
