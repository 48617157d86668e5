"""Explanation of a plan's figures, by component: formula in words and in numbers, result, source, and limits."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from ...ds_configs.read import UnmodeledFeature
from ...estimators.errors import WorkloadError
from ...estimators.estimate import Evidence, MemoryTerm, TimeTerm, term_symbols
from ...estimators.json_form import from_attributes
from ...estimators.plan import STRATEGIES, PlainPyTorch, PlanSettings, Strategy
from ...estimators.time.compute_time import ProductTime
from ...estimators.time.step_time import plan_products
from ..question.question import Question
from ..search.candidate import Candidate, Verdict
from .rate_origins import RateOrigin, rate_origins
from .recommendation import Recommendation

_TOKEN = re.compile(r"[A-Za-z_][\w-]*'*|\d[\w.]*(?:e[+-]?\d+)?|\S")

_SIZE_WITH_NAME = re.compile(r"\b(\d+) [a-zA-Z][^+()]*(?= \+|\))(?<! )")
"""A summand with what it is, such as `8192 attention output`."""

_HEAD = re.compile(r" \(|[,;:] | as stage | in the training | at this | on one GPU")
"""Patterns that end the name of a quantity in the meaning of its symbol."""


def in_words(term: MemoryTerm | TimeTerm) -> str:
    """Return `bytes per weight x samples per micro batch x vocabulary size`. Text after a colon is already in words."""
    formula, colon, remark = term.formula.partition(": ")
    return _written(formula, term.symbols, lambda symbol: head(term.symbols[symbol])) + colon + remark


def in_symbols(term: MemoryTerm | TimeTerm) -> str:
    """Return `w x B x V`."""
    return _written(term.formula, term.symbols, lambda symbol: symbol)


def number(value: float) -> str:
    """Return `152,064`, or a fraction with three digits, as the results have: `0.35`."""
    is_small = isinstance(value, float) and abs(value) < _WITH_FRACTION and not value.is_integer()
    return f"{value:.3g}" if is_small else f"{value:,.0f}"


_WITH_FRACTION = 100
"""Number from which three digits leave no fraction."""


def substituted_formula(
    term: MemoryTerm | TimeTerm, write: Callable[[str, float], str] = lambda _symbol, value: number(value)
) -> str:
    """Return `2 x 5 x 152,064`; "" if the formula is in words or a number is unknown. write: returns the text of a
    symbol's number."""
    values = dict(term.inputs)

    def without_name(found: re.Match[str]) -> str:
        return found[0] if any(token in values for token in _TOKEN.findall(found[0])) else found[1]

    formula = _SIZE_WITH_NAME.sub(without_name, term.formula.partition(": ")[0])
    names = [token for token in _TOKEN.findall(formula) if token[0].isalpha()]
    if not names or any(name not in values and name not in (*_FUNCTIONS, _ROUNDED) for name in names):
        return ""

    def written(symbol: str) -> str:
        return head(term.symbols[_ROUNDED]) if symbol == _ROUNDED else write(symbol, values[symbol])

    return _written(formula, {**values, _ROUNDED: 0}, written)


def used_inputs(term: MemoryTerm | TimeTerm) -> list[tuple[str, float]]:
    """Return the inputs that the formula names; all of them if it is in words."""
    names = {*_TOKEN.findall(term.formula)}
    used = [(symbol, value) for symbol, value in term.inputs if symbol in names]
    return used if substituted_formula(term) else [*term.inputs]


def head(meaning: str) -> str:
    """Return the name at the start of a symbol's meaning, such as `samples per micro batch`."""
    return _HEAD.split(meaning, maxsplit=1)[0]


_FUNCTIONS = ("min", "max", "sum", "ceil")

_ROUNDED = "p2"
"""The symbol of the function that rounds up to a power of two, which stands in words also between numbers."""


def _written(formula: str, symbols: Mapping[str, object], word_of: Callable[[str], str]) -> str:
    """Return the formula with each symbol replaced by `word_of`, and a cross between adjacent factors."""
    text, before, end = "", "", 0
    for match in _TOKEN.finditer(formula):
        token, spaced = match.group(), match.start() > end
        calls = formula[match.end() : match.end() + 1] == "("
        factor = token in symbols or token[0].isdigit() or token == "(" or (token in _FUNCTIONS and calls)
        text += " " * spaced
        if factor and spaced and before == "factor":
            text += "x "
        word = word_of(token) if token in symbols else token
        text += f"{word} " if calls and token in symbols else word
        before = "factor" if token == ")" or token in symbols or token[0].isdigit() else ""
        end = match.end()
    return text


