"""The text of a file (DS00x)."""

from __future__ import annotations

from collections.abc import Iterator

from .config_file import CorrectSyntax, WritePlainJson
from .document import BYTE_ORDER_MARK, COMMA, COMMENT, CURLY, NON_FINITE, KeyPath
from .linted_config import LintedConfig
from .rule import LONGEST_NAME, Severity, Violation, error_rule, section
from .values import find_problem


def _more_than_json(config: LintedConfig) -> Iterator[Violation]:
    """One violation of the whole file. While plain DeepSpeed is assumed it is advice; a missing comma, which nobody
    leaves out by choice, is a warning."""
    found_in_text = (found for found in config.document.extensions if not found.mistake)
    extensions = [found for found in found_in_text if found.kind not in NON_FINITE]
    by_trainer = config.framework == "hf"
    if not extensions or not (by_trainer or config.framework_is_assumed):
        return
    is_mistake = not by_trainer and any(found.kind == COMMA for found in extensions)
    first = next((found for found in extensions if is_mistake and found.kind == COMMA), extensions[0])
    kinds = [*dict.fromkeys(found.kind for found in extensions)]
    edits: tuple[WritePlainJson, ...] = (WritePlainJson(),)
    fix = "write plain JSON"
    if kinds == [BYTE_ORDER_MARK]:
        fix = "save it as UTF-8 without a byte order mark"
    elif COMMENT in kinds and by_trainer:
        fix = REMOVES_COMMENTS
    elif COMMENT in kinds:
        edits, fix = (), KEEPS_COMMENTS
    yield Violation(
        path=(),
        what=f"the file is not plain JSON: it has {' and '.join(kinds)}",
        why="" if by_trainer else "DeepSpeed reads it, but the Trainer and accelerate, which use Python's json, do not",
        fix=fix,
        severity=None if by_trainer else "warning" if is_mistake else "advice",
        edits=edits,
        span=(first.start, first.end),
    )


REMOVES_COMMENTS = "write plain JSON; --fix also removes the comments, which stay in the copy of the file"
KEEPS_COMMENTS = "for the Trainer or accelerate pass --framework hf --fix, which removes the comments"
"""What to do about comments for the Trainer and accelerate, and while plain DeepSpeed, which reads them, is assumed."""


def _mistakes(config: LintedConfig) -> Iterator[Violation]:
    """Hjson may read a text with a mistake, so only the Trainer, or DeepSpeed if hjson or the class of a block does not
    take it, rejects the file. Curly quotes, which nobody writes by choice, are one violation of the whole file."""
    document, by_trainer = config.document, config.framework == "hf"
    is_rejected = by_trainer or not document.is_hjson or _class_rejects(config)
    if curly := [found for found in document.mistakes if found.kind == CURLY]:
        paths = dict.fromkeys(document.key_before(found.start) for found in curly)
        yield Violation(
            path=next(iter(paths)),
            what=curly[0].mistake + f" (the first of {len(curly)} names and texts)" * (len(curly) > 1),
            why=f"{_CURLY}; {_PYTHONS_JSON}",
            fix='write " in place of the curly quotes',
            edits=tuple(map(CorrectSyntax, paths)),
            span=(curly[0].start, curly[0].end),
        )
    for found in (each for each in document.mistakes if each.kind != CURLY):
        path = document.key_before(found.start)
        yield Violation(
            path=path,
            what=found.mistake,
            why=_PYTHONS_JSON if by_trainer else _UP_TO_THE_END,
            fix=found.fix,
            edits=(CorrectSyntax(path),) if is_rejected else (),
            span=(found.start, max(found.end, found.start + 1)),
        )


def _class_rejects(config: LintedConfig) -> bool:
    """Whether DeepSpeed's class of a block rejects a text with a mistake, which hjson reads up to the end of the line,
    with all later keys of that line."""
    document, first = config.document, dict[int, KeyPath]()  # line -> the key of its first mistake
    for found in sorted(document.mistakes, key=lambda each: each.start):
        first.setdefault(document.place(found.start)[0], document.key_before(found.start))
    for path in first.values():
        field, member = config.facts.find_field(".".join(path)), document.member(path)
        if field is None or member is None:
            continue
        text = document.text[member.value_start :].partition("\n")[0].strip()
        if not text.startswith(("[", "{")) and find_problem(field.type, text):
            return True
    return False


_PYTHONS_JSON = "the Trainer and accelerate read the file with Python's json, which raises an error"
_CURLY = (
    "a word processor or a web page writes them, such as when a configuration is copied from it; hjson, with which "
    "DeepSpeed reads the file, takes them as part of the name, so that the key is another one"
)
_UP_TO_THE_END = (
    "DeepSpeed reads Hjson: a value without quotes that is no JSON is text up to the end of the line, with its commas "
    "and brackets"
)


def _duplicates(config: LintedConfig) -> Iterator[Violation]:
    for first, member in config.document.duplicates():
        line, _ = config.document.place(first.start)
        what = f"{member.path[-1][:LONGEST_NAME]!r} is repeated here; it is first on line {line}"
        by_trainer = config.framework == "hf"
        severity: Severity | None = "warning" if by_trainer else None
        why = _TAKE_THE_LAST if by_trainer else _REJECTS_REPEATED
        yield Violation(path=member.path, what=what, why=why, severity=severity, span=(member.start, member.end))


_REJECTS_REPEATED = "DeepSpeed rejects the file"
_TAKE_THE_LAST = "the Trainer and accelerate use the last value, without a message"


MORE_THAN_JSON = "DS001"
"""Code of the rule on comments, which `--fix` keeps while plain DeepSpeed is assumed."""

FILE_RULES = section(
    "The file",
    error_rule(
        f"{MORE_THAN_JSON} a JSON file with comments or other extensions",
        _more_than_json,
        why="DeepSpeed reads Hjson, but the Trainer and accelerate read the file with Python's json, which raises an "
        "error",
        source="accelerate/utils/deepspeed.py HfDeepSpeedConfig",
    ),
    error_rule(
        "DS004 a repeated key",
        _duplicates,
        why=f"{_REJECTS_REPEATED}; {_TAKE_THE_LAST}",
        fix="remove one of them",
        source="runtime/config_utils.py dict_raise_error_on_duplicate_keys",
    ),
    error_rule(
        "DS006 a mistake in the syntax",
        _mistakes,
        why=f"{_UP_TO_THE_END}; {_PYTHONS_JSON}",
        source="hjson/decoder.py scantfnns; accelerate/utils/deepspeed.py HfDeepSpeedConfig",
    ),
)
