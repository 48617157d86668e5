"""A part of a plan's memory or time (formula, numbers and source), as blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches

from ...estimators.errors import WorkloadError
from ...estimators.estimate import term_symbols
from ..answer.explanation import (
    Explanation,
    Part,
    Section,
    head,
    in_symbols,
    in_words,
    term_size,
)
from ..document.blocks import (
    Block,
    Cell,
    Figure,
    Gap,
    Row,
    Sentence,
    Snippet,
    Table,
    make_figure,
)
from ..text.labels import (
    component_title,
    memory_family,
    phase_title,
)
from ..text.units import (
    alternatives,
    capitalised,
    counted_noun,
    ended,
    fine_seconds,
    gib,
    seconds,
)
from .explanation import (
    SECTIONS,
    SMALL,
    Rates,
    by_symbol,
    figure,
    formulas_of,
    hidden_s,
    input_text,
    lacks_of,
    occupied,
    plan_line,
    resource_of,
    section_title,
    shares_of,
    terms_table,
)

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

_OTHER_PARTS = {
    "fragmentation": ("allocator overhead",),
    "communication": ("weight gathering", "gradient reduction", "all-to-all of tokens", "updated weights gathered"),
}
"""Other words for parts, of which a plan may have some."""

_CLOSE = 0.75
"""Least similarity of an unknown name to one that is proposed (difflib)."""


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
            yield from (Gap(), *_subject(explanation))
            return
        for part in section.parts():
            known.append(component_title(part.name))
            if section.name == "gpu_memory" and memory_family(part.name) == wanted:
                related.append(known[-1])
            if wanted == known[-1].casefold().replace("-", " "):
                yield from [Gap()] * found
                yield from _part(explanation, section, part)
                found = True
    if found:
        yield from _subject(explanation)
    else:
        sections = [title for title, words in _OTHER_NAMES.items() if wanted in words]
        others = [each for each in _OTHER_PARTS.get(wanted, ()) if each in known]
        near = sections or others or related or [each for each in known if wanted in each.casefold()]
        near = [*dict.fromkeys(near or get_close_matches(wanted, known, n=_NEAREST, cutoff=_CLOSE))][:_NEAREST]
        why = "a training step keeps no KV cache, only generation does" if wanted in _KV_CACHE else ""
        why = why or ("" if near else _at_another_moment(explanation, wanted))
        meant = f"did you mean {alternatives(near)}? " if near and not why else ""
        fix = f"{meant}{listing} lists the parts"
        raise WorkloadError(f"this plan has no part {name[:60]!r}", why=why, fix=fix)


def _at_another_moment(explanation: Explanation, wanted: str) -> str:
    """Return when a part is there that is not at the peak, such as logits; "" for any other name."""
    memory = explanation.candidate.memory
    found = [
        (term.size_bytes, component_title(term.name), phase.name)
        for phase in memory.phases
        for term in phase.terms
        if wanted in component_title(term.name).casefold() and phase is not memory.peak
    ]
    if not found:
        return ""
    size, title, moment = max(found)
    return f"the peak is not {phase_title(moment)}, which has {title} ({gib(size)} GiB)"


def _part(explanation: Explanation, section: Section, part: Part) -> Iterator[Block]:
    """Yield the share of a part in its section, its formulas, the meaning of their numbers, and the source."""
    rates = by_symbol(explanation.rates)
    size, total = (figure(each, section.name == "time").text for each in (part.size, section.total))
    share = shares_of(section)[part.name].text
    yield Sentence(f"{component_title(part.name)}: {size}", "bold")
    yield Sentence(", ".join([f"{share} of {total} ({SECTIONS[section.name]})", *occupied(part)]))
    yield Gap()
    is_long = any(len(in_words(term)) > _LONGEST for term in part.terms)
    formulas, remarks = formulas_of(part, rates, write=in_symbols if is_long else in_words)
    yield from (Sentence(f"  {each}", hang=4) for each in formulas if each.startswith("="))
    if len(part.terms) > 1 or any(map(hidden_s, part.terms)):
        yield Sentence(f"  {_sum(part)}")
    inputs = {(term.symbols.get(each[0], each[0]), *each): None for term in part.terms for each in term.inputs}
    rows = []
    for meaning, symbol, value in inputs:
        origin = rates.get((symbol, value))
        words = meaning if origin is None else f"{head(meaning)}: {origin.origin}"
        rows.append(Row([Snippet(input_text(meaning, value, origin)), words]))
    if is_long:
        yield from (Gap(), _legend(part, rates))
    elif rows:
        yield from (Gap(), Table(["", ""], rows))
    if part.name == "matrix products" and explanation.products:
        yield from (Gap(), *_products(explanation))
    yield Gap()
    yield from (Sentence(ended(capitalised(each)), "dim") for each in remarks)


_LONGEST = 240
"""Most letters of a formula in words, three lines of a terminal; a longer one is written in symbols."""


def _legend(part: Part, rates: Rates) -> Table:
    """Return the symbols of a part's formulas with their numbers and meanings."""
    rows = dict[tuple[str, str, str], None]()
    for term in part.terms:
        values = dict(term.inputs)
        for symbol, meaning in term_symbols(term).items():
            value = values.get(symbol)
            origin = None if value is None else rates.get((symbol, value))
            words = meaning if origin is None else f"{head(meaning)}: {origin.origin}"
            rows[symbol, "" if value is None else input_text(meaning, value, origin), words] = None
    return Table(["", "", ""], [Row([Snippet(symbol), Snippet(size), words]) for symbol, size, words in rows])


def _products(explanation: Explanation) -> Iterator[Block]:
    """Yield the matrix products of a micro batch, whose seconds add up to the part's."""
    products, rows = explanation.products, []
    total = sum(each.launches * each.seconds for each in products)
    shown = [each for each in products if each.launches * each.seconds >= SMALL * total]
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
    yield Table(head, rows, optional=(len(head) - 2, len(head) - 3))
    steps = explanation.candidate.plan.gradient_accumulation_steps
    batches = f"{steps:,} micro batch{'es' * (steps > 1)}"
    yield Sentence(f"{batches} x {fine_seconds(total)} = {fine_seconds(steps * total)}.")


def _subject(explanation: Explanation) -> Iterator[Block]:
    """Yield the model and the plan of a part, and what the plan lacks."""
    question = explanation.question
    model = "" if question is None else f"{question.model.name}, "
    yield Sentence(f"Plan: {model}{plan_line(explanation)}.", "dim")
    yield from lacks_of(explanation)


def _sum(part: Part) -> str:
    """Return `1.3 s + 1.3 s - 1.2 s (overlapped) = 1.4 s`."""
    is_time, hidden = bool(resource_of(part)), sum(map(hidden_s, part.terms))
    text = " + ".join(figure(term_size(term) + hidden_s(term), is_time).text for term in part.terms)
    overlapped = f" - {seconds(hidden)} (overlapped)" if hidden else ""
    return f"{text}{overlapped} = {figure(part.size, is_time).text}"
