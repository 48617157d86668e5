"""Weights are never read: models are built from their configuration, and files give shapes.

A model of `from_pretrained` has the dtype, attention and device that the real function would give it, and is in
evaluation mode like the real one.
"""

from __future__ import annotations

import importlib
import inspect
import os
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .attention import FLASH
from .device import DEVICE_TYPE

_IGNORED = """cache_dir force_download local_files_only token revision use_safetensors weights_only low_cpu_mem_usage
    state_dict ignore_mismatched_sizes trust_remote_code code_revision offload_folder offload_state_dict max_memory
    subfolder variant use_auth_token resume_download proxies key_mapping adapter_kwargs use_kernels tp_plan tp_size
    _from_auto _commit_hash dduf_entries gguf_file mirror _fast_init device_mesh distributed_config"""
"""Arguments of `from_pretrained` that decide how files are found and read."""

_SMALL = 1 << 16
"""Elements up to which a tensor of a file keeps its numbers."""


class _AbsentWeights(dict[str, Any]):
    """The state dict of a download that is not made; any module accepts it."""


def install() -> None:
    """Replace `from_pretrained`, `_from_config`, `torch.load`, `torch.hub` and safetensors' `load_file`."""
    _replace_from_config()
    _replace_from_pretrained()
    _replace_torch_load()
    hub: Any = importlib.import_module("torch.hub")
    hub.load_state_dict_from_url = lambda *_, **__: _AbsentWeights()
    module: Any = torch.nn.Module
    load_state_dict = module.load_state_dict

    def accepting(own: Any, state_dict: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(state_dict, _AbsentWeights):
            keys: Any = importlib.import_module("torch.nn.modules.module")._IncompatibleKeys
            return keys([], [])
        return load_state_dict(own, state_dict, *arguments, **options)

    module.load_state_dict = accepting


def _replace_from_config() -> None:
    """New weights stay uninitialized, and FlashAttention needs no package."""
    transformers: Any = importlib.import_module("transformers")
    build = transformers.PreTrainedModel._from_config.__func__

    def from_config(cls: Any, /, config: Any, **options: Any) -> Any:
        if "flash" in str(options.get("attn_implementation")):
            options["attn_implementation"] = FLASH
        with no_init_weights():
            model = build(cls, config, **options)
            model.tie_weights()  # `init_weights`, which is left out, would tie them
        return model

    transformers.PreTrainedModel._from_config = classmethod(from_config)


def _replace_from_pretrained() -> None:
    transformers: Any = importlib.import_module("transformers")

    def from_pretrained(
        cls: Any,
        /,
        name: Any = None,
        *_: Any,
        config: Any = None,
        dtype: Any = None,
        torch_dtype: Any = None,
        attn_implementation: Any = None,
        device_map: Any = None,
        quantization_config: Any = None,
        output_loading_info: bool = False,
        **options: Any,
    ) -> Any:
        for each in _IGNORED.split():
            options.pop(each, None)
        if not isinstance(config, transformers.PretrainedConfig):
            config, options = _config(transformers, cls, config or name, options)
        chosen = _dtype(config, dtype or torch_dtype)
        building: dict[str, Any] = {}
        attention = attn_implementation or getattr(config, "_attn_implementation_internal", None)
        if attention:
            building["attn_implementation"] = attention
        accepted = inspect.signature(cls.__init__).parameters
        building |= {key: value for key, value in options.items() if key in accepted}
        quantization = quantization_config or getattr(config, "quantization_config", None)
        placed = device_map is not None and "cpu" not in str(device_map)
        # transformers fills the modules on their device, tensor by tensor.
        with torch.device(DEVICE_TYPE, 0) if placed and quantization is None else nullcontext():
            model = cls._from_config(config, dtype=chosen, **building)
        if quantization is not None:
            _quantize(model, quantization)
        if placed or quantization is not None:
            model.to(torch.device(DEVICE_TYPE, 0))
            model.hf_device_map = {"": 0}
        model.eval()
        model.config._name_or_path = model.name_or_path = str(name)
        if not output_loading_info:
            return model
        return model, {key: [] for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")}

    transformers.PreTrainedModel.from_pretrained = classmethod(from_pretrained)


def _config(transformers: Any, cls: Any, source: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """(the configuration of a folder or hub id, the arguments that it does not take)."""
    if cls.config_class is None:
        return transformers.AutoConfig.from_pretrained(source), options
    config, unused = cls.config_class.from_pretrained(source, return_unused_kwargs=True, **options)
    return config, unused


def _dtype(config: Any, requested: Any) -> torch.dtype:
    """The dtype of the weights. transformers 5 takes that of the checkpoint by default, transformers 4 fp32."""
    if requested is None and int(importlib.import_module("transformers").__version__.split(".")[0]) < 5:
        return torch.float32
    if requested in (None, "auto"):
        requested = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None) or torch.float32
    found: torch.dtype = getattr(torch, requested) if isinstance(requested, str) else requested
    return found


def no_init_weights() -> Any:
    """A context in which transformers leaves weights uninitialized."""
    try:
        module: Any = importlib.import_module("transformers.initialization")
    except ImportError:  # transformers 4
        module = importlib.import_module("transformers.modeling_utils")
    return module.no_init_weights()


# ---------------------------------------------------------------------- quantized weights


class _Dequantized(torch.autograd.Function):
    """The product with a quantized weight: the weight exists in the input's dtype during the product only."""

    @staticmethod
    def forward(context: Any, states: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
        context.shape = shape
        return states @ torch.empty(shape, dtype=states.dtype, device=states.device).t()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        return gradient @ torch.empty(context.shape, dtype=gradient.dtype, device=gradient.device), None


class QuantizedLinear(torch.nn.Linear):
    """bitsandbytes' linear layer in 4 bits (NF4, a scale for 64 weights) or 8 bits (a scale for a row)."""

    def __init__(self, linear: torch.nn.Linear, *, is_4bit: bool) -> None:
        torch.nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        count = linear.weight.numel()
        stored = (
            torch.empty((count // 2, 1), dtype=torch.uint8)
            if is_4bit
            else torch.empty((self.out_features, self.in_features), dtype=torch.int8)
        )
        self.weight = torch.nn.Parameter(stored, requires_grad=False)
        scales = torch.empty(count // 64, dtype=torch.uint8) if is_4bit else torch.empty(self.out_features)
        self.register_buffer("absmax", scales)
        self.bias = linear.bias

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        product: Any = _Dequantized.apply
        output: torch.Tensor = product(states, (self.out_features, self.in_features))
        return output if self.bias is None else output + self.bias


def _quantize(model: Any, quantization: Any) -> None:
    """Replace linear layers, except the output head, as transformers does for bitsandbytes."""
    read: Any = quantization.get if isinstance(quantization, dict) else lambda name: getattr(quantization, name, None)
    is_4bit = bool(read("load_in_4bit"))
    if not is_4bit and not read("load_in_8bit"):
        raise NotImplementedError(f"weights quantized by {read('quant_method')} cannot be simulated")
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is torch.nn.Linear and name != "lm_head":
                setattr(module, name, QuantizedLinear(child, is_4bit=is_4bit))
    trainer: Any = importlib.import_module("transformers").Trainer
    trainer.floating_point_ops = lambda *_: 0  # imports bitsandbytes
    model.is_loaded_in_4bit, model.is_loaded_in_8bit = is_4bit, not is_4bit
    model.is_quantized = True
    model.config.quantization_config = quantization
    model.quantization_method = "bitsandbytes"
    model.hf_quantizer = SimpleNamespace(
        is_trainable=True,
        is_compileable=False,
        is_qat_trainable=False,
        quantization_config=quantization,
        is_serializable=lambda *_, **__: True,
    )


# ---------------------------------------------------------------------- files


def _replace_torch_load() -> None:
    torch_module: Any = torch
    load = torch.load

    def shapes(source: Any, map_location: Any = None, *arguments: Any, **options: Any) -> Any:
        with _disable_current_modes():
            if isinstance(source, str | os.PathLike):
                try:  # pages of a mapped file are never touched
                    found = load(source, "cpu", *arguments, **{**options, "mmap": True})
                except (RuntimeError, ValueError):  # the format before zip files
                    found = load(source, "cpu", *arguments, **{**options, "mmap": False})
            else:
                found = load(source, "cpu", *arguments, **{**options, "mmap": False})
        return without_numbers(found)

    torch_module.load = shapes
    try:
        safetensors: Any = importlib.import_module("safetensors.torch")
    except ImportError:
        return
    load_file = safetensors.load_file

    def load_shapes(filename: Any, *_: Any, **__: Any) -> Any:
        with _disable_current_modes():
            found = load_file(filename, device="cpu")
        return without_numbers(found)

    safetensors.load_file = load_shapes


def without_numbers(value: Any) -> Any:
    """The same object with large tensors replaced by fake ones."""
    if isinstance(value, torch.Tensor):
        return value if value.numel() <= _SMALL else torch.empty_like(value, device="cpu")
    if isinstance(value, dict):
        for key, item in list(value.items()):
            value[key] = without_numbers(item)
    elif isinstance(value, list):
        value[:] = [without_numbers(item) for item in value]
    return value
