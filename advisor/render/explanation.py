"""A plan explained on a terminal: every component with its formula, numbers and source; and a key of a ds_config."""

from __future__ import annotations

from rich.console import Console

from ...estimators.estimate import MemoryTerm
from ...validate.lint.linted_config import shown
from ..answer.explained_key import KeyExplanation
from ..answer.explanation import Explanation, Section, Term, head, in_words, number, with_numbers
from ..search.candidate import chance
from ..text.labels import checkpointing_title, component_title, phase_title, plan_title
from ..text.lines import blank, capitalised, cells, ended, sentence
from ..text.units import gib, rate, seconds
from .answer import paragraph

_INDENT = 14
"""Columns before the name of a term in an explanation: its figure and the unit."""


def render_explanation(explanation: Explanation, console: Console) -> None:
    """Print every section of an explanation, the terms of each by falling size, and the moments of a step."""
    candidate = explanation.candidate
    plan, memory = candidate.plan, candidate.memory
    title = f"{plan_title(plan)}, micro batch {plan.micro_batch_size}, {checkpointing_title(plan)}"
    sentence(console, title, style="bold")
    probability = f"the probability that it fits is {chance(candidate.fit.probability)}"
    sentence(console, f"Evidence: {candidate.estimate.evidence}; {probability}.", style="dim")
    for section in explanation.sections:
        paragraph(console, section_title(explanation, section), style="bold")
        for term in sorted(section.terms, key=_size, reverse=True):
            _print_term(term, console)
    if any(section.name == "gpu_memory" for section in explanation.sections):
        paragraph(console, "Allocated at each moment of a step; the largest is the peak", style="bold")
        for phase in sorted(memory.phases, key=lambda phase: -phase.allocated_bytes):
            cells(console, f" {gib(phase.allocated_bytes) + ' GiB':>{_INDENT - 3}}  {phase_title(phase.name)}")


def section_title(explanation: Explanation, section: Section) -> str:
    """The total of a section and what it is."""
    memory = explanation.candidate.memory
    if section.name == "time":
        return f"{seconds(section.total)} for one optimizer step"
    what = {
        "gpu_memory": f"of each GPU's memory, at the peak ({phase_title(memory.peak.name)})",
        "gpu_cache": "that PyTorch also keeps cached until an allocation would fail; nvidia-smi shows it",
        "host_memory": "of host RAM per node while training "
        f"({gib(memory.host_loading_bytes_per_node)} GiB while the model loads)",
        "nvme": "of NVMe per node",
    }[section.name]
    return f"{gib(int(section.total))} GiB {what}"


def _size(term: Term) -> float:
    return term.size_bytes if isinstance(term, MemoryTerm) else term.seconds


def _print_term(term: Term, console: Console) -> None:
    figure = f"{gib(term.size_bytes)} GiB" if isinstance(term, MemoryTerm) else seconds(term.seconds)
    cells(console, f" {figure:>{_INDENT - 3}}  {component_title(term.name)}")
    details = [f"= {in_words(term)}"]
    if numbers := with_numbers(term):
        details.append(f"= {numbers}")
    elif term.inputs:
        known = [f"{head(term.symbols.get(symbol, symbol))} {number(value)}" for symbol, value in term.inputs]
        details.append(f"with {', '.join(known)}")
    if not isinstance(term, MemoryTerm):
        hidden = f", and {seconds(term.hidden_s)} hidden behind other work" if term.hidden_s else ""
        details.append(f"keeps busy: {term.resource}{hidden}")
    details += [f"source: {term.source}"] if term.source else []
    details += [f"not covered: {term.not_covered}"] if term.not_covered else []
    for detail in details:
        sentence(console, " " * (_INDENT - 1) + detail, style="dim", hang=_INDENT + 1)


def render_key(key: KeyExplanation, console: Console) -> None:
    """Meaning, type and default, where it acts, the rules about it, and the figures by value."""
    sentence(console, key.path, style="bold")
    if key.meaning:
        sentence(console, ended(capitalised(key.meaning)))
    if key.description:
        sentence(console, f'DeepSpeed: "{key.description}"', style="dim")
    blank(console)
    default = f"; default {key.default}" if key.default else ""
    if key.type or default:
        sentence(console, ended(f"{capitalised(key.type or 'value')}{default}"))
    stages = ", ".join(map(str, key.stages))
    if key.path.startswith("zero_optimization"):
        sentence(console, f"Used at ZeRO stage {stages}." if stages else "No stage uses it.")
    for words in key.acts:
        sentence(console, words)
    if key.keys:
        blank(console)
        width = max(map(len, key.keys))
        for name, words in key.keys.items():
            sentence(console, f"{name:<{width}}  {words}".rstrip(), hang=width + 2)
    if key.rules:
        blank(console)
        sentence(console, "Rules of lint about it (lint --explain CODE):")
        for rule in key.rules:
            sentence(console, f"  {rule}", hang=8)
    if key.plan:
        blank(console)
        sentence(console, f"What it costs here ({key.plan}): {key.no_cost or 'predicted figures by value'}.")
    if len(key.costs) > 1:
        cells(console, "    value                 GPU GiB    RAM GiB    tokens/s", style="bold")
        for cost in key.costs:
            mark = "*" if cost.is_the_plans else " "
            value = f"{cost.value:,}" if type(cost.value) is int else shown(cost.value)
            figures = f"{gib(cost.device_bytes_per_gpu):>10} {gib(cost.host_bytes_per_node):>10}"
            cells(console, f"  {mark} {value:<18} {figures} {rate(cost.tokens_per_s):>11}")
        sentence(console, "* the recommended plan's value", style="dim")
    blank(console)
    sentence(console, f"Read in the sources of DeepSpeed {key.deepspeed}.", style="dim")
