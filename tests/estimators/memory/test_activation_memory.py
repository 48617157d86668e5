"""Activation memory by arithmetic alone: closed forms by hand, kernels, properties."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ds_advise.estimators.memory.activations.activation_memory import activation_memory
from ds_advise.estimators.memory.activations.kernels import attention_kernel
from ds_advise.estimators.models.families import shape_from_config
from ds_advise.estimators.models.model_shape import Attention, ModelShape
from ds_advise.estimators.workload import Software, Workload

from tests.estimators.small_models import sizes, small

H, F, L, A, K, D, V = 4096, 14336, 32, 32, 8, 128, 128_256
"""Llama 3 8B."""

LLAMA = shape_from_config(small("llama", sizes(H, F, L, A, K, V)), name="llama")


def memory(
    model: ModelShape = LLAMA, batch: int = 1, checkpointing: bool = False, zero_stage: int = 0, **workload: object
):  # type: ignore[no-untyped-def]
    return activation_memory(
        model,
        Workload(**workload),
        batch,
        checkpointing,
        compute_capability=8.0,  # type: ignore[arg-type]
        zero_stage=zero_stage,
    )


@pytest.mark.parametrize(
    ("loss", "logits", "width"), [("fused", 256 * V * 2, 2), ("chunked-head", 4096 * 32768 * 2, 4 + 2)]
)
def test_losses_in_chunks_make_the_gradients_at_once(loss: str, logits: int, width: int) -> None:
    """Liger: ceil(V / H) = 32, so 8192 tokens go in chunks of 256. TRL: 4096 tokens by 32768 columns, gradients in fp32
    and then cast."""
    terms = {term.name: term.size_bytes for term in memory(batch=4, loss=loss).loss_terms}
    assert terms["logits of one chunk"] == logits
    assert terms["gradient of hidden states"] == 8192 * H * width
    assert terms["gradient of the head's weight"] == V * H * width
    adapted = {term.name for term in memory(batch=4, loss=loss, method="lora").loss_terms}
    assert "gradient of the head's weight" not in adapted


def test_a_chunked_softmax_holds_the_logits_and_their_gradient_in_16_bits() -> None:
    terms = {term.name: term.size_bytes for term in memory(batch=2, loss="chunked-softmax").loss_terms}
    del terms["final norm and head input"]
    assert terms == dict.fromkeys(("logits", "gradient of logits"), 2 * 2 * 2048 * V)


ATTENTION = Attention(heads=32, kv_heads=32, head_dim=128, v_head_dim=128)


@pytest.mark.parametrize(
    ("changes", "how", "kernel"),
    [
        ({}, {}, "flash"),
        ({}, {"compute_capability": 7.5, "precision": "fp16"}, "efficient"),
        ({}, {"compute_capability": 7.0, "precision": "fp16", "grouped": True}, "math"),
        ({}, {"masked": True}, "efficient"),
        ({"head_dim": 100, "v_head_dim": 100}, {"masked": True}, "math"),
        ({"head_dim": 192}, {}, "efficient"),
        ({"head_dim": 192}, {"compute_capability": 9.0}, "flash"),
        ({}, {"attention": "flash", "masked": True}, "flash"),
        ({}, {"offered": frozenset()}, "eager"),
    ],
)
def test_the_kernel_that_the_dispatcher_takes(changes: dict, how: dict, kernel: str) -> None:  # type: ignore[type-arg]
    """By type, head widths, mask, GPU generation and what the model's class offers."""
    workload = Workload(precision=how.pop("precision", "bf16"), attention=how.pop("attention", "sdpa"))
    how = {"offered": frozenset({"sdpa", "flash"}), "masked": False, "grouped": False, "compute_capability": 8.0, **how}
    assert attention_kernel(workload, ATTENTION._replace(**changes), **how) == kernel


def test_checkpointing_does_not_let_go_of_the_inputs_of_int8_layers() -> None:
    """LLM.int8's derivative keeps them as attributes, which non-reentrant checkpointing's hooks do not see."""
    how = {"method": "qlora", "seq_len": 1024, "checkpointing": True}
    nf4, held = memory(**how), memory(quantization="int8", **how)
    inputs = 1024 * 2 * (H + A * D + H + F)  # of q, k, v; of o; of gate, up; of down
    assert held.saved_bytes - nf4.saved_bytes == L * inputs
    from_8_bits = memory(quantization="int8", software=replace(Software(), reentrant=True), **how)
    assert from_8_bits.saved_bytes == nf4.saved_bytes


def test_a_padding_mask_is_kept_in_every_layer_once_it_is_boolean() -> None:
    """torch turns booleans into numbers for its memory-efficient kernel, whose sums of exponents are rounded up."""
    padded = memory(seq_len=1024, software=Software(padding_mask=True)).saved_bytes
    old = memory(seq_len=1024, software=Software(transformers=(4, 52), padding_mask=True)).saved_bytes
    assert padded - old == L * 2 * 1024 * 1024


def test_one_row_that_its_own_length_pads_has_no_padding() -> None:
    to_longest = Workload(seq_len=1024, software=Software(padding_mask=True, varying_lengths=True))
    assert to_longest.in_batch(1).software == Software(varying_lengths=True) and to_longest.in_batch(2) == to_longest
    fixed = Workload(seq_len=1024, software=Software(padding_mask=True))
    assert fixed.in_batch(1) == fixed
