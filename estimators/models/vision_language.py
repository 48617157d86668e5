"""Language models with a vision tower: Gemma 3 (4B and up), Mistral 3, Qwen-VL."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from .body import (
    BIASED,
    Body,
    Style,
    Tensors,
    attention_linears,
    decoder,
    decoder_heads,
    embedding,
    feed_forward_linears,
    group_layers,
    linear,
    norm,
    norms,
    parameter,
)
from .config_fields import MAX_HEADS, MAX_LAYERS, Fields
from .dense_decoders import GELU, LLAMA, gemma3_text, ministral3, mistral, qwen2
from .model_shape import Attention, Block, FeedForward, ImageSize, NormKind


class Sizes(NamedTuple):
    """Width, depth, attention and feed-forward of a vision tower."""

    hidden: int
    layers: int
    attention: Attention
    feed_forward: FeedForward

    @classmethod
    def read(cls, c: Fields, *, activation: str = "gelu", **defaults: int) -> Sizes:
        def size(name: str, **limit: int) -> int:
            return c.size(name, default=defaults.get(name), **limit)

        hidden, heads = size("hidden_size"), size("num_attention_heads", limit=MAX_HEADS)
        dim = c.divide("hidden_size", hidden, "num_attention_heads", heads)
        layers, width = size("num_hidden_layers", limit=MAX_LAYERS), size("intermediate_size")
        return cls(
            hidden=hidden,
            layers=layers,
            attention=Attention(heads=heads, kv_heads=heads, head_dim=dim, v_head_dim=dim, causal=False, rotary=False),
            feed_forward=FeedForward(hidden=width, gated=False, activation=c.text("hidden_act", default=activation)),
        )

    def block(self, prefix: str, layer: Tensors, norm: NormKind = "layer") -> Block:
        """Return the tower's layers, with its own width and no dropout."""
        return Block(
            prefix=prefix,
            count=self.layers,
            stack="encoder",
            norm=norm,
            attention=self.attention,
            feed_forward=self.feed_forward,
            hidden_size=self.hidden,
            tensors=layer,
        )


