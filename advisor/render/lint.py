"""What lint found, for people and for programs."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from typing import Any, TypedDict

from rich.console import Console
from rich.text import Text

from ...estimators.json_form import SCHEMA_VERSION
from ...validate.lint import LintFinding, LintReport, Rule
from ...validate.lint.config_file import shown_name
from ..question.lint_file import LintAnswer
from ..text.lines import blank, ended, printable, row, sentence

_STYLES = {"error": "bold red", "warning": "bold yellow", "advice": "bold cyan"}


def render_answer(answer: LintAnswer, console: Console) -> None:
    """What `--fix` changed, then a line that counts, then every finding: place, what, and, where its rule is named
    first, why; what to do."""
    name = shown_name(answer.path)
    if answer.copy is not None:
        render_diff(name, f"{name} (corrected)", answer.old_text, answer.text, console)
        sentence(console, f"Corrected {name}; the old one is {answer.copy.name}. What is left:")
        blank(console)
    elif answer.correction_wanted:
        sentence(console, "Nothing can be corrected without changing the training.")
        blank(console)
    render_findings(name, answer.report, console)


def render_findings(name: str, report: LintReport, console: Console) -> None:
    """A line that counts what was found in the file that is called so, then every finding."""
    sentence(console, Text(_summary(name, report), style="bold" if report.findings else "bold green"))
    sentence(console, _basis(report), style="dim")
    explained: set[str] = set()
    for finding in report.findings:
        blank(console)
        _render(finding, console, why=finding.code not in explained)
        explained.add(finding.code)
    if report.more:
        blank(console)
        sentence(console, f"{report.more} more are not shown.")


def render_diff(name: str, new_name: str, old: str, new: str, console: Console) -> None:
    """What changes from one text to the other."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), name, new_name, n=1, lineterm="")
    for line in lines:
        style = "green" if line.startswith("+") else "red" if line.startswith("-") else "dim"
        row(console, Text(printable(f"   {line}"), style=style))


def render_rule(rule: Rule, console: Console) -> None:
    """One rule with its examples."""
    sentence(console, f"{rule.code} {rule.severity}: {rule.title}", style=_STYLES[rule.severity])
    sentence(console, f"{_capital(rule.why)}.")
    if rule.fix:
        sentence(console, f"Fix: {rule.fix}.")
    sentence(console, f"DeepSpeed {rule.versions}; read in {rule.source}.", style="dim")
    options = "".join(f" --{name} {value}" for name, value in rule.options.items())
    for title, example in (("Found in", rule.bad), ("Not in", rule.good)):
        sentence(console, f"{title}{f' (with{options})' if options else ''}: {_compact(example)}")


def render_rules(rules: Sequence[Rule], console: Console) -> None:
    """A line for every rule."""
    for rule in rules:
        sentence(console, f"{rule.code} {rule.severity:<8} {rule.title}", hang=15)


class LintFindingJson(TypedDict):
    """What is wrong in one place."""

    code: str
    severity: str
    title: str
    path: str
    """Names joined by dots."""
    line: int
    column: int
    what: str
    why: str
    fix: str
    versions: str
    """Of DeepSpeed."""
    source: str
    can_fix: bool


class LintJson(TypedDict):
    """A configuration that was checked; after --fix, what is left."""

    schema_version: int
    file: str
    framework: str
    """hf or deepspeed: who reads the file."""
    framework_is_assumed: bool
    deepspeed: str
    facts: str
    """installed, or bundled where no DeepSpeed is."""
    errors: int
    warnings: int
    advice: int
    more: int
    """Findings that are not listed."""
    written: str | None
    copy: str | None
    findings: list[LintFindingJson]


def answer_json(answer: LintAnswer) -> LintJson:
    """One object, described in docs/json.md."""
    report = answer.report
    return {
        "schema_version": SCHEMA_VERSION,
        "file": str(answer.path),
        "framework": report.framework,
        "framework_is_assumed": report.framework_is_assumed,
        "deepspeed": report.facts.version,
        "facts": report.facts.origin,
        "errors": report.count("error"),
        "warnings": report.count("warning"),
        "advice": report.count("advice"),
        "more": report.more,
        "written": str(answer.path) if answer.copy else None,
        "copy": str(answer.copy) if answer.copy else None,
        "findings": [finding_json(finding) for finding in report.findings],
    }


def finding_json(finding: LintFinding) -> LintFindingJson:
    """One finding as an object."""
    return {
        "code": finding.code,
        "severity": finding.severity,
        "title": finding.title,
        "path": ".".join(finding.path),
        "line": finding.line,
        "column": finding.column,
        "what": finding.what,
        "why": finding.why,
        "fix": finding.fix,
        "versions": finding.versions,
        "source": finding.source,
        "can_fix": bool(finding.edits),
    }


def _render(finding: LintFinding, console: Console, *, why: bool) -> None:
    path = printable(".".join(finding.path))
    title = Text()
    title.append(f"{finding.code} {finding.severity}", style=_STYLES[finding.severity])
    title.append(f"  line {finding.line}  {path if len(path) <= 55 else path[:52] + '...'}", style="bold")
    sentence(console, title)
    what = printable(finding.what)
    names_key = bool(finding.path) and what.startswith(f"{finding.path[-1]} ")
    sentence(console, f"  {ended(what if names_key else _capital(what))}", hang=2)
    if why:
        sentence(console, f"  Why: {finding.why}.", hang=2)
    if finding.fix:
        sentence(console, f"  Fix: {ended(printable(finding.fix))}", hang=2)


def _summary(name: str, report: LintReport) -> str:
    counts = [(report.count("error"), "error"), (report.count("warning"), "warning")]
    parts = [f"{number} {word}{'s' if number != 1 else ''}" for number, word in counts if number]
    advice = report.count("advice")
    if advice:
        parts.append(f"{advice} piece{'s' if advice != 1 else ''} of advice")
    return f"{printable(name)}: {', '.join(parts) or 'nothing found'}."


def _basis(report: LintReport) -> str:
    reader = "the Trainer or accelerate" if report.framework == "hf" else "plain DeepSpeed"
    version = f"DeepSpeed {report.facts.version}" + (
        " (not installed here: facts that this program carries)" if report.facts.origin == "bundled" else ""
    )
    assumed = " (assumed: pass --framework)" if report.framework_is_assumed else ""
    return f"{version}, read by {reader}{assumed}."


def _compact(config: Any) -> str:
    return printable(config if isinstance(config, str) else json.dumps(config))


def _capital(text: str) -> str:
    """A sentence begins with a capital letter, a key keeps its own."""
    first = text.split(" ", 1)[0]
    return text if "_" in first or "." in first or not first.isalpha() else text[:1].upper() + text[1:]
