"""What a user says of a training, and the one way from there to a `Workload`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple, get_args

from ...ds_configs.read import optimizer_in, precision_in
from ...estimators.errors import WorkloadError
from ...estimators.hardware.cluster import Gpu
from ...estimators.models.model_shape import ModelShape
from ...estimators.optimizers import OPTIMIZERS
from ...estimators.workload import (
    DEFAULT_SEQ_LEN,
    AttentionKernel,
    Framework,
    LayerKernels,
    LossKernel,
    Method,
    Mlp,
    OptimizerStep,
    Precision,
    Quantization,
    Software,
    Workload,
)

LARGEST_COUNT = 10**9
"""Counts beyond this are typing errors."""


class WorkloadOptions(NamedTuple):
    """The options that say what is trained, before the model and the GPU are known."""

    method: Method = "full"
    quantization: Quantization = "nf4"
    lora_rank: int = 8
    lora_dropout: float = 0.0
    lora_targets: str | Sequence[str] | None = None
    """Ends of module names, as a list or separated by commas; None adapts all linear layers."""
    modules_to_save: str | Sequence[str] | None = None
    """Ends of names of embeddings and heads that train whole beside adapters; None for none of them."""
    seq_len: int | None = None
    """None: 2048, or the model's learned positions where they are fewer."""
    global_batch: int | None = None
    precision: str = "auto"
    """"auto" is bf16 where the GPU has it, else fp16."""
    optimizer: str = "adamw"
    attention: AttentionKernel = "sdpa"
    loss: LossKernel = "standard"
    mlp: Mlp = "whole"
    kernels: LayerKernels = "torch"
    document_len: int | None = None
    """The mean length of the documents that a packed sample holds; None: a sample is one document."""
    software: str | Mapping[str, Any] | None = None
    """What differs from the software that is planned for: `transformers=4.45,reentrant`, or the same as a mapping."""
    framework: Framework = "hf"

    def workload(self, model: ModelShape | None, gpu: Gpu | None) -> Workload:
        """The workload of a model on a GPU.

        model: None for a module of the user's own. gpu: None for one that is not known, which is taken to have bf16.

        Raises WorkloadError for what is unknown, impossible or contradictory.
        """
        return Workload(
            method=self.method,
            quantization=self.quantization,
            lora_rank=positive("lora_rank", self.lora_rank),
            lora_dropout=self._dropout(),
            lora_targets=_listed("--lora-targets", "leave it out for all linear layers", self.lora_targets),
            modules_to_save=self._saved(),
            seq_len=sequence_length(model, self.seq_len),
            precision=resolve_precision(self.precision, gpu),
            optimizer=_optimizer(self.optimizer),
            attention=self.attention,
            loss=self.loss,
            mlp=self.mlp,
            kernels=self.kernels,
            document_len=self._document_len(model),
            software=software_of(self.software),
            framework=self.framework,
            global_batch_size=None if self.global_batch is None else positive("global_batch", self.global_batch),
        )

    def workload_of(self, config: Mapping[str, Any], model: ModelShape | None, gpu: Gpu | None) -> Workload:
        """The workload that a ds_config is run with: its precision and optimizer, where it says them.

        The optimizer is as it stands in the file: closed forms do not know every class of torch.optim.
        """
        precision = precision_in(config)
        workload = self._replace(precision=self.precision if precision == "auto" else "fp32").workload(model, gpu)
        return replace(
            workload,
            precision=workload.precision if precision == "auto" else precision,
            optimizer=optimizer_in(config) or workload.optimizer,
        )

    def _document_len(self, model: ModelShape | None) -> int | None:
        if self.document_len is None:
            return None
        longest = sequence_length(model, self.seq_len)
        if positive("document_len", self.document_len) > longest:
            raise WorkloadError(
                f"documents of {self.document_len} tokens do not fit into samples of {longest}",
                why="--document-len is the mean length of the documents that are packed into a sample",
                fix="pass a longer --seq-len, or leave --document-len out",
            )
        return None if self.document_len == longest else self.document_len

    def _dropout(self) -> float:
        if not 0 <= self.lora_dropout < 1:
            raise WorkloadError(
                f"lora_dropout is {self.lora_dropout}",
                why="it must be from 0 to below 1",
                fix="pass one such as --lora-dropout 0.05",
            )
        return 0.0 if self.method == "full" else self.lora_dropout

    def _saved(self) -> tuple[str, ...]:
        return () if self.method == "full" else _listed("--modules-to-save", "leave it out", self.modules_to_save) or ()


