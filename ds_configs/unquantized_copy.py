"""Quantized checkpoints: whether a training loads one as published, and what it loads instead: a copy in bf16, or
another checkpoint."""

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
    every rank: zero.Init is only for unquantized ones (modeling_utils.py `_load_pretrained_model`). GPTQ weights come
    only from a checkpoint: quantizing others needs data for the calibration (quantizer_gptq.py)."""
    if not model.quantized:
        return not trains_gptq(workload)
    return workload.method == "qlora" and _QUANTIZED_AS[workload.quantization] == model.quantized


def trains_gptq(workload: Workload) -> bool:
    """Return whether adapters are trained on GPTQ weights."""
    return workload.method == "qlora" and workload.quantization == "gptq"


def loaded_checkpoint(model: ModelShape, workload: Workload) -> str:
    """Return the path or name that the script passes to `from_pretrained`, where it must not be just any: the copy's
    folder, the model's GPTQ checkpoint, or a placeholder in capitals for one that the user chooses; "" otherwise."""
    if trains_gptq(workload):
        return model.name if loads_checkpoint(model, workload) else "GPTQ_CHECKPOINT"
    if loads_checkpoint(model, workload):
        return ""
    return _copy_folder(model) if has_copy(model) else "UNQUANTIZED_CHECKPOINT"


def has_copy(model: ModelShape) -> bool:
    """Return whether transformers makes an unquantized copy of the model's checkpoint."""
    return model.quantized in _CONFIGS


def quantized_remark(model: ModelShape, workload: Workload) -> str:
    """Return what a user has to know about the quantized checkpoint of a training; "" if it loads it as it is."""
    if not model.quantized or loads_checkpoint(model, workload):
        return ""
    what = f"the weights of {model.name} are quantized ({model.quantized})"
    if trains_gptq(workload):
        return f"{what}: the prediction is for a GPTQ checkpoint, which the script has to load in its place"
    if has_copy(model):
        return f"{what}: the prediction is for a copy in bf16, which transformers makes"
    own = " or ".join(name for name, method in _QUANTIZED_AS.items() if method == model.quantized)
    instead = "the prediction is for an unquantized checkpoint, which the script has to load in its place"
    if workload.method == "qlora":
        instead = f"write --quantization {own}, or name an unquantized checkpoint; {instead}" if own else instead
        return f"{what}, and transformers quantizes only unquantized ones: {instead}"
    asked = f"write --method qlora --quantization {own} for adapters on them; " if own else ""
    if workload.method == "lora":
        return f"{what}: {asked}{instead}"
    return f"{what}, and the Trainer trains those at most with adapters: {asked}{instead}"


def weights_assumption(model: ModelShape, workload: Workload) -> tuple[str, ...]:
    """Return what a prediction assumes of the weights, if the training does not load the model's quantized ones."""
    if not model.quantized or loads_checkpoint(model, workload):
        return ()
    return (f"weights as --method loads them, not as the checkpoint's {model.quantized}",)


def copy_bytes(model: ModelShape) -> int:
    """Return the bytes of the copy, which its maker needs as RAM and as room on the drive."""
    return 2 * model.parameters


def _copy_folder(model: ModelShape) -> str:
    return f"{model.name.rstrip('/').rpartition('/')[2]}-bf16"


def copy_lines(model: ModelShape) -> list[str]:
    """Python source that makes the copy."""
    kind, config = model.architecture, _CONFIGS[model.quantized]
    return [
        "import transformers",
        f"model = transformers.{kind}.from_pretrained(",
        f'    {json.dumps(model.name)}, dtype="bfloat16",',
        f"    quantization_config=transformers.{config}(dequantize=True))",
        f"model.save_pretrained({json.dumps(_copy_folder(model))})",
    ]
