"""The findings of lint, on a terminal and as JSON."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from ...estimators.json_form import SCHEMA_VERSION, from_attributes
from ...estimators.phrase import Phrase, listed, named, phrase
from ...validate.lint import LintFinding, LintReport, Rule
from ...validate.lint.config_file import shown_name
from ..answer.lint_file import LintAnswer
from ..text.language import translate
from ..text.lines import WIDTH, blank, ended, padded, row, sentence
from ..text.units import printable

_SEVERITIES = {"error": phrase("error"), "warning": phrase("warning"), "advice": phrase("advice")}
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
        sentence(console, phrase("Corrected {file}; the original is {copy}. Remaining findings:", file=name, copy=copy))
        blank(console)
    elif answer.correction_wanted:
        sentence(console, phrase("Nothing can be corrected without changing the training."))
        blank(console)
    render_findings(name, answer.report, console, answer.basis)
    if answer.report.fixable:
        blank(console)
        sentence(console, phrase("{count} fixable with --fix.", count=answer.report.fixable))


def render_findings(name: str, report: LintReport, console: Console, basis: Phrase | None = None) -> None:
    """Print a line with counts, then every finding: place, line of the file, problem, reason (once per rule), and fix.

    basis: the training for which memory and speed are predicted, if no other line states it.
    """
    counts = list(_counts(report))
    found = listed(counts) if counts else phrase("nothing found")
    style = "bold" if report.findings else "bold green"
    sentence(console, phrase("{file}: {found}.", file=printable(name), found=found), style=style)
    reader = phrase("the Trainer or accelerate") if report.framework == "hf" else phrase("plain DeepSpeed")
    version: str = report.facts.version
    if report.facts.origin == "bundled":
        version = phrase("{version} (not installed here: built-in facts)", version=version)
    if report.framework_is_assumed:
        reader = phrase("{reader} (assumed: pass --framework)", reader=reader)
    sentence(console, phrase("DeepSpeed {version}, read by {reader}.", version=version, reader=reader), style="dim")
    if basis is not None:
        sentence(console, phrase("Predicted for {training}.", training=basis), style="dim")
    if report.batch.words:
        sentence(console, phrase("Predicted with {batch}.", batch=report.batch.words), style="dim")
    explained: set[str] = set()
    for finding in report.findings:
        blank(console)
        _render(finding, report.document.text, console, why=finding.code not in explained)
        explained.add(finding.code)
    if report.more:
        blank(console)
        sentence(console, phrase("{count} more are not shown.", count=report.more))


def _counts(report: LintReport) -> Iterator[Phrase]:
    errors, warnings, advice = report.count("error"), report.count("warning"), report.count("advice")
    if errors:
        yield phrase("1 error") if errors == 1 else phrase("{count} errors", count=errors)
    if warnings:
        yield phrase("1 warning") if warnings == 1 else phrase("{count} warnings", count=warnings)
    if advice:
        yield phrase("1 piece of advice") if advice == 1 else phrase("{count} pieces of advice", count=advice)


def _render(finding: LintFinding, text: str, console: Console, *, why: bool) -> None:
    path = printable(".".join(finding.path))
    title = Text()
    title.append(f"{finding.code} {translate(_SEVERITIES[finding.severity])}", style=_STYLES[finding.severity])
    place = phrase("line {number}", number=finding.line)
    title.append(f"  {translate(place)}  {path if len(path) <= 55 else path[:52] + '...'}", style="bold")
    sentence(console, title)
    for line in finding.excerpt(text, min(console.width, WIDTH) - 4):
        row(console, Text(f"   {line}", style="dim"))
    what = translate(named(finding.what))
    sentence(console, f"  {ended(printable(finding.sentence if what == finding.what else what))}", hang=2)
    reason, fix = translate(named(finding.why)), printable(translate(named(finding.fix)))
    if why:
        sentence(console, f"  {translate(phrase('Why: {reason}', reason=ended(reason)))}", hang=2)
    if fix:
        sentence(console, f"  {translate(phrase('Fix: {fix}', fix=ended(fix)))}", hang=2)


def render_diff(name: str, new_name: str, old: str, new: str, console: Console) -> None:
    """Print the changes from one text to the other."""
    for line in difflib.unified_diff(old.splitlines(), new.splitlines(), name, new_name, n=1, lineterm=""):
        style = "green" if line.startswith("+") else "red" if line.startswith("-") else "dim"
        row(console, Text(printable(f"   {line}"), style=style))


def render_rule(rule: Rule, console: Console) -> None:
    """Print one rule with its examples."""
    severity = translate(_SEVERITIES[rule.severity])
    sentence(console, f"{rule.code} {severity}: {translate(named(rule.title))}", style=_STYLES[rule.severity])
    sentence(console, phrase("Why: {reason}", reason=ended(translate(named(rule.why)))))
    if rule.fix:
        sentence(console, phrase("Fix: {fix}", fix=ended(translate(named(rule.fix)))))
    read = phrase("DeepSpeed {versions}; read in {source}.", versions=rule.versions, source=rule.source)
    sentence(console, read, style="dim")
    bad, good, given = rule.example
    options = "".join(f" --{name} {value}" for name, value in given.items())
    for title, example in ((phrase("Found in"), bad), (phrase("Not in"), good)):
        place = phrase("{title} (with{options})", title=title, options=options) if options else title
        text = example if isinstance(example, str) else json.dumps(example)
        sentence(console, f"{translate(place)}: {printable(text)}")


def render_rules(rules: Sequence[Rule], console: Console) -> None:
    """Print one line per rule."""
    for rule in rules:
        severity = padded(translate(_SEVERITIES[rule.severity]), -8)
        sentence(console, f"{rule.code} {severity} {translate(named(rule.title))}", hang=15)
