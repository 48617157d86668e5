"""The model as the estimators see it: its parameter tensors and the dimensions of its blocks.

`estimators.models.families` builds a `ModelShape` from a `config.json` without torch. It lists every parameter tensor
with its name and shape in the transformers class, because ZeRO-3 partitions, pads and gathers tensor by tensor, LoRA
adapts module by module, and the exact count is then a plain sum.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal, NamedTuple

from .program import OuterPrograms, Program

Role = Literal[
    "embedding", "position", "attention", "feed_forward", "expert", "router", "norm", "head", "tower", "other"
]
"""Role of a tensor. tower: any tensor of a vision tower outside the blocks."""
NormKind = Literal["rms", "layer"]


class Tensor(NamedTuple):
    name: str
    """The name in `named_parameters()`; inside a `Block` relative to the layer (`self_attn.q_proj.weight`)."""
    shape: tuple[int, ...]
    """The shape in torch, so (out_features, in_features) for `nn.Linear` and (in, out) for GPT-2's `Conv1D`."""
    role: Role
    linear: bool = False
    """Whether it is the weight of an `nn.Linear` or `Conv1D`, which `--lora-targets` may name."""
    transposed: bool = False
    """Whether it is stored as (in, out), as in `Conv1D`, or as (expert, in, out)."""
    frozen: bool = False
    """Whether it is frozen (`--freeze`). LoRA does not adapt it."""

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def in_features(self) -> int:
        return self.shape[-2] if self.transposed else self.shape[-1]

    @property
    def out_features(self) -> int:
        return self.shape[-1] if self.transposed else self.shape[-2]


