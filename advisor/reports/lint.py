"""What lint found, for people and for programs."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from ...validate.lint import LintFinding, LintReport, Rule
from ..terminal.lines import blank, row, sentence

_STYLES = {"error": "bold red", "warning": "bold yellow", "advice": "bold cyan"}


def render_report(name: str, report: LintReport, console: Console) -> None:
    """A line that counts, then every finding: place, what, and, where its rule is named first, why; what to do."""
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


def render_diff(name: str, old: str, new: str, console: Console) -> None:
    """The lines that `--fix` changes."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), name, f"{name} (corrected)", n=1, lineterm="")
    for line in lines:
        style = "green" if line.startswith("+") else "red" if line.startswith("-") else "dim"
        row(
            console,
            Text(
                "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in f"   {line}"),
                style=style,
            ),
        )


def render_rule(rule: Rule, console: Console) -> None:
    """One rule with its examples."""
    row(console, Text(f" {rule.code} {rule.severity}: {rule.title}", style=_STYLES[rule.severity]))
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
        row(console, Text(f" {rule.code} {rule.severity:<8} {rule.title}"))


def report_json(name: str, report: LintReport, *, written: str | None, copy: str | None) -> dict[str, Any]:
    """One object, described in docs/json.md."""
    return {
        "schema_version": 1,
        "file": name,
        "framework": report.framework,
        "framework_is_assumed": report.framework_is_assumed,
        "deepspeed": report.facts.version,
        "facts": report.facts.origin,
        "errors": report.count("error"),
        "warnings": report.count("warning"),
        "advice": report.count("advice"),
        "more": report.more,
        "written": written,
        "copy": copy,
        "findings": [
            {
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
            for finding in report.findings
        ],
    }


def _render(finding: LintFinding, console: Console, *, why: bool) -> None:
    path = _printable(".".join(finding.path))
    title = Text(" ")
    title.append(f"{finding.code} {finding.severity}", style=_STYLES[finding.severity])
    title.append(f"  line {finding.line}  {path if len(path) <= 55 else path[:52] + '...'}", style="bold")
    row(console, title)
    what = _capital(_printable(finding.what))
    sentence(console, f"  {what}{'' if what.endswith('?') else '.'}", hang=2)
    if why:
        sentence(console, f"  Why: {finding.why}.", hang=2)
    if finding.fix:
        sentence(console, f"  Fix: {_printable(finding.fix)}.", hang=2)


def _summary(name: str, report: LintReport) -> str:
    counts = [(report.count("error"), "error"), (report.count("warning"), "warning")]
    parts = [f"{number} {word}{'s' if number != 1 else ''}" for number, word in counts if number]
    advice = report.count("advice")
    if advice:
        parts.append(f"{advice} piece{'s' if advice != 1 else ''} of advice")
    return f"{_printable(name)}: {', '.join(parts) or 'nothing found'}."


def _basis(report: LintReport) -> str:
    reader = "the Trainer or accelerate" if report.framework == "hf" else "plain DeepSpeed"
    version = f"DeepSpeed {report.facts.version}" + (
        " (not installed here: facts that this program carries)" if report.facts.origin == "bundled" else ""
    )
    assumed = " (assumed: pass --framework)" if report.framework_is_assumed else ""
    return f"{version}, read by {reader}{assumed}."


def _compact(config: Any) -> str:
    import json

    return _printable(config if isinstance(config, str) else json.dumps(config))


def _capital(text: str) -> str:
    """A sentence begins with a capital letter, a key keeps its own."""
    first = text.split(" ", 1)[0]
    return text if "_" in first or "." in first or not first.isalpha() else text[:1].upper() + text[1:]


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
