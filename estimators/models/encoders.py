"""Encoders: BERT, RoBERTa, DeBERTa and ViT, post-norm and pre-norm, with their training heads; T5 and Whisper."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from .body import Body, Head, Tensors, attention_linears, embedding, feed_forward_linears, linear, norms, parameter
from .config_fields import MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, Fields
from .model_shape import Attention, Block, FeedForward

BERT_ATTENTION = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense")


class Sizes(NamedTuple):
    """Width, depth, attention and feed-forward of an encoder."""

    hidden: int
    layers: int
    attention: Attention
    feed_forward: FeedForward
    hidden_dropout: float
    attention_dropout: float

    @classmethod
    def read(cls, c: Fields, *, activation: str = "gelu", dropout: float = 0.0, **defaults: int) -> Sizes:
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
            hidden_dropout=c.probability("hidden_dropout_prob", default=dropout),
            attention_dropout=c.probability("attention_probs_dropout_prob", default=dropout),
        )

    def block(self, prefix: str, tensors: Tensors) -> Block:
        return Block(
            prefix=prefix,
            count=self.layers,
            stack="encoder",
            norm="layer",
            attention=self.attention,
            feed_forward=self.feed_forward,
            hidden_dropout=self.hidden_dropout,
            attention_dropout=self.attention_dropout,
            tensors=tensors,
        )


def bert_block(sizes: Sizes, attention: Tensors) -> Block:
    """Return BERT's post-norm layers with the given attention tensors."""
    feed_forward = ("intermediate.dense", "output.dense")
    tensors = (
        attention
        + norms(("attention.output.LayerNorm",), sizes.hidden, "layer")
        + feed_forward_linears(sizes.feed_forward, sizes.hidden, feed_forward, bias=True)
        + norms(("output.LayerNorm",), sizes.hidden, "layer")
    )
    return sizes.block("encoder.layer", tensors)


def bert_embeddings(c: Fields, hidden: int, vocab: int, *, types: int, learned_positions: bool = True) -> Tensors:
    """Tensors of the embeddings of words, and of positions and token types if the model has them."""
    tensors = embedding("embeddings.word_embeddings", vocab, hidden)
    if learned_positions:
        rows = c.size("max_position_embeddings", limit=MAX_POSITIONS)
        tensors += embedding("embeddings.position_embeddings", rows, hidden, "position")
    if types:
        tensors += embedding("embeddings.token_type_embeddings", types, hidden)
    return tensors + norms(("embeddings.LayerNorm",), hidden, "layer")


def masked_head(c: Fields, name: str, hidden: int, vocab: int, *, dense: str, norm: str) -> Head:
    """Return the masked-language head: a dense layer, a norm, and the tied output embedding with a separate bias."""
    tied = c.flag("tie_word_embeddings", default=True)
    tensors = (
        parameter(f"{name}.bias", vocab, role="head")
        + linear(f"{name}.{dense}", hidden, hidden, "other", bias=True)
        + norms((f"{name}.{norm}",), hidden, "layer")
    )
    if not tied:
        tensors += linear(f"{name}.decoder", hidden, vocab, "head")
    return Head(tensors=tensors, logits=True, tied=tied)


def bert_masked_head(c: Fields, hidden: int, vocab: int) -> Head:
    return masked_head(c, "cls.predictions", hidden, vocab, dense="transform.dense", norm="transform.LayerNorm")


