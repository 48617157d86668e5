"""GPU memory of an evaluation between two steps, in addition to weights, optimizer states and gradients.

transformers' evaluation loop runs forward passes without gradients, which save nothing: the peak is a layer's forward
pass or the loss. If metrics are computed, the loop keeps the logits gathered from all N ranks, N w B S V bytes a batch,
in one tensor for all batches until `eval_accumulation_steps` of them go to the host. Appending batch k to the k - 1
earlier ones makes a new tensor while the old one is alive: 2 k N w B S V. Without `eval_accumulation_steps` all batches
stay on the GPU.

`predict_with_generate` generates with a cache of keys and values. Evaluations of transformers 4 always have this cache.

Source: transformers 5.23 trainer.py `evaluation_loop`, `prediction_step`, trainer_pt_utils.py `EvalLoopContainer`,
trainer_seq2seq.py `prediction_step`; accelerate 1.15 utils/operations.py `_gpu_gather`. Compared with evaluations on
two ranks in tests/probes/dry_run/test_dry_run_evaluation.py; generation is not compared with any run. Not covered:
labels and losses of the batches (8 bytes per token and less), memory of `compute_metrics`, beam search, FSDP.
"""

from __future__ import annotations

from ..estimate import MEMORY_SYMBOLS, Formula, Terms, total_bytes
from ..hardware import Cluster
from ..models.model_shape import Block, ModelShape
from ..objectives import OBJECTIVES
from ..workload import Workload
from .activations.activation_memory import forward_only_terms
from .activations.loss import evaluated_loss_terms

EVALUATION_BATCH = 8
"""`per_device_eval_batch_size` if it is not set (transformers 5.23 training_args.py)."""

_LOOP = "transformers 5.23 trainer.py evaluation_loop"
_KEPT = Formula(
    "logits of earlier batches",
    "k N w B S V",
    _LOOP,
    {**MEMORY_SYMBOLS, "k": "batches whose logits are kept; the last one counts twice if several precede it"},
)
_JOINED = Formula(
    "logits of all ranks",
    "2 k N w B S V",
    _LOOP,
    {**MEMORY_SYMBOLS, "k": "batches whose logits are joined in one tensor, next to the earlier tensor"},
)
_GATHERED = Formula("logits of all ranks", "(N + 1) w B S V", "accelerate 1.15 utils/operations.py _gpu_gather")
_CACHE_SOURCE = "transformers 5.23 cache_utils.py DynamicLayer, DynamicSlidingWindowLayer"
_CACHE = Formula(
    "keys and values",
    "w B x",
    _CACHE_SOURCE,
    {**MEMORY_SYMBOLS, "x": "elements of keys and values of one sample in all layers"},
)
_APPENDED = Formula(
    "keys and values of a layer",
    "w B x",
    _CACHE_SOURCE,
    {**MEMORY_SYMBOLS, "x": "elements of one sample in the widest layer"},
)


def evaluation_terms(
    model: ModelShape, workload: Workload, cluster: Cluster, forward_terms: Terms, after_terms: Terms
) -> Terms:
    """Return the terms at the peak of an evaluation with `workload.eval_batch` samples on each GPU.

    workload: that of one rank. passing: gradients and gathered weights during the forward passes. behind: those after
    the forward passes.
    """
    samples = OBJECTIVES[workload.objective].sequences * (workload.eval_batch or 0)
    width, tokens, batches = workload.weight_bytes, samples * workload.seq_len, workload.eval_logits or 0
    ranks, batch = cluster.world_size, width * tokens * model.vocab_size
    inputs = {"N": ranks, "w": width, "B": samples, "S": workload.seq_len, "V": model.vocab_size}
    # A variable of the loop keeps the last batch's logits alive until the next batch's are assigned.
    kept_batches = batches if batches > 2 else batches - 1
    kept = _KEPT.term(kept_batches * ranks * batch, k=kept_batches, **inputs) if batches > 1 else ()
    if batches == 1:
        gathered = _GATHERED.term((ranks + 1) * batch, **inputs)
    else:
        gathered = _JOINED.term(2 * batches * ranks * batch, k=batches, **inputs)
    capability = cluster.gpu.compute_capability
    shared, layer = forward_only_terms(model, workload, samples, compute_capability=capability)
    if workload.software.transformers < (5, 0):
        kept += cache_terms(model, workload, samples, workload.seq_len)
    loss = evaluated_loss_terms(model, workload, samples, keeps_logits=batches > 0)
    moments = [forward_terms + kept + shared + layer, after_terms + kept + shared + loss, after_terms + gathered]
    if workload.eval_new_tokens:
        cache = generation_cache_terms(model, workload, samples, workload.seq_len + workload.eval_new_tokens)
        moments.append(forward_terms + cache + shared + layer)
    return max(moments, key=total_bytes)


def generation_cache_terms(model: ModelShape, workload: Workload, samples: int, tokens: int) -> Terms:
    """Return the cache of `tokens` tokens and the copy of one layer's cache that appending a token makes."""
    widest = max(cached_per_layer(model, workload.seq_len, tokens))
    appended = _APPENDED.term(workload.weight_bytes * samples * widest, w=workload.weight_bytes, B=samples, x=widest)
    return cache_terms(model, workload, samples, tokens) + appended


def cache_terms(model: ModelShape, workload: Workload, samples: int, tokens: int) -> Terms:
    """Return keys and values of `tokens` tokens in every layer: w B sum(K (D + Dv) tokens). A sliding window limits the
    tokens."""
    elements, width = cached_elements(model, tokens, prompt=workload.seq_len), workload.weight_bytes
    return _CACHE.term(width * samples * elements, w=width, B=samples, x=elements)


def decoders(model: ModelShape) -> list[Block]:
    return [block for block in model.blocks if block.stack == "decoder" and not block.tokens]


def cached_per_layer(model: ModelShape, prompt: int, tokens: int, *, latent: bool = False) -> list[int]:
    """Return the cached elements of one sequence of `tokens` tokens in one layer of each kind of `decoders`: K heads
    times the widths of a key and a value, times the tokens (at most a sliding window, or the prompt for cross
    attention).

    latent: latent attention caches the compressed vector, as vLLM does; otherwise whole heads, as transformers does.
    Not counted: the state of linear attention, whose size does not depend on the tokens.
    """
    sizes = []
    for block in decoders(model):
        size = 0
        for attention in (block.attention, block.cross_attention):
            if attention is None or attention.chunk:
                continue
            cached_tokens = model.encoder_len(prompt) if attention.cross else tokens
            # transformers caches latent attention expanded to every head.
            heads = attention.heads if attention.kv_lora_rank else attention.kv_heads
            width = heads * (attention.head_dim + attention.v_head_dim)
            if latent and attention.kv_lora_rank:
                width = attention.kv_lora_rank + attention.rope_head_dim
            size += width * min(cached_tokens, attention.window or cached_tokens)
        sizes.append(size)
    return sizes


def cached_elements(model: ModelShape, tokens: int, *, prompt: int = 0, latent: bool = False) -> int:
    """Return the sum of `cached_per_layer` over all layers."""
    sizes = cached_per_layer(model, prompt or tokens, tokens, latent=latent)
    return sum(block.count * size for block, size in zip(decoders(model), sizes, strict=True))


def grouped_heads(model: ModelShape) -> float:
    """Return the query heads per key and value head, in the layer with the most."""
    return max((block.attention.heads / block.attention.kv_heads for block in decoders(model)), default=1.0)
