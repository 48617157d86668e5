"""DS35x: ZeRO++ and MiCS."""

from __future__ import annotations

from collections.abc import Iterator

from ....estimators.memory.partition import shard_numel
from ..linted_config import LintedConfig
from ..rule import Hit, Remove, Rules, hit
from .examples import CPU, NVME, plain, zero

rules = Rules()

_GROUPS = "utils/groups.py _create_zero_param_parallel_group"
_NAMES = (
    "zero_hpz_partition_size",
    "zero_quantized_weights",
    "zero_quantized_nontrainable_weights",
    "zero_quantized_gradients",
)


@rules.warning(
    "DS351 ZeRO++ below stage 3",
    why="ZeRO++ makes the collectives of partitioned weights and gradients of stage 3 smaller; other stages have no "
    "use for it",
    fix="use stage 3, or remove it",
    source="runtime/engine.py _configure_zero_optimizer",
    bad=plain(zero_optimization=zero(2, zero_quantized_weights=True)),
    good=plain(zero_optimization=zero(3, zero_quantized_weights=True)),
)
def below_3(config: LintedConfig) -> Iterator[Hit]:
    for name in _NAMES:
        value = config.get(f"zero_optimization.{name}")
        size = config.number("zero_optimization.zero_hpz_partition_size") or 0
        on = size > 1 if name == "zero_hpz_partition_size" else bool(value) and value != "auto"
        if on and config.stage < 3:
            yield hit(
                f"zero_optimization.{name}",
                f"{name} has no effect at stage {config.stage}",
                edits=() if name == "zero_quantized_gradients" else (Remove(("zero_optimization", name)),),
            )


@rules.error(
    "DS352 hpZ groups that do not divide the GPUs",
    why="the ranks are divided into groups of zero_hpz_partition_size, each with a second copy of the weights",
    fix="write the number of GPUs per node",
    source=_GROUPS,
    options={"gpus": "4x24GB"},
    bad=plain(zero_optimization=zero(3, zero_hpz_partition_size=3)),
    good=plain(zero_optimization=zero(3, zero_hpz_partition_size=2)),
)
def indivisible(config: LintedConfig) -> Iterator[Hit]:
    size, ranks = config.number("zero_optimization.zero_hpz_partition_size"), config.world_size
    if config.stage == 3 and ranks and size and size > 1 and not size % 1 and ranks % min(size, ranks):
        yield hit("zero_optimization.zero_hpz_partition_size", f"{size:g} does not divide {ranks} GPUs")


@rules.advice(
    "DS353 hpZ groups that are not one node",
    why="the second copy saves traffic between nodes; groups of another size than a node's GPUs still gather across "
    "nodes, or "
    "hold more copies than needed",
    fix="write the number of GPUs per node",
    source=_GROUPS,
    options={"gpus": "4x8xH100"},
    bad={"train_batch_size": 32, "zero_optimization": zero(3, zero_hpz_partition_size=4)},
    good={"train_batch_size": 32, "zero_optimization": zero(3, zero_hpz_partition_size=8)},
)
def not_a_node(config: LintedConfig) -> Iterator[Hit]:
    size, cluster = config.number("zero_optimization.zero_hpz_partition_size"), config.cluster
    if config.stage != 3 or cluster is None or not size or size <= 1:
        return
    if size != cluster.gpus_per_node and not cluster.world_size % min(size, cluster.world_size):
        yield hit(
            "zero_optimization.zero_hpz_partition_size",
            f"a group has {size:g} GPUs, a node has {cluster.gpus_per_node}",
        )


@rules.error(
    "DS355 hpZ with parameters on NVMe",
    why="the second copy of the weights is allocated where the first one goes, and torch has no device nvme",
    fix="remove zero_hpz_partition_size, or offload the parameters to the CPU",
    source="runtime/zero/partition_parameters.py _partition_param_sec",
    bad=plain(zero_optimization=zero(3, zero_hpz_partition_size=2, offload_param=NVME)),
    good=plain(zero_optimization=zero(3, zero_hpz_partition_size=2, offload_param=CPU)),
)
def on_nvme(config: LintedConfig) -> Iterator[Hit]:
    size = config.number("zero_optimization.zero_hpz_partition_size")
    if config.stage == 3 and size and size > 1 and config.offload("param") == "nvme":
        yield hit("zero_optimization.zero_hpz_partition_size", f"a group has {size:g} GPUs, the parameters are on NVMe")


