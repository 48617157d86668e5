"""A probe: its end, measured and predicted figures, and the parts of the step."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any

from ...ds_configs.files import CONFIG_NAME
from ...probes.failures.diagnosis import diagnose_text
from ...probes.real_run.result import ProbeResult
from ...probes.run_errors import NAME_A_CONFIG
from ..document import blocks as doc
from ..question.cluster import advise_command, gpus_argument
from ..text.labels import cluster_title, versions_label
from ..text.units import capitalised, counted_noun, ended, memory_size, percent, rate, seconds, whole_percents
from ..verification.prediction import UNTIMED, is_timed
from ..verification.probe import ProbeAnswer
from .command import remark_sentences
from .configuration import configuration
from .error_place import error_place
from .known_cause import cause_and_fix

START = "Check, start and monitor it:"
"""The title of the command that trains."""

_WITH_A_CONFIG = f"ds-advise probe {CONFIG_NAME} -- COMMAND"

_LAST_LINES = 3
"""Lines of the output of a command that ran to its end, which are shown if nothing was measured."""

_STEP_PARTS = ("forward_s", "backward_s", "optimizer_s", "total_s")

_FAILURE_SENTENCES = {
    "out_of_memory": "Out of memory.",
    "crash": "It failed.",
    "hang": "It hung.",
    "stopped": "A rank was suspended.",
    "killed": "A rank was killed.",
    "timeout": "It took too long.",
    "disk_full": "The swap folder is full.",
    "no_step": "It ran to its end without a step of DeepSpeed: nothing was measured.",
}

_HAPPENED = {"hang": "made no progress", "stopped": "was suspended", "timeout": "was the slowest"}
"""What became of the rank of a failure that is none of its own."""


def probe_document(
    answer: ProbeAnswer, config_name: str = CONFIG_NAME, *, warning: str = "", following: str = ""
) -> doc.Document:
    """Return a probe: its end, measured and predicted figures, and the parts of the step. warning: why the speed may be
    too low. following: the command that trains after a probe that ran."""
    result, failure = answer.result, answer.result.failure
    return doc.Document(
        subject=f"Probe of {answer.run.model_name or 'a module'}",
        verdict=_speed(result) if failure is None else _FAILURE_SENTENCES[failure.kind],
        tone="good" if failure is None else "bad",
        blocks=[
            *remark_sentences(answer.remarks),
            *_probe_blocks(answer, warning),
            *configuration(result.config, config_name),
            *(next_command(START, following) if following and failure is None else ()),
        ],
        data=answer.to_json(),
    )


def next_command(title: str, command: str) -> list[doc.Block]:
    """Return the last lines of a result: the next step."""
    return [doc.Gap(), doc.Sentence(title), doc.Commands([command])]


def _speed(result: ProbeResult) -> str:
    tokens = f"{rate(result.tokens_per_s)} {result.unit}/s, " if result.tokens_per_s else ""
    return f"It runs: {tokens}{seconds(result.step_s)} a step."


def _probe_blocks(answer: ProbeAnswer, warning: str) -> Iterator[doc.Block]:
    result, failure = answer.result, answer.result.failure
    if failure is not None and failure.kind == "no_step":
        yield doc.Sentence(ended(capitalised(failure.message)))
        if failure.fix:
            yield doc.Sentence(f"Fix: {ended(failure.fix.replace(NAME_A_CONFIG, _WITH_A_CONFIG))}")
        yield doc.Verbatim(failure.details.strip().splitlines()[-_LAST_LINES:])
        return
    if failure is not None:
        found = diagnose_text(failure.details)
        message = "" if found.first else f": {failure.message}"  # else it is in the excerpt
        happened = _HAPPENED.get(failure.kind, "failed first")
        yield doc.Sentence(f"Rank {failure.rank} {happened}, {failure.when}{message or '.'}")
        found = found if found.first else diagnose_text(f"{failure.details}\n{failure.message}")
        shown = [*error_place(found)]
        yield from shown or [doc.Verbatim(failure.details.strip().splitlines()[-12:])]
        yield from cause_and_fix(found, _advise(answer))
        if failure.fix:
            yield doc.Sentence(f"Fix: {ended(failure.fix)}")
        return
    steps = counted_noun(len(result.ranks[0].losses), "optimizer step")
    yield doc.Sentence(f"{capitalised(_place(answer))}; {steps}.")
    if warning:
        yield doc.Sentence(warning, "yellow")
    if result.solo:
        yield doc.Sentence("Times exclude communication and memory excludes NCCL: there are no other ranks.")
    yield doc.Heading("Measured and predicted", "figures", printed=False)
    rows = []
    for figure in answer.figures:
        write = _UNITS[figure.unit]
        measured, analytic, dry = (
            doc.make_figure(value, write) for value in (figure.measured, figure.analytic, figure.dry_run)
        )
        errors = [doc.Figure(_signed(error)) for error in (figure.analytic_error, figure.dry_run_error)]
        rows.append(doc.Row([figure.name, measured, analytic, errors[0], dry, errors[1]]))
    unknown = set[int]()
    for predictor, columns in (("analytic", {2, 3}), ("dry_run", {4, 5})):
        if all(getattr(figure, predictor) is None for figure in answer.figures):
            unknown |= columns
    yield doc.Table(["", "measured", "closed form", "error", "dry run", "error"], rows).without(unknown)
    yield doc.Gap()
    if sentence := _step_parts(answer):
        yield doc.Sentence(sentence)
    if not is_timed(answer.run.cluster):
        yield doc.Sentence(UNTIMED, "dim")
    rows = []
    for report in (each for each in result.ranks if each.steps):
        means = (sum(map(attrgetter(name), report.steps)) / len(report.steps) for name in _STEP_PARTS)
        rows.append(doc.Row([f"rank {report.rank}", *(doc.make_figure(mean, seconds) for mean in means)]))
    yield doc.Folded("Rank by rank", [doc.Table(["", "forward", "backward", "optimizer", "a step"], rows)])
    data = "the command's own data" if answer.command else "random weights and tokens unless a checkpoint was given"
    text = f"Evidence: probe ({versions_label(result.versions)}) in {seconds(result.seconds)}; {data}."
    yield doc.Heading("Evidence", "evidence", printed=False)
    yield doc.Sentence(text, "dim")


def _advise(answer: ProbeAnswer) -> str:
    """Return the command that finds a plan for what was probed; "" for a module, and a command on the CPU."""
    run = answer.run
    if answer.command:
        words = shlex.join(answer.command)
        return "" if run.cluster.gpu.is_cpu else f"ds-advise --gpus {gpus_argument(run.cluster)} -- {words}"
    return "" if run.shape is None else advise_command(run.model_name, run.cluster)


def _place(answer: ProbeAnswer) -> str:
    """Return `2 ranks on 2 x H100-SXM5`, `2 ranks on the CPU (AMD EPYC 7742)`, or `rank 3 (of 8), alone, of 8
    x H100-SXM5`."""
    result, place = answer.result, cluster_title(answer.run.cluster)
    if result.solo:
        return f"rank {result.ranks[0].rank} (of {result.world_size}), alone, of {place}"
    return place if answer.run.cluster.gpu.is_cpu else f"{counted_noun(result.world_size, 'rank')} on {place}"


_UNITS: Mapping[str, Callable[[Any], str]] = {
    "bytes": lambda size_bytes: memory_size(int(size_bytes)),
    "s": seconds,
    "tokens/s": rate,
    "samples/s": rate,
}
"""Format of a figure by its unit."""


def _signed(error: float | None) -> str:
    """Return a relative error such as `+3 %`; "" for none."""
    return "" if error is None else f"{'+' if error >= 0 else '-'}{percent(abs(error))}"


def _step_parts(answer: ProbeAnswer) -> str:
    """Return the parts of the slowest rank's step, by engine call, unless the figures have them; and the share of its
    collectives."""
    slowest = answer.result.slowest

    def share(name: str) -> float:
        return float(sum(getattr(step, name) for step in slowest.steps) / sum(step.total_s for step in slowest.steps))

    found = list[str]()
    if not answer.command:
        parts = [share(name) for name in _STEP_PARTS[:3]]
        forward, backward, optimizer, _ = whole_percents([*parts, max(0.0, 1 - sum(parts))])
        found.append(f"Step: {forward} % forward pass, {backward} % backward pass, {optimizer} % optimizer.")
    if slowest.steps[0].waiting_s is not None:
        found.append(f"Collectives take {percent(share('waiting_s'))} of the step.")
    return " ".join(found)