def bert(c: Fields) -> Body:
    c.refuse("add_cross_attention")
    sizes, vocab, labels = Sizes.read(c, dropout=0.1), c.size("vocab_size", limit=MAX_VOCABULARY), c.labels()
    pooler = linear("pooler.dense", sizes.hidden, sizes.hidden, "other", bias=True)
    masked, classifier = bert_masked_head(c, sizes.hidden, vocab), classify("classifier", sizes.hidden, labels)
    return Body(
        base="bert",
        hidden_size=sizes.hidden,
        vocab_size=vocab,
        max_positions=c.size("max_position_embeddings"),
        blocks=(bert_block(sizes, attention_linears(sizes.attention, sizes.hidden, BERT_ATTENTION, bias=True)),),
        outside=bert_embeddings(c, sizes.hidden, vocab, types=c.size("type_vocab_size", default=2)),
        heads={
            "Model": Head(bare=True, base_tensors=pooler),
            "ForMaskedLM": masked,
            "ForPreTraining": masked._replace(
                base_tensors=pooler,
                tensors=masked.tensors + linear("cls.seq_relationship", sizes.hidden, 2, "head", bias=True),
            ),
            "ForSequenceClassification": classifier._replace(base_tensors=pooler),
            "ForTokenClassification": classifier,
            "ForQuestionAnswering": classify("qa_outputs", sizes.hidden, labels),
        },
    )


def classify(name: str, hidden: int, labels: int) -> Head:
    return Head(tensors=linear(name, hidden, labels, "head", bias=True), labels=labels)


def roberta(c: Fields) -> Body:
    """RoBERTa and XLM-RoBERTa: BERT with other heads."""
    body = bert(c)
    hidden, labels = body.hidden_size, c.labels()
    classifier = classify("classifier.out_proj", hidden, labels)
    own = {
        "ForMaskedLM": masked_head(c, "lm_head", hidden, body.vocab_size, dense="dense", norm="layer_norm"),
        "ForSequenceClassification": classifier._replace(
            tensors=linear("classifier.dense", hidden, hidden, "head", bias=True) + classifier.tensors
        ),
    }
    shared = {name: body.heads[name] for name in ("Model", "ForTokenClassification", "ForQuestionAnswering")}
    return body._replace(base="roberta", heads=shared | own)


def deberta_v2(c: Fields) -> Body:
    """DeBERTa v2 and v3: relative positions in buckets, whose projections may be shared with the attention."""
    sizes, labels, vocab = Sizes.read(c, dropout=0.1), c.labels(), c.size("vocab_size", limit=MAX_VOCABULARY)
    hidden, at = sizes.hidden, "attention.self"
    for name in ("embedding_size", "pooler_hidden_size"):
        if c.size(name, default=hidden) != hidden:
            raise c.error(f"{name} other than hidden_size is not supported")
    names = (f"{at}.query_proj", f"{at}.key_proj", f"{at}.value_proj", BERT_ATTENTION[-1])
    attention = attention_linears(sizes.attention, hidden, names, bias=True)
    types, has_positions = c.count("type_vocab_size", default=0), c.flag("position_biased_input", default=True)
    outside = bert_embeddings(c, hidden, vocab, types=types, learned_positions=has_positions)
    if c.flag("relative_attention", default=False):
        kinds = [] if c.flag("share_att_key", default=False) else c.words("pos_att_type")
        for kind, name in (("c2p", "pos_key_proj"), ("p2c", "pos_query_proj")):
            if kind in kinds:
                attention += linear(f"{at}.{name}", hidden, hidden, "attention", bias=True)
        positions = c.positive("position_buckets") or c.positive("max_relative_positions")
        positions = positions or c.size("max_position_embeddings", limit=MAX_POSITIONS)
        outside += embedding("encoder.rel_embeddings", 2 * positions, hidden, "position")
    if "layer_norm" in c.words("norm_rel_ebd"):
        outside += norms(("encoder.LayerNorm",), hidden, "layer")
    if kernel := c.positive("conv_kernel_size"):
        width = c.divide("hidden_size", hidden, "conv_groups", c.size("conv_groups", default=1))
        outside += (
            parameter("encoder.conv.conv.weight", hidden, width, kernel, role="other")
            + parameter("encoder.conv.conv.bias", hidden, role="other")
            + norms(("encoder.conv.LayerNorm",), hidden, "layer")
        )
    classifier = classify("classifier", hidden, labels)
    pooler = linear("pooler.dense", hidden, hidden, "other", bias=True)
    heads = {
        "Model": Head(bare=True),
        "ForSequenceClassification": classifier._replace(tensors=pooler + classifier.tensors),
        "ForTokenClassification": classifier,
        "ForQuestionAnswering": classify("qa_outputs", hidden, labels),
    }
    if c.flag("legacy", default=True):
        heads["ForMaskedLM"] = bert_masked_head(c, hidden, vocab)
    return Body(
        base="deberta",
        hidden_size=hidden,
        vocab_size=vocab,
        blocks=(bert_block(sizes, attention),),
        heads=heads,
        max_positions=c.size_or_none("max_position_embeddings", limit=MAX_POSITIONS),
        outside=outside,
    )


