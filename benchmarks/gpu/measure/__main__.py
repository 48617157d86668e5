"""`python -m benchmarks.gpu.measure FOLDER PARENT`: do what FOLDER/job.json says, and write FOLDER/answer.json.

PARENT is the number of the process that waits for it, and without which it ends.
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from pathlib import Path
from typing import Any

from ds_advise.probes.real_run.rank import die_with_parent

from ..machine.place import NotPossibleError, Place
from ..outcome import Outcome


def answer(folder: Path) -> None:
    """Do the job of a folder, and write its answer."""
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    found = _answer(job["kind"], job["arguments"], Place(**job["place"]))
    draft = folder / "answer.draft"
    draft.write_text(json.dumps(found), encoding="utf-8")
    draft.rename(folder / "answer.json")  # who reads it never sees half of it


def _answer(kind: str, arguments: dict[str, Any], place: Place) -> dict[str, Any]:
    outcome: Outcome = {"outcome": "measured", "value": {}, "reason": ""}
    try:
        found: Outcome = importlib.import_module(f"{__package__}.{kind}").measure(arguments, place)
        return {**outcome, **found}
    except NotPossibleError as error:
        return {**outcome, "outcome": "not possible", "reason": str(error)}
    except Exception as error:
        kind_of_failure = "out of memory" if _is_out_of_memory(error) else "failed"
        return {**outcome, "outcome": kind_of_failure, "reason": traceback.format_exc()[-6000:]}


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


if __name__ == "__main__":
    die_with_parent(int(sys.argv[2]))
    answer(Path(sys.argv[1]))
