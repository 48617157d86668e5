"""From the engine that a script trains to what a question asks: its model, its adapters, its frozen parts, its
length."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten

from ...estimators.models.families import FAMILIES
from ...estimators.models.model_shape import ModelShape, UserModule
from ...estimators.models.vision_parts import without_layers
from ...estimators.objectives import OBJECTIVES
from ..installed_packages import installed_version
from ..model_recorder.module import copy_without_data, recorded_module, resized
from ..recording.engine_phases import Call, EngineObserver
from .observe import batch_length, ranks_per_sample
from .observed import ObservedTraining

_LIBRARIES = ("transformers", "deepspeed", "trl", "peft", "accelerate")
_LOSSES = {each.trainer for each in OBJECTIVES.values() if each.trainer}


class TrainedModules:
    """Copies of the modules that no configuration describes, made before an engine changes them."""

    def __init__(self) -> None:
        self._copies: dict[int, Any] = {}
        self.trainer: Any = None
        """The last Trainer that trained."""

    def keep(self, number: int, module: Any) -> None:
        """Keep a copy of the module of engine `number`, unless a row of `FAMILIES` describes it."""
        if module is None or _configuration(module).get("model_type") in FAMILIES:
            return
        try:
            with _disable_current_modes():
                self._copies[number] = copy_without_data(module)
        except Exception as error:  # the module may hold anything
            self._copies[number] = error

    def install(self) -> None:
        """Follow the Trainers that train."""
        transformers: Any = importlib.import_module("transformers")
        train = transformers.Trainer.train

        def followed(own: Any, *arguments: Any, **options: Any) -> Any:
            self.trainer = own
            return train(own, *arguments, **options)

        transformers.Trainer.train = followed

    def shape(self, number: int, call: Call | None) -> tuple[ModelShape | None, str]:
        """(shape of a kept module, or the reason that there is none)."""
        kept = self._copies.get(number)
        if kept is None or isinstance(kept, Exception):
            return None, "" if kept is None else f"it cannot be copied: {kept}"
        if call is None:
            return None, "its forward pass was not seen"
        try:
            with _disable_current_modes():
                return _recorded(kept, call), ""
        except Exception as error:  # a module's code raises anything
            return None, f"{type(error).__name__}: {error}"[:300]


def observe_training(
    observer: EngineObserver, modules: TrainedModules, shapes: Sequence[Mapping[str, tuple[int, ...]]], attention: Any
) -> ObservedTraining:
    """shapes: those of the batches, by name. attention: the fused kernels that ran."""
    number = observer.trained_engine
    engine, module = observer.engines[number], observer.models[number][0]
    call = observer.calls.get(id(engine))
    config, base = _configuration(module), _base(module)
    adapters = _adapters(module)
    recorded, why = modules.shape(number, call)
    trainer = modules.trainer
    length, rows, micro = (
        _length(call, shapes, ranks_per_sample(engine)),
        0 if call is None else call.rows,
        int(engine.train_micro_batch_size_per_gpu()),
    )
    if 0 < rows < micro:  # the samples are joined to fewer rows, without padding
        length, rows = length * rows // micro, micro
    padded, to_longest = (False, False) if call is None else _padding(call, shapes, attention)
    return ObservedTraining(
        model=config,
        name=str(config.get("_name_or_path") or type(base).__name__),
        recorded=recorded,
        not_recorded=why,
        frozen=() if adapters else _frozen(base),
        seq_len=length,
        rows=rows,
        framework=_framework(trainer),
        trainer=_trainer_class(trainer),
        uses_liger=bool(getattr(getattr(trainer, "args", None), "use_liger_kernel", False)),
        attention=str(getattr(getattr(base, "config", None), "_attn_implementation", "") or ""),
        has_padding_mask=padded,
        varying_lengths=to_longest,
        reentrant=_is_reentrant(module),
        versions={name: installed_version(name) or "" for name in _LIBRARIES if name in sys.modules},
        **(adapters or _WITHOUT),
    )


_WITHOUT: dict[str, Any] = {
    "method": "full",
    "quantization": "",
    "lora_rank": 0,
    "lora_targets": (),
    "modules_to_save": (),
    "lora_dropout": 0.0,
    "dora": False,
}


def _base(module: Any) -> Any:
    return module.get_base_model() if hasattr(module, "get_base_model") else module


def _configuration(module: Any) -> dict[str, Any]:
    """The configuration of a transformers model, with its class; {} for other modules."""
    base = _base(module)
    models: Any = sys.modules.get("transformers.modeling_utils")
    if models is None or not isinstance(base, models.PreTrainedModel):
        return {}
    values: dict[str, Any] = base.config.to_dict()
    name = getattr(base.config, "_name_or_path", "")
    return _plain({**values, "architectures": [type(base).__name__], "_name_or_path": name})  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    """A JSON value; what has no form in JSON is its text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, str | int | float):
        return value
    return str(value).removeprefix("torch.")