def _listed(option: str, fix: str, given: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """Names in a list or separated by commas, None for none. Raises WorkloadError for a text without any."""
    if given is None:
        return None
    listed = given.split(",") if isinstance(given, str) else given
    names = tuple(name.strip() for name in listed if name.strip())
    if not names and isinstance(given, str):
        raise WorkloadError(f"{option} names no module", fix=fix)
    return names or None


def sequence_length(model: ModelShape | None, wanted: int | None) -> int:
    """The sequence length that is asked for, or the model's default one.

    Raises WorkloadError for a length that the model cannot have.
    """
    if model is not None and model.fixed_len is not None:
        if wanted not in (None, model.fixed_len):
            raise WorkloadError(
                f"every sample of {model.name} has {model.fixed_len} tokens",
                why="its images have one size",
                fix="leave --seq-len out",
            )
        return model.fixed_len
    longest = model.max_positions if model is not None and model.has_learned_positions else None
    if wanted is None:
        return min(DEFAULT_SEQ_LEN, longest) if longest else DEFAULT_SEQ_LEN
    if model is not None and longest is not None and wanted > longest:
        raise WorkloadError(
            f"{model.name} has {longest} learned positions, fewer than a sequence of {wanted}",
            why="the position embedding has no row for the tokens beyond",
            fix=f"pass --seq-len {longest} or less",
        )
    return positive("seq_len", wanted)


def resolve_precision(wanted: str, gpu: Gpu | None) -> Precision:
    """The precision that is asked for, with `auto` resolved. Raises WorkloadError for one that the GPU lacks."""
    if wanted == "auto":
        return "bf16" if gpu is None or gpu.has_bf16 else "fp16"
    if wanted == "bf16" and gpu is not None and not gpu.has_bf16:
        raise WorkloadError(
            f"the {gpu.name} has no bf16 units",
            why="bf16 is emulated there, several times slower than fp16",
            fix="pass --precision fp16 (or auto)",
        )
    if wanted not in ("bf16", "fp16", "fp32"):
        raise WorkloadError(f"unknown precision {wanted!r}", fix="pass auto, bf16, fp16 or fp32")
    return wanted  # type: ignore[return-value]  # narrowed by the line above


def positive(name: str, value: int) -> int:
    """The value of an option that counts something. Raises WorkloadError outside 1 to `LARGEST_COUNT`."""
    if not 0 < value <= LARGEST_COUNT:
        raise WorkloadError(
            f"{name} is {value}",
            why=f"it must be between 1 and {LARGEST_COUNT}",
            fix=f"pass a sensible --{name.replace('_', '-')}",
        )
    return value


def _optimizer(name: str) -> str:
    known = {_letters(key): key for key in OPTIMIZERS}
    key = known.get(_letters(name))
    if key is None:
        raise WorkloadError(
            f"unknown optimizer {name!r}",
            why="its state bytes per parameter decide the memory",
            fix=f"pass one of {', '.join(sorted(OPTIMIZERS))}",
        )
    return key


def _letters(name: str) -> str:
    """`AdamW_8bit`, `adamw-8bit` and `adamw8bit` are one name."""
    return name.lower().replace("-", "").replace("_", "")


_WORDS = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}
_VERSION = re.compile(r"(\d{1,3})(\.(\d{1,3})(\..*)?)?")


def software_of(said: str | Mapping[str, Any] | None) -> Software:
    """The software that is described by names and values, in text separated by commas; a name alone means yes.

    Raises WorkloadError for a name or a value that does not exist.
    """
    if said is None:
        return Software()
    pairs = said if isinstance(said, Mapping) else named_values(said)
    return Software(**{_name(name): _value(_name(name), value) for name, value in pairs.items()})


def _name(name: str) -> str:
    key, known = str(name).replace("-", "_").lower(), [field.name for field in fields(Software)]
    if key not in known:
        listed = ", ".join(field.replace("_", "-") for field in known)
        raise WorkloadError(f"--software has nothing called {name[:40]!r}", fix=f"name one of {listed}")
    return key


def _value(name: str, value: Any) -> Any:
    if name in ("transformers", "deepspeed", "torch"):
        return _version(name, value)
    if name == "optimizer_step":
        if value not in get_args(OptimizerStep):
            listed = ", ".join(get_args(OptimizerStep))
            raise WorkloadError(f"unknown optimizer-step {str(value)[:40]!r}", fix=f"pass one of {listed}")
        return value
    return yes_or_no(f"--software {name.replace('_', '-')}", value)


def _version(name: str, value: Any) -> tuple[int, int]:
    found = _VERSION.fullmatch(".".join(map(str, value)) if isinstance(value, tuple | list) else str(value))
    if found is None:
        raise WorkloadError(
            f"{str(value)[:40]!r} is no version of {name}", fix=f"pass one such as --software {name}=4.45"
        )
    return int(found[1]), int(found[3] or 0)


def named_values(text: str) -> dict[str, str]:
    """The values by their names; a name alone means yes."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    return {name.strip(): value.strip() or "yes" for name, _, value in (word.partition("=") for word in words)}


def yes_or_no(name: str, value: object) -> bool:
    """The truth that a value says, as a word or as it is.

    Raises WorkloadError for another value.
    """
    found = value if isinstance(value, bool) else _WORDS.get(str(value).lower())
    if found is None:
        raise WorkloadError(f"{name} is {str(value)[:40]!r}", fix="say yes or no")
    return found
