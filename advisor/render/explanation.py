"""The explanation of a plan (each component with formula, numbers and source) or of a ds_config key, on a terminal."""

from __future__ import annotations

from rich.console import Console

from ...estimators.estimate import MemoryTerm
from ...estimators.phrase import listed, named, phrase
from ...validate.lint.linted_config import shown
from ..answer.explained_key import KeyExplanation
from ..answer.explanation import Explanation, Section, Term, head, in_words, number, with_numbers
from ..search.candidate import chance
from ..text.labels import checkpointing_title, component_title, phase_title, plan_title
from ..text.language import translate
from ..text.lines import blank, capitalised, cells, ended, padded, sentence
from ..text.units import gib, rate, seconds
from .answer import paragraph

_INDENT = 14
"""Columns before the name of a term, for its figure and unit."""


def render_explanation(explanation: Explanation, console: Console) -> None:
    """Print every section of an explanation, its terms in falling order, and the moments of a step."""
    candidate = explanation.candidate
    plan, memory = candidate.plan, candidate.memory
    size = phrase("micro batch {size}", size=plan.micro_batch_size)
    sentence(console, listed([plan_title(plan), size, checkpointing_title(plan)]), style="bold")
    fields = {"evidence": named(candidate.estimate.evidence), "chance": chance(candidate.fit.probability)}
    sentence(console, phrase("Evidence: {evidence}; the probability that it fits is {chance}.", **fields), style="dim")
    for section in explanation.sections:
        paragraph(console, section_title(explanation, section), style="bold")
        for term in sorted(section.terms, key=_size, reverse=True):
            _print_term(term, console)
    if any(section.name == "gpu_memory" for section in explanation.sections):
        paragraph(console, phrase("Allocated at each moment of a step; the largest is the peak"), style="bold")
        for phase in sorted(memory.phases, key=lambda phase: -phase.allocated_bytes):
            title = translate(named(phase_title(phase.name)))
            cells(console, f" {gib(phase.allocated_bytes) + ' GiB':>{_INDENT - 3}}  {title}")


def section_title(explanation: Explanation, section: Section) -> str:
    """Return the total of a section with its meaning."""
    memory = explanation.candidate.memory
    if section.name == "time":
        return phrase("{time} for one optimizer step", time=seconds(section.total))
    size, loading = gib(int(section.total)), gib(memory.host_loading_bytes_per_node)
    moment = named(phase_title(memory.peak.name))
    return {
        "gpu_memory": phrase("{size} GiB of each GPU's memory, at the peak ({moment})", size=size, moment=moment),
        "gpu_cache": phrase(
            "{size} GiB that PyTorch also keeps cached until an allocation would fail; nvidia-smi shows it", size=size
        ),
        "host_memory": phrase(
            "{size} GiB of host RAM per node while training ({loading} GiB while the model loads)",
            size=size,
            loading=loading,
        ),
        "nvme": phrase("{size} GiB of NVMe per node", size=size),
    }[section.name]


def _size(term: Term) -> float:
    return term.size_bytes if isinstance(term, MemoryTerm) else term.seconds


def _print_term(term: Term, console: Console) -> None:
    figure = f"{gib(term.size_bytes)} GiB" if isinstance(term, MemoryTerm) else seconds(term.seconds)
    cells(console, f" {figure:>{_INDENT - 3}}  {translate(component_title(term.name))}")
    details = [f"= {in_words(term)}"]
    if numbers := with_numbers(term):
        details.append(f"= {numbers}")
    elif term.inputs:
        names = ((named(head(term.symbols.get(symbol, symbol))), number(value)) for symbol, value in term.inputs)
        known = [phrase("{name} {value}", name=name, value=value) for name, value in names]
        details.append(phrase("with {inputs}", inputs=listed(known)))
    if not isinstance(term, MemoryTerm):
        busy = phrase("keeps busy: {resource}", resource=named(term.resource))
        hidden = phrase("{time} hidden behind other work", time=seconds(term.hidden_s))
        details.append(listed([busy, hidden]) if term.hidden_s else busy)
    details += [phrase("source: {source}", source=term.source)] if term.source else []
    details += [phrase("not covered: {what}", what=named(term.not_covered))] if term.not_covered else []
    for detail in details:
        sentence(console, " " * (_INDENT - 1) + translate(detail), style="dim", hang=_INDENT + 1)


def render_key(key: KeyExplanation, console: Console) -> None:
    """Print meaning, type, default, conditions, rules, and the figures by value."""
    sentence(console, key.path, style="bold")
    if key.meaning:
        sentence(console, ended(capitalised(translate(named(key.meaning)))))
    if key.description:
        sentence(console, f'DeepSpeed: "{key.description}"', style="dim")
    blank(console)
    facts = [named(key.type or "value")]
    if key.default:
        facts.append(phrase("default {value}", value=key.default))
    if key.type or key.default:
        sentence(console, ended(capitalised(translate(listed(facts, "; ")))))
    stages = ", ".join(map(str, key.stages))
    if key.path.startswith("zero_optimization"):
        used = phrase("Used at ZeRO stage {stages}.", stages=stages) if stages else phrase("No stage uses it.")
        sentence(console, used)
    for words in key.acts:
        sentence(console, words)
    if key.keys:
        blank(console)
        width = max(map(len, key.keys))
        for name, words in key.keys.items():
            sentence(console, f"{name:<{width}}  {translate(named(words))}".rstrip(), hang=width + 2)
    if key.rules:
        blank(console)
        sentence(console, phrase("Rules of lint about it (lint --explain CODE):"))
        for rule in key.rules:
            sentence(console, f"  {translate(rule)}", hang=8)
    if key.plan:
        blank(console)
        words = key.no_cost or phrase("predicted figures by value")
        sentence(console, phrase("What it costs here ({plan}): {words}.", plan=key.plan, words=words))
    if len(key.costs) > 1:
        columns = (("value", -22), ("GPU GiB", 7), ("RAM GiB", 11), ("tokens/s", 12))
        titles = (padded(translate(named(title)), width) for title, width in columns)
        cells(console, f"    {''.join(titles)}", style="bold")
        for cost in key.costs:
            mark = "*" if cost.is_the_plans else " "
            value = f"{cost.value:,}" if type(cost.value) is int else shown(cost.value)
            figures = f"{gib(cost.device_bytes_per_gpu):>10} {gib(cost.host_bytes_per_node):>10}"
            cells(console, f"  {mark} {value:<18} {figures} {rate(cost.tokens_per_s):>11}")
        sentence(console, phrase("* the recommended plan's value"), style="dim")
    blank(console)
    sentence(console, phrase("Read in the sources of DeepSpeed {version}.", version=key.deepspeed), style="dim")
