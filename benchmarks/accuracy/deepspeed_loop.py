"""A DeepSpeed estimate as the software of a published run would have had it.

Three things depend on the software and not on the plan: how the framework computes the loss (`logits` of the row), the
allocator's settings, and whether ZeRO-1 and -2 flatten the weights on the GPU. No published run is recent enough to do
so, hence the phase of initialization is left out.

Source: transformers 4.45 and 4.46 loss functions; deepspeed 0.14.2 runtime/zero/stage_1_and_2.py (move_to_cpu before
flattening).
"""

from __future__ import annotations

from dataclasses import replace

from ds_advise.estimators.estimate import MemoryEstimate, Phase

from . import allocator
from .logits import is_logits, loss_terms
from .rows import Run

RESIDENT = ("parameters", "persistent_parameters", "master_weights", "optimizer_states", "library_workspace")
"""Terms that stay through a step; the rest comes and goes."""


def as_run(run: Run, memory: MemoryEstimate) -> MemoryEstimate:
    """The estimate with the run's own loss, and without the initialization of later versions."""
    phases = tuple(_with_loss(run, phase) for phase in memory.phases if phase.name != "initialize")
    peak = max(phase.allocated_bytes for phase in phases)
    staying = sum(term.size_bytes for term in phases[-1].terms if term.name in RESIDENT)
    return replace(memory, phases=phases, reserved_terms=allocator.overhead(max(0, peak - staying)))


def _with_loss(run: Run, phase: Phase) -> Phase:
    if run.logits in ("standard", "fused", "none") or not any(is_logits(term) for term in phase.terms):
        return phase
    if phase.name != "forward_backward_top":
        return phase
    kept = tuple(term for term in phase.terms if not is_logits(term))
    return Phase(name=phase.name, terms=kept + loss_terms(run))
