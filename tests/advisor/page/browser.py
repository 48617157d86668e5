"""A headless Chromium and a web server for the what-if page: what its tests and its benchmark drive."""

from __future__ import annotations

import functools
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
FIRST_ANSWER = "#result:not([hidden]), #error:not([hidden])"
WHOLE_ANSWER = "#answer[aria-busy=false]"


def chromium_path() -> str | None:
    """The system's Chromium, None without one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def browser() -> Iterator[Any]:
    """Playwright's browser, run by the system's Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # No sandbox: root, whom containers run as, has none.
        opened = playwright.chromium.launch(executable_path=chromium_path(), args=["--no-sandbox"])
        try:
            yield opened
        finally:
            opened.close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address at which a folder is served, as `python3 -m http.server` serves it."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()
