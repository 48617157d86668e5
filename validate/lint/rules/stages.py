"""DS3xx: ZeRO's stages and their settings."""

from __future__ import annotations

from collections.abc import Iterator

from ..linted_config import LintedConfig, shown
from ..rule import Hit, Remove, Replace, Rules, hit
from .examples import ADAMW, CPU, ON, plain, trainer, zero

rules = Rules()

_CONFIG = "runtime/zero/config.py"
_STAGE_12 = "runtime/zero/stage_1_and_2.py"
_STAGE_3 = "runtime/zero/stage3.py"
_ENGINE = "runtime/engine.py _configure_zero_optimizer"
_ONLY_3 = (
    "sub_group_size",
    "prefetch_bucket_size",
    "param_persistence_threshold",
    "model_persistence_threshold",
    "max_live_parameters",
    "max_reuse_distance",
    "gather_16bit_weights_on_model_save",
    "module_granularity_threshold",
    "use_all_reduce_for_fetch_params",
    "allgather_sequential",
)
_ONLY_12 = ("round_robin_gradients", "parameter_alignment")
_BUCKET = 500_000_000


@rules.warning(
    "DS301 offload_param below stage 3",
    why="only stage 3 partitions the parameters; at other stages the block is read and nothing is offloaded",
    fix="use stage 3, or remove offload_param",
    source=_ENGINE,
    bad=plain(zero_optimization=zero(2, offload_param=CPU)),
    good=plain(zero_optimization=zero(3, offload_param=CPU)),
)
def param_below_3(config: LintedConfig) -> Iterator[Hit]:
    if config.offload("param") != "none" and config.stage < 3:
        path = (
            "zero_optimization.offload_param"
            if config.has("zero_optimization.offload_param")
            else "zero_optimization.cpu_offload_param"
        )
        yield hit(path, f"no parameter is offloaded at stage {config.stage}", edits=(Remove(tuple(path.split("."))),))


@rules.warning(
    "DS302 a setting of another stage",
    why="DeepSpeed reads it and hands it to an optimizer that does not use it",
    fix="remove it, or use that stage",
    source=_ENGINE,
    bad=plain(zero_optimization=zero(2, stage3_max_live_parameters=1e8)),
    good=plain(zero_optimization=zero(3, stage3_max_live_parameters=1e8)),
)
def other_stage(config: LintedConfig) -> Iterator[Hit]:
    unused = {0: (*_ONLY_3, *_ONLY_12), 1: _ONLY_3, 2: _ONLY_3, 3: _ONLY_12}[config.stage]
    for name in unused:
        path = config.zero_path(name)
        same = path and config.get(path) in ("auto", config.facts.default(path))
        if path and not same:
            stages = "stage 3" if name in _ONLY_3 else "stages 1 and 2"
            yield hit(
                path,
                f"{path.rpartition('.')[2]} is for {stages}, and this is stage {config.stage}",
                edits=(Remove(tuple(path.split("."))),),
            )


@rules.error(
    "DS303 an offloaded optimizer at stage 0",
    why="DeepSpeed makes the CPU optimizer, but only ZeRO moves the weights to it: the first step fails on GPU tensors",
    fix="use stage 1, 2 or 3, or remove offload_optimizer",
    source="ops/adam/cpu_adam.py step; runtime/engine.py",
    bad=plain(optimizer=ADAMW, zero_optimization=zero(0, offload_optimizer=CPU)),
    good=plain(optimizer=ADAMW, zero_optimization=zero(2, offload_optimizer=CPU)),
)
def offload_at_0(config: LintedConfig) -> Iterator[Hit]:
    if config.optimizer:
        spec = config.optimizer_spec
        moved = spec is not None and spec.has_cpu_kernel and not config.flag("optimizer.params.torch_adam")
    else:  # the script's own, which must be DeepSpeed's CPU Adam or Lion
        moved = not config.off("zero_force_ds_cpu_optimizer")
    offloaded = config.stage == 0 and config.offload("optimizer") != "none"
    if offloaded and isinstance(config.get("zero_optimization"), dict):
        yield hit(
            "zero_optimization.offload_optimizer",
            "the optimizer runs on the CPU, the weights stay on the GPU",
            severity=None if moved else "warning",
        )


@rules.advice(
    "DS304 allgather_bucket_size, which has no effect",
    why="DeepSpeed gathers updated parameters in place with torch's all_gather_into_tensor, without a bucket; stage 3 "
    "never had one",
    fix="remove it",
    source="runtime/utils.py all_gather_dp_groups",
    bad=plain(zero_optimization=zero(2, allgather_bucket_size=2e8)),
    good=plain(zero_optimization=zero(2, reduce_bucket_size=2e8)),
)
def allgather_bucket(config: LintedConfig) -> Iterator[Hit]:
    if config.number("zero_optimization.allgather_bucket_size") is not None:
        yield hit("zero_optimization.allgather_bucket_size", "allgather_bucket_size has no effect")


