"""`ds-advise train --model PATH --data FILE`: advise, prove, train and save, without a script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ...estimators.plan import RUNGS
from ..text.output import Output
from .options import COUNT, CPU_RANKS, device, memory, output_options, training_question, training_question_options

_ROW_SHAPES = click.Choice(["chat", "prompt-completion", "instruction", "text-label", "text"])
_REPORTERS = click.Choice(["auto", "tensorboard", "swanlab", "wandb", "none"])


@click.command(short_help="Train a model on a data file: advise, prove, launch and save.")
@training_question_options
@click.option("--format", "shape", type=_ROW_SHAPES, help="Say what a row is; by default it is recognised.")
@click.option("--system", metavar="TEXT", help="Give chats without a system message this one.")
@click.option("--packing", is_flag=True, help="Fill each sample with several rows, which do not see each other.")
@click.option(
    "--eval-split",
    "evaluation_share",
    type=float,
    default=0.0,
    metavar="SHARE",
    help="Hold out this share of the rows for evaluation, such as 0.05.",
)
@click.option(
    "--eval-data",
    "evaluation_data",
    metavar="FILE",
    help="Evaluate on the rows of this file, in place of --eval-split.",
)
@click.option("--epochs", type=float, metavar="N", help="Train so many times on all samples.  [default: 3]")
@click.option("--max-steps", type=COUNT, help="Take so many optimizer steps, in place of --epochs.")
@click.option(
    "--learning-rate", type=float, metavar="RATE", help="Set the learning rate's peak; by default 2e-5, with LoRA 2e-4."
)
@click.option("--lora-alpha", type=COUNT, help="Set the scale of the adapters; by default twice --lora-rank.")
@click.option(
    "--seed",
    type=click.IntRange(min=0, max=2**31),
    default=42,
    show_default=True,
    metavar="N",
    help="Seed the data's order, the split, dropout and new weights.",
)
@click.option(
    "--save-steps", type=COUNT, help="Save and evaluate every so many steps; by default a tenth of all, at most 500."
)
@click.option(
    "--report-to",
    type=_REPORTERS,
    default="auto",
    show_default=True,
    help="Choose where the loss is drawn; auto is TensorBoard where it is installed.",
)
@click.option("--merge", is_flag=True, help="Also save the model with LoRA's adapters in its weights.")
@click.option("--rung", type=click.Choice(RUNGS), help="Train on this rung; by default the fastest that fits.")
@click.option(
    "--output-dir",
    default="output",
    show_default=True,
    metavar="DIR",
    help="Put the model and its checkpoints into this folder.",
)
@click.option("--resume", is_flag=True, help="Go on with the training in --output-dir; the rest is as it was.")
@click.option("--force", is_flag=True, help="Use an --output-dir that is not empty; its checkpoints are removed.")
@click.option("--no-probe", is_flag=True, help="Check by a dry run on a simulated GPU, not by real steps.")
@click.option("--no-check", is_flag=True, help="Start without a probe or dry run, and without looking at the disk.")
@click.option(
    "--fallback",
    is_flag=True,
    help="When memory runs out, go on with the next plan that fits, from the last checkpoint.",
)
@click.option("--dry", is_flag=True, help="Show data, plan and command, and start nothing.")
@device()
@CPU_RANKS
@memory("Plan with so much for each rank, with --device cpu, such as 2GB.")
@click.option("--verbose", is_flag=True, help="Show the first rank's output while it trains.")
@output_options
def train(
    output_dir: str,
    resume: bool,
    force: bool,
    fallback: bool,
    dry: bool,
    verbose: bool,
    output: Output,
    **options: Any,
) -> int:
    """Train a model on a data file: recommend a configuration, prove that it fits, train, save.

    \b
    ds-advise train --model ./Qwen2.5-1.5B --data chats.jsonl
    ds-advise train --model ./Qwen2.5-14B --data train.json --method lora --merge
    ds-advise train --resume --output-dir output

    Exit code: 0 trained and saved, 1 it was stopped, it failed, or nothing fits, 2 it could not be started.
    """
    from ..train.session import go_on, show, train_anew
    from ..train.train import TrainingControls

    folder = Path(output_dir).expanduser().absolute()
    for name in ("model", "data", "evaluation_data"):  # to be resumed from wherever somebody stands
        if options[name] and Path(options[name]).expanduser().exists():
            options[name] = str(Path(options[name]).expanduser().absolute())
    controls = TrainingControls(output=output, fallback=fallback, verbose=verbose)
    if resume:
        source = click.get_current_context().get_parameter_source
        given = {name: value for name, value in options.items() if source(name) is ParameterSource.COMMANDLINE}
        return go_on(given, folder, controls)
    for name in ("model", "data"):
        if not options[name]:
            raise click.UsageError(f"--{name} is missing")
    advice = training_question(options)
    if dry:
        return show(options, advice, folder, output)
    return train_anew(options, advice, folder, controls, force=force)
