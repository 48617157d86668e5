"""What an evaluation between two steps holds on each GPU besides weights, states and gradients.

transformers' evaluation loop runs forward passes without gradients, which save nothing: its peak is a layer's forward
pass or the loss. For metrics it keeps the logits: gathered from all N ranks, N w B S V bytes a batch, in one tensor for
all batches until `eval_accumulation_steps` of them go to the host. Batch k is put behind the k - 1 before it in a new
tensor, while both are alive: 2 k N w B S V. Without `eval_accumulation_steps` all batches stay on the GPU.

`predict_with_generate` generates with a cache of keys and values, which transformers 4's evaluations have in any case.

Source: transformers 5.23 trainer.py `evaluation_loop`, `prediction_step`, trainer_pt_utils.py `EvalLoopContainer`,
trainer_seq2seq.py `prediction_step`; accelerate 1.15 utils/operations.py `_gpu_gather`. Compared with evaluations on
two ranks in tests/probes/dry_run/test_dry_run_evaluation.py. Not covered: labels and losses of the batches (8 bytes per
token and less), what `compute_metrics` itself makes, beam search, FSDP.
Generation is derived and compared with nothing.
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
"""`per_device_eval_batch_size` where nothing sets it (transformers 5.23 training_args.py)."""

_LOOP = "transformers 5.23 trainer.py evaluation_loop"
_KEPT = Formula(
    "logits of earlier batches",
    "k N w B S V",
    _LOOP,
    {**MEMORY_SYMBOLS, "k": "batches whose logits are held, the last one twice where there are several before it"},
)
_JOINED = Formula(
    "logits of all ranks",
    "2 k N w B S V",
    _LOOP,
    {**MEMORY_SYMBOLS, "k": "batches whose logits are put together, in one tensor, next to the earlier one"},
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


def evaluation_terms(model: ModelShape, workload: Workload, cluster: Cluster, passing: Terms, behind: Terms) -> Terms:
    """The largest moment of an evaluation with `workload.eval_batch` samples on each GPU. `workload` is that of a rank.

    passing, behind: gradients and gathered weights in the forward passes, and behind them.
    """
    samples = OBJECTIVES[workload.objective].sequences * (workload.eval_batch or 0)
    width, tokens, batches = workload.weight_bytes, samples * workload.seq_len, workload.eval_logits or 0
    ranks, batch = cluster.world_size, width * tokens * model.vocab_size
    inputs = {"N": ranks, "w": width, "B": samples, "S": workload.seq_len, "V": model.vocab_size}
    # The loop's name for the last batch holds it until the next one's comes.
    held = batches if batches > 2 else batches - 1
    kept = _KEPT.term(held * ranks * batch, k=held, **inputs) if batches > 1 else ()
    if batches == 1:
        gathered = _GATHERED.term((ranks + 1) * batch, **inputs)
    else:
        gathered = _JOINED.term(2 * batches * ranks * batch, k=batches, **inputs)
    capability = cluster.gpu.compute_capability
    shared, layer = forward_only_terms(model, workload, samples, compute_capability=capability)
    if workload.software.transformers < (5, 0):
        kept += cache_terms(model, workload, samples, workload.seq_len)
    loss = evaluated_loss_terms(model, workload, samples, keeps_logits=batches > 0)
    moments = [passing + kept + shared + layer, behind + kept + shared + loss, behind + gathered]
    if workload.eval_new_tokens:
        cache = generation_cache_terms(model, workload, samples, workload.seq_len + workload.eval_new_tokens)
        moments.append(passing + cache + shared + layer)
    return max(moments, key=total_bytes)


def generation_cache_terms(model: ModelShape, workload: Workload, samples: int, tokens: int) -> Terms:
    """The cache of `tokens` tokens, where appending one copies one layer's."""
    widest = max(cached_per_layer(model, workload.seq_len, tokens))
    appended = _APPENDED.term(workload.weight_bytes * samples * widest, w=workload.weight_bytes, B=samples, x=widest)
    return cache_terms(model, workload, samples, tokens) + appended


def cache_terms(model: ModelShape, workload: Workload, samples: int, tokens: int) -> Terms:
    """Keys and values of `tokens` tokens in every layer: w B sum(K (D + Dv) tokens), at most a sliding window's."""
    elements, width = cached_elements(model, tokens, prompt=workload.seq_len), workload.weight_bytes
    return _CACHE.term(width * samples * elements, w=width, B=samples, x=elements)


def decoders(model: ModelShape) -> list[Block]:
    """The kinds of layers that generate."""
    return [block for block in model.blocks if block.stack == "decoder" and not block.tokens]


def cached_per_layer(model: ModelShape, prompt: int, tokens: int, *, latent: bool = False) -> list[int]:
    """Elements of one sequence of `tokens` tokens in a layer of each kind of `decoders`: K heads times the widths of a
    key and a value, for at most a sliding window's tokens; of cross attention those of the prompt.

    latent: a latent attention keeps what its heads are computed from, as vLLM does; transformers keeps whole heads.
    Linear attention keeps a state whatever the tokens, not counted.
    """
    found = []
    for block in decoders(model):
        size = 0
        for attention in (block.attention, block.cross_attention):
            if attention is None or attention.chunk:
                continue
            seen = model.encoder_len(prompt) if attention.cross else tokens
            heads = attention.heads if attention.kv_lora_rank else attention.kv_heads
            width = heads * (attention.head_dim + attention.v_head_dim)
            if latent and attention.kv_lora_rank:
                width = attention.kv_lora_rank + attention.rope_head_dim
            size += width * min(seen, attention.window or seen)
        found.append(size)
    return found


def cached_elements(model: ModelShape, tokens: int, *, prompt: int = 0, latent: bool = False) -> int:
    """`cached_per_layer` in all layers."""
    sizes = cached_per_layer(model, prompt or tokens, tokens, latent=latent)
    return sum(block.count * size for block, size in zip(decoders(model), sizes, strict=True))


def grouped_heads(model: ModelShape) -> float:
    """Query heads for each head of keys and values, in the layer with the most."""
    return max((block.attention.heads / block.attention.kv_heads for block in decoders(model)), default=1.0)
