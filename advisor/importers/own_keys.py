"""The places of lint findings in a tool's file, which holds the DeepSpeed configuration or what it is made from."""

from __future__ import annotations

from dataclasses import replace

import yaml

from ...validate.lint import LintReport
from .accelerate import FIELDS
from .source import Source
from .tool_format import Format


def report_in_file(report: LintReport, form: Format, source: Source) -> LintReport:
    """The report of a configuration without a file of its own, with each finding at the deepest of its keys that the
    tool's file has. Its corrections are dropped, because they are edits of another text."""
    try:
        root = yaml.compose(source.text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return report
    findings = []
    for finding in report.findings:
        keys = finding.path
        own = FIELDS.get(keys, ("deepspeed_config",)) if form.name == "accelerate" else ("deepspeed", *keys)
        path, line, column, length = _place(root, own)
        findings.append(replace(finding, path=path, line=line, column=column, length=length, edits=()))
    return replace(report, findings=tuple(findings), document=replace(report.document, text=source.text))


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
