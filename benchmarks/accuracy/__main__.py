"""Every measured run known to the project against the prediction.

python -m benchmarks.accuracy             # the summary and one line per run
python -m benchmarks.accuracy --json      # the same as data
python -m benchmarks.accuracy --write     # bring docs/accuracy.md, README, intervals and questions up to date
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ..gpu import chapter
from . import memory, memory_spread, questions, spread, time
from .report import Section, document
from .timed_runs import read_runs

ROOT = Path(__file__).parents[2]
DOCUMENT, README = ROOT / "docs" / "accuracy.md", ROOT / "README.md"


def sections() -> list[Section]:
    on_a_gpu = chapter.section()
    return [memory.section(), time.section(), *([] if on_a_gpu is None else [on_a_gpu])]


def all_questions() -> str:
    """`questions.FILE` as it ought to be."""
    return questions.csv_text([*memory.asked(), *time.asked()])


def readme() -> str:
    """README.md as it ought to be."""
    true = {**memory.readme_rows(), "| step time |": time.readme_row(), "- Not judged:": time.readme_limit()}
    lines = README.read_text(encoding="utf-8").splitlines()
    for start, line in true.items():
        lines = [line if old.startswith(start) else old for old in lines]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="data instead of tables")
    parser.add_argument(
        "--write",
        action="store_true",
        help="write docs/accuracy.md, README's lines, the spreads and benchmarks/data/questions.csv",
    )
    asked = parser.parse_args()
    found = sections()
    if asked.write:
        memory_spread.write(memory.results())
        DOCUMENT.write_text(document(found), encoding="utf-8")
        README.write_text(readme(), encoding="utf-8")
        questions.FILE.write_text(all_questions(), encoding="utf-8")
        spread.write(spread.residuals([run for run in read_runs() if run.counted]))
    elif asked.json:
        print(json.dumps({section.title: section.data for section in found}, indent=1))
    else:
        print("\n".join(section.markdown(details=True) for section in found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
