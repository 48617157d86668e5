"""A lint rule: its texts, its check, and the violations that the check yields."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from .config_file import Edit
from .document import KeyPath
from .facts import DeepSpeedFacts
from .linted_config import LintedConfig

Severity = Literal["error", "warning", "advice"]

LONGEST_NAME = 60
"""Characters of a key's name that a finding prints."""

STAGE_12, STAGE_3 = "runtime/zero/stage_1_and_2.py", "runtime/zero/stage3.py"
"""Sources of rules: the engine's files of the ZeRO stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A place at which a rule is violated."""

    path: KeyPath
    """The path of the key; a missing key is reported at the line of its block."""
    what: str
    """The effect, as a sentence with the values of this configuration."""
    why: str = ""
    """The part of the rule's `why` that holds for this file, if the rule has several cases; else ""."""
    fix: str = ""
    """The fix if it depends on the values; else ""."""
    severity: Severity | None = None
    """The severity if it differs from the rule's."""
    edits: tuple[Edit, ...] = ()
    """Edits of `--fix` if the fix is not `REMOVAL`; only edits that cannot change the training."""
    span: tuple[int, int] | None = None
    """The span in the text for a place that is not a key."""
    meant: KeyPath = ()
    """The path of the key to which the fix renames an unknown one."""
    missing: tuple[KeyPath, ...] = ()
    """The paths of the missing keys of which any mends it."""
    judged: str = ""
    """The block that the other findings and the lint's figures are about in place of this one; "" for none."""


REMOVAL = ("remove it", "remove the key", "remove the block")
"""Fixes that remove the key of the violation; `--fix` applies them. Rules that leave a choice use other words."""


def violation(path: str, what: str, **options: Any) -> Violation:
    """A violation at a dotted path. options: the other fields of `Violation`."""
    return Violation(path=tuple(path.split(".")), what=what, **options)


RuleCheck = Callable[[LintedConfig], Iterator[Violation]]


class RuleExample(NamedTuple):
    """Two configurations, each as a dict or as the text of a file, and the command's options for them."""

    bad: Mapping[str, Any] | str
    """Violates the rule."""
    good: Mapping[str, Any] | str
    """Satisfies the rule."""
    options: Mapping[str, Any] = MappingProxyType({})


@cache
def _examples() -> dict[str, dict[str, Any]]:
    """Rule code -> fields of its `RuleExample`; every rule has one."""
    found: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("rule_examples.json").read_text("utf-8"))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A check with its texts."""

    code: str
    severity: Severity
    title: str
    checks: tuple[RuleCheck, ...]
    why: str
    """Why the violation matters."""
    source: str
    """The file of DeepSpeed (or transformers, accelerate) that the rule follows."""
    fix: str = ""
    """The fix if it is the same for every violation."""
    since: str = "0.18"
    until: str = ""
    """The first DeepSpeed version to which the rule no longer applies."""
    subject: str = ""
    """Heading of the rule's table in the manual."""

    @property
    def example(self) -> RuleExample:
        return RuleExample(**_examples()[self.code])

    @property
    def versions(self) -> str:
        if self.until:
            return f"{self.since} to {self.until}"
        return f"{self.since} and later"

    def holds_for(self, facts: DeepSpeedFacts) -> bool:
        """Whether the rule applies to this version."""
        return facts.at_least(self.since) and not (self.until and facts.at_least(self.until))

    def check(self, config: LintedConfig) -> Iterator[Violation]:
        return chain.from_iterable(check(config) for check in self.checks)


def _rule(severity: Severity, code_and_title: str, *checks: RuleCheck, **words: str) -> Rule:
    code, _, title = code_and_title.partition(" ")
    return Rule(code=code, severity=severity, title=title, checks=checks, **words)


error_rule = partial(_rule, "error")
"""A rule from its code and title, its checks, and the other texts of `Rule`. `warning_rule` and `advice_rule` are the
same for the other severities."""
warning_rule, advice_rule = partial(_rule, "warning"), partial(_rule, "advice")


def section(subject: str, *rules: Rule) -> tuple[Rule, ...]:
    return tuple(replace(rule, subject=subject) for rule in rules)
