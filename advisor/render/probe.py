"""A probe for people: how it ended, memory and time measured and predicted, where the time of a step went."""

from __future__ import annotations

from rich.console import Console

from ...probes.real_run.result import ProbeResult, RankFailure
from ..text.labels import cluster_title
from ..text.lines import blank, cells, row, sentence
from ..text.units import counted_noun, gib, percent, rate, seconds, whole_percents
from ..verification.probe import ProbeAnswer, ProbeFigure

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
    sentence(console, "It runs.", style="bold green")
    sentence(
        console,
        f"{rate(result.tokens_per_s)} tokens/s; {seconds(result.step_s)} per optimizer step; "
        f"{where(answer)}, {len(result.ranks[0].losses)} steps.",
    )
    if result.solo:
        sentence(
            console, "Communication is not in the times, and NCCL not in the memory: the other ranks do not exist."
        )
    blank(console)
    cells(console, "                       measured   analytic           dry run", style="bold")
    for figure in answer.figures:
        cells(
            console,
            f"  {figure.name:<18}{_value(figure, figure.measured):>13}"
            f"{_predicted(figure, figure.analytic, figure.analytic_error)}"
            f"{_predicted(figure, figure.dry_run, figure.dry_run_error)}",
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


def ended(failure: RankFailure) -> str:
    """How a failed probe ended: `Out of memory.`"""
    return _ENDED[failure.kind]


def render_failure(failure: RankFailure, console: Console) -> None:
    """How a probe failed: the kind, the rank and phase, the true error."""
    sentence(console, ended(failure), style="bold red")
    sentence(console, f"Rank {failure.rank} was the first, at {failure.phase}: {failure.message}")
    for line in failure.details.strip().splitlines()[-12:]:
        row(console, f"   {line}", style="dim")


def where(answer: ProbeAnswer) -> str:
    """`2 ranks on 2 x H100-SXM5`, `2 ranks on the CPU (AMD EPYC 7742)`, `rank 3 of 8, alone, of 8 x H100-SXM5`."""
    result, where = answer.result, cluster_title(answer.run.cluster)
    if result.solo:
        return f"rank {result.ranks[0].rank} of {result.world_size}, alone, of {where}"
    return where if answer.run.cluster.gpu.is_cpu else f"{counted_noun(result.world_size, 'rank')} on {where}"


def _value(figure: ProbeFigure, value: float | None) -> str:
    if value is None:
        return "-"
    return {"bytes": lambda v: f"{gib(int(v))} GiB", "s": seconds, "tokens/s": rate}[figure.unit](value)


def _predicted(figure: ProbeFigure, value: float | None, error: float | None) -> str:
    return f"{_value(figure, value):>11}" + (f" {_signed(error):>7}" if error is not None else " " * 8)


def _signed(error: float) -> str:
    return ("+" if error >= 0 else "-") + percent(abs(error))


def _parts(result: ProbeResult) -> str:
    """Where the slowest rank's step goes, by the engine's calls."""
    slowest = max(result.ranks, key=lambda report: report.step_s)

    def share(name: str) -> float:
        return float(sum(getattr(step, name) for step in slowest.steps) / sum(step.total_s for step in slowest.steps))

    parts = [share(name) for name in ("forward_s", "backward_s", "optimizer_s")]
    forward, backward, optimizer, _ = whole_percents([*parts, max(0.0, 1 - sum(parts))])
    text = f"Of a step, {forward} % are the forward pass, {backward} % the backward pass, {optimizer} % the optimizer"
    if slowest.steps[0].waiting_s is not None:
        text += f"; {percent(share('waiting_s'))} of it in collectives"
    return text + "."