@rules.error(
    "DS305 an odd allgather_bucket_size",
    why="stages 1 and 2 assert that it is a multiple of 2, although nothing else uses it",
    fix="remove it",
    source=_STAGE_12 + " (nccl_start_alignment_factor)",
    bad=plain(zero_optimization=zero(2, allgather_bucket_size=99_999)),
    good=plain(zero_optimization=zero(2, allgather_bucket_size=100_000)),
)
def odd_bucket(config: LintedConfig) -> Iterator[Hit]:
    path = "zero_optimization.allgather_bucket_size"
    size = config.number(path)
    if config.stage in (1, 2) and size is not None and size % 2 == 1:
        yield hit(path, f"{size:g} is odd", edits=(Remove(tuple(path.split("."))),))


@rules.warning(
    "DS306 sub_group_size 0",
    why="every parameter then is a sub-group of its own, for which the optimizer steps once",
    fix="remove it, or write a number such as 100000000",
    source=_STAGE_3 + " _create_fp16_sub_groups",
    bad=plain(zero_optimization=zero(3, sub_group_size=0)),
    good=plain(zero_optimization=zero(3, sub_group_size=100_000_000)),
)
def no_sub_group(config: LintedConfig) -> Iterator[Hit]:
    if config.stage == 3 and config.number("zero_optimization.sub_group_size") == 0:
        yield hit("zero_optimization.sub_group_size", "every sub-group has one parameter")


