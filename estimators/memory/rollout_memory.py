"""Memory of reinforcement learning outside training: generation, scoring, a reward model, vLLM on the same GPU.

Each is a phase of the step, and a plan fits if all phases do. b = B n completions, of P prompt and C completion tokens
each, are generated at a time on each GPU:

- rollout_prefill, rollout (`generate`): at stage 3 the whole model is gathered (`ds3_gather_for_generation`); keys and
  values of b sequences; the peak of a layer's forward pass for all prompts at once, then the logits of the next token.
- rollout (vLLM on the same GPU): vLLM's share of the memory, `vllm_gpu_memory_utilization`, and one gathered tensor
  during the weight transfer, with adapters all of them. Without sleep mode vLLM holds its share in every phase.
- weight_synchronization (vLLM on other GPUs): only the gathered tensor.
- scoring: a forward pass of a micro batch that saves nothing, by the policy or the reference model.
- rewards: a reward model scores all b completions at once.

TRL's PPO generates and scores n completions at a time. It keeps the fp32 scores of every generated token, 4 b C V, from
one generation to the end of the next, which holds its own scores in parts and concatenated. Its scoring passes return
every layer's output, keys and values, and all logits.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from ..estimate import MEMORY_SYMBOLS, Formula, Phase, Terms, total_bytes
from ..hardware import Cluster
from ..models.model_shape import ModelShape
from ..objectives import reference_passes, reference_plan, reward_model, reward_workload
from ..plan import Plan
from ..rollouts import SERVER_MEMORY_UTILIZATION, Rollouts
from ..workload import Workload
from .activations.activation_memory import activation_memory, forward_only_terms
from .activations.loss import HEAD_COLUMNS, HEAD_TOKENS, layer_outputs
from .evaluation import cache_terms, cached_elements, generation_cache_terms
from .gathered_parameters import gathered_parameters
from .trainable import ShardedTensors, shard_tensors, tensor_set
from .zero_states import parameters

LOGIT_BYTES = 14
"""Bytes per logit of the next token: 16-bit logits, an fp32 copy, probabilities, and torch.multinomial's random numbers
(transformers 5.23 generation/utils.py `_sample`)."""

VLLM_TOKENS, VLLM_SEQUENCES = 4096, 256
"""Tokens and sequences of the pass that vLLM profiles: TRL's `max_num_batched_tokens` (trl 1.16
generation/vllm_generation.py) and vLLM's default of `max_num_seqs`."""

VLLM_SAMPLED_BYTES = 41
"""Bytes per logit of a sequence while vLLM samples: sorted logits, their indices, probabilities. From the profile of
Llama-3-8B (benchmarks/data/vllm_memory.csv)."""

VLLM_NON_TORCH_BYTES = 410 << 20
"""NCCL, context and library workspaces in vLLM's profiles: 0.15 to 0.39 GiB (benchmarks/data/vllm_memory.csv)."""

VLLM_GRAPHS_BYTES = 1659 << 20
"""Memory of vLLM's CUDA graphs: 0.17 to 2.4 GiB in its logs; the value is that of its default 51 and 35 graphs
(benchmarks/data/vllm_memory.csv). They are captured after the cache is made, so they are not included in
`gpu_memory_utilization`; vLLM includes them since 0.21 (v1/worker/gpu_worker.py `determine_available_memory`)."""

VLLM_ASLEEP_BYTES = VLLM_GRAPHS_BYTES + VLLM_NON_TORCH_BYTES
"""Memory that vLLM keeps in sleep mode, level 2, which frees weights, keys and values. Published: 0.8 GiB for a model
of 1B, including the context."""

_ROLLOUT = {
    **MEMORY_SYMBOLS,
    "b": "completions that a GPU generates at once",
    "u": "vllm_gpu_memory_utilization",
    "card": "bytes of the GPU's memory",
    "graphs": "bytes of vLLM's CUDA graphs",
    "whole": "elements that are gathered from all ranks",
    "C": "tokens of a completion",
}
_NEXT_LOGITS = Formula(
    "logits of the next token",
    "k b V",
    "transformers 5.23 generation/utils.py _sample",
    {**_ROLLOUT, "k": "bytes per logit"},
)
_GATHERED = Formula("gathered_parameters", "w whole", "trl 1.16 models/utils.py _unwrap_model_for_generation", _ROLLOUT)
_SYNCHRONIZED = _GATHERED._replace(source="trl 1.16 generation/vllm_generation.py _iter_named_params")
_VLLM = Formula(
    "vllm", "u card + graphs", "vLLM gpu_memory_utilization; trl 1.16 generation/vllm_generation.py", _ROLLOUT
)
_ASLEEP = Formula("vllm", "asleep", "vLLM sleep mode, level 2", {"asleep": "bytes that stay in sleep mode"})
_SCORED = Formula(
    "logits of one chunk", "w c v", "trl 1.16 kernels/chunked_logprob.py", {**_ROLLOUT, "c": "tokens", "v": "columns"}
)
_PPO = "trl 1.12 experimental/ppo/ppo_trainer.py"
_SCORES = Formula(
    "scores of generated tokens", "4 k C V", _PPO, {**_ROLLOUT, "k": "completions, each copy of its scores counted"}
)
_ALL_LOGITS = Formula(
    "logits",
    "w n (S + C) V",
    _PPO + ": all, and log-softmax of the completions'",
    {**_ROLLOUT, "n": "completions at a time"},
)
_REWARD = "trl 1.16 trainer/grpo_trainer.py _calculate_rewards, models/utils.py prepare_deepspeed"


