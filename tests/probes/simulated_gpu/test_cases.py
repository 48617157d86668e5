"""The cases of each module, in one process per module with a simulated GPU."""

from __future__ import annotations

from functools import cache
from types import ModuleType

import pytest

from tests.probes.simulated_gpu import autocast_cases, loaders_cases, processes, values_cases

failures = cache(processes.failures)


@pytest.mark.parametrize(
    ("cases", "name"),
    [(cases, name) for cases in (autocast_cases, loaders_cases, values_cases) for name in processes.names(cases)],
    ids=lambda value: value.__name__.rpartition(".")[2] if isinstance(value, ModuleType) else value,
)
def test_case(cases: ModuleType, name: str) -> None:
    assert not failures(cases)[name], failures(cases)[name]
