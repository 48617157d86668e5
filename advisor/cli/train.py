"""The command `train`: train a model on a data file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ..question.options import OPTIONS, CpuOptions, MachineOptions, MethodOptions, TrainingOptions, names_in
from ..text.output import Output
from ..train.settings import TRAINING_OPTIONS
from .help import GroupedCommand
from .mistaken_files import refuse_data
from .options import (
    FALLBACK,
    OBJECTIVE,
    PATH,
    STALL,
    Whole,
    model_option,
    output_options,
    passed_options,
    question_options,
)
from .run_options import newest_file

_TRAINED = (
    *names_in(
        MachineOptions,
        MethodOptions,
        TrainingOptions,
        without=("threads", "quantization", "document_len", "images_per_sample", "max_pixels", "freeze", *OBJECTIVE),
    ),
    *("risk", "offline"),
)
"""Options of `advise` that also apply to a training."""


@click.command(cls=GroupedCommand)
@click.argument("config_file", metavar="[DS_CONFIG]", type=PATH, required=False)
@question_options(
    (*_TRAINED, *names_in(CpuOptions), "data", "epochs", "packing", "eval_split", *TRAINING_OPTIONS),
    into="options",
    declared={**OPTIONS, **TRAINING_OPTIONS},
    extra=[
        model_option("Model: a folder with config.json, tokenizer and safetensors, or a hub id."),
        click.option("--seed", type=Whole(0, 2**31), default=42, help="Random seed."),
        click.option("--no-probe", is_flag=True, help="Check by a dry run instead of a probe."),
        click.option("--no-check", is_flag=True, help="Start without probe, dry run and disk check."),
    ],
    data={"help": "Training data: .jsonl, .json, .csv, .tsv or .parquet."},
    seq_len={"default_text": "the longest sample, within the model's limit"},
    global_batch={"help": "Samples per optimizer step.", "default_text": "32, less for few samples"},
)
@click.option("--output-dir", default="output", metavar="DIR", help="Folder of the model and its checkpoints.")
@click.option("--resume", is_flag=True, help="Continue the training in --output-dir with its options.")
@click.option("--force", is_flag=True, help="Use an --output-dir that is not empty, and remove its checkpoints.")
@FALLBACK
@STALL
@click.option("--dry", is_flag=True, help="Show data, plan and command, and start nothing.")
@click.option("--verbose", is_flag=True, help="Show rank 0's output.")
@output_options
def train(
    config_file: Path | None,
    options: dict[str, Any],
    output_dir: str,
    resume: bool,
    force: bool,
    fallback: bool,
    stall_s: float | None,
    dry: bool,
    verbose: bool,
    output: Output,
) -> int:
    """Train a model on a data file: recommend a configuration, check that it fits, train, save.

    A DS_CONFIG that ds-advise wrote is trained as it is, with the model and the settings that it records. Without
    DS_CONFIG and --model, that is the newest one in this folder.

    \b
    ds-advise train --model ./Qwen2.5-1.5B --data chats.jsonl
    ds-advise train --model ./Qwen2.5-14B --data train.json --method lora --merge
    ds-advise train ds_config.json --data chats.jsonl
    ds-advise train --resume --output-dir output

    Exit code: 0 if it trained and saved, 1 if it stopped, failed or does not fit, 2 if it cannot be started.
    """
    if not resume:  # checked before the import, which needs the extra `train`
        from ..data.rows import check_file

        config_file = config_file or (None if options["model"] else newest_file(output))
        if config_file is not None:
            refuse_data(config_file)
            options |= _recorded_training(config_file, options, output)
        for name in ("model", "data"):
            if not options[name]:
                raise click.UsageError(f"--{name} is missing")
        check_file(Path(options["data"]).expanduser())
    from ...probes.machine import busy

    was_busy = busy()
    with output.waiting("loading libraries"):
        from ..train.train import TrainingControls, resume_training, show, train_anew

    folder = Path(output_dir).expanduser().absolute()
    # Absolute, so that --resume works from another folder.
    for name in ("model", "data", "eval_data", "config_file"):
        if options.get(name) and Path(options[name]).expanduser().exists():
            options[name] = str(Path(options[name]).expanduser().absolute())
    controls = TrainingControls(output=output, fallback=fallback, stall_s=stall_s, verbose=verbose, was_busy=was_busy)
    if resume:
        return resume_training({name: options[name] for name in passed_options() & options.keys()}, folder, controls)
    advice = {name: options[name] for name in _TRAINED}
    if dry:
        return show(options, advice, folder, output, force=force)
    return train_anew(options, advice, folder, controls, force=force)


def _recorded_training(file: Path, options: Mapping[str, Any], output: Output) -> dict[str, Any]:
    """The options of a training that a configuration records and the user did not pass, and the file itself. Raises
    UsageError for a question about another kind of training."""
    from ..question.file_question import read_file_question

    passed = passed_options() & {*options.keys()}
    question = read_file_question(file, {name: options[name] for name in passed & {*OPTIONS, "model"}})
    question.tell(output.say)
    recorded = {name: value for name, value in question.asked.items() if name not in passed}
    for name, value in recorded.items():
        if name not in options and value != OPTIONS[name].default:
            raise click.UsageError(
                f"{file} is for a training with {OPTIONS[name].flag} {value}, which train cannot make"
            )
    known = {name: value for name, value in recorded.items() if name in options}
    return known | {"model": question.model, "config_file": str(file)}
