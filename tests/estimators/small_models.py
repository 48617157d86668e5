"""Configurations of small models, as `config.json` has them."""

from __future__ import annotations

from typing import Any

from tests.helpers import sizes

Config = dict[str, Any]


TEXT = sizes(64, 96, 4, 4, 2, 128)
BERT: Config = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 128,
    "max_position_embeddings": 32,
}
GPT: Config = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128, "n_positions": 32}
T5: Config = {"d_model": 64, "d_ff": 96, "num_layers": 3, "num_heads": 4, "vocab_size": 128}
DEEPSEEK: Config = TEXT | {
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_group": 1,
    "topk_group": 1,
}


def small(model_type: str, base: Config = TEXT, **fields: Any) -> Config:
    """A configuration of this type; `fields` replace those of `base`."""
    return {**base, "model_type": model_type, **fields}


def on_meta(config: Config, architecture: str) -> Any:
    """transformers' own model, without memory for its weights."""
    import torch
    import transformers

    rest = {name: value for name, value in config.items() if name != "model_type"}
    with torch.device("meta"):
        return getattr(transformers, architecture)(transformers.AutoConfig.for_model(config["model_type"], **rest))
