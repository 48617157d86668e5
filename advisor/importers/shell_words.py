"""Shell parser: a script's commands as words, each with its position in the text. Nothing is executed.

Values that are known only at run time (a command's output, arguments of the script, variables that are set elsewhere or
under a condition) stay in the words unexpanded. Not covered: `eval` of quoted text, functions' arguments, patterns,
here-documents (skipped), arithmetic with more than two numbers.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

_NAME = r"[A-Za-z_]\w*"
_ASSIGNMENT = re.compile(rf"({_NAME})(\+?)=")
_EXPANSION = re.compile(
    rf"""\$\(\((?P<sum>.*?)\)\)
    |(?P<output>\$\((?:[^()'"]|'[^']*'|"[^"]*"|\((?:[^()'"]|'[^']*'|"[^"]*"|\([^()]*\))*\))*\)|`[^`]*`)
    |\$(?:(?P<name>{_NAME})|\{{(?P<braced>{_NAME})(?P<all>\[[@*]\])?(?::?-(?P<default>[^}}]*))?\}})
    |\$\{{[^}}\n]*\}}|\$[\d@*#?$!-]?|`""",
    re.VERBOSE | re.DOTALL,
)
"""Shell expansions. Brackets in `output` may be nested at most three deep."""
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_REDIRECTION = re.compile(r"[<>]+[&|]?[ \t]*")
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
"""Maximum number of characters of an expanded word. A variable that contains itself several times doubles at each
assignment."""

Char = tuple[str, int]
"""A character and its position in the text; -1 for a character that is not in the text."""


@dataclass(frozen=True, slots=True)
class Word:
    chars: tuple[Char, ...]

    @property
    def text(self) -> str:
        return "".join(char for char, _ in self.chars)

    def span(self, start: int = 0) -> tuple[int, int] | None:
        """The position of the word's characters from `start` on; None if they are not contiguous in the text."""
        places = [place for _, place in self.chars[start:]]
        if not places or places[0] < 0 or places != list(range(places[0], places[0] + len(places))):
            return None
        return places[0], places[-1] + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    words: tuple[Word, ...]
    end: int
    """End position of its last word in the text; -1 for a word that is not in the text."""
    environment: Mapping[str, str]
    """The variables that are set in front of the command."""

    @property
    def texts(self) -> list[str]:
        return [word.text for word in self.words]


def read_shell(text: str, known: Mapping[str, str] | None = None) -> list[Command]:
    """The commands of a script in order. known: values of variables from elsewhere, such as Slurm's."""
    return _Reader(text, known or {}).commands()


