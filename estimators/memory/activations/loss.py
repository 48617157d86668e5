"""The language-model head and its loss: logits, their copies and gradients; and DeepSpeed's tiled compute."""

from __future__ import annotations

from typing import NamedTuple

from ...estimate import MEMORY_SYMBOLS, Formula, Terms
from ...models.families import family_of, supports
from ...models.lora import trains_head
from ...models.model_shape import ModelShape
from ...phrase import phrase
from ...plan import Plan
from ...workload import Workload

TILE_OF_LOGITS_BYTES = 1 << 30
"""fp32 logits of a tile, as in ArcticTraining's ALST trainer (sft_trainer.py, slice_size_in_gb)."""


def mlp_tiles(model: ModelShape, workload: Workload) -> int:
    """ceil(S / H), as in DeepSpeed's example of TiledMLP."""
    return -(-workload.seq_len // model.hidden_size)


def loss_tiles(model: ModelShape, workload: Workload, micro_batch_size: int) -> int:
    """ceil(4 B S V / 1 GiB), at most one per token. `workload` is that of a rank."""
    logits = 4 * micro_batch_size * workload.seq_len * model.vocab_size
    return max(1, min(workload.seq_len, -(-logits // TILE_OF_LOGITS_BYTES)))


class Tiles(NamedTuple):
    """Tiles of a plan's feed-forwards and loss; 0 if they are not tiled."""

    mlp: int
    loss: int


def tiles_of(model: ModelShape, workload: Workload, plan: Plan) -> Tiles:
    rank = workload.of_rank(plan.sequence_parallel_size)
    return Tiles(
        mlp_tiles(model, rank) if workload.mlp == "tiled" else 0,
        loss_tiles(model, rank, plan.micro_batch_size) if workload.loss == "tiled" else 0,
    )


def untileable(model: ModelShape, workload: Workload) -> str | None:
    """Why feed-forward or loss cannot be tiled as requested; None where they can."""
    if workload.mlp == "whole" and workload.loss != "tiled":
        return None
    if not supports(model, "tiles"):
        return phrase("tiled compute does not know {model_type} models", model_type=model.model_type)
    if workload.loss == "tiled" and model.tied:
        # deepspeed 0.19.8 runtime/zero/stage3.py __reduce_and_partition_ipg_grads asserts that it comes once
        return phrase("tiles and embedding would each reduce the gradient of the head, which is tied to the embedding")
    if workload.mlp == "tiled" and workload.lora_dropout and workload.method != "full":
        return phrase("a tile's second forward pass would draw another dropout than its first")
    return None


LOSS_SOURCE = "transformers 5.23 loss/loss_utils.py; torch 2.13 derivatives of cross_entropy"
LIGER_SOURCE = "liger-kernel 0.8.5 ops/fused_linear_cross_entropy.py"

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

_PER_LOGIT = {**MEMORY_SYMBOLS, "c": "bytes per logit that the loss keeps at this moment"}
_KEPT = tuple(
    Formula(name, "c B S V", LOSS_SOURCE, _PER_LOGIT)
    for name in ("log-softmax", "gradient of log-softmax", "gradient of logits")
)
_SOFT_CAP = Formula("soft cap of logits", "w B S V", LOSS_SOURCE)
_CHUNK = Formula(
    "logits of one chunk",
    "c V w, c = next_power_of_2(ceil(B S / ceil(V / H)))",
    LIGER_SOURCE,
    {**MEMORY_SYMBOLS, "c": "tokens of one chunk"},
)
_TILE = Formula(
    "log-softmax of one tile, and two gradients",
    "12 c V",
    "deepspeed 0.19.8 runtime/sequence_parallel/ulysses_sp.py SequenceTiledCompute; torch 2.13 cross_entropy",
    {**MEMORY_SYMBOLS, "c": "tokens of one tile"},
)
_HIDDEN_GRADIENT = Formula("gradient of hidden states", "B S H w", LIGER_SOURCE)
_HEAD_GRADIENT = Formula("gradient of the head's weight", "V H w", LIGER_SOURCE)

CHUNKS = 8
"""Parts of the logits in a chunked loss, torchtune's default."""

_COPIES_SOURCE = (
    "transformers 4.45, 4.46, 4.48 modeling_llama.py, modeling_gpt_bigcode.py and loss/loss_utils.py; flash-attn and "
    "unsloth cross-entropy kernels; torchtune 0.6 modules/loss/cross_entropy_loss.py; litgpt utils.py"
)
_LAST_STATES = Formula("last_hidden_state", "w B S H", _COPIES_SOURCE)
_COPIES = Formula("logits_and_loss", "c B S V", _COPIES_SOURCE, _PER_LOGIT)
_OUTPUT = Formula(
    "model output",
    "c B S V",
    "torch: a name that the loop's code binds holds its tensor until it is bound again",
    {**MEMORY_SYMBOLS, "c": "bytes per logit of the output that the loop still holds"},
)


def loss_terms(model: ModelShape, workload: Workload, micro_batch_size: int) -> Terms:
    """Tensors of B S V elements at the largest moment of the loss, with w bytes per weight.

    Backward, when the gradient of log_softmax is taken: its fp32 result (saved), the incoming gradient and the outgoing
    one: 3 x 4 B S V. The forward pass has w + 4 + 4 (logits, fp32 copy, log_softmax), one w more with soft-capped
    logits; the logits themselves are gone in the backward pass, because nothing saves them and Trainer drops the
    model's output. Where the class does not upcast, w takes the place of 4. In fp32 the upcast is no copy.

    Other versions and kernels (`_copied_bytes`) hold, in the forward pass, the last hidden state w B S H and per logit

        transformers up to 4.45           4 + 4 + 4        an fp32 copy replaces the logits; its slice, log-softmax
        transformers 4.46, 4.47           w + 4 + 4 + 4    the logits stay
        GPT-2's, GPTBigCode's up to 4.45  w + w + w        never upcast (fp32 where the norms give fp32)
        "chunked"                         w + w + 1        fp32 copies of one of 8 chunks, log-softmax in 16 bits
        "in-place"                        as these, without the log-softmax; from 4.48 on w + 4

    "fused": Liger's fused linear cross-entropy goes through the B S tokens in chunks of
    c = next_power_of_2(ceil(B S / ceil(V / H))): logits of one chunk c V w, the gradient of the hidden states B S H w
    and, where the head trains, of its weight V H w, all in the forward pass.

    "tiled": DeepSpeed cuts S in n tiles (`tiles.loss_tiles`), c = B ceil(S / n) tokens each, and runs head and loss of
    one in the backward pass: 3 x 4 c V bytes and the gradient of the hidden states B S H w, beside the head's
    gradient, to which the tiles add (`gradients`).

    Not covered: a classifier's few logits; losses that keep more (label smoothing, distillation).
    """
    v, w = model.vocab_size, workload.weight_bytes
    if not v:
        return ()
    tokens = micro_batch_size * workload.seq_len
    copies = _copied_bytes(model, workload)
    if copies:
        states = _LAST_STATES.term(w * tokens * model.hidden_size, w=w, H=model.hidden_size)
        return states + _COPIES.term(copies * tokens * v, c=copies, V=v, B=micro_batch_size, S=workload.seq_len)
    inputs = {"B": micro_batch_size, "S": workload.seq_len, "V": v, "w": w}
    if workload.loss == "fused":
        h = model.hidden_size
        chunk = min(tokens, _next_power_of_2(-(-tokens // -(-v // h))))
        inputs |= {"H": h, "c": chunk}
        head = _HEAD_GRADIENT.term(v * h * w, **inputs) if trains_head(model, workload) else ()
        return _CHUNK.term(chunk * v * w, **inputs) + _HIDDEN_GRADIENT.term(tokens * h * w, **inputs) + head
    if workload.loss == "tiled":
        return _tiled_terms(model, workload, micro_batch_size)
    c = inputs["c"] = 4 if _upcasts(model) else w
    cap = _SOFT_CAP.term(w * tokens * v, **inputs) if model.logit_softcap else ()
    return tuple(term for formula in _KEPT for term in formula.term(c * tokens * v, **inputs)) + cap


def _tiled_terms(model: ModelShape, workload: Workload, micro_batch_size: int) -> Terms:
    w, v, h = workload.weight_bytes, model.vocab_size, model.hidden_size
    tiles = loss_tiles(model, workload, micro_batch_size)
    tile = micro_batch_size * -(-workload.seq_len // tiles)
    inputs = {"B": micro_batch_size, "S": workload.seq_len, "V": v, "w": w, "H": h, "c": tile}
    hidden = _HIDDEN_GRADIENT.term(micro_batch_size * workload.seq_len * h * w, **inputs)
    return _TILE.term(12 * tile * v, **inputs) + hidden


def tile_of_logits(model: ModelShape, workload: Workload, micro_batch_size: int) -> int:
    """Tokens with logits alive at a time; 0 for a loss without logits."""
    if workload.loss == "fused":
        return 0
    tiles = loss_tiles(model, workload, micro_batch_size) if workload.loss == "tiled" else 1
    return micro_batch_size * -(-workload.seq_len // tiles)


def _copied_bytes(model: ModelShape, workload: Workload) -> float:
    """Bytes per logit of losses other than transformers' from 4.48 on; 0 for that."""
    w, version, in_place = workload.weight_bytes, workload.software.transformers, workload.loss == "in-place"
    if workload.loss in ("fused", "tiled") or model.num_labels:
        return 0
    if workload.loss == "chunked":
        return 2 * w + 8 / CHUNKS
    if version < _KEEPS_LOGITS and family_of(model).loss_in_weight_type:
        own = 4 if workload.software.fp32_norms else w
        return 2 * own + (0 if in_place else own)
    if version < _KEEPS_LOGITS:
        return 8 + (0 if in_place else 4)
    if version < _PADDED_LABELS:
        return w + 8 + (0 if in_place else 4)
    return w + 4 if in_place else 0


_KEEPS_LOGITS, _PADDED_LABELS = (4, 46), (4, 48)
"""Versions of transformers since which the 16-bit logits stay beside their fp32 copy, and labels are padded instead of
slicing the logits."""


def logits_gap_bytes(model: ModelShape, workload: Workload, micro_batch_size: int) -> int:
    """Bytes that the loss frees and cannot use again: w B S V. The logits in 16 bits die once they are upcast; the fp32
    tensors that follow, 4 B S V each, do not fit in their place. No logits, no such copy, or (transformers 4.46 and
    4.47) logits that stay alive: 0."""
    version, w = workload.software.transformers, workload.weight_bytes
    stays = _KEEPS_LOGITS <= version < _PADDED_LABELS
    if workload.loss != "standard" or w == 4 or stays or model.num_labels or not _upcasts(model):
        return 0
    return w * micro_batch_size * workload.seq_len * model.vocab_size


def _upcasts(model: ModelShape) -> bool:
    return model.architecture.endswith(UPCAST_HEADS) and model.architecture not in NATIVE_HEADS


def output_terms(model: ModelShape, workload: Workload, micro_batch_size: int) -> Terms:
    """The model's output in a user's own loop, until the end of the next forward pass: `output = engine(x)` holds it
    until the name is bound again: w B S V, in fp32 before transformers 4.46. The Trainer drops it. A fused or tiled
    loss has no logits."""
    v = model.vocab_size
    if workload.framework != "deepspeed" or not v or workload.loss in ("fused", "tiled") or model.num_labels:
        return ()
    c = 4 if workload.software.transformers < _KEEPS_LOGITS else workload.weight_bytes
    size = c * micro_batch_size * workload.seq_len * v
    return _OUTPUT.term(size, c=c, B=micro_batch_size, S=workload.seq_len, V=v)


def _next_power_of_2(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()
