"""The moving picture of the README."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from html import unescape
from pathlib import Path

from benchmarks.screen_cast import COLUMNS, PICTURE, SCENES


def test_the_answer_in_the_picture_is_the_one_that_is_printed(tmp_path: Path) -> None:
    """Every line; a changed answer needs `python -m benchmarks.screen_cast`."""
    _, *arguments = shlex.split(SCENES[0].command)
    environment = os.environ | {"COLUMNS": str(COLUMNS)}
    command = [sys.executable, "-m", "ds_advise", *arguments]
    shown = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
    texts = re.findall(r"<text id=[^>]*>(.*?)</text>", PICTURE.read_text(encoding="utf-8"))
    drawn = {unescape(re.sub(r"<[^>]*>", "", text)).rstrip() for text in texts}
    assert {line.rstrip() for line in shown.splitlines()} - {""} <= drawn


def test_every_style_of_a_terminal_has_a_colour() -> None:
    picture = PICTURE.read_text(encoding="utf-8")
    used = {name for names in re.findall(r'class="([^"]*)"', picture) for name in names.split()}
    assert {name for name in used if name.startswith("term-")} <= {*re.findall(r"\.(term-\w+)\{", picture)}
