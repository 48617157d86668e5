"""Every measured run known to the project against the prediction.

python -m benchmarks.accuracy             # docs/accuracy.md, printed
python -m benchmarks.accuracy --write     # bring the documents, intervals and questions up to date

`benchmarks/data/questions.csv` has a line for each run: what was measured, what is predicted, and the command.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .. import numbers
from . import memory, memory_spread, other_objectives, peers, questions, recorded, software, spread, time, whole_runs
from .predicted_memory import results
from .report import Section, document
from .rows import runs as memory_runs
from .timed_runs import read_runs

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "accuracy.md"


def sections() -> list[Section]:
    return [memory.section(), time.section()]


def all_questions() -> str:
    """The text of `questions.FILE`, made again."""
    return questions.csv_text([*memory.asked(), *time.asked()])


def figures() -> dict[str, dict[str, str]]:
    """Every group of docs/numbers.json that is computed here: on published runs, or read from tables in docs/."""
    own = {"evidence": software.counts([*memory_runs(), *read_runs()])}
    own |= memory.figures() | other_objectives.figures() | time.figures() | peers.figures() | whole_runs.figures()
    return {name: {numbers.FROM: "benchmarks/accuracy", **group} for name, group in own.items()} | recorded.figures()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="bring documents, intervals and questions up to date")
    if not parser.parse_args().write:
        print(document(sections()))
        return 0
    spread.write(spread.errors([run for run in read_runs() if run.counted]))  # first: the intervals of jobs use it
    memory_spread.write(results())
    DOCUMENT.write_text(document(sections()), encoding="utf-8")
    whole_runs.write()
    questions.FILE.write_text(all_questions(), encoding="utf-8")
    numbers.write(figures())
    return 0


if __name__ == "__main__":
    sys.exit(main())
