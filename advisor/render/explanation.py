"""The explanation of a plan (its parts as bars), or of a part (formula, numbers and source), as blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches

from ...estimators.errors import WorkloadError
from ...estimators.estimate import MemoryTerm
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
from ..answer.facts import positions_note
from ..answer.rate_origins import RateOrigin
from ..answer.verdict import what_lacks
from ..document.blocks import (
    Block,
    Cell,
    Commands,
    Figure,
    Gap,
    Heading,
    Meter,
    Row,
    Sentence,
    Snippet,
    Table,
    make_figure,
)
from ..search.candidate import chance
from ..text.labels import (
    batch_factors,
    checkpointing_title,
    component_title,
    device_label,
    memory_family,
    method_title,
    phase_title,
    plan_title,
    resource_title,
    time_family,
)
from ..text.units import (
    alternatives,
    amount,
    capitalised,
    counted_noun,
    ended,
    fine_seconds,
    gib,
    rate,
    seconds,
    whole_percents,
)
from ..text.units import size as size_in_binary

_SMALL = 0.01
"""Share of a section below which its parts are one row of the summary."""


def explanation_blocks(explanation: Explanation, *, example: str, details: bool) -> Iterator[Block]:
    """Yield the parts of every section as bars, the rates of the formulas, and the command that shows the formula of a
    part. details: every formula, and the moments of a step, instead of the command."""
    candidate = explanation.candidate
    plan, memory = candidate.plan, candidate.memory
    question = explanation.question
    size, cluster = batch_factors(plan), None if question is None else question.cluster
    device = "GPU" if cluster is None else device_label(cluster)
    if cluster is not None:
        groups = cluster.world_size // plan.ranks_per_sample
        ranks = counted_noun(groups, device if plan.ranks_per_sample == 1 else "group")
        size += f" x {ranks}" * (groups > 1) + f" = {counted_noun(plan.samples_per_step(cluster.world_size), 'sample')}"
    yield Sentence(", ".join([plan_title(plan), size, checkpointing_title(plan)]), "bold")
    if question is not None and candidate.fit.verdict == "does not fit":
        is_closest = explanation.role == "closest"
        lacks = what_lacks(question, candidate, is_closest=is_closest)
        yield Sentence(f"{'Nothing fits' if is_closest else 'This plan does not fit'}. {lacks}", "bad")
    speed = f"{seconds(candidate.time.step_s)} for a step ({rate(candidate.tokens_per_s)} tokens/s)"
    need = f"{gib(memory.device_bytes_per_gpu)} GiB per {device}, {gib(memory.host_bytes_per_node)} GiB of RAM per node"
    yield Sentence(f"{need}, {speed}.")
    likely = chance(candidate.fit.probability)
    if question is not None:
        training = question.workload
        length = f"sequence {training.seq_len}, {training.loss} loss"
        yield Sentence(f"{capitalised(method_title(training))} in {training.precision}, {length}.")
        if note := positions_note(question):
            yield Sentence(ended(capitalised(note)))
    yield Sentence(f"Evidence: {candidate.estimate.evidence}; the probability that it fits is {likely}.", "dim")
    for section in explanation.sections:
        if section.name == "gpu_cache":  # one part, which is not in the peak
            yield Sentence(f"And {section_title(explanation, section)}.", "dim")
        else:
            yield Heading(section_title(explanation, section), section.name)
            yield _summary(section, details=details)
    if explanation.rates:
        yield Heading("Rates in the formulas", "rates")
        rows = [Row([Snippet(_amount(each)), f"{head(each.meaning)}: {each.origin}"]) for each in explanation.rates]
        yield Table(["", ""], rows)
    if details:
        yield Heading("Allocated on the GPU at each moment of a step; the largest is the peak", "phases")
        yield _moments(explanation)
        for section in explanation.sections:
            yield Heading(f"Formulas: {SECTIONS[section.name]}", f"{section.name}-formulas")
            yield terms_table(section, explanation.rates)
    else:
        yield Gap()
        yield Sentence("Formula, numbers and source of a part (--details has those of all parts):")
        yield Commands([example])


SECTIONS = {
    "gpu_memory": "GPU memory",
    "gpu_cache": "cached GPU memory",
    "host_memory": "host RAM",
    "nvme": "NVMe",
    "time": "time of a step",
}
"""Titles of the sections; a title or its first word also names all parts of the section."""


_NEAREST = 3
"""Most names that are proposed for an unknown one."""

_OTHER_NAMES = {
    "time": ("speed", "throughput", "duration", "latency", "tokens/s"),
    "gpu": ("memory", "vram", "hbm"),
    "host": ("memory", "ram", "cpu"),
    "nvme": ("disk", "ssd"),
}
"""Other words for the first word of a section's title."""


