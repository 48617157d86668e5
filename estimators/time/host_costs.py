"""Unit costs of the host: seconds of one core for each thing that a training step makes it do.

A step's host time is counts times these costs, whoever counts: a recorded run has the counts, a closed form derives
them from the model's dimensions. Collectives, kernels and copies themselves are not in here.

The costs are those of the real engine over models too narrow to take time, measured by `probes/host_time`; another core
takes as much longer as its single-thread score says (`probes/host_time/score.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from ..hardware.cluster import Cluster
from ..hardware.host_defaults import host_score_s

REFERENCE_SCORE_S = 0.035
"""The single-thread score of the core that the costs belong to: an Intel Xeon (Cascade Lake) at 2.5 GHz."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCosts:
    """Seconds each. Costs of hooks are beside those of the operations that they dispatch, which are operations too."""

    operation_s: float
    """A dispatched operation of a forward pass that launches a kernel: Python, dispatch, the node for autograd, the
    operation's own preparation. The launch itself is `launch_s`."""
    view_s: float
    """A dispatched operation that only describes a tensor anew (view, transpose, detach) or reserves memory."""
    module_call_s: float
    """A call of an `nn.Module` without hooks."""
    backward_operation_s: float
    """An operation of a backward pass that launches a kernel: autograd calls it without Python."""
    backward_view_s: float
    recomputed_operation_s: float
    """What an operation takes more when checkpointing without reentry runs it again: its saved tensors pass through
    Python hooks."""
    visit_forward_s: float
    """ZeRO-3's hooks before and after a module that runs forward (or is recomputed), every called module being one."""
    visit_backward_s: float
    """The same on the way back."""
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
    launch_s: float
    """What CUDA adds to an operation that launches a kernel. Assumed until a GPU measures it."""

    def times(self, factor: float) -> HostCosts:
        """The costs on a core that takes `factor` times as long."""
        return replace(self, **{field.name: factor * getattr(self, field.name) for field in fields(self)})


REFERENCE = HostCosts(
    operation_s=14e-6,
    view_s=4e-6,
    module_call_s=4e-6,
    backward_operation_s=8e-6,
    backward_view_s=3e-6,
    recomputed_operation_s=12e-6,
    visit_forward_s=90e-6,
    visit_backward_s=90e-6,
    gather_s=130e-6,
    bucketed_gradient_s=40e-6,
    partitioned_gradient_s=40e-6,
    bucket_s=80e-6,
    micro_batch_s=1.5e-3,
    engine_step_s=2e-3,
    launch_s=4e-6,
)
"""On the reference core. `launch_s`: cudaLaunchKernel takes 3 to 5 us of the calling thread (NVIDIA developer blog,
"Getting Started with CUDA Graphs", 2019: 3.8 us a launch beside kernels of 2.9 us)."""


def host_costs(cluster: Cluster) -> HostCosts:
    """The costs on a core of the cluster's nodes."""
    return REFERENCE.times(host_score_s(cluster) / REFERENCE_SCORE_S)
