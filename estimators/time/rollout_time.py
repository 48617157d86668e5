"""Seconds of generating and scoring completions, which precede the training in a step of reinforcement learning.

An engine of t GPUs generates b sequences at a time, with P prompt and C completion tokens:

    prefill   the forward pass of b P tokens without the output layer, / t
    decode    C times: max(products, weights read once / W) + keys and values read / W, / t, or what the host launches
    rollout   (prefill + decode) x completions / (b engines)

The products of a decoded token are those of a forward pass of b tokens (`compute_time`), which reads every weight once:
memory-bound for few sequences, compute-bound for many. Keys and values of a sequence have P + C / 2 tokens on average.
Every completion is assumed to have `max_completion_length` tokens.

`generate` is one engine per rank for all its completions. It copies keys and values when it appends to them, repeats
them for every query head that shares them, because a padded batch has a mask, and launches kernels one by one. vLLM
reads them in place, replays CUDA graphs, and runs as many sequences at a time as fit into its memory.

Sources: transformers 5.23 generation/utils.py `_sample`, cache_utils.py `DynamicLayer.update`,
integrations/sdpa_attention.py `use_gqa_in_sdpa`; TRL 1.16 generation/vllm_generation.py `sync_weights`. Compared with
published decoding speeds in `benchmarks/rollout_speed.py`.

Not covered: completions that end early, prefixes that prompts share, rewards by a function, speculative decoding.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from ..estimate import TimeTerm
from ..hardware import Cluster
from ..memory.evaluation import cached_elements, grouped_heads
from ..memory.rollout_memory import cached_sequences
from ..models.model_shape import ModelShape
from ..objectives import reference_passes, reward_model, reward_workload
from ..rollouts import Rollouts
from ..workload import Workload
from .collective_time import ring
from .compute_time import compute_time
from .host_costs import host_costs
from .host_time import host_work
from .roofline import KERNEL_S, memory_rate
from .step import Step

TOKEN_OPERATIONS, LAYER_OPERATIONS = 35, 2
"""Operations that `generate` launches in addition to those of a forward pass: for each token (the loop and the mask),
and for each layer (the copies that append keys and values). Counted under a dispatch mode (transformers 5.23, Qwen2,
padded batch)."""

GENERATE_HOST_BEFORE, REFACTORED_MODELS = 1.35, (4, 50)
"""Ratio of the host time of a token of `generate` before transformers 4.50 to that of the operations counted with 5.23.
Fitted by hand between two steps of GRPO with eight and four ranks (1.7) and the speeds of one process (1.0)."""

GRAPH_LAYER_OPERATIONS = 6
"""Kernels of a layer in vLLM's graph, without the products, whose start `compute_time` counts: two fused norms, the
activation, rotary embedding, the write to the cache, attention."""

ROLLOUT_TERMS = ("rollout", "weight synchronization")
SCORING_TERMS = ("passes without gradients", "reference model", "reward model")
"""Names of the time terms of each phase. All other terms belong to the training."""


class Engine(NamedTuple):
    engines: int
    sequences: float
    token_s: float
    """Seconds to generate one token of all sequences."""
    prefill_s: float
    host_s: float
    """Host seconds to launch one token's kernels; 0 with CUDA graphs."""

    def rollout_s(self, completions: int, length: int) -> float:
        return (self.prefill_s + length * self.token_s) * completions / (self.engines * self.sequences)


def rollout_terms(step: Step, forward_s: float) -> list[TimeTerm]:
    """Return the terms of rollout and scoring in an optimizer step; [] for an objective without completions.

    forward_s: seconds of the step's forward passes.
    """
    workload, plan = step.workload, step.plan
    rollouts = workload.rollouts
    if rollouts is None:
        return []
    per_step = rollouts.per_step(step.micro_batches)
    per_gpu = plan.micro_batch_size * rollouts.micro_batches(step.micro_batches)
    completions, length = per_gpu * step.replicas, rollouts.max_completion_length
    engine = vllm_engine(step.model, workload, step.cluster, per_gpu)
    seconds = per_step * engine.rollout_s(completions, length)
    terms = [
        step.term(
            "rollout",
            "launch" if engine.host_s >= engine.token_s else "gpu memory",
            seconds,
            "rollouts (prefill + C token) completions / (engines b)",
            rollouts=per_step,
            prefill=engine.prefill_s,
            C=length,
            token=engine.token_s,
            completions=completions,
            engines=engine.engines,
            b=engine.sequences,
        ),
        *_weight_synchronization(step, rollouts, per_step),
    ]
    reward = reward_model(step.model, workload)
    if reward is not None:
        scored_s = _reward_s(step, reward, per_gpu)
        values = {"rollouts": per_step, "scored": scored_s}
        terms.append(step.term("reward model", "gpu compute", per_step * scored_s, "rollouts scored", **values))
    pass_counts = {  # with a value model each pass runs both models: policy and values, reference and values
        "passes without gradients": rollouts.policy_passes(step.micro_batches),
        "reference model": reference_passes(workload),
    }
    for name, count in pass_counts.items():
        if count:
            passes = count / rollouts.num_iterations
            values = {"more": passes, "forward": forward_s}
            terms.append(step.term(name, "gpu compute", passes * forward_s, "more forward", **values))
    return terms


