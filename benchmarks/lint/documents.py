"""What is made from lint and kept in the repository: its table of rules in docs/lint.md, and the facts that it uses
where no DeepSpeed is installed, which are those of the installed one.

    python -m benchmarks.lint.documents            # says whether both are current
    python -m benchmarks.lint.documents --write    # writes them
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from ds_advise.estimators.json_form import to_json
from ds_advise.probes.installed_packages import installed_version, source_folder
from ds_advise.validate.lint import RULES, Rule
from ds_advise.validate.lint.installed_facts import BUNDLED
from ds_advise.validate.lint.read_deepspeed import read_facts

MANUAL = Path(__file__).parents[2] / "docs" / "lint.md"
BEGIN, END = "<!-- rules: written by benchmarks/lint/documents.py -->\n", "<!-- end of rules -->\n"
_HEAD = "| code | severity | what | why | DeepSpeed | read in |\n|---|---|---|---|---|---|\n"


def manual() -> str:
    """docs/lint.md with the table as it should be."""
    before, _, rest = MANUAL.read_text(encoding="utf-8").partition(BEGIN)
    return before + BEGIN + _table() + END + rest.partition(END)[2]


def _table() -> str:
    """A table for each subject, the rules by their codes."""
    parts = []
    for subject, rules in groupby(RULES, key=lambda rule: rule.subject):
        parts.append(f"\n### {subject}\n\n{_HEAD}{''.join(map(_row, rules))}")
    return "".join(parts) + "\n"


def _row(rule: Rule) -> str:
    cells = (rule.code, rule.severity, rule.title, rule.why, rule.versions, rule.source)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def installed_facts() -> str:
    """The text of the bundled file, made from the installed DeepSpeed's and torch's sources."""
    folder, version = source_folder("deepspeed"), installed_version("deepspeed")
    assert folder is not None, "DeepSpeed is installed"
    facts = to_json(replace(read_facts(folder, version, source_folder("torch")), origin="bundled"))
    return json.dumps(facts, separators=(",", ":")) + "\n"


def main() -> None:
    current = True
    for file, text in ((MANUAL, manual()), (BUNDLED, installed_facts())):
        if sys.argv[1:] == ["--write"]:
            file.write_text(text, encoding="utf-8")
        else:
            same = file.read_text(encoding="utf-8") == text
            print(f"{file.name} is {'current' if same else 'old: run this with --write'}")
            current = current and same
    raise SystemExit(not current)


if __name__ == "__main__":
    main()
