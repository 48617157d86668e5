"""One DeepSpeed configuration, as far as memory and speed depend on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Offload = Literal["none", "cpu", "nvme"]
Rung = Literal["ddp", "zero1", "zero2", "zero2-offload", "zero3", "zero3-offload-param", "zero3-offload", "zero3-nvme"]

RUNGS: tuple[Rung, ...] = (
    "ddp",
    "zero1",
    "zero2",
    "zero2-offload",
    "zero3",
    "zero3-offload-param",
    "zero3-offload",
    "zero3-nvme",
)
"""The ladder, in the order in which the field's recipe climbs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A point of the search space. Names and units are DeepSpeed's; bucket sizes count elements, not bytes.

    zero_stage:        0 (plain data parallelism) to 3.
    offload_optimizer: optimizer states (and the optimizer's work) in host RAM or on NVMe; NVMe needs stage 3.
    offload_param:     ZeRO-3's parameter shards in host RAM or on NVMe; needs stage 3.
    gradient_checkpointing: every layer is recomputed in the backward pass.
    reduce_bucket_size:     gradients reduced at a time; DeepSpeed holds one such bucket, two with overlap_comm (stage
        1, 2).
    allgather_bucket_size:  stages 1 and 2; without effect on memory where torch gathers in place.
    sub_group_size:         stage 3: parameters that the optimizer steps at a time.
    stage3_*:               as in DeepSpeed; no effect below stage 3.
    pin_memory:             offloaded states are page-locked.
    param_buffer_count, param_buffer_size: NVMe parameter swapper's pinned buffers, per rank; no effect without it.
    param_max_in_cpu:       parameters that stay in pinned host RAM although they are offloaded to NVMe, per rank.
    optimizer_buffer_count: NVMe optimizer swapper's pinned buffers, per rank; no effect without it.
    """

    zero_stage: Literal[0, 1, 2, 3]
    micro_batch_size: int
    gradient_accumulation_steps: int = 1
    gradient_checkpointing: bool = True
    offload_optimizer: Offload = "none"
    offload_param: Offload = "none"
    overlap_comm: bool = True
    reduce_bucket_size: int = 500_000_000
    allgather_bucket_size: int = 500_000_000
    sub_group_size: int = 1_000_000_000
    stage3_prefetch_bucket_size: int = 50_000_000
    stage3_param_persistence_threshold: int = 100_000
    stage3_max_live_parameters: int = 1_000_000_000
    stage3_max_reuse_distance: int = 1_000_000_000
    pin_memory: bool = True
    param_buffer_count: int = 5
    param_buffer_size: int = 100_000_000
    param_max_in_cpu: int = 1_000_000_000
    optimizer_buffer_count: int = 4

    @property
    def rung(self) -> Rung:
        """The rung of the ladder that this plan stands on."""
        if self.zero_stage < 2:
            return "zero1" if self.zero_stage else "ddp"
        if self.zero_stage == 2:
            return "zero2" if self.offload_optimizer == "none" else "zero2-offload"
        if "nvme" in (self.offload_optimizer, self.offload_param):
            return "zero3-nvme"
        if self.offload_optimizer == "cpu":
            return "zero3-offload"
        return "zero3" if self.offload_param == "none" else "zero3-offload-param"
