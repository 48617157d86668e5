"""Encoder-decoders: T5 (and mT5), and Whisper."""

from __future__ import annotations

from dataclasses import replace

from ..model_shape import Attention, Block, FeedForward
from .body import Body, Head, norms
from .fields import MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, Fields
from .parts import Tensors, attention_linears, embedding, feed_forward_linears, linear, parameter


def t5(c: Fields) -> Body:
    return _t5(c, feed_forward="relu")


def mt5(c: Fields) -> Body:
    return _t5(c, feed_forward="gated-gelu")


def _t5(c: Fields, *, feed_forward: str) -> Body:
    """T5: RMSNorm, no biases, a relative position bias in the first layer of each stack.

    transformers 5 ties the head of a model built from a configuration, whatever `tie_word_embeddings` says; loading
    published weights with a head of their own (T5 1.1, Flan-T5) unties it again. Counted is the latter.
    """
    hidden, heads = c.size("d_model", "hidden_size"), c.size("num_heads", "num_attention_heads", limit=MAX_HEADS)
    dim, layers = c.size("d_kv", "head_dim", default=64), c.size("num_layers", "num_hidden_layers", limit=MAX_LAYERS)
    vocab = c.size("vocab_size", limit=MAX_VOCABULARY)
    kind = c.text("feed_forward_proj", default=feed_forward)
    gated = kind.startswith("gated-")
    activation = "gelu_new" if kind == "gated-gelu" else kind.removeprefix("gated-")
    ffn = FeedForward(hidden=c.size("d_ff"), gated=gated, activation=activation)
    attention = Attention(heads=heads, kv_heads=heads, head_dim=dim, v_head_dim=dim, causal=False, rotary=False)
    dropout = c.probability("dropout_rate", default=0.1)
    buckets = c.size("relative_attention_num_buckets", default=32)

    def attend(at: str, name: str) -> Tensors:
        names = tuple(f"{at}.{name}.{projection}" for projection in "qkvo")
        return attention_linears(attention, hidden, names) + norms((f"{at}.layer_norm",), hidden, "rms")

    def feed(at: str) -> Tensors:
        names = tuple(f"{at}.DenseReluDense.{name}" for name in (("wi_0", "wi_1", "wo") if gated else ("wi", "wo")))
        return feed_forward_linears(ffn, hidden, names) + norms((f"{at}.layer_norm",), hidden, "rms")

    def blocks(layer: Block) -> tuple[Block, ...]:
        """The first layer holds the position bias for all."""
        bias = embedding("layer.0.SelfAttention.relative_attention_bias", buckets, heads, "position")
        first = replace(layer, count=1, tensors=bias + layer.tensors)
        return (first, replace(layer, count=layer.count - 1)) if layer.count > 1 else (first,)

    encoder = Block(
        prefix="encoder.block",
        count=layers,
        stack="encoder",
        attention=attention,
        feed_forward=ffn,
        hidden_dropout=dropout,
        attention_dropout=dropout,
        tensors=attend("layer.0", "SelfAttention") + feed("layer.1"),
    )
    decoder = Block(
        prefix="decoder.block",
        count=c.size("num_decoder_layers", default=layers, limit=MAX_LAYERS),
        attention=attention._replace(causal=True),
        cross_attention=attention._replace(cross=True),
        feed_forward=ffn,
        norm_count=3,
        hidden_dropout=dropout,
        attention_dropout=dropout,
        tensors=attend("layer.0", "SelfAttention") + attend("layer.1", "EncDecAttention") + feed("layer.2"),
    )
    tied = c.flag("tie_word_embeddings", default=True)
    head = Head(tensors=() if tied else linear("lm_head", hidden, vocab, "head"), logits=True, tied=tied)
    return Body(
        base="",
        hidden_size=hidden,
        vocab_size=vocab,
        blocks=blocks(encoder) + blocks(decoder),
        outside=embedding("shared", vocab, hidden)
        + norms(("encoder.final_layer_norm", "decoder.final_layer_norm"), hidden, "rms"),
        heads={"ForConditionalGeneration": head, "WithLMHeadModel": head, "Model": Head(bare=True)},
    )


