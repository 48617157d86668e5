"""Which model types of transformers are answered with their default configuration: by a row, by a recording, or not.

    python -m benchmarks.recorded_models [TYPE ...] [--answers FILE] [--write]

TYPE:      only these model types; by default all that transformers maps for causal language modeling,
           sequence-to-sequence language modeling, and image-text-to-text.
--answers: keep the results in FILE, and do not ask again what is in it.
--write:   put the table into docs/models.md.

`save_pretrained` writes each type's configuration into a folder, `ds-advise FOLDER --gpus 8x8xH100` is asked about it,
and the number of parameters compared with that of the class on the meta device. 2 to 60 seconds for each type, each in
a process of its own. A type is counted apart if transformers cannot build it from its default configuration.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from ds_advise.advisor.cli.main import UNANSWERED, run
from ds_advise.estimators.models.families import FAMILIES

from .document import show

PATIENCE_S = 600
NOT_COUNTED = "transformers cannot build it"
GPUS = "8x8xH100"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="recorded_models", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("types", nargs="*", metavar="TYPE")
    parser.add_argument("--answers", type=Path, metavar="FILE")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    known: dict[str, str] = {}
    if options.answers and options.answers.exists():
        known = json.loads(options.answers.read_text(encoding="utf-8"))
    for model_type in options.types or model_types():
        if model_type not in known:
            known[model_type] = _in_a_process(model_type)
            print(f"{model_type}: {known[model_type]}", flush=True)
        if options.answers:
            options.answers.write_text(json.dumps(known, indent=1), encoding="utf-8")
    show("models.md", "recorded_models", table(known), writes=options.write)
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
    """ "row" or "recorded", with the class's number of parameters if it is another; or why it is not answered."""
    from transformers import CONFIG_MAPPING

    with tempfile.TemporaryDirectory() as folder:
        try:
            config = CONFIG_MAPPING[model_type]()
            config.save_pretrained(folder)
            built: int | str = _parameters(config)
        except Exception as error:  # whatever a configuration or a model's code raises
            built = f"{NOT_COUNTED}: {(str(error).strip().splitlines() or [type(error).__name__])[0][:120]}"
        printed, said = io.StringIO(), io.StringIO()
        with redirect_stdout(printed), redirect_stderr(said):
            code = run([folder, "--gpus", GPUS, "--json", "--no-write"])
        if isinstance(built, str):
            return built
        if code == UNANSWERED:
            reason = said.getvalue().replace(f"{folder}: ", "").replace(folder, "it").strip().splitlines()[-1]
            reason = reason.removeprefix("ds-advise: ").removeprefix("this type of model is not known here, and ")
            return reason.partition("; use a model of a known type")[0]
        counted = json.loads(printed.getvalue())["model"]["parameters"]
        how = "row" if model_type in FAMILIES else "recorded"
        return how if counted == built else f"{how}, {counted:,} parameters instead of {built:,}"


def _parameters(config: Any) -> int:
    """The number of parameters of the class, without weights, tied as `from_pretrained` ties it."""
    import torch
    from ds_advise.probes.default_script.trainer import model_class

    with torch.device("meta"):
        model = model_class(config)._from_config(config)
    model.tie_weights()
    return sum(parameter.numel() for parameter in model.parameters())


def _in_a_process(model_type: str) -> str:
    """The answer from a fork of this process, whose imports it shares."""
    from ds_advise.probes.model_recorder import structure  # noqa: F401  imported once

    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sender.send(answer(model_type)))
    process.start()
    sender.close()
    try:
        return str(receiver.recv()) if receiver.poll(PATIENCE_S) else f"not answered after {PATIENCE_S} s"
    except EOFError:
        return "ended without an answer"
    finally:
        process.kill()
        process.join()


def table(known: dict[str, str]) -> str:
    """How many types are answered, and the others with the reason."""
    apart = {kind: how.removeprefix(f"{NOT_COUNTED}: ") for kind, how in known.items() if how.startswith(NOT_COUNTED)}
    by = {way: {kind: how for kind, how in known.items() if how.startswith(way)} for way in ("row", "recorded")}
    answered = by["row"] | by["recorded"]
    refused = {kind: how for kind, how in known.items() if kind not in answered | apart}
    counted = len(known) - len(apart)
    exact = sum(how in by for how in answered.values())
    lines = [
        f"{len(by['row'])} types by a row, {len(by['recorded'])} recorded, {len(refused)} refused: "
        f"{len(answered) / max(1, counted):.0%} of {counted}. The parameters of {exact} of the {len(answered)} are "
        f"those of the class. transformers cannot build {len(apart)} more from their default configuration.",
        "",
        _rows("refused", refused),
        _rows("not counted", apart),
    ]
    if differing := {kind: how.partition(", ")[2] for kind, how in answered.items() if how not in by}:
        lines.insert(2, _rows("other parameters", differing))
    return "\n".join(lines)


def _rows(title: str, reasons: dict[str, str]) -> str:
    lines = [f"| {title} | why |", "|---|---|"]
    return (
        "\n".join(lines + [f"| `{kind}` | {how.replace('|', '/')} |" for kind, how in sorted(reasons.items())]) + "\n"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
