"""A transformers configuration at its real structure, with widths that take no time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_HEADS = 2

_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "word_embed_proj_dim")
_INNER = ("intermediate_size", "ffn_dim", "n_inner", "d_ff", "moe_intermediate_size", "ffn_hidden_size")
_HEAD_COUNTS = ("num_attention_heads", "n_head", "num_key_value_heads", "num_kv_heads", "n_heads", "num_heads")
_EXPERTS = {"num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2}


def narrow(values: Mapping[str, Any], *, layers: int, width: int) -> dict[str, Any]:
    """The configuration with `layers` layers of `width`, two heads and a vocabulary of `2 width`.

    Widths of fields that the configuration does not have are left alone; so is whatever decides which modules and
    operations a layer has (biases, norms, windows, rotary embedding), but for the number of experts.
    """
    found = dict(values)

    def put(names: tuple[str, ...], value: int) -> None:
        found.update({name: value for name in names if found.get(name) is not None})

    put(_LAYERS, layers)
    put(_HIDDEN, width)
    put(_INNER, 2 * width)
    put(_HEAD_COUNTS, _HEADS)
    put(("head_dim", "d_kv", "query_pre_attn_scalar"), width // _HEADS)
    put(("vocab_size",), 2 * width)
    found.update({name: value for name, value in _EXPERTS.items() if found.get(name)})
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        if isinstance(found.get(name), int):
            found[name] = 1
    for name in ("layer_types", "mlp_layer_types"):
        if found.get(name):
            found[name] = (list(found[name]) * layers)[:layers]
    return found


def defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with the defaults of its `model_type` where it says nothing, as transformers fills them in."""
    from transformers import CONFIG_MAPPING

    given = dict(values)
    kind = given.pop("model_type")
    return {**CONFIG_MAPPING[kind](**given).to_dict(), "model_type": kind}