_KV_CACHE = ("kv cache", "kv", "key value cache")
"""Names of what only generation has."""


def has_part(explanation: Explanation, name: str) -> bool:
    """Return whether this is the name of a part, or of a section."""
    try:
        return bool([*part_blocks(explanation, name, listing="")])
    except WorkloadError:
        return False


def part_blocks(explanation: Explanation, name: str, *, listing: str) -> Iterator[Block]:
    """Yield formula, numbers and source of the parts with this name, or of all parts of a section. Raises WorkloadError
    for an unknown name. listing: the command that lists all parts."""
    wanted, known, found = " ".join(re.sub("[_-]", " ", name.casefold()).split()), list[str](), False
    related = list[str]()  # parts of a family of this name, such as activations
    for section in explanation.sections:
        title = SECTIONS[section.name].casefold()
        if wanted in (title, title.split()[0]):
            yield Sentence(section_title(explanation, section), "bold")
            yield terms_table(section, explanation.rates)
            return
        for part in section.parts():
            known.append(component_title(part.name))
            if section.name == "gpu_memory" and memory_family(part.name) == wanted:
                related.append(known[-1])
            if wanted == known[-1].casefold().replace("-", " "):
                yield from [Gap()] * found
                yield from _part(explanation, section, part)
                found = True
    if not found:
        sections = [title for title, words in _OTHER_NAMES.items() if wanted in words]
        near = sections or related or [each for each in known if wanted in each.casefold()]
        near = [*dict.fromkeys(near or get_close_matches(wanted, known, n=_NEAREST))][:_NEAREST]
        why = "a training step keeps no KV cache, only generation does" if wanted in _KV_CACHE else ""
        meant = f"did you mean {alternatives(near)}? " if near and not why else ""
        fix = f"{meant}{listing} lists the parts"
        raise WorkloadError(f"this plan has no part {name[:60]!r}", why=why, fix=fix)


def _part(explanation: Explanation, section: Section, part: Part) -> Iterator[Block]:
    """Yield the share of a part in its section, its formulas, the meaning of their numbers, and the source."""
    rates = _by_symbol(explanation.rates)
    size, total = (_figure(each, section.name == "time").text for each in (part.size, section.total))
    share = _shares(section)[part.name].text
    yield Sentence(f"{component_title(part.name)}: {size}", "bold")
    yield Sentence(", ".join([f"{share} of {total} ({SECTIONS[section.name]})", *_occupied(part)]))
    yield Gap()
    formulas, remarks = _formulas(part, rates)
    yield from (Sentence(f"  {each}", hang=4) for each in formulas if each.startswith("="))
    if len(part.terms) > 1 or any(map(_hidden_s, part.terms)):
        yield Sentence(f"  {_sum(part)}")
    inputs = {(term.symbols.get(each[0], each[0]), *each): None for term in part.terms for each in term.inputs}
    rows = []
    for meaning, symbol, value in inputs:
        origin = rates.get((symbol, value))
        words = meaning if origin is None else f"{head(meaning)}: {origin.origin}"
        rows.append(Row([Snippet(_input(meaning, value, origin)), words]))
    if rows:
        yield from (Gap(), Table(["", ""], rows))
    if part.name == "matrix products" and explanation.products:
        yield from (Gap(), *_products(explanation))
    yield Gap()
    yield from (Sentence(ended(capitalised(each)), "dim") for each in remarks)


