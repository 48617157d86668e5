"""A report as tests read it."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

MOST_BYTES = 400_000


class Page(HTMLParser):
    """Elements, exact figures of cells and the data of a report; every element must be closed in its order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.names: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.sections: dict[str, list[list[tuple[str, float | None]]]] = {}
        self.data: dict[str, Any] = {}
        self._section = ""
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        known = dict(attrs)
        if tag == "section":
            self._section = known["id"] or ""
            self.sections[self._section] = []
        if tag == "tr" and self._section:
            self.sections[self._section].append([])
        if tag == "td":
            exact = known.get("data-value")
            self.sections[self._section][-1].append(("", None if exact is None else float(exact)))
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if "script" in self.open and data.startswith('{"'):
            self.data = json.loads(data)
        if "td" in self.open:
            words, exact = self.sections[self._section][-1][-1]
            self.sections[self._section][-1][-1] = (words + data, exact)
