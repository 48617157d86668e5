"""The settings of a DeepSpeed configuration, or of a plan of plain PyTorch, that affect memory and speed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, TypeVar, get_args

T = TypeVar("T")

Offload = Literal["none", "cpu", "nvme"]
Fsdp = Literal["fsdp", "fsdp2"]
"""Versions of PyTorch's FSDP."""
Sharding = Literal["zero", Fsdp, "none"]
Strategy = Literal[
    "ddp", "zero1", "zero2", "zero2-offload", "zero3", "zero3-offload-param", "zero3-offload", "zero3-nvme"
]

PlainPyTorch = Literal[Fsdp, "torch"]
"""Plans without DeepSpeed."""

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
PLANS: tuple[Strategy | PlainPyTorch, ...] = (*STRATEGIES, *get_args(PlainPyTorch))
"""Kinds of plan, ordered as the search tries them: from the fastest to the one that needs the least GPU memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """A key of a DeepSpeed configuration. Reading, writing, comparing and checking configurations derive from it."""

    path: str
    """Names from the top level, joined by dots; "" for a setting of the training script."""
    meaning: str
    """Effect of the key, as a phrase; "" if no command explains the key."""
    default: Any = None
    """The plan's value if the key is absent; None for a key outside the plan."""
    stages: tuple[int, ...]
    """ZeRO stages at which DeepSpeed uses the key."""
    refused_elsewhere: bool = False
    """Whether DeepSpeed refuses another value than the default at other stages, where it ignores other keys."""
    lowest: int = 0
    """The lowest value that DeepSpeed accepts, for numbers."""
    field: str = ""
    """The field of `Plan`; "" for a key outside the plan."""
    only_if_set: bool = False
    """Whether written configurations omit the key if it has its default."""
    condition: str = ""
    """What else must hold for the key to act, after "only"; "" if nothing."""
    unset: str = ""
    """What DeepSpeed takes without the key, where its class has no value; "" if it has one."""
    nvme_only: bool = False
    """Whether the key takes effect only if its block's device is NVMe."""
    fill: Literal["", "match", "only", "always"] = ""
    """What the Trainer does with the value: "match" replaces `auto` and refuses another value than its own, "only"
    replaces `auto`, "always" replaces any value, "" none. Source: transformers 5.24 integrations/deepspeed.py
    `fill_match` and `fill_only` in `trainer_config_process` and `trainer_config_finalize`; accelerate 1.15
    utils/dataclasses.py `DeepSpeedPlugin.__post_init__`."""
    filled_with: str = ""
    """The Trainer's value in words; "" if it is `argument`, or follows from the hidden size."""
    filled_from_hidden_size: Callable[[int], int] | None = None
    """The Trainer's value for `auto` as a function of the model's hidden size; None if it does not depend on it."""
    argument: str = ""
    """The field of TrainingArguments that a number must equal."""
    option: str = ""
    """The option of a question that a key outside the plan follows, and with it memory and time; "" for other keys."""
    example: Any = None
    """A usual value other than the default, where half or twice the default is not one; None for other keys."""

    @property
    def filled(self) -> bool:
        """Whether the Trainer replaces `auto`."""
        return bool(self.fill)


def key(meaning: str, **properties: Any) -> dict[str, dict[str, Any]]:
    """Return the metadata of a field of `Plan`: the properties of its `ConfigKey`. `path` defaults to
    zero_optimization.FIELD; `stages` defaults to those of the path."""
    return {"key": {"meaning": meaning, **properties}}


