"""Host time for launching work, which dominates the step of a small model.

The host time of an operation in eager PyTorch hardly depends on its size, and the GPU waits if its kernels are shorter.
Counts follow from the model's dimensions; unit costs are measured (`host_costs`). Counts of one layer were taken under
a dispatch mode with transformers 5, as on a GPU:

    forward    operations  1 for each matrix; an RMSNorm 8 (10 as Gemma writes it), a LayerNorm 1; rotary embedding 10,
                           attention 1, activation 1 and its gate 1, residual sums 2, each dropout 1; routing and
                           sorting tokens by expert 18; an adapter 4, 1 for its dropout, and 2 more to cast its
                           input and output
               views       3 for each matrix, 6 for an adapter, 6 for the rotary embedding, 12
    backward   operations  2 for each matrix, 1 if it is frozen; 1 for each bias; an adapter 5, 1 for its dropout;
                           1.8 for any other
               views       6 for each matrix, 9 for an adapter, 29

If each expert is a module (`families.module_experts`), it has three matrices, 7 more operations, 5 more views and 5
module calls (transformers 4.51 models/qwen3_moe/modeling_qwen3_moe.py `Qwen3MoeSparseMoeBlock.forward`): it finds its
tokens (`where`), gathers them, weights its result and adds it. `where` waits for the GPU.

Checked against the modules themselves: `benchmarks/probes/host_time.py`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ..memory.trainable import count_above, tensor_set
from ..models.families import layer_variant, leaf_experts, module_experts
from ..models.lora import Adapters, adapters, quantized
from ..models.model_shape import Block, ModelShape
from ..models.program import Program, value_at
from ..models.vision_parts import has_backward
from ..plan import Plan
from ..workload import Workload
from .host_costs import HostCosts
from .memory_bound import dequantization

BACKWARD_OF_OTHERS = 1.8
"""Backward operations for each forward operation that is not a product with a weight."""

_EXPERT_OPERATIONS, _EXPERT_VIEWS, _EXPERT_CALLS = 7, 5, 5
"""Counts of one expert that is a module, without its matrices."""

_MODULES_OF_ADAPTER = 10
"""Modules that peft puts into an adapted one: the base layer, the containers of dropout, both matrices, both embeddings
and magnitudes, and in three of them a module (peft 0.21 tuners/lora/layer.py `LoraLayer`)."""

_FOLD_CALLS = 5
"""Modules that peft calls to fold an adapter into a tensor."""


class Operations(NamedTuple):
    operations: int = 0
    """Forward operations that launch a kernel."""
    views: int = 0
    """Forward operations without a kernel."""
    backward_operations: int = 0
    backward_views: int = 0
    calls: int = 0
    hooked: int = 0
    """Module calls with hooks of ZeRO-3."""
    adapted: int = 0
    folds: int = 0
    """Weights W + B A that LoRA computes because no module can hold an adapter."""
    unpacked: int = 0
    """Linear layers with 4-bit weights of bitsandbytes."""

    def plus(self, other: Operations, times: int = 1) -> Operations:
        return Operations(*(one + times * another for one, another in zip(self, other, strict=True)))


_DORA = Operations(operations=12, views=6, backward_operations=8, backward_views=4, calls=3)
"""Counts that DoRA adds to an adapter: the norms of W + B A, with both of the adapter's modules again, and the products
with the magnitudes (peft 0.21 tuners/lora/dora.py DoraLinearLayer.forward)."""


def layer_operations(
    model: ModelShape, block: Block, workload: Workload, lora: Adapters, *, fused: bool = False
) -> Operations:
    """Return the counts of one layer. fused: whether norms, rotary embedding, gated activation are one kernel each."""
    if block.program is not None:
        counts, cast = _recorded_operations(block, block.program, workload), 0
        adapted = sum(1 for tensor in block.tensors if tensor.linear and lora.adapter_rank(tensor))
    else:
        counts = _own_operations(model, block, workload, fused=fused)
        cast = 2 if workload.software.fp32_adapters else 0
        adapted = sum(lora.adapter_layers(tensor) for tensor in block.tensors)
    folds = sum(1 for tensor in block.tensors if lora.folds(tensor))
    cast += 1 if workload.lora_dropout else 0
    # Modules with parameters, and layer, attention, feed-forward and activation. peft adds four around an adapted
    # module (base layer, dropout, lora_A, lora_B) and five around a tensor that it folds.
    modules = len({tensor.name.rpartition(".")[0] for tensor in block.tensors}) + 4
    calls = counts.calls + modules + 4 * adapted + _FOLD_CALLS * folds
    if lora.dora:
        counts = counts.plus(_DORA, adapted)
        calls += _DORA.calls * adapted
    return Operations(
        operations=counts.operations + (4 + cast) * adapted,
        views=counts.views + 6 * adapted,
        backward_operations=counts.backward_operations + (5 + cast) * adapted,
        backward_views=counts.backward_views + 9 * adapted,
        calls=calls,
        hooked=calls - _unhooked(model, block, workload, lora, folds),
        adapted=adapted,
        folds=folds,
        unpacked=counts.unpacked,
    )


def _own_operations(model: ModelShape, block: Block, workload: Workload, *, fused: bool) -> Operations:
    """Return the counts of a layer without adapters. `calls` counts only experts that are modules."""
    experts = module_experts(model, workload.software) if block.feed_forward.experts else 0
    fused_experts = sum(1 for tensor in block.tensors if experts and tensor.role == "expert")
    matrices = sum(1 for tensor in block.tensors if len(tensor.shape) >= 2) + 3 * experts - fused_experts
    others = _other_operations(model, block, workload, fused=fused) + _EXPERT_OPERATIONS * experts
    trained = [tensor for tensor in block.tensors if workload.method == "full" and not tensor.frozen]
    biases = sum(1 for tensor in trained if tensor.name.endswith(".bias"))
    casts = 2 * matrices + biases if workload.autocasts else 0  # inputs and weights, and their gradients backward
    dequantized = sum(1 for tensor in block.tensors if quantized(tensor, workload))
    dequantizing, others_backward = dequantization(workload), round(BACKWARD_OF_OTHERS * others)
    backward = (2 if trained else 1) * matrices + biases + casts + others_backward
    return Operations(
        operations=matrices + others + casts + dequantizing.operations * dequantized,
        views=3 * matrices + (6 if block.attention.rotary else 0) + 12 + _EXPERT_VIEWS * experts,
        backward_operations=backward + dequantizing.backward_operations * dequantized,
        backward_views=6 * matrices + 29,
        calls=_expert_calls(experts),
        # unsloth's kernels call the library's function itself.
        unpacked=dequantized if workload.quantization == "nf4" and workload.kernels != "unsloth" else 0,
    )


def _recorded_operations(block: Block, program: Program, workload: Workload) -> Operations:
    """Return the counts of a recorded layer. An operation launches a kernel if its result has new memory."""
    full, slots = workload.method == "full", program.slots
    operations = views = 0
    backward = sum(1 for tensor in block.tensors if tensor.name.endswith(".bias")) if full else 0
    for instruction in program.instructions:
        if instruction.kind in ("hold", "checkpoint", "checkpointed"):
            continue
        known = {slots[number].storage for number in instruction.inputs}
        launches = any(slots[number].storage not in known for number in instruction.outputs)
        times = value_at(instruction.repeats, workload.seq_len)
        operations, views = operations + launches * times, views + (not launches) * times
        if instruction.kind == "linear":
            views, backward = views + _LINEAR_VIEWS * times, backward + (2 if full else 1) * times
        elif instruction.kind == "attention":
            backward += 1
        elif instruction.derivatives:
            backward += instruction.derivatives[-1][1].operations * times
    return Operations(operations=operations, views=views, backward_operations=backward, backward_views=2 * views)


_LINEAR_VIEWS = 3
"""Views of a linear layer's product (t, view, _unsafe_view)."""


