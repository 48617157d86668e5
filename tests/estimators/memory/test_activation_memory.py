"""Activation memory by arithmetic alone: closed forms by hand, kernels, properties."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ds_advise.estimators.memory.activations.activation_memory import activation_memory
from ds_advise.estimators.memory.activations.kernels import attention_kernel
from ds_advise.estimators.memory.activations.saved_tensors import AutogradGraph, total
from ds_advise.estimators.models.families import shape_from_config
from ds_advise.estimators.models.model_shape import Attention, ModelShape
from ds_advise.estimators.workload import Software, Workload
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.estimators.small_models import sizes, small

H, F, L, A, K, D, V = 4096, 14336, 32, 32, 8, 128, 128_256
"""Llama 3 8B."""

LLAMA = shape_from_config(small("llama", sizes(H, F, L, A, K, V)), name="llama")
GPT2 = shape_from_config(
    {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "vocab_size": 50257, "n_positions": 1024},
    name="gpt2",
)
BOTH = pytest.mark.parametrize("checkpointing", [False, True])


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


def test_a_llama_layer_by_hand() -> None:
    """Two norms (fp32 input, its reciprocal RMS, two bf16 results), flash attention and SwiGLU, added up per token."""
    norm = 4 * H + 4 + 2 * H + 2 * H
    attention = 2 * A * D + 2 * 2 * K * D + 4 * A + 2 * A * D
    per_token = 2 * norm + attention + 4 * 2 * F
    assert memory(batch=3, seq_len=1024).saved_per_layer_bytes == 3 * 1024 * per_token


def test_checkpointing_keeps_the_input_of_every_layer() -> None:
    """L x 2H per token, and the rotary tables once."""
    tables = 2 * 2048 * D * 2
    assert memory(batch=2, checkpointing=True).saved_bytes == L * 2 * 2048 * 2 * H + tables


def test_the_loss_holds_three_fp32_copies_of_the_logits() -> None:
    """log_softmax, the gradient that comes in and the one that goes out, beside the final norm's tensors."""
    terms = {term.name: term.size_bytes for term in memory(batch=2).loss_terms}
    assert {name: size for name, size in terms.items() if name != "final norm and head input"} == dict.fromkeys(
        ("log-softmax", "gradient of log-softmax", "gradient of logits"), 4 * 2 * 2048 * V
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


@BOTH
@pytest.mark.parametrize("model", [LLAMA, GPT2], ids=["llama", "gpt2"])
@settings(max_examples=25)
@given(batch=st.integers(1, 64), seq=st.sampled_from([128, 512, 1000]))
def test_bytes_grow_with_batch_and_sequence(model: ModelShape, checkpointing: bool, batch: int, seq: int) -> None:
    """One more sample or a longer sequence never needs less, and what is saved is linear in the batch."""

    def bytes_of(b: int, s: int) -> int:
        return memory(model, b, checkpointing, seq_len=s).peak_bytes

    assert bytes_of(batch, seq) < bytes_of(batch + 1, seq) and bytes_of(batch, seq) < bytes_of(batch, seq + 8)
    one, two, three = (memory(model, batch + more, checkpointing, seq_len=seq).saved_bytes for more in range(3))
    assert two - one == three - two


def test_adapted_experts_are_kept_whole() -> None:
    """peft computes W + B A: 16-bit copies of gate, up and down and of the router, kept in every layer, and while a
    checkpointed one is recomputed."""
    experts, hidden, inner, layers = 16, 256, 192, 3
    fields = {"moe_intermediate_size": inner, "num_experts": experts, "num_experts_per_tok": 4, "head_dim": 64}
    model = shape_from_config(small("qwen3_moe", sizes(hidden, 704, layers, 8, 2, 64), **fields), name="moe")
    copies = 2 * (3 * experts * hidden * inner + experts * hidden)
    attention = ("q_proj", "k_proj", "v_proj", "o_proj")

    def fixed(targets: tuple[str, ...], checkpointing: bool) -> int:
        how = {"method": "lora", "lora_targets": targets, "seq_len": 128}
        one, two = (memory(model, batch, checkpointing, **how) for batch in (1, 2))
        peaks = [
            sum(
                term.size_bytes
                for term in (*m.saved_terms, *(term for term in m.block_terms if term.name == "recomputed layer"))
            )
            for m in (one, two)
        ]
        return 2 * peaks[0] - peaks[1]

    routed = (*attention, "gate", "gate_proj", "up_proj", "down_proj")
    assert fixed(routed, False) - fixed(attention, False) == layers * copies
    assert fixed(routed, True) - fixed(attention, True) == copies


def test_ligers_kernels_keep_inputs_and_nothing_in_fp32() -> None:
    """Per token and layer: the inputs of two norms and their results, queries, keys and values, the attention's output,
    gate, up and their product, each in 16 bits; a number per row for each norm, and the log-sum-exp of each head."""
    rows = 2 * (4 * H + A * D + 2 * K * D + 3 * F) + 2 * A * D
    made = memory(seq_len=2048, attention="flash", kernels="liger")
    assert made.saved_per_layer_bytes == 2048 * (rows + 2 * 4 + 4 * A)
    usual = memory(seq_len=2048, attention="flash")
    assert made.peak_bytes < 0.8 * usual.peak_bytes


@BOTH
def test_adapters_need_less(checkpointing: bool) -> None:
    """Frozen weights do not save their inputs, frozen norms not their normed copies; fewer targets save less still."""
    full, lora, some = (
        memory(checkpointing=checkpointing, **how).peak_bytes
        for how in ({}, {"method": "lora"}, {"method": "lora", "lora_targets": ("q_proj", "v_proj")})
    )
    assert some <= lora < full


def test_zero3_saves_the_inputs_of_frozen_layers() -> None:
    """DeepSpeed's linear layer saves its input whether the weight trains or not."""
    how = {"method": "lora", "lora_targets": ("q_proj",)}
    more = memory(zero_stage=3, **how).saved_bytes - memory(zero_stage=2, **how).saved_bytes
    # The inputs of gate and up (H) and of down (F); those of q, k, v and o are saved anyway.
    assert more == L * 2048 * 2 * (H + F)


def test_formulas_can_be_recomputed() -> None:
    """Every saved term's formula, its labels removed, gives the term's bytes."""
    for term in memory(batch=3).saved_terms:
        if "(" in term.formula:
            inside = term.formula.split("(", 1)[1].split(")", 1)[0]
            per_token = sum(float(part.split(" ", 1)[0]) for part in inside.split(" + "))
            inputs = dict(term.inputs)
            assert term.size_bytes == inputs["L"] * inputs["B"] * inputs["S"] * per_token


ATTENTION = Attention(heads=32, kv_heads=32, head_dim=128, v_head_dim=128)


@pytest.mark.parametrize(
    ("changes", "how", "kernel"),
    [
        ({}, {}, "flash"),
        ({}, {"compute_capability": None}, "flash"),
        ({}, {"compute_capability": 7.5, "precision": "fp16"}, "efficient"),
        ({}, {"compute_capability": 7.0, "precision": "fp16", "grouped": True}, "math"),
        ({}, {"compute_capability": 7.0, "precision": "bf16"}, "math"),
        ({}, {"precision": "fp32"}, "efficient"),
        ({}, {"masked": True}, "efficient"),
        ({"head_dim": 512, "v_head_dim": 512}, {}, "efficient"),
        ({"head_dim": 100, "v_head_dim": 100}, {"masked": True}, "math"),
        ({"head_dim": 192}, {}, "efficient"),
        ({"head_dim": 192}, {"compute_capability": 9.0}, "flash"),
        ({}, {"attention": "flash", "masked": True}, "flash"),
        ({}, {"attention": "eager"}, "eager"),
        ({}, {"offered": frozenset()}, "eager"),
    ],
)
def test_the_kernel_that_the_dispatcher_takes(changes: dict, how: dict, kernel: str) -> None:  # type: ignore[type-arg]
    """By type, head widths, mask, GPU generation and what the model's class offers."""
    workload = Workload(precision=how.pop("precision", "bf16"), attention=how.pop("attention", "sdpa"))
    how = {"offered": frozenset({"sdpa", "flash"}), "masked": False, "grouped": False, "compute_capability": 8.0, **how}
    assert attention_kernel(workload, ATTENTION._replace(**changes), **how) == kernel


def test_each_storage_is_saved_once_and_only_for_gradients() -> None:
    """x * x saves x once; the same on an input that needs no gradient saves nothing."""
    for needs_grad, bytes_saved in ((True, 40), (False, 0)):
        graph = AutogradGraph()
        x = graph.tensor(5, 2, 4, "x", needs_grad=needs_grad)
        graph.apply("square", (x, x), saves=(x, x))
        assert total(graph.saved()).per_sample == bytes_saved


def test_checkpointing_does_not_let_go_of_the_inputs_of_int8_layers() -> None:
    """LLM.int8's derivative keeps them as attributes, which non-reentrant checkpointing's hooks do not see."""
    how = {"method": "qlora", "seq_len": 1024, "checkpointing": True}
    nf4, held = memory(**how), memory(quantization="int8", **how)
    inputs = 1024 * 2 * (H + A * D + H + F)  # of q, k, v; of o; of gate, up; of down
    assert held.saved_bytes - nf4.saved_bytes == L * inputs
    from_8_bits = memory(quantization="int8", software=replace(Software(), reentrant=True), **how)
    assert from_8_bits.saved_bytes == nf4.saved_bytes


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_a_function_keeps_by_itself_outlives_the_checkpointed_forward_pass(reentrant: bool) -> None:
    """torch, with a derivative that keeps its input as bitsandbytes 0.49's MatMul8bitLt does (`ctx.tensors`)."""
    import weakref

    import torch
    from torch.utils.checkpoint import checkpoint

    made: list[weakref.ref[torch.Tensor]] = []

    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):  # type: ignore[no-untyped-def]
            if any(ctx.needs_input_grad):
                ctx.tensors = (value,)
            return value * 2

        @staticmethod
        def backward(_ctx, gradient):  # type: ignore[no-untyped-def]
            return gradient * 2

    def layer(value: torch.Tensor) -> torch.Tensor:
        normed = value + 1
        made.append(weakref.ref(normed))
        return Keeps.apply(normed)  # type: ignore[no-any-return,no-untyped-call]

    output = checkpoint(layer, torch.ones(2, requires_grad=True), use_reentrant=reentrant)
    assert (made[0]() is None) == reentrant
    assert output.requires_grad
