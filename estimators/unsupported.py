"""Plans that cannot run, regardless of memory."""

from __future__ import annotations

from functools import lru_cache

from .hardware import Cluster
from .memory.activations.kernels import offered_attention
from .memory.activations.loss import why_no_tiling
from .memory.partition import shard_numel
from .memory.rollout_memory import cached_sequences
from .memory.trainable import ShardedTensors, shard_plan, tensor_set
from .models.families import supports
from .models.model_shape import ModelShape
from .models.rank_part import why_no_expert_parallelism, why_no_tensor_parallelism
from .objectives import has_reference_model
from .optimizers import OptimizerSpec, optimizer
from .plan import Plan
from .workload import NEXT_TOKEN, Workload

QUANTIZED_TOGETHER = 8
"""qwZ quantizes shards of a multiple of this many elements (deepspeed 0.19.8 partition_parameters.py
`CUDAQuantizer.quantize` asserts it)."""


def unsupported(model: ModelShape, workload: Workload, plan: Plan, cluster: Cluster | None = None) -> str | None:
    """Return the reason why a plan cannot run; None if none is known."""
    spec = optimizer(workload.optimizer)
    if cluster is not None and workload.precision == "bf16" and not cluster.gpu.has_bf16:
        return f"{cluster.gpu.name} has no bf16 units; use fp16"
    if cluster is not None and cluster.gpu.is_cpu and "cpu" in (plan.offload_optimizer, plan.offload_param):
        return "the ranks' memory is the host's, so there is nowhere to offload to"
    if obstacle := why_no_tiling(model, workload):
        return obstacle
    if plan.offload_param == "nvme" and has_reference_model(workload):
        # Both engines use the same folder, and 0.19.8 runtime/swap_tensor/partitioned_param_swapper.py empties it.
        return "the reference model's weights would be lost on NVMe"
    if obstacle := _why_no_generation(model, workload, plan, cluster):
        return obstacle
    if plan.sharding != "zero":
        if plan.ranks_per_sample > 1:
            return "Ulysses and AutoTP need DeepSpeed"
        return _why_no_fsdp2(model, workload, plan) if plan.sharding == "fsdp2" else _why_no_torch_offload(plan)
    ranks, size = cluster.world_size if cluster is not None else 0, plan.sequence_parallel_size
    if ranks % size:
        return f"{ranks} ranks are not divisible into groups of {size}"
    if size > 1 and (obstacle := why_no_sequence_parallelism(model, workload, size)):
        return obstacle
    if plan.cpu_checkpointing and cluster is not None and cluster.gpu.is_cpu:
        return "the ranks' memory is the host's, so there is nowhere to offload to"
    if plan.zero_stage == 0 and plan.offload_optimizer != "none":
        return "an offloaded optimizer needs ZeRO stage 1 or higher"
    if plan.zero_stage < 3 and plan.offload_param != "none":
        return "offloaded parameters need ZeRO stage 3"
    if plan.zero_stage < 3 and plan.offload_optimizer == "nvme":
        return "an optimizer on NVMe needs ZeRO stage 3"
    if plan.offload_optimizer_ratio < 1 and (plan.zero_stage < 3 or plan.offload_optimizer != "cpu"):
        return "a partly offloaded optimizer needs ZeRO stage 3 with the rest in RAM"
    # The GPU's part is stepped by torch.optim.AdamW, whatever optimizer is configured (stage3.py `backup_optimizer`).
    if plan.offload_optimizer_ratio < 1 and not spec.is_adam:
        return f"{workload.optimizer} does not run on both sides, only AdamW does"
    if (
        obstacle := _why_no_bf16_states(workload, plan)
        or _why_no_hpz(plan, cluster)
        or _why_no_quantized_collectives(model, workload, plan, cluster)
        or _why_no_autotp(model, workload, plan, cluster)
        or _why_no_autoep(model, workload, plan, cluster)
    ):
        return obstacle
    if plan.zero_stage and not spec.partitions:
        return f"{workload.optimizer} needs whole layers, ZeRO gives it flat partitions"
    if plan.offload_optimizer != "none" and spec.cpu_state_bytes is None:
        return f"{workload.optimizer} does not run on the host"
    if workload.method == "qlora" and plan.zero_stage == 3:
        if workload.quantization == "int8":  # bitsandbytes 0.50 autograd/_functions.py MatmulLtState.CB
            return "bitsandbytes' int8 layers keep whole weights in addition to ZeRO-3's shards"
        if workload.quantization != "nf4" or plan.offload_param != "none" or plan.quantizes_collectives:
            return "ZeRO-3 is known to shard NF4 weights only on the GPU, with unquantized collectives"
    if cluster is not None and plan.swaps:
        return _why_no_swapping(shard_plan(model, workload, cluster, plan), plan, spec)
    return None


