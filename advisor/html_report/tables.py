"""Tables of a report: every figure as people read it, with its exact value beside it for programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ...ds_configs.write import to_json
from ..answer.key_meanings import meaning
from ..text.labels import component_title
from ..text.units import gib, rate, seconds
from .document import copyable, folded
from .markup import Markup, element, joined


class Figure(NamedTuple):
    """A number as text, and exactly."""

    text: str
    value: float | None


Cell = str | Figure

NOTHING = "\N{EN DASH}"
"""What stands where a figure is not known, or nothing is needed."""


def size(size_bytes: int | None) -> Figure:
    """GiB; a dash where nothing is known or needed."""
    return Figure(gib(size_bytes) if size_bytes else NOTHING, size_bytes)


def speed(tokens_per_s: float | None) -> Figure:
    return Figure(NOTHING if tokens_per_s is None else rate(tokens_per_s), tokens_per_s)


def duration(taken_s: float | None) -> Figure:
    return Figure(NOTHING if not taken_s else seconds(taken_s), taken_s)


def table(
    head: Sequence[str], rows: Sequence[Sequence[Cell]], *, classes: Sequence[str] = (), caption: str = ""
) -> Markup:
    """A table whose columns of figures stand at the right; classes: of the rows."""
    numeric = [any(isinstance(row[column], Figure) for row in rows) for column in range(len(head))]
    shown = classes or [""] * len(rows)
    return element(
        "div",
        element(
            "table",
            element("caption", caption, class_="soft") if caption else None,
            element(
                "thead",
                element(
                    "tr",
                    *(
                        element("th", title, scope="col", class_="n" if right else None)
                        for title, right in zip(head, numeric, strict=True)
                    ),
                ),
            ),
            element(
                "tbody",
                *(
                    element("tr", *(_cell(cell) for cell in row), class_=name or None)
                    for row, name in zip(rows, shown, strict=True)
                ),
            ),
        ),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label=caption or ", ".join(title for title in head if title),
    )


def _cell(cell: Cell) -> Markup:
    if isinstance(cell, Figure):
        exact = None if cell.value is None else repr(cell.value)
        return element("td", cell.text, class_="n", data_value=exact)
    return element("td", cell)


def parts_table(plans: Sequence[Mapping[str, Any]], field: str, unit: Callable[[Any], Figure], what: str) -> Markup:
    """Components down, plans across: the figures of a chart of bars."""
    most: dict[str, float] = {}
    for plan in plans:
        for name, value in plan[field].items():
            most[name] = max(most.get(name, 0), value)
    names = sorted(most, key=lambda name: -most[name])
    rows: list[list[Cell]] = [
        [component_title(name), *(unit(plan[field].get(name, 0)) for plan in plans)] for name in names
    ]
    return folded("Figures as a table", table([what, *(plan["rung"] for plan in plans)], rows))


def terms_table(terms: Sequence[Mapping[str, Any]]) -> Markup:
    """Terms of `explain --json` with formula, numbers and source, the largest first."""
    is_memory = any("size_bytes" in term for term in terms)
    key = "size_bytes" if is_memory else "seconds"
    rows: list[list[Cell]] = [
        [component_title(term["name"]), size(term[key]) if is_memory else duration(term[key]), _how(term)]
        for term in sorted(terms, key=lambda term: -term[key])
    ]
    return table(["what", "GiB" if is_memory else "time", "how it is computed"], rows)


def _how(term: Mapping[str, Any]) -> Markup:
    """Formula, numbers and source, one under the other."""
    numbers = term["formula_with_numbers"]
    return joined(
        term["formula_in_words"],
        element("div", f"= {numbers}") if numbers else None,
        element("div", f"source: {term['source']}", class_="soft"),
        element("div", f"not covered: {term['not_covered']}", class_="soft") if term["not_covered"] else None,
    )


def configuration(config: Mapping[str, Any], name: str) -> Markup:
    """A ds_config to copy, and what each of its keys decides."""
    known = [(path, value, meaning(path)) for path, value in _flat(config)]
    rows = [[key_and_meaning(path, words), value_words(value)] for path, value, words in known if words]
    return joined(
        element("p", "Save as ", element("code", name), ".", class_="note"),
        copyable(to_json(config).rstrip()),
        folded("What the keys decide", table(["key, and what it decides", "value"], rows)),
    )


def key_and_meaning(path: str, words: str) -> Markup:
    """A key, and under it what it decides."""
    return joined(element("code", path), element("div", words, class_="soft") if words else None)


def _flat(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in config.items():
        path = f"{prefix}{key}"
        found += _flat(value, f"{path}.") if isinstance(value, Mapping) else [(path, value)]
    return found


def value_words(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return f"{value:,}" if isinstance(value, int) else str(value)
