"""The page in a real browser: the system's Chromium, Playwright, and a static page with Pyodide in it."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ds_advise.advisor.page.build import build_page
from ds_advise.advisor.page.serve import page_server

from tests.advisor.page.browser import browser, chromium_path, served

PATIENCE_MS = 300_000
"""A busy machine may stretch everything, a first load of Python most."""


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    pytest.importorskip("playwright", reason="Playwright is not installed (it is in the extra `test`)")
    if chromium_path() is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    with browser() as opened:
        yield opened


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    """A tab of a browser that never saw the page; scripts that fail fail the test."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE_MS)
    opened, problems = context.new_page(), list[str]()
    opened.on("pageerror", lambda error: problems.append(str(error)))
    yield opened
    context.close()
    assert problems == []


@pytest.fixture(scope="session")
def static_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a page that answers without a server."""
    pyodide = os.environ.get("DS_ADVISE_TEST_PYODIDE")
    if not pyodide:
        pytest.skip("DS_ADVISE_TEST_PYODIDE names no npm package of Pyodide (tests/run fetches it where npm is)")
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # one page for all workers: it takes long to build
    folder /= "page"
    with Path(f"{folder}.lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if not folder.exists():
            build_page(folder, pyodide=Path(pyodide))
    return folder


@pytest.fixture
def static_address(static_page: Path) -> Iterator[str]:
    with served(static_page) as address:
        yield address


@pytest.fixture
def port() -> Iterator[int]:
    with page_server(0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()
