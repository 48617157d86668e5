"""Memory of the language-model head and its loss: logits, their copies and gradients; DeepSpeed's tiled compute."""

from __future__ import annotations

from typing import NamedTuple

from ...estimate import MEMORY_SYMBOLS, Formula, Terms
from ...models.families import find_family, supports
from ...models.lora import trains_head
from ...models.model_shape import ModelShape
from ...models.program import ZERO
from ...objectives import CHUNKS_THE_HEAD, LOSSES, upcasts
from ...plan import Plan
from ...workload import Workload

TILE_OF_LOGITS_BYTES = 1 << 30
"""Bytes of a tile's fp32 logits, as in ArcticTraining's ALST trainer (sft_trainer.py, slice_size_in_gb)."""


def mlp_tiles(model: ModelShape, workload: Workload) -> int:
    """Return ceil(S / H) tiles, as in DeepSpeed's example of TiledMLP."""
    return -(-workload.seq_len // model.hidden_size)


def loss_tiles(model: ModelShape, workload: Workload, micro_batch_size: int) -> int:
    """Return ceil(4 B S V / 1 GiB) tiles, at most one per token. `workload` is that of a rank."""
    logits = 4 * micro_batch_size * workload.seq_len * model.vocab_size
    return max(1, min(workload.seq_len, -(-logits // TILE_OF_LOGITS_BYTES)))


class Tiles(NamedTuple):
    """Number of tiles of a plan's feed-forwards and loss; 0 if they are not tiled."""

    mlp: int
    loss: int


def tile_sizes(model: ModelShape, workload: Workload, plan: Plan) -> Tiles:
    rank = workload.rank_share(plan.sequence_parallel_size)
    return Tiles(
        mlp_tiles(model, rank) if workload.mlp == "tiled" else 0,
        loss_tiles(model, rank, plan.micro_batch_size) if workload.loss == "tiled" else 0,
    )


def why_no_tiling(model: ModelShape, workload: Workload) -> str | None:
    """Return why feed-forward or loss cannot be tiled as requested; None if they can."""
    if workload.mlp == "whole" and workload.loss != "tiled":
        return None
    if not supports(model, "tiles"):
        return f"tiled compute does not support {model.model_type} models"
    if workload.loss == "tiled" and model.tied:
        # deepspeed 0.19.8 runtime/zero/stage3.py __reduce_and_partition_ipg_grads asserts a single reduction
        return "tiles and embedding would each reduce the gradient of the head, which is tied to the embedding"
    if workload.mlp == "tiled" and workload.lora_dropout and workload.method != "full":
        return "the second forward pass of a tile would draw another dropout than the first"
    return None


LOSS_SOURCE = "transformers 5.23 loss/loss_utils.py; torch 2.13 derivatives of cross_entropy"

_SYMBOLS = {**MEMORY_SYMBOLS, "k": "bytes per element at this moment"}
_PER_LOGIT = {**MEMORY_SYMBOLS, "c": "bytes per logit that the loss keeps at this moment"}
_KEPT = tuple(
    Formula(name, "c B S V", LOSS_SOURCE, {**MEMORY_SYMBOLS, "c": f"bytes per element of the {name}"})
    for name in ("log-softmax", "gradient of log-softmax", "gradient of logits")
)
_SOFT_CAP = Formula("soft cap of logits", "w B S V", LOSS_SOURCE)
_CHUNK = Formula(
    "logits of one chunk",
    "k c v",
    "",
    {
        **MEMORY_SYMBOLS,
        "c": "tokens of one chunk",
        "v": "columns of one chunk, V unless the loss also splits the vocabulary",
        "k": "bytes per logit of a chunk at this moment",
    },
)
_HIDDEN_GRADIENT = Formula("gradient of hidden states", "k B S H", "torch 2.13 derivatives of mm", _SYMBOLS)
_HEAD_GRADIENT = Formula("gradient of the head's weight", "k V H", "", _SYMBOLS)
_SOFTMAX_SOURCE = "deepspeed 0.19.8 runtime/chunked_cross_entropy.py _TritonCrossEntropy"
_LOG_PROBS_SOURCE = "trl 1.16 kernels/logprob_entropy.py; torch 2.13 derivative of a slice"
_LOG_PROBS = tuple(
    Formula(name, "w B S V", _LOG_PROBS_SOURCE) for name in ("gradient of logits", "gradient of sliced logits")
)
_ROW_LOG_SOFTMAX = Formula("log-softmax", "w B S V", "trl 1.4 trainer/utils.py selective_log_softmax")
_SECOND_GRADIENT = Formula(
    "second gradient of logits",
    "w B S V",
    "trl 1.4 trainer/utils.py selective_log_softmax, grpo_trainer.py `logits.div_`; torch 2.13 derivatives of gather "
    "and of a slice that was written",
)
_UNREAD = Formula(
    "logits and their fp32 copy", "c B S V", "trl 1.12 experimental/ppo/modeling_value_head.py forward", _PER_LOGIT
)
_DIVIDED = Formula(
    "gradient of completions' logits",
    "2 w B C V: before and after the division by the temperature",
    "trl 1.12 experimental/ppo/ppo_trainer.py; torch 2.13 CopySlices",
    {**MEMORY_SYMBOLS, "C": "tokens of a completion"},
)
_REFERENCE = Formula(
    "logits of policy and reference",
    "c B S V",
    "LLaMA-Factory 0.9 train/dpo/trainer.py get_batch_loss_metrics, trl 1.4 trainer/dpo_trainer.py _compute_loss",
    {**MEMORY_SYMBOLS, "c": "bytes per logit of both"},
)
_CHOSEN = Formula("chosen half: log-softmax and a gradient", "w B S V", "trl 1.16 experimental/orpo/orpo_trainer.py")
_IN_16_BITS = {
    "chunked-softmax": tuple(Formula(name, "w B S V", _SOFTMAX_SOURCE) for name in ("logits", "gradient of logits")),
    "log-probs": _LOG_PROBS,
    "odds-ratio": (*_LOG_PROBS, _CHOSEN),
}
"""Terms of losses without a tensor of logits in fp32."""

DIVIDES_IN_PLACE = (1, 0)
"""First version of TRL in which GRPO divides logits by the temperature in place."""

HEAD_TOKENS, HEAD_COLUMNS = 4096, 32768
"""Tokens and columns in a tile of TRL's chunked head (trl 1.16 kernels/chunked_logprob.py `TOKEN_CHUNK_SIZE`,
trainer/utils.py `_CHUNKED_LOGPROB_CHUNK_SIZE`)."""

CHUNKS = 8
"""Number of chunks of the logits in a chunked loss, torchtune's default."""

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
_LAYER_OUTPUTS = Formula(
    "outputs of all layers", "w B S (L + 1) H", "trl 1.12 experimental/ppo/ppo_trainer.py forward", MEMORY_SYMBOLS
)
_PROBABILITIES = Formula(
    "probabilities of the last micro batch",
    "w B C V",
    "TRL 1.12 experimental/ppo/ppo_trainer.py `train`: `prob_dist`, which is deleted after the micro batches of a step",
    {**MEMORY_SYMBOLS, "C": "tokens of a completion"},
)
_MODULE_OUTPUT = Formula(
    "model output",
    "B x + y",
    _OUTPUT.source,
    {**MEMORY_SYMBOLS, "x": "bytes per sample", "y": "bytes for any batch size"},
)


def loss_terms(model: ModelShape, workload: Workload, micro_batch_size: int) -> Terms:
    """Return the tensors of B S V elements at the peak of the loss, with w bytes per weight.

    The peak is in the backward pass, at the derivative of log_softmax: its saved fp32 result, the incoming gradient and
    the outgoing one: 3 x 4 B S V. The forward pass has w + 4 + 4 (logits, fp32 copy, log_softmax), and another w with
    soft-capped logits. The logits themselves are freed before the backward pass, because no operation saves them and
    the Trainer drops the model's output. If the class does not upcast, w replaces 4. In fp32 the upcast makes no copy.

    Other versions and kernels (`_copied_bytes`) hold, in the forward pass, the last hidden state w B S H and per logit

        transformers up to 4.45           4 + 4 + 4        an fp32 copy replaces the logits; its slice, log-softmax
        transformers 4.46, 4.47           w + 4 + 4 + 4    the logits stay
        GPT-2's, GPTBigCode's up to 4.45  w + w + w        never upcast (fp32 if the norms return fp32)
        "chunked"                         w + w + 1        fp32 copies of one of 8 chunks, log-softmax in 16 bits
        "in-place"                        as these, without the log-softmax; from 4.48 on w + 4

    "chunked-softmax": the logits w, which it saves, and their gradient w; fp32 values stay in registers. "log-probs":
    in the backward pass, w for the gradient of the logits without the last token and w for its copy padded with zeros.
    Before TRL 1.7 also w for the tensors saved of the logits and w for a second gradient: in fp32 that of the gathered
    logits, whose sum with that of logsumexp is the gradient; in 16 bits a copy since GRPO divides the slice in place
    (1.0). "odds-ratio": also the chosen half's log-softmax and a gradient of it, w / 2 each. Under autocast accelerate
    returns all of these in fp32 (accelerate 1.15 `convert_outputs_to_fp32`).

    "value-head": the logits and an fp32 copy of them, at the end of the forward pass.

    "fused", "tiled" and "chunked-head" hold the logits of a chunk of c tokens and v columns, k c v bytes (`_Chunks`),
    the gradient of the hidden states and, if the head trains, of its weight.

                        moment      c                                   v        k    hidden   head
        "fused"         forward     next_power_of_2(ceil(B S H / V))    V        w    w        w
        "tiled"         backward    B ceil(S / tiles)                   V        12   w        0
        "chunked-head"  backward    min(B S, 4096)                      32768    w    4 + w    4 + w

    The head's gradient of tiles is counted with the reduced gradients (`gradients`). The chunked head sums both
    gradients in fp32 and casts them at its end.

    Not covered: a classifier's few logits; losses that keep more (label smoothing, distillation).
    """
    v, w = model.vocab_size, workload.weight_bytes
    if not v:
        return ()
    tokens = micro_batch_size * workload.scored_len
    if workload.loss == "value-head":
        c = w + (4 if w < 4 else 0)
        return _UNREAD.term(c * tokens * v, c=c, V=v, B=micro_batch_size, S=workload.scored_len)
    copies = _copied_bytes(model, workload)
    if copies:
        states = _LAST_STATES.term(w * tokens * model.hidden_size, w=w, H=model.hidden_size)
        capped = _SOFT_CAP.term(w * tokens * v, w=w, V=v, B=micro_batch_size) if model.logit_softcap else ()
        logit_inputs = {"V": v, "B": micro_batch_size, "S": workload.scored_len}
        return states + _COPIES.term(copies * tokens * v, c=copies, **logit_inputs) + capped
    inputs = {"B": micro_batch_size, "S": workload.scored_len, "V": v, "w": w}
    if not LOSSES[workload.loss].makes_logits:
        return _chunked_loss_terms(model, workload, micro_batch_size)
    cap = _SOFT_CAP.term(w * tokens * v, **inputs) if model.logit_softcap else ()
    if workload.loss in _IN_16_BITS:
        formulas = _IN_16_BITS[workload.loss]
        w = inputs["w"] = 4 if workload.software.autocast else w
        if formulas[:2] == _LOG_PROBS and workload.software.trl < CHUNKS_THE_HEAD:
            second = w == 4 or (workload.rollouts is not None and workload.software.trl >= DIVIDES_IN_PLACE)
            formulas = (_ROW_LOG_SOFTMAX, *formulas, *((_SECOND_GRADIENT,) if second else ()))
        if not workload.uses_trainer:  # counted as the loop's output; capped logits stay too, with their gradient
            formulas = tuple(each for each in formulas if each.name != "logits")
            cap = (*cap, *cap, *hidden_gradient(model, workload, micro_batch_size))
        if model.policy:
            length = workload.completion_len
            cap = _DIVIDED.term(2 * w * micro_batch_size * length * v, B=micro_batch_size, C=length, V=v, w=w)
        return tuple(part for formula in formulas for part in formula.term(w * tokens * v, **inputs)) + cap
    c = inputs["c"] = 4 if upcasts(model) else w
    return tuple(term for formula in _KEPT for term in formula.term(c * tokens * v, **inputs)) + cap


def reference_logits_terms(model: ModelShape, workload: Workload, micro_batch_size: int) -> Terms:
    """Return the logits of trainers that take log-probabilities from whole logits, after the reference has computed its
    own. The policy's logits, which the metrics read later, and the tensors saved of them are alive too. "standard":
    logits and log-softmax of both, in fp32. "log-probs" before TRL 1.7: the reference's logits and the policy's
    log-softmax; from 1.0 on the logits of both and their slices too."""
    v, old = model.vocab_size, workload.software.trl < CHUNKS_THE_HEAD
    if not v or workload.rollouts or workload.loss not in ("standard", "log-probs"):
        return ()
    copies = (5 if workload.software.trl >= (1, 0) else 2) * old
    c = 16 if workload.loss == "standard" else copies * (4 if workload.software.autocast else workload.weight_bytes)
    size = c * micro_batch_size * workload.seq_len * v
    return _REFERENCE.term(size, c=c, B=micro_batch_size, S=workload.seq_len, V=v)


class _Chunks(NamedTuple):
    """Sizes at the peak of a loss that never holds all logits."""

    tokens: int
    columns: int
    logit_bytes: int
    gradient_bytes: int
    """Bytes per element of the hidden states' gradient."""
    head_bytes: int
    """Bytes per element of the head's gradient; 0 if the loss does not make it."""
    source: str

    @property
    def logits(self) -> Terms:
        k, c, v = self.logit_bytes, self.tokens, self.columns
        return _CHUNK._replace(source=self.source).term(k * c * v, k=k, c=c, v=v)


def _chunks(model: ModelShape, workload: Workload, micro_batch_size: int) -> _Chunks:
    tokens, v, w = micro_batch_size * workload.seq_len, model.vocab_size, workload.weight_bytes
    if workload.loss == "fused":
        # Liger chooses the number of chunks so that a chunk's logits are about as large as all hidden states.
        chunk = -(-tokens // -(-v // model.hidden_size))
        chunk = 1 << max(0, chunk - 1).bit_length()  # the next power of two
        return _Chunks(min(tokens, chunk), v, w, w, w, "liger-kernel 0.8.5 ops/fused_linear_cross_entropy.py")
    if workload.loss == "tiled":
        tile = micro_batch_size * -(-workload.seq_len // loss_tiles(model, workload, micro_batch_size))
        source = "deepspeed 0.19.8 runtime/sequence_parallel/ulysses_sp.py SequenceTiledCompute"
        return _Chunks(tile, v, 12, w, 0, f"{source}; torch 2.13 cross_entropy")
    tokens, summed = min(HEAD_TOKENS, micro_batch_size * workload.scored_len), 4 + (w if w < 4 else 0)
    source = "trl 1.16 kernels/chunked_logprob.py ChunkedLogProbFunction"
    return _Chunks(tokens, HEAD_COLUMNS, w, summed, summed, source)


def head_chunks(model: ModelShape, workload: Workload, micro_batch_size: int) -> tuple[int, int]:
    """Return the tokens and the columns of one product of the head: all of them if the loss has all logits at a time.
    `workload` is that of a rank."""
    if LOSSES[workload.loss].makes_logits or workload.loss == "value-head":
        return micro_batch_size * workload.scored_len, model.vocab_size
    chunks = _chunks(model, workload, micro_batch_size)
    return chunks.tokens, min(chunks.columns, model.vocab_size)


def _chunked_loss_terms(model: ModelShape, workload: Workload, micro_batch_size: int) -> Terms:
    chunks, h = _chunks(model, workload, micro_batch_size), model.hidden_size
    tokens, v = micro_batch_size * workload.scored_len, model.vocab_size
    inputs = {"B": micro_batch_size, "S": workload.scored_len, "V": v, "H": h}
    hidden, head = (each._replace(source=chunks.source) for each in (_HIDDEN_GRADIENT, _HEAD_GRADIENT))
    head_bytes = chunks.head_bytes if trains_head(model, workload) else 0
    return (
        chunks.logits
        + hidden.term(chunks.gradient_bytes * tokens * h, **inputs, k=chunks.gradient_bytes)
        + head.term(head_bytes * v * h, **inputs, k=head_bytes)
    )


def evaluated_loss_terms(model: ModelShape, workload: Workload, samples: int, *, keeps_logits: bool) -> Terms:
    """Return the peak of a loss that saves nothing: the last hidden state and, per logit, w for the logits, 4 for their
    fp32 copy and 4 for its log-softmax (no copy in fp32, or if the class does not upcast).

    keeps_logits: whether metrics need the logits. A loss that makes none then computes them all: Liger's runs the
    standard one, TRL's trainers another forward pass without a loss (trl 1.16 sft_trainer.py `compute_loss`). A loss in
    16 bits reads the logits without copies.
    """
    v, w, tokens = model.vocab_size, workload.weight_bytes, samples * workload.seq_len
    states = _LAST_STATES.term(w * tokens * model.hidden_size, w=w, H=model.hidden_size)
    if not v or model.num_labels:
        return states
    makes_logits = LOSSES[workload.loss].makes_logits
    if not makes_logits and not keeps_logits:
        return states + _chunks(model, workload, samples).logits
    upcast = (4 if w < 4 else 0) if upcasts(model) else 0
    c = _copied_bytes(model, workload) or w + upcast + (4 if upcasts(model) else w)
    # Metrics then need the logits alone; only Liger's patched forward computes the standard loss in evaluation.
    if (not makes_logits or workload.loss in _IN_16_BITS) and workload.loss != "fused":
        c = w
    formula = _COPIES._replace(source=LOSS_SOURCE)
    return states + formula.term(c * tokens * v, c=c, V=v, B=samples, S=workload.seq_len)


def hidden_gradient(model: ModelShape, workload: Workload, micro_batch_size: int) -> Terms:
    """Return the gradient of the head's input, which is made before that of its weight: w B S H."""
    w, h = workload.weight_bytes, model.hidden_size
    if not model.vocab_size or model.num_labels:
        return ()
    size = w * micro_batch_size * workload.seq_len * h
    return _HIDDEN_GRADIENT.term(size, k=w, B=micro_batch_size, S=workload.seq_len, H=h)


def tile_of_logits(model: ModelShape, workload: Workload, micro_batch_size: int) -> int:
    """Return the number of tokens with logits alive at a time; 0 for a loss without logits."""
    if workload.loss in ("fused", "chunked-head", "value-head"):
        return 0
    tiles = loss_tiles(model, workload, micro_batch_size) if workload.loss == "tiled" else 1
    return micro_batch_size * -(-workload.scored_len // tiles)


def _copied_bytes(model: ModelShape, workload: Workload) -> float:
    """Return the bytes per logit of losses other than transformers' since 4.48; 0 for that one."""
    w, version, in_place = workload.weight_bytes, workload.software.transformers, workload.loss == "in-place"
    if not LOSSES[workload.loss].makes_logits or workload.loss in _IN_16_BITS or model.num_labels:
        return 0
    if workload.loss == "chunked":
        return 2 * w + 8 / CHUNKS
    if version < _KEEPS_LOGITS and find_family(model).loss_in_weight_type:
        own = 4 if workload.software.fp32_norms else w
        return 2 * own + (0 if in_place else own)
    if version < _KEEPS_LOGITS:
        return 8 + (0 if in_place else 4)
    if version < _PADDED_LABELS:
        return w + 8 + (0 if in_place else 4)
    return w + 4 if in_place else 0


_KEEPS_LOGITS, _PADDED_LABELS = (4, 46), (4, 48)
"""First versions of transformers that keep the 16-bit logits alive with their fp32 copy, and that pad labels instead of
slicing the logits."""


def logits_gap_bytes(model: ModelShape, workload: Workload, micro_batch_size: int) -> int:
    """Return the bytes that the loss frees and cannot reuse: w B S V. The 16-bit logits are freed after the upcast, and
    the later fp32 tensors, 4 B S V each, do not fit in their place. 0 without logits, without an upcast copy, or if the
    logits stay alive (transformers 4.46 and 4.47)."""
    version, w = workload.software.transformers, workload.weight_bytes
    keeps_logits = _KEEPS_LOGITS <= version < _PADDED_LABELS
    # The free block of w B S V bytes is smaller than each fp32 tensor that follows, so it stays a gap.
    if workload.loss != "standard" or w == 4 or keeps_logits or model.num_labels or not upcasts(model):
        return 0
    return w * micro_batch_size * workload.scored_len * model.vocab_size


def output_terms(
    model: ModelShape, workload: Workload, micro_batch_size: int, *, checkpoints: bool = True, accumulates: bool = False
) -> Terms:
    """Return the model's output in a user's own loop: `output = engine(x)` keeps it alive until the end of the next
    forward pass. It takes w B S V, in fp32 before transformers 4.46; for a module, the tensors that its program holds.
    () for the Trainer, which drops it, and for fused or tiled losses, which make no logits. PPO's loop keeps the
    policy's output with every layer's output. With `checkpoints` these are saved anyway. It also keeps the
    probabilities of a completion's tokens, for the entropy, until the next micro batch of the step has its own
    (`accumulates`)."""
    if model.policy:
        w, s = workload.weight_bytes, workload.seq_len
        size_bytes = w * micro_batch_size * s * model.vocab_size
        logits = _OUTPUT.term(size_bytes, c=w, V=model.vocab_size, B=micro_batch_size, S=s)
        if accumulates:
            inputs = {"w": w, "B": micro_batch_size, "C": workload.completion_len, "V": model.vocab_size}
            logits += _PROBABILITIES.term(w * micro_batch_size * workload.completion_len * model.vocab_size, **inputs)
        return logits + (() if checkpoints else layer_outputs(model.policy, workload, micro_batch_size))
    if model.module:
        size = ZERO
        for program in (block.program for block in model.blocks if block.program):
            for slot in (program.slots[number] for number in program.output_slots):
                size = size.plus(slot.elements.at(workload.seq_len).times(slot.itemsize or workload.weight_bytes))
        return _MODULE_OUTPUT.term(size.at(micro_batch_size), x=size.per_sample, y=size.fixed, B=micro_batch_size)
    v = model.vocab_size
    if workload.uses_trainer or not v or not LOSSES[workload.loss].makes_logits or model.num_labels:
        return ()
    c = 4 if workload.software.transformers < _KEEPS_LOGITS else workload.weight_bytes
    size_bytes = c * micro_batch_size * workload.seq_len * v
    return _OUTPUT.term(size_bytes, c=c, B=micro_batch_size, S=workload.seq_len, V=v)


def layer_outputs(model: ModelShape, workload: Workload, samples: int) -> Terms:
    """Return every layer's output and the embedding's, of a pass that returns them: w B S (L + 1) H. Checkpoints are
    the same tensors."""
    w, s, layers, h = workload.weight_bytes, workload.seq_len, model.num_layers, model.hidden_size
    return _LAYER_OUTPUTS.term(w * samples * s * (layers + 1) * h, w=w, B=samples, S=s, L=layers, H=h)
