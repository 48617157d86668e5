"""`python -m benchmarks.tool_keys`: the keys of other tools, from their sources."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ds_advise.advisor.importers.imported_run import KNOWN_KEYS

from benchmarks.tool_keys import declared, known_keys


def test_keys_are_the_annotated_fields_of_classes_and_their_aliases(tmp_path: Path) -> None:
    fields = '    a: int = 1\n    b = 2\n    c: str = Field(None, alias="d")\n'
    Path(tmp_path, "args.py").write_text(f"VERSION: int = 1\nclass A:\n{fields}    def e(self): f: int = 1\n")
    assert list(declared(tmp_path)) == ["a", "c", "d"]


@pytest.mark.slow
def test_the_training_arguments_are_those_of_the_installed_transformers() -> None:
    """The rest of the file follows from other projects' sources."""
    assert known_keys({})["training-arguments"] == json.loads(KNOWN_KEYS.read_text())["training-arguments"].split()
