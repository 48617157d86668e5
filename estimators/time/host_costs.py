"""Unit costs of the host: seconds of one core for each thing that a training step makes it do.

A step's host time is counts times these costs, whoever counts: a recorded run has the counts, a closed form derives
them from the model's dimensions. Collectives, kernels and copies themselves are not in here.

The costs are those of the real engine over models too narrow to take time (`benchmarks/probes/host_time.py`);
another core takes as much longer as its single-thread score says (`probes/benchmark_rank.py`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ..hardware.cluster import HOST_SCORE_S, Cluster, host_score_s


class HostCosts(NamedTuple):
    """Seconds each. Costs of hooks do not include the operations that they dispatch."""

    operation_s: float
    """A dispatched operation of a forward pass that launches a kernel: Python, dispatch, autograd's node, the
    operation's preparation; without `launch_s`."""
    view_s: float
    """A dispatched operation without a kernel (view, transpose, detach) or an allocation."""
    module_call_s: float
    """A call of an `nn.Module` without hooks."""
    backward_operation_s: float
    """An operation of a backward pass, or of DeepSpeed's hooks in any pass, that launches a kernel."""
    backward_view_s: float
    recomputed_operation_s: float
    """Extra cost of an operation under non-reentrant recomputation: its saved tensors pass through Python hooks."""
    checkpoint_s: float
    """A checkpointed layer that runs again: states of generators, the graph."""
    visit_forward_s: float
    """ZeRO-3's hooks around a module that runs forward or is recomputed."""
    visit_backward_s: float
    """The same in the backward pass."""
    gather_s: float
    """A parameter that ZeRO-3 gathers and releases again."""
    bucketed_gradient_s: float
    """A gradient that stage 1 or 2 takes into its bucket."""
    partitioned_gradient_s: float
    """A gradient that stage 3 takes into its bucket."""
    bucket_s: float
    """A bucket of gradients that is reduced."""
    micro_batch_s: float
    """Of a micro batch outside the model: the engine's bookkeeping, its timers and checks."""
    engine_step_s: float
    """Of an optimizer step: norms, clipping, the optimizer's call, the engine's bookkeeping."""
    step_operation_s: float
    """An operation of the optimizer's step, of either kind."""
    fold_s: float
    """A weight W + B A that peft folds for a router or fused experts: it gives the module a class of its own, and takes
    it back."""
    launch_s: float
    """What CUDA adds to an operation that launches a kernel. Assumed until a GPU measures it."""

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


REFERENCE = HostCosts(
    operation_s=7.84e-6,
    view_s=1.6e-6,
    module_call_s=5.63e-6,
    backward_operation_s=8.02e-6,
    backward_view_s=1e-6,
    recomputed_operation_s=7.58e-6,
    checkpoint_s=264e-6,
    visit_forward_s=198e-6,
    visit_backward_s=98.3e-6,
    gather_s=146e-6,
    bucketed_gradient_s=22.2e-6,
    partitioned_gradient_s=75.4e-6,
    bucket_s=95.7e-6,
    micro_batch_s=775e-6,
    engine_step_s=823e-6,
    step_operation_s=1.93e-6,
    fold_s=328e-6,
    launch_s=4e-6,
)
"""On the reference core. `launch_s`: cudaLaunchKernel takes 3 to 5 us of the calling thread (NVIDIA developer blog,
"Getting Started with CUDA Graphs", 2019: 3.8 us per launch with kernels of 2.9 us)."""


def host_costs(cluster: Cluster) -> HostCosts:
    """The costs on a core of the cluster's nodes; where the CPU is the device, nothing is launched."""
    return _costs(host_score_s(cluster), launches=not cluster.gpu.is_cpu)


@lru_cache(maxsize=16)
def _costs(score_s: float, *, launches: bool) -> HostCosts:
    costs = REFERENCE.times(score_s / HOST_SCORE_S)
    return costs if launches else costs._replace(launch_s=0.0)
