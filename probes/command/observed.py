"""What a dry run of a command saw of the script's training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...estimators.models.model_shape import ModelShape
from ..recording.result import DryRunResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedEngine:
    """One DeepSpeed engine of the script."""

    model: str
    """Name of the module's class."""
    parameters: int
    trainable_parameters: int
    trainable_dtypes: dict[str, int]
    """Trainable parameters by dtype, before DeepSpeed cast them."""
    optimizer: str
    """Class of the optimizer that updates the weights; "" for an engine that only evaluates."""
    implementation: str
    """How it steps: "fused", "foreach", or "" where the class has one way only."""
    zero_stage: int
    micro_batch_size: int
    gradient_accumulation_steps: int
    recorded_micro_batches: int
    """Micro batches of the recorded step: fewer if the data end before the accumulation does."""
    data_parallel_size: int
    checkpointing: bool
    """Whether a module of the model has gradient checkpointing enabled."""
    config: dict[str, Any]
    """DeepSpeed's configuration, with `auto` filled, and the size of the engine's sequence-parallel groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InventedNumber:
    """A number that the script read although it depends on weights."""

    file: str
    line: int
    number: float
    decides: bool
    """Whether a condition read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Facts about the training."""

    engines: tuple[ObservedEngine, ...]
    ended: str
    """How the run ended: "repeated", "script" (it ended by itself), or "steps" (the maximum number of steps)."""
    steps: int
    batch_shapes: dict[str, tuple[int, ...]]
    """Shapes of the tensors of the last batch of training, by name."""
    batch_lengths: tuple[int, ...]
    """Lengths of the batches of training that were drawn: the last dimension of the largest tensor. Batches without a
    tensor of two dimensions have none."""
    searched_batches: int
    """Number of batches among which the longest was found; 0 without a search."""
    rows: dict[str, int]
    """Rows of the data sets that were cut, before the cut."""
    rows_read: int
    """Rows of each data set that were read at most; 0 for all."""
    logits_bytes: int
    """Bytes of tensors as wide as the vocabulary at the peak with the most of them."""
    recomputes: bool
    """Whether layers were recomputed in the backward pass (gradient checkpointing)."""
    in_training_mode: bool
    """Whether the model was in training mode; layers of transformers are recomputed in that mode only."""
    attention: tuple[str, ...]
    """Fused attention kernels that ran: "flash", "efficient"; none if all scores were in memory."""
    evaluation_cut: bool
    invented: tuple[InventedNumber, ...]
    unknown_masks: int
    remarks: tuple[str, ...] = ()
    late_error: str = ""
    """Type and message of the exception that the script raised after the observed steps; "" for none. It may be because
    tensors of the simulation have no values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedTraining:
    """What the trained engine trains, as far as a question about it needs it."""

    model: dict[str, Any]
    """Its transformers configuration, with the class of the module in `architectures`; {} for another module."""
    name: str
    """Name or folder of its weights, else its class."""
    recorded: ModelShape | None
    """The shape of a module that no row of `FAMILIES` describes, recorded from the module itself."""
    not_recorded: str
    """Why such a module has no shape."""
    method: str
    """"full", "lora" or "qlora"; "" for other adapters."""
    quantization: str
    lora_rank: int
    lora_targets: tuple[str, ...]
    """Last names of the modules with adapters."""
    modules_to_save: tuple[str, ...]
    lora_dropout: float
    dora: bool
    frozen: tuple[str, ...]
    """Names of the parameters that are not trained, without the numbers of layers; () under adapters."""
    seq_len: int
    """Tokens of the longest sample; 0 for a model without tokens."""
    rows: int
    """Rows of the tensors that went into the model: the micro batch times the sequences of a sample; 0 if unknown."""
    framework: str
    """"hf" (Trainer or accelerate), "trl" or "deepspeed"."""
    trainer: str
    """Class of the trainer, as far up as a library defines it; "" without one."""
    uses_liger: bool
    attention: str
    """transformers' name of the attention; "" for other modules."""
    has_padding_mask: bool
    """Whether samples are padded, so that attention gets a mask."""
    varying_lengths: bool
    """Whether they are padded to the longest of their batch only."""
    reentrant: bool
    """Whether checkpointing is reentrant."""
    versions: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedOption:
    """An option of the script's own command line."""

    flags: tuple[str, ...]
    value: Any
    is_switch: bool
    """Whether the option takes no value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedArguments:
    """How the script got its settings."""

    options: tuple[ObservedOption, ...]
    """The options of its parsers with a number, a text, a switch or no value."""
    fields: dict[str, Any]
    """The same of the dataclasses that it fills from a file's keys."""
    trainer: dict[str, Any]
    """The same of its TrainingArguments; {} without."""
    trainer_class: str
    calls: dict[str, str]
    """FILE:LINE of calls in the user's files: "TrainingArguments", "DataLoader", "DeepSpeedPlugin", "initialize",
    "checkpointing" for what enables it, and "model" for what makes transformers' model of the engine."""
    ds_config: str
    """The file with DeepSpeed's configuration; "" for one that the code or a launcher makes."""

    @property
    def takes_local_rank(self) -> bool:
        """Whether a script of its own loop takes `--local_rank`, which only the deepspeed launcher passes."""
        return not self.trainer and any("--local_rank" in option.flags for option in self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """Memory and schedule of one rank, and what was observed."""

    result: DryRunResult
    observed: Observed
    training: ObservedTraining
    arguments: ObservedArguments
