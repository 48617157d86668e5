"""Memory that stays on each GPU from step to step: weights, master weights, optimizer states.

w is 2 bytes in bf16 and fp16, 4 in fp32. o is the optimizer's bytes per master element. Pt' = ceil(Pt / 2N) 2N is the
padded flat group of stages 1 and 2. Pt'' = sum of ceil(n / N) over the trainable tensors of n elements is one rank's
shard at stage 3. Pf are frozen parameters.

| stage | weights                | masters | states  |
|-------|------------------------|---------|---------|
| 0     | w P                    | 4 Pt    | o Pt    |
| 1, 2  | w Pt' + w Pf           | 4 Pt'/N | o Pt'/N |
| 3     | w Pt'' + w Pf''        | 4 Pt''  | o Pt''  |

With bf16 masters (`bf16_master_weights_and_grads`), m = 2 replaces 4; `bf16_optimizer_states` then halves o as well.

In fp32, stage 0 has no master weights, but stages 1 to 3 keep a second copy. With the optimizer offloaded, masters and
states leave the GPU; with the parameters offloaded, the shards do too. Sub-groups that an offload leaves on the GPU
(`offload_optimizer_ratio`) keep masters, states and fp32 gradients there at all times.

Source: deepspeed 0.19.8 runtime/engine.py `_do_optimizer_sanity_check` (selects the wrapper),
runtime/fp16/fused_optimizer.py and unfused_optimizer.py (stage 0), runtime/zero/stage_1_and_2.py and stage3.py
`__init__`.
"""

from __future__ import annotations

from functools import lru_cache

from ..estimate import MEMORY_SYMBOLS, Formula, Terms
from ..objectives import has_reference_model, reference_plan
from ..optimizers import OptimizerSpec
from ..plan import Plan
from .gathered_parameters import GatheredParameters
from .partition import shard_numel
from .trainable import ShardedTensors, TensorSet, generator_tensors, groups_on_gpu

_STAGE_0 = "deepspeed 0.19.8 runtime/fp16/fused_optimizer.py, unfused_optimizer.py __init__"
_STAGE_1_2 = "deepspeed 0.19.8 runtime/zero/stage_1_and_2.py DeepSpeedZeroOptimizer.__init__"
_STAGE_3 = "deepspeed 0.19.8 runtime/zero/stage3.py DeepSpeedZeroOptimizer_Stage3"
_MASTERS_3 = f"{_STAGE_3}._create_fp32_partitions"

_SYMBOLS = {
    **MEMORY_SYMBOLS,
    "kept": "elements of the sub-groups that stay on the GPU (offload_optimizer.ratio)",
    "resting": "elements of one rank's shards, including frozen ones, without persistent ones",
    "scales": "bytes of the scales of quantized weights, whole on every rank",
    "persistent": "elements of tensors up to stage3_param_persistence_threshold",
    "second": "elements, padded to a multiple of N, that were released since the step, and frozen elements",
    "h": "ranks that share a second copy (zero_hpz_partition_size)",
}
_KEPT_MASTERS = Formula("master_weights", "m kept", _MASTERS_3, _SYMBOLS)
_KEPT_STATES = Formula(
    "optimizer_states", "2 m kept", "torch 2.13 optim/adamw.py AdamW (stage3.py backup_optimizer)", _SYMBOLS
)
_KEPT_GRADIENTS = Formula("gradients", "m kept", f"{_STAGE_3}.initialize_optimizer_states", _SYMBOLS)
_WHOLE = Formula("parameters", "w Pt' + frozen", _STAGE_0)
_SHARDS = Formula("parameters", "w resting", f"{_STAGE_3}._create_fp16_partitions_with_defragmentation", _SYMBOLS)
_SCALES = Formula(
    "parameters",
    "scales",
    "bitsandbytes 0.50 nn/modules.py Params4bit (quant_state, which is not a parameter)",
    _SYMBOLS,
)
_PERSISTENT = Formula(
    "persistent_parameters",
    "w persistent",
    "deepspeed 0.19.8 runtime/zero/parameter_offload.py mark_persistent_parameters",
    _SYMBOLS,
)
_REFERENCE = "trl 1.16 models/utils.py prepare_deepspeed"
_SECOND_COPY = Formula(
    "second_copy_of_weights",
    "w second / h",
    "deepspeed 0.19.8 runtime/zero/partition_parameters.py _partition_param_sec, stage3.py invalidate_secondary_tensor",
    _SYMBOLS,
)


@lru_cache(maxsize=256)
def second_copy_numels(sharded: ShardedTensors, threshold: int) -> tuple[int, int]:
    """Return the elements of trained and of frozen tensors in hpZ's second copy, each padded to a multiple of N.
    Counted are the trained tensors that are released, and all frozen ones."""
    ranks = sharded.world_size
    trained = sum(shard_numel(numel, ranks) for numel in sharded.tensors.trainable if numel > threshold)
    return ranks * trained, ranks * sharded.frozen_shard_total