def constant_rollout_memory(model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan) -> Terms:
    """Return the terms held in every phase: a reward model, a vLLM engine on the same GPU, PPO's scores."""
    rollouts = workload.rollouts
    if rollouts is None:
        return ()
    one_batch = plan.replace_fields(micro_batch_size=1, gradient_accumulation_steps=1)
    reward = _reward_model(reward_model(model, workload), workload.weights_cache_key(), one_batch, cluster.world_size)
    if model.policy:
        return reward + _scores(model, workload, rollout_completions(workload, plan))
    if rollouts.rollout != "vllm-colocate":
        return reward
    if rollouts.vllm_enable_sleep_mode:
        return reward + _ASLEEP.term(VLLM_ASLEEP_BYTES, asleep=VLLM_ASLEEP_BYTES)
    return reward + _vllm(rollouts, cluster)


def _vllm(rollouts: Rollouts, cluster: Cluster) -> Terms:
    u, card = rollouts.vllm_gpu_memory_utilization, cluster.gpu.memory_bytes
    return _VLLM.term(u * card + VLLM_GRAPHS_BYTES, u=u, card=card, graphs=VLLM_GRAPHS_BYTES)


def rollout_completions(workload: Workload, plan: Plan) -> int:
    """Return b, the completions of a generation on each GPU."""
    assert workload.rollouts is not None
    return plan.micro_batch_size * workload.rollouts.micro_batches(plan.gradient_accumulation_steps)


def _scores(model: ModelShape, workload: Workload, completions: int, name: str = _SCORES.name) -> Terms:
    length = workload.completion_len
    return _SCORES._replace(name=name).term(
        4 * completions * length * model.vocab_size, k=completions, C=length, V=model.vocab_size
    )


@lru_cache(maxsize=64)
def _reward_model(reward: ModelShape | None, workload: Workload, plan: Plan, ranks: int) -> Terms:
    if reward is None:
        return ()
    plan = reference_plan(plan)
    tensors = tensor_set(reward, reward_workload(workload))
    terms = parameters(shard_tensors(tensors, ranks), plan, gathered_parameters(tensors, plan, ranks))
    return tuple(part._replace(declared=part.declared._replace(name="reward_model", source=_REWARD)) for part in terms)


