"""The page's own files, with what stands in double braces filled in."""

from __future__ import annotations

from importlib.resources import files
from typing import Literal

TEMPLATES = frozenset(("index.html", "service_worker.js"))

TYPES = {
    "index.html": "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
"""What a browser asks for whoever answers, and its media type."""

WORKER_FILES = ("worker.js", "service_worker.js")
"""What only a page needs that answers by itself."""


def page_file(name: str, *, answers: Literal["worker", "server"], build: str = "", kept: str = "[]") -> bytes:
    """A file as it is served. answers: who calculates; build: names this build's cache; kept: JSON, the files in it."""
    raw = files(__package__).joinpath("static", name).read_bytes()
    if name not in TEMPLATES:
        return raw
    text = raw.decode()
    for key, value in (("answers", answers), ("build", build), ("files", kept)):
        text = text.replace("{{" + key + "}}", value)
    return text.encode()
