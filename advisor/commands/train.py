"""`ds-advise train --model PATH --data FILE`: advise, prove, train and save, without a script."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ...estimators.plan import RUNGS
from .options import COUNT, training_question, training_question_options

if TYPE_CHECKING:
    from ...estimators.models.model_shape import ModelShape
    from ..trainer.settings import Settings

_SHAPES = ("chat", "prompt-completion", "instruction", "text-label", "text")

_OF_THIS_CALL = ("output_dir", "resume", "force", "fallback", "dry", "verbose", "debug")
"""Options that say nothing of the training itself; the others are kept with it, for --resume."""


@click.command(short_help="Train a model on a data file: advise, prove, launch and save.")
@training_question_options
@click.option("--format", "shape", type=click.Choice(_SHAPES), help="What a row is; unset: recognised.")
@click.option("--system", metavar="TEXT", help="A system message for chats that bring none.")
@click.option("--packing", is_flag=True, help="Fill each sample with several rows, which do not see each other.")
@click.option(
    "--eval-split",
    "evaluation_share",
    type=float,
    default=0.0,
    metavar="SHARE",
    help="Share of the rows that is evaluated and not trained, such as 0.05.",
)
@click.option("--eval-data", "evaluation_data", metavar="FILE", help="Rows to evaluate on, in place of --eval-split.")
@click.option("--epochs", type=float, metavar="N", help="Times that all samples are trained on.  [default: 3]")
@click.option("--max-steps", type=COUNT, help="Optimizer steps, in place of --epochs.")
@click.option("--learning-rate", type=float, metavar="RATE", help="Its peak; unset: 2e-5, with LoRA 2e-4.")
@click.option("--lora-alpha", type=COUNT, help="Scale of the adapters; unset: twice --lora-rank.")
@click.option(
    "--seed",
    type=click.IntRange(min=0, max=2**31),
    default=42,
    show_default=True,
    metavar="N",
    help="Of the data's order, the split, dropout and new weights.",
)
@click.option(
    "--save-steps", type=COUNT, help="Steps between checkpoints and evaluations; unset: a tenth, at most 500."
)
@click.option(
    "--report-to",
    type=click.Choice(["auto", "tensorboard", "swanlab", "wandb", "none"]),
    default="auto",
    show_default=True,
    help="Where the loss is drawn; auto: TensorBoard where it is installed.",
)
@click.option("--merge", is_flag=True, help="With LoRA: also save the model with the adapters in its weights.")
@click.option("--rung", type=click.Choice(RUNGS), help="The rung to train on; unset: the fastest that fits.")
@click.option(
    "--output-dir", default="output", show_default=True, metavar="DIR", help="Where model and checkpoints go."
)
@click.option("--resume", is_flag=True, help="Go on with the training in --output-dir; the rest is as it was.")
@click.option("--force", is_flag=True, help="Use an --output-dir that is not empty; its checkpoints are removed.")
@click.option("--no-probe", is_flag=True, help="Check by a dry run on a simulated GPU, not by real steps.")
@click.option("--no-check", is_flag=True, help="Start without a probe or dry run, and without looking at the disk.")
@click.option(
    "--fallback",
    is_flag=True,
    help="Where memory runs out, go on with the next plan that fits, from the last checkpoint.",
)
@click.option("--dry", is_flag=True, help="Show data, plan and command, and start nothing.")
@click.option(
    "--device",
    type=click.Choice(["cuda", "cpu"]),
    default="cuda",
    show_default=True,
    help="Train on GPUs, or with processes on this machine's CPU in their place.",
)
@click.option("--ranks", type=COUNT, help="Run so many ranks with --device cpu.  [default: 2]")
@click.option("--memory", metavar="SIZE", help="What each rank may plan with, with --device cpu, such as 2GB.")
@click.option("--verbose", is_flag=True, help="Show the first rank's output while it trains.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def train(
    output_dir: str, resume: bool, force: bool, fallback: bool, dry: bool, verbose: bool, debug: bool, **options: Any
) -> int:
    """Train a model on a data file: recommend a configuration, prove that it fits, train, save.

    \b
    ds-advise train --model ./Qwen2.5-1.5B --data chats.jsonl
    ds-advise train --model ./Qwen2.5-14B --data train.json --method lora --merge
    ds-advise train --resume --output-dir output

    Exit code: 0 trained and saved, 1 it was stopped, it failed, or nothing fits, 2 it could not be started.
    """
    del debug  # read from the arguments by the program's error handler
    from ..trainer.output import Output

    output = Output(Path(output_dir).expanduser().absolute())
    for name in ("model", "data", "evaluation_data"):  # to be resumed from wherever somebody stands
        if options[name] and Path(options[name]).expanduser().exists():
            options[name] = str(Path(options[name]).expanduser().absolute())
    if resume:
        return _resumed(output, options, fallback=fallback, verbose=verbose)
    for name in ("model", "data"):
        if not options[name]:
            raise click.UsageError(f"--{name} is missing")
    if dry:
        from tempfile import TemporaryDirectory

        with TemporaryDirectory() as folder:
            return _new(Output(Path(folder)), options, shown_as=output, verbose=verbose)
    return _new(output, options, force=force, fallback=fallback, verbose=verbose)


def _new(
    output: Any,
    options: dict[str, Any],
    *,
    verbose: bool,
    fallback: bool = False,
    force: bool = False,
    shown_as: Any = None,
) -> int:
    """A training from its beginning. shown_as: only show it, as if its output went there."""
    from rich.console import Console

    from ..trainer.proposal import propose
    from ..trainer.report import render_proposal, render_proven, render_start, render_trained
    from ..trainer.train import proven, start

    console = Console(file=sys.stdout, highlight=False)
    settings, shape, question, limit = _asked(options)
    output.claim(force=force)
    output.write_asked({name: value for name, value in options.items() if name not in _OF_THIS_CALL})
    proposed = propose(settings, shape, question, output, _say)
    render_proposal(proposed, console)
    if proposed.answer.recommended is None:
        return 1
    if shown_as is not None:
        render_start(proposed, shown_as, console)
        return 0
    ready = proven(proposed, memory_limit_bytes=limit, say=_say)
    render_proven(proposed, ready, console)
    if ready.answer.recommended is None:
        return 1
    trained = start(ready, fallback=fallback, verbose=verbose, say=_say)
    render_trained(trained, console)
    return 0 if trained.finished else 1


def _resumed(output: Any, options: dict[str, Any], *, fallback: bool, verbose: bool) -> int:
    from rich.console import Console

    from ..trainer.output import differing
    from ..trainer.report import render_trained
    from ..trainer.train import resume

    asked = output.read_asked()
    source = click.get_current_context().get_parameter_source
    given = {name: value for name, value in options.items() if source(name) is ParameterSource.COMMANDLINE}
    for name, before in differing(asked, given):
        raise click.UsageError(
            f"--{name.replace('_', '-')} was {before} in the training that is to go on; leave it out"
        )
    settings, shape, question, _ = _asked(asked)
    trained = resume(settings, shape, question["gpus"], output, fallback=fallback, verbose=verbose, say=_say)
    render_trained(trained, Console(file=sys.stdout, highlight=False))
    return 0 if trained.finished else 1


def _asked(options: dict[str, Any]) -> tuple[Settings, ModelShape, dict[str, Any], int | None]:
    """(the training's own options, the model, the question to `advise`, what a rank on the CPU may take)."""
    from ..question.cluster_options import ClusterOptions
    from ..question.model_source import load_model
    from ..trainer.settings import Settings

    question = training_question(options)
    machines = ClusterOptions(
        **{name: options[name] for name in ("gpus", "ram", "nvme", "interconnect", "device", "ranks", "memory")}
    )
    question["gpus"], limit = machines.cluster(), machines.memory_limit_bytes
    own = {
        name: options[name]
        for name in (
            "model",
            "device",
            "evaluation_share",
            "shape",
            "system",
            "packing",
            "lora_alpha",
            "epochs",
            "max_steps",
            "learning_rate",
            "seed",
            "save_steps",
            "report_to",
            "merge",
            "rung",
            "offline",
        )
    }
    settings = Settings(
        **own,
        data=Path(options["data"]),
        evaluation_data=Path(options["evaluation_data"]) if options["evaluation_data"] else None,
        proof="none" if options["no_check"] else "dry-run" if options["no_probe"] else "probe",
    )
    return settings, load_model(settings.model, offline=settings.offline), question, limit


def _say(text: str) -> None:
    click.echo(f"ds-advise: {text}", err=True)