def vit(c: Fields) -> Body:
    sizes = Sizes.read(c)
    hidden, labels = sizes.hidden, c.labels()
    patches, kernel = patch_grid(c, image=224, patch=16)
    bias = c.flag("qkv_bias", default=True)
    names = ("attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.o_proj")
    layer = (
        attention_linears(sizes.attention, hidden, names, bias=bias, output_bias=True)
        + feed_forward_linears(sizes.feed_forward, hidden, ("mlp.fc1", "mlp.fc2"), bias=True)
        + norms(("layernorm_before", "layernorm_after"), hidden, "layer")
    )
    pooler = linear("pooler.dense", hidden, c.size("pooler_output_size", default=hidden), "other", bias=True)
    return Body(
        base="vit",
        hidden_size=hidden,
        vocab_size=0,
        blocks=(sizes.block("layers", layer),),
        encoder_len_fixed=patches + 1,
        outside=parameter("embeddings.cls_token", 1, 1, hidden, role="embedding")
        + parameter("embeddings.position_embeddings", 1, patches + 1, hidden, role="position")
        + parameter("embeddings.patch_embeddings.projection.weight", hidden, *kernel, role="embedding")
        + parameter("embeddings.patch_embeddings.projection.bias", hidden, role="embedding")
        + norms(("layernorm",), hidden, "layer"),
        heads={
            "ForImageClassification": classify("classifier", hidden, labels),
            "Model": Head(bare=True, base_tensors=pooler),
        },
    )


def patch_grid(c: Fields, *, image: int, patch: int) -> tuple[int, tuple[int, int, int]]:
    """Return the number of patches of an image, and (channels, height, width) of one patch."""
    height, width = c.pair("image_size", default=image)
    rows, columns = c.pair("patch_size", default=patch)
    if rows > height or columns > width:
        raise c.error(f"patch_size {max(rows, columns)} is larger than image_size {min(height, width)}")
    return (height // rows) * (width // columns), (c.size("num_channels", default=3), rows, columns)


def t5(c: Fields, *, feed_forward: str = "relu") -> Body:
    """T5: RMSNorm, no biases, a relative position bias in the first layer of each stack.

    transformers 5 ties the head of a model built from a configuration, whatever the value of `tie_word_embeddings`.
    Loading published weights with a separate head (T5 1.1, Flan-T5) unties it again. The untied head is counted.
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
        """Return the blocks of a stack. Its first layer holds the position bias of all layers."""
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
    decoder = replace(
        encoder,
        prefix="decoder.block",
        count=c.size("num_decoder_layers", default=layers, limit=MAX_LAYERS),
        stack="decoder",
        attention=attention._replace(causal=True),
        cross_attention=attention._replace(cross=True),
        norm_count=3,
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
    """Whisper: a convolution halves the spectrogram's frames, and both stacks have a position table.

    transformers never trains the encoder's table, but it is a parameter and counted, as in `parameters()`.
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
        # Keys have no bias, because softmax cancels it.
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
    decoder = replace(
        encoder,
        prefix="decoder.layers",
        count=layers,
        stack="decoder",
        norm_count=3,
        feed_forward=ffn,
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
