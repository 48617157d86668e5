"""The figures of accuracy in the documents, each from docs/numbers.json.

In README and docs a figure is followed by a comment with its name, which is invisible when the page is shown:

    mean error 1.3 %<!--allocated.mean-->

The file has one group for each comparison, with the script or the test that its figures are `from`. `write` replaces
groups and puts their figures into the documents. `benchmarks.accuracy --write` computes the groups on published runs
and reads others from the tables that longer scripts write; the remaining groups are put there by `write` of the script
that they name, or state the limit that the named test asserts. A test refuses a figure without a name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from .document import DOCUMENTS, written

FILE = DOCUMENTS / "numbers.json"
PAGES = (DOCUMENTS.parent / "README.md", DOCUMENTS.parent / "README.zh-CN.md", *sorted(DOCUMENTS.glob("*.md")))
FROM = "from"

Groups = Mapping[str, Mapping[str, str]]

MARKED = re.compile(r"(?P<figure>[-+]?\d[\d.,]*(?: %)?)<!--(?P<group>\w+)\.(?P<name>\w+)-->")


def read() -> dict[str, dict[str, str]]:
    """Every group: its figures as they are printed, by name."""
    found: dict[str, dict[str, str]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def write(groups: Groups) -> None:
    """Replace these groups in the file, and their figures in the documents."""
    numbers = read() | {name: dict(group) for name, group in groups.items()}
    lines = (f'"{name}": {json.dumps(group)}' for name, group in sorted(numbers.items()))
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8"), numbers), encoding="utf-8")


def filled(text: str, numbers: Groups) -> str:
    """The text with every marked figure as `numbers` has it. Raises KeyError for a name that is not there."""
    return MARKED.sub(
        lambda found: f"{numbers[found['group']][found['name']]}<!--{found['group']}.{found['name']}-->", text
    )


def printed(share: float, digits: int = 0) -> str:
    """A share as the documents print it."""
    return f"{100 * share:.{digits}f} %"


def spaced(figure: str) -> str:
    """A percentage of a written table as the documents print it."""
    return figure.replace("%", " %")


def table(page: str, script: str) -> list[list[str]]:
    """The cells of its tables, a list for each row."""
    lines = (line for line in written(page, script).splitlines() if line.startswith("| "))
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