@rules.advice(
    "DS307 sub-groups of 1e9 elements",
    why="the step flattens a sub-group's gradients and casts them to fp32: six bytes per element on top of everything "
    "else, "
    "for as many as the rank's share has",
    fix="write 100000000, which costs 0.6 GB at most",
    source=_STAGE_3 + " _prepare_fp32_grad_for_sub_group",
    options={"model": "Qwen2.5-14B", "gpus": "8xA100-80GB"},
    bad=plain(bf16=ON, zero_optimization=zero(3)),
    good=plain(bf16=ON, zero_optimization=zero(3, sub_group_size=1e8)),
)
def large_sub_group(config: LintedConfig) -> Iterator[Hit]:
    model, ranks = config.model, config.world_size
    if config.stage != 3 or model is None or ranks is None or config.offload("optimizer") == "nvme":
        return
    if config.workload is not None and config.workload.method != "full":
        return
    elements = min(config.zero_number("sub_group_size"), model.parameters // ranks)
    if elements >= 5e8:
        yield hit(
            config.zero_path("sub_group_size") or "zero_optimization.sub_group_size",
            f"a sub-group takes {elements * 6 / 1e9:.1f} GB per GPU during the step",
        )


@rules.advice(
    "DS308 ZeRO-3 that keeps every weight gathered",
    why="a weight that is used again within max_reuse_distance parameters is not released; with the defaults of 1e9, "
    "a model below 1e9 parameters is whole on every GPU",
    fix="write both below the model's parameters, such as a few of its layers",
    source="runtime/zero/partitioned_param_coordinator.py",
    options={"model": "Qwen2.5-0.5B"},
    bad=plain(zero_optimization=zero(3)),
    good=plain(zero_optimization=zero(3, stage3_max_live_parameters=5e7, stage3_max_reuse_distance=5e7)),
)
def all_live(config: LintedConfig) -> Iterator[Hit]:
    model = config.model
    if config.stage != 3 or model is None:
        return
    live, distance = config.zero_number("max_live_parameters"), config.zero_number("max_reuse_distance")
    if min(live, distance) >= model.parameters:
        path = config.zero_path("max_live_parameters") or "zero_optimization.stage3_max_live_parameters"
        yield hit(
            path, f"max_live_parameters and max_reuse_distance are at least the model's {model.parameters:,} parameters"
        )


@rules.error(
    "DS309 legacy_stage1",
    why="DeepSpeed raises an exception: the old stage 1 is gone since 0.5.9",
    fix="remove it",
    source=_ENGINE,
    bad=plain(zero_optimization=zero(1, legacy_stage1=True)),
    good=plain(zero_optimization=zero(1)),
)
def legacy(config: LintedConfig) -> Iterator[Hit]:
    if config.flag("zero_optimization.legacy_stage1") and config.stage:
        yield hit("zero_optimization.legacy_stage1", "legacy_stage1 is on")


@rules.error(
    "DS310 compute_grad_norm off where the norm is needed",
    why="DeepSpeed does without the norm at stages 1 and 2 only, without clipping (which is on by default), ZenFlow, "
    "optimizer offload, or its BF16 optimizer",
    fix='set "gradient_clipping": 0, or remove compute_grad_norm',
    source=_STAGE_12 + " __init__; " + _CONFIG,
    since="0.19.7",
    bad=plain(zero_optimization=zero(2, compute_grad_norm=False)),
    good=plain(gradient_clipping=0, zero_optimization=zero(2, compute_grad_norm=False)),
)
def no_norm(config: LintedConfig) -> Iterator[Hit]:
    path = "zero_optimization.compute_grad_norm"
    if not config.off(path) or config.facts.default(path) is None:
        return
    clipping = config.get("gradient_clipping")
    clips = clipping is None or (isinstance(clipping, int | float) and clipping > 0)
    fp32_sums = config.text("data_types.grad_accum_dtype") in ("fp32", "float32", "float", "torch.float32")
    for holds, what in (
        (config.stage in (0, 3), f"this is stage {config.stage}"),
        (clips, f"gradient_clipping is {shown(clipping) if clipping is not None else '1.0, its default'}"),
        (config.block("zero_optimization").get("zenflow") is not None, "ZenFlow is on"),
        (config.offload("optimizer") != "none", "the optimizer is offloaded"),
        (config.stage == 1 and config.bf16 and fp32_sums, "bf16 with fp32 accumulation at stage 1"),
    ):
        if holds:
            yield hit(path, f"compute_grad_norm is off, but {what}")
            return


@rules.warning(
    "DS311 elastic_checkpoint at stage 3",
    why="stage 3 has no elastic checkpoints; DeepSpeed warns and goes on",
    fix="remove it; use universal checkpoints",
    source=_CONFIG + " elastic_checkpoint_deprecated",
    bad=plain(zero_optimization=zero(3, elastic_checkpoint=True)),
    good=plain(zero_optimization=zero(3)),
)
def elastic(config: LintedConfig) -> Iterator[Hit]:
    if config.stage == 3 and config.flag("zero_optimization.elastic_checkpoint"):
        yield hit("zero_optimization.elastic_checkpoint", "stage 3 no longer supports elastic_checkpoint")


@rules.error(
    "DS312 scaled gradients with reduce_scatter",
    why="with reduce_scatter (the default), stages 2 and 3 assert that gradients are neither pre-scaled nor "
    "pre-divided",
    fix="remove prescale_gradients and gradient_predivide_factor",
    source=_STAGE_12 + ", " + _STAGE_3,
    bad=plain(prescale_gradients=True, zero_optimization=zero(2)),
    good=plain(prescale_gradients=True, zero_optimization=zero(1)),
)
def scaled(config: LintedConfig) -> Iterator[Hit]:
    averages = config.stage == 3 or config.text("gradient_allreduce_op").lower() != "sum"
    if config.stage < 2 or config.off("zero_optimization.reduce_scatter") or not averages:
        return
    if config.get("prescale_gradients"):
        yield hit("prescale_gradients", f"gradients are pre-scaled at stage {config.stage}")
    factor = config.number("gradient_predivide_factor")
    if factor is not None and factor != 1:
        yield hit("gradient_predivide_factor", f"gradients are pre-divided by {factor:g} at stage {config.stage}")


@rules.warning(
    "DS313 the old form of zero_optimization",
    why="true means stage 1; DeepSpeed says that the form is deprecated",
    fix='write "zero_optimization": {"stage": 1}',
    source=_CONFIG + " read_zero_config_deprecated",
    options={"framework": "deepspeed"},
    bad=plain(zero_optimization=True),
    good=plain(zero_optimization=zero(1)),
)
def boolean(config: LintedConfig) -> Iterator[Hit]:
    value = config.get("zero_optimization")
    if isinstance(value, bool):
        own_bucket = config.has("allgather_size")
        yield hit(
            "zero_optimization",
            f"zero_optimization is {shown(value)}",
            edits=() if own_bucket else (Replace(("zero_optimization",), {"stage": int(value)}),),
        )


@rules.advice(
    "DS314 two buckets of reduce_bucket_size",
    why="at stages 1 and 2 overlap_comm fills one bucket while the other is reduced, so both are allocated",
    fix="write a smaller reduce_bucket_size, such as 50000000",
    source=_STAGE_12 + " setup_buckets",
    bad=plain(bf16=ON, zero_optimization=zero(2, overlap_comm=True, reduce_bucket_size=5e8)),
    good=plain(bf16=ON, zero_optimization=zero(2, overlap_comm=True, reduce_bucket_size=5e7)),
)
def two_buckets(config: LintedConfig) -> Iterator[Hit]:
    path = "zero_optimization.reduce_bucket_size"
    filled = config.framework == "hf" and config.is_auto(path)
    if config.stage in (1, 2) and config.flag("zero_optimization.overlap_comm") and not filled:
        elements = config.zero_number("reduce_bucket_size")
        if elements >= 2e8:
            by_trainer = any(config.is_auto(f"{name}.enabled") for name in ("fp16", "bf16"))
            width = 2 if config.fp16 or config.bf16 or by_trainer else 4
            yield hit(
                path, f"2 x {elements:,} elements x {width} bytes are {2 * width * elements / 1e9:.1f} GB per GPU"
            )


@rules.advice(
    "DS315 gradients that are not contiguous",
    why="each gradient then is an allocation of its own, and the GPU's memory fragments",
    fix="remove contiguous_gradients: true is the default",
    source=_CONFIG,
    bad=plain(zero_optimization=zero(2, contiguous_gradients=False)),
    good=plain(zero_optimization=zero(2, contiguous_gradients=True)),
)
def scattered(config: LintedConfig) -> Iterator[Hit]:
    offloaded = config.offload("optimizer") != "none"  # which makes them contiguous, whatever this says
    if config.stage in (1, 2) and config.off("zero_optimization.contiguous_gradients") and not offloaded:
        yield hit("zero_optimization.contiguous_gradients", "contiguous_gradients is off")


@rules.advice(
    "DS316 ZeRO-3 that saves only shards",
    why="without stage3_gather_16bit_weights_on_model_save a saved model holds no weights to load; zero_to_fp32.py "
    "must make them from the checkpoint",
    fix='set "stage3_gather_16bit_weights_on_model_save": true',
    source=_CONFIG,
    options={"framework": "hf"},
    bad=trainer(zero_optimization=zero(3)),
    good=trainer(zero_optimization=zero(3, stage3_gather_16bit_weights_on_model_save=True)),
)
def shards_only(config: LintedConfig) -> Iterator[Hit]:
    old = config.flag("zero_optimization.stage3_gather_fp16_weights_on_model_save")
    if (
        config.framework == "hf"
        and config.stage == 3
        and not old
        and not config.zero("gather_16bit_weights_on_model_save")
        and config.offload("param") != "nvme"
    ):
        yield hit(
            config.zero_path("gather_16bit_weights_on_model_save")
            or "zero_optimization.stage3_gather_16bit_weights_on_model_save",
            "weights are not gathered for saving",
        )


@rules.warning(
    "DS317 weights gathered into RAM that is too small",
    why="saving gathers all 16-bit weights in the first rank's RAM",
    fix='set "stage3_gather_16bit_weights_on_model_save": false',
    source="runtime/engine.py save_16bit_model",
    options={"framework": "hf", "model": "Qwen2.5-72B", "gpus": "8xA100-80GB", "ram": "100GB"},
    bad=trainer(zero_optimization=zero(3, stage3_gather_16bit_weights_on_model_save=True)),
    good=trainer(zero_optimization=zero(3, stage3_gather_16bit_weights_on_model_save=False)),
)
def gathered_in_ram(config: LintedConfig) -> Iterator[Hit]:
    ram = config.cluster.host_memory_bytes_per_node if config.cluster is not None else None
    path = config.zero_path("gather_16bit_weights_on_model_save")
    if config.stage == 3 and ram and config.model is not None and path and config.flag(path):
        need = 2 * config.model.parameters
        if need > ram:
            yield hit(path, f"the weights have {need / 1e9:.0f} GB, the RAM has {ram / 1e9:.0f} GB")


@rules.advice(
    "DS318 gradients reduced whole",
    why="without reduce_scatter every rank receives all gradients and keeps its share: twice the traffic at stages 2 "
    "and 3",
    fix="remove reduce_scatter: true is the default",
    source=_STAGE_12,
    bad=plain(zero_optimization=zero(2, reduce_scatter=False)),
    good=plain(zero_optimization=zero(2, reduce_scatter=True)),
)
def all_reduce(config: LintedConfig) -> Iterator[Hit]:
    spec = config.optimizer_spec
    needed = spec is not None and spec.per_matrix and config.stage == 3
    if config.stage >= 2 and config.off("zero_optimization.reduce_scatter") and not needed:
        yield hit("zero_optimization.reduce_scatter", "reduce_scatter is off")