def _weight_synchronization(step: Step, rollouts: Rollouts, per_step: float) -> list[TimeTerm]:
    """Return the terms of sending weights to the engine: stage 3's gathers (all at once for `generate`, by tensor for
    vLLM), then one write on the same GPU, or a transfer from one rank to the server."""
    size = step.tensors.numel * step.element_bytes
    gathers, calls, transfer_s = 0, len(step.tensors.trainable) + len(step.tensors.frozen), 0.0
    if step.zero3:  # unless the whole model is gathered, `generate` gathers each layer for each token
        gathers_once = rollouts.rollout != "generate" or rollouts.ds3_gather_for_generation
        gathers = 1 if gathers_once else rollouts.max_completion_length
    if rollouts.rollout == "vllm-colocate":
        transfer_s = 2 * size / step.values["W"]
    elif rollouts.rollout == "vllm-server":
        across = rollouts.server_has_node
        # One rank sends the weights to the server, so the ring has two members.
        pair = replace(step.cluster, nodes=2 if across else 1, gpus_per_node=1 if across else 2)
        transfer_s = size / ring(pair).bytes_per_s
    seconds = gathers * step.ring.gather_s(size, calls) + transfer_s
    if not seconds:
        return []
    return [
        step.term(
            "weight synchronization",
            step.ring.resource if step.ring.ranks > 1 else "gpu memory",
            per_step * seconds,
            "rollouts (gathers (w all (N - 1) / N / link + calls t) + handed)",
            rollouts=per_step,
            gathers=gathers,
            all=step.tensors.numel,
            link=step.ring.bytes_per_s,
            calls=calls,
            handed=transfer_s,
        )
    ]


def _reward_s(step: Step, reward: ModelShape, completions: int) -> float:
    work = reward_workload(step.workload)
    computed = compute_time(reward, work, step.cluster.gpu, completions, False).forward_s
    if not step.zero3:
        return computed
    return computed + step.ring.gather_s(
        reward.parameters * step.element_bytes, sum(block.count for block in reward.blocks)
    )


@lru_cache(maxsize=256)
def vllm_engine(model: ModelShape, workload: Workload, cluster: Cluster, per_gpu: int) -> Engine:
    """Return the engine that generates the completions of a plan. cluster: the training's cluster. per_gpu: completions
    of each training GPU in a generation."""
    rollouts, gpu, model = workload.rollouts, cluster.gpu, model.generator
    assert rollouts is not None
    length, ranks = rollouts.max_completion_length, rollouts.vllm_tensor_parallel_size
    prompt = max(1, workload.seq_len - length)
    by_vllm = rollouts.rollout != "generate"
    engines, sequences = cluster.world_size, float(rollouts.at_once(per_gpu))
    if by_vllm:
        gpus = rollouts.server_gpus if rollouts.rollout == "vllm-server" else cluster.world_size
        engines = max(1, gpus // ranks)
        room = cached_sequences(model, workload, gpu.memory_bytes)
        sequences = max(1.0, min(per_gpu * cluster.world_size / engines, room))
    one_token, prompts = _generation_workload(workload, 1), _generation_workload(workload, prompt)
    at_once = max(1, round(sequences))
    bandwidth, element = memory_rate(gpu), workload.weight_bytes
    decoded = compute_time(model, one_token, gpu, at_once, False).forward
    prefilled = compute_time(model, prompts, gpu, at_once, False)
    cached_bytes = sequences * element * cached_elements(model, prompt + length // 2, latent=by_vllm)
    # `DynamicLayer.update` concatenates: keys and values are read, written and read again; repeated heads once more.
    copies = 1.0 if by_vllm else 3 + (2 * grouped_heads(model) if grouped_heads(model) > 1 else 0)
    computed_s = (decoded.total_s + copies * cached_bytes / bandwidth) / ranks
    layers, host_s = sum(block.count for block in model.blocks), 0.0
    if by_vllm:
        token_s = computed_s + _graph_token_s(model, workload, cluster, at_once)
    else:
        costs = host_costs(cluster)
        work = host_work(model, workload, 0)
        launched = TOKEN_OPERATIONS + LAYER_OPERATIONS * layers
        host_s = work.forward_s(costs, 0) + launched * costs.launched_s
        host_s *= GENERATE_HOST_BEFORE if workload.software.transformers < REFACTORED_MODELS else 1.0
        token_s = computed_s if gpu.is_cpu else max(computed_s, host_s)
    # Only the last token's logits are computed for a prompt.
    prefill_s = (prefilled.forward_s - prefilled.after_layers_s) / ranks
    return Engine(engines=engines, sequences=sequences, token_s=token_s, prefill_s=prefill_s, host_s=host_s)


def _graph_token_s(model: ModelShape, workload: Workload, cluster: Cluster, sequences: int) -> float:
    """Return the seconds of a token's kernels in a graph, and of two all-reduces per layer if GPUs split the layers."""
    rollouts, layers = workload.rollouts, sum(block.count for block in model.blocks)
    assert rollouts is not None
    seconds = layers * GRAPH_LAYER_OPERATIONS * KERNEL_S
    if rollouts.vllm_tensor_parallel_size > 1:
        group = ring(replace(cluster, nodes=1, gpus_per_node=rollouts.vllm_tensor_parallel_size))
        # Row-parallel attention output and feed-forward output each end with an all-reduce.
        seconds += 2 * layers * group.all_reduce_s(sequences * model.hidden_size * workload.weight_bytes, 1)
    return seconds


def _generation_workload(workload: Workload, tokens: int) -> Workload:
    """Return the workload of forward passes of `tokens` tokens per sequence. Adapters are merged in vLLM."""
    return Workload(
        seq_len=tokens,
        precision=workload.precision,
        attention=workload.attention,
        method="full" if workload.rollouts and workload.rollouts.rollout != "generate" else workload.method,
        lora_rank=workload.lora_rank,
        lora_targets=workload.lora_targets,
        quantization=workload.quantization,
        software=workload.software,
    )
