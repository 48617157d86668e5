"""Language models with a vision tower: Gemma 3 (4B and up) and Mistral 3."""

from __future__ import annotations

from dataclasses import replace

from ..model_shape import Block
from .body import Body, decoder_heads, norms
from .encoder import Sizes, patch_grid
from .fields import Fields
from .llama import gemma3_text, ministral3, mistral
from .parts import Tensors, attention_linears, embedding, feed_forward_linears, linear, norm, parameter

QKV = ("q_proj", "k_proj", "v_proj")


def gemma3(c: Fields) -> Body:
    """SigLIP patches, a pooling projector, and Gemma 3's decoder. The vision stack sees one image a sample."""
    body = gemma3_text(part(c, "text_config", "gemma3_text"))
    vision = part(c, "vision_config", "siglip_vision_model")
    sizes = Sizes.read(
        vision,
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=12,
        activation="gelu_pytorch_tanh",
    )
    if vision.flag("vision_use_head", default=True):
        raise vision.error("vision_use_head must be false", why="Gemma 3's published models have no pooling head")
    hidden, at = sizes.hidden, "vision_tower."
    patches, kernel = patch_grid(vision, image=224, patch=16)
    block = Block(
        prefix=f"{at}encoder.layers",
        count=sizes.layers,
        stack="encoder",
        norm="layer",
        hidden_size=hidden,
        attention=sizes.attention,
        feed_forward=sizes.feed_forward,
        tensors=attention_linears(
            sizes.attention,
            hidden,
            tuple(f"self_attn.{name}" for name in QKV),
            "self_attn.out_proj",
            bias=True,
            output_bias=True,
        )
        + feed_forward_linears(sizes.feed_forward, hidden, ("mlp.fc1",), "mlp.fc2", bias=True)
        + norms(("layer_norm1", "layer_norm2"), hidden, "layer"),
    )
    projector = parameter(
        "multi_modal_projector.mm_input_projection_weight", hidden, body.hidden_size, role="other"
    ) + norm("multi_modal_projector.mm_soft_emb_norm", hidden)
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
    feed_forward = replace(sizes.feed_forward, gated=True)
    block = Block(
        prefix=f"{at}transformer.layers",
        count=sizes.layers,
        stack="encoder",
        hidden_size=hidden,
        attention=replace(sizes.attention, rotary=True),
        feed_forward=feed_forward,
        tensors=attention_linears(
            sizes.attention, hidden, tuple(f"attention.{name}" for name in QKV), "attention.o_proj"
        )
        + feed_forward_linears(
            feed_forward, hidden, ("feed_forward.gate_proj", "feed_forward.up_proj"), "feed_forward.down_proj"
        )
        + norms(("attention_norm", "ffn_norm"), hidden, "rms"),
    )
    if (layer := c.number("vision_feature_layer", default=-1)) != -1:
        raise c.error(f"vision_feature_layer {layer} is not supported")
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
