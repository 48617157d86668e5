"""What a rule is: its code and words, the check, and two examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from .linted_config import LintedConfig

Severity = Literal["error", "warning", "advice"]
Path = tuple[str, ...]


class Remove(NamedTuple):
    """Take a key out."""

    path: Path


class Rename(NamedTuple):
    """Give a key another name, in its place."""

    path: Path
    name: str


class Replace(NamedTuple):
    """Give a key another value."""

    path: Path
    value: Any


Edit = Remove | Rename | Replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A place where a rule applies.

    path: of the key; a key that is missing is named by the path where it would stand, its block's line is shown.
    what: what happens, a sentence with the values of this configuration. fix: what to do, if it depends on them.
    severity: where it is another than the rule's. edits: what `--fix` does; only what cannot change the training.
    """

    path: Path
    what: str
    fix: str = ""
    severity: Severity | None = None
    edits: tuple[Edit, ...] = ()


def hit(path: str, what: str, *, fix: str = "", severity: Severity | None = None, edits: tuple[Edit, ...] = ()) -> Hit:
    """A hit at a path written with dots."""
    return Hit(path=tuple(path.split(".")) if path else (), what=what, fix=fix, severity=severity, edits=edits)


RuleCheck = Callable[[LintedConfig], Iterator[Hit]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A configuration, as a dict or as the text of a file, and what is said besides it on the command line."""

    config: Mapping[str, Any] | str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule.

    why:    why it matters. fix: what to do, where it is the same for every hit.
    source: the file of DeepSpeed (or transformers, accelerate) in which the claim was read.
    versions: the DeepSpeed versions it holds for; `applies` says whether it does for one.
    bad, good: an example that it finds, and one that it does not.
    """

    code: str
    severity: Severity
    title: str
    why: str
    fix: str
    source: str
    since: str
    until: str
    bad: Example
    good: Example
    check: RuleCheck

    @property
    def versions(self) -> str:
        return f"{self.since} to {self.until}" if self.until else f"{self.since} and later"

    def applies(self, config: LintedConfig) -> bool:
        facts = config.facts
        return facts.at_least(self.since) and not (self.until and facts.at_least(self.until))


class Rules:
    """The rules of one config, in the order in which they are written."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []

    def rule(
        self,
        code: str,
        severity: Severity,
        title: str,
        *,
        why: str,
        source: str,
        bad: Mapping[str, Any] | str,
        good: Mapping[str, Any] | str,
        fix: str = "",
        since: str = "0.18",
        until: str = "",
        options: Mapping[str, Any] | None = None,
    ) -> Callable[[RuleCheck], RuleCheck]:
        """Register a check. `until` is the first version for which it no longer holds."""

        def registered(check: RuleCheck) -> RuleCheck:
            shared = dict(options or {})
            self.rules.append(
                Rule(
                    code=code,
                    severity=severity,
                    title=title,
                    why=why,
                    fix=fix,
                    source=source,
                    since=since,
                    until=until,
                    bad=Example(config=bad, options=shared),
                    good=Example(config=good, options=shared),
                    check=check,
                )
            )
            return check

        return registered
