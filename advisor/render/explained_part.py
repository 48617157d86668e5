"""A part of a plan's memory or time (formula, numbers and source), as blocks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches

from ...estimators.errors import WorkloadError
from ...estimators.objectives import LOSSES
from ...estimators.time.compute_time import ProductTime
from ...estimators.time.step_time import plan_moves
from ..answer.explanation import (
    Explanation,
    Part,
    Section,
    Term,
    head,
    term_size,
    used_inputs,
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
from ..question.question import Question
from ..text.labels import (
    MEMORY_FAMILIES,
    component_title,
    memory_family,
    phase_title,
)
from ..text.units import (
    alternatives,
    amount,
    capitalised,
    counted_noun,
    ended,
    fine_seconds,
    gib,
)
from .answer import utilization_sentence
from .explained_fit import NAMES as FIT_NAMES
from .explained_fit import fit_blocks
from .explanation import (
    SECTIONS,
    SMALL,
    assumed_line,
    by_symbol,
    figure,
    formulas_of,
    hidden_s,
    input_text,
    is_long,
    lacks_of,
    legend,
    moments,
    occupied,
    plan_line,
    section_title,
    shares_of,
    sum_of,
    terms_table,
)

_NEAREST = 3
"""Most names that are proposed for an unknown one."""

_OTHER_NAMES = {
    "time": ("speed", "throughput", "duration", "latency", "tokens/s", "step", "step time"),
    "gpu": ("memory", "vram", "hbm"),
    "host": ("memory", "ram", "cpu"),
    "loading": ("load", "host ram while loading"),
    "nvme": ("disk", "ssd"),
}
"""Other words for the first word of a section's title; a word of two sections stands for both."""


_KV_CACHE = ("kv cache", "kv", "key value cache")
"""Names of what only generation has."""

_LOSS_PARTS = ("logits", "log softmax", "gradient of logits")
"""Parts that a loss over the vocabulary has."""

_OTHER_PARTS = {
    "fragmentation": ("allocator overhead",),
    "communication": ("weight gathering", "gradient reduction", "all-to-all of tokens", "updated weights gathered"),
    **dict.fromkeys(("adam", "adamw", "moments of adam"), ("optimizer states", "optimizer")),
    **dict.fromkeys(("matmul", "matmuls", "gemm", "gemms", "flops"), ("matrix products",)),
}
"""Other words for parts, of which a plan may have some."""

_MOMENTS = ("peak", "moment", "moments", "phases")
"""Names of the GPU's memory at each moment of a step."""

_MFU = ("mfu", "model flops utilization", "utilization")
"""Names of the share of the GPU's peak that a plan uses."""

_IN_DETAILS = re.compile(r"rates?|(\d+ )?smaller parts?")
"""Names of what only the list with --details has."""

_CLOSE = 0.75
"""Least similarity of an unknown name to one that is proposed (difflib)."""


def is_section(name: str) -> bool:
    """Return whether a word names a section of every plan, such as `time` or `memory`."""
    titles = {title.split()[0].casefold() for title in SECTIONS.values()}
    return name.casefold() in titles.union(*_OTHER_NAMES.values())


def has_part(explanation: Explanation, name: str) -> bool:
    """Return whether this is the name of a part, of a section, or of a family of parts."""
    try:
        return next(part_blocks(explanation, name, listing=""), None) is not None
    except WorkloadError:
        return False


def _plain(name: str) -> str:
    return " ".join(re.sub("[_-]", " ", name.casefold()).split())


def _singular(word: str) -> str:
    return re.sub("(?<!s)s$", "", word)


def _part_titles(explanation: Explanation) -> list[str]:
    return [component_title(part.name) for section in explanation.sections for part in section.parts()]


def _with(titles: Iterable[str], wanted: str) -> list[str]:
    """Return the titles in which a word begins like the wanted one, also a shortened plural: `grads`."""
    return [each for each in titles if re.search(rf"\b{re.escape(_singular(wanted))}", _plain(each))]


def _sections_named(explanation: Explanation, wanted: str) -> list[Section]:
    """Return the sections of this title, first word of it, or other word: `memory` is GPU memory and host RAM."""
    found = []
    for section in explanation.sections:
        title = SECTIONS[section.name].casefold()
        first = title.split()[0]
        if wanted in (title, first, *_OTHER_NAMES.get(first, ())):
            found.append(section)
    return found


def _family_named(explanation: Explanation, wanted: str) -> Section | None:
    """Return the parts of the GPU's memory that belong to a family: `activations`, `activation memory`; None without
    any."""
    for section in explanation.sections:
        if section.name == "gpu_memory" and (terms := _of_family(section.terms, wanted)):
            return Section(name=section.name, terms=terms, total=sum(map(term_size, terms)))
    return None


