"""Which model types of transformers are answered with their default configuration: by a row, by a recording, or not.

    python -m benchmarks.recorded_models [TYPE ...] [--answers FILE] [--write]

TYPE:      only these model types; by default all that transformers maps for causal language modeling,
           sequence-to-sequence language modeling, and image-text-to-text.
--answers: keep the results in FILE, and do not record again what is in it.
--write:   put the table into docs/models.md.

Each type is recorded in a process of its own, 2 to 20 seconds each. A type is counted apart if its own class refuses
its default configuration: it cannot be built from it, or every forward pass without the recorder raises an error, one
of which names neither missing data nor inputs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ds_advise.estimators.errors import ModelConfigError
from ds_advise.estimators.models.families import FAMILIES

from .document import put

PATIENCE_S = 180
NOT_COUNTED = "its own class refuses the default configuration"
OURS = (
    "meta",
    "data-independent",
    "require",
    "missing",
    "has to be",
    "specify",
    "not be found",
    "not found",
    "to unpack",
)
"""Words of errors about tensors without data, about inputs that are absent or of another form, and absent packages,
which are no fault of a configuration."""


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
    """The model types of the three tasks that train on text."""
    from transformers.models.auto import modeling_auto as auto

    return sorted(
        {
            *auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
            *auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
            *auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        }
    )


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
        refusal = _refusal(config)
        return f"{NOT_COUNTED}: {refusal}" if refusal else str(error.why)
    return "recorded"


def _refusal(config: dict[str, Any]) -> str:
    """The error of the class itself with this configuration; "" for none, and for one that is not its fault."""
    import torch
    from ds_advise.probes.default_script.trainer import model_class
    from ds_advise.probes.model_recorder.recorded_model import input_choices, make_batch, transformers_config
    from ds_advise.probes.simulated_gpu.weights import no_init_weights

    try:
        built = transformers_config(config)
        chosen = model_class(built)
    except ValueError:
        return ""
    reasons = []
    for names in input_choices(chosen):
        try:
            with torch.device("meta"), no_init_weights():
                model = chosen._from_config(built, dtype=torch.float32).train()
                with _yes_to_all():
                    model(**make_batch(built, names, 2, 64, dtype="float32"), use_cache=False)
        except Exception as error:  # whatever a model's code raises
            text = (str(error).strip().splitlines() or [type(error).__name__])[0]
            reasons.append("" if any(word in text for word in OURS) else text[:160])
        else:
            return ""
    return next((reason for reason in (reasons[0], *reversed(reasons)) if reason), "")


@contextmanager
def _yes_to_all() -> Iterator[None]:
    """Truth for code that asks whether all elements are equal, as transformers' masks do."""
    import torch

    original = torch.Tensor.__bool__
    torch.Tensor.__bool__ = lambda tensor: tensor.is_meta or original(tensor)  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        torch.Tensor.__bool__ = original  # type: ignore[method-assign]


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
    apart = {kind: how.removeprefix(f"{NOT_COUNTED}: ") for kind, how in known.items() if how.startswith(NOT_COUNTED)}
    rows = [kind for kind, how in known.items() if how == "row"]
    recorded = [kind for kind, how in known.items() if how == "recorded"]
    refused = {kind: how for kind, how in known.items() if how not in ("row", "recorded") and kind not in apart}
    answered, counted = len(rows) + len(recorded), len(known) - len(apart)
    share = answered / max(1, counted)
    counts = f"{len(rows)} types by a row, {len(recorded)} recorded, {len(refused)} refused: {share:.0%} of {counted}."
    everything = f"{answered / max(1, len(known)):.0%} of all {len(known)}"
    others = f"The classes of {len(apart)} more refuse their own default configuration: {everything}."
    return f"{counts} {others}\n\n{_rows('refused', refused)}\n{_rows('not counted', apart)}"


def _rows(title: str, reasons: dict[str, str]) -> str:
    lines = [f"| {title} | why |", "|---|---|"]
    return (
        "\n".join(lines + [f"| `{kind}` | {how.replace('|', '/')} |" for kind, how in sorted(reasons.items())]) + "\n"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
