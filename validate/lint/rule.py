"""What a rule is: its code and words, the check, and two examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict, Unpack

from .facts import DeepSpeedFacts
from .linted_config import LintedConfig, number_in

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
    """A place where a rule applies."""

    path: Path
    """Of the key; a missing key has the path where it would stand, and the line of its block is shown."""
    what: str
    """What happens, a sentence with the values of this configuration."""
    fix: str = ""
    """What to do, where it depends on them."""
    severity: Severity | None = None
    """Where it is another than the rule's."""
    edits: tuple[Edit, ...] = ()
    """What `--fix` does: only what cannot change the training."""


def hit(path: str, what: str, *, fix: str = "", severity: Severity | None = None, edits: tuple[Edit, ...] = ()) -> Hit:
    """A hit at a path written with dots."""
    return Hit(path=tuple(path.split(".")) if path else (), what=what, fix=fix, severity=severity, edits=edits)


def unquoted(path: str, value: Any) -> tuple[Edit, ...]:
    """The edit that writes a number in the place of the text of one; none for any other value."""
    number = number_in(value)
    return () if number is None else (Replace(tuple(path.split(".")), number),)


RuleCheck = Callable[[LintedConfig], Iterator[Hit]]


class RuleWords(TypedDict):
    """What a rule says besides its code and title: the fields of `Rule` of these names."""

    why: str
    source: str
    bad: Mapping[str, Any] | str
    good: Mapping[str, Any] | str
    fix: NotRequired[str]
    since: NotRequired[str]
    until: NotRequired[str]
    options: NotRequired[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A check with its words."""

    code: str
    severity: Severity
    title: str
    check: RuleCheck
    why: str
    """Why it matters."""
    source: str
    """The file of DeepSpeed (or transformers, accelerate) in which the claim was read."""
    bad: Mapping[str, Any] | str
    """A configuration that the rule finds, as a dict or as the text of a file."""
    good: Mapping[str, Any] | str
    """One that it does not."""
    fix: str = ""
    """What to do, where it is the same for every hit."""
    since: str = "0.18"
    until: str = ""
    """The first DeepSpeed version for which it no longer holds."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The command's options with which the examples are read."""

    @property
    def versions(self) -> str:
        return f"{self.since} to {self.until}" if self.until else f"{self.since} and later"

    def holds_for(self, facts: DeepSpeedFacts) -> bool:
        """Whether it speaks of this version."""
        return facts.at_least(self.since) and not (self.until and facts.at_least(self.until))


Registration = Callable[[RuleCheck], RuleCheck]


class Rules:
    """The rules of one subject, in the order in which they are written.

    `error`, `warning` and `advice` are decorators that make a rule of a check: the code and the title are one string,
    the other words are the fields of `Rule` of the same names.
    """

    def __init__(self) -> None:
        self.rules: list[Rule] = []

    def error(self, title: str, **words: Unpack[RuleWords]) -> Registration:
        return self._register("error", title, words)

    def warning(self, title: str, **words: Unpack[RuleWords]) -> Registration:
        return self._register("warning", title, words)

    def advice(self, title: str, **words: Unpack[RuleWords]) -> Registration:
        return self._register("advice", title, words)

    def _register(self, severity: Severity, title: str, words: RuleWords) -> Registration:
        code, _, title = title.partition(" ")

        def registered(check: RuleCheck) -> RuleCheck:
            self.rules.append(Rule(code=code, severity=severity, title=title, check=check, **words))
            return check

        return registered
