"""Every measured run known to the project against the prediction.

python -m benchmarks.accuracy             # the summary and one line per run
python -m benchmarks.accuracy --json      # the same as data
python -m benchmarks.accuracy --write     # bring the documents, intervals and questions up to date
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ..gpu import chapter
from . import memory, memory_spread, peers, questions, spread, time, whole_runs
from .predicted_memory import results
from .report import Section, document
from .timed_runs import read_runs

ROOT = Path(__file__).parents[2]
DOCUMENT, TABLE, README = ROOT / "docs" / "accuracy.md", ROOT / "docs" / "how-true.md", ROOT / "README.md"


def sections() -> list[Section]:
    on_a_gpu = chapter.section()
    return [memory.section(), time.section(), *([] if on_a_gpu is None else [on_a_gpu])]


def all_questions() -> str:
    """The text of `questions.FILE`, made again."""
    return questions.csv_text([*memory.asked(), *time.asked()])


def table() -> str:
    """The text of docs/how-true.md with its rows made again."""
    rows = {
        **memory.table_rows(),
        "| other estimators |": peers.table_row(),
        "| step time |": time.table_row(),
        "| duration of a job |": whole_runs.table_row(),
        "- Not judged:": time.limit(),
    }
    return _with_lines(TABLE, rows)


def readme() -> str:
    """The text of README.md with its figures made again."""
    return _with_lines(README, {**memory.headlines(), "- Step time:": time.headline()})


def _with_lines(path: Path, true: dict[str, str]) -> str:
    """The file with each line replaced by the one of the same start. Raises ValueError unless one line has it."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for start, line in true.items():
        at = [index for index, old in enumerate(lines) if old.startswith(start)]
        if len(at) != 1:
            raise ValueError(f"{path.name} has {len(at)} lines that start with {start!r}")
        lines[at[0]] = line
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="data instead of tables")
    parser.add_argument(
        "--write",
        action="store_true",
        help="write docs/accuracy.md, lines of docs/how-true.md and README, the spreads, benchmarks/data/questions.csv",
    )
    asked = parser.parse_args()
    if asked.write:  # first, since the rest uses it
        spread.write(spread.errors([run for run in read_runs() if run.counted]))
    found = sections()
    if asked.write:
        memory_spread.write(results())
        DOCUMENT.write_text(document(found), encoding="utf-8")
        TABLE.write_text(table(), encoding="utf-8")
        README.write_text(readme(), encoding="utf-8")
        whole_runs.write()
        questions.FILE.write_text(all_questions(), encoding="utf-8")
    elif asked.json:
        print(json.dumps({section.title: section.data for section in found}, indent=1))
    else:
        print("\n".join(section.markdown(details=True) for section in found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
