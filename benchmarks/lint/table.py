"""The table of lint's rules in docs/lint.md.

python -m benchmarks.lint.table            # says whether it is current
python -m benchmarks.lint.table --write    # writes it
"""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

from ds_advise.validate.lint import RULES, Rule

DOCUMENT = Path(__file__).parents[2] / "docs" / "lint.md"
BEGIN, END = "<!-- rules: written by benchmarks/lint/table.py -->\n", "<!-- end of rules -->\n"
_HEAD = "| code | severity | what | why | DeepSpeed | read in |\n|---|---|---|---|---|---|\n"
_SUBJECTS = {
    "reading": "The file",
    "keys": "Keys",
    "types": "Types and ranges",
    "batch": "Batch sizes",
    "trainer": "`auto` and the Trainer",
    "precision": "Precision",
    "stages": "ZeRO",
    "zeropp": "ZeRO++",
    "offload": "Offload and NVMe",
    "aio": "Asynchronous I/O",
    "optimizer": "Optimizer",
    "scheduler": "Scheduler",
    "communication": "Communication",
    "checkpointing": "Checkpointing",
    "logging": "Logging and profiling",
    "resources": "Model and GPUs",
}


def document() -> str:
    """The whole document with the table as it should be."""
    text = DOCUMENT.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


def table() -> str:
    """A table for each subject, the rules by their codes."""
    parts = []
    for module, rules in groupby(RULES, key=lambda rule: rule.check.__module__.rpartition(".")[2]):
        rows = "".join(_row(rule) for rule in rules)
        parts.append(f"\n### {_SUBJECTS[module]}\n\n{_HEAD}{rows}")
    return "".join(parts) + "\n"


def _row(rule: Rule) -> str:
    cells = (rule.code, rule.severity, rule.title, rule.why, rule.versions, rule.source)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def main() -> None:
    if sys.argv[1:] == ["--write"]:
        DOCUMENT.write_text(document(), encoding="utf-8")
        return
    current = DOCUMENT.read_text(encoding="utf-8") == document()
    print("the table is current" if current else "the table is old: run it with --write")
    raise SystemExit(not current)


if __name__ == "__main__":
    main()