def plan_field(default: T, meaning: str, **properties: Any) -> T:
    """Return a dataclass field of `Plan` with its `key`."""
    return field(default=default, metadata=key(meaning, **properties))


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """The fields of a plan that answers state. Names are DeepSpeed's."""

    zero_stage: Literal[0, 1, 2, 3] = field(
        metadata=key(
            "what the ranks shard: 1 optimizer states, 2 also gradients, 3 also weights",
            path="zero_optimization.stage",
            stages=(0, 1, 2, 3),
        )
    )
    micro_batch_size: int = field(
        metadata=key(
            "samples per GPU and forward pass: activations and logits grow with it",
            path="train_micro_batch_size_per_gpu",
            lowest=1,
            fill="match",
            argument="per_device_train_batch_size",
        )
    )
    gradient_accumulation_steps: int = plan_field(
        1,
        "micro batches per optimizer step: they share the optimizer's time",
        path="gradient_accumulation_steps",
        lowest=1,
        fill="match",
        argument="gradient_accumulation_steps",
    )
    sequence_parallel_size: int = plan_field(
        1, "GPUs that share each sample (Ulysses sequence parallelism)", path="sequence_parallel_size", lowest=1
    )
    """P: each rank holds S / P tokens of a sample, and in attention all tokens for 1 / P of the heads. ZeRO shards over
    all ranks."""
    autotp_size: int = plan_field(
        1,
        "neighbouring GPUs that split each layer and compute the same samples (AutoTP)",
        path="tensor_parallel.autotp_size",
    )
    """ZeRO shards over the groups of these ranks."""
    autoep_size: int = plan_field(
        1, "neighbouring GPUs over which experts are spread (AutoEP)", path="expert_parallel.autoep_size"
    )
    """Each rank keeps whole experts and tokens travel to them. ZeRO shards experts over the ranks with the same ones,
    all other weights over all ranks."""
    gradient_checkpointing: bool = plan_field(True, "every layer is recomputed in the backward pass", path="")
    cpu_checkpointing: bool = plan_field(False, "checkpointing keeps the input of each layer in host RAM", path="")
    offload_optimizer: Offload = plan_field(  # noqa: RUF009  a field of a dataclass
        "none",
        "optimizer states and CPU Adam in host RAM or on NVMe: 12 to 16 bytes a parameter off the GPUs, time per step",
        path="zero_optimization.offload_optimizer.device",
    )
    """NVMe needs stage 3."""
    offload_param: Offload = plan_field(  # noqa: RUF009  a field of a dataclass
        "none",
        "weights in host RAM or on NVMe: read over PCIe in every pass",
        path="zero_optimization.offload_param.device",
    )
    offload_optimizer_ratio: float = plan_field(
        1.0,
        "fraction of the states in RAM; the rest stays on the GPU",
        path="zero_optimization.offload_optimizer.ratio",
        stages=(3,),
        refused_elsewhere=True,  # runtime/zero/config.py offload_ratio_check (0.19.8)
        only_if_set=True,
    )
    """Share of stage 3's sub-groups with masters, states and step on the host; the first ones stay on the GPU."""
    bf16_master_weights_and_grads: bool = plan_field(
        False,
        "master weights and the optimizer's gradients in bf16 instead of fp32",
        path="bf16.bf16_master_weights_and_grads",
        stages=(1, 2, 3),
        only_if_set=True,
    )
    fp16_master_weights_and_grads: bool = plan_field(
        False,
        "master weights and the optimizer's gradients in fp16 instead of fp32, in host RAM",
        path="fp16.fp16_master_weights_and_grads",
        stages=(1, 2, 3),
        only_if_set=True,
    )
    bf16_optimizer_states: bool = plan_field(
        False,
        "optimizer states in bf16; without it bf16 master weights need an optimizer in host RAM",
        path="bf16.bf16_optimizer_states",
        stages=(1, 2, 3),
        only_if_set=True,
    )
    zero_hpz_partition_size: int = plan_field(
        1, "a second copy of the weights within each node: less traffic between nodes", stages=(3,), only_if_set=True
    )
    """h of hpZ (ZeRO++): that many neighbouring ranks keep the copy together from the forward pass to the step, and
    later gathers read it. 1: no copy."""
    zero_quantized_weights: bool = plan_field(False, "weights gathered in 8 bits", stages=(3,), only_if_set=True)
    """qwZ of ZeRO++; the layers compute with the dequantized weights."""
    zero_quantized_gradients: bool = plan_field(False, "gradients reduced in 4 bits", stages=(3,), only_if_set=True)
    """qgZ of ZeRO++: within a node and then between nodes; acts on several nodes only."""