@rules.error(
    "DS354 quantized gradients without reduce_scatter",
    why="the quantized all-to-all is a reduce-scatter, and stage 3 asserts that both are on",
    fix='remove "reduce_scatter": false',
    source="runtime/zero/stage3.py __init__ (all2all_process_group)",
    bad=plain(zero_optimization=zero(3, zero_quantized_gradients=True, reduce_scatter=False)),
    good=plain(zero_optimization=zero(3, zero_quantized_gradients=True)),
)
def without_scatter(config: LintedConfig) -> Iterator[Hit]:
    quantized = config.stage == 3 and config.flag("zero_optimization.zero_quantized_gradients")
    if quantized and config.off("zero_optimization.reduce_scatter"):
        yield hit("zero_optimization.zero_quantized_gradients", "reduce_scatter is off")


@rules.warning(
    "DS356 quantized gradients of bf16",
    why="the kernel reads the gradients' bits as fp16 whatever their type is, so those in bf16 become other numbers",
    fix='write "communication_data_type": "fp16", or leave gradients as they are',
    source="csrc/quantization/pt_binding.cpp ds_swizzle_quant, runtime/comm/coalesced_collectives.py "
    "all_to_all_quant_reduce",
    bad=plain(bf16={"enabled": True}, zero_optimization=zero(3, zero_quantized_gradients=True)),
    good=plain(
        bf16={"enabled": True},
        communication_data_type="fp16",
        zero_optimization=zero(3, zero_quantized_gradients=True),
    ),
)
def misread(config: LintedConfig) -> Iterator[Hit]:
    quantized = config.stage == 3 and config.flag("zero_optimization.zero_quantized_gradients")
    one_node = config.cluster is not None and config.cluster.nodes == 1
    if quantized and config.bf16 and not one_node and config.text("communication_data_type") != "fp16":
        yield hit("zero_optimization.zero_quantized_gradients", "gradients in bf16 are quantized as if they were fp16")


@rules.advice(
    "DS357 quantized gradients on one node",
    why="within one node stage 3 reduces gradients as they are, whatever zero_quantized_gradients says",
    fix="remove it",
    source="runtime/zero/stage3.py __avg_scatter_grads (num_nodes > 1)",
    options={"gpus": "8xH100"},
    bad=plain(zero_optimization=zero(3, zero_quantized_gradients=True)),
    good=plain(zero_optimization=zero(3)),
)
def within_a_node(config: LintedConfig) -> Iterator[Hit]:
    quantized = config.stage == 3 and config.flag("zero_optimization.zero_quantized_gradients")
    if quantized and config.cluster is not None and config.cluster.nodes == 1:
        yield hit("zero_optimization.zero_quantized_gradients", "it has no effect on one node")


@rules.warning(
    "DS358 frozen weights stored in 8 bits",
    why="weights that are frozen while the model is built are copied into 8-bit tensors without being quantized, which "
    "leaves whole numbers of them; those frozen later stay as they are unless the script calls "
    "quantize_nontrainable_params(), which takes fp16 only",
    fix="remove it; for LoRA over 4-bit weights use QLoRA with stage 2",
    source="runtime/zero/partition_parameters.py _partition_param, runtime/zero/stage3.py quantize_nontrainable_params",
    bad=plain(zero_optimization=zero(3, zero_quantized_nontrainable_weights=True)),
    good=plain(zero_optimization=zero(3)),
)
def stored_in_8_bits(config: LintedConfig) -> Iterator[Hit]:
    name = "zero_optimization.zero_quantized_nontrainable_weights"
    if config.stage == 3 and config.flag(name):
        yield hit(name, "frozen weights are truncated or left as they are")


@rules.error(
    "DS359 shards that the quantizer refuses",
    why="a shard is quantized in groups of a multiple of 8 elements, and DeepSpeed asserts that it divides into them",
    fix="use a number of GPUs that leaves every tensor a shard of a multiple of 8 elements, or remove it",
    source="runtime/zero/partition_parameters.py CUDAQuantizer.quantize",
    options={"gpus": "8x8xH100", "model": "Qwen2.5-0.5B"},
    bad={"train_batch_size": 64, "zero_optimization": zero(3, zero_quantized_weights=True)},
    good={"train_batch_size": 64, "zero_optimization": zero(3)},
)
def odd_shards(config: LintedConfig) -> Iterator[Hit]:
    ranks, model = config.world_size, config.model
    if config.stage != 3 or not config.flag("zero_optimization.zero_quantized_weights") or not ranks or model is None:
        return
    odd = next((tensor for tensor, _ in model.tensor_counts if shard_numel(tensor.numel, ranks) % 8), None)
    if odd is not None:
        yield hit(
            "zero_optimization.zero_quantized_weights",
            f"{odd.name} has shards of {shard_numel(odd.numel, ranks)} elements on {ranks} GPUs",
        )