class Attention(NamedTuple):
    """Dimensions of one attention module: A heads, K key/value heads.

    `kv_lora_rank` and `rope_head_dim` belong to DeepSeek's multi-head latent attention; they are 0 elsewhere.
    """

    heads: int
    kv_heads: int
    head_dim: int
    """The width of one query or key head."""
    v_head_dim: int
    """The width of one value head, which differs in latent attention."""
    causal: bool = True
    cross: bool = False
    """Whether keys and values come from the encoder."""
    rotary: bool = True
    """Whether a rotary position embedding is applied to queries and keys."""
    qk_norm: bool = False
    window: int | None = None
    """Largest number of keys that a query sees (sliding window); None for all."""
    chunked: bool = False
    """Whether each window has a separate attention call, so that no mask is needed."""
    softcap: bool = False
    gated: bool = False
    """Whether the output is multiplied by the sigmoid of a gate, which the query projection also computes."""
    chunk: int = 0
    """Tokens per chunk of linear attention by the gated delta rule; 0 for softmax attention. In linear attention
    `heads` are the value heads, and `kv_heads` the query and key heads."""
    kv_lora_rank: int = 0
    rope_head_dim: int = 0
    tokens: int = 0
    keys: int = 0
    """Number of queries and keys of an attention in a user's module, independent of S; 0 elsewhere."""

    def rank_share(self, sequence_parallel_size: int) -> Attention:
        """Return the part of one of the ranks that share a sample: all tokens, for a share of the heads."""
        ranks = sequence_parallel_size
        if ranks == 1:
            return self
        # With fewer key-value heads than ranks each rank gets a repeated one.
        return self._replace(heads=self.heads // ranks, kv_heads=max(1, self.kv_heads // ranks))


def build_attention(details: Iterable[tuple[str, int]], window: int | None = None) -> Attention:
    """Return the dimensions of a recorded attention. Its rotary embedding is recorded separately."""
    sizes = dict(details)
    return Attention(
        heads=sizes["heads"],
        kv_heads=sizes["kv_heads"],
        head_dim=sizes["head_dim"],
        v_head_dim=sizes["v_head_dim"],
        causal=bool(sizes["causal"] or sizes["masked"]),
        rotary=False,
        window=window,
        tokens=sizes["tokens"],
        keys=sizes["keys"],
    )


class FeedForward(NamedTuple):
    """Dimensions of one feed-forward module (dense, or a mixture of experts)."""

    hidden: int
    """F, the inner width of one expert, or of the dense module."""
    gated: bool
    """Whether there are two input projections, as in SwiGLU."""
    activation: str
    experts: int = 0
    """Number of routed experts; 0 for a dense module. Each token passes `experts_per_token` of them."""
    experts_per_token: int = 0
    shared_hidden: int = 0
    """Inner width of the shared experts, which every token passes; 0 for none."""
    autoep_size: int = 1
    """Number of ranks over which the routed experts are spread (AutoEP). `experts` counts those of all ranks."""


class Input(NamedTuple):
    """An input tensor of the `forward` of a user's module."""

    shape: tuple[int, ...]
    """The shape of one sample."""
    dtype: str = "float"
    """torch's name of the type; "float" for the training precision."""


BatchForm = Literal["tuple", "dict", "nested"]


class UserModule(NamedTuple):
    factory: str
    """FILE.py:FUNCTION; "" for an object of the calling process."""
    inputs: tuple[Input, ...] = ()
    """Inputs of its `forward`; empty if the file defines `make_batch`."""
    checkpointing: str = ""
    """The statement that switches on gradient checkpointing; "" if the module does not support it."""
    batch: BatchForm = "tuple"
    """Form of a batch. "nested": not all of its items are tensors."""
    floats: Literal["none", "some", "all"] = "some"
    """How many of the batch's tensors have the training precision."""
    loss: str = "loss_fn"
    """The loss of a training step: "loss_fn", the user's function; else the part of the output that is the loss, ""
    for the output itself, ".loss" or "[0]"; "unknown" if the output has no loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A run of `count` identical transformer layers."""

    prefix: str
    """The name of the layer list (`model.layers`); layer i is `prefix.i`, counted over all blocks of that prefix."""
    count: int
    tensors: tuple[Tensor, ...]
    """The parameters of ONE layer."""
    attention: Attention
    feed_forward: FeedForward
    cross_attention: Attention | None = None
    stack: Literal["decoder", "encoder"] = "decoder"
    """The token stream that the layers process: "decoder" has S tokens, "encoder" `ModelShape.encoder_len(S)`."""
    norm: NormKind = "rms"
    norm_count: int = 2
    """Norms over the hidden size in one layer: 2 for pre-norm, 4 for Gemma's sandwich."""
    hidden_size: int = 0
    """Width of its stream (a vision tower); 0 for the model's."""
    tokens: int = 0
    """Tokens of its stream in each sample, independent of S; 0 for the length of `stack`."""
    hidden_dropout: float = 0.0
    """The probability of dropout on the branches' outputs while training."""
    attention_dropout: float = 0.0
    """The probability of dropout on the attention weights while training."""
    program: Program | None = None
    """Program of one layer, recorded from the model's own code; None if it was not recorded."""

    @property
    def parameters_per_layer(self) -> int:
        return sum(tensor.numel for tensor in self.tensors)

    @property
    def parameters(self) -> int:
        return self.count * self.parameters_per_layer


class ImageSize(NamedTuple):
    """The largest image of a sample, and its division into patches and tokens."""

    patch: int
    merge: int
    """Neighbouring patches merged along each side: merge^2 patches become one token of the sequence."""
    pixels: int
    resized: bool = True
    """Whether the processor keeps an image's proportions, up to a number of pixels. Otherwise all have one size."""

    @property
    def unit(self) -> int:
        """Side of the square that becomes one token, in pixels."""
        return self.patch * self.merge

    @property
    def tokens(self) -> int:
        return self.pixels // self.unit**2

    @property
    def patches(self) -> int:
        return self.tokens * self.merge**2


@dataclass(frozen=True, kw_only=True, repr=False)
class ModelShape:
    """A model: its tensors, blocks and the dimensions outside the blocks."""

    name: str
    """The name that the user gave, or the catalogue's hub id."""
    model_type: str
    architecture: str
    hidden_size: int
    vocab_size: int
    """V, the width of the logits; 0 for a model without a vocabulary, such as ViT."""
    blocks: tuple[Block, ...]
    outside: tuple[Tensor, ...]
    """The parameters outside the repeated layers (embeddings, final norm, untied head); tied tensors appear once."""
    tied: bool
    """Whether the output head is the input embedding."""
    num_labels: int = 0
    """Width of a classification head's output; 0 for a language model."""
    max_positions: int | None = None
    """Longest sequence that the positions allow; None if unknown."""
    encoder_len_fixed: int | None = None
    """Tokens of the encoder stream if independent of S (ViT: patches + 1, Whisper: 1500 frames); otherwise None."""
    image: ImageSize | None = None
    """Image size of a vision tower within the blocks; None for other models."""
    images: int | None = None
    """Images of a sample as the user stated; None for the default. `encoder_len_fixed` counts the patches of all."""
    logit_softcap: bool = False
    """Whether the final logits are soft-capped (Gemma 2), which keeps extra copies."""
    idle_tower: bool = False
    """Whether a vision tower is outside the blocks, because text samples do not use it."""
    source: str = ""
    """Source of the dimensions: a catalogue's source, a file, the hub."""
    outer_programs: OuterPrograms | None = None
    """Programs around the layers, recorded from the model's own code; None if they were not recorded."""
    peft_experts: tuple[tuple[str, str], ...] = ()
    """`FamilySpec.peft_experts` of a recorded model."""
    pair_router: bool = False
    """Whether its router is a linear layer with two results (transformers 5.23 Llama4Router)."""
    module: UserModule | None = None
    """The user's module, one block whose program begins with the batch and ends with the loss; None otherwise."""
    policy: ModelShape | None = None
    """The policy, if this is a policy with its value model (`objectives.trained_model`); None otherwise."""
    quantized: str = ""
    """Quantization method of the checkpoint (gptq, awq, fp8, ...); "" for unquantized weights."""
    dtype: str = ""
    """Type of the published weights, as in `bfloat16`; "" if the `config.json` does not state it."""

    def __repr__(self) -> str:
        return f"<ModelShape {self.name}: {self.architecture}, {self.parameters:,} parameters>"

    def __hash__(self) -> int:
        # Estimators cache by model. Hashing thousands of tensors for each look-up would cost more than it saves.
        return hash((self.name, self.model_type, self.parameters))

    @cached_property
    def parameters(self) -> int:
        """P: exact number of parameters, counting tied ones once."""
        return sum(tensor.numel for tensor in self.outside) + sum(block.parameters for block in self.blocks)

    @cached_property
    def num_layers(self) -> int:
        """L: number of layers of all blocks."""
        return sum(block.count for block in self.blocks)

    @cached_property
    def tensor_counts(self) -> tuple[tuple[Tensor, int], ...]:
        """Every distinct tensor with its number of occurrences in the model."""
        return tuple((tensor, 1) for tensor in self.outside) + tuple(
            (tensor, block.count) for block in self.blocks for tensor in block.tensors
        )

    @cached_property
    def has_frozen(self) -> bool:
        return any(tensor.frozen for tensor, _ in self.tensor_counts)

    @property
    def generator(self) -> ModelShape:
        """The part of the model that generates: its policy, if it also has a value model, else the model itself."""
        return self.policy or self

    @property
    def is_moe(self) -> bool:
        return any(block.feed_forward.experts for block in self.blocks)

    @property
    def autoep_size(self) -> int:
        return max((block.feed_forward.autoep_size for block in self.blocks), default=1)

    @property
    def has_learned_positions(self) -> bool:
        """Whether a position embedding limits the sequence length (rotary and relative positions do not)."""
        return any(tensor.role == "position" for tensor in self.outside)

    @property
    def fixed_len(self) -> int | None:
        """Tokens of every sample if nothing depends on S (ViT: patches + 1); None for a model of sequences."""
        follows = any(block.stack != "encoder" for block in self.blocks)
        return None if follows else self.encoder_len_fixed

    @property
    def unit(self) -> Literal["tokens", "samples"]:
        """Unit of speeds: "samples" for a module whose batches do not depend on a sequence length, else "tokens"."""
        return "samples" if self.module and self.fixed_len == 1 else "tokens"

    @property
    def images_of_samples(self) -> str:
        """The images in each sample, in words; "" for a model without a vision tower of its own width."""
        if self.images and self.image:
            return (
                f"{self.images} images of {self.image.patches:,} patches in each sample, which take "
                f"{self.images * self.image.tokens:,} tokens of the sequence"
            )
        if not any(block.hidden_size for block in self.blocks):
            return ""
        patches = self.encoder_len_fixed or max(block.tokens for block in self.blocks)
        return f"one image of {patches:,} patches in each sample"

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions about the layers and about a sample's content besides text."""
        phrases = list[str]()
        if self.outer_programs:
            recorded = "layers recorded from the module's own code"
            phrases.append(recorded if self.module else "layers recorded from transformers' own code")
        if images := self.images_of_samples:
            phrases.append(images)
        if self.idle_tower:
            phrases.append("text-only samples: the vision tower is in memory and updated, but computes nothing")
        if any(block.attention.chunk for block in self.blocks):
            phrases.append(
                "linear attention saves the same tensors as transformers' code (the kernels of "
                "flash-linear-attention save less), and has the speed of attention over a chunk (not compared "
                "with a GPU)"
            )
        if any(1 < block.feed_forward.experts == block.feed_forward.experts_per_token for block in self.blocks):
            phrases.append("every expert computes every token, as in transformers' code")
        return tuple(phrases)

    def encoder_len(self, seq_len: int) -> int:
        """Return the tokens in the encoder stream for a sequence length S of the workload."""
        return self.encoder_len_fixed or seq_len

    def activation_width(self, block: Block) -> int:
        """Return the width of the stream that a block processes. A vision tower has its own."""
        return block.hidden_size or self.hidden_size

    def stream_len(self, block: Block, seq_len: int) -> int:
        """Return the tokens in the stream that a block processes."""
        if block.tokens:
            return block.tokens
        return self.encoder_len(seq_len) if block.stack == "encoder" else seq_len