@dataclass(frozen=True, kw_only=True)
class Plan(PlanSettings):
    """A point of the search space. Names and units are DeepSpeed's; bucket sizes count elements, not bytes."""

    sharding: Sharding = plan_field(  # noqa: RUF009  a field of a dataclass
        "zero", "training backend: DeepSpeed's engine, plain PyTorch with FSDP, or plain PyTorch", path=""
    )
    """"fsdp" is FSDP 1 in the training precision, "fsdp2" is `fully_shard` with fp32 masters, as accelerate starts it.
    With both, each layer is one fully sharded unit (`zero_stage` is 3). "none" is torch's optimizer alone, with DDP on
    several GPUs (`zero_stage` is 0)."""
    hybrid_shard_size: int = plan_field(
        0, "neighbouring GPUs that hold one copy under FSDP's hybrid sharding; 0: all", path=""
    )
    """FSDP shards over groups of these ranks, whose gradients are then reduced between the groups."""
    pin_memory: bool = plan_field(
        True,
        "page-locked: full PCIe rate, more RAM due to rounding up",
        path="zero_optimization.offload_optimizer.pin_memory",
    )
    """The value of `offload_param.pin_memory` too."""
    optimizer_buffer_count: int = plan_field(
        4,
        "pinned buffers of one sub-group each, per rank",
        path="zero_optimization.offload_optimizer.buffer_count",
        nvme_only=True,
    )
    param_buffer_count: int = plan_field(
        5,
        "pinned buffers of buffer_size each, per rank",
        path="zero_optimization.offload_param.buffer_count",
        nvme_only=True,
    )
    param_buffer_size: int = plan_field(
        100_000_000,
        "elements of a swap buffer; the largest shard must fit",
        path="zero_optimization.offload_param.buffer_size",
        nvme_only=True,
    )
    param_max_in_cpu: int = plan_field(
        1_000_000_000,
        "elements per rank that stay in pinned RAM although parameters are on NVMe",
        path="zero_optimization.offload_param.max_in_cpu",
        nvme_only=True,
    )
    overlap_comm: bool = plan_field(True, "communication overlaps with computation; a second bucket at stages 1 and 2")
    reduce_bucket_size: int = plan_field(
        500_000_000,
        "elements reduced at a time, 2 bytes each on the GPU (4 in fp32) and as many again with overlap_comm at stages "
        "1 and 2; more means fewer, larger messages",
        lowest=1,
        fill="only",
        filled_from_hidden_size=lambda hidden: hidden * hidden,
    )
    """Stages 1 and 2 allocate one bucket of this size, two with overlap_comm."""
    contiguous_gradients: bool = plan_field(
        True, "gradients copied into one buffer: less fragmentation", only_if_set=True
    )
    communication_data_type: Literal["", "bf16", "fp16", "fp32"] = plan_field(
        "",
        "type of gradients while they are reduced",
        path="communication_data_type",
        only_if_set=True,
        unset="the type of the training: fp16, bf16 or fp32",  # runtime/engine.py communication_data_type (0.19.8)
    )
    """"" for the training precision."""
    grad_accum_dtype: Literal["", "fp32"] = plan_field(
        "",
        "type in which gradients are accumulated: fp32 takes 4 bytes for each of a rank's own",
        path="data_types.grad_accum_dtype",
        stages=(2, 3),
        only_if_set=True,
        unset="the type of the weights",  # runtime/engine.py get_data_types (0.19.8)
    )
    """"" for the training precision. At stage 1 DeepSpeed takes an optimizer that is not predicted: `stages` are those
    of the predictions."""
    sub_group_size: int = plan_field(
        1_000_000_000, "parameters updated at a time: 6 bytes each on the GPU, one buffer each on NVMe", stages=(3,)
    )
    stage3_prefetch_bucket_size: int = plan_field(
        50_000_000,
        "elements gathered ahead: hides communication, takes memory",
        fill="only",
        filled_from_hidden_size=lambda hidden: int(0.9 * hidden * hidden),
    )
    stage3_param_persistence_threshold: int = plan_field(
        100_000,
        "smaller parameters stay gathered: fewer small messages",
        fill="only",
        filled_from_hidden_size=lambda hidden: 10 * hidden,
    )
    stage3_max_live_parameters: int = plan_field(
        1_000_000_000, "maximum number of gathered elements: memory against repeated gathering"
    )
    stage3_max_reuse_distance: int = plan_field(
        1_000_000_000, "parameters used again within this many elements stay gathered"
    )

    def replace_fields(self, **changes: Any) -> Plan:
        """Return the plan with other values of some fields. Searches need this: it takes a fifth of the time of
        `dataclasses.replace`."""
        assert changes.keys() <= PLAN_FIELDS.keys(), changes
        # `dataclasses.replace` calls `__init__`, which assigns each field of a frozen dataclass separately.
        plan = object.__new__(Plan)
        vars(plan).update(vars(self), **changes)
        return plan

    @property
    def is_fsdp(self) -> bool:
        return self.sharding in get_args(Fsdp)

    @property
    def ranks_per_sample(self) -> int:
        """Ranks that compute the same samples together."""
        return self.sequence_parallel_size * self.autotp_size

    def samples_per_step(self, ranks: int) -> int:
        """Return the global batch size, in samples."""
        return self.micro_batch_size * self.gradient_accumulation_steps * ranks // self.ranks_per_sample

    @property
    def master_bytes(self) -> int:
        """Bytes of a master weight, and of a gradient in the optimizer's step."""
        return 2 if self.bf16_master_weights_and_grads or self.fp16_master_weights_and_grads else 4

    def accumulated_bytes(self, width: int) -> int:
        """Return the bytes of an accumulated gradient that has `width` when it is made."""
        return max(width, 4) if self.grad_accum_dtype == "fp32" and self.zero_stage >= 2 else width

    def reduced_bytes(self, precision: str) -> int:
        """Return the bytes per element to which gradients of a precision are cast for their reduction; 0 if they are
        not, as by default without sequence parallelism."""
        # stage_1_and_2.py `allreduce_bucket` takes fp32 if a sequence is split, whatever the configuration says.
        splits = self.zero_stage in (1, 2) and self.sequence_parallel_size > 1
        reduced = "fp32" if splits else self.communication_data_type
        return 0 if reduced in ("", precision) else 4 if reduced == "fp32" else 2

    @property
    def quantizes_collectives(self) -> bool:
        return self.zero_quantized_weights or self.zero_quantized_gradients

    @property
    def offloads(self) -> bool:
        return self.offload_optimizer != "none" or self.offload_param != "none"

    @property
    def swaps(self) -> bool:
        """Whether tensors are kept on NVMe."""
        return "nvme" in (self.offload_optimizer, self.offload_param)

    @property
    def strategy(self) -> Strategy | PlainPyTorch:
        if self.sharding != "zero":
            return "torch" if self.sharding == "none" else self.sharding
        if self.zero_stage < 2:
            return "zero1" if self.zero_stage else "ddp"
        if self.zero_stage == 2:
            return "zero2" if self.offload_optimizer == "none" else "zero2-offload"
        if self.swaps:
            return "zero3-nvme"
        if self.offload_optimizer == "cpu":
            return "zero3-offload"
        return "zero3" if self.offload_param == "none" else "zero3-offload-param"


def key_stages(path: str, *, nvme_only: bool = False) -> tuple[int, ...]:
    """Return the stages at which DeepSpeed uses a key, derived from its path (0.19.8 runtime/zero/config.py). Stages 1
    and 2 offload to RAM, whatever the device is."""
    if nvme_only or f"{path}.".startswith(("zero_optimization.stage3_", "zero_optimization.offload_param.")):
        return (3,)
    return (1, 2, 3) if path.startswith("zero_optimization.") else (0, 1, 2, 3)


def _keys_of_plan() -> dict[str, ConfigKey]:
    keys = {}
    for each in fields(Plan):
        properties = {
            "path": f"zero_optimization.{each.name}",
            "field": each.name,
            "default": None if each.default is MISSING else each.default,
            **each.metadata["key"],
        }
        stages = key_stages(properties["path"], nvme_only=properties.get("nvme_only", False))
        keys[each.name] = ConfigKey(**{"stages": stages, **properties})
    return keys


PLAN_FIELDS: Mapping[str, ConfigKey] = _keys_of_plan()
"""Field of `Plan` -> its key."""
