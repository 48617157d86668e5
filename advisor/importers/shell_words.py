"""Shell reader: a script's commands as words. Nothing is executed.

Values that are known only at run time (a command's output, arguments of the script, variables that are set elsewhere or
under a condition) stay in the words unexpanded. Not covered: `eval`, functions' arguments, patterns, here-documents
(skipped, except that of `read`), arithmetic with more than two numbers.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

_NAME = r"[A-Za-z_]\w*"
_OUTPUT = r"""\$\((?:[^()'"]|'[^']*'|"[^"]*"|\((?:[^()'"]|'[^']*'|"[^"]*"|\([^()]*\))*+\))*+\)|`[^`]*`"""
"""The output of a command. Brackets may be nested at most three deep."""

_EXPANSION = rf"""(?P<escape>\\.)
    |\$\(\((?P<sum>[^()\n]{{0,200}})\)\)
    |(?P<output>{_OUTPUT})
    |\$(?:(?P<name>{_NAME})|\{{(?P<braced>{_NAME})(?P<all>\[[@*]\])?(?::?-(?P<default>[^}}]{{0,2000}}))?\}})"""
_IN_QUOTES = re.compile(_EXPANSION, re.VERBOSE | re.DOTALL)
_OUTSIDE = re.compile(rf"""'(?P<single>[^']*)'|"(?P<double>(?:\\.|{_OUTPUT}|[^"\\])*+)"|{_EXPANSION}""", re.X | re.S)

_WORD = (
    rf"""(?:\\.|'[^']*'|"(?:\\.|{_OUTPUT}|[^"\\])*+"|\$\(\([^()\n]{{0,200}}\)\)|{_OUTPUT}"""
    r"""|\$\{[^}\n]{0,2000}\}|[^\s;&|()<>'"`\\])++"""
)
_TOKEN = re.compile(
    rf"""(?P<blank>[ \t\r]+|\\\n|\#[^\n]*)
    |<<-?\s*(?P<quote>['"]?)(?P<heredoc>\w+)(?P=quote)
    |(?P<redirection>\d*[<>]+[&|]?[ \t]*(?:{_WORD})?)
    |(?P<array>{_NAME}\+?=\()
    |(?P<operator>&&|\|\||[;&|()\n])
    |(?P<word>{_WORD})
    |.""",
    re.VERBOSE | re.DOTALL,
)
_ASSIGNMENT = re.compile(rf"({_NAME})(\+?)=(.*)", re.DOTALL)
_ARITHMETIC = re.compile(r"\s*(\d{1,9})\s*([-+*/])\s*(\d{1,9})\s*")
_OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}
_OPENING = {"if", "case", "while", "until", "for", "select", "function"}
_CLOSING = {"fi", "esac", "done"}
_KEYWORDS = {"then", "else", "elif", "do", "!", "time", "{", "}", *_OPENING, *_CLOSING}
_TESTS = ("[", "[[", "test")
_DECLARING = {"export", "declare", "local", "readonly", "typeset"}
_SHELLS = {"bash", "sh", "zsh", "dash"}
_COMMAND_OPTION = re.compile(r"-[a-z]*c")
_DEEPEST = 8
"""Maximum depth of nested shells."""
_LONGEST_VALUE = 20_000
"""Maximum number of characters of a value. A variable that contains itself several times doubles at each assignment."""

_SPLIT = "\0"
"""Mark between the words of an expanded word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    words: tuple[str, ...]
    environment: Mapping[str, str]
    """The known variables, and those that are set in front of the command."""


def read_shell(text: str, known: Mapping[str, str] | None = None) -> list[Command]:
    """The commands of a script in order. known: values of variables from elsewhere, such as Slurm's."""
    return _Reader(text, known or {}).commands()


