"""The example of README, in both languages, as the program really prints it, and its picture.

    python -m benchmarks.readme_output            # exit 1 when one is stale
    python -m benchmarks.readme_output --write    # bring them up to date

The example is the block between the two `example` comments; the command is run in an empty folder, in 80 columns.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
READMES = (ROOT / "README.md", ROOT / "README.zh-CN.md")
QUESTION = ["Qwen2.5-14B", "--gpus", "2x32GB"]
START, END = "<!-- example: written by benchmarks/readme_output.py -->\n", "<!-- end of example -->\n"


def example() -> str:
    """The block as it ought to be."""
    with tempfile.TemporaryDirectory() as folder:
        output = subprocess.run(
            [sys.executable, "-m", "ds_advise", *QUESTION],
            cwd=folder,
            check=True,
            text=True,
            capture_output=True,
            env={**os.environ, "COLUMNS": "80"},
        ).stdout
    lines = [line.rstrip() for line in output.strip("\n").splitlines()]
    return "\n".join(["```console", f"$ ds-advise {' '.join(QUESTION)}", *lines, "```"]) + "\n"


PICTURE = ROOT / "docs" / "pictures" / "memory.svg"


def picture() -> str:
    """The picture as it ought to be."""
    with tempfile.TemporaryDirectory() as folder:
        drawn = Path(folder, "memory.svg")
        command = [sys.executable, "-m", "ds_advise", *QUESTION, "--no-write", "--quiet", "--plot", str(drawn)]
        subprocess.run(command, check=True)
        return drawn.read_text(encoding="utf-8")


def shown(readme: str) -> str:
    """The block as the README has it."""
    return readme.split(START)[1].split(END)[0]


def main() -> None:
    true = example()
    for path in READMES:
        readme = path.read_text(encoding="utf-8")
        if "--write" in sys.argv:
            path.write_text(readme.replace(START + shown(readme) + END, START + true + END), encoding="utf-8")
        elif shown(readme) != true:
            sys.exit(f"{path.name} is stale: run python -m benchmarks.readme_output --write")
    drawn = picture()
    if "--write" in sys.argv:
        PICTURE.write_text(drawn, encoding="utf-8")
    elif PICTURE.read_text(encoding="utf-8") != drawn:
        sys.exit(f"{PICTURE.name} is stale: run python -m benchmarks.readme_output --write")


if __name__ == "__main__":
    main()
