"""Trainings by TRL's own trainers on two CPU ranks against their dry runs, in bytes of tensors.

    python -m benchmarks.dry_run.trl_on_two_ranks ANSWERS [WORD ...] [--write]

The cases of tests/probes/dry_run/test_dry_run_trl.py and of `MORE`; with WORDs those whose name has all of them ("grpo
zero3"). ANSWERS keeps what was run, and what is in it is not run again. Half a minute a case on a machine that does
nothing else. --write puts the table into docs/objectives.md. Exit 1 where a phase misses `LIMIT`. On a CPU TRL's loss
is torch's, so the closed form, which counts a GPU's kernels, is compared with dry runs in `analytic_vs_dry_run`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from tests.probes.dry_run.test_dry_run_trl import CASES, asked, errors
from tests.probes.dry_run.test_dry_run_truth import Case, answers

from ..document import put

LIMIT = 0.005
"""Target of a phase: the dry run's tensors over those of the training."""

MORE = (
    ("rloo", Case("zero2", model="llama")),
    ("rloo reference", Case("zero2", model="llama")),
    ("dpo precomputed", Case("zero3", model="llama", checkpointing=False)),
    ("reward", Case("zero2-offload", model="llama")),
    ("grpo reference", Case("zero3-offload", model="llama")),
)


def cases() -> dict[str, tuple[str, Case]]:
    listed: list[Any] = [getattr(each, "values", each) for each in CASES]  # some are pytest's parameters
    return {_name(objective, case): (objective, case) for objective, case in (*listed, *MORE)}


def _name(objective: str, case: Case) -> str:
    return f"{objective}, {case.strategy}, {case.method}, checkpointing {'on' if case.checkpointing else 'off'}"


def rows(file: Path, chosen: dict[str, tuple[str, Case]]) -> dict[str, dict[str, Any]]:
    """From the file, and from runs that are made now and added to it."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    known = {row["case"]: row for row in map(json.loads, lines)}
    for name, (objective, case) in chosen.items():
        if name in known:
            continue
        with tempfile.TemporaryDirectory() as folder:
            question = asked(objective, case, Path(folder))
            (answer,) = answers([question], Path(folder))
        if "error" in answer:
            raise SystemExit(f"{name}: {answer['error']}")
        phases = errors(answer)
        (_, phase), error = max(phases.items(), key=lambda each: abs(each[1]))
        known[name] = {"case": name, "phases": len(phases), "phase": phase, "error": error}
        with file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(known[name]) + "\n")
        print(known[name], flush=True)
    return {name: known[name] for name in chosen}


def table(found: dict[str, dict[str, Any]]) -> str:
    lines = ["| training | phases | farthest | dry run over training |", "|---|---|---|---|"]
    lines += [f"| {name} | {row['phases']} | {row['phase']} | {row['error']:+.2%} |" for name, row in found.items()]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answers", type=Path, help="file of what was run")
    parser.add_argument("words", nargs="*")
    parser.add_argument("--write", action="store_true", help="write the table into docs/objectives.md")
    given = parser.parse_args()
    chosen = {name: case for name, case in cases().items() if all(word in name.split(", ") for word in given.words)}
    found = rows(given.answers, chosen)
    print(table(found))
    if given.write:
        put("objectives.md", "dry_run/trl_on_two_ranks", table(found))
    return 1 if any(abs(row["error"]) > LIMIT for row in found.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