Term = MemoryTerm | TimeTerm


@dataclass(frozen=True, kw_only=True)
class TermFigures:
    """A component of memory or time."""

    name: str
    formula: str
    formula_in_words: str
    formula_with_numbers: str
    """"" if a number is unknown."""
    inputs: dict[str, float]
    source: str
    not_covered: str


@dataclass(frozen=True, kw_only=True)
class MemoryTermFigures(TermFigures):
    """A component of memory."""

    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class TimeTermFigures(TermFigures):
    """A component of the step's time."""

    seconds: float
    hidden_seconds: float
    """Seconds overlapped with other work, which do not lengthen the step."""
    resource: str
    """The resource that the component keeps busy."""
    passes: str
    """"forward passes" or "backward passes" if the other ones have a term of this name too."""


@dataclass(frozen=True, kw_only=True)
class SectionFigures:
    """Terms that add up to the total, in bytes or seconds."""

    total: float
    terms: tuple[MemoryTermFigures | TimeTermFigures, ...]


@dataclass(frozen=True, kw_only=True)
class RateFigures:
    """A rate in bytes or operations per second."""

    symbol: str
    meaning: str
    value: float
    origin: str
    """What it is a share of, and where that is from."""


@dataclass(frozen=True, kw_only=True)
class ExplanationFigures(PlanSettings):
    """A plan with all terms of its memory and time."""

    strategy: Strategy | PlainPyTorch
    assumed: str
    """What the plan of a file assumes, because neither the file nor the question has it; "" if nothing."""
    unpredicted: dict[str, str]
    """What a file has and the figures leave out, with what they have instead."""
    evidence: Evidence
    fits: bool
    assumed_host_bytes: int
    """RAM per node that the fit assumes, because the RAM of the host is not known; 0 if nothing is assumed."""
    fit_probability: float
    verdict: Verdict
    reason: str
    allocated_bytes_per_gpu: int
    reserved_bytes_per_gpu: int
    device_bytes_per_gpu: int
    cached_bytes_per_gpu: int
    """Further bytes that PyTorch caches, if known; nvidia-smi shows both."""
    step_seconds: float
    tokens_per_second: float
    peak: str
    """The moment of a step at which GPU memory peaks."""
    allocated_bytes_by_moment: dict[str, int]
    host_loading_bytes_per_node: int
    sections: dict[str, SectionFigures]
    """gpu_memory, gpu_cache, host_memory, host_loading, nvme and time, as far as the plan has them."""
    symbols: dict[str, str]
    """Meanings of the symbols in the formulas."""
    rates: tuple[RateFigures, ...]
    """The rates in the formulas of the time, with their origin."""
    matrix_products: tuple[ProductTime, ...]
    """The products whose seconds, times the micro batches, are the time's term of this name; the largest share first.
    Empty if the training is not known."""


class Part(NamedTuple):
    """The terms of one component: those of the forward and of the backward passes have one name."""

    name: str
    terms: tuple[Term, ...]
    size: float
    """Bytes or seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Terms of one kind; memory terms add up to `total` bytes, time terms to `total` seconds."""

    name: str
    terms: tuple[Term, ...]
    total: float

    def parts(self) -> list[Part]:
        """Return the components, the largest first."""
        by_name: dict[str, list[Term]] = {}
        for term in self.terms:
            by_name.setdefault(term.name, []).append(term)
        parts = [Part(name, tuple(terms), sum(map(term_size, terms))) for name, terms in by_name.items()]
        return sorted(parts, key=lambda part: -part.size)