def _expert_calls(experts: int) -> int:
    """Return the additional module calls of experts that are modules. The list is not called, and each expert calls its
    own activation."""
    return _EXPERT_CALLS * experts - 2 if experts else 0


def norm_operations(model: ModelShape, block: Block, *, fused: bool) -> int:
    return 1 if fused or block.norm == "layer" else layer_variant(model, block).norm_operations


def _other_operations(model: ModelShape, block: Block, workload: Workload, *, fused: bool) -> int:
    attention, feed_forward = block.attention, block.feed_forward
    count = norm_operations(model, block, fused=fused) * (block.norm_count + (2 if attention.qk_norm else 0)) + 2
    count += ((2 if fused else 10) if attention.rotary else 0) + (7 if workload.attention == "eager" else 1)
    count += 8 if feed_forward.activation == "gelu_new" else 1
    count += 1 if feed_forward.gated and not fused else 0
    count += 18 if feed_forward.experts else 0
    return count + (2 if block.hidden_dropout else 0)


def _unhooked(model: ModelShape, block: Block, workload: Workload, lora: Adapters, folds: int) -> int:
    """Return the module calls without hooks: those of peft around a folded tensor, which are added after DeepSpeed's
    hooks, and those of a leaf module's submodules and their activation."""
    if not (block.feed_forward.experts and leaf_experts(model, workload.software)):
        return _FOLD_CALLS * folds
    inside = [tensor for tensor in block.tensors if tensor.role in ("router", "expert", "feed_forward")]
    adapted = sum(lora.adapter_layers(tensor) for tensor in inside)
    modules = len({tensor.name.rpartition(".")[0] for tensor in inside}) + 1 + 4 * adapted
    return modules + _expert_calls(module_experts(model, workload.software)) + _FOLD_CALLS * folds


