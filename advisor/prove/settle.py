"""From `--probe --budget TIME` to a climb on this machine."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ...estimators.errors import ClusterError, WorkloadError
from ...probes.real_run.job import Device
from ..question.model_source import load_config
from ..recommend.recommendation import Candidate, Recommendation
from ..terminal.units import rate
from ..terminal.words import plan_title
from .after_probes import settled
from .probe_series import climb, runner

_UNITS = {"s": 1, "m": 60, "h": 3600}


def budget_seconds(text: str) -> int:
    """Seconds of `90s`, `5m` or `1h`. Raises WorkloadError for anything else."""
    match = re.fullmatch(r"(\d{1,6})\s*([smh])", text.strip(), flags=re.IGNORECASE | re.ASCII)
    if match is None or not int(match[1]):
        raise WorkloadError(
            f"--budget {text[:40]!r} is no time", why="a number and a unit are needed", fix="write it as 90s, 5m or 1h"
        )
    return int(match[1]) * _UNITS[match[2].lower()]


def settle(
    answer: Recommendation,
    *,
    device: Device | Any,
    memory_limit_bytes: int | None,
    budget: str,
    offline: bool,
    say: Callable[[str], None],
) -> Recommendation:
    """The answer after probes on this machine.

    Raises ClusterError where the question is about another machine than this.
    """
    budget_s = budget_seconds(budget)
    cluster = answer.question.cluster
    if not cluster.is_this_machine:
        raise ClusterError(
            "--probe runs on this machine", why="the question names other GPUs", fix="pass --gpus auto, or --device cpu"
        )
    description: dict[str, Any] = load_config(answer.question.model.name, offline=offline)
    run = runner(
        answer,
        description,
        device=device,
        memory_limit_bytes=memory_limit_bytes,
        on_progress=lambda phase: say(f"  {phase}"),
    )

    def on_trial(candidate: Candidate, reason: str, left: int) -> None:
        plan = candidate.estimate.plan
        say(
            f"probe of {plan_title(plan)}, micro batch {plan.micro_batch_size}, checkpointing "
            f"{'on' if plan.gradient_checkpointing else 'off'}: {reason}; {left} plan{'s' * (left != 1)} could still "
            "win"
        )

    if answer.earlier:
        say(f"{len(answer.earlier)} of the plans ran before on this machine and are not run again (ds-advise history)")
    climbed = climb(answer, run, budget_s=budget_s, on_trial=on_trial)
    best = climbed.best
    say(
        f"{climbed.ended}: "
        + (f"{best.candidate.rung} at {rate(best.result.tokens_per_s)} tokens/s" if best else "no plan ran")
    )
    return settled(answer, climbed)
