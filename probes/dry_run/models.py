"""The model and its batch: from a transformers configuration, or from the user's own file."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from packaging.version import Version

from ...estimators.workload import Workload
from ..recording.request import Request
from ..simulated_gpu.attention import FLASH

_BUILD_IT = "give FILE.py:FUNCTION with a function of yours that builds the model"


class UnusableModelError(ValueError):
    """The model cannot be built or fed as asked; `fix` says what helps."""

    def __init__(self, what: str, *, fix: str) -> None:
        super().__init__(what)
        self.fix = fix


@dataclass(frozen=True)
class TrainableModel:
    """A model, how to make a batch of so many samples for it, and how to get the loss of an output."""

    model: torch.nn.Module
    make_batch: Callable[[int], Any]
    loss: Callable[[Any, Any], Any]
    vocab_size: int
    groups: Any = None
    """DeepSpeed's `mpu`, where ranks share a sample."""


def hidden_size(model_config: Any) -> int | None:
    """H as the Trainer finds it for `auto` values, None where the configuration has none."""
    for config in (model_config, getattr(model_config, "text_config", model_config)):
        if getattr(config, "hidden_size", None) is not None:
            return int(config.hidden_size)
        if getattr(config, "hidden_sizes", None):
            return int(max(config.hidden_sizes))
    return None


def transformers_config(request: Request) -> Any:
    """The transformers configuration object of `request.model`.

    Raises UnusableModelError for a model type that the installed transformers has no class for.
    """
    from transformers import CONFIG_MAPPING

    values = {key: value for key, value in (request.model or {}).items() if key not in ("dtype", "torch_dtype")}
    kind = values.pop("model_type", "")
    if kind not in CONFIG_MAPPING:
        import transformers

        raise UnusableModelError(
            f"transformers {transformers.__version__} has no model type {kind!r}, and code that comes "
            "with a model is not run",
            fix=_BUILD_IT,
        )
    config = CONFIG_MAPPING[kind].from_dict(values)
    config.use_cache = False
    return config


def from_config(
    request: Request,
    config: Any,
    dtype: torch.dtype,
    device: str,
    *,
    checkpoint: str | None = None,
    prepare_base: Callable[[Any], None] | None = None,
) -> TrainableModel:
    """A transformers model in training mode, adapted by LoRA and checkpointed as asked, and its batches on `device`.

    checkpoint: a folder whose safetensors the weights are loaded from; None leaves them as memory comes.
    prepare_base: changes the model before it is adapted, also by quantizing it and by exchanging its loss.

    Raises UnusableModelError for a quantized base or a fused loss without `prepare_base`: fake tensors know neither
    bitsandbytes' kernels nor Liger's.
    """
    workload = request.workload
    unknown = _unknown_kernels(workload)
    if prepare_base is None and unknown:
        raise UnusableModelError(
            f"a dry run does not know {unknown}", fix="probe it on a GPU, or trust the closed form"
        )
    chosen = model_class(config)
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = config.pad_token_id or 0
    # Without a name transformers takes torch's attention where the model supports it, as it does for the user.
    named = {"eager": {"attn_implementation": "eager"}, "flash": {"attn_implementation": FLASH}, "sdpa": {}}
    options: dict[str, Any] = {_dtype_option(): dtype, **named[workload.attention]}
    if checkpoint is not None:
        options |= {"use_safetensors": True, "trust_remote_code": False, "local_files_only": True}
        model = chosen.from_pretrained(checkpoint, config=config, **options)
    else:
        with _no_init_weights():
            model = chosen._from_config(config, **options)
            model.tie_weights()
    model.train()
    _give_dimensions(model)
    if prepare_base is not None:
        prepare_base(model)
    if workload.method != "full":
        model = _with_adapters(model, request)
    if request.gradient_checkpointing:
        _checkpoint(model, offload=request.cpu_checkpointing, pins=workload.software.pinned_inputs)
        if workload.method != "full" and _is_reentrant(model):
            model.enable_input_require_grads()  # as peft's users must, or nothing below the first layer has a gradient
    vocab_size = int(getattr(config.get_text_config(), "vocab_size", 0) or 0)
    name, seq_len = chosen.main_input_name, request.workload.seq_len
    per_sample = "Classification" in chosen.__name__ and "Token" not in chosen.__name__

    def make_batch(batch: int) -> dict[str, Any]:
        shape: tuple[int, ...] = (batch, seq_len)
        if name == "pixel_values":
            side = config.image_size if isinstance(config.image_size, int) else config.image_size[0]
            shape = (batch, config.num_channels, side, side)
        elif name == "input_features":
            shape = (batch, config.num_mel_bins, 2 * config.max_source_positions)  # Whisper's convolutions halve them
        if config.model_type == "clip":
            side, words = (
                config.vision_config.image_size,
                torch.zeros((batch, seq_len), dtype=torch.long, device=device),
            )
            images = torch.zeros((batch, config.vision_config.num_channels, side, side), dtype=dtype, device=device)
            return {"input_ids": words, "pixel_values": images, "return_loss": True}
        labels = torch.zeros(batch if per_sample else (batch, seq_len), dtype=torch.long, device=device)
        values = torch.zeros(shape, dtype=torch.long if len(shape) == 2 else dtype, device=device)
        return {name: values, "labels": labels}

    return TrainableModel(model, make_batch, lambda output, _batch: output.loss, vocab_size)