def patch_grid(c: Fields, *, image: int, patch: int) -> tuple[int, tuple[int, int, int]]:
    """Return the number of patches of an image, and (channels, height, width) of one patch."""
    height, width = c.pair("image_size", default=image)
    rows, columns = c.pair("patch_size", default=patch)
    if rows > height or columns > width:
        raise c.error(f"patch_size {max(rows, columns)} is larger than image_size {min(height, width)}")
    return (height // rows) * (width // columns), (c.size("num_channels", default=3), rows, columns)


def gemma3(c: Fields) -> Body:
    """SigLIP patches, a pooling projector, and Gemma 3's decoder. Each sample has one image."""
    body = gemma3_text(sub_config(c, "text_config", "gemma3_text"))
    vision = sub_config(c, "vision_config", "siglip_vision_model")
    defaults = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
    sizes = Sizes.read(vision, activation=GELU, **defaults)
    hidden, at = sizes.hidden, "vision_tower."
    patches, kernel = patch_grid(vision, image=224, patch=16)
    layer = (
        attention_linears(sizes.attention, hidden, (*LLAMA.attention[:3], "self_attn.out_proj"), bias=True)
        + feed_forward_linears(sizes.feed_forward, hidden, ("mlp.fc1", "mlp.fc2"), bias=True)
        + norms(("layer_norm1", "layer_norm2"), hidden, "layer")
    )
    block = sizes.block(f"{at}encoder.layers", layer)
    project = "multi_modal_projector.mm_"
    projector = parameter(f"{project}input_projection_weight", hidden, body.hidden_size, role="other")
    projector += norm(f"{project}soft_emb_norm", hidden)
    tower = (
        parameter(f"{at}embeddings.patch_embedding.weight", hidden, *kernel, role="embedding")
        + parameter(f"{at}embeddings.patch_embedding.bias", hidden, role="embedding")
        + embedding(f"{at}embeddings.position_embedding", patches, hidden, "position")
        + norms((f"{at}post_layernorm",), hidden, "layer")
    )
    if vision.flag("vision_use_head", default=True):
        tower += _pooling_head(f"{at}head.", hidden, sizes.feed_forward)
    side = c.size("mm_tokens_per_image", default=256)
    # The projector pools a square of patches into each image token.
    merge = math.isqrt(patches // side)
    image = ImageSize(kernel[1], merge, patches * kernel[1] * kernel[2], resized=False)
    return combine(c, body, (block,), tower + projector, patches=patches, image=image)


def _pooling_head(at: str, hidden: int, feed_forward: FeedForward) -> Tensors:
    """SigLIP's pooling head. Its output is not read, so that it gets no gradients. Published models have none."""
    attention = (
        parameter(f"{at}probe", 1, 1, hidden, role="other")
        + parameter(f"{at}attention.in_proj_weight", 3 * hidden, hidden, role="other")
        + parameter(f"{at}attention.in_proj_bias", 3 * hidden, role="other")
        + linear(f"{at}attention.out_proj", hidden, hidden, "other", bias=True)
    )
    rest = norms((f"{at}layernorm",), hidden, "layer")
    rest += feed_forward_linears(feed_forward, hidden, (f"{at}mlp.fc1", f"{at}mlp.fc2"), bias=True)
    return tuple(tensor._replace(role="tower") for tensor in attention + rest)


def mistral3(c: Fields) -> Body:
    """Pixtral's tower at its largest image, a projector that merges patches, and a Mistral decoder."""
    text = sub_config(c, "text_config", "mistral", "ministral3")
    body = (ministral3 if text.text("model_type", default="mistral") == "ministral3" else mistral)(text)
    vision = sub_config(c, "vision_config", "pixtral")
    sizes = Sizes.read(vision, hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16)
    hidden, at = sizes.hidden, "vision_tower."
    patches, kernel = patch_grid(vision, image=1540, patch=14)
    sizes = sizes._replace(
        attention=sizes.attention._replace(rotary=True), feed_forward=sizes.feed_forward._replace(gated=True)
    )
    attention = tuple(f"attention.{name}" for name in ("q_proj", "k_proj", "v_proj", "o_proj"))
    feed_forward = tuple(f"feed_forward.{name}" for name in ("gate_proj", "up_proj", "down_proj"))
    layer = (
        attention_linears(sizes.attention, hidden, attention)
        + feed_forward_linears(sizes.feed_forward, hidden, feed_forward)
        + norms(("attention_norm", "ffn_norm"), hidden, "rms")
    )
    block = sizes.block(f"{at}transformer.layers", layer, "rms")
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
    image = ImageSize(kernel[1], merge, patches * kernel[1] * kernel[2])
    return combine(c, body, (block,), outside, patches=patches, image=image)


IMAGE_TOKENS = 1280
"""Tokens of the one image that each sample is assumed to have by default: the upper limit in Qwen2.5-VL's own examples
(`max_pixels`)."""


class MergingTower(NamedTuple):
    """Qwen's vision tower: identical layers over the patches of an image, and a merger of patches into tokens."""

    block: Block
    outside: Tensors
    image: ImageSize

    @classmethod
    def read(
        cls,
        vision: Fields,
        hidden: int,
        feed_forward: FeedForward,
        names: tuple[str, ...],
        merger: tuple[str, ...],
        *,
        kind: NormKind = "layer",
        depth: int = 32,
        patch: int = 14,
        out: int,
    ) -> MergingTower:
        """Read a tower from its config. names: linear layers of the feed-forward. merger: its norm and linear layers.
        out: width of a token. depth, patch: defaults."""
        heads = vision.size("num_heads", default=16, limit=MAX_HEADS)
        dim = vision.divide("hidden_size", hidden, "num_heads", heads)
        attention = Attention(heads=heads, kv_heads=heads, head_dim=dim, v_head_dim=dim, causal=False)
        layer = (
            attention_linears(attention, hidden, ("attn.qkv", "attn.proj"), bias=True)
            + feed_forward_linears(feed_forward, hidden, names, bias=True)
            + norms(("norm1", "norm2"), hidden, kind)
        )
        block = Block(
            prefix="visual.blocks",
            count=vision.size("depth", default=depth, limit=MAX_LAYERS),
            stack="encoder",
            hidden_size=hidden,
            attention=attention,
            feed_forward=feed_forward,
            tensors=layer,
        )
        patch, merge = vision.size("patch_size", default=patch), vision.size("spatial_merge_size", default=2)
        frames = vision.size("temporal_patch_size", default=2)
        kernel = (vision.size("in_channels", "in_chans", default=3), frames, patch, patch)
        outside = parameter("visual.patch_embed.proj.weight", hidden, *kernel, role="embedding")
        image = ImageSize(patch, merge, IMAGE_TOKENS * (patch * merge) ** 2)
        return cls(block, outside + _merger("visual.", merger, hidden, hidden * merge**2, out, kind), image)

    def add_language_model(self, c: Fields, text: Body, blocks: tuple[Block, ...] | None = None) -> Body:
        vision = (self.block,) if blocks is None else blocks
        return combine(c, text, vision, self.outside, patches=self.image.patches, tied=False, image=self.image)


def _merger(at: str, names: tuple[str, ...], width: int, merged: int, out: int, kind: NormKind) -> Tensors:
    """Tensors of a merger: a norm over `width`, and two linear layers from `merged` to `out`."""
    before, first, last = (at + name for name in names)
    return (
        norms((before,), width, kind)
        + linear(first, merged, merged, "other", bias=True)
        + linear(last, merged, out, "other", bias=True)
    )


def _qwen2_text(c: Fields) -> Body:
    """Build the language model. Its fields are in `text_config` or, in older files, next to `vision_config`."""
    return qwen2(c.section("text_config") or c)


_MERGER = ("merger.ln_q", "merger.mlp.0", "merger.mlp.2")


def qwen2_vl(c: Fields) -> Body:
    """A vision tower of LayerNorms, and Qwen2's decoder."""
    vision = sub_config(c, "vision_config", "qwen2_vl", "qwen2_vl_vision")
    hidden = vision.size("embed_dim", default=1280)
    width = hidden * vision.size("mlp_ratio", default=4)
    feed_forward = FeedForward(hidden=width, gated=False, activation=vision.text("hidden_act", default="quick_gelu"))
    names, out = ("mlp.fc1", "mlp.fc2"), vision.size("hidden_size", default=3584)
    return MergingTower.read(vision, hidden, feed_forward, names, _MERGER, out=out).add_language_model(
        c, _qwen2_text(c)
    )


def qwen2_5_vl(c: Fields) -> Body:
    """A vision tower with windowed attention in most layers, and Qwen2's decoder."""
    vision = sub_config(c, "vision_config", "qwen2_5_vl", "qwen2_5_vl_vision")
    hidden, width = vision.size("hidden_size", default=3584), vision.size("intermediate_size", default=3420)
    feed_forward = FeedForward(hidden=width, gated=True, activation=vision.text("hidden_act", default="silu"))
    names, out = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"), vision.size("out_hidden_size", default=3584)
    tower = MergingTower.read(vision, hidden, feed_forward, names, _MERGER, kind="rms", out=out)
    reach = (vision.size("window_size", default=112) // tower.image.patch) ** 2
    whole = replace(tower.block, count=1)
    windowed = replace(whole, attention=whole.attention._replace(window=max(1, reach), chunked=True))
    full = vision.items("fullatt_block_indexes") or [7, 15, 23, 31]
    blocks = group_layers([whole if index in full else windowed for index in range(tower.block.count)])
    return tower.add_language_model(c, _qwen2_text(c), blocks)


def deep_tower(vision: Fields, out: int, *, inner: int = 0) -> MergingTower:
    """The tower of Qwen3-VL and Qwen3.5: LayerNorms, biases, learned positions, and further mergers for the patches of
    `inner` layers that are passed to the language model."""
    hidden = vision.size("hidden_size", default=1152)
    width, activation = vision.size("intermediate_size", default=4304), vision.text("hidden_act", default=GELU)
    feed_forward = FeedForward(hidden=width, gated=False, activation=activation)
    names, merger = ("mlp.linear_fc1", "mlp.linear_fc2"), ("norm", "linear_fc1", "linear_fc2")
    out = vision.size("out_hidden_size", default=out)
    at_end = tuple(f"merger.{name}" for name in merger)
    tower = MergingTower.read(vision, hidden, feed_forward, names, at_end, depth=27, patch=16, out=out)
    merged = hidden * tower.image.merge**2
    outside = parameter("visual.patch_embed.proj.bias", hidden, role="embedding")
    outside += embedding("visual.pos_embed", vision.size("num_position_embeddings", default=2304), hidden, "position")
    for index in range(inner):
        outside += _merger(f"visual.deepstack_merger_list.{index}.", merger, merged, merged, out, "layer")
    return tower._replace(outside=tower.outside + outside)


def qwen3_vl(c: Fields) -> Body:
    """A deep tower (`deep_tower`) and Qwen3's decoder."""
    text = decoder(Style(qk_norm="head", biases=BIASED), num_key_value_heads=32, head_dim=128)
    return deepstack(c, text(sub_config(c, "text_config", "qwen3_vl_text")))


def deepstack(c: Fields, text: Body) -> Body:
    """Combine Qwen3-VL's tower with a language model, which by default gets the patches of three layers."""
    vision = sub_config(c, "vision_config", *(f"qwen3_vl{each}" for each in ("", "_vision", "_moe", "_moe_vision")))
    seen = vision.items("deepstack_visual_indexes")
    return deep_tower(vision, 3584, inner=3 if seen is None else len(seen)).add_language_model(c, text)


def add_idle_tower(c: Fields, text: Body) -> Body:
    """Return Qwen3.5's model with the tensors of its vision tower outside the blocks, because text does not use it."""
    vision = sub_config(c, "vision_config", "qwen3_5", "qwen3_5_vision", "qwen3_5_moe", "qwen3_5_moe_vision")
    block, tower, _ = deep_tower(vision, text.hidden_size)
    # One by one, because these tensors are outside the blocks and need their full names.
    for layer in range(block.count):
        tower += tuple(each._replace(name=f"{block.prefix}.{layer}.{each.name}") for each in block.tensors)
    tower = tuple(tensor._replace(role="tower") for tensor in tower)
    # Samples are text, so there is no encoder stream and no number of patches.
    return combine(c, text, (), tower, patches=1, tied=False)._replace(encoder_len_fixed=None, idle_tower=True)


def sub_config(c: Fields, name: str, *model_types: str) -> Fields:
    """Return a nested configuration; with all defaults if it is absent."""
    inner = c.section(name) or Fields({}, f"{c.where}, {name}")
    kind = inner.text("model_type", default=model_types[0])
    if kind not in model_types:
        raise inner.error(f"model_type {kind!r} is not supported, only {' and '.join(model_types)}")
    return inner


def combine(
    c: Fields,
    text: Body,
    vision: tuple[Block, ...],
    outside: Tensors,
    *,
    patches: int,
    tied: bool = True,
    image: ImageSize | None = None,
) -> Body:
    """Combine the vision tower, the projector and the language model into one base model.

    tied: the class's default of `tie_word_embeddings`.
    """
    language = tuple(replace(block, prefix=f"language_model.{block.prefix}") for block in text.blocks)
    inner = tuple(tensor._replace(name=f"language_model.{tensor.name}") for tensor in text.outside)
    heads = decoder_heads(
        text.hidden_size,
        text.vocab_size,
        tied=c.flag("tie_word_embeddings", default=tied),
        labels=c.labels(),
        suffix="ForConditionalGeneration",
    )
    return text._replace(
        blocks=(*vision, *language),
        outside=outside + inner,
        encoder_len_fixed=patches,
        image=image,
        heads={name: heads[name] for name in ("ForConditionalGeneration", "Model")},
    )