class _Reader:
    def __init__(self, text: str, known: Mapping[str, str], shells: int = 0) -> None:
        self.text = text
        self.shells = shells
        self.values = {name: [Word(tuple((char, -1) for char in value))] for name, value in known.items()}
        self.found: list[Command] = []
        self.words: list[Word] = []
        self.word: list[Char] | None = None
        """Characters of the current word; None between words."""
        self.at = 0
        self.end = 0
        """End position of the last word."""
        self.depth = 0
        """Nesting depth of open conditions and loops."""
        self.after_test = False
        self.in_quotes = False
        self.is_redirection = False
        self.array: tuple[re.Match[str], list[Word]] | None = None
        """The assignment of the current array, and the words before it; None outside an array."""

    def commands(self) -> list[Command]:
        text = self.text
        while self.at < len(text):
            char = text[self.at]
            if char == '"':
                self.in_quotes = not self.in_quotes
                self._add([], self.at + 1)
            elif char == "\\":
                following = text[self.at + 1 : self.at + 2]
                if following in ("\n", ""):  # continuation line
                    self.at += 2
                elif self.in_quotes and following not in '"\\$`':
                    self._add([(char, self.at)], self.at + 1)
                else:
                    self._add([(following, self.at + 1)], self.at + 2)
            elif char in "$`":
                self._expand()
            elif self.in_quotes:
                self._add([(char, self.at)], self.at + 1)
            elif char == "'":
                end = text.find("'", self.at + 1)
                end = len(text) if end == -1 else end
                self._add([(text[place], place) for place in range(self.at + 1, end)], end + 1)
            elif char == "#" and self.word is None:
                end = text.find("\n", self.at)
                self.at = len(text) if end == -1 else end
            elif char in "<>":
                self._redirect()
            elif char in "()" or char.isspace() or char in ";&|":
                self._separate(char)
            else:
                self._add([(char, self.at)], self.at + 1)
        self._finish_command("\n")
        return self.found

    def _add(self, chars: list[Char], end: int) -> None:
        if self.word is None:
            self.word = []
        if len(self.word) < _LONGEST_VALUE:
            self.word += chars
        self.at = end

    @property
    def _written(self) -> str:
        return "".join(char for char, _ in self.word or ())

    def _separate(self, char: str) -> None:
        match = _ASSIGNMENT.fullmatch(self._written)
        if char == "(" and match is not None:
            self.array = match, self.words
            self.words = []
            self.word = None
        elif char == ")" and self.array is not None:
            self._finish_word()
            match, before = self.array
            items, self.words, self.array = self.words, before, None
            self._assign(match[1], [*(self.values.get(match[1], []) if match[2] else []), *items])
        elif char in " \t\r" or self.array is not None:
            self._finish_word()
        else:
            self._finish_command(self.text[self.at : self.at + 2])
        self.at += 1

    def _expand(self) -> None:
        match = _EXPANSION.match(self.text, self.at)
        assert match is not None
        default, words = match["default"], self.values.get(match["name"] or match["braced"])
        if words is None and default is not None and "$" not in default:
            bare = default.strip("\"'")
            begin = match.start("default") + default.find(bare)
            words = [Word(tuple((char, begin + offset) for offset, char in enumerate(bare)))]
        if words is None:
            shown = "$(...)" if match["output"] else self._sum(match["sum"] or "") or match[0]
            self._add([(char, -1) for char in shown], match.end())
            return
        self.at = match.end()
        assigns = not self.words and _ASSIGNMENT.match(self._written) is not None
        for number, word in enumerate(words if match["all"] else words[:1]):
            if number:
                self._finish_word()
            for char in word.chars:
                if char[0].isspace() and not self.in_quotes and not assigns:
                    self._finish_word()
                else:
                    self._add([char], self.at)

    def _sum(self, inner: str) -> str | None:
        """The value of two integers or variables with + - * /; None for any other expression."""

        def number(match: re.Match[str]) -> str:
            words = self.values.get(match[1])
            return words[0].text if words else "?"

        match = _ARITHMETIC.fullmatch(re.sub(rf"\$?\{{?({_NAME})\}}?", number, inner))
        if match is None or (match[2] == "/" and not int(match[3])):
            return None
        return str(_OPERATORS[match[2]](int(match[1]), int(match[3])))

    def _redirect(self) -> None:
        """Skip a redirection: its file is not a word of the command, and a here-document is not read."""
        if self._written.isdigit():
            self.word = None
        self._finish_word()
        if heredoc := _HEREDOC.match(self.text, self.at):
            end = re.compile(rf"^\s*{re.escape(heredoc[2])}\s*$", re.MULTILINE).search(self.text, heredoc.end())
            self.at = len(self.text) if end is None else end.end()
            if self.words and self.words[0].text == "read" and end is not None:  # `read -r -d '' NAME <<EOF`
                start = self.text.find("\n", heredoc.end()) + 1
                lines = self.text[start : end.start()]
                self._assign(self.words[-1].text, [Word(tuple(zip(lines, itertools.count(start), strict=False)))])
            return
        match = _REDIRECTION.match(self.text, self.at)
        assert match is not None
        self.at = match.end()
        self.is_redirection = True

    def _finish_word(self) -> None:
        if self.word is not None:
            if not self.is_redirection:
                self.words.append(Word(tuple(self.word)))
                self.end = self.at
            self.is_redirection = False
        self.word = None

    def _finish_command(self, separator: str) -> None:
        self._finish_word()
        words, self.words = self.words, []
        self.is_redirection = False
        is_test = bool(words) and words[0].text in _TESTS
        self._command(words)
        if separator in ("&&", "||"):
            self.after_test = self.after_test or is_test
        elif separator[0] in "\n;":
            self.after_test = False

    def _command(self, words: list[Word]) -> None:
        """Keep a command with its environment, or carry out its assignments."""
        while words and words[0].text in _KEYWORDS:
            keyword = words.pop(0).text
            self.depth += (keyword in _OPENING) - (keyword in _CLOSING)
            if keyword in ("for", "select") and words:
                self._assign(words[0].text, None)
                return
            if keyword in ("case", "function"):
                return
        if words and words[0].text in _DECLARING:
            for word in words[1:]:
                if match := _ASSIGNMENT.match(word.text):
                    self._assign(match[1], self._value(match, word))
            return
        set_here: dict[str, list[Word]] = {}
        while words and (match := _ASSIGNMENT.match(words[0].text)):
            set_here[match[1]] = self._value(match, words.pop(0))
        if words:
            environment = {name: value[0].text for name, value in (self.values | set_here).items() if value}
            self.found.append(Command(words=tuple(words), end=self.end, environment=environment))
            self._in_another_shell(words, environment)
        else:
            for name, value in set_here.items():
                self._assign(name, value)

    def _in_another_shell(self, words: list[Word], environment: Mapping[str, str]) -> None:
        """The command itself and, after it, the commands in the argument of `bash -c`, with their positions in this
        text."""
        texts = [word.text for word in words]
        start = next((index for index, text in enumerate(texts) if PurePath(text).name in _SHELLS), len(texts))
        script = start + 1
        while script < len(texts) and texts[script].startswith("-"):
            script += 1
        if self.shells >= _DEEPEST or not any(map(_COMMAND_OPTION.fullmatch, texts[start + 1 : script])):
            return
        for argument in words[script : script + 1]:
            places = [*(place for _, place in argument.chars), -1]  # -1 stays -1
            for command in _Reader(argument.text, environment, self.shells + 1).commands():
                placed = (Word(tuple((char, places[at]) for char, at in word.chars)) for word in command.words)
                last = places[command.end - 1] if command.end > 0 else -1
                end = last + 1 if last >= 0 else -1
                self.found.append(Command(words=tuple(placed), end=end, environment=command.environment))

    def _value(self, match: re.Match[str], word: Word) -> list[Word]:
        new = Word(word.chars[match.end() :])
        if not match[2]:
            return [new]
        old = self.values.get(match[1], [Word(())])
        return [Word(old[0].chars + new.chars), *old[1:]]

    def _assign(self, name: str, value: list[Word] | None) -> None:
        """Assign a variable. Under a condition or in a loop its value becomes unknown, unless the new value equals the
        old."""
        known = [word.text for word in self.values.get(name, [])]
        uncertain = self.depth > 0 or self.after_test
        if value is None or (uncertain and known != [word.text for word in value]):
            self.values.pop(name, None)
        else:
            self.values[name] = value
