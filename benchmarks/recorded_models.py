"""Which model types of transformers are answered with their default configuration: by a row, by a recording, or not.

    python -m benchmarks.recorded_models [TYPE ...] [--answers FILE] [--write]

TYPE:      only these model types; by default all that transformers maps for causal language modeling.
--answers: keep the results in FILE, and do not record again what is in it.
--write:   put the table into docs/models.md.

Each type is recorded in a process of its own, 2 to 20 seconds each. A type whose default configuration transformers
itself refuses is not counted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ds_advise.estimators.errors import ModelConfigError
from ds_advise.estimators.models.families import FAMILIES

from .document import put

PATIENCE_S = 180
NOT_COUNTED = "transformers refuses its own default configuration"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="recorded_models", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("types", nargs="*", metavar="TYPE")
    parser.add_argument("--answers", type=Path, metavar="FILE")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(answer(options.types[0]))
        return 0
    known: dict[str, str] = {}
    if options.answers and options.answers.exists():
        known = json.loads(options.answers.read_text(encoding="utf-8"))
    for model_type in options.types or model_types():
        if model_type not in known:
            known[model_type] = "row" if model_type in FAMILIES else _in_a_process(model_type)
            print(f"{model_type}: {known[model_type]}", flush=True)
        if options.answers:
            options.answers.write_text(json.dumps(known, indent=1), encoding="utf-8")
    text = table(known)
    print(text, end="")
    if options.write:
        put("models.md", "recorded_models", text)
    return 0


def model_types() -> list[str]:
    """The model types of causal language modeling."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def answer(model_type: str) -> str:
    """ "recorded", or why not."""
    from ds_advise.probes.model_recorder.recorded_model import recorded_model

    try:
        config = _default_config(model_type)
    except Exception as error:  # whatever a configuration class raises
        return f"{NOT_COUNTED}: {(str(error).splitlines() or [type(error).__name__])[0][:120]}"
    try:
        recorded_model(config, name=model_type, source="")
    except ModelConfigError as error:
        return str(error.why)
    return "recorded"


def _default_config(model_type: str) -> dict[str, Any]:
    from transformers import CONFIG_MAPPING

    values: dict[str, Any] = CONFIG_MAPPING[model_type]().to_dict()
    return json.loads(json.dumps(values))  # type: ignore[no-any-return]


def _in_a_process(model_type: str) -> str:
    command = [sys.executable, "-m", "benchmarks.recorded_models", model_type, "--one"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        return f"not recorded after {PATIENCE_S} s"
    lines = ran.stdout.splitlines()
    return lines[-1] if lines else (ran.stderr.splitlines() or ["no result"])[-1][:160]


def table(known: dict[str, str]) -> str:
    """How many types are answered, and the others with the reason."""
    counted = {kind: how for kind, how in known.items() if not how.startswith(NOT_COUNTED)}
    rows = [kind for kind, how in counted.items() if how == "row"]
    recorded = [kind for kind, how in counted.items() if how == "recorded"]
    refused = {kind: how for kind, how in counted.items() if how not in ("row", "recorded")}
    share = (len(rows) + len(recorded)) / max(1, len(counted))
    lines = [
        f"{len(rows)} types by a row, {len(recorded)} recorded, {len(refused)} refused: {share:.0%} are answered.",
        "",
        "| refused | why |",
        "|---|---|",
        *(f"| `{kind}` | {how.replace('|', '/')} |" for kind, how in sorted(refused.items())),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
