"""The explanation of a plan (a summary with bars, then each component with formula, numbers and source) or of a
ds_config key, as blocks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from ...estimators.estimate import MemoryTerm
from ...validate.lint.values import json_text
from ..answer.explained_key import KeyExplanation
from ..answer.explanation import (
    Explanation,
    Part,
    Section,
    Term,
    head,
    in_words,
    number,
    substituted_formula,
    term_size,
)
from ..document.blocks import Block, Cell, Code, Figure, Gap, Heading, Meter, Row, Sentence, Snippet, Table, make_figure
from ..search.candidate import chance
from ..text.labels import (
    checkpointing_title,
    component_title,
    device_label,
    memory_family,
    phase_title,
    plan_title,
    resource_title,
    time_family,
)
from ..text.units import amount, capitalised, counted_noun, ended, gib, rate, seconds, whole_percents

_SMALL = 0.01
"""Share of a section below which its parts are one row of the summary."""


def explanation_blocks(explanation: Explanation, *, details: bool = False) -> Iterator[Block]:
    """Yield the parts of every section as bars, the rates, then the large parts with their formulas. details: the
    others too, and the moments of a step."""
    candidate = explanation.candidate
    plan, memory = candidate.plan, candidate.memory
    size = f"micro batch {plan.micro_batch_size}"
    yield Sentence(", ".join([plan_title(plan), size, checkpointing_title(plan)]), "bold")
    speed = f"{seconds(candidate.time.step_s)} for a step ({rate(candidate.tokens_per_s)} tokens/s)"
    device = "GPU" if explanation.cluster is None else device_label(explanation.cluster)
    need = f"{gib(memory.device_bytes_per_gpu)} GiB per {device}, {gib(memory.host_bytes_per_node)} GiB of RAM per node"
    yield Sentence(f"{need}, {speed}.")
    likely = chance(candidate.fit.probability)
    yield Sentence(f"Evidence: {candidate.estimate.evidence}; the probability that it fits is {likely}.", "dim")
    for section in explanation.sections:
        if section.name == "gpu_cache":  # one part, which is not in the peak
            yield Sentence(f"And {section_title(explanation, section)}.", "dim")
        else:
            yield Heading(section_title(explanation, section), section.name)
            yield _summary(section)
    if explanation.rates:
        yield Heading("Rates in the formulas", "rates")
        yield _rates_table(explanation)
    if details:
        yield Heading("Allocated on the GPU at each moment of a step; the largest is the peak", "phases")
        yield _moments(explanation)
    small = 0
    for section in explanation.sections:
        shown = [part for part in section.parts() if details or not _is_small(part, section)]
        small += len(section.parts()) - len(shown)
        yield Heading(f"Formulas: {_SUBJECTS[section.name]}", f"{section.name}-formulas")
        yield _terms_table(shown, section)
    if small:
        yield Gap()
        yield Sentence(f"{counted_noun(small, 'smaller part')}, and the moments of a step: --details.", "dim")


_SUBJECTS = {
    "gpu_memory": "GPU memory",
    "gpu_cache": "cached GPU memory",
    "host_memory": "host RAM",
    "nvme": "NVMe",
    "time": "time of a step",
}


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


def _summary(section: Section) -> Table:
    """Return the parts of a section as bars; the small ones are one row."""
    is_time = section.name == "time"
    parts = section.parts()
    large = [part for part in parts if not _is_small(part, section)]
    rest = parts[len(large) :]
    if len(rest) == 1:
        large, rest = parts, []
    shares = whole_percents([part.size / section.total for part in parts])
    rows = []
    for part, share in zip(large, shares, strict=False):
        family = time_family(part.name) if is_time else memory_family(part.name)
        cells: list[Cell] = [component_title(part.name), _figure(part.size, is_time), _percent(share)]
        rows.append(Row([*cells, *[_resource(part)] * is_time, Meter(part.size / parts[0].size, ink=family)]))
    if rest:
        size, share = sum(part.size for part in rest), sum(shares[len(large) :])
        cells = [counted_noun(len(rest), "smaller part"), _figure(size, is_time), _percent(share)]
        rows.append(Row([*cells, *[""] * is_time, Meter(size / parts[0].size, ink="other")], "faded"))
    return Table([""] * (5 if is_time else 4), rows, optional=(3, 2) if is_time else (2,))


def _is_small(part: Part, section: Section) -> bool:
    return part.size < _SMALL * section.total


def _percent(share: int) -> Figure:
    return Figure(f"{share} %", share / 100)


def _resource(part: Part) -> str:
    term = part.terms[0]
    return "" if isinstance(term, MemoryTerm) else resource_title(term.resource)


def _figure(size: float, is_time: bool) -> Figure:
    return make_figure(size, seconds) if is_time else Figure(f"{gib(int(size))} GiB", size)


def _rates_table(explanation: Explanation) -> Table:
    rows = []
    for each in explanation.rates:
        value = f"{amount(each.value, each.unit)} ({number(each.value)})"
        rows.append(Row([head(each.meaning)], "strong", [Snippet(f"{value}: {each.origin}", "")]))
    return Table([""], rows)


def _moments(explanation: Explanation) -> Table:
    memory = explanation.candidate.memory
    phases = sorted(memory.phases, key=lambda phase: -phase.allocated_bytes)
    most = memory.peak.allocated_bytes
    rows = []
    for each in phases:
        bar = Meter(each.allocated_bytes / most, ink="activations")
        rows.append(Row([phase_title(each.name), _figure(each.allocated_bytes, False), bar]))
    return Table(["", "", ""], rows)


def terms_table(section: Section) -> Table:
    """Return the parts of a section with formula, numbers and source, the largest first."""
    return _terms_table(section.parts(), section)


def _terms_table(parts: Sequence[Part], section: Section) -> Table:
    is_time = section.name == "time"
    rows = []
    for part in parts:
        cells: list[Cell] = [component_title(part.name), _figure(part.size, is_time)]
        rows.append(Row([*cells, *_occupied(part)], "strong", [*_details(part)]))
    return Table([""] * (3 if is_time else 2), rows)


def _occupied(part: Part) -> Iterator[str]:
    """Yield the resource that a part of the time occupies, and its time that overlaps with other work."""
    if resource := _resource(part):
        hidden = sum(map(_hidden_s, part.terms))
        yield f"{resource}, {seconds(hidden)} overlapped with other work" if hidden else resource


def _hidden_s(term: Term) -> float:
    return 0.0 if isinstance(term, MemoryTerm) else term.hidden_s


def _details(part: Part) -> Iterator[Snippet]:
    """Yield formula, numbers and source; formulas of one form once, with the numbers of each pass."""
    words = ""
    for term in part.terms:
        if in_words(term) != words:
            words = in_words(term)
            yield Snippet(f"= {words}", "")
        if numbers := _numbers(term):
            is_one_of_several = len(part.terms) > 1 and numbers.startswith("=")
            size = term_size(term) + _hidden_s(term)
            result = f" = {_figure(size, bool(_resource(part))).text}" if is_one_of_several else ""
            yield Snippet(f"{numbers}{result}", "")
    for source, not_covered in dict.fromkeys((each.source, each.not_covered) for each in part.terms):
        found = [f"source: {source}"] * bool(source) + [f"not covered: {not_covered}"] * bool(not_covered)
        yield Snippet("; ".join(found))


def _numbers(term: Term) -> str:
    """Return the formula with its numbers; those that are known if not all are."""
    if numbers := substituted_formula(term):
        return f"= {numbers}"
    if not term.inputs:
        return ""
    names = ((head(term.symbols.get(symbol, symbol)), number(value)) for symbol, value in term.inputs)
    return f"with {', '.join(f'{name} {value}' for name, value in names)}"


def _where_used(stages: Sequence[int]) -> str:
    if {*stages} == {0, 1, 2, 3}:
        return "Used at every ZeRO stage."
    return f"Used at ZeRO stage {', '.join(map(str, stages))}." if stages else "No stage uses it."


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
    if key.path.startswith("zero_optimization"):
        yield Sentence(_where_used(key.stages))
    yield from map(Sentence, key.acts)
    if key.keys:
        yield from (Gap(), Table(["", ""], [Row([Snippet(name), words]) for name, words in key.keys.items()]))
    if key.example:
        yield from (Gap(), Sentence("Example:", "bold"), Code([json.dumps(key.example)]))
    if key.plan:
        yield Gap()
        if key.recommended:
            yield from (Sentence(f"Recommended for {key.plan}:", "bold"), Code([json.dumps(key.recommended)]))
        else:
            yield Sentence(f"Recommended for {key.plan}: leave it out.", "bold")
        words = key.no_cost or "predicted figures by value"
        yield Sentence(f"What it costs there: {words}.")
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
