"""A plan as a DeepSpeed configuration."""

from __future__ import annotations

from typing import Any

from ..estimators.errors import ClusterError
from ..estimators.hardware.cluster import Cluster
from ..estimators.models.expert_parallel import AUTOEP_PRESETS
from ..estimators.models.model_shape import ModelShape
from ..estimators.optimizers import OPTIMIZERS
from ..estimators.plan import Offload, Plan
from ..estimators.workload import Framework, Workload
from .optimizer_block import optimizer_block

GRADIENT_CLIPPING = 1.0
"""The default of both TrainingArguments (max_grad_norm) and DeepSpeed."""

AIO = {
    "block_size": 1_048_576,
    "queue_depth": 32,
    "intra_op_parallelism": 8,
    "single_submit": False,
    "overlap_events": True,
}
"""Requests of 1 MiB, 32 in flight, 8 threads: a modern drive wants that many. `ds_nvme_tune` finds a drive's best."""

BF16_KEYS = ("bf16_master_weights_and_grads", "bf16_optimizer_states")
"""Keys of the bf16 block that are fields of a plan."""


QUANTIZED_COLLECTIVES = ("zero_quantized_weights", "zero_quantized_gradients")
"""Keys of the zero_optimization block that are fields of a plan: what ZeRO++ sends in fewer bits."""


def ds_config(
    plan: Plan, model: ModelShape, workload: Workload, cluster: Cluster, *, flavor: Framework
) -> dict[str, Any]:
    """The JSON-ready configuration that runs this plan.

    flavor "hf": `auto` for what both the Trainer and accelerate fill in (batch sizes, clipping, precision, learning
    rate, weight decay), so that the file and the arguments cannot contradict each other. Buckets and thresholds are
    numbers, never `auto`: the Trainer would fill in others than those that the memory was computed with. There is no
    scheduler, so the Trainer's own runs.

    flavor "deepspeed": every value explicit, for `deepspeed.initialize(config=...)`.

    Only keys that have an effect at the plan's stage. So no allgather_bucket_size, because DeepSpeed 0.19.8 gathers in
    place (runtime/utils.py `all_gather_dp_groups`), and nothing about gradient checkpointing, which is the model's
    business (see `training_arguments`).

    Raises ClusterError where a plan swaps to NVMe and the cluster names no folder for it, and WorkloadError where the
    optimizer cannot be offloaded.
    """
    auto = flavor == "hf"
    micro, accumulation = plan.micro_batch_size, plan.gradient_accumulation_steps
    config: dict[str, Any] = {
        "train_batch_size": micro * accumulation * cluster.world_size // plan.sequence_parallel_size,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": GRADIENT_CLIPPING,
    }
    if auto:
        config = dict.fromkeys(config, "auto")
        if plan.sequence_parallel_size > 1:
            # The Trainer would fill in what all GPUs take; accelerate, which comes later, knows who shares samples.
            del config["train_batch_size"]
    if workload.precision != "fp32":
        config[workload.precision] = {"enabled": "auto" if auto else True} | {
            name: True for name in BF16_KEYS if getattr(plan, name)
        }
    if plan.sequence_parallel_size > 1:
        config["sequence_parallel_size"] = plan.sequence_parallel_size
        # Gradients are reduced as they are without it; the default is fp32, twice the bytes.
        config["seq_parallel_communication_data_type"] = workload.precision
    if plan.zero_quantized_gradients and workload.precision == "bf16":
        # DeepSpeed's kernel reads what it quantizes as fp16, whatever it is (csrc/quantization/pt_binding.cpp).
        config["communication_data_type"] = "fp16"
    if plan.autotp_size > 1:
        config.pop("train_batch_size", None)  # by stage DeepSpeed counts the ranks or their groups
        config["tensor_parallel"] = {"autotp_size": plan.autotp_size}
        if model.tied:
            # Without it DeepSpeed splits the embedding and the head by their tokens, with a loss of its own.
            config["tensor_parallel"]["vocab_parallel_lm_head"] = False
    if plan.autoep_size > 1:
        preset = AUTOEP_PRESETS[model.model_type]
        config["expert_parallel"] = {"enabled": True, "autoep_size": plan.autoep_size, "preset_model": preset}
    config |= optimizer_block(workload.optimizer, plan, auto=auto)
    config["zero_optimization"] = _zero_optimization(plan, model, workload, cluster)
    if "nvme" in (plan.offload_optimizer, plan.offload_param):
        config["aio"] = dict(AIO)
    return config


def _zero_optimization(plan: Plan, model: ModelShape, workload: Workload, cluster: Cluster) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": plan.zero_stage}
    if plan.zero_stage == 0:
        return zero
    if plan.offload_optimizer != "none":
        buffers = {"buffer_count": plan.optimizer_buffer_count}
        zero["offload_optimizer"] = _offload(plan.offload_optimizer, plan, cluster, buffers)
        if plan.offload_optimizer_ratio < 1:
            zero["offload_optimizer"]["ratio"] = plan.offload_optimizer_ratio
    if plan.offload_param != "none":
        buffers = {name: getattr(plan, f"param_{name}") for name in ("buffer_count", "buffer_size", "max_in_cpu")}
        zero["offload_param"] = _offload(plan.offload_param, plan, cluster, buffers)
    zero["overlap_comm"] = plan.overlap_comm
    zero["reduce_bucket_size"] = plan.reduce_bucket_size
    if plan.zero_stage == 3:
        names = ("prefetch_bucket_size", "param_persistence_threshold", "max_live_parameters", "max_reuse_distance")
        zero["sub_group_size"] = plan.sub_group_size
        zero |= {f"stage3_{name}": getattr(plan, f"stage3_{name}") for name in names}
        zero["stage3_gather_16bit_weights_on_model_save"] = _can_gather(plan, model, workload, cluster)
        if plan.zero_hpz_partition_size > 1:
            zero["zero_hpz_partition_size"] = plan.zero_hpz_partition_size
        zero |= {name: True for name in QUANTIZED_COLLECTIVES if getattr(plan, name)}
        if OPTIMIZERS[workload.optimizer].per_matrix:
            zero["reduce_scatter"] = False
    return zero


def _offload(device: Offload, plan: Plan, cluster: Cluster, nvme_only: dict[str, int]) -> dict[str, Any]:
    block: dict[str, Any] = {"device": device}
    if device == "nvme":
        if not cluster.nvme_path:
            raise ClusterError(
                "no folder for swapping to NVMe",
                why="the plan keeps states there between their uses",
                fix="pass --nvme PATH:SIZE with a folder on the local NVMe drive",
            )
        block |= {"nvme_path": cluster.nvme_path} | nvme_only
    block["pin_memory"] = plan.pin_memory
    return block


def _can_gather(plan: Plan, model: ModelShape, workload: Workload, cluster: Cluster) -> bool:
    """Whether the first rank's host has the RAM for all weights, so that saving leaves a model and not only shards."""
    if cluster.host_memory_bytes_per_node is None:
        return plan.offload_param != "nvme"  # they are on NVMe because RAM cannot hold them
    return model.parameters * workload.weight_bytes < cluster.host_memory_bytes_per_node
