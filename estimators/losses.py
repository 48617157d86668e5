"""Losses over the vocabulary: what each computes in parts, and which of them a training backend offers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from .models.families import supports
from .models.model_shape import ModelShape
from .phrase import phrase
from .workload import NEXT_TOKEN, Framework, LossKernel, Software, Workload


class LossSpec(NamedTuple):
    """A kernel of the loss."""

    logit_bytes: tuple[int, int]
    """Bytes per logit that the forward and the backward pass move through GPU memory."""
    makes_logits: bool
    """Whether all logits exist at once. The model's output then holds them."""
    head_again: bool = False
    """Whether the backward pass repeats the product of the output layer."""
    switch: str = ""
    """What it takes besides an argument: a package, or the function that turns it on; "" where it takes more."""


LOSSES: Mapping[LossKernel, LossSpec] = MappingProxyType(
    {
        # transformers' ForCausalLMLoss: upcast to fp32 (2 + 4), log-softmax (4 + 4); backward softmax gradient (4 + 4
        # + 4), back to 2 bytes (4 + 2), its read by the head's products (2 + 2).
        "standard": LossSpec((14, 22), True),
        # Liger's fused linear cross entropy: logits of a chunk in the compute dtype, overwritten by their gradient.
        "fused": LossSpec((4, 8), False, switch="pip install liger-kernel"),
        # flash-attn, unsloth: the gradient is written over the logits.
        "in-place": LossSpec((4, 8), True),
        # litgpt, torchtune: the passes of the standard loss, with an fp32 copy of a part at a time.
        "chunked": LossSpec((14, 22), True),
        # DeepSpeed's install_chunked_causal_lm_loss (0.19.8 runtime/chunked_cross_entropy.py): one kernel reads the
        # logits (2 + 2 with their write); backward one reads them and writes their gradient (2 + 2), which the head's
        # products read (2 + 2).
        "chunked-softmax": LossSpec((4, 8), True, switch="install_chunked_causal_lm_loss"),
        # TRL's add_fused_lm_head (1.16 kernels/chunked_logprob.py): a tile of logits written and read (2 + 2);
        # backward written and read again, overwritten by its gradient, which the head's products read (4 + 2 + 4).
        "chunked-head": LossSpec((4, 10), False, head_again=True),
        # TRL's selective_log_softmax (1.16 kernels/logprob_entropy.py) of the logits without the last token: read once;
        # backward read, their gradient written, put among zeros (2 + 2 + 2) and read by the head's products (2 + 2).
        "log-probs": LossSpec((4, 14), True),
        # The same, and the cross entropy of the chosen half in 16 bits (experimental/orpo): copied, log-softmax;
        # backward two gradients, put among zeros twice and added.
        "odds-ratio": LossSpec((8, 28), True),
        # DeepSpeed's sequence_tiled_compute: the standard loss of a tile, with its forward pass again.
        "tiled": LossSpec((14, 36), False, head_again=True),
    }
)
"""The kernels by the values of `Workload.loss`. Each is exact."""

UPCAST_HEADS = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration")
"""Classes with a loss through `loss_function`, which upcasts; others pass bf16 logits to CrossEntropyLoss."""

NATIVE_HEADS = frozenset(
    [
        "BertForMaskedLM",
        "DebertaForMaskedLM",
        "DebertaV2ForMaskedLM",
        "MT5ForConditionalGeneration",
        "RobertaForMaskedLM",
        "T5ForConditionalGeneration",
        "WhisperForConditionalGeneration",
    ]
)
"""Exceptions among them."""

_OF_CAUSAL_MODELS: tuple[LossKernel, ...] = ("fused", "chunked-softmax", "chunked-head")

CHUNKS_THE_HEAD = (1, 7)
"""First TRL whose trainers compute log-probabilities through a chunked head (trl/trainer/utils.py
`add_fused_lm_head`)."""


def upcasts(model: ModelShape) -> bool:
    """Whether the standard loss makes an fp32 copy of the logits."""
    return model.architecture.endswith(UPCAST_HEADS) and model.architecture not in NATIVE_HEADS


def default_loss(framework: Framework, software: Software) -> LossKernel:
    """What the trainer does without an argument."""
    return "chunked-head" if framework == "trl" and software.trl >= CHUNKS_THE_HEAD else "standard"


def offered_loss(model: ModelShape, workload: Workload) -> LossKernel | None:
    """The loss that one argument or line turns on in place of the backend's standard one; None where there is none.

    The Trainer and TRL before 1.7: `use_liger_kernel`, for the families that Liger knows. deepspeed.initialize:
    `install_chunked_causal_lm_loss`.
    """
    if workload.objective != NEXT_TOKEN:
        return None
    offered: LossKernel = "fused" if workload.uses_trainer else "chunked-softmax"
    return offered if workload.loss == "standard" and unusable_loss(model, offered) is None else None


def unusable_loss(model: ModelShape, loss: LossKernel) -> str | None:
    """Why a model cannot be trained with a loss; None where it can. Tiles: `memory.activations.loss.untileable`."""
    if loss not in _OF_CAUSAL_MODELS:
        return None
    if not model.vocab_size or model.num_labels:
        return phrase("{model} has no head over the vocabulary", model=model.name)
    if loss == "fused" and not supports(model, "liger"):
        return phrase("Liger does not patch {model_type} models", model_type=model.model_type)
    if loss != "fused" and (not upcasts(model) or model.architecture.endswith("ForMaskedLM")):
        return phrase("it replaces the loss of causal language models alone")
    return None
