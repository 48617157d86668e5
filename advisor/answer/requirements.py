"""What a configuration must meet, and whether it does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict

from ...estimators.errors import WorkloadError
from ...estimators.workload import Framework
from ...validate.lint.config_file import shown_name
from ..question.cluster import parse_size
from ..question.job import parse_duration
from ..question.lint_file import lint_file
from ..search.candidate import LEAST, Candidate
from ..text.job import hours, money
from ..text.units import counted_noun, gib, rate, rough_rate
from .comparison import ComparisonContext, side_of

RequirementName = Literal["lint", "fits", "memory", "ram", "speed", "duration", "cost"]


class RequirementJson(TypedDict):
    """One requirement of one file."""

    file: str
    name: RequirementName
    met: bool
    detail: str
    value: float
    """Errors, a probability of fitting, bytes, tokens per second, seconds, or an amount of money."""
    limit: float
    """What the value is held against: at least for "fits" and "speed", at most for the others."""


class CheckJson(TypedDict):
    """All requirements of all files."""

    schema_version: int
    met: bool
    requirements: list[RequirementJson]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What is required besides the absence of errors, and of fitting; None: nothing."""

    max_memory_bytes: int | None = None
    max_ram_bytes: int | None = None
    min_tokens_per_s: float | None = None
    max_duration_s: float | None = None
    max_cost: float | None = None

    @classmethod
    def of(
        cls,
        *,
        max_memory: str | None,
        max_ram: str | None,
        min_tokens_per_second: float | None,
        max_duration: str | None,
        max_cost: float | None,
    ) -> Limits:
        """The limits as they were said. Raises DsAdviseError for sizes and times that are none."""
        for name, value in (("min-tokens-per-second", min_tokens_per_second), ("max-cost", max_cost)):
            if value is not None and not 0 < value < float("inf"):
                raise WorkloadError(f"--{name} is {value:g}", why="it must be above 0", fix=f"pass a sensible --{name}")
        return cls(
            max_memory_bytes=(max_memory and parse_size("--max-memory", max_memory, least=10**6, most=10**15)) or None,
            max_ram_bytes=(max_ram and parse_size("--max-ram", max_ram, least=10**6, most=10**15)) or None,
            min_tokens_per_s=min_tokens_per_second,
            max_duration_s=None if max_duration is None else parse_duration("--max-duration", max_duration),
            max_cost=max_cost,
        )


def check_file(
    path: Path,
    context: ComparisonContext | None,
    limits: Limits,
    *,
    gpus: str | None,
    framework: Framework | None,
) -> Iterator[RequirementJson]:
    """One after the other: no errors of lint; then, where model and GPUs are known, that it fits, and the limits.

    Raises DsAdviseError for a file that cannot be read or is no plan.
    """
    name = shown_name(path)
    report = lint_file(path, gpus=gpus, framework=framework).report
    errors = [finding for finding in report.findings if finding.severity == "error"]
    told = "; ".join(f"{error.code} line {error.line}, {error.what}" for error in errors)
    count, warnings = report.count("error"), report.count("warning")
    yield _requirement(name, "lint", told or f"no errors, {counted_noun(warnings, 'warning')}", count, 0)
    if context is None or errors:  # what DeepSpeed refuses has no memory or speed
        return
    candidate = side_of(str(path), context).candidate
    assert candidate is not None, "the context is known"
    yield from _fits(name, candidate, context, limits)
    yield from _paid(name, candidate, context, limits)


def _fits(name: str, candidate: Candidate, known: ComparisonContext, limits: Limits) -> Iterator[RequirementJson]:
    """That it fits, in less than is allowed, and runs as fast as is wanted."""
    needed, host, time = candidate.device_bytes, candidate.memory.host_bytes_per_node, candidate.time
    fit, offered = candidate.fit, known.cluster.gpu.memory_bytes
    detail = f"{fit.reason}, {gib(needed)} of {gib(offered)} GiB per GPU"
    yield _requirement(name, "fits", detail, fit.probability, LEAST["safe"], at_least=True)
    if limits.max_memory_bytes is not None:
        detail = f"{gib(needed)} GiB per GPU, at most {gib(limits.max_memory_bytes)} allowed"
        yield _requirement(name, "memory", detail, needed, limits.max_memory_bytes)
    if limits.max_ram_bytes is not None:
        detail = f"{gib(host)} GiB per node, at most {gib(limits.max_ram_bytes)} allowed"
        yield _requirement(name, "ram", detail, host, limits.max_ram_bytes)
    if limits.min_tokens_per_s is not None:
        ends = time.tokens_per_s_range
        between = "" if ends is None else f" ({rough_rate(ends[0])} to {rough_rate(ends[1])})"
        detail = f"{rate(time.tokens_per_s)} tokens/s{between}, at least {rate(limits.min_tokens_per_s)} wanted"
        yield _requirement(name, "speed", detail, time.tokens_per_s, limits.min_tokens_per_s, at_least=True)


def _paid(name: str, candidate: Candidate, known: ComparisonContext, limits: Limits) -> Iterator[RequirementJson]:
    """That the whole job takes no longer, and costs no more, than is allowed."""
    duration, price = known.duration(candidate), known.price
    if duration is not None and limits.max_duration_s is not None:
        detail = f"{hours(duration.duration_s)}, at most {hours(limits.max_duration_s)} allowed"
        yield _requirement(name, "duration", detail, duration.duration_s, limits.max_duration_s)
    if duration is not None and price is not None and limits.max_cost is not None:
        cost = duration.cost(price)
        detail = f"{money(cost, price.currency)}, at most {money(limits.max_cost, price.currency)} allowed"
        yield _requirement(name, "cost", detail, cost, limits.max_cost)


def _requirement(
    file: str, name: RequirementName, detail: str, value: float, limit: float, *, at_least: bool = False
) -> RequirementJson:
    met = value >= limit if at_least else value <= limit
    return {"file": file, "name": name, "met": met, "detail": detail, "value": value, "limit": limit}