def whisper(c: Fields) -> Body:
    """Whisper: a convolution halves the spectrogram's frames, and both stacks have positions by table.

    The encoder's table is a parameter that transformers never trains; it is counted, as in `parameters()`.
    """
    c.refuse("use_weighted_layer_sum")
    hidden, vocab = c.size("d_model", "hidden_size"), c.size("vocab_size", limit=MAX_VOCABULARY)
    frames, mels = c.size("max_source_positions", limit=MAX_POSITIONS), c.size("num_mel_bins")
    length = c.size("max_target_positions", limit=MAX_POSITIONS)

    def stack(name: str) -> tuple[int, Attention, FeedForward]:
        heads = c.size(f"{name}_attention_heads", limit=MAX_HEADS)
        dim = c.divide("d_model", hidden, f"{name}_attention_heads", heads)
        layers, width = c.size(f"{name}_layers", limit=MAX_LAYERS), c.size(f"{name}_ffn_dim")
        attention = Attention(heads=heads, kv_heads=heads, head_dim=dim, v_head_dim=dim, causal=False, rotary=False)
        activation = c.text("activation_function", default="gelu")
        return layers, attention, FeedForward(hidden=width, gated=False, activation=activation)

    dropout, attention_dropout = (c.probability(name, default=0.0) for name in ("dropout", "attention_dropout"))

    def attend(dims: Attention, name: str) -> Tensors:
        names = tuple(f"{name}.{projection}" for projection in ("q_proj", "k_proj", "v_proj", "out_proj"))
        tensors = attention_linears(dims, hidden, names, bias=True) + norms((f"{name}_layer_norm",), hidden, "layer")
        # Keys have no bias: softmax would not see it.
        return tuple(tensor for tensor in tensors if not tensor.name.endswith("k_proj.bias"))

    def feed(dims: FeedForward) -> Tensors:
        linears = feed_forward_linears(dims, hidden, ("fc1", "fc2"), bias=True)
        return linears + norms(("final_layer_norm",), hidden, "layer")

    layers, attention, ffn = stack("encoder")
    encoder = Block(
        prefix="encoder.layers",
        count=layers,
        stack="encoder",
        norm="layer",
        attention=attention,
        feed_forward=ffn,
        hidden_dropout=dropout,
        attention_dropout=attention_dropout,
        tensors=attend(attention, "self_attn") + feed(ffn),
    )
    layers, attention, ffn = stack("decoder")
    decoder = Block(
        prefix="decoder.layers",
        count=layers,
        norm="layer",
        norm_count=3,
        feed_forward=ffn,
        hidden_dropout=dropout,
        attention_dropout=attention_dropout,
        attention=attention._replace(causal=True),
        cross_attention=attention._replace(cross=True),
        tensors=attend(attention, "self_attn") + attend(attention, "encoder_attn") + feed(ffn),
    )
    outside = (
        parameter("encoder.conv1.weight", hidden, mels, 3, role="embedding")
        + parameter("encoder.conv1.bias", hidden, role="embedding")
        + parameter("encoder.conv2.weight", hidden, hidden, 3, role="embedding")
        + parameter("encoder.conv2.bias", hidden, role="embedding")
        + embedding("encoder.embed_positions", frames, hidden, "position")
        + norms(("encoder.layer_norm",), hidden, "layer")
        + embedding("decoder.embed_tokens", vocab, hidden)
        + embedding("decoder.embed_positions", length, hidden, "position")
        + norms(("decoder.layer_norm",), hidden, "layer")
    )
    tied = c.flag("tie_word_embeddings", default=True)
    head = Head(tensors=() if tied else linear("proj_out", hidden, vocab, "head"), logits=True, tied=tied)
    return Body(
        base="model",
        hidden_size=hidden,
        vocab_size=vocab,
        blocks=(encoder, decoder),
        outside=outside,
        max_positions=length,
        encoder_len_fixed=frames,
        heads={"ForConditionalGeneration": head, "Model": Head(bare=True)},
    )
