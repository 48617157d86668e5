"""The cases of `values_cases`, in one process with a simulated GPU."""

from __future__ import annotations

import pytest

from tests.probes.simulated_gpu import processes
from tests.probes.simulated_gpu import values_cases as cases


@pytest.fixture(scope="module")
def failures() -> dict[str, str]:
    return processes.failures(cases)


@pytest.mark.parametrize("name", processes.names(cases))
def test_case(name: str, failures: dict[str, str]) -> None:
    assert not failures[name], failures[name]
