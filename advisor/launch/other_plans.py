"""The plans that a training could go on with: the same model and global batch, less memory."""

from __future__ import annotations

from dataclasses import replace

from ...estimators.errors import DsAdviseError
from ...estimators.estimate import Estimate
from ...estimators.plan import Plan
from ...probes.run import Run
from ..advise import answer
from ..question.question import Question, script_constraints
from ..search.candidate import Candidate
from .request import FailureKind

_LESS = 0.95
"""A plan that needs at least 5 % less than one that ran out of memory: a closer one would run out as well, as far as
the closed form can tell."""


def plans_that_fit(run: Run) -> list[Candidate]:
    """Plans with the same global batch that are predicted to fit, the fastest first; none for a model of unknown
    shape."""
    try:
        plan = run.plan()
        if plan is None or run.shape is None or plan.autotp_size > 1:  # the script's data loader knows the groups
            return []
        question = Question(
            model=run.shape,
            workload=replace(run.workload, global_batch_size=run.samples_per_step),
            cluster=run.cluster,
            **script_constraints(plan),
        )
        candidates = answer(question).candidates
    except DsAdviseError:
        return []
    return sorted((each for each in candidates if each.fit.fits), key=lambda candidate: -candidate.tokens_per_s)


def next_plan(run: Run, failed: Estimate, kind: FailureKind, *, reads_checkpoint_of: Plan | None) -> Candidate | None:
    """The fastest plan that needs less of what ran out; None where there is none, or where it was not memory that ran
    out.

    reads_checkpoint_of: only plans that can read a checkpoint of this one.
    """
    if kind not in ("gpu_out_of_memory", "host_out_of_memory"):
        return None

    def need(estimate: Estimate) -> int:
        memory = estimate.memory
        # Live tensors: the context and the libraries take the same under every plan.
        return memory.host_bytes_per_node if kind == "host_out_of_memory" else memory.allocated_bytes_per_gpu

    for candidate in plans_that_fit(run):
        reads = reads_checkpoint_of is None or _can_read(candidate.estimate.plan, reads_checkpoint_of)
        if reads and need(candidate.estimate) <= _LESS * need(failed):
            return candidate
    return None


def _can_read(plan: Plan, written_by: Plan) -> bool:
    """Whether DeepSpeed loads a checkpoint, optimizer states included, under another plan with as many ranks.

    Stages 1 and 2 share a class and a layout, wherever the optimizer is (0.19.8 runtime/zero/stage_1_and_2.py
    `state_dict`); stage 3 partitions each parameter and stage 0 none, and neither reads the others' states.
    """
    family = {0: 0, 1: 1, 2: 1, 3: 3}
    return family[plan.zero_stage] == family[written_by.zero_stage]
