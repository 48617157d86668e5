"""A probe for people: how it ended, memory and time measured and predicted, where the time of a step went."""

from __future__ import annotations

from statistics import median

from rich.console import Console

from ...probes.real_run import ProbeResult, RankFailure
from ..terminal.lines import blank, row, sentence
from ..terminal.units import gib, percent, rate, seconds
from ..terminal.words import cluster_title
from .probe import ProbeAnswer, ProbeFigure

_ENDED = {
    "out_of_memory": "Out of memory.",
    "crash": "It failed.",
    "hang": "It hung.",
    "stopped": "A rank was suspended.",
    "killed": "A rank was killed.",
    "timeout": "It took too long.",
    "disk_full": "The swap folder is full.",
}


def render_probe(answer: ProbeAnswer, console: Console) -> None:
    """Print everything."""
    result = answer.result
    if result.failure is not None:
        render_failure(result.failure, console)
        return
    ranks = (
        f"rank {result.ranks[0].rank} of {result.world_size}, alone" if result.solo else f"{result.world_size} ranks"
    )
    sentence(console, "It runs.", style="bold green")
    sentence(
        console,
        f"{rate(result.tokens_per_s)} tokens/s; {seconds(result.step_s)} per optimizer step; {ranks} on "
        f"{cluster_title(answer.run.cluster)}, {len(result.ranks[0].losses)} steps.",
    )
    if result.solo:
        sentence(
            console, "Communication is not in the times, and NCCL not in the memory: the other ranks do not exist."
        )
    blank(console)
    row(console, "                       measured   analytic           dry run", style="bold")
    for figure in answer.figures:
        row(
            console,
            f"  {figure.name:<18}{_value(figure, figure.measured):>13}{_predicted(figure, figure.analytic)}"
            f"{_predicted(figure, figure.dry_run)}",
        )
    blank(console)
    sentence(console, _parts(result))
    blank(console)
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    sentence(
        console,
        f"Evidence: probe ({versions}) in {seconds(result.seconds)}; random weights and tokens unless a "
        "checkpoint was given.",
        style="dim",
    )


def render_failure(failure: RankFailure, console: Console) -> None:
    """How a probe failed: the kind, the rank and phase, the true error."""
    sentence(console, _ENDED[failure.kind], style="bold red")
    sentence(console, f"Rank {failure.rank} was the first, at {failure.phase}: {failure.message}")
    for line in failure.details.strip().splitlines()[-12:]:
        row(console, f"   {line}", style="dim")


def _value(figure: ProbeFigure, value: float | None) -> str:
    if value is None:
        return "-"
    return {"bytes": lambda v: f"{gib(int(v))} GiB", "s": seconds, "tokens/s": rate}[figure.unit](value)


def _predicted(figure: ProbeFigure, value: float | None) -> str:
    error = figure.error(value)
    return f"{_value(figure, value):>11}" + (f" {_signed(error):>7}" if error is not None else " " * 8)


def _signed(error: float) -> str:
    return ("+" if error >= 0 else "-") + percent(abs(error))


def _parts(result: ProbeResult) -> str:
    """Where the slowest rank's step goes, by the engine's calls."""
    slowest = max(result.ranks, key=lambda report: report.step_s)

    def share(name: str) -> float:
        return float(median(getattr(step, name) / step.total_s for step in slowest.steps))

    text = (
        f"Of a step, {percent(share('forward_s'))} are the forward pass, {percent(share('backward_s'))} the backward "
        f"pass, {percent(share('optimizer_s'))} the optimizer"
    )
    if slowest.steps[0].waiting_s is not None:
        text += f"; {percent(share('waiting_s'))} of it in collectives"
    return text + "."
