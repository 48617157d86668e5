"""One DeepSpeed configuration, or a plan of plain PyTorch, as far as memory and speed depend on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Literal, get_args

Offload = Literal["none", "cpu", "nvme"]
Sharding = Literal["zero", "fsdp", "none"]
Rung = Literal["ddp", "zero1", "zero2", "zero2-offload", "zero3", "zero3-offload-param", "zero3-offload", "zero3-nvme"]

PlainPyTorch = Literal["fsdp", "torch"]
"""Plans without DeepSpeed."""

RUNGS: tuple[Rung, ...] = get_args(Rung)
"""Kinds of plan, ordered as the search tries them: from the fastest to the one that needs the least GPU memory."""

ALL_STAGES = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """A key of a DeepSpeed configuration. Reading, writing, comparing and checking configurations derive from it."""

    path: str
    """Names from the top level, joined by dots; "" for a setting of the training script."""
    meaning: str
    """What the key decides, as a phrase; "" where nothing explains the key."""
    default: Any = None
    """The value without the key; None where no plan and no constant of DeepSpeed states one."""
    stages: tuple[int, ...] = ALL_STAGES
    """ZeRO stages at which DeepSpeed reads the key."""
    unit: str = ""
    lowest: int = 0
    """The least value that DeepSpeed takes, for numbers."""
    field: str = ""
    """The field of `Plan`; "" for a key that no plan holds."""
    in_answers: bool = False
    """The JSON of a plan has the field."""
    only_if_set: bool = False
    """A configuration is written without the key where it has its default."""
    filled: bool = False
    """The Trainer replaces `auto` (transformers, `trainer_config_process` and `trainer_config_finalize`)."""
    filled_from_hidden_size: Callable[[int], int] | None = None
    """The Trainer's value for `auto`, where it is a function of the model's hidden size."""
    argument: str = ""
    """The field of TrainingArguments that the value must equal."""


def key(path: str = "", **properties: Any) -> dict[str, ConfigKey]:
    """Metadata of a field of `Plan`: the DeepSpeed key that it stands for."""
    return {"key": ConfigKey(path=path, **properties)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A point of the search space. Names and units are DeepSpeed's; bucket sizes count elements, not bytes."""

    zero_stage: Literal[0, 1, 2, 3] = field(
        metadata=key(
            "zero_optimization.stage",
            meaning="what the ranks share: 1 optimizer states, 2 gradients too, 3 weights too",
            in_answers=True,
        )
    )
    sharding: Sharding = field(
        default="zero",
        metadata=key(meaning="training backend: DeepSpeed's engine, plain PyTorch with FSDP, or plain PyTorch"),
    )
    """With "fsdp" each layer is one fully sharded unit (`zero_stage` is 3); "none" is torch's optimizer alone, with
    DDP on several GPUs (`zero_stage` is 0)."""
    micro_batch_size: int = field(
        metadata=key(
            "train_micro_batch_size_per_gpu",
            meaning="samples per GPU and forward pass: activations and logits grow with it",
            lowest=1,
            unit="samples",
            in_answers=True,
            filled=True,
            argument="per_device_train_batch_size",
        )
    )
    gradient_accumulation_steps: int = field(
        default=1,
        metadata=key(
            "gradient_accumulation_steps",
            meaning="passes per optimizer step: the optimizer's time is shared among them",
            lowest=1,
            unit="passes",
            in_answers=True,
            filled=True,
            argument="gradient_accumulation_steps",
        ),
    )
    sequence_parallel_size: int = field(
        default=1,
        metadata=key(
            "sequence_parallel_size",
            meaning="GPUs that share each sample (Ulysses sequence parallelism)",
            lowest=1,
            unit="ranks",
            in_answers=True,
        ),
    )
    """P: each rank holds S / P tokens of a sample, and in attention all tokens for 1 / P of the heads. ZeRO shards over
    all ranks."""
    autotp_size: int = field(
        default=1,
        metadata=key(
            "tensor_parallel.autotp_size",
            meaning="neighbouring GPUs that split each layer and compute the same samples (AutoTP)",
            unit="ranks",
            in_answers=True,
        ),
    )
    """ZeRO shards over the groups of these ranks."""
    autoep_size: int = field(
        default=1,
        metadata=key(
            "expert_parallel.autoep_size",
            meaning="neighbouring GPUs that experts are spread over (AutoEP)",
            unit="ranks",
            in_answers=True,
        ),
    )
    """Each rank keeps whole experts and tokens travel to them. ZeRO shards experts over the ranks with the same ones,
    all other weights over all ranks."""
    gradient_checkpointing: bool = field(
        default=True, metadata=key(meaning="every layer is recomputed in the backward pass", in_answers=True)
    )
    cpu_checkpointing: bool = field(
        default=False,
        metadata=key(meaning="what checkpointing keeps of each layer, its input, is in host RAM", in_answers=True),
    )
    offload_optimizer: Offload = field(
        default="none",
        metadata=key(
            "zero_optimization.offload_optimizer.device",
            meaning="optimizer states and CPU Adam in host RAM or on NVMe: 12 to 16 bytes a parameter off the GPUs, "
            "time per step",
            stages=(1, 2, 3),
            in_answers=True,
        ),
    )
    """NVMe needs stage 3."""
    offload_param: Offload = field(
        default="none",
        metadata=key(
            "zero_optimization.offload_param.device",
            meaning="weights in host RAM or on NVMe: read over PCIe in every pass",
            stages=(3,),
            in_answers=True,
        ),
    )
    pin_memory: bool = field(
        default=True,
        metadata=key(
            "zero_optimization.offload_optimizer.pin_memory",
            meaning="page-locked: PCIe at its full rate, more RAM by rounding up",
            stages=(1, 2, 3),
        ),
    )
    """Also the value of `offload_param.pin_memory`."""
    optimizer_buffer_count: int = field(
        default=4,
        metadata=key(
            "zero_optimization.offload_optimizer.buffer_count",
            meaning="pinned buffers of one sub-group each, per rank",
            stages=(1, 2, 3),
            unit="buffers",
        ),
    )
    param_buffer_count: int = field(
        default=5,
        metadata=key(
            "zero_optimization.offload_param.buffer_count",
            meaning="pinned buffers of buffer_size each, per rank",
            stages=(3,),
            unit="buffers",
        ),
    )
    param_buffer_size: int = field(
        default=100_000_000,
        metadata=key(
            "zero_optimization.offload_param.buffer_size",
            meaning="elements of a swap buffer; the largest shard must fit",
            stages=(3,),
            unit="elements",
        ),
    )
    param_max_in_cpu: int = field(
        default=1_000_000_000,
        metadata=key(
            "zero_optimization.offload_param.max_in_cpu",
            meaning="elements per rank that stay in pinned RAM although parameters are on NVMe",
            stages=(3,),
            unit="elements",
        ),
    )
    offload_optimizer_ratio: float = field(
        default=1.0,
        metadata=key(
            "zero_optimization.offload_optimizer.ratio",
            meaning="share of the states that is in RAM; the rest stays on the GPU",
            stages=(1, 2, 3),
            in_answers=True,
        ),
    )
    """Share of stage 3's sub-groups whose masters, states and step are on the host; the first ones stay on the GPU."""
    bf16_master_weights_and_grads: bool = field(
        default=False,
        metadata=key(
            "bf16.bf16_master_weights_and_grads",
            meaning="master weights, and gradients as the optimizer takes them, in bf16 instead of fp32",
            stages=(1, 2, 3),
            in_answers=True,
            only_if_set=True,
        ),
    )
    bf16_optimizer_states: bool = field(
        default=False,
        metadata=key(
            "bf16.bf16_optimizer_states",
            meaning="optimizer states in bf16; without it bf16 master weights need an optimizer in host RAM",
            stages=(1, 2, 3),
            in_answers=True,
            only_if_set=True,
        ),
    )
    overlap_comm: bool = field(
        default=True,
        metadata=key(
            "zero_optimization.overlap_comm",
            meaning="communication beside computation; a second bucket at stages 1 and 2",
            stages=(1, 2, 3),
        ),
    )
    reduce_bucket_size: int = field(
        default=500_000_000,
        metadata=key(
            "zero_optimization.reduce_bucket_size",
            meaning="elements reduced at a time: 2 bytes each on the GPU, fewer and larger messages",
            stages=(1, 2, 3),
            unit="elements",
            lowest=1,
            filled=True,
            filled_from_hidden_size=lambda hidden: hidden * hidden,
        ),
    )
    """Stages 1 and 2 hold one such bucket, two with overlap_comm."""
    allgather_bucket_size: int = field(
        default=500_000_000,
        metadata=key(
            "zero_optimization.allgather_bucket_size",
            meaning="elements gathered at a time; current torch gathers all in place",
            stages=(),  # runtime/utils.py all_gather_dp_groups gathers in place (0.19.8)
            unit="elements",
        ),
    )
    sub_group_size: int = field(
        default=1_000_000_000,
        metadata=key(
            "zero_optimization.sub_group_size",
            meaning="parameters stepped at a time: 6 bytes each on the GPU, a buffer each on NVMe",
            stages=(3,),
            unit="elements",
        ),
    )
    stage3_prefetch_bucket_size: int = field(
        default=50_000_000,
        metadata=key(
            "zero_optimization.stage3_prefetch_bucket_size",
            meaning="elements gathered ahead: hides communication, takes memory",
            stages=(3,),
            unit="elements",
            filled=True,
            filled_from_hidden_size=lambda hidden: int(0.9 * hidden * hidden),
        ),
    )
    stage3_param_persistence_threshold: int = field(
        default=100_000,
        metadata=key(
            "zero_optimization.stage3_param_persistence_threshold",
            meaning="smaller parameters stay gathered: fewer tiny messages",
            stages=(3,),
            unit="elements",
            filled=True,
            filled_from_hidden_size=lambda hidden: 10 * hidden,
        ),
    )
    stage3_max_live_parameters: int = field(
        default=1_000_000_000,
        metadata=key(
            "zero_optimization.stage3_max_live_parameters",
            meaning="elements that stay gathered at most: memory against gathering again",
            stages=(3,),
            unit="elements",
        ),
    )
    stage3_max_reuse_distance: int = field(
        default=1_000_000_000,
        metadata=key(
            "zero_optimization.stage3_max_reuse_distance",
            meaning="parameters used again within this many elements stay gathered",
            stages=(3,),
            unit="elements",
        ),
    )
    zero_hpz_partition_size: int = field(
        default=1,
        metadata=key(
            "zero_optimization.zero_hpz_partition_size",
            meaning="a second copy of the weights within each node: less traffic between nodes",
            stages=(3,),
            unit="ranks",
            in_answers=True,
            only_if_set=True,
        ),
    )
    """h of hpZ (ZeRO++): that many neighbouring ranks keep the copy together from the forward pass to the step, and
    later gathers read it. 1: no copy."""
    zero_quantized_weights: bool = field(
        default=False,
        metadata=key(
            "zero_optimization.zero_quantized_weights",
            meaning="weights gathered in 8 bits",
            stages=(3,),
            in_answers=True,
            only_if_set=True,
        ),
    )
    """qwZ of ZeRO++; the layers compute with the dequantized weights."""
    zero_quantized_gradients: bool = field(
        default=False,
        metadata=key(
            "zero_optimization.zero_quantized_gradients",
            meaning="gradients reduced in 4 bits",
            stages=(3,),
            in_answers=True,
            only_if_set=True,
        ),
    )
    """qgZ of ZeRO++: within a node and then between nodes; acts on several nodes only."""

    @property
    def ranks_per_sample(self) -> int:
        """Ranks that compute the same samples together."""
        return self.sequence_parallel_size * self.autotp_size

    def samples_per_step(self, ranks: int) -> int:
        """The global batch."""
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
        """The kind of plan."""
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


def _keys_of_plan() -> dict[str, ConfigKey]:
    keys = {}
    for each in fields(Plan):
        default = None if each.default is MISSING else each.default
        keys[each.name] = replace(each.metadata["key"], field=each.name, default=default)
    return keys


PLAN_FIELDS: Mapping[str, ConfigKey] = _keys_of_plan()
"""Field of `Plan` -> its key."""


def plan_json(plan: Plan) -> dict[str, Any]:
    """The fields of a plan that answers hold."""
    return {"rung": plan.rung} | {name: getattr(plan, name) for name, known in PLAN_FIELDS.items() if known.in_answers}
