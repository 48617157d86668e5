"""Unit costs of the host: seconds of one core for each kind of work in a training step.

A step's host time is the sum of counts times these costs. A recorded run contains the counts; the closed form derives
them from the model's dimensions. Collectives, kernels and copies themselves are not included.

The costs were measured on the real engine with models too narrow for their kernels to matter
(`benchmarks/probes/host_time.py`). On another core they scale with its single-thread score
(`probes/benchmark_rank.py`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ..hardware import HOST_SCORE_S, Cluster, host_score_s

READ_S = 10e-6
"""Seconds until the host has read a number from an idle GPU: a launch, a copy and the wait for it. Assumed."""


class HostCosts(NamedTuple):
    """Seconds of each kind of work, by default on the reference core. Costs of hooks exclude the operations that they
    dispatch."""

    operation_s: float = 3.12e-6
    """A dispatched operation of a forward pass that launches a kernel: Python, dispatch, autograd's node, the
    operation's preparation; without `launch_s`."""
    view_s: float = 1.1e-6
    """A dispatched operation without a kernel (view, transpose, detach) or an allocation."""
    module_call_s: float = 6.6e-6
    backward_operation_s: float = 5.42e-6
    """An operation of a backward pass, or of DeepSpeed's hooks in any pass, that launches a kernel."""
    backward_view_s: float = 0.8e-6
    recomputed_operation_s: float = 4.56e-6
    """Extra cost of an operation under non-reentrant recomputation: its saved tensors pass through Python hooks."""
    checkpoint_s: float = 262e-6
    """Recomputation of a checkpointed layer: states of generators, the graph."""
    visit_forward_s: float = 146e-6
    """ZeRO-3's hooks around a module in the forward pass or recomputation."""
    visit_backward_s: float = 54.2e-6
    """ZeRO-3's hooks around a module in the backward pass."""
    gather_s: float = 87.3e-6
    """A parameter that ZeRO-3 gathers and releases again."""
    bucketed_gradient_s: float = 13.2e-6
    """A gradient that stage 1 or 2 puts into its bucket."""
    offloaded_gradient_s: float = 28e-6
    """A gradient that stage 1 or 2 sends to the host, without its launches: norm, check for infinities, copy (deepspeed
    0.19.8 stage_1_and_2.py `copy_grads_in_partition`). A backward pass with 70 and with 448 gradients took 24 and 13 us
    a gradient more with an offloaded optimizer than without, whose copy takes as long as a bucketed gradient."""
    partitioned_gradient_s: float = 87.6e-6
    """A gradient that stage 3 puts into its bucket."""
    bucket_s: float = 42.8e-6
    """A bucket of gradients that is reduced."""
    micro_batch_s: float = 945e-6
    """A micro batch outside the model: the engine's bookkeeping, its timers and checks."""
    engine_step_s: float = 859e-6
    """An optimizer step: norms, clipping, the optimizer's call, the engine's bookkeeping."""
    step_operation_s: float = 1.08e-6
    """An operation of the optimizer's step, of either kind."""
    dequantize_s: float = 85e-6
    """A linear layer of bitsandbytes that unpacks its 4-bit weight, without the launches: Python and the operators of
    one unpacking with double quantization. Measured with bitsandbytes 0.48.2 (autograd/_functions.py `MatMul4Bit`): a
    pass takes 94 us more than that of a plain linear layer of 64 x 64, of which the CPU's unpacking is a tenth."""
    trainer_module_s: float = 3.8e-6
    """Work of transformers' Trainer in each micro batch for each module of the model, with its parameters:
    `model.train()` and `floating_point_ops` walk over all of them (transformers 5.23 trainer.py). Measured on Llama
    with 32 layers and adapters, 2665 modules: 4.5 and 5.7 ms."""
    trainer_step_module_s: float = 1.2e-6
    """The same in each optimizer step: `zero_grad`, the loop and its callbacks. Measured in the same steps."""
    fold_s: float = 328e-6
    """A weight W + B A that peft folds for a router or fused experts, for which it replaces the module's class and
    restores it."""
    launch_s: float = 1.4e-6
    """Additional time of CUDA for an operation that launches a kernel. Assumed, not measured: cudaLaunchKernel takes 3
    to 5 us of the calling thread (NVIDIA developer blog, "Getting Started with CUDA Graphs", 2019: 3.8 us per launch
    with kernels of 2.9 us), on a host of its time, which takes 2.7 times as long."""

    @property
    def launched_s(self) -> float:
        return self.operation_s + self.launch_s

    @property
    def backward_launched_s(self) -> float:
        return self.backward_operation_s + self.launch_s

    @property
    def forward_visit_s(self) -> float:
        """A visit with the views that its hooks create, and the event by which one stream waits for the other."""
        # DeepSpeed's pre- and post-backward functions around a module detach its tensors, which is a view each.
        return self.visit_forward_s + 2 * (self.view_s + self.launch_s)

    @property
    def backward_visit_s(self) -> float:
        return self.visit_backward_s + 2 * self.launch_s

    @property
    def gathered_s(self) -> float:
        """A gathered parameter: an operation and four views; on CUDA also the collective, two events and their waits,
        counted as six launches."""
        return self.gather_s + self.backward_operation_s + 4 * self.backward_view_s + 6 * self.launch_s

    @property
    def bucketed_s(self) -> float:
        """A gradient copied into a bucket of stage 1 or 2."""
        return self.bucketed_gradient_s + self.backward_launched_s + 4 * self.backward_view_s

    @property
    def offloaded_s(self) -> float:
        """A gradient sent to the host. The host reads the result of its check, and its norm, from the GPU."""
        return self.offloaded_gradient_s + 9 * self.launch_s + (2 * READ_S if self.launch_s else 0.0)

    @property
    def partitioned_s(self) -> float:
        """A gradient copied into a bucket of stage 3, with the copy of the rank's part out of the bucket."""
        return self.partitioned_gradient_s + 2 * self.backward_launched_s + 14 * self.backward_view_s

    @property
    def reduced_bucket_s(self) -> float:
        return self.bucket_s + 2 * self.backward_launched_s + 5 * self.backward_view_s + 4 * self.launch_s

    def times(self, factor: float) -> HostCosts:
        """Return the costs on a core that takes `factor` times as long."""
        # Every cost scales, the assumed launch too: it is time of the calling thread.
        return HostCosts(*(factor * cost for cost in self))


def host_costs(cluster: Cluster) -> HostCosts:
    """Return the costs on a core of the cluster's nodes. Launches cost nothing if the CPU is the device."""
    return _costs(host_score_s(cluster), launches=not cluster.gpu.is_cpu)


@lru_cache(maxsize=16)
def _costs(score_s: float, *, launches: bool) -> HostCosts:
    costs = HostCosts().times(score_s / HOST_SCORE_S)
    return costs if launches else costs._replace(launch_s=0.0)
