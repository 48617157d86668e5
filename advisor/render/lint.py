"""The findings of lint, on a terminal and as JSON."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from ...estimators.json_form import SCHEMA_VERSION, from_attributes
from ...validate.lint import LintFinding, LintReport, Rule
from ...validate.lint.config_file import shown_name
from ..answer.lint_file import LintAnswer
from ..text.lines import WIDTH, blank, ended, padded, row, sentence
from ..text.units import printable

_SEVERITIES = {"error": "error", "warning": "warning", "advice": "advice"}
_STYLES = {"error": "bold red", "warning": "bold yellow", "advice": "bold cyan"}


@dataclass(frozen=True, kw_only=True)
class FindingFigures:
    """One finding at one place."""

    code: str
    severity: str
    title: str
    path: str
    """Key names joined by dots."""
    line: int
    column: int
    what: str
    why: str
    fix: str
    versions: str
    """Affected versions of DeepSpeed."""
    source: str
    can_fix: bool


@dataclass(frozen=True, kw_only=True)
class LintFigures:
    """A checked configuration; after --fix, the corrected one."""

    schema_version: int
    file: str
    framework: str
    """The framework that reads the file: hf or deepspeed."""
    framework_is_assumed: bool
    deepspeed: str
    facts: str
    """installed, or bundled if DeepSpeed is not installed."""
    errors: int
    warnings: int
    advice: int
    more: int
    """Number of findings that are not listed."""
    written: str | None
    copy: str | None
    findings: tuple[FindingFigures, ...]


def lint_figures(answer: LintAnswer) -> LintFigures:
    """Return the answer as data."""
    report = answer.report
    return from_attributes(
        LintFigures,
        report,
        schema_version=SCHEMA_VERSION,
        file=str(answer.path),
        deepspeed=report.facts.version,
        facts=report.facts.origin,
        errors=report.count("error"),
        warnings=report.count("warning"),
        advice=report.count("advice"),
        written=str(answer.path) if answer.copy else None,
        copy=str(answer.copy) if answer.copy else None,
        findings=tuple(map(finding_figures, report.findings)),
    )


def finding_figures(finding: LintFinding) -> FindingFigures:
    """Return one finding as data."""
    return from_attributes(FindingFigures, finding, path=".".join(finding.path), can_fix=bool(finding.edits))


def render_answer(answer: LintAnswer, console: Console) -> None:
    """Print the changes of `--fix`, then the findings."""
    name = shown_name(answer.path)
    if answer.copy is not None:
        render_diff(name, f"{name} (corrected)", answer.old_text, answer.text, console)
        copy = answer.copy.name
        sentence(console, f"Corrected {name}; the original is {copy}. Remaining findings:")
        blank(console)
    elif answer.correction_wanted:
        sentence(console, "Nothing can be corrected without changing the training.")
        blank(console)
    render_findings(name, answer.report, console, answer.basis)
    if answer.report.fixable:
        blank(console)
        sentence(console, f"{answer.report.fixable} fixable with --fix.")


def render_findings(name: str, report: LintReport, console: Console, basis: str | None = None) -> None:
    """Print a line with counts, then every finding: place, line of the file, problem, reason (once per rule), and fix.

    basis: the training for which memory and speed are predicted, if no other line states it.
    """
    counts = list(_counts(report))
    found = ", ".join(counts) if counts else "nothing found"
    style = "bold" if report.findings else "bold green"
    sentence(console, f"{printable(name)}: {found}.", style=style)
    reader = "the Trainer or accelerate" if report.framework == "hf" else "plain DeepSpeed"
    version: str = report.facts.version
    if report.facts.origin == "bundled":
        version = f"{version} (not installed here: built-in facts)"
    if report.framework_is_assumed:
        reader = f"{reader} (assumed: pass --framework)"
    sentence(console, f"DeepSpeed {version}, read by {reader}.", style="dim")
    if basis is not None:
        sentence(console, f"Predicted for {basis}.", style="dim")
    if report.batch.words:
        sentence(console, f"{report.batch.words}.", style="dim")
    explained: set[str] = set()
    for finding in report.findings:
        blank(console)
        _render(finding, report.document.text, console, why=finding.code not in explained)
        explained.add(finding.code)
    if report.more:
        blank(console)
        sentence(console, f"{report.more} more are not shown.")


def _counts(report: LintReport) -> Iterator[str]:
    errors, warnings, advice = report.count("error"), report.count("warning"), report.count("advice")
    if errors:
        yield "1 error" if errors == 1 else f"{errors} errors"
    if warnings:
        yield "1 warning" if warnings == 1 else f"{warnings} warnings"
    if advice:
        yield "1 piece of advice" if advice == 1 else f"{advice} pieces of advice"


def _render(finding: LintFinding, text: str, console: Console, *, why: bool) -> None:
    path = printable(".".join(finding.path))
    title = Text()
    title.append(f"{finding.code} {_SEVERITIES[finding.severity]}", style=_STYLES[finding.severity])
    place = f"line {finding.line}"
    title.append(f"  {place}  {path if len(path) <= 55 else path[:52] + '...'}", style="bold")
    sentence(console, title)
    for line in finding.excerpt(text, min(console.width, WIDTH) - 4):
        row(console, Text(f"   {line}", style="dim"))
    what = finding.what
    sentence(console, f"  {ended(printable(finding.sentence if what == finding.what else what))}", hang=2)
    reason, fix = finding.why, printable(finding.fix)
    if why:
        sentence(console, f"  {f'Why: {ended(reason)}'}", hang=2)
    if fix:
        sentence(console, f"  {f'Fix: {ended(fix)}'}", hang=2)


def render_diff(name: str, new_name: str, old: str, new: str, console: Console) -> None:
    """Print the changes from one text to the other."""
    for line in difflib.unified_diff(old.splitlines(), new.splitlines(), name, new_name, n=1, lineterm=""):
        style = "green" if line.startswith("+") else "red" if line.startswith("-") else "dim"
        row(console, Text(printable(f"   {line}"), style=style))


def render_rule(rule: Rule, console: Console) -> None:
    """Print one rule with its examples."""
    severity = _SEVERITIES[rule.severity]
    sentence(console, f"{rule.code} {severity}: {rule.title}", style=_STYLES[rule.severity])
    sentence(console, f"Why: {ended(rule.why)}")
    if rule.fix:
        sentence(console, f"Fix: {ended(rule.fix)}")
    read = f"DeepSpeed {rule.versions}; read in {rule.source}."
    sentence(console, read, style="dim")
    bad, good, given = rule.example
    options = "".join(f" --{name} {value}" for name, value in given.items())
    for title, example in (("Found in", bad), ("Not in", good)):
        place = f"{title} (with{options})" if options else title
        text = example if isinstance(example, str) else json.dumps(example)
        sentence(console, f"{place}: {printable(text)}")


def render_rules(rules: Sequence[Rule], console: Console) -> None:
    """Print one line per rule."""
    for rule in rules:
        severity = padded(_SEVERITIES[rule.severity], -8)
        sentence(console, f"{rule.code} {severity} {rule.title}", hang=15)