def rollout_phases(
    sharded: ShardedTensors,
    cluster: Cluster,
    workload: Workload,
    plan: Plan,
    resident: Terms,
    *,
    persistent: int = 0,
    in_scoring: Terms = (),
) -> tuple[Phase, ...]:
    """Return the phases before the training, without the terms of `constant_rollout_memory`; () for an objective
    without completions.

    resident: terms held at every moment of the training. persistent: elements that stage 3 never releases. in_scoring:
    weights that stage 3 gathers in a forward pass.
    """
    rollouts = workload.rollouts
    if rollouts is None:
        return ()
    both, width = sharded.tensors.model, workload.weight_bytes
    model, completions = both.generator, rollout_completions(workload, plan)
    at_once = rollouts.at_once(completions)
    prompt = max(1, workload.seq_len - rollouts.max_completion_length)

    def unsaved(shape: ModelShape, work: Workload, sequences: int) -> Terms:
        capability = cluster.gpu.compute_capability
        return activation_memory(
            shape, work.passes_cache_key(), sequences, False, compute_capability=capability
        ).unsaved_terms

    phases: list[Phase] = []
    if rollouts.rollout == "generate":
        whole = _whole_model(sharded, plan, persistent) if rollouts.ds3_gather_for_generation else in_scoring
        whole = resident + whole
        # All prompts are computed in one pass, before the first completion token.
        first = unsaved(model, workload.at_length(prompt), at_once)
        logits = _NEXT_LOGITS.term(
            LOGIT_BYTES * at_once * model.vocab_size, k=LOGIT_BYTES, b=at_once, V=model.vocab_size
        )
        decoding = generation_cache_terms(model, workload, at_once, workload.seq_len) + logits
        if both.policy:  # scores in parts, then concatenated
            generating = decoding + _scores(model, workload, completions + at_once, "scores as they come")
            concatenating = _scores(model, workload, 2 * completions, "scores put together")
            decoding = max(generating, concatenating, key=total_bytes)
        phases += [
            Phase(name="rollout_prefill", terms=whole + cache_terms(model, workload, at_once, prompt) + first),
            Phase(name="rollout", terms=whole + decoding),
        ]
    else:
        synchronized = _synchronized_weights(sharded, plan, persistent)
        colocated = rollouts.rollout == "vllm-colocate"
        awake = _vllm(rollouts, cluster) if colocated and rollouts.vllm_enable_sleep_mode else ()
        name = "rollout" if colocated else "weight_synchronization"
        phases.append(Phase(name=name, terms=resident + synchronized + awake))
    reward = reward_model(both, workload)
    if both.policy:
        length, scored = workload.seq_len, workload.completion_len
        logits = _ALL_LOGITS.term(
            width * at_once * (length + scored) * model.vocab_size,
            w=width,
            n=at_once,
            S=length,
            C=scored,
            V=model.vocab_size,
        )
        peak = max(unsaved(model, workload, at_once), logits, key=total_bytes)
        kept = layer_outputs(model, workload, at_once) + cache_terms(model, workload, at_once, length)
        phases.append(Phase(name="scoring", terms=resident + in_scoring + kept + peak))
    elif reference_passes(workload) or rollouts.policy_passes(plan.gradient_accumulation_steps):
        tokens = min(HEAD_TOKENS, plan.micro_batch_size * workload.scored_len)
        chunk = _SCORED.term(width * tokens * HEAD_COLUMNS, w=width, c=tokens, v=HEAD_COLUMNS)
        forward = max(unsaved(model, workload, plan.micro_batch_size), chunk, key=total_bytes)
        phases.append(Phase(name="scoring", terms=resident + in_scoring + forward))
    if reward is not None:
        peak = unsaved(reward, reward_workload(workload), at_once)
        kept = layer_outputs(reward, workload, at_once) if both.policy else ()
        phases.append(Phase(name="rewards", terms=resident + kept + peak))
    return tuple(phases)


def _whole_model(sharded: ShardedTensors, plan: Plan, persistent: int) -> Terms:
    """Return the whole model that `generate` gathers at stage 3, plus one rank's shards if the engine offloads them:
    they go to the GPU first."""
    if plan.zero_stage < 3 or (sharded.world_size == 1 and plan.offload_param == "none"):
        return ()
    numel, width = sharded.tensors.numel - persistent, sharded.tensors.workload.weight_bytes
    if plan.offload_param != "none":
        numel += numel // sharded.world_size
    return _GATHERED.term(width * numel, w=width, whole=numel)


def _synchronized_weights(sharded: ShardedTensors, plan: Plan, persistent: int) -> Terms:
    """Return the weights that stage 3 gathers for vLLM: tensor by tensor; with adapters all, as they are merged."""
    if plan.zero_stage < 3 or sharded.world_size == 1:
        return ()
    if sharded.tensors.workload.method != "full":
        return _whole_model(sharded, plan, persistent)
    # Weights are gathered and handed over one at a time, so the largest decides.
    numel, width = sharded.tensors.largest_trainable, sharded.tensors.workload.weight_bytes
    return _SYNCHRONIZED.term(width * numel, w=width, whole=numel)


def cached_sequences(model: ModelShape, workload: Workload, memory_bytes: int) -> float:
    """Return the number of sequences of full length whose keys and values fit in a vLLM engine; 0 or less if its share
    of `memory_bytes` does not hold the weights."""
    rollouts = workload.rollouts
    assert rollouts is not None
    colocated = rollouts.rollout == "vllm-colocate"
    share = rollouts.vllm_gpu_memory_utilization if colocated else SERVER_MEMORY_UTILIZATION
    ranks = rollouts.vllm_tensor_parallel_size
    weights = workload.weight_bytes * model.parameters / ranks
    kept = workload.weight_bytes * cached_elements(model, workload.seq_len, latent=True)
    return ranks * (share * memory_bytes - profiled_bytes(model, workload) - weights) / max(1, kept)


def profiled_bytes(model: ModelShape, workload: Workload, tokens: int = VLLM_TOKENS) -> int:
    """Return the bytes that vLLM reserves in addition to weights, keys and values: the larger of a layer's forward pass
    of `tokens` tokens and sampling, plus the memory outside torch."""
    # vLLM profiles a single pass of this many tokens with its own flash kernels, before it sizes the cache.
    one = replace(workload.passes_cache_key().at_length(tokens), attention="flash")
    shared, layer = forward_only_terms(model, one, 1, compute_capability=None)
    sampled = VLLM_SAMPLED_BYTES * VLLM_SEQUENCES * model.vocab_size
    return max(total_bytes(shared + layer), sampled) + VLLM_NON_TORCH_BYTES