def _family_title(terms: Sequence[Term]) -> str:
    return MEMORY_FAMILIES[memory_family(terms[0].name)]


def _of_family(terms: Iterable[Term], wanted: str) -> tuple[Term, ...]:
    """Return the terms of the GPU's memory whose family has this name, also in the singular."""
    name = _singular(wanted.removesuffix(" memory"))
    return tuple(term for term in terms if name != "other" and _singular(memory_family(term.name)) == name)


def parts_meant(explanation: Explanation, name: str) -> list[str]:
    """Return the parts that are meant by a name that none of them has: by another word for them, those that contain
    the word, or the most similar ones."""
    wanted, known = _plain(name), _part_titles(explanation)
    near = (
        [each for each in _OTHER_PARTS.get(wanted, ()) if each in known]
        or _with(known, wanted)
        or get_close_matches(wanted, known, n=_NEAREST, cutoff=_CLOSE)
    )
    return [*dict.fromkeys(near)][:_NEAREST]


def part_blocks(explanation: Explanation, name: str, *, listing: str) -> Iterator[Block]:
    """Yield formula, numbers and source of the parts with this name, or of all parts of a section or a family. Raises
    WorkloadError for an unknown name. listing: the command that lists all parts."""
    wanted, found = _plain(name), False
    utilization = _utilization(explanation) if wanted in _MFU else ""
    if wanted in FIT_NAMES or wanted in _MOMENTS or utilization:
        if utilization:
            yield Sentence(utilization, "bold")
            yield Sentence(
                "= FLOPs of the forward and backward passes per GPU and step / (seconds of the step x the peak); "
                "recomputation does not count"
            )
            yield Sentence("source: PaLM, arXiv:2204.02311, appendix B", "dim")
        elif wanted in _MOMENTS:
            yield Sentence("Allocated on the GPU at each moment of a step; the largest is the peak", "bold")
            yield moments(explanation)
        else:
            yield from fit_blocks(explanation)
        yield from (Gap(), *_subject(explanation))
        return
    if sections := _sections_named(explanation, wanted):
        for section in sections:
            yield Sentence(section_title(explanation, section), "bold")
            yield from (terms_table(section, explanation), Gap())
        yield from _subject(explanation)
        return
    for section in explanation.sections:
        for part in section.parts():
            if wanted == _plain(component_title(part.name)):
                yield from [Gap()] * found
                yield from _part(explanation, section, part)
                found = True
    if not found and (group := _family_named(explanation, wanted)) is not None:
        size, found = figure(group.total, False).text, True
        parts = counted_noun(len(group.parts()), "part")
        yield Sentence(f"{_family_title(group.terms)}: {size} in {parts} of the GPU memory at the peak", "bold")
        yield from (terms_table(group, explanation), Gap())
    if not found:
        raise _unknown_part(explanation, name, listing)
    if others := dict.fromkeys(each for each in _with(_part_titles(explanation), wanted) if _plain(each) != wanted):
        yield Sentence(f"Other parts of this name: {', '.join(others)}.", "dim")
    yield from _subject(explanation)


def _utilization(explanation: Explanation) -> str:
    """Return the share of the GPU's peak that the plan uses; "" if no peak is published, and without a training."""
    question = explanation.question
    return "" if question is None else utilization_sentence(question, explanation.candidate)


def parts_of_key(explanation: Explanation, name: str) -> Iterator[Block]:
    """Yield what the plan has of the name of a key: the parts of the same name, or the names of those that are near."""
    yield Gap()
    if has_part(explanation, name):
        yield from part_blocks(explanation, name, listing="")
    elif near := parts_meant(explanation, name):
        yield Sentence(f"Parts of the plan with a name like this: {', '.join(near)}.", "dim")


def _unknown_part(explanation: Explanation, name: str, listing: str) -> WorkloadError:
    wanted, near = _plain(name), parts_meant(explanation, name)
    why, meant, details = "", f"did you mean {alternatives(near)}? " if near else "", ""
    if wanted in _KV_CACHE:
        why, meant = "a training step keeps no KV cache, only generation does", ""
    elif not near and _IN_DETAILS.fullmatch(wanted):
        details = " --details"
    elif at_another := _at_another_moment(explanation, wanted, by_whole_name=True):
        why, meant = at_another, ""
    elif not near:
        why = _at_another_moment(explanation, wanted)
    why = "; ".join(filter(None, (_without_logits(explanation, wanted), why)))
    what = f"this plan has no part {name[:60]!r}"
    return WorkloadError(what, why=why, fix=f"{meant}{listing}{details} lists {'it' if details else 'the parts'}")


def _without_logits(explanation: Explanation, wanted: str) -> str:
    """Return why a loss has none of its usual parts; "" for any other name."""
    question = explanation.question
    if wanted not in _LOSS_PARTS or question is None or LOSSES[question.workload.loss].makes_logits:
        return ""
    return f"the {question.workload.loss} loss never has the logits of all tokens, only those of a chunk"