def second_copy(sharded: ShardedTensors, plan: Plan, unreleased: int) -> Terms:
    """Return one rank's part of hpZ's second copy. `unreleased` elements have not been released since the step.

    A tensor's copy is made at its first release after a step and dropped after the next step; a frozen one stays. Not
    covered: copies made while loading, in the first iteration.
    """
    group = plan.zero_hpz_partition_size
    if group == 1 or plan.offload_param != "none":
        return ()
    trained, frozen = second_copy_numels(sharded, plan.stage3_param_persistence_threshold)
    # A tensor that is still gathered has no second copy yet: `_partition_param_sec` runs when it is released. In a
    # later micro batch it has the one of the first.
    unreleased *= plan.gradient_accumulation_steps == 1
    width, numel = sharded.tensors.workload.weight_bytes, frozen + max(0, trained - unreleased)
    return _SECOND_COPY.term(width * numel // group, w=width, second=numel, h=group)


def state_bytes(optimizer: OptimizerSpec, tensors: TensorSet, numel: int, *, stage: int, on_cpu: bool) -> int:
    """Return the bytes of optimizer state for `numel` elements of one rank.

    Muon's momentum is fp32 at stage 0 and under offload, otherwise of the gradients' dtype, twice at stages 1 and 2 (a
    staged copy that a discarded step does not apply). Embeddings, norms and head keep Adam's states.
    """
    if not optimizer.per_matrix:
        return int(numel * ((optimizer.cpu_state_bytes if on_cpu else optimizer.state_bytes) or 0))
    width = tensors.workload.weight_bytes
    momentum = 4 if on_cpu or stage == 0 else (width if stage == 3 else 2 * width)
    # A flat partition mixes matrices and other tensors; the share of the whole model stands for each rank's.
    matrices = numel * tensors.muon // tensors.trainable_numel
    return matrices * momentum + (numel - matrices) * 8


def parameters(sharded: ShardedTensors, plan: Plan, gathered: GatheredParameters) -> Terms:
    """Return the weights that a GPU holds between passes."""
    tensors, width = sharded.tensors, sharded.tensors.workload.weight_bytes
    if plan.zero_stage == 3:
        resting = 0 if plan.offload_param != "none" else sharded.shard_total + sharded.frozen_shard_total
        persistent = _PERSISTENT.term(width * gathered.persistent, w=width, persistent=gathered.persistent)
        # ZeRO-3 shards parameters only; bitsandbytes keeps its scales in `quant_state`, whole on every rank.
        scales = tensors.frozen_bytes - width * sum(tensors.frozen)
        scale_terms = _SCALES.term(scales, scales=scales) if scales else ()
        return _SHARDS.term(width * resting, w=width, resting=resting) + scale_terms + persistent
    trainable = sharded.flat_numel if plan.zero_stage else tensors.trainable_numel
    formula = _WHOLE._replace(source=_STAGE_1_2) if plan.zero_stage else _WHOLE
    inputs = {"w": width, "Pt'": trainable, "frozen": tensors.frozen_bytes}
    return formula.term(width * trainable + tensors.frozen_bytes, **inputs)


def reference_model(sharded: ShardedTensors, plan: Plan, gathered: GatheredParameters) -> Terms:
    """Return the reference model's weights on a GPU, () without one. `gathered` is that of the policy."""
    if not has_reference_model(sharded.tensors.workload):
        return ()
    sharded = generator_tensors(sharded)
    terms = parameters(sharded, reference_plan(plan), gathered)
    return tuple(
        part._replace(declared=part.declared._replace(name="reference_model", source=_REFERENCE)) for part in terms
    )


def masters_and_states(sharded: ShardedTensors, plan: Plan, optimizer: OptimizerSpec) -> Terms:
    """Return master weights and optimizer states on a GPU. Under offload: those of the sub-groups that stay on the GPU,
    with their fp32 gradients."""
    if plan.offload_optimizer != "none":
        on_gpu, m = sum(groups_on_gpu(sharded, plan)), plan.master_bytes
        states = _KEPT_STATES.term(2 * m * on_gpu, m=m, kept=on_gpu)
        return (
            _KEPT_MASTERS.term(m * on_gpu, m=m, kept=on_gpu)
            + states
            + _KEPT_GRADIENTS.term(m * on_gpu, m=m, kept=on_gpu)
        )
    stage = plan.zero_stage
    numel, source, symbol = sharded.partition, _STAGE_1_2, "part"
    if stage == 0:
        numel, source, symbol = sharded.tensors.trainable_numel, _STAGE_0, "Pt"
    elif stage == 3:
        numel, source, symbol = sharded.shard_total, _MASTERS_3, "shards"
    m, precision = plan.master_bytes, sharded.tensors.workload.precision
    size = state_bytes(optimizer, sharded.tensors, numel, stage=stage, on_cpu=False)
    # Without a wrapper torch's optimizer updates the model's own fp32 weights.
    masters = 0 if stage == 0 and precision == "fp32" else m * numel
    states = Formula("optimizer_states", f"o {symbol}", optimizer.source).term(
        size, **{"o": size / numel, symbol: numel}
    )
    return Formula("master_weights", f"m {symbol}", source).term(masters, **{"m": m, symbol: numel}) + states
