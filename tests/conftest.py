"""What holds for all tests: no test reads or writes the results that the user keeps."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of the test's own, for it and the processes that it starts."""
    folder = tmp_path / "results of this test"
    monkeypatch.setenv("DS_ADVISE_CACHE", str(folder))
    return folder / "results.sqlite"
