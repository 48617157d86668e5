"""What the README shows is what the program prints."""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pytest

from benchmarks.readme_output import PICTURE, READMES, example, picture, shown


def test_the_readmes_open_with_the_real_output() -> None:
    """Word for word; `python -m benchmarks.readme_output --write` brings it up to date."""
    true = example()
    for readme in READMES:
        assert shown(readme.read_text(encoding="utf-8")) == true, readme.name


def test_the_picture_of_the_readme_is_drawn_by_the_program() -> None:
    """The same command writes it; sums of floats differ between versions of Python in their last digit."""
    kept, drawn = PICTURE.read_text(encoding="utf-8"), picture()
    number = re.compile(r"\d+\.\d+")
    assert number.sub("#", kept) == number.sub("#", drawn)
    assert [*map(float, number.findall(kept))] == pytest.approx([*map(float, number.findall(drawn))], abs=0.011)
