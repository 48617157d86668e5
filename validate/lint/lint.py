"""A configuration judged: every rule that holds for the DeepSpeed version, in the order of the file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...estimators.hardware.cluster import Cluster
from ...estimators.models.model_shape import ModelShape
from ...estimators.workload import Framework, Workload
from .config_file import Edit
from .document import Document, DocumentNode
from .facts import DeepSpeedFacts
from .linted_config import LintedConfig
from .rule import Path, Rule, Severity, Violation
from .rules import RULES
from .rules.batch import is_for_the_trainer

MOST_FINDINGS = 200
"""Nobody reads more of a file that is no configuration at all."""

_ORDER: dict[Severity, int] = {"error": 0, "warning": 1, "advice": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class LintFinding:
    """One thing that is wrong, with its rule's words."""

    code: str
    severity: Severity
    title: str
    path: Path
    line: int
    """From 1, as `column`: of the key, or of its block where the key is missing."""
    column: int
    what: str
    why: str
    fix: str
    versions: str
    source: str
    edits: tuple[Edit, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LintReport:
    """What lint found in one configuration."""

    findings: tuple[LintFinding, ...]
    """Errors first, each severity in the order of the file."""
    more: int
    """How many findings there are beyond `MOST_FINDINGS`."""
    facts: DeepSpeedFacts
    framework: Framework
    framework_is_assumed: bool

    def count(self, severity: Severity) -> int:
        return sum(finding.severity == severity for finding in self.findings)

    @property
    def edits(self) -> tuple[Edit, ...]:
        return tuple(edit for finding in self.findings for edit in finding.edits)


def lint(
    document: Document,
    *,
    facts: DeepSpeedFacts,
    framework: Framework | None = None,
    cluster: Cluster | None = None,
    model: ModelShape | None = None,
    workload: Workload | None = None,
) -> LintReport:
    """Judge a configuration.

    framework: None for whoever must be meant: the Trainer or accelerate where an `auto` stands that only they fill,
               else plain DeepSpeed.
    cluster:   batch sizes are checked against its ranks, precision against its GPUs; with a model, memory and speed.
    """
    assumed = framework is None
    chosen: Framework = framework or ("hf" if is_for_the_trainer(document.root.value, facts) else "deepspeed")
    config = LintedConfig(
        document=document,
        values=_first_tuned(_as_read(document.root, chosen)),
        facts=facts,
        framework=chosen,
        cluster=cluster,
        model=model,
        workload=workload,
    )
    found = [
        _finding(document, rule, each)
        for rule in RULES
        if rule.holds_for(config.facts)
        for each in _violations(rule, config)
    ]
    found.sort(key=lambda finding: (_ORDER[finding.severity], finding.line, finding.column, finding.code))
    return LintReport(
        findings=tuple(found[:MOST_FINDINGS]),
        more=max(0, len(found) - MOST_FINDINGS),
        facts=facts,
        framework=chosen,
        framework_is_assumed=assumed,
    )


def _violations(rule: Rule, config: LintedConfig) -> Iterator[Violation]:
    """At most as many as are shown, and one more."""
    for index, each in enumerate(rule.check(config)):
        if index > MOST_FINDINGS:
            return
        yield each


def _finding(document: Document, rule: Rule, found: Violation) -> LintFinding:
    line, column = document.place(_offset(document, found.path))
    return LintFinding(
        code=rule.code,
        severity=found.severity or rule.severity,
        title=rule.title,
        path=found.path,
        line=line,
        column=column,
        what=found.what,
        why=rule.why,
        fix=found.fix or rule.fix,
        versions=rule.versions,
        source=rule.source,
        edits=found.edits,
    )


def _offset(document: Document, path: Path) -> int:
    """Where a key stands, or the innermost of its blocks that is there."""
    offset, node = document.root.start, document.root
    for name in path:
        member = node.member(name)
        if member is None:
            break
        offset, node = member.start, member.node
    return offset


def _as_read(node: DocumentNode, framework: Framework) -> Any:
    """What the reader of the file makes of a value: hjson turns whole floats below 1e10 into integers."""
    if node.members:
        return {member.key: _as_read(member.node, framework) for member in node.members}
    if node.items:
        return [_as_read(item, framework) for item in node.items]
    value = node.value
    if framework == "deepspeed" and isinstance(value, float) and abs(value) < 1e10 and value == int(value):
        return int(value)
    return value


def _first_tuned(values: Any) -> Any:
    """With `autotuning` on, a list in zero_optimization is a choice, of which the autotuner tries every member
    (DeepSpeed 0.19.8, autotuning/utils.py get_all_configs); the first of each is judged."""
    tuned, zero = (values.get("autotuning"), values.get("zero_optimization")) if isinstance(values, dict) else ({}, {})
    if not (isinstance(tuned, dict) and tuned.get("enabled") is True and isinstance(zero, dict)):
        return values
    first = {name: value[0] if isinstance(value, list) and value else value for name, value in zero.items()}
    return {**values, "zero_optimization": first}