def _give_dimensions(model: torch.nn.Module) -> None:
    """One to each parameter without any, such as CLIP's `logit_scale`: DeepSpeed cannot broadcast them.

    Source: deepspeed 0.19.8 runtime/engine.py `_broadcast_model` views them as bytes. `ModelShape.assumptions` says so.
    """
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.dim() == 0:
                setattr(module, name, torch.nn.Parameter(parameter.data[None], requires_grad=parameter.requires_grad))


def _checkpoint(model: Any, *, offload: bool, pins: bool) -> None:
    """Switch checkpointing on. Raises UnusableModelError where this transformers cannot offload what it keeps."""
    enable: Any = getattr(model, "activation_checkpointing_enable", None)
    if enable is None and offload:
        raise UnusableModelError(
            "this version of transformers cannot hold the inputs of checkpointed layers on the host",
            fix="install transformers 5.23",
        )
    if offload:
        if not pins:
            _leave_pageable()
        enable(offload=True)
    else:
        (enable or model.gradient_checkpointing_enable)()


def _leave_pageable() -> None:
    """What the printed lines of a script do: inputs of layers that wait on the host are not page-locked."""
    import transformers.modeling_utils

    modeling: Any = transformers.modeling_utils
    save_on_cpu: Any = torch.autograd.graph.save_on_cpu
    modeling.save_on_cpu = lambda **options: save_on_cpu(**options | {"pin_memory": False})


def _unknown_kernels(workload: Workload) -> str:
    """What fake tensors cannot run, in words; empty where they can run everything."""
    if workload.method == "qlora":
        return "the kernels of quantized weights"
    if workload.loss not in ("standard", "tiled"):
        return f"the {workload.loss} loss"
    if workload.kernels != "torch":
        return f"{workload.kernels}'s kernels"
    return "the Triton kernel of 2023" if workload.attention == "triton" else ""


def model_class(config: Any) -> Any:
    """The class that trains the model of a transformers configuration: its architecture's, or the first that suits."""
    import transformers
    from transformers.models.auto import modeling_auto

    for name in getattr(config, "architectures", None) or ():
        architecture = getattr(transformers, name, None)
        if architecture is not None and ("For" in name or "LMHead" in name or name == "CLIPModel"):
            return architecture
    for mapping in (
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING,
        modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
        modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING,
        modeling_auto.MODEL_FOR_MASKED_LM_MAPPING,
        modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
    ):
        if type(config) in mapping:
            return mapping[type(config)]
    raise UnusableModelError(
        f"transformers {transformers.__version__} has no trainable class for {config.model_type!r}", fix=_BUILD_IT
    )


