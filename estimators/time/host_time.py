"""What the host spends on launching work, which is the whole time of a small model.

Every operation of eager PyTorch costs the host about as much whatever its size, and the GPU waits when its kernels are
shorter than that. Counts are derived here from the model's dimensions; what each thing costs is measured
(`host_costs`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ..memory.trainable import larger_than, tensor_set
from ..models.lora import adapters
from ..models.model_shape import ModelShape
from ..plan import Plan
from ..workload import Workload
from .host_costs import HostCosts
from .layer_operations import BACKWARD_OF_OTHERS, layer_operations, norm_operations

FSDP_VISIT_S = 700e-6
"""FSDP's hooks around one visit of a unit, forward or backward. Fitted; no plan of the project uses it."""

FSDP_SERIAL = 0.5
"""As `ZERO3_SERIAL`, for FSDP. Assumed."""

ZERO3_SERIAL = 0.19
"""Part of the shorter of host and GPU time that stage 3 adds to the longer: the host synchronizes with a fetch of its
own when it runs two ahead of the GPU (deepspeed 0.19.8 partitioned_param_coordinator.py
`__max_ongoing_fetch_events`), so a module that is slow on one does not hide behind one that is slow on the other.

Chosen by hand; `benchmarks/fit_speed.py` does not choose it anew where it leaves a source out. The schedules that dry
runs record are nearest to 0 (3.6 % off on average). Published runs where nothing is offloaded are too, but with less
than this stage 3 is predicted faster than stage 2 on GPUs that measured the contrary; those with offload are nearest to
0.5, on one GPU as on several, so that it is not ranks that wait for each other.
"""

_OUTSIDE = (13, 15, 6)
"""Operations, views and module calls of a forward pass outside the layers, besides the last norm and the rotary table:
embedding, positions, mask, head and loss, counted as those of layers are (`layer_operations`)."""

_OUTSIDE_BACKWARD = 12
"""Operations of the backward pass outside the layers, besides the last norm's: loss, head and embedding. Positions,
mask and rotary table have none."""

_ROTARY_TABLE = 6
"""Operations that compute the angles' cosines and sines, once for all layers."""


CHECK_LAUNCHES = 12
"""Kernels that looking for infinities in a tensor takes: abs, !=, ==, products, extremes (counted as `step_counts`)."""


