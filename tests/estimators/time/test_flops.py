"""FLOPs: by hand for one layer, and against torch's own counter for whole models."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from ds_advise.estimators.models.families import shape_from_config
from ds_advise.estimators.models.model_shape import Attention
from ds_advise.estimators.plan import Plan
from ds_advise.estimators.time.flops import attention_flops, micro_batch_flops, visible_pairs
from ds_advise.estimators.workload import Workload

from tests.estimators.small_models import DEEPSEEK, GPT, TEXT, Config, small

SEQ_LEN, BATCH = 64, 2
PLAN = Plan(zero_stage=0, micro_batch_size=BATCH, gradient_checkpointing=False)

SIZES = TEXT | {"intermediate_size": 160, "num_hidden_layers": 2, "vocab_size": 300}
CONFIGS: dict[str, Config] = {
    "llama": small("llama", SIZES, num_hidden_layers=3, tie_word_embeddings=False),
    "qwen3": small("qwen3", SIZES, head_dim=32, tie_word_embeddings=True),
    "gpt2": small("gpt2", GPT, n_layer=3, vocab_size=300, n_positions=64),
    "deepseek_v3": small(
        "deepseek_v3",
        DEEPSEEK | SIZES | {"num_key_value_heads": 4, "v_head_dim": 16, "first_k_dense_replace": 2},
        n_routed_experts=4,
        n_shared_experts=1,
    ),
}
ADAPTED_EXPERTS = small("qwen3_moe", SIZES, head_dim=32, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)


def both_passes(model: Any, tokens: Any) -> tuple[int, int]:
    """Forward and backward FLOPs by torch's counter."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as forward:
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    return forward.get_total_flops(), backward.get_total_flops()


@pytest.mark.parametrize("name", CONFIGS)
def test_forward_and_backward_equal_torchs_counter(name: str) -> None:
    """A model that torch runs and counts needs exactly the products that the formula adds up, recomputed ones
    included."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")

    config = CONFIGS[name]
    shape = shape_from_config(config, name=name)
    arguments = {key: value for key, value in config.items() if key != "model_type"}
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(config["model_type"], **arguments, attn_implementation="eager")
    )
    tokens = torch.zeros(BATCH, SEQ_LEN, dtype=torch.long)
    forward, backward = both_passes(model, tokens)
    model.train()
    model.gradient_checkpointing_enable()
    _, checkpointed = both_passes(model, tokens)

    workload = Workload(seq_len=SEQ_LEN, precision="fp32", attention="eager")
    ours = micro_batch_flops(shape, workload, PLAN)
    again = micro_batch_flops(shape, workload, dataclasses.replace(PLAN, gradient_checkpointing=True))
    assert again.backward + again.recompute == pytest.approx(checkpointed, rel=3e-3)
    # The rotary table is a tiny product of its own (d/2 x 1 x S), which the formula leaves to the bytes.
    assert ours.forward == pytest.approx(forward, rel=2e-3)
    # The first layer's input needs no gradient beyond the embedding, which is no product: nothing is missing.
    assert ours.backward == pytest.approx(backward, rel=2e-3)


def test_a_causal_query_sees_itself_and_what_came_before() -> None:
    """Pairs are counted one by one: S (S + 1) / 2 when causal, at most the window per query, all of them otherwise."""
    causal = Attention(heads=2, kv_heads=2, head_dim=8, v_head_dim=4)
    windowed, full = causal._replace(window=3), causal._replace(causal=False)
    for attention in (causal, windowed, full):
        by_hand = sum(
            1
            for query in range(10)
            for key in range(10)
            if (key <= query or not attention.causal) and query - key < (attention.window or 10)
        )
        assert visible_pairs(attention, 10, 10) == by_hand
    assert attention_flops(causal, 3, 10, 10) == 3 * 2 * 55 * 2 * (8 + 4)
    assert attention_flops(causal, 3, 10, 10, dense=True) == 3 * 2 * 100 * 2 * (8 + 4)


def test_the_delta_rule_costs_what_torch_counts() -> None:
    """But for the triangular systems, which its counter leaves out."""
    torch = pytest.importorskip("torch")
    qwen = pytest.importorskip("transformers.models.qwen3_5.modeling_qwen3_5")
    from torch.utils.flop_counter import FlopCounterMode

    attention = Attention(heads=4, kv_heads=2, head_dim=8, v_head_dim=12, rotary=False, chunk=64)
    query, key = (torch.rand(3, 128, 2, 8) for _ in range(2))
    value, steps = torch.rand(3, 128, 4, 12), torch.rand(3, 128, 4)
    with FlopCounterMode(display=False) as counted:
        qwen.torch_chunk_gated_delta_rule(query, key, value, g=-steps, beta=steps)
    solved = 3 * 4 * 128 * 64 * (8 + 12)
    assert attention_flops(attention, 3, 128, 128) == counted.get_total_flops() + solved


@pytest.mark.parametrize(
    ("config", "dora", "dropout"),
    [
        (CONFIGS["llama"], False, 0.0),
        (ADAPTED_EXPERTS, False, 0.0),
        (CONFIGS["llama"], True, 0.0),
        (CONFIGS["llama"], True, 0.1),
    ],
    ids=["llama", "qwen3_moe", "dora", "dora-dropout"],
)
def test_adapters_equal_torchs_counter(config: dict[str, Any], *, dora: bool, dropout: float) -> None:
    """peft's adapters of linear layers, and those that it folds into fused experts and their router; DoRA's products
    with an identity, and those of dropped inputs."""
    torch, transformers, peft = (pytest.importorskip(name) for name in ("torch", "transformers", "peft"))

    arguments = {key: value for key, value in config.items() if key != "model_type"}
    # The counter knows no grouped products; run one by one, the experts' are the same.
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(
            config["model_type"], **arguments, attn_implementation="eager", experts_implementation="eager"
        )
    )
    settings = peft.LoraConfig(r=4, target_modules="all-linear", use_dora=dora, lora_dropout=dropout)
    model = peft.get_peft_model(model, settings).train()
    model.enable_input_require_grads()
    tokens = torch.randint(300, (BATCH, SEQ_LEN))
    forward, backward = both_passes(model, tokens)
    adapters = Workload(method="lora", lora_rank=4, dora=dora, lora_dropout=dropout)
    workload = dataclasses.replace(adapters, seq_len=SEQ_LEN, precision="fp32", attention="eager")
    ours = micro_batch_flops(shape_from_config(config, name="model"), workload, PLAN)
    assert ours.forward == pytest.approx(forward, rel=2e-3)
    assert ours.backward == pytest.approx(backward, rel=2e-3)
