"""Llama 4: layers with and without rotation, some of them with experts that each compute every token."""

from __future__ import annotations

from dataclasses import replace

from ..model_shape import FeedForward
from .body import Body, decoder_heads, norms
from .decoder import AttentionPart, Dims, FeedForwardPart, Style, build, grouped_query
from .encoder import patch_grid
from .fields import MAX_LAYERS, MAX_POSITIONS, Fields
from .llama import biased
from .parts import Tensors, feed_forward_linears, linear, parameter
from .vision_language import idle_tensors, part

_LLAMA4_AT = "feed_forward"
_LLAMA4_DENSE = (f"{_LLAMA4_AT}.gate_proj", f"{_LLAMA4_AT}.up_proj", f"{_LLAMA4_AT}.down_proj")


def llama4_text(c: Fields) -> Body:
    # A file without `num_key_value_heads` means the class's default.
    dims = Dims.read(c, num_key_value_heads=8, head_dim=128, intermediate_size=8192)
    style = biased(c)._replace(feed_forward=_LLAMA4_DENSE)
    wide = dims._replace(feed_forward=c.size("intermediate_size_mlp", default=16384))
    experts = c.items("moe_layers")
    step = c.size("interleave_moe_layer_step", default=1, limit=MAX_LAYERS)
    listed = range(step - 1, dims.layers, step) if experts is None else experts
    sparse = [layer in listed for layer in range(dims.layers)]
    return build(c, wide, style, attentions=_llama4_layers(c, dims, style), sparse=_llama4_experts(c, dims), is_sparse=sparse)


def _llama4_layers(c: Fields, dims: Dims, style: Style) -> list[AttentionPart]:
    """Rotated queries and keys, normed without a weight, within chunks; in each fourth layer neither."""
    every = c.size("no_rope_layer_interval", default=4, limit=MAX_LAYERS)
    rotates = c.items("no_rope_layers") or [int((layer + 1) % every != 0) for layer in range(dims.layers)]
    if len(rotates) < dims.layers:
        raise c.error(f"no_rope_layers has {len(rotates)} entries for {dims.layers} layers")
    reach = c.positive("attention_chunk_size", limit=MAX_POSITIONS) if c.given("attention_chunk_size") else 8192
    kinds = c.per_layer("layer_types", dims.layers, ("full_attention", "chunked_attention"))
    attention, tensors = grouped_query(dims, style)
    parts: dict[tuple[bool, bool], AttentionPart] = {}
    chosen = []
    for layer in range(dims.layers):
        turns = bool(rotates[layer])
        chunked = turns if kinds is None else kinds[layer] == "chunked_attention"
        own = attention._replace(
            rotary=turns,
            qk_norm=turns and c.flag("use_qk_norm", default=True),
            window=reach if chunked else None,
        )
        chosen.append(parts.setdefault((turns, chunked), (own, tensors)))
    return chosen


def _llama4_experts(c: Fields, dims: Dims) -> FeedForwardPart:
    """transformers hands every token to every expert, times a score that is 0 but for the chosen ones."""
    count, width, hidden = c.size("num_local_experts", default=16), dims.feed_forward, dims.hidden
    feed_forward = FeedForward(
        hidden=width,
        gated=True,
        activation=c.text("hidden_act", default="silu"),
        experts=count,
        experts_per_token=count,
        shared_hidden=width,
    )
    everyone = FeedForward(hidden=width, gated=True, activation=feed_forward.activation)
    shared = tuple(f"{_LLAMA4_AT}.shared_expert.{name}" for name in ("gate_proj", "up_proj", "down_proj"))
    return feed_forward, (
        parameter(f"{_LLAMA4_AT}.experts.gate_up_proj", count, hidden, 2 * width, role="expert")
        + parameter(f"{_LLAMA4_AT}.experts.down_proj", count, width, hidden, role="expert")
        + linear(f"{_LLAMA4_AT}.router", hidden, count, "router")
        + feed_forward_linears(everyone, hidden, shared)
    )


def llama4(c: Fields) -> Body:
    """The language model, and a tower of which samples of text use nothing."""
    text = llama4_text(part(c, "text_config", "llama4_text"))
    at = "language_model."
    heads = decoder_heads(
        text.hidden_size,
        text.vocab_size,
        tied=c.flag("tie_word_embeddings", default=False),
        labels=c.labels(),
        name=f"{at}lm_head",
        suffix="ForConditionalGeneration",
    )
    return text._replace(
        base="",
        blocks=tuple(replace(block, prefix=f"{at}model.{block.prefix}") for block in text.blocks),
        outside=idle_tensors(_llama4_tower(c, text.hidden_size))
        + tuple(tensor._replace(name=f"{at}model.{tensor.name}") for tensor in text.outside),
        heads={"ForConditionalGeneration": heads["ForConditionalGeneration"]},
        idle_tower=True,
    )


def _llama4_tower(c: Fields, text_hidden: int) -> Tensors:
    vision, at = part(c, "vision_config", "llama4_vision_model"), "vision_model."
    hidden, inner = vision.size("hidden_size", default=768), vision.size("intermediate_size", default=5632)
    patches, kernel = patch_grid(vision, image=448, patch=14)
    tower = (
        parameter(f"{at}class_embedding", hidden, role="embedding")
        + parameter(f"{at}positional_embedding_vlm", patches + 1, hidden, role="other")
        + linear(f"{at}patch_embedding.linear", kernel[0] * kernel[1] * kernel[2], hidden, "other")
        + norms((f"{at}layernorm_pre", f"{at}layernorm_post"), hidden, "layer")
    )
    for layer in range(vision.size("num_hidden_layers", default=34, limit=MAX_LAYERS)):
        block = f"{at}model.layers.{layer}."
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            tower += linear(f"{block}self_attn.{name}", hidden, hidden, "other", bias=True)
        tower += linear(f"{block}mlp.fc1", hidden, inner, "other", bias=True)
        tower += linear(f"{block}mlp.fc2", inner, hidden, "other", bias=True)
        tower += norms((f"{block}input_layernorm", f"{block}post_attention_layernorm"), hidden, "layer")
    middle, wide = (vision.size(f"projector_{name}_dim", default=4096) for name in ("input", "output"))
    output = vision.size("vision_output_dim", default=7680)
    tower += linear(f"{at}vision_adapter.mlp.fc1", inner, middle, "other")
    tower += linear(f"{at}vision_adapter.mlp.fc2", wide, wide, "other")
    return tower + linear("multi_modal_projector.linear_1", output, text_hidden, "other")
