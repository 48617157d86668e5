"""Requirements that a configuration must meet (`ds-advise check`), and whether it does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One requirement of one file."""

    file: str
    name: RequirementName
    met: bool
    detail: str
    value: float
    """Errors, a probability of fitting, bytes, tokens per second, seconds, or an amount of money."""
    limit: float
    """The least allowed value of "fits" and "speed", the largest of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """All requirements of all files."""

    schema_version: int
    met: bool
    requirements: tuple[Requirement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Requirements besides the absence of errors and fitting; None: none."""

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
        """The limits from their options. Raises DsAdviseError for sizes and times that are none."""
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
    path: Path, context: ComparisonContext | None, limits: Limits, *, gpus: str | None, framework: Framework | None
) -> Iterator[Requirement]:
    """No errors of lint; then, where model and GPUs are known, that it fits, and the limits.

    Raises DsAdviseError for a file that cannot be read or is no plan.
    """
    name = shown_name(path)
    report = lint_file(path, gpus=gpus, framework=framework).report
    errors = [finding for finding in report.findings if finding.severity == "error"]
    listed = "; ".join(f"{error.code} line {error.line}, {error.what}" for error in errors)
    clean = f"no errors, {counted_noun(report.count('warning'), 'warning')}"
    yield Requirement(file=name, name="lint", met=not errors, detail=listed or clean, value=len(errors), limit=0)
    if context is None or errors:  # what DeepSpeed refuses has no memory or speed
        return
    candidate = side_of(str(path), context).candidate
    assert candidate is not None, "the context is known"
    fit, offered = candidate.fit, context.cluster.gpu.memory_bytes
    yield Requirement(
        file=name,
        name="fits",
        met=fit.probability >= LEAST["safe"],
        detail=f"{fit.reason}, {gib(candidate.device_bytes)} of {gib(offered)} GiB per GPU",
        value=fit.probability,
        limit=LEAST["safe"],
    )
    for key, value, text, limit, limit_text in _limited(candidate, context, limits):
        met = value >= limit if key == "speed" else value <= limit
        bound = "at least" if key == "speed" else "at most"
        yield Requirement(
            file=name, name=key, met=met, detail=f"{text}, {bound} {limit_text} allowed", value=value, limit=limit
        )


def _limited(
    candidate: Candidate, known: ComparisonContext, limits: Limits
) -> Iterator[tuple[RequirementName, float, str, float, str]]:
    """For each limit the value and the limit, each also as text."""
    needed, host, time = candidate.device_bytes, candidate.memory.host_bytes_per_node, candidate.time
    duration, price = known.duration(candidate), known.price
    if limit := limits.max_memory_bytes:
        yield "memory", needed, f"{gib(needed)} GiB per GPU", limit, gib(limit)
    if limit := limits.max_ram_bytes:
        yield "ram", host, f"{gib(host)} GiB per node", limit, gib(limit)
    if least := limits.min_tokens_per_s:
        ends = time.tokens_per_s_range
        interval = "" if ends is None else f" ({rough_rate(ends[0])} to {rough_rate(ends[1])})"
        yield "speed", time.tokens_per_s, f"{rate(time.tokens_per_s)} tokens/s{interval}", least, rate(least)
    if duration is not None and (longest := limits.max_duration_s):
        yield "duration", duration.duration_s, hours(duration.duration_s), longest, hours(longest)
    if duration is not None and price is not None and (most := limits.max_cost):
        cost = duration.cost(price)
        yield "cost", cost, money(cost, price.currency), most, money(most, price.currency)
