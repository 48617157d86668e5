"""Every measured run known to the project against the prediction.

python -m benchmarks.accuracy             # docs/accuracy.md, printed
python -m benchmarks.accuracy --write     # bring the documents, intervals and questions up to date
python -m benchmarks.accuracy --add FILE --by issue-12    # take contributed runs in (`contributed`)
python -m benchmarks.accuracy --fit       # the constants of step time: committed, and fitted (`speed_fit`)
python -m benchmarks.accuracy --fit --write    # besides, the fits without each source, which judge step times

`benchmarks/data/questions.csv` has a line for each run: what was measured, what is predicted, and the command.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ds_advise.estimators.errors import DsAdviseError, error_line

from .. import numbers
from . import (
    contributed,
    memory,
    memory_spread,
    other_objectives,
    peers,
    questions,
    recorded,
    software,
    speed_fit,
    spread,
    time,
    whole_runs,
)
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
    parser.add_argument("--fit", action="store_true", help="fit the constants of step time (minutes)")
    parser.add_argument("--add", type=Path, metavar="FILE", help="add the runs of a file of `ds-advise contribute`")
    parser.add_argument("--by", metavar="NAME", help="source of these runs, which counts once, such as issue-12")
    options = parser.parse_args()
    if options.add is not None:
        if options.by is None:
            parser.error("--add needs --by")
        return _add(options.add, options.by)
    if options.fit:
        print(*speed_fit.report(read_runs()), sep="\n")
        if options.write:
            speed_fit.write(read_runs())
        return 0
    if not options.write:
        print(document(sections()))
        return 0
    spread.write(spread.errors([run for run in read_runs() if run.counted]))  # first: the intervals of jobs use it
    memory_spread.write(results())
    DOCUMENT.write_text(document(sections()), encoding="utf-8")
    whole_runs.write()
    questions.FILE.write_text(all_questions(), encoding="utf-8")
    numbers.write(figures())
    return 0


def _add(file: Path, name: str) -> int:
    try:
        added = contributed.add(file, name)
    except DsAdviseError as error:
        print(error_line(error.what, error.why, error.fix), file=sys.stderr)
        return 2
    for row in added:
        run = row.run
        print(f"{run.model}, {run.gpus}: measured {run.measured}")
        print(f"    predicted by ds-advise {run.versions['ds-advise']}: {run.predicted}")
    print(f"Added to {contributed.FOLDER.name}/{name}.json. --write takes it into the statistics.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