def _adapters(module: Any) -> dict[str, Any] | None:
    """LoRA's settings as the module has them; None without adapters."""
    configs = getattr(module, "peft_config", None)
    if not configs:
        return None
    active = getattr(module, "active_adapter", "default")
    config = configs.get(active if isinstance(active, str) else "default") or next(iter(configs.values()))
    kind = getattr(config.peft_type, "value", config.peft_type)
    base = _base(module)
    names = {path.rpartition(".")[2] for path, each in base.named_modules() if _has_adapter(each)}
    quantization = _quantization(base)
    return {
        "method": "" if kind != "LORA" else "qlora" if quantization else "lora",
        "quantization": quantization,
        "lora_rank": int(getattr(config, "r", 0) or 0),
        "lora_targets": tuple(sorted(names)),
        "modules_to_save": tuple(getattr(config, "modules_to_save", None) or ()),
        "lora_dropout": float(getattr(config, "lora_dropout", 0.0) or 0.0),
        "dora": bool(getattr(config, "use_dora", False)),
    }


def _has_adapter(module: Any) -> bool:
    return bool(getattr(module, "lora_A", None)) or bool(getattr(module, "lora_embedding_A", None))


def _quantization(base: Any) -> str:
    config = getattr(getattr(base, "config", None), "quantization_config", None)
    if config is None:
        return ""
    values: Any = config if isinstance(config, Mapping) else config.to_dict()
    method = getattr(values.get("quant_method"), "value", values.get("quant_method"))
    if method == "gptq":
        return "gptq"
    return "nf4" if values.get("load_in_4bit") or values.get("_load_in_4bit") else "int8"


def _frozen(base: Any) -> tuple[str, ...]:
    """Names of the parameters without gradients, without the numbers of layers; () if all are trained."""
    names = {without_layers(name) for name, each in base.named_parameters() if not each.requires_grad}
    return tuple(sorted(names))


def _length(call: Call | None, shapes: Sequence[Mapping[str, tuple[int, ...]]], shared_by: int) -> int:
    """Tokens of the longest sample whose part went into the model, else into a batch."""
    if call is not None and call.length:
        return call.length * shared_by
    return max((shape[1] for each in shapes for name, shape in each.items() if "input_ids" in name), default=0)


def _padding(call: Call, shapes: Sequence[Mapping[str, tuple[int, ...]]], attention: Any) -> tuple[bool, bool]:
    """(whether samples are padded, whether only to the longest of their batch)."""
    lengths = set(map(batch_length, shapes))
    varies = len(lengths) > 1
    if call.options.get("attention_mask") is None:
        return False, varies
    padded = "efficient" in attention if call.padded is None else call.padded
    if call.rows == 1:  # padding of one row is none that other rows need
        return padded or varies, varies and not padded
    # Collators round lengths up to multiples of 8 for tensor cores: then a single row is padded, too.
    return padded, varies and any(length % 8 for length in lengths)


def _framework(trainer: Any) -> str:
    if trainer is not None:
        return "trl" if any(each.__module__.startswith("trl.") for each in type(trainer).__mro__) else "hf"
    state: Any = sys.modules.get("accelerate.state")
    return "hf" if state is not None and state.AcceleratorState._shared_state else "deepspeed"


def _trainer_class(trainer: Any) -> str:
    """The trainer's class, or that of TRL or transformers from which it is derived."""
    names = [each.__name__ for each in type(trainer).__mro__] if trainer is not None else []
    libraries = ("trl.", "transformers.")
    known = [each.__name__ for each in type(trainer).__mro__ if each.__module__.startswith(libraries)]
    return next((name for name in names if name in _LOSSES), (known or names or [""])[0])


def _recorded(module: Any, call: Call) -> ModelShape:
    """The shape of a module, from the tensors with which the script called it."""

    def make_batch(batch: int, seq_len: int) -> Any:
        sizes = {0: (call.rows, batch)} | ({1: (call.length, seq_len)} if call.length else {})
        arguments, options = resized((call.arguments, call.options), sizes)
        return {**dict(zip(inspect.signature(module.forward).parameters, arguments, strict=False)), **options}

    return recorded_module(module, make_batch, _loss(call), UserModule(""), call.length or 1)


def _loss(call: Call) -> Callable[[Any, Any], Any]:
    """The loss among the module's outputs, as the script used it; else the mean of the first one."""

    def loss(output: Any, _batch: Any) -> Any:
        if getattr(output, "loss", None) is not None:
            return output.loss
        tensors = [each for each in tree_flatten(output)[0] if isinstance(each, torch.Tensor)]
        scalars = [each for each in tensors if each.dim() == 0]
        with suppress(IndexError, TypeError):
            return tensors[call.loss]  # type: ignore[index]
        return scalars[0] if len(scalars) == 1 else tensors[0].float().mean()

    return loss


def _is_reentrant(model: torch.nn.Module) -> bool:
    for module in model.modules():
        function = getattr(module, "_gradient_checkpointing_func", None)
        if function is not None:
            return bool(getattr(function, "keywords", {}).get("use_reentrant", True))
    return False
