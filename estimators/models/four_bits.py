"""QLoRA's base model: which weights are quantized, to four bits or eight, and their bytes."""

from __future__ import annotations

from ..workload import Workload
from .model_shape import Tensor

BLOCK = 64
"""Elements that share a scale."""

GPTQ_GROUP = 128
"""Elements that share a scale in GPTQ, the usual setting of published checkpoints."""

OUTER_BLOCK = 256
"""Scales that share a scale of their own."""


def quantized(tensor: Tensor, workload: Workload) -> bool:
    """Whether this weight is quantized: those of `nn.Linear` and `Conv1D` but the output head's, and T5's `wo`.

    Fused experts and their router are parameters outside any linear layer and stay in 16 bits, which is most of a
    mixture of experts; before transformers 5 every expert was a module of linear layers, which were quantized.
    So do tensors that transformers keeps in fp32 elsewhere (T5's `_keep_in_fp32_modules`).
    Source: transformers 5.23 integrations/bitsandbytes.py `replace_with_bnb_linear`, quantizers/base.py
    `get_keys_to_not_convert` and `get_modules_to_not_convert`.
    """
    apart = tensor.role == "expert" and workload.software.transformers < (5, 0)
    return (
        workload.method == "qlora"
        and (tensor.linear or apart)
        and tensor.role != "head"
        and not tensor.name.endswith("DenseReluDense.wo.weight")
    )


def quantized_bytes(tensor: Tensor, workload: Workload) -> int:
    """Bytes of a quantized weight in the workload's format."""
    if workload.quantization == "int8":
        return int8_bytes(tensor)
    return gptq_bytes(tensor) if workload.quantization == "gptq" else nf4_bytes(tensor.numel)


def int8_bytes(tensor: Tensor) -> int:
    """Bytes of a weight in LLM.int8's format: n + 4 out; a byte an element, an fp32 scale a row.

    Source: LLM.int8 (arXiv:2208.07339) section 2.2; bitsandbytes 0.49 nn/modules.py Int8Params (CB, SCB).
    """
    return tensor.numel + 4 * (tensor.numel // tensor.shape[-1])


def in_int8(tensor: Tensor, workload: Workload) -> bool:
    """Whether the weight's products run in int8."""
    return workload.quantization == "int8" and quantized(tensor, workload)


def gptq_bytes(tensor: Tensor) -> int:
    """Bytes of a weight in GPTQ's format: n/2 + (2 + 1/2) n/128 + 4 in.

    Four bits an element; one 16-bit scale and one 4-bit zero point per 128 elements; the group of each of `in` inputs
    as a 32-bit index. Source: AutoGPTQ nn_modules/qlinear/qlinear_tritonv2.py (qweight, scales, qzeros, g_idx).
    """
    groups = -(-tensor.numel // GPTQ_GROUP)
    experts = tensor.shape[0] if len(tensor.shape) == 3 else 1
    return -(-tensor.numel // 2) + 2 * groups + -(-groups // 2) + 4 * experts * tensor.in_features


def nf4_bytes(numel: int) -> int:
    """Bytes of a weight in NF4 with double quantization: n/2 + n/64 + 4 n/(64 x 256), and two code tables.

    Four bits an element, one 8-bit scale per 64 elements, and one fp32 scale per 256 of those scales.
    Source: QLoRA (arXiv:2305.14314) section 3; bitsandbytes functional.py `quantize_4bit` (compress_statistics).
    """
    scales = -(-numel // BLOCK)
    tables = (16 + 256) * 4
    return -(-numel // 2) + scales + 4 * -(-scales // OUTER_BLOCK) + tables
