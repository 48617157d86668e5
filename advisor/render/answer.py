"""The answer for people: the verdict first, then the ladder, the memory, the reasons, the next command. 80 columns."""

from __future__ import annotations

from rich.console import Console

from ...estimators.phrase import phrase
from ..answer.reasons import deepspeed_sentence, time_shares
from ..answer.recommendation import Recommendation, closest
from ..search.candidate import Candidate
from ..text.labels import device_word, phase_title
from ..text.lines import bar, blank, sentence
from ..text.units import gib, seconds
from .ladder import beside, print_table
from .proofs import evidence_sentence, print_probe, print_series, verification
from .subject import subject
from .verdict import job_parts, utilization, verdict
from .what_if import print_changes

_LARGE_SHARE, _SMALL_SHARE = 0.1, 0.01
"""Shares of a step that are named without `details`, and with them."""


def render(answer: Recommendation, console: Console, *, all_candidates: bool = False, details: bool = False) -> None:
    """Print the answer but the files and commands that follow from it.

    details: with the reasons, DeepSpeed's own estimate and what is assumed.
    """
    chosen = answer.recommended
    for line in verdict(answer):
        sentence(console, line)
    blank(console)
    for line in subject(answer):
        sentence(console, line)
    blank(console)
    print_table(answer, console, all_candidates=all_candidates)
    shown = chosen or closest(answer.ladder)
    if shown is not None:
        blank(console)
        _memory_bar(shown, device_word(answer.question.cluster), console)
    if chosen is not None or answer.reasons or answer.pytorch_baseline is not None:
        blank(console)
    if chosen is not None:
        shares = time_shares(chosen.time, least=_SMALL_SHARE if details else _LARGE_SHARE)
        step = phrase("Where the {time} of a step go: {shares}.", time=seconds(chosen.time.step_s), shares=shares)
        sentence(console, step)
        of_job = job_parts(answer)
        if of_job:
            blank(console)
            sentence(console, phrase("The whole job"), style="bold")
        for line in of_job or (utilization(answer.question, chosen) if details else ()):
            sentence(console, line)
    for reason in answer.reasons if details or chosen is None else ():
        sentence(console, reason)
    if answer.pytorch_baseline is not None:
        sentence(console, beside(answer.pytorch_baseline, chosen))
    for run in answer.verifications:
        blank(console)
        sentence(console, verification(run))
    if answer.probe_series is not None:
        print_series(answer.probe_series, console)
    elif answer.past_probes:
        blank(console)
        sentence(console, phrase("Earlier probes on this machine"), style="bold")
        for probe in answer.past_probes:
            print_probe(probe, console)
    if details:
        _deepspeed(answer, shown, console)
    print_changes(answer, console, details=details)
    blank(console)
    sentence(console, evidence_sentence(answer), style="dim")
    if answer.question.cluster.measured:
        measured = phrase("Measured {how}.", how=answer.question.cluster.measured)
        sentence(console, measured, style="dim")
    if details and answer.assumptions:
        sentence(console, "Assumed: " + "; ".join(answer.assumptions) + ".", style="dim")


def _memory_bar(candidate: Candidate, device: str, console: Console) -> None:
    memory = candidate.memory
    told = {
        "need": gib(memory.device_bytes_per_gpu),
        "device": device,
        "rung": candidate.rung,
        "moment": phase_title(memory.peak.name),
    }
    sentence(
        console,
        phrase("Where the {need} GiB per {device} of {rung} go (peak: {moment})", **told)
        if candidate.measured_bytes is None
        else phrase("Where the predicted {need} GiB per {device} of {rung} go (peak: {moment})", **told),
    )
    bar(memory.components, console)


def _deepspeed(answer: Recommendation, shown: Candidate | None, console: Console) -> None:
    estimate = answer.deepspeed_estimate
    if estimate is None or shown is None:
        return
    blank(console)
    sentence(console, deepspeed_sentence(estimate, shown.device_bytes))
