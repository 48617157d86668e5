"""Formulas with words in place of symbols, and with the numbers put in: `w B S V` is read without a legend."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from ...estimators.estimate import MemoryTerm, TimeTerm


_TOKEN = re.compile(r"[A-Za-z_][\w-]*'*|\d[\w.]*(?:e[+-]?\d+)?|\S")

_HEAD = re.compile(r" \(|[,;:] | as stage | in the training | at this | on one GPU")
"""Where the name of a quantity ends and what is said of it begins."""


def in_words(term: MemoryTerm | TimeTerm) -> str:
    """`bytes per weight x samples per micro batch x vocabulary size`; text after a colon is words already."""
    formula, colon, remark = term.formula.partition(": ")
    return _written(formula, term.symbols, lambda symbol: head(term.symbols[symbol])) + colon + remark


def with_numbers(term: MemoryTerm | TimeTerm) -> str:
    """`2 x 5 x 152,064`; "" where the formula has words, or a symbol whose number is not known."""
    formula = term.formula.partition(": ")[0]
    values = dict(term.inputs)
    names = [token for token in _TOKEN.findall(formula) if token[0].isalpha()]
    if not names or any(name not in values and name not in _FUNCTIONS for name in names):
        return ""
    return _written(formula, values, lambda symbol: number(values[symbol]))


def number(value: float) -> str:
    """`152,064`, `8.07e+13`."""
    return f"{value:,.6g}" if isinstance(value, float) else f"{value:,}"


def head(meaning: str) -> str:
    """The name at the beginning of a symbol's meaning: `samples per micro batch`."""
    return _HEAD.split(meaning, maxsplit=1)[0]


_FUNCTIONS = ("min", "max", "sum", "ceil")


def _written(formula: str, symbols: Mapping[str, object], word_of: Callable[[str], str]) -> str:
    """The formula with each symbol written by `word_of`, and a cross between factors that stand side by side."""
    text, before, end = "", "", 0
    for match in _TOKEN.finditer(formula):
        token, spaced = match.group(), match.start() > end
        calls = formula[match.end() : match.end() + 1] == "("
        factor = token in symbols or token[0].isdigit() or token == "(" or (token in _FUNCTIONS and calls)
        text += " " * spaced
        if factor and spaced and before == "factor":
            text += "x "
        word = word_of(token) if token in symbols else token
        text += f"{word} " if calls and token in symbols else word
        before = "factor" if token == ")" or token in symbols or token[0].isdigit() else ""
        end = match.end()
    return text
