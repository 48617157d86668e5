"""The README's example, as the program really prints it.

    python -m benchmarks.readme_output            # exit 1 when README.md is stale
    python -m benchmarks.readme_output --write    # bring it up to date

The example is the block between the two `example` comments; the command is run in an empty folder, in 80 columns.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"
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


def shown(readme: str) -> str:
    """The block as the README has it."""
    return readme.split(START)[1].split(END)[0]


def main() -> None:
    readme = README.read_text(encoding="utf-8")
    true = example()
    if "--write" in sys.argv:
        README.write_text(readme.replace(START + shown(readme) + END, START + true + END), encoding="utf-8")
    elif shown(readme) != true:
        sys.exit("README.md is stale: run python -m benchmarks.readme_output --write")


if __name__ == "__main__":
    main()