def _no_init_weights() -> Any:
    try:
        module: Any = importlib.import_module("transformers.initialization")
    except ImportError:  # transformers 4
        module = importlib.import_module("transformers.modeling_utils")
    return module.no_init_weights()


def _with_adapters(model: Any, request: Request) -> Any:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise UnusableModelError(
            "LoRA needs peft, which is not installed", fix='pip install "ds-advise[lora]"'
        ) from None
    workload = request.workload
    targets: Any = list(workload.lora_targets) if workload.lora_targets else "all-linear"
    adapters = LoraConfig(
        r=workload.lora_rank,
        lora_alpha=2 * workload.lora_rank,
        target_modules=targets,
        lora_dropout=workload.lora_dropout,
        modules_to_save=list(workload.modules_to_save) or None,
    )
    # The engine casts nothing of a model that zero.Init built, and wants one type of all that trains: that of copies.
    return get_peft_model(model, adapters, autocast_adapter_dtype=not workload.modules_to_save)


def _is_reentrant(model: torch.nn.Module) -> bool:
    for module in model.modules():
        function = getattr(module, "_gradient_checkpointing_func", None)
        if function is not None:
            return bool(getattr(function, "keywords", {}).get("use_reentrant", True))
    return False


def _dtype_option() -> str:
    """What transformers calls the option for the weights' type: `torch_dtype` until 4.56."""
    from transformers import __version__

    return "dtype" if Version(__version__) >= Version("4.56") else "torch_dtype"


def from_file(request: Request, dtype: torch.dtype, device: str) -> TrainableModel:
    """The module that the user's function returns, with the user's batches and loss where the file has them.

    The file may define `make_batch(micro_batch_size, seq_len)`, whose tensors go to `forward` (a dict by name, a tuple
    in order), and `loss_fn(output, batch)`. Without them: `request.input_shape`, and the mean of the output.

    Raises UnusableModelError where the function is missing or returns no module; whatever the user's code raises.
    """
    path, _, function = (request.factory or "").rpartition(":")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(Path(path).parent))  # the file may import its neighbours, as when it is run
    spec.loader.exec_module(module)
    factory = getattr(module, function, None)
    if not callable(factory):
        raise UnusableModelError(f"{path} has no function {function!r}", fix="name one that returns a torch.nn.Module")
    model = factory()
    if not isinstance(model, torch.nn.Module):
        raise UnusableModelError(
            f"{function} of {path} returned a {type(model).__name__}", fix="let it return a torch.nn.Module"
        )
    if request.workload.method == "lora":
        model = _with_adapters(model, request)
    given_batch, given_loss = getattr(module, "make_batch", None), getattr(module, "loss_fn", None)

    def on_device(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(device=device, dtype=dtype if value.is_floating_point() else None)
        if isinstance(value, dict):
            return {key: on_device(item) for key, item in value.items()}
        return tuple(on_device(item) for item in value) if isinstance(value, list | tuple) else value

    def make_batch(batch: int) -> Any:
        if given_batch is not None:
            return on_device(given_batch(batch, request.workload.seq_len))
        if request.input_shape is None:
            raise UnusableModelError(
                f"{path} defines no make_batch, so the shape of one sample is needed",
                fix="pass --input-shape, such as 3,32,32, or define make_batch(micro_batch_size, seq_len)",
            )
        return (torch.zeros((batch, *request.input_shape), dtype=dtype, device=device),)

    def loss(output: Any, batch: Any) -> Any:
        if given_loss is not None:
            return given_loss(output, batch)
        if hasattr(output, "loss"):
            return output.loss
        first = output if isinstance(output, torch.Tensor) else output[0]
        return first.float().mean()

    return TrainableModel(model, make_batch, loss, 0)
