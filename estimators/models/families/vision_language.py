"""Language models with a vision tower: Gemma 3 (4B and up) and Mistral 3."""

from __future__ import annotations

from dataclasses import replace

from ..model_shape import Block
from .body import Body, decoder_heads, norms
from .encoder import Sizes, patch_grid
from .fields import Fields
from .llama import GELU, LLAMA, gemma3_text, ministral3, mistral
from .parts import Tensors, attention_linears, embedding, feed_forward_linears, linear, norm, parameter


def gemma3(c: Fields) -> Body:
    """SigLIP patches, a pooling projector, and Gemma 3's decoder. The vision stack sees one image a sample."""
    body = gemma3_text(part(c, "text_config", "gemma3_text"))
    vision = part(c, "vision_config", "siglip_vision_model")
    defaults = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
    sizes = Sizes.read(vision, activation=GELU, **defaults)
    if vision.flag("vision_use_head", default=True):
        raise vision.error("vision_use_head must be false", why="Gemma 3's published models have no pooling head")
    hidden, at = sizes.hidden, "vision_tower."
    patches, kernel = patch_grid(vision, image=224, patch=16)
    layer = (
        attention_linears(sizes.attention, hidden, (*LLAMA.attention[:3], "self_attn.out_proj"), bias=True)
        + feed_forward_linears(sizes.feed_forward, hidden, ("mlp.fc1", "mlp.fc2"), bias=True)
        + norms(("layer_norm1", "layer_norm2"), hidden, "layer")
    )
    block = tower_block(sizes, f"{at}encoder.layers", layer)
    project = "multi_modal_projector.mm_"
    projector = parameter(f"{project}input_projection_weight", hidden, body.hidden_size, role="other")
    projector += norm(f"{project}soft_emb_norm", hidden)
    tower = (
        parameter(f"{at}embeddings.patch_embedding.weight", hidden, *kernel, role="embedding")
        + parameter(f"{at}embeddings.patch_embedding.bias", hidden, role="embedding")
        + embedding(f"{at}embeddings.position_embedding", patches, hidden, "position")
        + norms((f"{at}post_layernorm",), hidden, "layer")
    )
    return combine(c, body, block, tower + projector, patches=patches)


def mistral3(c: Fields) -> Body:
    """Pixtral's tower at its largest image, a projector that merges patches, and a Mistral decoder."""
    text = part(c, "text_config", "mistral", "ministral3")
    body = (ministral3 if text.text("model_type", default="mistral") == "ministral3" else mistral)(text)
    vision = part(c, "vision_config", "pixtral")
    sizes = Sizes.read(vision, hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16)
    hidden, at = sizes.hidden, "vision_tower."
    patches, kernel = patch_grid(vision, image=1540, patch=14)
    sizes = replace(
        sizes, attention=replace(sizes.attention, rotary=True), feed_forward=replace(sizes.feed_forward, gated=True)
    )
    attention = tuple(f"attention.{name}" for name in ("q_proj", "k_proj", "v_proj", "o_proj"))
    feed_forward = tuple(f"feed_forward.{name}" for name in ("gate_proj", "up_proj", "down_proj"))
    layer = (
        attention_linears(sizes.attention, hidden, attention)
        + feed_forward_linears(sizes.feed_forward, hidden, feed_forward)
        + norms(("attention_norm", "ffn_norm"), hidden, "rms")
    )
    block = replace(tower_block(sizes, f"{at}transformer.layers", layer), norm="rms")
    if (features := c.number("vision_feature_layer", default=-1)) != -1:
        raise c.error(f"vision_feature_layer {features} is not supported")
    merge, bias = c.size("spatial_merge_size", default=2), c.flag("multimodal_projector_bias", default=False)
    project = "multi_modal_projector."
    outside = (
        parameter(f"{at}patch_conv.weight", hidden, *kernel, role="embedding")
        + norm(f"{at}ln_pre", hidden)
        + norm(f"{project}norm", hidden)
        + linear(f"{project}patch_merger.merging_layer", hidden * merge**2, hidden, "other")
        + linear(f"{project}linear_1", hidden, body.hidden_size, "other", bias=bias)
        + linear(f"{project}linear_2", body.hidden_size, body.hidden_size, "other", bias=bias)
    )
    return combine(c, body, block, outside, patches=patches)


def tower_block(sizes: Sizes, prefix: str, layer: Tensors) -> Block:
    """The layers of a vision tower, which has a width of its own and no dropout."""
    return replace(sizes.block(prefix, layer), hidden_size=sizes.hidden, hidden_dropout=0.0, attention_dropout=0.0)


def part(c: Fields, name: str, *model_types: str) -> Fields:
    """A nested configuration; absent, it is all defaults."""
    inner = c.section(name) or Fields({}, f"{c.where}, {name}")
    kind = inner.text("model_type", default=model_types[0])
    if kind not in model_types:
        raise inner.error(f"model_type {kind!r} is not supported, only {' and '.join(model_types)}")
    return inner


def combine(c: Fields, text: Body, vision: Block, outside: Tensors, *, patches: int) -> Body:
    """The vision tower and the projector beside the language model, under one base model."""
    language = tuple(replace(block, prefix=f"language_model.{block.prefix}") for block in text.blocks)
    inner = tuple(replace(tensor, name=f"language_model.{tensor.name}") for tensor in text.outside)
    heads = decoder_heads(
        text.hidden_size,
        text.vocab_size,
        tied=c.flag("tie_word_embeddings", default=True),
        labels=c.labels(),
        suffix="ForConditionalGeneration",
    )
    return replace(
        text,
        blocks=(vision, *language),
        outside=outside + inner,
        encoder_len_fixed=patches,
        heads={name: heads[name] for name in ("ForConditionalGeneration", "Model")},
    )
