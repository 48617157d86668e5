"""The page on this machine: a local HTTP server that computes the answers with this Python."""

from __future__ import annotations

import json
import select
import socket
import threading
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ...estimators.errors import DsAdviseError
from ..text.language import Language
from .answers import NEEDED, REQUESTS
from .build import TYPES, page_file

ADDRESS = "127.0.0.1"

_MOST_BYTES = 4 * 2**20
"""Largest request in bytes; a pasted configuration has a few kilobytes."""


PORT = 8737
"""Default port, if it is free: a copied link then works after the next start too."""


def page_server(port: int | None, language: Language = "en") -> ThreadingHTTPServer:
    """Return a server at a port of this machine. port: 0 for any free one, None for `PORT`, or any free one if that is
    in use. language: of the page. Raises DsAdviseError if the port is in use."""
    if port is None:
        with suppress(DsAdviseError):
            return page_server(PORT, language)
        port = 0
    try:
        return ThreadingHTTPServer((ADDRESS, port), partial(_Handler, language))
    except (OSError, OverflowError) as error:
        raise DsAdviseError(
            f"port {port} cannot be used ({error})",
            fix="leave --port out, or name another",
        ) from error


class _Handler(BaseHTTPRequestHandler):
    """Handler of GET for files, and of POST for answers: one JSON text per line, each written at once."""

    protocol_version = "HTTP/1.1"
    turn = threading.Lock()
    """Lock that serializes questions, since two concurrent ones slow each other down."""

    def __init__(self, language: Language, *connection: Any) -> None:
        self.language = language
        super().__init__(*connection)

    def handle(self) -> None:
        """Handle requests until the browser leaves: the page was closed, or has a newer question."""
        with suppress(BrokenPipeError, ConnectionResetError):
            super().handle()

    def do_GET(self) -> None:
        name = self.path.split("?")[0].removeprefix("/") or "index.html"
        if name not in TYPES or not self._is_ours():
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        body = page_file(name, answers="server", language=self.language)
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", TYPES[name])
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-cache")
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        begun = REQUESTS.get(self.path.removeprefix("/ask/"))
        length = self.headers.get("Content-Length", "")
        if begun is None or not self._is_ours() or not length.isdigit() or int(length) > _MOST_BYTES:
            self.send_error(HTTPStatus.BAD_REQUEST)
            return
        body = self.rfile.read(int(length))
        if not _is_request(body, NEEDED[self.path.removeprefix("/ask/")]):
            self.send_error(HTTPStatus.BAD_REQUEST)
            return
        asked = body.decode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        with self.turn:
            parts = _parts(begun(asked))
            while not self._has_left() and (part := next(parts, None)) is not None:
                self.wfile.write(f"{part}\n".encode())
                self.wfile.flush()

    def _has_left(self) -> bool:
        """Whether the browser closed the connection: it has a newer question, which waits for its turn."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)

    def _is_ours(self) -> bool:
        """Whether the request comes from the page and not from another site in this browser."""
        port = self.connection.getsockname()[1]
        hosts = (f"{ADDRESS}:{port}", f"localhost:{port}")
        origin = self.headers.get("Origin")
        return self.headers.get("Host") in hosts and (origin is None or origin.removeprefix("http://") in hosts)

    def log_message(self, format: str, *args: object) -> None:
        """Discard log messages, to keep the user's terminal clean."""


def _is_request(body: bytes, fields: Collection[str]) -> bool:
    """Whether a body is a JSON object with these fields."""
    try:
        asked = json.loads(body.decode())
    except (ValueError, RecursionError):
        return False
    return isinstance(asked, dict) and set(fields) <= asked.keys()


def _parts(answered: Iterator[str]) -> Iterator[str]:
    """Yield the parts of an answer; an internal error becomes a part too."""
    try:
        yield from answered
    except Exception as error:
        sentence = f"This is an error of ds-advise itself ({type(error).__name__}: {error})."
        yield json.dumps({"part": "error", "sentence": sentence})
