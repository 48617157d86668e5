"""What the keys of a ds_config decide, a phrase each, and at which ZeRO stages they do anything."""

from __future__ import annotations

from collections.abc import Mapping

MEANINGS: Mapping[str, str] = {
    "train_batch_size": "samples of all GPUs in one optimizer step",
    "train_micro_batch_size_per_gpu": "samples per GPU and forward pass: activations and logits grow with it",
    "gradient_accumulation_steps": "passes per optimizer step: the optimizer's time is shared among them",
    "gradient_clipping": "largest norm of the gradient; 0 does not clip",
    "bf16.enabled": "weights and gradients of 2 bytes, the range of fp32; needs Ampere or newer",
    "fp16.enabled": "weights and gradients of 2 bytes, with loss scaling",
    "fp16.loss_scale": "0 finds the scale itself",
    "optimizer.type": "decides the states per parameter, and whether they can be in host RAM",
    "optimizer.params.lr": "learning rate",
    "scheduler.type": "learning rate over time",
    "zero_optimization.stage": "what the ranks share: 1 optimizer states, 2 gradients too, 3 weights too",
    "zero_optimization.offload_optimizer.device": "optimizer states and CPU Adam in host RAM or on NVMe: 12 to 16 "
    "bytes a "
    "parameter off the GPUs, time per step",
    "zero_optimization.offload_param.device": "weights in host RAM or on NVMe: read over PCIe in every pass",
    "zero_optimization.offload_optimizer.nvme_path": "where the states are kept between steps",
    "zero_optimization.offload_param.nvme_path": "where the weights are kept between uses",
    "zero_optimization.offload_optimizer.pin_memory": "page-locked: PCIe at its full rate, more RAM by rounding up",
    "zero_optimization.offload_param.pin_memory": "page-locked: PCIe at its full rate, more RAM by rounding up",
    "zero_optimization.offload_optimizer.buffer_count": "pinned buffers of one sub-group each, per rank",
    "zero_optimization.offload_param.buffer_count": "pinned buffers of buffer_size each, per rank",
    "zero_optimization.offload_param.buffer_size": "elements of a swap buffer; the largest shard must fit",
    "zero_optimization.offload_param.max_in_cpu": "elements that stay in RAM all the same",
    "zero_optimization.offload_optimizer.ratio": "share of the states that is in RAM; the rest stays on the GPU",
    "zero_optimization.overlap_comm": "communication beside computation; a second bucket at stages 1 and 2",
    "zero_optimization.reduce_bucket_size": "elements reduced at a time: 2 bytes each on the GPU, fewer and larger "
    "messages",
    "zero_optimization.allgather_bucket_size": "elements gathered at a time; current torch gathers all in place",
    "zero_optimization.contiguous_gradients": "gradients copied into one buffer: less fragmentation",
    "zero_optimization.reduce_scatter": "each rank receives only what it owns",
    "zero_optimization.round_robin_gradients": "spreads the copies to host RAM among the ranks",
    "zero_optimization.sub_group_size": "parameters stepped at a time: 6 bytes each on the GPU, a buffer each on NVMe",
    "zero_optimization.stage3_prefetch_bucket_size": "elements gathered ahead: hides communication, takes memory",
    "zero_optimization.stage3_param_persistence_threshold": "smaller parameters stay gathered: fewer tiny messages",
    "zero_optimization.stage3_max_live_parameters": "elements that stay gathered at most: memory against gathering "
    "again",
    "zero_optimization.stage3_max_reuse_distance": "parameters used again within so many elements stay gathered",
    "zero_optimization.stage3_gather_16bit_weights_on_model_save": "saving leaves a model, not only shards; rank 0 "
    "holds it",
    "zero_optimization.zero_hpz_partition_size": "a second copy of the weights within each node: less traffic between "
    "nodes",
    "zero_optimization.zero_quantized_weights": "weights gathered in 8 bits",
    "zero_optimization.zero_quantized_gradients": "gradients reduced in 4 bits",
    "aio.block_size": "bytes of a request to the drive",
    "aio.queue_depth": "requests in flight per thread",
    "aio.intra_op_parallelism": "threads that read and write one tensor",
    "aio.single_submit": "requests handed over one by one",
    "aio.overlap_events": "requests handed over while others finish",
    "zero_allow_untested_optimizer": "lets ZeRO take an optimizer that it was not tested with",
    "wall_clock_breakdown": "times every part of a step, and waits for the GPU to do so",
    "steps_per_print": "how often the log has a line",
}

ORDER = tuple(MEANINGS)
"""What decides most comes first; other keys follow by name."""

_STAGES: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("zero_optimization.allgather_bucket_size", ()),  # runtime/utils.py all_gather_dp_groups gathers in place
    ("zero_optimization.stage3_", (3,)),
    ("zero_optimization.sub_group_size", (3,)),
    ("zero_optimization.offload_param.", (3,)),
    ("zero_optimization.zero_hpz_", (3,)),
    ("zero_optimization.zero_quantized_", (3,)),
    ("zero_optimization.memory_efficient_linear", (3,)),
    ("zero_optimization.allgather_", (1, 2)),
    ("zero_optimization.round_robin_gradients", (1, 2)),
    ("zero_optimization.use_multi_rank_bucket_allreduce", (1, 2)),
    ("zero_optimization.offload_optimizer.", (1, 2, 3)),
    ("zero_optimization.", (1, 2, 3)),
)
"""Prefix -> stages at which DeepSpeed reads the key (runtime/zero/config.py names them in its docstrings, 0.19.8)."""


def meaning(path: str) -> str:
    """What the key decides, "" where it is not known here."""
    return MEANINGS.get(path, "")


def acts_at(path: str, stage: int) -> bool:
    """Whether the key does anything at a ZeRO stage."""
    if path == "zero_optimization.stage":
        return True
    return next((stage in stages for prefix, stages in _STAGES if path.startswith(prefix)), True)


def rank(path: str) -> tuple[int, str, int, str]:
    """Sorts keys: the blocks that decide most first, and in a block likewise."""
    block = path.partition(".")[0]
    first = next((index for index, known in enumerate(ORDER) if known.partition(".")[0] == block), len(ORDER))
    return first, block, ORDER.index(path) if path in MEANINGS else len(ORDER), path
