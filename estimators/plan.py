"""One DeepSpeed configuration, or a plan without DeepSpeed beside it, as far as memory and speed depend on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Offload = Literal["none", "cpu", "nvme"]
Sharding = Literal["zero", "fsdp", "none"]
Rung = Literal["ddp", "zero1", "zero2", "zero2-offload", "zero3", "zero3-offload-param", "zero3-offload", "zero3-nvme"]

PlainPyTorch = Literal["fsdp", "torch"]
"""Plans beside the rungs, without DeepSpeed."""

RUNGS: tuple[Rung, ...] = get_args(Rung)
"""The rungs of the ladder: kinds of plan, in the order in which the field's recipe climbs from one to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A point of the search space. Names and units are DeepSpeed's; bucket sizes count elements, not bytes.

    `stage3_*` and `sub_group_size` have no effect below stage 3, `param_*` and `optimizer_buffer_count` none unless
    parameters or optimizer states are swapped to NVMe.
    """

    zero_stage: Literal[0, 1, 2, 3]
    """0 is plain data parallelism."""
    sharding: Sharding = "zero"
    """Whose the step is: DeepSpeed's engine's, or plain PyTorch's with FSDP (one unit per layer, all of it sharded:
    `zero_stage` is 3) or without (torch's optimizer alone, DDP on several GPUs: `zero_stage` is 0)."""
    micro_batch_size: int
    gradient_accumulation_steps: int = 1
    sequence_parallel_size: int = 1
    """P, the ranks that share each sample (Ulysses): each holds S / P of its tokens, and inside attention all of them
    for 1 / P of the heads. ZeRO shards over all ranks whatever P is."""
    autotp_size: int = 1
    """The neighbouring ranks that split each layer and compute the same samples (AutoTP); ZeRO shards over the groups
    of them."""
    autoep_size: int = 1
    """The neighbouring ranks that experts are spread over (AutoEP): each keeps whole ones, and tokens travel to them.
    ZeRO shards experts over the ranks that keep the same ones, all else over all ranks."""
    gradient_checkpointing: bool = True
    """Every layer is recomputed in the backward pass."""
    cpu_checkpointing: bool = False
    """What checkpointing keeps of each layer, its input, waits in pinned RAM for the backward pass."""
    offload_optimizer: Offload = "none"
    """Where the optimizer's states are and its step runs, if not on the GPU; NVMe needs stage 3."""
    offload_optimizer_ratio: float = 1.0
    """Share of stage 3's sub-groups whose masters, states and step go to the host; the first ones stay on the GPU."""
    bf16_master_weights_and_grads: bool = False
    """Master weights, and gradients as the optimizer takes them, are in bf16 instead of fp32; from ZeRO stage 1 on."""
    bf16_optimizer_states: bool = False
    """The optimizer's states are in bf16 too, without which such masters need an optimizer in host RAM."""
    offload_param: Offload = "none"
    """Where ZeRO-3's parameter shards are, if not on the GPU; needs stage 3."""
    overlap_comm: bool = True
    reduce_bucket_size: int = 500_000_000
    """Gradients reduced at a time; stages 1 and 2 hold one such bucket, two with overlap_comm."""
    allgather_bucket_size: int = 500_000_000
    """A size for stages 1 and 2 that has no effect on memory where torch gathers in place."""
    sub_group_size: int = 1_000_000_000
    """Parameters that the optimizer steps at a time."""
    stage3_prefetch_bucket_size: int = 50_000_000
    stage3_param_persistence_threshold: int = 100_000
    stage3_max_live_parameters: int = 1_000_000_000
    stage3_max_reuse_distance: int = 1_000_000_000
    zero_hpz_partition_size: int = 1
    """h, the neighbouring ranks that together keep a second copy of the weights from the forward pass to the step (hpZ
    of ZeRO++, stage 3): what is gathered again comes from them. 1: there is none."""
    zero_quantized_weights: bool = False
    """Weights are gathered in 8 bits (qwZ of ZeRO++, stage 3) and computed with as they come out of it."""
    zero_quantized_gradients: bool = False
    """Gradients travel in 4 bits, within a node and then between nodes (qgZ of ZeRO++, stage 3 on several nodes)."""
    pin_memory: bool = True
    """Offloaded states are page-locked."""
    param_buffer_count: int = 5
    """The swapper's pinned buffers per rank, of `param_buffer_size` elements each."""
    param_buffer_size: int = 100_000_000
    param_max_in_cpu: int = 1_000_000_000
    """Parameters per rank that stay in pinned host RAM although they are offloaded to NVMe."""
    optimizer_buffer_count: int = 4
    """The swapper's pinned buffers per rank."""

    @property
    def ranks_per_sample(self) -> int:
        """Ranks that compute the same samples together."""
        return self.sequence_parallel_size * self.autotp_size

    def samples_per_step(self, ranks: int) -> int:
        """The global batch of so many ranks."""
        return self.micro_batch_size * self.gradient_accumulation_steps * ranks // self.ranks_per_sample

    @property
    def master_bytes(self) -> int:
        """Bytes of a master weight, and of a gradient as the optimizer takes it."""
        return 2 if self.bf16_master_weights_and_grads else 4

    @property
    def quantizes_collectives(self) -> bool:
        """Whether weights or gradients travel in fewer bits."""
        return self.zero_quantized_weights or self.zero_quantized_gradients

    @property
    def offloads(self) -> bool:
        """Whether states or parameters are kept off the GPU."""
        return self.offload_optimizer != "none" or self.offload_param != "none"

    @property
    def rung(self) -> Rung | PlainPyTorch:
        """The rung of the ladder that this plan stands on, or what it is beside them."""
        if self.sharding != "zero":
            return "fsdp" if self.sharding == "fsdp" else "torch"
        if self.zero_stage < 2:
            return "zero1" if self.zero_stage else "ddp"
        if self.zero_stage == 2:
            return "zero2" if self.offload_optimizer == "none" else "zero2-offload"
        if "nvme" in (self.offload_optimizer, self.offload_param):
            return "zero3-nvme"
        if self.offload_optimizer == "cpu":
            return "zero3-offload"
        return "zero3" if self.offload_param == "none" else "zero3-offload-param"
