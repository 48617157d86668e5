"""Before the start: what must be installed, room on the disk, and the proof that the plan fits."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from ...estimators.errors import ConfigFileError, WorkloadError
from ...estimators.memory.checkpoint_size import checkpoint_bytes
from ...estimators.workload import Workload
from ...probes.real_run.job import Device
from ..answer.recommendation import Recommendation
from ..launch.check import free_bytes
from ..question.question import Question
from ..question.run import run_of
from ..text.labels import plan_title
from ..text.output import Output
from ..text.units import gib
from ..verification.past_results import probe_and_keep
from ..verification.probe_order import as_measured
from ..verification.verify import by_speed, verify
from .settings import TrainingSettings

KEPT_CHECKPOINTS = 2
"""The Trainer removes older ones once a new one is written, so for a moment there is one more: one that is cut off by a
full disk or a killed rank never was the only one."""

_PROBE_LIMIT_S = 1800.0
"""When one probe is given up, which takes a minute or two with the largest models."""


def missing_package(workload: Workload, *, report_to: str, device: Device) -> WorkloadError | None:
    """The error for the first library that the options need and that is not there; None where all are."""
    if workload.method == "qlora" and device == "cpu":
        return WorkloadError(
            "--method qlora needs a GPU", why="bitsandbytes' kernels are for GPUs", fix="pass --method lora"
        )
    packages = {
        "peft": (workload.method != "full", f"--method {workload.method}"),
        "bitsandbytes": (workload.method == "qlora", "--method qlora"),
        "liger_kernel": (workload.loss == "fused", "--loss fused"),
        "flash_attn": (workload.attention == "flash", "--attention flash"),
        **{name: (report_to == name, f"--report-to {name}") for name in ("swanlab", "wandb", "tensorboard")},
    }
    for package, (is_needed, option) in packages.items():
        if is_needed and find_spec(package) is None:
            name = package.replace("_", "-")
            return WorkloadError(f"{option} needs {name}", why="it is not installed", fix=f"pip install {name}")
    return None


def check_disk(question: Question, folder: Path) -> None:
    """Raises ConfigFileError where the folder has no room for `KEPT_CHECKPOINTS`, the one being written, and the
    model."""
    checkpoint = checkpoint_bytes(question.model, question.workload)
    needed = (KEPT_CHECKPOINTS + 1) * checkpoint + question.workload.weight_bytes * question.model.parameters
    free = free_bytes(folder)
    if needed > free:
        raise ConfigFileError(
            f"{folder} has {gib(free)} GiB free, but checkpoints and the model need {gib(needed)}",
            why="a full disk would end the training at a checkpoint",
            fix="pass an --output-dir with more room, or --no-check",
        )


def prove(
    answer: Recommendation, settings: TrainingSettings, *, memory_limit_bytes: int | None, output: Output
) -> Recommendation:
    """The answer with the fastest plan that passes the proof recommended, None where none does.

    "probe": a few real steps with random weights and full sequences; where memory does not suffice, the next best plan.
    "dry-run": the same by dry runs. "none": the answer as it is.

    Raises WorkloadError where a probe fails for another reason than memory: the training would as well.
    """
    if answer.recommended is None or settings.proof == "none":
        return answer
    if settings.proof == "dry-run":
        return verify(
            answer, offline=settings.offline, on_start=lambda candidate: output.say(f"dry run of {candidate.rung} ...")
        )
    for candidate in by_speed(answer):
        if candidate.estimate.evidence == "probe":  # it has run on this machine before
            return replace(answer, recommended=candidate)
        plan = candidate.estimate.plan
        output.say(f"probe of {plan_title(plan)}, micro batch {plan.micro_batch_size}: a few real steps ...")
        result = probe_and_keep(
            run_of(answer.question, plan, offline=settings.offline),
            device=settings.device,
            memory_limit_bytes=memory_limit_bytes,
            timeout_s=_PROBE_LIMIT_S,
        )
        if result.failure is None:
            output.say(f"it ran, {result.tokens_per_s:,.0f} tokens/s with full sequences")
            return replace(answer, recommended=candidate.with_estimate(as_measured(candidate.estimate, result)))
        if result.failure.kind != "out_of_memory":
            raise WorkloadError(
                f"the probe failed: {result.failure.message}",
                why="so would the training",
                fix="repair that, or pass --no-check to start all the same",
            )
        output.say("out of memory; the next best")
    return replace(answer, recommended=None)
