"""Unit costs of the host: seconds of one core for each thing that a training step makes it do.

A step's host time is counts times these costs, whoever counts: a recorded run has the counts, a closed form derives
them from the model's dimensions. Collectives, kernels and copies themselves are not in here.

The costs are those of the real engine over models too narrow to take time (`benchmarks/probes/host_time.py`);
on another core they scale with its single-thread score (`probes/benchmark_rank.py`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ..hardware import HOST_SCORE_S, Cluster, host_score_s


class HostCosts(NamedTuple):
    """Seconds each, by default on the reference core. Those of hooks do not include the operations that they
    dispatch."""

    operation_s: float = 7.84e-6
    """A dispatched operation of a forward pass that launches a kernel: Python, dispatch, autograd's node, the
    operation's preparation; without `launch_s`."""
    view_s: float = 1.6e-6
    """A dispatched operation without a kernel (view, transpose, detach) or an allocation."""
    module_call_s: float = 5.63e-6
    """A call of an `nn.Module` without hooks."""
    backward_operation_s: float = 8.02e-6
    """An operation of a backward pass, or of DeepSpeed's hooks in any pass, that launches a kernel."""
    backward_view_s: float = 1e-6
    recomputed_operation_s: float = 7.58e-6
    """Extra cost of an operation under non-reentrant recomputation: its saved tensors pass through Python hooks."""
    checkpoint_s: float = 264e-6
    """A checkpointed layer that runs again: states of generators, the graph."""
    visit_forward_s: float = 198e-6
    """ZeRO-3's hooks around a module that runs forward or is recomputed."""
    visit_backward_s: float = 98.3e-6
    """The same in the backward pass."""
    gather_s: float = 146e-6
    """A parameter that ZeRO-3 gathers and releases again."""
    bucketed_gradient_s: float = 22.2e-6
    """A gradient that stage 1 or 2 takes into its bucket."""
    partitioned_gradient_s: float = 75.4e-6
    """A gradient that stage 3 takes into its bucket."""
    bucket_s: float = 95.7e-6
    """A bucket of gradients that is reduced."""
    micro_batch_s: float = 775e-6
    """A micro batch outside the model: the engine's bookkeeping, its timers and checks."""
    engine_step_s: float = 823e-6
    """An optimizer step: norms, clipping, the optimizer's call, the engine's bookkeeping."""
    step_operation_s: float = 1.93e-6
    """An operation of the optimizer's step, of either kind."""
    fold_s: float = 328e-6
    """A weight W + B A that peft folds for a router or fused experts: it gives the module a class of its own, and takes
    it back."""
    launch_s: float = 4e-6
    """What CUDA adds to an operation that launches a kernel. Assumed until a GPU measures it: cudaLaunchKernel takes 3
    to 5 us of the calling thread (NVIDIA developer blog, "Getting Started with CUDA Graphs", 2019: 3.8 us per launch
    with kernels of 2.9 us)."""

    @property
    def launched_s(self) -> float:
        """An operation of a forward pass with its launch."""
        return self.operation_s + self.launch_s

    @property
    def backward_launched_s(self) -> float:
        return self.backward_operation_s + self.launch_s

    @property
    def forward_visit_s(self) -> float:
        """A visit with the views that its hooks make, and the event by which one stream waits for the other."""
        return self.visit_forward_s + 2 * (self.view_s + self.launch_s)

    @property
    def backward_visit_s(self) -> float:
        return self.visit_backward_s + 2 * self.launch_s

    @property
    def gathered_s(self) -> float:
        """A parameter that is gathered: an operation, four views; on CUDA the collective, two events and their waits,
        taken as six launches."""
        return self.gather_s + self.backward_operation_s + 4 * self.backward_view_s + 6 * self.launch_s

    @property
    def bucketed_s(self) -> float:
        """A gradient that is copied into a bucket of stage 1 or 2."""
        return self.bucketed_gradient_s + self.backward_launched_s + 4 * self.backward_view_s

    @property
    def partitioned_s(self) -> float:
        """The same in stage 3, with the copy of its own part out of the bucket."""
        return self.partitioned_gradient_s + 2 * self.backward_launched_s + 14 * self.backward_view_s

    @property
    def reduced_bucket_s(self) -> float:
        return self.bucket_s + 2 * self.backward_launched_s + 5 * self.backward_view_s + 4 * self.launch_s

    def times(self, factor: float) -> HostCosts:
        """The costs on a core that takes `factor` times as long."""
        return HostCosts(*(factor * cost for cost in self))


def host_costs(cluster: Cluster) -> HostCosts:
    """The costs on a core of the cluster's nodes; where the CPU is the device, nothing is launched."""
    return _costs(host_score_s(cluster), launches=not cluster.gpu.is_cpu)


@lru_cache(maxsize=16)
def _costs(score_s: float, *, launches: bool) -> HostCosts:
    costs = HostCosts().times(score_s / HOST_SCORE_S)
    return costs if launches else costs._replace(launch_s=0.0)
