"""The answer for a script: what it trains today, the best plan, what to change for it, and the dry runs that prove
it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...ds_configs.launch_commands import LAUNCHER_MODULES, Launcher, Rendezvous, launcher_words
from ...estimators.errors import ConfigFileError
from ...estimators.json_form import from_attributes
from ...estimators.plan import Plan
from ...probes.command.observed import Observed
from ...probes.command.training_command import read_command
from ...probes.command.words import is_python
from ..answer.advice import Advice, build_advice
from ..answer.reasons import doubts
from ..answer.recommendation import Recommendation
from ..search.candidate import predict
from ..search.choice import LEAST_GAIN, other_taken_plans
from .changes import ChangedCommand

if TYPE_CHECKING:
    from ..answer.command_answer import CommandAnswer
    from ..search.candidate import Candidate


@dataclass(frozen=True, kw_only=True)
class Proof:
    """A dry run of the command under a plan."""

    candidate: Candidate
    """The plan with the verdict of its dry run."""
    changed: ChangedCommand
    answer: CommandAnswer | None
    """None if the command failed under the plan."""
    problem: str
    """Why the plan is not recommended; "" if it is proved."""


SCRIPT_FAILED, RUN_FAILED, RAN_OTHERWISE = "script failed", "dry run failed", "not as advised"
"""Verdicts on a plan that say nothing about its memory: its dry run failed in the script or for another reason, or the
command kept a setting of its own."""


@dataclass(frozen=True, kw_only=True)
class TodayFigures:
    """The training as the command runs it today, by its dry run."""

    fits: bool
    assumed_host_bytes: int
    """RAM per node that `fits` assumes; 0 for a known or a usual amount."""
    allocated_bytes_per_gpu: int
    required_device_bytes_per_gpu: int
    required_host_bytes_per_node: int
    step_s: float | None
    tokens_per_s: float | None
    observed: Observed


@dataclass(frozen=True, kw_only=True)
class ProofFigures:
    """A dry run of the command under a plan."""

    strategy: str
    micro_batch_size: int
    gradient_accumulation_steps: int
    gradient_checkpointing: bool
    problem: str
    """Why the plan is not recommended; "" if it is proved."""


@dataclass(frozen=True, kw_only=True)
class ChangeFigures:
    """The command under the recommended plan."""

    command: tuple[str, ...]
    """With a launcher in front of a script without one."""
    files: dict[str, str]
    """Texts of its new files by path."""
    lines: tuple[dict[str, str], ...]
    """Changes to make by hand: `place` (FILE:LINE, or "") and `text`."""


@dataclass(frozen=True, kw_only=True)
class CommandAdviceFigures:
    """What the advice for a command adds to the answer."""

    command: tuple[str, ...]
    today: TodayFigures
    changed: ChangeFigures | None
    """Null if no plan is proved."""
    proofs: tuple[ProofFigures, ...]
    """The dry runs of the changed command, in their order."""
    speedup: float | None
    """Speed under the recommended plan over today's, both by their dry runs; null without both, and if today's training
    does not fit."""
    remarks: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, repr=False)
class CommandAdvice(Recommendation):
    """The recommendation for the training of a command. `verifications` holds its proof."""

    words: tuple[str, ...]
    """The command, with the number of ranks of the question's GPUs."""
    typed_words: tuple[str, ...]
    today: CommandAnswer
    """The dry run of the command as it is."""
    proofs: tuple[Proof, ...] = ()
    """The dry runs of the changed command, in their order."""
    remarks: tuple[str, ...] = ()
    """Sentences on what differs between the command and the question."""
    runs_deepspeed: bool = True
    """Whether the command trains with DeepSpeed; `today` is ZeRO-2 if it does not."""
    given_config: Path | None = None
    """DeepSpeed's configuration in front of `--`, for a command that names none."""
    reused_files: tuple[str, ...] = ()
    """Files of `files` that had their content before."""

    @property
    def today_title(self) -> str:
        """What `today` is."""
        return "today" if self.runs_deepspeed else "observed"

    @property
    def today_plan(self) -> Plan | None:
        """The plan of today's training; None for a configuration that the closed form does not describe."""
        question = self.question
        run = replace(
            self.today.run,
            shape=question.model,
            workload=question.workload,
            gradient_checkpointing=self.today.observed.recomputes,
        )
        try:
            return run.plan(self.today.engine.config)
        except ConfigFileError:
            return None

    @cached_property
    def today_row(self) -> Candidate | None:
        """The plan of `today` with the memory and the time of its dry run; None if the closed form does not describe
        it."""
        plan, question = self.today_plan, self.question
        if plan is None:
            return None
        return observed_candidate(predict(question.model, question.workload, question.cluster, plan), self.today)

    @property
    def kept(self) -> CommandAdvice:
        """The advice with today's training as the recommended plan."""
        return self if self.today_row is None else replace(self, recommended=self.today_row)

    @property
    def closest(self) -> Candidate | None:
        """The plan closest to fitting; None if the memory is not what prevents a recommendation."""
        return None if self.is_unproved else super().closest

    @property
    def is_unproved(self) -> bool:
        """Whether nothing is recommended, and a plan fits by the prediction or has a dry run without a verdict on its
        memory."""
        without = {SCRIPT_FAILED, RUN_FAILED, RAN_OTHERWISE}
        failed = any(proof.candidate.fit.reason in without for proof in self.proofs)
        return self.recommended is None and (failed or any(step.taken for step in self.ladder))

    @property
    def not_tried(self) -> tuple[Candidate, ...]:
        """If a dry run failed, the faster plans of the table that fit by the prediction and were not run, of another
        ZeRO stage than today's. Without a recommendation, all that were not run."""
        if all(proof.answer is not None or not proof.problem for proof in self.proofs):
            return ()
        tried, chosen, stage = (
            {proof.candidate.plan for proof in self.proofs},
            self.recommended,
            self.today.engine.zero_stage,
        )
        others = (each for each in other_taken_plans(self.ladder, chosen) if each.plan not in tried)
        return tuple(
            each
            for each in others
            if chosen is None or (each.plan.zero_stage != stage and each.tokens_per_s > chosen.tokens_per_s)
        )

    @cached_property
    def reasons(self) -> tuple[str, ...]:
        """The reasons for the plan; none if faster plans failed or were not tried, since the reasons compare their
        predictions."""
        return () if self.is_unproved or self.not_tried else super().reasons

    @cached_property
    def doubts(self) -> tuple[str, ...]:
        """The doubts about the plan, without the plans of `not_tried`."""
        others = [step for step in self.ladder if step.candidate not in self.not_tried]
        return doubts(self.question, others, self.recommended)

    @property
    def proof(self) -> Proof | None:
        """The dry run of the recommended plan; None if nothing is recommended."""
        proved = (proof for proof in self.proofs if self.recommended and proof.candidate.plan == self.recommended.plan)
        return next(proved, None)

    @property
    def changed(self) -> ChangedCommand | None:
        """The command under the recommended plan; None if nothing is recommended."""
        return None if self.proof is None else self.proof.changed

    @cached_property
    def needs_its_lines(self) -> bool:
        """Whether the command enables gradient checkpointing only by a line that the user adds, and the plan does not
        fit without it, by the prediction."""
        changed, chosen, question = self.changed, self.recommended, self.question
        if changed is None or chosen is None or not changed.forced.checkpointing:
            return False
        without = chosen.plan.replace_fields(gradient_checkpointing=False)
        return not predict(question.model, question.workload, question.cluster, without).fit.fits

    @property
    def start(self) -> list[str]:
        """The words that start every rank of the changed command: with a launcher in front of a script without one."""
        assert self.changed is not None
        command, cluster = read_command(self.changed.words), self.question.cluster
        if command.program is None:
            return [*command.join_nodes(cluster)]
        launcher: Launcher = "deepspeed" if self.today.arguments.takes_local_rank else "torchrun"
        python = command.words[0]
        by_path = is_python(python) and "/" in python  # the launcher of the same environment
        return [
            *command.prefix,
            *launcher_words(
                launcher,
                cluster,
                [command.program.target, *command.program.arguments],
                is_module=command.program.is_module,
                rendezvous=None
                if cluster.nodes == 1
                else Rendezvous("hostfile" if launcher == "deepspeed" else "static"),
                program=[python, "-m", LAUNCHER_MODULES[launcher]] if by_path else None,
            ),
        ]

    @property
    def is_needless(self) -> bool:
        """Whether today's training runs DeepSpeed and fits, and no other is so much faster that a change pays."""
        is_faster = self.recommended is not None and (self.speedup or math.inf) > 1 + LEAST_GAIN
        return self.runs_deepspeed and self.today.fit.fits and not is_faster

    @property
    def speedup(self) -> float | None:
        """Speed of the recommended plan over today's, both by their dry runs; None without both, and for a command that
        trains without DeepSpeed or does not fit."""
        proof = self.proof
        if (
            not self.runs_deepspeed
            or not self.today.fit.fits
            or proof is None
            or proof.answer is None
            or proof.answer.step is None
            or self.today.step is None
        ):
            return None
        return proof.answer.step.time.tokens_per_s / self.today.step.time.tokens_per_s

    def figures(self) -> CommandAdviceFigures:
        """Return what the advice for a command adds to `build_advice`."""
        today, changed = self.today, self.changed
        return CommandAdviceFigures(
            command=self.words,
            today=from_attributes(
                TodayFigures,
                today,
                today.fit,
                today.step and today.step.time,
                allocated_bytes_per_gpu=today.result.peak.allocated_bytes_per_gpu,
                step_s=today.step and today.step.time.step_s,
                tokens_per_s=today.step and today.step.time.tokens_per_s,
            ),
            changed=None
            if changed is None
            else ChangeFigures(
                command=tuple(self.start),
                files=changed.files,
                lines=tuple({"place": line.place, "text": line.text} for line in changed.lines),
            ),
            proofs=tuple(
                from_attributes(ProofFigures, proof, proof.candidate, proof.candidate.plan) for proof in self.proofs
            ),
            speedup=self.speedup,
            remarks=self.remarks,
        )

    def to_json(self, *, all_candidates: bool = False) -> dict[str, Any]:
        """Return the advice as data (`Advice` with `CommandAdviceFigures`)."""
        advice: Advice = build_advice(self, all_candidates=all_candidates)
        return {**_fields(advice), **_fields(self.figures())}


def observed_candidate(candidate: Candidate, answer: CommandAnswer) -> Candidate:
    """The candidate with the verdict, the memory and the time of its dry run."""
    if answer.step is not None:
        time = replace(answer.step.time, spread=candidate.time.spread)
        candidate = candidate.replace_estimate(replace(candidate.estimate, time=time))
    return replace(
        candidate,
        fit=answer.fit,
        measured_bytes=answer.required_device_bytes_per_gpu,
        measured_host_bytes=answer.required_host_bytes_per_node,
    )


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}