def _products(explanation: Explanation) -> Iterator[Block]:
    """Yield the matrix products of a micro batch, whose seconds add up to the part's."""
    products, rows = explanation.products, []
    total = sum(each.launches * each.seconds for each in products)
    shown = [each for each in products if each.launches * each.seconds >= _SMALL * total]
    copied = any(each.copies > 1 for each in products)
    for each in shown:
        sizes: list[Cell] = [Figure(f"{size:,}") for size in (each.rows, each.inner, each.columns)]
        experts = [Figure(f"{each.copies:,}")] * copied
        share = [make_figure(each.seconds, fine_seconds), make_figure(each.launches * each.seconds, fine_seconds)]
        rows.append(Row([*sizes, *experts, Figure(f"{each.launches:,}"), *share]))
    if rest := products[len(shown) :]:
        launches, spent = sum(each.launches for each in rest), sum(each.launches * each.seconds for each in rest)
        sizes = [counted_noun(len(rest), "smaller size"), "", "", *[""] * copied]
        rows.append(Row([*sizes, Figure(f"{launches:,}"), "", make_figure(spent, fine_seconds)], "faded"))
    head = ["rows", "inner", "columns", *["as one"] * copied, "launches", "each", "all"]
    yield Sentence("Products of a micro batch, forward and backward:")
    yield Table(head, rows, optional=(len(head) - 2,))
    steps = explanation.candidate.plan.gradient_accumulation_steps
    batches = f"{steps:,} micro batch{'es' * (steps > 1)}"
    yield Sentence(f"{batches} x {fine_seconds(total)} = {fine_seconds(steps * total)}.")


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


def _summary(section: Section, *, details: bool) -> Table:
    """Return the parts of a section as bars; without details the small ones are one row."""
    is_time = section.name == "time"
    parts = section.parts()
    shares, rest = _shares(section), [] if details else _small(section)
    large, rows = parts[: len(parts) - len(rest)], []
    for part in large:
        family = time_family(part.name) if is_time else memory_family(part.name)
        cells: list[Cell] = [component_title(part.name), _figure(part.size, is_time), shares[part.name]]
        rows.append(Row([*cells, *[_resource(part)] * is_time, Meter(part.size / parts[0].size, ink=family)]))
    if rest:
        size = sum(part.size for part in rest)
        cells = [counted_noun(len(rest), "smaller part"), _figure(size, is_time), shares[""]]
        rows.append(Row([*cells, *[""] * is_time, Meter(size / parts[0].size, ink="other")], "faded"))
    return Table([""] * (5 if is_time else 4), rows, optional=(3, 2) if is_time else (2,))


def _small(section: Section) -> list[Part]:
    """Return the parts that are one row of the summary: none, or at least two."""
    small = [part for part in section.parts() if part.size < _SMALL * section.total]
    return small if len(small) > 1 else []


def _shares(section: Section) -> dict[str, Figure]:
    """Return the share of each part by name, and of the small ones together by ""; the shares in the rows of the
    summary add up to 100 %."""
    small = _small(section)
    rows = {part.name: part.size for part in section.parts() if part not in small}
    rows |= {"": sum(part.size for part in small)} if small else {}
    whole = whole_percents([size / section.total for size in rows.values()])
    shares = {part.name: Figure("<1 %", part.size / section.total) for part in small}
    for name, share in zip(rows, whole, strict=True):
        shares[name] = Figure(f"{share} %" if share else "<1 %", share / 100)
    return shares


def _resource(part: Part) -> str:
    term = part.terms[0]
    return "" if isinstance(term, MemoryTerm) else resource_title(term.resource)


def _figure(size: float, is_time: bool) -> Figure:
    if is_time:
        return make_figure(size, fine_seconds)
    text = f"{gib(int(size))} GiB"
    return Figure(size_in_binary(int(size)) if text == "0.00 GiB" else text, size)


def _amount(origin: RateOrigin) -> str:
    return amount(origin.value, origin.unit)


