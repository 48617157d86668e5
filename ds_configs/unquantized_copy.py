"""Quantized checkpoints: whether a training loads one as published, and the copy in bf16 that it loads instead."""

from __future__ import annotations

import json

from ..estimators.models.model_shape import ModelShape
from ..estimators.workload import Workload

_CONFIGS = {"mxfp4": "Mxfp4Config", "fp8": "FineGrainedFP8Config"}
"""Method of `quantization_config` -> transformers' class whose `dequantize` loads the weights in the model's dtype, and
whose model is saved without it (transformers 5.24 quantizers/base.py `postprocess_model`)."""

_QUANTIZED_AS = {"nf4": "bitsandbytes", "int8": "bitsandbytes", "gptq": "gptq"}
"""The workload's quantization -> the method of a checkpoint that is loaded with it."""


def loads_checkpoint(model: ModelShape, workload: Workload) -> bool:
    """Return whether a training loads the weights from the model's checkpoint as it is published. transformers refuses
    to quantize a quantized one otherwise (5.24 quantizers/auto.py `merge_quantization_configs`), and trains quantized
    weights only with adapters, MXFP4 not even so (`Mxfp4HfQuantizer.is_trainable`). It also would load them whole on
    every rank: zero.Init is only for unquantized ones (modeling_utils.py `_load_pretrained_model`)."""
    as_quantized = workload.method == "qlora" and _QUANTIZED_AS[workload.quantization] == model.quantized
    return not model.quantized or as_quantized


def has_copy(model: ModelShape) -> bool:
    """Return whether transformers makes an unquantized copy of the model's checkpoint."""
    return model.quantized in _CONFIGS


def quantized_remark(model: ModelShape, workload: Workload) -> str:
    """Return what a user has to know about the quantized checkpoint of a training; "" if it loads it as it is."""
    if loads_checkpoint(model, workload):
        return ""
    what = f"the weights of {model.name} are quantized ({model.quantized})"
    if has_copy(model):
        return f"{what}: the prediction is for a copy in bf16, which transformers makes"
    if workload.method == "qlora":
        own = "write --quantization gptq, or " if model.quantized == "gptq" else ""
        return f"{what}, and transformers quantizes only unquantized ones: {own}name an unquantized checkpoint"
    return (
        f"{what}, and transformers trains those only with adapters: the prediction is for unquantized weights; "
        "--method qlora predicts 4-bit and 8-bit weights"
    )


def copy_bytes(model: ModelShape) -> int:
    """Return the bytes of the copy, which its maker needs as RAM and as room on the drive."""
    return 2 * model.parameters


def copy_lines(model: ModelShape) -> list[str]:
    """Python source that makes the copy."""
    kind, config = model.architecture, _CONFIGS[model.quantized]
    folder = f"{model.name.rstrip('/').rpartition('/')[2]}-bf16"
    return [
        "import transformers",
        f"model = transformers.{kind}.from_pretrained(",
        f'    {json.dumps(model.name)}, dtype="bfloat16",',
        f"    quantization_config=transformers.{config}(dequantize=True))",
        f"model.save_pretrained({json.dumps(folder)})",
    ]
