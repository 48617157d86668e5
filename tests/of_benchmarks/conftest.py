"""The engine that lint is compared with, as a fork: its process imports for longer than it answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.lint import engine
from tests.training_scripts.forked_ranks import in_forks


@pytest.fixture
def engine_in_a_fork() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_run", lambda folder, **_: in_forks(engine._main, [folder]))
        yield