class _Reader:
    def __init__(self, text: str, known: Mapping[str, str], shells: int = 0) -> None:
        self.text = text
        self.shells = shells
        self.values = {name: [value] for name, value in known.items()}
        """The items of each variable; a variable that is no array has one."""
        self.found: list[Command] = []
        self.depth = 0
        """Nesting depth of open conditions and loops."""
        self.after_test = False

    def commands(self) -> list[Command]:
        written: list[str] = []  # the words of the current command, not expanded
        array: tuple[str, bool, list[str]] | None = None  # (name, whether it is extended, items) of an open array
        at = 0
        while token := _TOKEN.match(self.text, at):
            at = token.end()
            if token["heredoc"]:
                end = re.compile(rf"^\s*{token['heredoc']}\s*$", re.MULTILINE).search(self.text, at)
                if written[:1] == ["read"] and end is not None:
                    self._assign(written[-1], [self.text[self.text.find("\n", at) + 1 : end.start()]])
                at = len(self.text) if end is None else end.end()
            elif token["array"]:
                array = token["array"].rstrip("+=("), "+" in token["array"], []
            elif array is not None and token["operator"] == ")":
                name, extends, items = array
                array = None
                self._assign(name, [*(self.values.get(name, []) if extends else []), *items])
            elif array is not None and token["word"]:
                array[2].extend(self._expanded(token["word"]))
            elif token["word"]:
                written.append(token["word"])
            elif array is None and token["operator"]:
                self._finish_command(written, token["operator"])
                written = []
        self._finish_command(written, "\n")
        return self.found

    def _expanded(self, word: str) -> list[str]:
        """The words that the shell makes of a written one: variables are expanded, and outside quotes split."""
        words = self._substituted(word, _OUTSIDE)[:_LONGEST_VALUE].split(_SPLIT)
        return words if "'" in word or '"' in word else [each for each in words if each]

    def _substituted(self, text: str, pattern: re.Pattern[str]) -> str:
        in_quotes = pattern is _IN_QUOTES

        def replaced(match: re.Match[str]) -> str:
            groups = match.groupdict()
            if (literal := groups.get("single")) is not None:
                return str(literal)
            if (quoted := groups.get("double")) is not None:
                return self._substituted(quoted, _IN_QUOTES)
            if match["escape"]:
                char = match["escape"][1]
                kept = in_quotes and char not in '"\\$`\n'
                return match["escape"] if kept else char.replace("\n", "")
            if match["output"]:
                return "$(...)"
            if match["sum"] is not None:
                return self._sum(match["sum"]) or match[0]
            items, default = self.values.get(match["name"] or match["braced"]), match["default"]
            if items is None and default is not None and "$" not in default:
                items = [default.strip("\"'")]
            if items is None:
                return match[0]
            shown = items if match["all"] else items[:1]
            return _SPLIT.join(shown if in_quotes else (re.sub(r"\s+", _SPLIT, item) for item in shown))

        return pattern.sub(replaced, text)

    def _sum(self, inner: str) -> str | None:
        """The value of two integers or variables with + - * /; None for any other expression."""
        known = re.sub(rf"\$?\{{?({_NAME})\}}?", lambda match: self.values.get(match[1], ["?"])[0], inner)
        match = _ARITHMETIC.fullmatch(known)
        if match is None or (match[2] == "/" and not int(match[3])):
            return None
        return str(_OPERATORS[match[2]](int(match[1]), int(match[3])))

    def _finish_command(self, words: list[str], separator: str) -> None:
        is_test = words[:1] != [] and words[0] in _TESTS
        self._command(words)
        if separator in ("&&", "||"):
            self.after_test = self.after_test or is_test
        elif separator in "\n;":
            self.after_test = False

    def _command(self, words: list[str]) -> None:
        """Keep a command with its environment, or carry out its assignments."""
        while words and words[0] in _KEYWORDS:
            keyword, *words = words
            self.depth += (keyword in _OPENING) - (keyword in _CLOSING)
            if keyword in ("for", "select") and words:
                self._assign(words[0], None)
                return
            if keyword in ("case", "function"):
                return
        declares = bool(words) and words[0] in _DECLARING
        set_here: dict[str, list[str]] = {}
        while words and ((match := _ASSIGNMENT.fullmatch(words[0])) or declares):
            words = words[1:]
            if match is not None:
                old = self.values.get(match[1], [""])[0] if match[2] else ""
                new = self._substituted(match[3], _OUTSIDE).replace(_SPLIT, " ")
                set_here[match[1]] = [(old + new)[:_LONGEST_VALUE]]
        command = tuple(each for word in words for each in self._expanded(word))
        if command:
            environment = {name: value[0] for name, value in (self.values | set_here).items() if value}
            self.found.append(Command(words=command, environment=environment))
            self._in_another_shell(command, environment)
        else:
            for name, value in set_here.items():
                self._assign(name, value)

    def _in_another_shell(self, words: tuple[str, ...], environment: Mapping[str, str]) -> None:
        """Add the commands in the argument of `bash -c`."""
        start = next((index for index, word in enumerate(words) if PurePath(word).name in _SHELLS), len(words))
        script = start + 1
        while script < len(words) and words[script].startswith("-"):
            script += 1
        if self.shells < _DEEPEST and any(map(_COMMAND_OPTION.fullmatch, words[start + 1 : script])):
            for argument in words[script : script + 1]:
                self.found += _Reader(argument, environment, self.shells + 1).commands()

    def _assign(self, name: str, value: list[str] | None) -> None:
        """Assign a variable. Under a condition or in a loop its value becomes unknown, unless the new value equals the
        old."""
        uncertain = self.depth > 0 or self.after_test
        if value is None or (uncertain and self.values.get(name) != value):
            self.values.pop(name, None)
        else:
            self.values[name] = value
