"""An explanation for people: each component's result, formula in words, numbers and source."""

from __future__ import annotations

from rich.console import Console

from ...estimators.estimate import MemoryTerm
from ..answer.explanation import Explanation, Section, Term, head, in_words, number, with_numbers
from ..search.candidate import chance
from ..text.labels import checkpointing_title, component_title, phase_title, plan_title
from ..text.lines import blank, cells, sentence
from ..text.units import gib, seconds

_INDENT = 14
"""Columns before a term's name: its figure and the unit."""


def render_explanation(explanation: Explanation, console: Console) -> None:
    """Print every section; the terms of one are printed largest first."""
    candidate, evidence = explanation.candidate, explanation.candidate.estimate.evidence
    plan = candidate.plan
    sentence(
        console,
        f"{plan_title(plan)}, micro batch {plan.micro_batch_size}, {checkpointing_title(plan)}",
        style="bold",
    )
    sentence(
        console,
        f"Evidence: {evidence}; the probability that it fits is {chance(candidate.fit.probability)}.",
        style="dim",
    )
    for section in explanation.sections:
        blank(console)
        sentence(console, _title(explanation, section), style="bold")
        for term in sorted(section.terms, key=_size, reverse=True):
            _term(term, console)
    _phases(explanation, console)


def _title(explanation: Explanation, section: Section) -> str:
    memory = explanation.candidate.memory
    return {
        "gpu_memory": f"{gib(int(section.total))} GiB of each GPU's memory, at the peak "
        f"({phase_title(memory.peak.name)})",
        "gpu_cache": f"{gib(int(section.total))} GiB besides that PyTorch keeps cached until a request would fail; "
        "nvidia-smi shows it",
        "host_memory": f"{gib(int(section.total))} GiB of host RAM per node while training "
        f"({gib(memory.host_loading_bytes_per_node)} GiB while the model loads)",
        "nvme": f"{gib(int(section.total))} GiB of NVMe per node",
        "time": f"{seconds(section.total)} for one optimizer step",
    }[section.name]


def _size(term: Term) -> float:
    return term.size_bytes if isinstance(term, MemoryTerm) else term.seconds


def _term(term: Term, console: Console) -> None:
    figure = f"{gib(term.size_bytes)} GiB" if isinstance(term, MemoryTerm) else seconds(term.seconds)
    cells(console, f" {figure:>{_INDENT - 3}}  {component_title(term.name)}")

    def detail(text: str) -> None:
        sentence(console, " " * (_INDENT - 1) + text, style="dim", hang=_INDENT + 1)

    detail(f"= {in_words(term)}")
    numbers = with_numbers(term)
    if numbers:
        detail(f"= {numbers}")
    elif term.inputs:
        known = [(head(term.symbols.get(symbol, symbol)), value) for symbol, value in term.inputs]
        detail("with " + ", ".join(f"{name} {number(value)}" for name, value in known))
    if not isinstance(term, MemoryTerm):
        hidden = f", and {seconds(term.hidden_s)} hidden behind other work" if term.hidden_s else ""
        detail(f"keeps busy: {term.resource}{hidden}")
    if term.source:
        detail(f"source: {term.source}")
    if term.not_covered:
        detail(f"not covered: {term.not_covered}")


def _phases(explanation: Explanation, console: Console) -> None:
    """What is allocated at the other phases of a step; the largest decides."""
    if not any(section.name == "gpu_memory" for section in explanation.sections):
        return
    blank(console)
    sentence(console, "Allocated at each moment of a step; the largest is the peak", style="bold")
    for phase in sorted(explanation.candidate.memory.phases, key=lambda phase: -phase.allocated_bytes):
        cells(console, f" {gib(phase.allocated_bytes) + ' GiB':>{_INDENT - 3}}  {phase_title(phase.name)}")
