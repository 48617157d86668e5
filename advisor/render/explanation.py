"""The explanation of a plan (its parts as bars), or of a part (formula, numbers and source), as blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...estimators.estimate import MemoryTerm, term_symbols
from ...estimators.time.compute_time import ProductTime
from ..answer.explanation import (
    Explanation,
    Part,
    Section,
    Term,
    head,
    in_symbols,
    in_words,
    number,
    substituted_formula,
    term_size,
)
from ..answer.rate_origins import RateOrigin
from ..answer.reasons import positions_note
from ..answer.verdict import fit_tone, what_lacks
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
from ..search.candidate import LEAST, chance, fits_sentence
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
    shared_among,
    time_family,
)
from ..text.units import (
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

SMALL = 0.01
"""Share of a section below which its parts are one row of the summary."""


def explanation_blocks(explanation: Explanation, *, example: str, details: bool, way_out: str = "") -> Iterator[Block]:
    """Yield the parts of every section as bars, and the command that shows the formula of a part. details: the rates of
    the formulas, the moments of a step, and every formula, instead of the command. way_out: what fits in place of a
    plan that does not."""
    candidate = explanation.candidate
    memory, question = candidate.memory, explanation.question
    device = "GPU" if question is None else device_label(question.cluster)
    yield Sentence(plan_line(explanation), "bold")
    yield from lacks_of(explanation)
    if way_out:
        yield Sentence(ended(capitalised(way_out)))
    speed = f"{seconds(candidate.time.step_s)} for a step ({rate(candidate.tokens_per_s)} tokens/s)"
    need = f"{gib(memory.device_bytes_per_gpu)} GiB per {device}, {gib(memory.host_bytes_per_node)} GiB of RAM per node"
    runs = candidate.fit.verdict != "does not fit"
    yield Sentence(f"{need}, {speed}." if runs else f"{gib(memory.host_bytes_per_node)} GiB of RAM per node.")
    for feature in explanation.unpredicted:
        yield Sentence(f"Left out: {feature.name}; {feature.predicted}.", "yellow")
    likely = chance(candidate.fit.probability)
    if question is not None:
        training = question.workload
        length = f"sequence {training.seq_len}, {training.loss} loss"
        yield Sentence(f"{capitalised(method_title(training))} in {training.precision}, {length}.")
        if explanation.assumed:
            yield Sentence(assumed_line(explanation.assumed))
        if note := positions_note(question):
            yield Sentence(note)
    yield Sentence(f"Evidence: {candidate.estimate.evidence}; the probability that it fits is {likely}.", "dim")
    for section in explanation.sections:
        is_less = section.name == "host_loading" and section.total <= memory.host_training_bytes_per_node
        if section.name == "gpu_cache" or (is_less and not details):  # one part, which is not in the peak
            yield Sentence(f"And {section_title(explanation, section)}.", "dim")
        else:
            yield Heading(section_title(explanation, section), section.name)
            yield _summary(section, details=details)
    if details and explanation.rates:
        yield Heading("Rates in the formulas", "rates")
        rates = dict.fromkeys((_amount(each), f"{head(each.meaning)}: {each.origin}") for each in explanation.rates)
        yield Table(["", ""], [Row([Snippet(size), words]) for size, words in rates])
    if details:
        yield Heading("Allocated on the GPU at each moment of a step; the largest is the peak", "phases")
        yield moments(explanation)
        for section in explanation.sections:
            yield Heading(f"Formulas: {SECTIONS[section.name]}", f"{section.name}-formulas")
            yield terms_table(section, explanation)
    else:
        yield Gap()
        yield Sentence("Formula, numbers and source of a part (--details has those of all parts):")
        yield Commands([example])


def assumed_line(assumed: str) -> str:
    """Return what the plan of a file assumes as a sentence."""
    return f"Assumed, not in the file: {assumed}."


def plan_line(explanation: Explanation) -> str:
    """Return the plan with its batch, how samples are shared among GPUs, and checkpointing."""
    plan, question = explanation.candidate.plan, explanation.question
    size, shared = batch_factors(plan), list[str]()
    if question is not None:
        cluster = question.cluster
        device, groups = device_label(cluster), cluster.world_size // plan.ranks_per_sample
        of = f" of {counted_noun(plan.ranks_per_sample, device)}" if plan.ranks_per_sample > 1 else ""
        ranks = counted_noun(groups, "group") + of if of else counted_noun(groups, device)
        size += f" x {ranks}" * (groups > 1) + f" = {counted_noun(plan.samples_per_step(cluster.world_size), 'sample')}"
        shared += shared_among(plan, device)
    return ", ".join([plan_title(plan), size, *shared, checkpointing_title(plan)])


def lacks_of(explanation: Explanation) -> Iterator[Block]:
    """Yield what a plan lacks that does not fit with the probability that the question's risk requires, or the RAM that
    a plan needs of a host whose RAM is not known."""
    fit, question = explanation.candidate.fit, explanation.question
    if question is None or fit.probability >= LEAST[question.risk]:
        if fit.assumed_host_bytes:
            yield Sentence(fits_sentence("This plan", fit), fit_tone(fit))
        return
    is_closest = explanation.role == "closest"
    verdict = fits_sentence("This plan", fit)
    if is_closest:
        verdict = "No plan is sure to fit." if fit.verdict == "likely fits" else "Nothing fits."
    lacks = what_lacks(question, explanation.candidate, is_closest=is_closest)
    yield Sentence(f"{verdict} {lacks}", fit_tone(fit))


SECTIONS = {
    "gpu_memory": "GPU memory",
    "gpu_cache": "cached GPU memory",
    "host_memory": "host RAM",
    "host_loading": "loading of the model",
    "nvme": "NVMe",
    "time": "time of a step",
}
"""Titles of the sections; a title or its first word also names all parts of the section."""


def section_title(explanation: Explanation, section: Section) -> str:
    """Return the total of a section with its meaning."""
    memory = explanation.candidate.memory
    if section.name == "time":
        return f"{seconds(section.total)} for one optimizer step"
    size = gib(int(section.total))
    moment = phase_title(memory.peak.name)
    return {
        "gpu_memory": f"{size} GiB of each GPU's memory, at the peak ({moment})",
        "gpu_cache": (f"{size} GiB that PyTorch also keeps cached until an allocation would fail; nvidia-smi shows it"),
        "host_memory": f"{size} GiB of host RAM per node while training",
        "host_loading": f"{size} GiB of host RAM per node while the model loads",
        "nvme": f"{size} GiB of NVMe per node",
    }[section.name]


def _summary(section: Section, *, details: bool) -> Table:
    """Return the parts of a section as bars; without details the small ones are one row."""
    is_time = section.name == "time"
    parts = section.parts()
    shares, rest = shares_of(section), [] if details else _small(section)
    large, rows = parts[: len(parts) - len(rest)], []
    for part in filter(lambda part: part.size, large):
        family = time_family(part.name) if is_time else memory_family(part.name)
        cells: list[Cell] = [component_title(part.name), figure(part.size, is_time), shares[part.name]]
        rows.append(Row([*cells, *[resource_of(part)] * is_time, Meter(part.size / parts[0].size, ink=family)]))
    if rest:
        size = sum(part.size for part in rest)
        cells = [counted_noun(len(rest), "smaller part"), figure(size, is_time), shares[""]]
        rows.append(Row([*cells, *[""] * is_time, Meter(size / parts[0].size, ink="other")], "faded"))
    return Table([""] * (5 if is_time else 4), rows, optional=(3, 2) if is_time else (2,), alike="shares")


def _small(section: Section) -> list[Part]:
    """Return the parts that are one row of the summary: none, or at least two."""
    small = [part for part in section.parts() if part.size < SMALL * section.total]
    return small if len(small) > 1 else []


def shares_of(section: Section) -> dict[str, Figure]:
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


def resource_of(part: Part) -> str:
    term = part.terms[0]
    return "" if isinstance(term, MemoryTerm) else resource_title(term.resource)


def figure(size: float, is_time: bool) -> Figure:
    if is_time:
        return make_figure(size, fine_seconds)
    text = f"{gib(int(size))} GiB"
    return Figure(size_in_binary(int(size)) if text == "0.00 GiB" else text, size)


def _amount(origin: RateOrigin) -> str:
    return amount(origin.value, origin.unit)


def moments(explanation: Explanation) -> Table:
    """Return the allocated GPU memory at each moment of a step, the largest first."""
    memory = explanation.candidate.memory
    phases = sorted(memory.phases, key=lambda phase: -phase.allocated_bytes)
    most = memory.peak.allocated_bytes
    rows = []
    for each in phases:
        bar = Meter(each.allocated_bytes / most, ink="activations")
        rows.append(Row([phase_title(each.name), figure(each.allocated_bytes, False), bar]))
    return Table(["", "", ""], rows)


def terms_table(section: Section, explanation: Explanation | None = None) -> Table:
    """Return the parts of a section with formula, numbers and source, the largest first. explanation: has the rates
    that the formulas have in their units, and the matrix products, of which the largest is named."""
    is_time = section.name == "time"
    known_rates, rows = by_symbol(() if explanation is None else explanation.rates), []
    for part in section.parts():
        cells: list[Cell] = [component_title(part.name), figure(part.size, is_time)]
        formulas, remarks = formulas_of(part, known_rates)
        if is_long(part):
            meanings = (
                f"{f'{symbol} = {size}' if size else symbol} ({head(words.partition(': ')[0])})"
                for symbol, size, words in legend(part, known_rates)
            )
            formulas = [each for each in formulas if each.startswith("=")]
            remarks = [f"symbols: {', '.join(meanings)}", *remarks]
        if any(map(hidden_s, part.terms)):
            formulas.append(sum_of(part))
        if part.name == "matrix products" and explanation is not None and explanation.products:
            formulas.append(_largest_product(explanation.products))
        details = [*(Snippet(each, "") for each in formulas), Snippet("; ".join(remarks))]
        rows.append(Row([*cells, *occupied(part)], "strong", details))
    return Table([""] * (3 if is_time else 2), rows)


def _largest_product(products: Sequence[ProductTime]) -> str:
    found = max(products, key=lambda each: each.launches * each.seconds)
    sizes = {"rows": found.rows, "inner": found.inner, "columns": found.columns, "launched": found.copies}
    numbers = ", ".join(f"{symbol} = {size:,}" for symbol, size in sizes.items())
    all_s = fine_seconds(found.launches * found.seconds)
    spent = f"{found.launches:,} launches a micro batch x {fine_seconds(found.seconds)} = {all_s}"
    return f"the largest of {len(products)} sizes: {numbers}, {spent}; the part alone lists the others"


def occupied(part: Part) -> Iterator[str]:
    """Yield the resource that a part of the time occupies, and its time that overlaps with other work."""
    if resource := resource_of(part):
        hidden = sum(map(hidden_s, part.terms))
        yield f"{resource}, {seconds(hidden)} overlapped with other work" if hidden else resource


def sum_of(part: Part) -> str:
    """Return `1.3 s + 1.3 s - 1.2 s (overlapped) = 1.4 s`: the results of the formulas of a part, and its time."""
    is_time, hidden = bool(resource_of(part)), sum(map(hidden_s, part.terms))
    text = " + ".join(figure(term_size(term) + hidden_s(term), is_time).text for term in part.terms)
    overlapped = f" - {seconds(hidden)} (overlapped)" if hidden else ""
    return f"{text}{overlapped} = {figure(part.size, is_time).text}"


def hidden_s(term: Term) -> float:
    return 0.0 if isinstance(term, MemoryTerm) else term.hidden_s


Rates = Mapping[tuple[str, float], RateOrigin]
"""The rates in the formulas by symbol and value."""


def by_symbol(rates: Sequence[RateOrigin]) -> Rates:
    return {(rate.symbol, rate.value): rate for rate in rates}


_LONGEST = 240
"""Most letters of a formula in words, three lines of a terminal; a longer one is written in symbols."""


def is_long(part: Part) -> bool:
    """Return whether the formulas of a part are written in symbols."""
    return any(len(in_words(term)) > _LONGEST for term in part.terms)


def legend(part: Part, rates: Rates) -> list[tuple[str, str, str]]:
    """Return the symbols of a part's formulas with their numbers and meanings. A symbol with several numbers is there
    once, with those of the formulas in their order."""
    rows = dict[tuple[str, str], dict[str, None]]()
    for term in part.terms:
        values = dict(term.inputs)
        for symbol, meaning in term_symbols(term).items():
            value = values.get(symbol)
            origin = None if value is None else rates.get((symbol, value))
            words = meaning if origin is None else f"{head(meaning)}: {origin.origin}"
            text = "" if value is None else input_text(meaning, value, origin)
            rows.setdefault((symbol, words), {})[text] = None
    return [(symbol, " and ".join(texts), words) for (symbol, words), texts in rows.items()]


def formulas_of(part: Part, rates: Rates) -> tuple[list[str], list[str]]:
    """Return (the formulas in words, or long ones in symbols, and with their numbers, source and limits). Formulas of
    one form are there once, with the numbers of each pass."""
    formulas = list[str]()
    write = in_symbols if is_long(part) else in_words
    for term in part.terms:
        if (words := f"= {write(term)}") not in formulas:
            formulas.append(words)
        if numbers := _numbers(term, rates):
            size = figure(term_size(term) + hidden_s(term), bool(resource_of(part))).text
            passes = "" if isinstance(term, MemoryTerm) or not term.passes else f" ({term.passes})"
            is_part = len(part.terms) > 1 and numbers.startswith("=")
            formulas.append(f"{numbers} = {size}{passes}" if is_part else numbers)
    sources = dict.fromkeys(f"source: {term.source}" for term in part.terms if term.source)
    limits = dict.fromkeys(f"not covered: {term.not_covered}" for term in part.terms if term.not_covered)
    return formulas, [*sources, *limits]


def _numbers(term: Term, rates: Rates) -> str:
    """Return the formula with its numbers; those that are known if not all are."""

    def written(symbol: str, value: float) -> str:
        return input_text(term.symbols.get(symbol, symbol), value, rates.get((symbol, value)))

    if numbers := substituted_formula(term, written):
        return f"= {numbers}"
    names = (f"{head(term.symbols.get(symbol, symbol))} {written(symbol, value)}" for symbol, value in term.inputs)
    return f"with {', '.join(names)}" if term.inputs else ""


def input_text(meaning: str, value: float, origin: RateOrigin | None) -> str:
    """Return a number of a formula: a measured or assumed rate, a time, a size, or a plain number."""
    if origin is not None:
        return _amount(origin)
    if isinstance(value, float) and meaning.startswith("seconds ") and value:
        return amount(value, "s")
    if isinstance(value, float) and meaning.startswith("bytes ") and value >= 1e6:
        return amount(value, "B")
    return number(value)