def _why_no_bf16_states(workload: Workload, plan: Plan) -> str | None:
    """Return why masters and states cannot be in 16 bits (deepspeed 0.19.8 runtime/base_optimizer.py
    `_configure_master_weights`, runtime/config.py `_do_error_check`)."""
    if plan.bf16_optimizer_states and not plan.bf16_master_weights_and_grads:
        return "bf16_optimizer_states needs bf16_master_weights_and_grads"
    if plan.master_bytes == 4:
        return None
    name = "bf16" if plan.bf16_master_weights_and_grads else "fp16"
    if plan.zero_stage == 0:
        return f"master weights in {name} need ZeRO stage 1 or higher"
    if workload.precision != name:
        return f"master weights in {name} need training in that type, not {workload.precision}"
    if not optimizer(workload.optimizer).is_adam:
        return f"states in {name} are known for AdamW and Adam, not for {workload.optimizer}"
    if plan.offload_optimizer == "none" and not plan.bf16_optimizer_states:
        return f"{name} master weights with fp32 states need an optimizer in host RAM"
    if plan.offload_optimizer == "nvme":
        # Releasing a sub-group turns its empty master into fp32 (swap_tensor/optimizer_utils.py `release_memory`).
        return f"DeepSpeed's NVMe swapper does not support master weights in {name}"
    return None


def _why_no_hpz(plan: Plan, cluster: Cluster | None) -> str | None:
    """Return why hpZ cannot keep its second copy of the weights (deepspeed 0.19.8 utils/groups.py
    `_create_zero_param_parallel_group`, runtime/zero/partition_parameters.py `_partition_param_sec`)."""
    size = plan.zero_hpz_partition_size
    if size == 1:
        return None
    if plan.zero_stage < 3:
        return "hpZ needs parameters partitioned by ZeRO stage 3"
    if plan.offload_param == "nvme":
        return "hpZ's second copy cannot be on NVMe"
    if cluster is not None and cluster.world_size % size:
        return f"{cluster.world_size} ranks are not divisible into groups of {size} with a second copy each"
    return None


def _why_no_quantized_collectives(
    model: ModelShape, workload: Workload, plan: Plan, cluster: Cluster | None
) -> str | None:
    """Return why ZeRO++'s quantized collectives cannot run (deepspeed 0.19.8 runtime/zero/partition_parameters.py
    `CUDAQuantizer`, runtime/zero/stage3.py `__init__`, `__avg_scatter_grads`)."""
    if not plan.quantizes_collectives:
        return None
    if plan.zero_stage < 3:
        return "quantized collectives need parameters partitioned by ZeRO stage 3"
    if workload.precision == "fp32":
        return "quantized collectives need training in bf16 or fp16"
    if cluster is not None and cluster.gpu.vendor != "NVIDIA":
        return "the kernels of the quantizer run on NVIDIA GPUs only"
    if plan.ranks_per_sample > 1:
        return "quantized collectives with Ulysses or AutoTP are not known to run"
    if plan.offload_param == "nvme":
        return "quantized collectives with weights on NVMe are not known to run"
    if plan.zero_quantized_gradients and optimizer(workload.optimizer).per_matrix:
        return "DeepSpeed refuses Muon with quantized gradients"
    if plan.zero_quantized_weights and cluster is not None:
        tensors, ranks = tensor_set(model, workload), cluster.world_size
        shards = {shard_numel(numel, ranks) for numel in (*tensors.trainable, *tensors.frozen)}
        if any(shard % QUANTIZED_TOGETHER for shard in shards):
            return (
                f"the quantizer needs shards of a multiple of {QUANTIZED_TOGETHER} elements, which {ranks} ranks do "
                "not have for every tensor"
            )
    return None


