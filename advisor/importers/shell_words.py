"""A shell script's commands as words, each with its place in the text; nothing is executed.

What the shell would only know when it runs (a command's output, arguments of the script, variables that are set
elsewhere or under a condition) stays in the words as it is written. Not covered: `eval` of quoted text, functions'
arguments, patterns, here-documents (passed over).
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePath

_NAME = r"[A-Za-z_]\w*"
_ASSIGNMENT = re.compile(rf"({_NAME})(\+?)=")
_VARIABLE = re.compile(rf"\$(?:({_NAME})|\{{({_NAME})(\[[@*]\])?(?::?-([^}}]*))?\}})")
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
}
_OPENING = {"if", "case", "while", "until", "for", "select", "function"}
_CLOSING = {"fi", "esac", "done"}
_KEYWORDS = {"then", "else", "elif", "do", "!", "time", "{", "}", *_OPENING, *_CLOSING}
_TESTS = ("[", "[[", "test")
_DECLARING = {"export", "declare", "local", "readonly", "typeset"}
_SHELLS = {"bash", "sh", "zsh", "dash"}
_COMMANDS_FOLLOW = re.compile(r"-[a-z]*c")
_DEEPEST = 8
"""Shells within shells that are read."""
_LONGEST_VALUE = 20_000
"""Characters of an expanded word; a variable that holds itself several times doubles with each assignment."""

Char = tuple[str, int]
"""A character, and where it stands in the text; -1 where it stands nowhere."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word after expansion."""

    chars: tuple[Char, ...]

    @property
    def text(self) -> str:
        return "".join(char for char, _ in self.chars)

    def span(self, start: int = 0) -> tuple[int, int] | None:
        """Where its characters from `start` on stand in the text, None where they do not stand there side by side."""
        places = [place for _, place in self.chars[start:]]
        if not places or places[0] < 0 or places != list(range(places[0], places[0] + len(places))):
            return None
        return places[0], places[-1] + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A simple command."""

    words: tuple[Word, ...]
    end: int
    """Where its own last word ends in the text, -1 where that stands nowhere in it."""
    environment: Mapping[str, str]
    """The variables that are set before it."""

    @property
    def texts(self) -> list[str]:
        return [word.text for word in self.words]


def read_shell(text: str, known: Mapping[str, str] | None = None) -> list[Command]:
    """The commands of a script in their order. known: variables whose value follows from elsewhere, such as Slurm's
    directives."""
    return _Reader(text, known or {}).commands()


class _Reader:
    """One pass over the text."""

    def __init__(self, text: str, known: Mapping[str, str], shells: int = 0) -> None:
        self.text, self.at, self.depth, self.shells = text, 0, 0, shells
        self.values: dict[str, list[Word]] = {
            name: [Word(tuple((char, -1) for char in value))] for name, value in known.items()
        }
        self.found: list[Command] = []
        self.words: list[Word] = []
        self.chars: list[Char] = []
        self.in_word = self.dropping = self.after_test = False
        self.end = 0

    def commands(self) -> list[Command]:
        text = self.text
        while self.at < len(text):
            char = text[self.at]
            if char == "(" and self._opens_array():
                self._array()
            elif char in "\n;&|()":
                self._finish_command(separator=text[self.at : self.at + 2])
                self.at += 1
            elif char in " \t\r":
                self._finish_word()
                self.at += 1
            elif char == "#" and not self.in_word:
                self.at = _line_end(text, self.at)
            elif char in "<>":
                self._redirect()
            else:
                self._part(char)
        self._finish_command(separator="\n")
        return self.found

    def _part(self, char: str) -> None:
        """A character, a quoted part or an expansion of the current word."""
        text = self.text
        if char == "\\":
            if text[self.at + 1 : self.at + 2] not in ("\n", ""):
                self._add([(text[self.at + 1], self.at + 1)], self.at + 2)
            else:  # the line goes on
                self.at += 2
        elif char == "'":
            end = text.find("'", self.at + 1)
            end = len(text) if end == -1 else end
            self._add([(text[place], place) for place in range(self.at + 1, end)], end + 1)
        elif char == '"':
            self._double_quoted()
        elif char in "$`":
            self._expansion(quoted=False)
        else:
            self._add([(char, self.at)], self.at + 1)

    def _add(self, chars: list[Char], end: int) -> None:
        if len(self.chars) < _LONGEST_VALUE:
            self.chars += chars
        self.in_word, self.at = True, end

    def _double_quoted(self) -> None:
        text = self.text
        self.at, self.in_word = self.at + 1, True
        while self.at < len(text) and text[self.at] != '"':
            char, following = text[self.at], text[self.at + 1 : self.at + 2]
            if char == "\\" and following == "\n":
                self.at += 2
            elif char == "\\" and following in ('"', "\\", "$", "`"):
                self._add([(following, self.at + 1)], self.at + 2)
            elif char in "$`":
                self._expansion(quoted=True)
            else:
                self._add([(char, self.at)], self.at + 1)
        self.at += 1

    def _expansion(self, *, quoted: bool) -> None:
        text, start = self.text, self.at
        if text.startswith("$((", start):
            end = text.find("))", start)
            end = len(text) if end == -1 else end + 2
            self._literal(self._arithmetic(text[start + 3 : end - 2]) or text[start:end], end)
            return
        if text.startswith("$(", start) or text[start] == "`":
            self._literal("$(...)", _closing(text, start))
            return
        match = _VARIABLE.match(text, start)
        if match is None:
            special = re.compile(r"\$(?:\{[^}\n]*\}|[\d@*#?$!-])?").match(text, start)
            assert special is not None
            self._literal(special[0], special.end())
            return
        self._variable(match, quoted=quoted)

    def _variable(self, match: re.Match[str], *, quoted: bool) -> None:
        name, default = match[1] or match[2], match[4]
        words = self.values.get(name)
        if words is None and default is not None and "$" not in default:
            bare = default.strip("\"'")
            begin = match.start(4) + default.find(bare)
            words = [Word(tuple((char, begin + offset) for offset, char in enumerate(bare)))]
        if words is None:
            self._literal(match[0], match.end())
            return
        self.at = match.end()
        for number, word in enumerate(words if match[3] else words[:1]):
            if number:
                self._finish_word()
            if quoted:
                self._add(list(word.chars), self.at)
                continue
            for char in word.chars:
                if char[0].isspace():
                    self._finish_word()
                else:
                    self._add([char], self.at)

    def _literal(self, shown: str, end: int) -> None:
        self._add([(char, -1) for char in shown], end)

    def _arithmetic(self, inner: str) -> str | None:
        """The value of whole numbers and variables with + - * /, None for anything else."""
        names = re.compile(rf"\$?\{{?({_NAME})\}}?")

        def number(match: re.Match[str]) -> str:
            words = self.values.get(match[1])
            return words[0].text if words else "?"

        try:
            return str(_result(ast.parse(names.sub(number, inner).strip(), mode="eval").body))
        except (ArithmeticError, SyntaxError, ValueError, RecursionError):
            return None

    def _redirect(self) -> None:
        """What is read from and written to is no word of the command."""
        heredoc = _HEREDOC.match(self.text, self.at)
        if heredoc is not None:
            self._finish_word()
            end = re.compile(rf"^\s*{re.escape(heredoc[2])}\s*$", re.MULTILINE).search(self.text, heredoc.end())
            self.at = len(self.text) if end is None else end.end()
            return
        if all(char.isdigit() for char, _ in self.chars):
            self.chars, self.in_word = [], False
        self._finish_word()
        match = re.compile(r"[<>]+[&|]?[ \t]*").match(self.text, self.at)
        assert match is not None
        self.at, self.dropping = match.end(), True

    def _opens_array(self) -> bool:
        """Whether the bracket here is that of `NAME=(`."""
        return _ASSIGNMENT.fullmatch("".join(char for char, _ in self.chars)) is not None

    def _array(self) -> None:
        """Takes the words of `NAME=(...)`, from its bracket to its end."""
        match = _ASSIGNMENT.fullmatch("".join(char for char, _ in self.chars))
        assert match is not None
        close = _closing(self.text, self.at)
        outer, self.words, self.chars, self.in_word = self.words, [], [], False
        self.at += 1
        while self.at < close - 1:
            char = self.text[self.at]
            if char in " \t\r\n":
                self._finish_word()
                self.at += 1
            elif char == "#" and not self.in_word:
                self.at = min(_line_end(self.text, self.at), close - 1)
            else:
                self._part(char)
        self._finish_word()
        items, self.words = self.words, outer
        self._assign(match[1], [*(self.values.get(match[1], []) if match[2] else []), *items])
        self.at = close

    def _finish_word(self) -> None:
        if self.in_word:
            if not self.dropping:
                self.words.append(Word(tuple(self.chars)))
                self.end = self.at
            self.dropping = False
        self.chars, self.in_word = [], False

    def _finish_command(self, *, separator: str) -> None:
        self._finish_word()
        words, self.words, self.dropping = self.words, [], False
        self._command(words)
        if separator in ("&&", "||"):
            self.after_test = self.after_test or (bool(words) and words[0].text in _TESTS)
        elif separator[0] in "\n;":
            self.after_test = False

    def _command(self, words: list[Word]) -> None:
        """Runs what can be run of a command: assignments."""
        while words and words[0].text in _KEYWORDS:
            keyword = words.pop(0).text
            self.depth += (keyword in _OPENING) - (keyword in _CLOSING)
            if keyword in ("for", "select") and words:
                self._assign(words[0].text, None)
                return
            if keyword in ("case", "function"):
                return
        declares = bool(words) and words[0].text in _DECLARING
        set_here: dict[str, list[Word]] = {}
        while words and (match := _ASSIGNMENT.match(words[0].text if not declares else "")):
            set_here[match[1]] = self._value(match, words.pop(0))
        if declares:
            for word in words[1:]:
                if match := _ASSIGNMENT.match(word.text):
                    self._assign(match[1], self._value(match, word))
        elif words:
            environment = {name: value[0].text for name, value in (self.values | set_here).items() if value}
            self.found.append(Command(words=tuple(words), end=self.end, environment=environment))
            self._in_another_shell(words, environment)
        else:
            for name, value in set_here.items():
                self._assign(name, value)

    def _in_another_shell(self, words: list[Word], environment: Mapping[str, str]) -> None:
        """The commands of the text that `bash -c` is handed, behind the command itself, with their places here."""
        texts = [word.text for word in words]
        start = next((index for index, text in enumerate(texts) if PurePath(text).name in _SHELLS), len(texts))
        options = next(
            (index for index in range(start + 1, len(texts)) if not texts[index].startswith("-")), len(texts)
        )
        if self.shells >= _DEEPEST or not any(map(_COMMANDS_FOLLOW.fullmatch, texts[start + 1 : options])):
            return
        for handed in words[options : options + 1]:
            for command in _Reader(handed.text, environment, self.shells + 1).commands():
                placed = tuple(
                    Word(tuple((char, handed.chars[at][1] if at >= 0 else -1) for char, at in word.chars))
                    for word in command.words
                )
                last = handed.chars[command.end - 1][1] if command.end > 0 else -1
                self.found.append(
                    Command(words=placed, end=last + 1 if last >= 0 else -1, environment=command.environment)
                )

    def _value(self, match: re.Match[str], word: Word) -> list[Word]:
        new = Word(word.chars[match.end() :])
        if not match[2]:
            return [new]
        old = self.values.get(match[1], [Word(())])
        return [Word(old[0].chars + new.chars), *old[1:]]

    def _assign(self, name: str, value: list[Word] | None) -> None:
        """Under a condition, or in a loop, nobody knows whether or with which value it happens."""
        known = [word.text for word in self.values.get(name, [])]
        uncertain = self.depth > 0 or self.after_test
        if value is None or (uncertain and known != [word.text for word in value]):
            self.values.pop(name, None)
        else:
            self.values[name] = value


def _result(node: ast.expr) -> int:
    """The value of whole numbers with + - * /. Raises ValueError for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and abs(node.value) < 10**9:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_result(node.left), _result(node.right))
    raise ValueError("no arithmetic of whole numbers")


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end == -1 else end


def _closing(text: str, at: int) -> int:
    """Behind the bracket or backtick that closes what opens at `at`."""
    if text[at] == "`":
        end = text.find("`", at + 1)
        return len(text) if end == -1 else end + 1
    depth, quote = 0, ""
    for place in range(text.index("(", at), len(text)):
        char = text[place]
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "()":
            depth += 1 if char == "(" else -1
            if not depth:
                return place + 1
    return len(text)
