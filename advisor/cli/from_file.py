"""`ds-advise from FILE`: a configuration of another tool, judged, and the better one in its own form."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ...estimators.errors import ConfigFileError
from ..text.output import Output
from .options import import_options, output_options


@click.command(name="from", short_help="Judge a configuration of another tool, and write the better one in its form.")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@import_options
@click.option(
    "-o",
    "--output",
    "destination",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the changed configuration to this file, and the DeepSpeed configuration beside it; by default only the "
    "differences are shown.",
)
@click.option("--force", is_flag=True, help="Overwrite files that are there.")
@output_options
def read_from(
    file: Path,
    with_: dict[str, Any],
    destination: Path | None,
    force: bool,
    output: Output,
) -> int:
    """Say what the training in a configuration of another tool needs, what is wrong with it and what would be better.

    FILE is accelerate's, axolotl's, LLaMA-Factory's or ms-swift's configuration, TrainingArguments as JSON, or a shell
    or Slurm script that starts a training.

    \b
    ds-advise from qwen3_lora_sft.yaml --gpus 4xA100-80GB
    ds-advise from train.sh --gpus 24GB
    ds-advise from accelerate.yaml --model Qwen2.5-7B --gpus 80GB -o better.yaml

    Exit code: 0 it fits and nothing refuses it, 1 it does not fit or is refused, 2 there is no answer.
    """
    from ..importers.answer import import_file, import_json
    from ..importers.report import render_import
    from ..importers.rewrite import write_files

    answer, failure = import_file(file, destination=destination, **with_), None
    if destination is not None and answer.files:
        try:
            answer = replace(answer, written=write_files(answer.files, force=force))
        except ConfigFileError as error:
            failure = error
    output.show(lambda: import_json(answer), lambda console: render_import(answer, console))
    problem = failure or answer.obstacle or (answer.unwritable if destination is not None else None)
    if problem is not None:
        raise problem
    return 0 if answer.is_fine else 1
