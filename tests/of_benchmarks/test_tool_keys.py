"""The keys of other tools that `python -m benchmarks.tool_keys` reads."""

from __future__ import annotations

import json

import pytest
from ds_advise.advisor.importers.imported_run import KNOWN_KEYS

from benchmarks.tool_keys import known_keys


@pytest.mark.slow
def test_the_training_arguments_are_those_of_the_installed_transformers() -> None:
    """The rest of the file follows from other projects' sources."""
    assert known_keys({})["training-arguments"] == json.loads(KNOWN_KEYS.read_text())["training-arguments"].split()
