"""The subprocess of a recording: it reads a pickled request from stdin and writes the answer as JSON into the folder in
its first argument.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import sys
import traceback
from pathlib import Path
from typing import Any

from ...estimators.json_form import to_json
from ..command.errors import package_of, users_line
from .run import Answering


def main() -> None:
    folder = Path(sys.argv[1])
    os.environ["DS_ACCELERATOR"] = "cpu"  # no search for vendors' libraries
    gc.disable()  # imported modules are no garbage
    answer = run_request(pickle.load(sys.stdin.buffer))
    (folder / "answer.json").write_text(json.dumps(answer))
    # `os._exit` does not flush.
    sys.stdout.flush()
    os._exit(0)


def run_request(request: Answering) -> dict[str, Any]:
    """{"result": ...}, or {"error": message, "kind": exception class, "phase", "where": line of the user's code,
    "package": origin of the exception, "fix", "traceback"}."""
    try:
        return {"result": to_json(request.answer())}
    except Exception as error:
        return {
            "error": str(error),
            "kind": type(error).__name__,
            "phase": "",
            "where": users_line(traceback.extract_tb(error.__traceback__)),
            "package": package_of(error),
            "fix": getattr(error, "fix", ""),
            "traceback": traceback.format_exc(),
        }


if __name__ == "__main__":
    main()
