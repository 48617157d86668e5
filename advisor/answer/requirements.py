"""Requirements on a configuration (`ds-advise check`), and whether it meets them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ...estimators.errors import UnsupportedPlanError, WorkloadError
from ...estimators.time.job import HOUR_S
from ...validate.lint import LintReport, load_facts
from ..question.file_question import FileQuestion
from ..question.job import parse_duration
from ..question.machine_parts import MOST_MEMORY_BYTES, parse_size
from ..question.prices import parse_money
from ..question.question import Question
from ..search.candidate import LEAST, Candidate, candidate_duration
from ..text.job import durations, figure_and_interval, hours, money, money_and_interval
from ..text.labels import checkpointing_label, method_title
from ..text.units import counted_noun, gib, rate, rough_rates
from .comparison import ComparisonContext, build_side
from .lint_file import UnreadFigures, lint_question

RequirementName = Literal["lint", "fits", "memory", "ram", "speed", "duration", "cost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One requirement on one file."""

    file: str
    name: RequirementName
    met: bool | None
    """Null if it was not checked, because lint failed, or the plan does not fit and so has no speed."""
    detail: str
    """The figure and its limit; of lint the counts and the reader of the file, then a line for each error."""
    warnings: tuple[str, ...] = ()
    """Warnings of lint, which do not fail it."""
    value: float | None
    """A number of errors, a probability of fitting, bytes, tokens per second, seconds, or an amount of money; null if
    it was not checked."""
    is_conditional: bool = False
    """Whether it is met only if the host has more RAM than is usual: the RAM was not given."""
    limit: float
    """Least allowed value for "fits" and "speed", largest allowed value for the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """All requirements of all files."""

    schema_version: int
    met: bool
    """Whether all are met, and all files were read."""
    requirements: tuple[Requirement, ...]
    unread: tuple[UnreadFigures, ...]
    """Files that were not checked."""


Limits = Mapping[RequirementName, float]
"""Largest allowed memory, RAM, duration and cost, and least allowed speed; a missing name means no limit."""


def parse_limits(
    *,
    max_memory: str | None,
    max_ram: str | None,
    min_tokens_per_second: float | None,
    max_duration: str | None,
    max_cost: str | None,
    currency: str,
) -> Limits:
    """Return the limits from their options. currency: that of the price; "" if it has none. Raises DsAdviseError for
    invalid sizes, times and amounts."""
    if min_tokens_per_second is not None and not 0 < min_tokens_per_second < float("inf"):
        name = "--min-tokens-per-second"
        raise WorkloadError(
            f"{name} is {min_tokens_per_second:g}", why="it must be above 0", fix=f"pass a valid {name}"
        )
    limits: dict[RequirementName, float | None] = {
        "memory": parse_size("--max-memory", max_memory, least=2**20, most=MOST_MEMORY_BYTES) if max_memory else None,
        "ram": parse_size("--max-ram", max_ram, least=2**20, most=MOST_MEMORY_BYTES) if max_ram else None,
        "speed": min_tokens_per_second,
        "duration": None if max_duration is None else parse_duration("--max-duration", max_duration),
        "cost": None if max_cost is None else parse_money("--max-cost", max_cost, currency),
    }
    return {name: limit for name, limit in limits.items() if limit}


def check_file(file: FileQuestion, context: ComparisonContext | None, limits: Limits) -> Iterator[Requirement]:
    """Check that lint finds no errors; if model and GPUs are known, also that the plan fits and meets the limits.
    Raises DsAdviseError for a file that does not describe a plan."""
    lint = lint_requirement(file.name, lint_question(file, load_facts()))
    yield lint
    if context is None:
        return
    if not lint.met:
        yield from skip_refused(file.name, limits)
        return
    try:
        side = build_side(file, context)
    except UnsupportedPlanError as error:
        yield from refuse_plan(file.name, error.why, limits)
        return
    assert side.candidate is not None and side.settings.workload is not None, "the context is known"
    question = replace(context.question, workload=side.settings.workload)
    yield from check_plan(
        file.name,
        side.candidate,
        question,
        limits,
        filled=side.filled,
        unpredicted=[feature.name for feature in side.unpredicted],
        is_dry_run=side.dry_run is not None,
    )


def lint_requirement(
    name: str, report: LintReport | None, *, part: str = "", faults: Sequence[str] = (), unknown: Sequence[str] = ()
) -> Requirement:
    """Return whether lint finds no errors. report: None without a DeepSpeed configuration. part: the name of the
    configuration in the file of a training tool. faults, unknown: what the tool itself refuses, and what it does not
    know, as sentences."""
    findings = () if report is None else report.findings
    errors, warnings = (
        tuple(
            f"{each.code} {part}{' ' * bool(part)}line {each.line}, {each.what}"
            for each in findings
            if each.severity == severity
        )
        for severity in ("error", "warning")
    )
    errors, warnings = (*faults, *errors), (*unknown, *warnings)
    counts = f"{counted_noun(len(errors), 'error')}, " if errors else "no errors, "
    counts += counted_noun(len(warnings), "warning")
    if report is None:
        counts += "; no DeepSpeed configuration"
    else:
        advice = report.count("advice")
        counts += f", {counted_noun(advice, 'piece')} of advice" if advice else ""
        counts += f"; read by {report.reader}{' (assumed: pass --framework)' * report.framework_is_assumed}"
    detail = "\n".join((counts, *errors))
    return Requirement(
        file=name, name="lint", met=not errors, detail=detail, warnings=warnings, value=len(errors), limit=0
    )


def skip_refused(name: str, limits: Limits) -> Iterator[Requirement]:
    """Yield what is not checked of a refused configuration, which has no memory or speed."""
    yield from _skipped(name, {"fits": LEAST["safe"], **limits}, "lint failed")


def refuse_plan(name: str, why: str, limits: Limits) -> Iterator[Requirement]:
    """Yield the requirements on a plan that cannot run."""
    detail = f"it cannot run: {why}"
    yield Requirement(file=name, name="fits", met=False, detail=detail, value=0.0, limit=LEAST["safe"])
    yield from _skipped(name, limits, "the plan cannot run")


def check_plan(
    name: str,
    candidate: Candidate,
    question: Question,
    limits: Limits,
    *,
    filled: str = "",
    unpredicted: Sequence[str] = (),
    is_dry_run: bool = False,
) -> Iterator[Requirement]:
    """Check that a plan fits and meets the limits.

    filled: the values for `auto`, in words. unpredicted: the keys whose effect the closed form does not have.
    is_dry_run: whether the figures are those of a dry run, which has it.
    """
    fit, offered = candidate.fit, question.cluster.gpu.memory_bytes
    memory = f"{gib(candidate.device_bytes)} of {gib(offered)} GiB per GPU"
    if fit.reason != "fits" and not fit.assumed_host_bytes:  # the requirement's name
        memory = f"{fit.reason}, {memory}"
    host, ram = candidate.memory.host_bytes_per_node, question.cluster.host_memory_bytes_per_node
    offered_ram = "GiB, not checked: --ram" if ram is None else f"of {gib(ram)} GiB"
    memory = f"{memory}; host RAM {gib(host)} {offered_ram}"
    cannot_run = fit.verdict == "does not fit"
    if not cannot_run:  # what cannot run has no speed
        memory = f"{memory}; {rate(candidate.tokens_per_s)} tokens/s"
    plan, workload = candidate.plan, question.workload
    batch = f"micro batch {plan.micro_batch_size} x accumulation {plan.gradient_accumulation_steps}"
    length = f", sequence {workload.seq_len:,}" * (question.model.unit == "tokens")
    notes = [f"{method_title(workload)}{length}", filled or f"{batch}, checkpointing {checkpointing_label(plan)}"]
    if is_dry_run:
        notes.append("by a dry run")
    elif unpredicted:
        notes.append(f"without {', '.join(unpredicted)}: not predicted, dry-run it")
    yield Requirement(
        file=name,
        name="fits",
        met=fit.probability >= LEAST["safe"],
        detail=f"{memory} ({'; '.join(notes)})",
        value=fit.probability,
        limit=LEAST["safe"],
        is_conditional=fit.probability >= LEAST["safe"] and fit.assumed_host_bytes > 0,
    )
    for key, (value, text, write) in _figures(candidate, question).items():
        if key not in limits:
            continue
        if cannot_run and key in ("speed", "duration", "cost"):
            yield from _skipped(name, {key: limits[key]}, "the plan does not fit")
            continue
        bound, met = f"at most {write(limits[key])} allowed", value <= limits[key]
        if key == "speed":
            bound, met = f"at least {write(limits[key])} required", value >= limits[key]
        detail = ", ".join([text, bound])
        yield Requirement(file=name, name=key, met=met, detail=detail, value=value, limit=limits[key])


def _skipped(file: str, limits: Limits, why: str) -> Iterator[Requirement]:
    """Yield the requirements that are not checked."""
    for name, limit in limits.items():
        yield Requirement(file=file, name=name, met=None, detail=f"not checked, {why}", value=None, limit=limit)


def _figures(
    candidate: Candidate, question: Question
) -> dict[RequirementName, tuple[float, str, Callable[[Any], str]]]:
    """Return, for each limit, the figure to compare, its text, and the function that formats the limit."""
    needed, host, time = candidate.device_bytes, candidate.memory.host_bytes_per_node, candidate.time
    ends, duration, price = time.tokens_per_s_range, candidate_duration(question, candidate), question.price
    speed: str = f"{rate(time.tokens_per_s)} tokens/s"
    if ends is not None:
        speed = f"{speed} ({' to '.join(rough_rates(*ends, time.tokens_per_s))})"
    found: dict[RequirementName, tuple[float, str, Callable[[Any], str]]] = {
        "memory": (needed, f"{gib(needed)} GiB per GPU", _gib),
        "ram": (host, f"{gib(host)} GiB per node", _gib),
        "speed": (time.tokens_per_s, speed, rate),
    }
    if duration is not None:
        figure, *between = _tenths(duration.duration_s, *(duration.duration_s_range or ()))
        text = figure_and_interval(figure, (between[0], between[1]) if between else None)
        found["duration"] = (duration.duration_s, text, _limit_of_time)
    if duration is not None and price is not None:
        cost, currency = duration.cost(price), price.currency
        text = money_and_interval(cost, duration.cost_range(price), currency)
        if not currency:
            text += " in the currency of --price"
        found["cost"] = (cost, text, lambda limit: money(limit, currency))
    return found


def _limit_of_time(limit_s: float) -> str:
    return hours(limit_s) if limit_s % HOUR_S == 0 else _tenths(limit_s)[0]


def _gib(size: int) -> str:
    return f"{gib(size)} GiB"


def _tenths(*durations_s: float) -> list[str]:
    """The hours with a digit more than `durations` has, so that a duration near its limit differs from it."""
    if max(durations_s) < 9.95 * HOUR_S:
        return durations(*durations_s)
    return [f"{duration_s / HOUR_S:,.1f} h" for duration_s in durations_s]
