"""The explanation of a plan (each component with formula, numbers and source) or of a ds_config key, as blocks."""

from __future__ import annotations

from collections.abc import Iterator

from ...estimators.estimate import MemoryTerm
from ...validate.lint.values import json_text
from ..answer.explained_key import KeyExplanation
from ..answer.explanation import Explanation, Section, Term, head, in_words, number, substituted_formula
from ..document.blocks import Block, Figure, Gap, Heading, Row, Sentence, Snippet, Table, make_figure
from ..search.candidate import chance
from ..text.labels import checkpointing_title, component_title, phase_title, plan_title
from ..text.units import capitalised, ended, gib, rate, seconds


def explanation_blocks(explanation: Explanation) -> Iterator[Block]:
    """Yield every section of an explanation, its terms in falling order, and the moments of a step."""
    candidate = explanation.candidate
    plan, memory = candidate.plan, candidate.memory
    size = f"micro batch {plan.micro_batch_size}"
    yield Sentence(", ".join([plan_title(plan), size, checkpointing_title(plan)]), "bold")
    likely = chance(candidate.fit.probability)
    yield Sentence(f"Evidence: {candidate.estimate.evidence}; the probability that it fits is {likely}.", "dim")
    for section in explanation.sections:
        yield Heading(section_title(explanation, section), section.name)
        yield terms_table(section)
    if any(section.name == "gpu_memory" for section in explanation.sections):
        yield Heading("Allocated at each moment of a step; the largest is the peak", "phases")
        phases = sorted(memory.phases, key=lambda phase: -phase.allocated_bytes)
        yield Table(["", ""], [Row([phase_title(each.name), _gib_figure(each.allocated_bytes)]) for each in phases])


def section_title(explanation: Explanation, section: Section) -> str:
    """Return the total of a section with its meaning."""
    memory = explanation.candidate.memory
    if section.name == "time":
        return f"{seconds(section.total)} for one optimizer step"
    size, loading = gib(int(section.total)), gib(memory.host_loading_bytes_per_node)
    moment = phase_title(memory.peak.name)
    return {
        "gpu_memory": f"{size} GiB of each GPU's memory, at the peak ({moment})",
        "gpu_cache": (f"{size} GiB that PyTorch also keeps cached until an allocation would fail; nvidia-smi shows it"),
        "host_memory": f"{size} GiB of host RAM per node while training ({loading} GiB while the model loads)",
        "nvme": f"{size} GiB of NVMe per node",
    }[section.name]


def terms_table(section: Section) -> Table:
    """Return the terms of a section with formula, numbers and source, the largest first."""
    rows = [
        (_size(term), Row([component_title(term.name), _figure(term)], remarks=[*map(Snippet, _details(term))]))
        for term in section.terms
    ]
    rows.sort(key=lambda pair: -pair[0])
    return Table(["", ""], [row for _, row in rows])


def _size(term: Term) -> float:
    return term.size_bytes if isinstance(term, MemoryTerm) else term.seconds


def _figure(term: Term) -> Figure:
    return _gib_figure(term.size_bytes) if isinstance(term, MemoryTerm) else make_figure(term.seconds, seconds)


def _gib_figure(size_bytes: int) -> Figure:
    return Figure(f"{gib(size_bytes)} GiB", size_bytes)


def _details(term: Term) -> list[str]:
    details = [f"= {in_words(term)}"]
    if numbers := substituted_formula(term):
        details.append(f"= {numbers}")
    elif term.inputs:
        names = ((head(term.symbols.get(symbol, symbol)), number(value)) for symbol, value in term.inputs)
        known = [f"{name} {value}" for name, value in names]
        details.append(f"with {', '.join(known)}")
    if not isinstance(term, MemoryTerm):
        busy = f"occupies: {term.resource}"
        hidden = f"{seconds(term.hidden_s)} overlapped with other work"
        details.append(", ".join([busy, hidden]) if term.hidden_s else busy)
    details += [f"source: {term.source}"] if term.source else []
    details += [f"not covered: {term.not_covered}"] if term.not_covered else []
    return details


def key_blocks(key: KeyExplanation) -> Iterator[Block]:
    """Yield meaning, type, default, conditions, and the figures by value."""
    yield Sentence(key.path, "bold")
    if key.meaning:
        yield Sentence(ended(capitalised(key.meaning)))
    if key.description:
        yield Sentence(f'DeepSpeed: "{key.description}"', "dim")
    yield Gap()
    facts = [(key.type or "value")]
    if key.default:
        facts.append(f"default {key.default}")
    if key.type or key.default:
        yield Sentence(ended(capitalised("; ".join(facts))))
    stages = ", ".join(map(str, key.stages))
    if key.path.startswith("zero_optimization"):
        yield Sentence(f"Used at ZeRO stage {stages}." if stages else "No stage uses it.")
    yield from map(Sentence, key.acts)
    if key.keys:
        yield Gap()
        width = max(map(len, key.keys))
        for name, words in key.keys.items():
            yield Sentence(f"{name:<{width}}  {words}".rstrip(), hang=width + 2)
    if key.plan:
        yield Gap()
        words = key.no_cost or "predicted figures by value"
        yield Sentence(f"What it costs here ({key.plan}): {words}.")
    if len(key.costs) > 1:
        rows = []
        for cost in key.costs:
            value = f"{cost.value:,}" if type(cost.value) is int else json_text(cost.value)
            sizes = (Figure(gib(size)) for size in (cost.device_bytes_per_gpu, cost.host_bytes_per_node))
            rows.append(Row([value, *sizes, Figure(rate(cost.tokens_per_s))], "chosen" if cost.is_the_plans else ""))
        yield Table(["value", "GPU GiB", "RAM GiB", "tokens/s"], rows)
        yield Sentence("> the recommended plan's value", "dim")
    yield Gap()
    yield Sentence(f"Read in the sources of DeepSpeed {key.deepspeed}.", "dim")