def _moments(explanation: Explanation) -> Table:
    memory = explanation.candidate.memory
    phases = sorted(memory.phases, key=lambda phase: -phase.allocated_bytes)
    most = memory.peak.allocated_bytes
    rows = []
    for each in phases:
        bar = Meter(each.allocated_bytes / most, ink="activations")
        rows.append(Row([phase_title(each.name), _figure(each.allocated_bytes, False), bar]))
    return Table(["", "", ""], rows)


def terms_table(section: Section, rates: Sequence[RateOrigin] = ()) -> Table:
    """Return the parts of a section with formula, numbers and source, the largest first. rates: those that the formulas
    have in their units."""
    is_time = section.name == "time"
    by_symbol, rows = _by_symbol(rates), []
    for part in section.parts():
        cells: list[Cell] = [component_title(part.name), _figure(part.size, is_time)]
        formulas, remarks = _formulas(part, by_symbol)
        details = [*(Snippet(each, "") for each in formulas), Snippet("; ".join(remarks))]
        rows.append(Row([*cells, *_occupied(part)], "strong", details))
    return Table([""] * (3 if is_time else 2), rows)


def _occupied(part: Part) -> Iterator[str]:
    """Yield the resource that a part of the time occupies, and its time that overlaps with other work."""
    if resource := _resource(part):
        hidden = sum(map(_hidden_s, part.terms))
        yield f"{resource}, {seconds(hidden)} overlapped with other work" if hidden else resource


def _hidden_s(term: Term) -> float:
    return 0.0 if isinstance(term, MemoryTerm) else term.hidden_s


_Rates = Mapping[tuple[str, float], RateOrigin]
"""The rates in the formulas by symbol and value."""


def _by_symbol(rates: Sequence[RateOrigin]) -> _Rates:
    return {(rate.symbol, rate.value): rate for rate in rates}


def _sum(part: Part) -> str:
    """Return `1.3 s + 1.3 s - 1.2 s (overlapped) = 1.4 s`."""
    is_time, hidden = bool(_resource(part)), sum(map(_hidden_s, part.terms))
    text = " + ".join(_figure(term_size(term) + _hidden_s(term), is_time).text for term in part.terms)
    overlapped = f" - {seconds(hidden)} (overlapped)" if hidden else ""
    return f"{text}{overlapped} = {_figure(part.size, is_time).text}"


def _formulas(part: Part, rates: _Rates) -> tuple[list[str], list[str]]:
    """Return (the formulas in words and with their numbers, source and limits). Formulas of one form are there once,
    with the numbers of each pass."""
    formulas = list[str]()
    for term in part.terms:
        if (words := f"= {in_words(term)}") not in formulas:
            formulas.append(words)
        if numbers := _numbers(term, rates):
            size = _figure(term_size(term) + _hidden_s(term), bool(_resource(part))).text
            passes = "" if isinstance(term, MemoryTerm) or not term.passes else f" ({term.passes})"
            is_part = len(part.terms) > 1 and numbers.startswith("=")
            formulas.append(f"{numbers} = {size}{passes}" if is_part else numbers)
    sources = dict.fromkeys(f"source: {term.source}" for term in part.terms if term.source)
    limits = dict.fromkeys(f"not covered: {term.not_covered}" for term in part.terms if term.not_covered)
    return formulas, [*sources, *limits]


def _numbers(term: Term, rates: _Rates) -> str:
    """Return the formula with its numbers; those that are known if not all are."""

    def written(symbol: str, value: float) -> str:
        return _input(term.symbols.get(symbol, symbol), value, rates.get((symbol, value)))

    if numbers := substituted_formula(term, written):
        return f"= {numbers}"
    names = (f"{head(term.symbols.get(symbol, symbol))} {written(symbol, value)}" for symbol, value in term.inputs)
    return f"with {', '.join(names)}" if term.inputs else ""


def _input(meaning: str, value: float, origin: RateOrigin | None) -> str:
    """Return a number of a formula: a measured or assumed rate, a time, a size, or a plain number."""
    if origin is not None:
        return _amount(origin)
    if isinstance(value, float) and meaning.startswith("seconds ") and value:
        return amount(value, "s")
    if isinstance(value, float) and meaning.startswith("bytes ") and value >= 1e6:
        return amount(value, "B")
    return number(value)