class HostWork(NamedTuple):
    """What the host does in one micro batch, by pass."""

    operations: int
    """Kernels of the forward pass."""
    views: int
    calls: int
    """Calls of modules."""
    hooked: int
    """Those that stage 3 hooks."""
    layers: int
    reentrant: bool
    """Layers that are checkpointed run again with reentry."""
    folds: int
    """Weights W + B A that LoRA computes."""
    backward_operations: int
    backward_views: int
    parameters: int
    """Trained tensors."""
    gathered: int
    """Tensors that stage 3 does not keep on every rank."""
    kept: int
    """Those that it does keep."""
    units: int
    """Units of FSDP: a layer, and each adapter (peft's `fsdp_auto_wrap_policy`); 0 for ZeRO."""
    outside: tuple[int, int, int]
    """Of operations, views and calls those outside the layers, which checkpointing does not repeat."""

    def forward_s(self, costs: HostCosts, zero_stage: int) -> float:
        """A forward pass."""
        return self._run_s(costs, zero_stage, (0, 0, 0)) + self._gathers_s(costs, zero_stage)

    def _run_s(self, costs: HostCosts, zero_stage: int, without: tuple[int, int, int]) -> float:
        operations, views, calls = self.operations - without[0], self.views - without[1], self.calls - without[2]
        seconds = operations * costs.launched_s + views * costs.view_s + calls * costs.module_call_s
        seconds += self.folds * costs.fold_s
        return seconds + self._visits_s(costs.forward_visit_s, zero_stage, self.hooked - without[2])

    def recompute_s(self, costs: HostCosts, zero_stage: int) -> float:
        """What checkpointing runs again; the backward pass finds the weights that stage 3 gathers for it."""
        seconds = self._run_s(costs, zero_stage, self.outside) + self.layers * costs.checkpoint_s
        again = 0 if self.reentrant else self.operations - self.outside[0]
        return seconds + again * costs.recomputed_operation_s

    def backward_s(self, costs: HostCosts, zero_stage: int, buckets: int, gathered_again: float = 1.0) -> float:
        """A backward pass; `buckets` of gradients that stages 1 to 3 reduce in it, 0 where it reduces none; of the
        tensors that stage 3 gathers forward, the share `gathered_again`, the others are still whole."""
        seconds = self.backward_operations * costs.backward_launched_s + self.backward_views * costs.backward_view_s
        seconds += self._visits_s(costs.backward_visit_s, zero_stage, self.hooked)
        seconds += gathered_again * self._gathers_s(costs, zero_stage)
        if zero_stage and buckets:
            gradient_s = costs.partitioned_s if zero_stage == 3 else costs.bucketed_s
            seconds += self.parameters * gradient_s + buckets * costs.reduced_bucket_s
        return seconds

    def step_counts(self, plan: Plan, world_size: int) -> tuple[int, int]:
        """Operations that the engine's step dispatches, and how many of them it launches on the GPU: for each trained
        tensor T, each of those that a rank's part touches (t, stages 1 and 2) and each that stage 3 keeps whole (c)

            stage 0             20 T + 14 operations             14 T + 4 launches
            stages 1, 2         18 t + 4 T + 47                  15 t + 41
                offloaded       4 T + 56                         4
            stage 3             6 T + 10 c + 39                  2 T + c + 41
                offloaded       5 T + 11 c + 35                  2 T + c + 6

        Counted in the schedules that dry runs of deepspeed 0.19.8 record: six families, full and LoRA, 2 to 64 ranks.
        """
        trained, offloaded = self.parameters, plan.offload_optimizer != "none"
        if plan.zero_stage == 0:
            return 20 * trained + 14, 14 * trained + 4
        if plan.zero_stage == 3:
            whole = 1 + self.kept
            operations = 5 * trained + 11 * whole + 35 if offloaded else 6 * trained + 10 * whole + 39
            return operations, 2 * trained + whole + (6 if offloaded else 41)
        if offloaded:
            return 4 * trained + 56, 4
        touched = min(trained, trained // world_size + 1)
        return 18 * touched + 4 * trained + 47, 15 * touched + 41

    def step_s(self, costs: HostCosts, plan: Plan, world_size: int) -> float:
        """Seconds of the host in the engine's step."""
        operations, launches = self.step_counts(plan, world_size)
        return costs.engine_step_s + operations * costs.step_operation_s + launches * costs.launch_s

    def step_kernels(self, plan: Plan, world_size: int) -> int:
        """Kernels of the step that the host does not wait for one by one."""
        launches = self.step_counts(plan, world_size)[1]
        return launches - (0 if plan.zero_stage else CHECK_LAUNCHES * self.parameters)

    def checks_s(self, costs: HostCosts, zero_stage: int) -> float:
        """Seconds of that in which stage 0 looks for infinities: tensor by tensor, and it waits for each answer
        (deepspeed 0.19.8 runtime/utils.py `CheckOverflow`)."""
        if zero_stage:
            return 0.0
        return self.parameters * (CHECK_LAUNCHES * (costs.step_operation_s + costs.launch_s) + costs.step_operation_s)

    def _visits_s(self, visit_s: float, zero_stage: int, hooked: int) -> float:
        """Stage 3's hooks in one pass."""
        if zero_stage != 3:
            return 0.0
        return self.units * FSDP_VISIT_S if self.units else hooked * visit_s

    def _gathers_s(self, costs: HostCosts, zero_stage: int) -> float:
        return self.gathered * costs.gathered_s if zero_stage == 3 and not self.units else 0.0


def host_work(model: ModelShape, workload: Workload, persistence_threshold: int, *, fsdp: bool = False) -> HostWork:
    """Counts of a micro batch.

    persistence_threshold: stage 3 keeps tensors of at most so many elements on every rank.
    """
    return _host_work(model, workload.of_weights(), persistence_threshold, fsdp=fsdp)


@lru_cache(maxsize=64)
def _host_work(model: ModelShape, workload: Workload, persistence_threshold: int, *, fsdp: bool) -> HostWork:
    chosen, tensors = adapters(model, workload), tensor_set(model, workload)
    gathered = larger_than(tensors, persistence_threshold)
    fused, last = workload.kernels != "torch", model.blocks[-1]
    operations, views, calls = _OUTSIDE
    norm = norm_operations(model, last, fused=fused)
    operations += norm + (_ROTARY_TABLE if last.attention.rotary else 0)
    outside = operations, views, calls
    hooked, backward_operations, backward_views, folds, units = calls, _OUTSIDE_BACKWARD, 2 * views, 0, 0
    backward_operations += round(BACKWARD_OF_OTHERS * norm)
    for block in model.blocks:
        layer, count = layer_operations(model, block, workload, chosen, fused=fused), block.count
        operations += count * layer.operations
        views += count * layer.views
        calls += count * layer.calls
        hooked += count * layer.hooked
        folds += count * layer.folds
        backward_operations += count * layer.backward_operations
        backward_views += count * layer.backward_views
        units += count * (1 + layer.adapted)
    return HostWork(
        operations=operations,
        views=views,
        calls=calls,
        hooked=hooked,
        layers=sum(block.count for block in model.blocks),
        reentrant=workload.software.reentrant,
        folds=folds,
        backward_operations=backward_operations,
        backward_views=backward_views,
        parameters=len(tensors.trainable),
        gathered=gathered,
        kept=len(tensors.trainable) + len(tensors.frozen) - gathered,
        units=units if fsdp else 0,
        outside=outside,
    )
