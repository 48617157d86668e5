"""Before the start: what must be installed, room on the disk, and the proof that the plan fits."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from ...estimators.errors import ConfigFileError, WorkloadError
from ...estimators.memory.checkpoint_size import checkpoint_bytes
from ...estimators.workload import Workload
from ...probes.real_run.job import Device
from ..prove.past_probes import probe_and_keep
from ..prove.verify import verify
from ..question.question import Question
from ..question.run import run_of
from ..recommend.candidate import Candidate
from ..recommend.recommendation import Recommendation
from ..terminal.units import gib
from ..terminal.words import plan_title

Proof = Literal["probe", "dry-run", "none"]

Say = Callable[[str], None]
"""Takes a line about what is being done."""

KEPT_CHECKPOINTS = 2
"""The Trainer removes older ones once a new one is written, so for a moment there is one more: one that is cut off by a
full disk or a killed rank never was the only one."""

_PROBE_LIMIT_S = 1800.0
"""When one probe is given up, which takes a minute or two with the largest models."""


def missing_package(workload: Workload, *, report_to: str, device: Device) -> WorkloadError | None:
    """The error for the first library that the options need and that is not there; None where all are."""
    if workload.method == "qlora" and device == "cpu":
        return WorkloadError(
            "--method qlora needs a GPU", why="bitsandbytes' 4-bit kernels are for GPUs", fix="pass --method lora"
        )
    needed = {
        "peft": workload.method != "full",
        "bitsandbytes": workload.method == "qlora",
        "liger_kernel": workload.loss == "fused",
        "flash_attn": workload.attention == "flash",
        "swanlab": report_to == "swanlab",
        "wandb": report_to == "wandb",
        "tensorboard": report_to == "tensorboard",
    }
    options = {
        "liger_kernel": "--loss fused",
        "flash_attn": "--attention flash",
        "peft": f"--method {workload.method}",
        "bitsandbytes": "--method qlora",
    }
    package = next((name for name, wanted in needed.items() if wanted and find_spec(name) is None), None)
    if package is None:
        return None
    name = package.replace("_", "-")
    return WorkloadError(
        f"{options.get(package, f'--report-to {report_to}')} needs {name}",
        why="it is not installed",
        fix=f"pip install {name}",
    )


def check_disk(question: Question, folder: Path) -> None:
    """Raises ConfigFileError where the folder has no room for `KEPT_CHECKPOINTS`, the one being written, and the
    model."""
    needed = (KEPT_CHECKPOINTS + 1) * checkpoint_bytes(
        question.model, question.workload
    ) + question.workload.weight_bytes * question.model.parameters
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ConfigFileError(
            f"{folder} has {gib(free)} GiB free, but checkpoints and the model need {gib(needed)}",
            why="a full disk would end the training at a checkpoint",
            fix="pass an --output-dir with more room, or --no-check",
        )


def prove(
    answer: Recommendation, proof: Proof, *, device: Device, memory_limit_bytes: int | None, offline: bool, say: Say
) -> Recommendation:
    """The answer with the fastest plan that stood the proof recommended, None where none did.

    "probe": a few real steps with random weights and full sequences; where memory does not suffice, the next best plan.
    "dry-run": the same by dry runs. "none": the answer as it is.

    Raises WorkloadError where a probe fails otherwise than for want of memory: the training would as well.
    """
    if answer.recommended is None or proof == "none":
        return answer
    if proof == "dry-run":
        return verify(answer, offline=offline, on_start=lambda candidate: say(f"dry run of {candidate.rung} ..."))
    return _probed(answer, device, memory_limit_bytes, offline, say)


def _probed(
    answer: Recommendation, device: Device, memory_limit_bytes: int | None, offline: bool, say: Say
) -> Recommendation:
    for candidate in _by_speed(answer):
        if candidate.estimate.evidence == "probe":  # it has run on this machine before
            return replace(answer, recommended=candidate)
        plan = candidate.estimate.plan
        say(f"probe of {plan_title(plan)}, micro batch {plan.micro_batch_size}: a few real steps ...")
        result = probe_and_keep(
            run_of(answer.question, plan, offline=offline),
            device=device,
            memory_limit_bytes=memory_limit_bytes,
            timeout_s=_PROBE_LIMIT_S,
        )
        if result.failure is None:
            say(f"it ran, {result.tokens_per_s:,.0f} tokens/s with full sequences")
            return replace(answer, recommended=candidate)
        if result.failure.kind != "out_of_memory":
            raise WorkloadError(
                f"the probe failed: {result.failure.message}",
                why="so would the training",
                fix="mend that, or pass --no-check to start all the same",
            )
        say("out of memory; the next best")
    return replace(answer, recommended=None)


def _by_speed(answer: Recommendation) -> list[Candidate]:
    """The recommended plan, then the best of each other rung that fits, the fastest first."""
    rivals = sorted(
        (
            step.candidate
            for step in answer.ladder
            if step.fits and step.candidate is not None and step.candidate is not answer.recommended
        ),
        key=lambda candidate: -candidate.tokens_per_s,
    )
    assert answer.recommended is not None
    return [answer.recommended, *rivals]