def _why_no_autotp(model: ModelShape, workload: Workload, plan: Plan, cluster: Cluster | None) -> str | None:
    """Return why AutoTP cannot run, or is not confirmed to run."""
    ranks = plan.autotp_size
    if ranks == 1:
        return None
    if cluster is not None and cluster.gpus_per_node % ranks:
        return f"{cluster.gpus_per_node} GPUs of a node are not divisible into groups of {ranks} that split each layer"
    if workload.method != "full":
        return "AutoTP does not support adapters"
    if plan.sequence_parallel_size > 1 or plan.zero_hpz_partition_size > 1:
        return "AutoTP cannot be combined with Ulysses or hpZ"
    if plan.swaps:
        return "AutoTP with states on NVMe is not known to run"
    if workload.loss != "standard" or workload.kernels != "torch" or workload.mlp != "whole":
        return "AutoTP with other losses or kernels, or with tiles, is not known to run"
    return why_no_tensor_parallelism(model, ranks)


def _why_no_autoep(model: ModelShape, workload: Workload, plan: Plan, cluster: Cluster | None) -> str | None:
    """Return why AutoEP cannot run, or is not confirmed to run."""
    ranks = plan.autoep_size
    if ranks == 1:
        return None
    if cluster is not None and cluster.world_size % ranks:
        return f"{cluster.world_size} ranks are not divisible into expert-parallel groups of {ranks}"
    if workload.method != "full":
        return "AutoEP does not support adapters"
    if not optimizer(workload.optimizer).is_adam or plan.master_bytes == 2:
        return "AutoEP is known to run only with AdamW and its states in fp32"
    if plan.zero_stage == 0 or plan.offloads:
        return "AutoEP is predicted at ZeRO stages 1 to 3 without offload only"
    if plan.ranks_per_sample > 1:
        return "AutoEP with Ulysses or AutoTP is not known to run"
    if plan.zero_hpz_partition_size > 1 or plan.quantizes_collectives:
        return "AutoEP with ZeRO++ is not known to run"
    if workload.loss != "standard" or workload.kernels != "torch" or workload.mlp != "whole":
        return "AutoEP with other losses or kernels, or with tiles, is not known to run"
    return why_no_expert_parallelism(model, ranks)


def _why_no_generation(model: ModelShape, workload: Workload, plan: Plan, cluster: Cluster | None) -> str | None:
    """Return why completions cannot be generated."""
    rollouts = workload.rollouts
    if rollouts is None:
        return None
    if model.policy and workload.method != "full":
        return "TRL's PPO adapts only the policy and trains the whole value model, which is not predicted"
    if model.policy and (plan.sharding != "zero" or plan.ranks_per_sample > 1):
        return "PPO is predicted only with DeepSpeed's ZeRO"
    if not model.vocab_size or any(not block.attention.causal or block.cross_attention for block in model.blocks):
        return "completions need a decoder-only model with a head over the vocabulary"
    if cluster is None or rollouts.rollout == "generate":
        return None
    if cluster.gpu.is_cpu:
        return "vLLM during a training on the CPU is not predicted"
    if rollouts.rollout == "vllm-server" and not rollouts.server_gpus:
        return "no GPUs are left for the vLLM server"
    if cached_sequences(model, workload, cluster.gpu.memory_bytes) < 1:
        return "the model does not fit vLLM's share of the GPU (--vllm-gpu-memory-utilization)"
    return None