def _at_another_moment(explanation: Explanation, wanted: str, *, by_whole_name: bool = False) -> str:
    """Return when a part or a family is there that is not at the peak, such as logits; "" for any other name.
    by_whole_name: only a part that has this name, not one whose family has it or whose name contains it."""
    memory = explanation.candidate.memory
    others = [phase for phase in memory.phases if phase is not memory.peak]
    parts = [(term.size_bytes, component_title(term.name), phase.name) for phase in others for term in phase.terms]
    found: list[tuple[float, str, str]] = [each for each in parts if _plain(each[1]) == wanted]
    if not by_whole_name:
        groups = [(phase, terms) for phase in others if (terms := _of_family(phase.terms, wanted))]
        found = [(sum(map(term_size, terms)), _family_title(terms), phase.name) for phase, terms in groups] or [
            each for each in parts if wanted in each[1].casefold()
        ]
    if not found:
        return ""
    size, title, moment = max(found)
    return f"the peak is not {phase_title(moment)}, which has {title} ({gib(int(size))} GiB)"


def _part(explanation: Explanation, section: Section, part: Part) -> Iterator[Block]:
    """Yield the share of a part in its section, its formulas, the meaning of their numbers, and the source."""
    rates = by_symbol(explanation.rates)
    size, total = (figure(each, section.name == "time").text for each in (part.size, section.total))
    share = shares_of(section)[part.name].text
    yield Sentence(f"{component_title(part.name)}: {size}", "bold")
    yield Sentence(", ".join([f"{share} of {total} ({SECTIONS[section.name]})", *occupied(part)]))
    yield Gap()
    formulas, remarks = formulas_of(part, rates)
    yield from (Sentence(f"  {each}", hang=4) for each in formulas if each.startswith("="))
    if len(part.terms) > 1 or any(map(hidden_s, part.terms)):
        yield Sentence(f"  {sum_of(part)}")
    inputs = {(term.symbols.get(each[0], each[0]), *each): None for term in part.terms for each in used_inputs(term)}
    rows = []
    for meaning, symbol, value in inputs:
        origin = rates.get((symbol, value))
        words = meaning if origin is None else f"{head(meaning)}: {origin.origin}"
        rows.append(Row([Snippet(input_text(meaning, value, origin)), words]))
    if is_long(part):
        symbols = [Row([Snippet(symbol), Snippet(size), words]) for symbol, size, words in legend(part, rates)]
        yield from (Gap(), Table(["", "", ""], symbols))
    elif rows:
        yield from (Gap(), Table(["", ""], rows))
    if part.name == "matrix products" and explanation.products:
        yield from (Gap(), *_products(explanation))
    if part.name == "elementwise operations" and explanation.question is not None:
        yield from (Gap(), *_moves(explanation, explanation.question))
    yield Gap()
    yield from (Sentence(ended(capitalised(each)), "dim") for each in remarks)


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
        rows.append(Row([*sizes, *experts, Figure(f"{each.launches:,}"), *share], "", [_names(each)]))
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


def _moves(explanation: Explanation, question: Question) -> Iterator[Block]:
    """Yield the operations of a micro batch by the bytes that they move, which add up to the formula's."""
    moves = plan_moves(question.model, question.workload, question.cluster, explanation.candidate.plan)
    total = sum(moves.values())
    shown = {label: size for label, size in moves.items() if size >= SMALL * total}
    rest = len(moves) - len(shown)
    rows = [Row([label or "others", Figure(amount(size, "B"))]) for label, size in shown.items()]
    if rest:
        left = amount(total - sum(shown.values()), "B")
        rows.append(Row([counted_noun(rest, "smaller operation"), Figure(left)], "faded"))
    yield Sentence("Bytes that a micro batch moves, by the operations' results:")
    yield Table(["", ""], [*rows, Row(["all", Figure(amount(total, "B"))], "strong")])


def _names(product: ProductTime) -> str:
    """Return `q_proj, o_proj; input gradient of q_proj, o_proj`."""
    by_pass: dict[str, list[str]] = {}
    for name in product.names:
        of_pass, of, module = name.rpartition("gradient of ")
        by_pass.setdefault(of_pass + of, []).append(module)
    return "; ".join(f"{of_pass}{', '.join(modules)}" for of_pass, modules in by_pass.items())


def _subject(explanation: Explanation) -> Iterator[Block]:
    """Yield the model and the plan of a part, and what the plan lacks."""
    question = explanation.question
    model = "" if question is None else f"{question.model.name}, "
    yield Sentence(f"Plan: {model}{plan_line(explanation)}.", "dim")
    if explanation.assumed:
        yield Sentence(assumed_line(explanation.assumed), "dim")
    yield from lacks_of(explanation)
