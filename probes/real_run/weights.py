"""Random weights of a probe, which need no file and little time."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

_BLOCK = 1_000_003
"""Number of random values, which a large tensor repeats: torch draws on one core in 30 ns each, minutes for a model
with billions of parameters. No width divides the number, so the rows of a matrix differ."""

_WEIGHTS = ("*.safetensors", "*.bin", "*.index.json", "*.gguf")


def draw_once(module: Any) -> None:
    """Make `normal_` and `uniform_` of large tensors on the CPU repeat a block (module: `torch._tensor`)."""

    def repeating(draw: Any) -> Any:
        @functools.wraps(draw)
        def drawn(values: Any, *arguments: Any, **named: Any) -> Any:
            if values.numel() <= _BLOCK or not values.is_cpu or not values.is_contiguous():
                return draw(values, *arguments, **named)
            flat = values.detach().view(-1)
            block = flat[:_BLOCK]
            draw(block, *arguments, **named)
            rows, rest = divmod(flat.numel(), _BLOCK)
            flat[: rows * _BLOCK].view(rows, _BLOCK)[1:].copy_(block)
            flat[rows * _BLOCK :].copy_(block[:rest])
            return values

        return drawn

    for name in ("normal_", "uniform_"):
        setattr(module.Tensor, name, repeating(getattr(module.Tensor, name)))


def build_without_files(module: Any) -> None:
    """Make `from_pretrained` build a model with random weights from a folder without weights (module:
    `transformers.modeling_utils`)."""
    model = module.PreTrainedModel
    load = model.from_pretrained.__func__

    @functools.wraps(load)
    def from_pretrained(cls: Any, name: Any, *arguments: Any, **options: Any) -> Any:
        if not _lacks_weights(name):
            return load(cls, name, *arguments, **options)
        import transformers

        remote = options.get("trust_remote_code", False)
        config = options.get("config") or transformers.AutoConfig.from_pretrained(name, trust_remote_code=remote)
        dtype = options.get("dtype") or options.get("torch_dtype")
        given = {"dtype": config.dtype if dtype in (None, "auto") else dtype}
        if options.get("attn_implementation"):
            given["attn_implementation"] = options["attn_implementation"]
        built = cls._from_config(config, **given)
        if options.get("quantization_config") is not None:
            _quantize(built, options["quantization_config"])
        return built.eval()

    model.from_pretrained = classmethod(from_pretrained)


def _lacks_weights(name: Any) -> bool:
    folder = Path(str(name))
    return (folder / "config.json").is_file() and not any(any(folder.glob(pattern)) for pattern in _WEIGHTS)


def _quantize(model: Any, quantization: Any) -> None:
    """Quantize every linear layer except the head to 4 bits on this rank's GPU, as transformers does while it loads.
    bitsandbytes quantizes a layer when it moves to the device; other modules stay on the host."""
    import torch
    from bitsandbytes import nn as parts

    head = model.get_output_embeddings()
    options = {
        "compress_statistics": quantization.bnb_4bit_use_double_quant,
        "quant_type": quantization.bnb_4bit_quant_type,
    }
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) is not torch.nn.Linear or layer is head:
                continue
            # Size 1: its weight is replaced, and one of full size would be allocated first.
            smaller = parts.Linear4bit(1, 1, bias=False, compute_dtype=quantization.bnb_4bit_compute_dtype, **options)
            smaller.in_features, smaller.out_features = layer.in_features, layer.out_features
            smaller.weight = parts.Params4bit(layer.weight.data, requires_grad=False, **options)
            smaller.bias = layer.bias
            setattr(parent, name, smaller.to(torch.cuda.current_device()))
    model.is_loaded_in_4bit = model.is_quantized = True  # what peft and transformers look for
    model.config.quantization_config = quantization