def _why_no_swapping(sharded: ShardedTensors, plan: Plan, spec: OptimizerSpec) -> str | None:
    """Return why the plan would violate an assertion of DeepSpeed's NVMe swappers."""
    if plan.offload_optimizer == "nvme":
        # The swapper takes all buffers of a sub-group at once, and asserts that it has them.
        needed = 2 + round((spec.cpu_state_bytes or 0) / 4)  # fp32 tensors per master weight
        if plan.optimizer_buffer_count < needed:
            return f"offload_optimizer.buffer_count must be at least {needed} (master, states, gradient)"
    if plan.offload_param == "nvme":
        shard = -(-max(*sharded.tensors.trainable, *sharded.tensors.frozen, 0) // sharded.world_size)
        if shard > plan.param_buffer_size:
            return f"offload_param.buffer_size must be at least {shard}, the shard of the largest tensor"
    return None


@lru_cache(maxsize=256)
def why_no_sequence_parallelism(model: ModelShape, workload: Workload, sequence_parallel_size: int) -> str | None:
    """Return why Ulysses cannot divide a model's samples among `sequence_parallel_size` ranks; None if it can."""
    ranks = sequence_parallel_size
    if ranks == 1:
        return None
    if workload.objective != NEXT_TOKEN:
        return f"the loss of {workload.objective} sums over whole sequences"
    if not supports(model, "ulysses"):
        return f"Ulysses sequence parallelism does not support {model.model_type} models"
    if any(not block.attention.causal or block.cross_attention is not None for block in model.blocks):
        return "sequence parallelism needs a decoder-only model: Ulysses supports causal attention only"
    if offered_attention(model, workload).attention == "eager":
        return "sequence parallelism needs the attention kernel sdpa or flash, not eager"
    for block in model.blocks:
        attention = block.attention
        if attention.window is not None and workload.attention != "flash":
            return "sequence parallelism drops the mask of a sliding window unless the attention kernel is flash"
        if attention.heads % ranks:
            return f"{attention.heads} heads are not divisible by {ranks} ranks that share a sequence"
        if attention.kv_heads % ranks and ranks % attention.kv_heads:
            return f"neither of {attention.kv_heads} key-value heads and {ranks} ranks divides the other"
    if workload.seq_len % ranks:
        return f"a sequence of {workload.seq_len} tokens is not divisible by {ranks} ranks"
    return None


def _why_no_torch_offload(plan: Plan) -> str | None:
    """Return why plain PyTorch or FSDP 1 does not offload so (torch 2.13 distributed/fsdp/api.py `CPUOffload`)."""
    if plan.swaps:
        return "offload to NVMe needs DeepSpeed"
    if plan.sharding == "none" and plan.offloads:
        return "offload needs FSDP or DeepSpeed"
    if plan.offload_optimizer != plan.offload_param:
        return "FSDP offloads optimizer and parameters together: offload_optimizer and offload_param must be equal"
    return None


def _why_no_fsdp2(model: ModelShape, workload: Workload, plan: Plan) -> str | None:
    """Return why FSDP2 is not predicted. Predictions assume decoder layers as units and the states of torch's Adam."""
    if workload.method == "qlora" or plan.offloads or not optimizer(workload.optimizer).is_adam:
        return "FSDP2 is predicted for AdamW without offload or quantized weights"
    if workload.objective != NEXT_TOKEN or model.module is not None:
        return "FSDP2 is predicted for language models trained on the next token"
    return None


def context_parallel_advice(model: ModelShape, workload: Workload, ranks: int) -> str:
    """Return advice to use context parallelism if the heads do not divide among the ranks; "" if it cannot run either.

    accelerate's context parallelism splits the tokens, two parts per rank, and passes keys and values around. It needs
    FSDP2, the kernel sdpa, and causal attention without a window (accelerate 1.15 accelerator.py `_prepare_cp`,
    big_modeling.py `_attach_context_parallel_hooks`; transformers 5.23 trainer.py `_prepare_context_parallel_inputs`).
    It is not predicted.
    """
    heads = (block.attention for block in model.blocks)
    plain = all(each.causal and each.window is None for each in heads) and not any(
        block.cross_attention for block in model.blocks
    )
    if not plain or workload.attention != "sdpa" or workload.seq_len % (2 * ranks):
        return ""
    return f"; context parallelism has no limit of heads: accelerate's ParallelismConfig(cp_size={ranks}) with FSDP2"