FSDP_VISIT_S = 700e-6
"""FSDP's hooks around one visit of a unit, forward or backward. Fitted."""

FSDP_SERIAL = 0.5
"""`ZERO3_SERIAL` for FSDP. Assumed."""

ZERO3_SERIAL = 0.19
"""Share of the shorter of host and GPU time that stage 3 adds to the longer: the host synchronizes with its own fetch
when it runs two ahead of the GPU (deepspeed 0.19.8 partitioned_param_coordinator.py `__max_ongoing_fetch_events`).

Chosen by hand, not by `benchmarks/accuracy/speed_fit.py`. Published runs without offload fit 0.3 better, by a quarter
of a point of their mean error; those with offload, and schedules of dry runs, fit 0 better, by as little.
"""

_OUTSIDE = Operations(operations=13, views=15, backward_operations=12, backward_views=30, calls=6, hooked=6)
"""Counts outside the layers, without the last norm and the rotary table: embedding, positions, mask, head, loss."""

_ROTARY_TABLE = 6
"""Operations that compute the cosines and sines once for all layers."""

CHECK_LAUNCHES = 12
"""Kernels that check a tensor for infinities: abs, !=, ==, products, extremes (counted like `step_counts`)."""


class HostWork(NamedTuple):
    counts: Operations
    once: Operations
    """The counts that checkpointing does not repeat: outside the layers, and in layers without a backward pass."""
    layers: int
    reentrant: bool
    parameters: int
    gathered: int
    """Number of tensors that stage 3 does not keep on every rank."""
    persistent: int
    """Number of tensors that stage 3 keeps on every rank."""
    units: int
    """Number of FSDP units: each layer, and each adapter (peft's `fsdp_auto_wrap_policy`); 0 for ZeRO."""
    synchronizes: bool
    """Whether the host waits for the GPU throughout the pass."""

    @property
    def modules(self) -> int:
        """Modules of the model. peft adds ten around an adapted one, of which four are called."""
        return self.counts.calls + (_MODULES_OF_ADAPTER - 4) * self.counts.adapted

    def forward_s(self, costs: HostCosts, zero_stage: int) -> float:
        return self._run_s(costs, zero_stage, self.counts) + self._gathers_s(costs, zero_stage)

    def _run_s(self, costs: HostCosts, zero_stage: int, run: Operations) -> float:
        seconds = run.operations * costs.launched_s + run.views * costs.view_s + run.calls * costs.module_call_s
        seconds += run.unpacked * costs.dequantize_s
        return seconds + run.folds * costs.fold_s + self._visits_s(costs.forward_visit_s, zero_stage, run.hooked)

    def recompute_s(self, costs: HostCosts, zero_stage: int) -> float:
        """Return the host seconds of recomputation, including its gathers for the backward pass."""
        repeated = self.counts.plus(self.once, -1)
        seconds = self._run_s(costs, zero_stage, repeated) + self.layers * costs.checkpoint_s
        return seconds + (0 if self.reentrant else repeated.operations) * costs.recomputed_operation_s

    def backward_s(self, costs: HostCosts, zero_stage: int, buckets: int, regathered: float = 1.0) -> float:
        """Return the host seconds of a backward pass. buckets: gradient buckets that stages 1 to 3 reduce in the pass.
        gathered_again: share of the tensors gathered in the forward pass that are gathered again."""
        counts = self.counts
        seconds = counts.backward_operations * costs.backward_launched_s + counts.backward_views * costs.backward_view_s
        seconds += counts.unpacked * costs.dequantize_s
        seconds += self._visits_s(costs.backward_visit_s, zero_stage, counts.hooked)
        seconds += regathered * self._gathers_s(costs, zero_stage)
        if zero_stage and buckets:
            gradient_s = costs.partitioned_s if zero_stage == 3 else costs.bucketed_s
            seconds += self.parameters * gradient_s + buckets * costs.reduced_bucket_s
        return seconds

    def step_counts(self, plan: Plan, world_size: int) -> tuple[int, int]:
        """Return the operations dispatched by the engine's step, and the number launched on the GPU. T: trained
        tensors. t: trained tensors in a rank's part (stages 1 and 2). c: trained tensors that stage 3 keeps whole.

            stage 0             20 T + 14 operations             14 T + 4 launches
            stages 1, 2         18 t + 4 T + 47                  15 t + 41
                offloaded       4 T + 56                         4
            stage 3             6 T + 10 c + 39                  2 T + c + 41
                offloaded       5 T + 11 c + 35                  2 T + c + 6

        Counted in schedules recorded by dry runs of deepspeed 0.19.8: six families, full and LoRA, 2 to 64 ranks.
        """
        trained, offloaded = self.parameters, plan.offload_optimizer != "none"
        if plan.zero_stage == 0:
            return 20 * trained + 14, 14 * trained + 4
        if plan.zero_stage == 3:
            whole = 1 + self.persistent
            operations = 5 * trained + 11 * whole + 35 if offloaded else 6 * trained + 10 * whole + 39
            return operations, 2 * trained + whole + (6 if offloaded else 41)
        if offloaded:
            return 4 * trained + 56, 4
        touched = self.touched(world_size)
        return 18 * touched + 4 * trained + 47, 15 * touched + 41

    def touched(self, world_size: int) -> int:
        """Return the trained tensors in a rank's part, which cuts at most one tensor more than its share."""
        return min(self.parameters, self.parameters // world_size + 1)

    def step_s(self, costs: HostCosts, plan: Plan, world_size: int) -> float:
        operations, launches = self.step_counts(plan, world_size)
        return costs.engine_step_s + operations * costs.step_operation_s + launches * costs.launch_s

    def step_kernels(self, plan: Plan, world_size: int) -> int:
        """Return the number of kernels of the step for which the host does not wait individually."""
        launches = self.step_counts(plan, world_size)[1]
        return launches - (0 if plan.zero_stage else CHECK_LAUNCHES * self.parameters)

    def checks_s(self, costs: HostCosts, zero_stage: int) -> float:
        """Return the part of `step_s` in which stage 0 checks each tensor for infinities and waits for the result
        (deepspeed 0.19.8 runtime/utils.py `CheckOverflow`)."""
        if zero_stage:
            return 0.0
        return self.parameters * (CHECK_LAUNCHES * (costs.step_operation_s + costs.launch_s) + costs.step_operation_s)

    def _visits_s(self, visit_s: float, zero_stage: int, hooked: int) -> float:
        """Return the seconds of stage 3's hooks in one pass."""
        if zero_stage != 3:
            return 0.0
        # FSDP hooks whole units, ZeRO-3 every module with or without parameters.
        return self.units * FSDP_VISIT_S if self.units else hooked * visit_s

    def _gathers_s(self, costs: HostCosts, zero_stage: int) -> float:
        return self.gathered * costs.gathered_s if zero_stage == 3 and not self.units else 0.0


def host_work(model: ModelShape, workload: Workload, persistence_threshold: int, *, fsdp: bool = False) -> HostWork:
    """Return the counts of a micro batch. persistence_threshold: largest number of elements of a tensor that stage 3
    keeps on every rank."""
    return _host_work(model, workload.weights_cache_key(), persistence_threshold, fsdp=fsdp)


@lru_cache(maxsize=64)
def _host_work(model: ModelShape, workload: Workload, persistence_threshold: int, *, fsdp: bool) -> HostWork:
    lora, tensors = adapters(model, workload), tensor_set(model, workload)
    gathered = count_above(tensors, persistence_threshold)
    fused, last, once = workload.kernels != "torch", model.blocks[-1], Operations()
    if not model.module:
        norm = norm_operations(model, last, fused=fused)
        rotary = _ROTARY_TABLE if last.attention.rotary else 0
        more = Operations(operations=norm + rotary, backward_operations=round(BACKWARD_OF_OTHERS * norm))
        once = _OUTSIDE.plus(more)
    counts = once
    for block in model.blocks:
        layer = layer_operations(model, block, workload, lora, fused=fused)
        if not has_backward(model, block, workload, checkpointing=False):
            layer = layer._replace(backward_operations=0, backward_views=0)
            once = once.plus(layer, block.count)
        counts = counts.plus(layer, block.count)
    return HostWork(
        counts=counts,
        once=once,
        layers=model.num_layers,
        reentrant=workload.software.reentrant,
        parameters=len(tensors.trainable) + (tensors.split_experts if workload.method == "full" else 0),
        gathered=gathered,
        persistent=len(tensors.trainable) + len(tensors.frozen) + tensors.split_experts - gathered,
        units=model.num_layers + counts.adapted if fsdp else 0,
        # `torch.where` per expert must know how many tokens it gets, which only the GPU knows.
        synchronizes=tensors.split_experts > 0,
    )
