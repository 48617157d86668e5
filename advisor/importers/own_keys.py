"""The places of lint findings in a tool's file, which holds the DeepSpeed configuration or what it is made from."""

from __future__ import annotations

from dataclasses import replace

import yaml

from ...validate.lint import LintFinding, LintReport
from .accelerate import CONFIG_OPTIONS, FIELDS
from .imported_run import ImportedRun
from .source import Source
from .tool_format import Format


def report_in_file(report: LintReport, form: Format, source: Source, run: ImportedRun) -> LintReport:
    """The report of a configuration without a file of its own, with each finding at the deepest of its keys that the
    tool's file has; its fix names a key that this file lacks. Its corrections are dropped, because they are edits of
    another text."""
    try:
        root = yaml.compose(source.text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return report
    findings = []
    for finding in report.findings:
        own = ("deepspeed", *finding.path)
        is_key = True
        if form.name == "accelerate":
            own, is_key = FIELDS.get(finding.path, ("deepspeed_config",)), finding.path in FIELDS
        elif run.accelerate_file:
            own, is_key = next(((name,) for name in CONFIG_OPTIONS if name in source.values), ()), False
        path, line, column, length = _place(root, own)
        fix = finding.fix if is_key and path == own else _with_key(finding, run)
        findings.append(replace(finding, path=path, line=line, column=column, length=length, fix=fix, edits=()))
    return replace(report, findings=tuple(findings), document=replace(report.document, text=source.text))


def _with_key(finding: LintFinding, run: ImportedRun) -> str:
    """The fix of a finding whose key is not in the tool's file, with the key and where to write it."""
    key = next(iter(finding.missing), finding.path)
    if not finding.fix or not key or run.deepspeed is None:
        return finding.fix
    where = run.deepspeed.name
    if run.is_from_fields and key in FIELDS:
        return f"{finding.fix} (for accelerate {'.'.join(FIELDS[key])})"
    if run.is_from_fields:  # of which accelerate has no field
        where = "a DeepSpeed configuration of its own"
    return f"in {where}, `{'.'.join(key)}`: {finding.fix}"


def _place(node: yaml.Node, path: tuple[str, ...]) -> tuple[tuple[str, ...], int, int, int]:
    """(path, line, column and length of the key) of the deepest key of a path; of the first line without any."""
    found: tuple[tuple[str, ...], int, int, int] = ((), 1, 1, 1)
    for depth, name in enumerate(path, 1):
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()
        pair = next(((key, value) for key, value in pairs if key.value == name), None)
        if pair is None:
            break
        key, node = pair
        mark = key.start_mark
        found = path[:depth], mark.line + 1, mark.column + 1, key.end_mark.index - mark.index
    return found