def term_size(term: Term) -> float:
    """Return the bytes or seconds of a term."""
    return term.size_bytes if isinstance(term, MemoryTerm) else term.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A plan's sections. question: what the plan answers, if known: its machines, whose rates these are, and its
    training."""

    candidate: Candidate
    sections: tuple[Section, ...]
    question: Question | None = None
    rates: tuple[RateOrigin, ...] = ()
    products: tuple[ProductTime, ...] = ()
    """The matrix products of a micro batch by size."""
    role: Literal["recommended", "closest", "asked"] = "asked"
    """Why it is this plan: "closest" if no plan fits and it has the smallest shortage."""
    assumed: str = ""
    """What the plan of a file assumes, because neither the file nor the question has it."""
    unpredicted: tuple[UnmodeledFeature, ...] = ()
    """What a file has and the figures leave out."""

    @property
    def symbols(self) -> dict[str, str]:
        """Meaning of each symbol, in the order of first use; a second meaning names its section."""
        meanings: dict[str, dict[str, str]] = {}
        for section in self.sections:
            for term in section.terms:
                for symbol, meaning in term_symbols(term).items():
                    known = meanings.setdefault(symbol, {})
                    known.setdefault(meaning, f"in {section.name.replace('_', ' ')}, {meaning}" if known else meaning)
        return {symbol: "; ".join(known.values()) for symbol, known in meanings.items()}

    def figures(self) -> ExplanationFigures:
        """Return the explanation as data."""
        candidate, memory = self.candidate, self.candidate.memory
        return from_attributes(
            ExplanationFigures,
            candidate.plan,
            memory,
            candidate.fit,
            candidate.estimate,
            assumed=self.assumed,
            unpredicted={feature.name: feature.predicted for feature in self.unpredicted},
            fit_probability=candidate.fit.probability,
            step_seconds=candidate.time.step_s,
            tokens_per_second=candidate.tokens_per_s,
            peak=memory.peak.name,
            allocated_bytes_by_moment={phase.name: phase.allocated_bytes for phase in memory.phases},
            sections={
                section.name: SectionFigures(total=section.total, terms=tuple(map(_term, section.terms)))
                for section in self.sections
            },
            symbols=self.symbols,
            rates=tuple(from_attributes(RateFigures, rate) for rate in self.rates),
            matrix_products=self.products,
        )


def _term(term: Term) -> MemoryTermFigures | TimeTermFigures:
    texts = {
        "formula_in_words": in_words(term),
        "formula_with_numbers": substituted_formula(term),
    }
    if isinstance(term, MemoryTerm):
        return from_attributes(MemoryTermFigures, term, inputs=dict(term.inputs), **texts)
    return from_attributes(TimeTermFigures, term, hidden_seconds=term.hidden_s, inputs=dict(term.inputs), **texts)


def explain(answer: Recommendation, *, strategy: str | None = None) -> Explanation:
    """Return the explanation of the recommended plan, or of the best plan of a strategy. Raises WorkloadError for a
    strategy without a plan."""
    if strategy is None:
        found = explain_plan(shown_candidate(answer), answer.question)
        return replace(found, role="closest" if answer.recommended is None else "recommended")
    step = next((step for step in answer.ladder if step.strategy == strategy), None)
    if step is None:
        raise WorkloadError(f"unknown strategy {strategy!r}", fix=f"pass one of {', '.join(STRATEGIES)}")
    if step.candidate is None:
        raise WorkloadError(f"{strategy} cannot run here", why=step.reason, fix="pass another --strategy")
    return explain_plan(step.candidate, answer.question)


def shown_candidate(answer: Recommendation) -> Candidate:
    """Return the recommended plan, or the closest one if none fits. Raises WorkloadError without a plan."""
    if answer.shown is None:
        raise WorkloadError("no strategy can run this training", why=answer.ladder[0].reason, fix="change the options")
    return answer.shown


def explain_plan(candidate: Candidate, question: Question | None = None) -> Explanation:
    """Return the explanation of a plan. question: what it answers, for its matrix products and the origin of its
    rates."""
    memory, time = candidate.memory, candidate.time
    on_host = memory.host_pinned_terms + memory.host_pageable_terms
    sections = (
        Section(name="gpu_memory", terms=memory.gpu_terms, total=memory.device_bytes_per_gpu),
        Section(name="gpu_cache", terms=memory.cache_terms, total=memory.cached_bytes_per_gpu),
        Section(name="host_memory", terms=on_host, total=memory.host_training_bytes_per_node),
        Section(name="host_loading", terms=memory.host_loading_terms, total=memory.host_loading_bytes_per_node),
        Section(name="nvme", terms=memory.nvme_terms, total=memory.nvme_bytes_per_node),
        Section(name="time", terms=time.terms, total=time.step_s),
    )
    found = tuple(section for section in sections if section.terms)
    if question is None:
        return Explanation(candidate=candidate, sections=found)
    model, workload, cluster = question.model, question.workload, question.cluster
    return Explanation(
        candidate=candidate,
        sections=found,
        question=question,
        rates=rate_origins(time.terms, candidate.node(cluster), workload),
        products=plan_products(model, workload, cluster, candidate.plan),
    )
