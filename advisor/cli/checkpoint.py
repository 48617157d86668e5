"""`ds-advise checkpoint`: what lies in a checkpoint, whether it is whole, and its weights as a model."""

from __future__ import annotations

from pathlib import Path

import click

from ...estimators.phrase import phrase
from ..text.output import Output
from .options import FORCE, PATH, output_options, warn_ignored


@click.command()
@click.argument("folder", metavar="DIR", type=PATH)
@click.option("--to-hf", type=PATH, metavar="OUT", help="Write the weights as a Hugging Face model into a new folder.")
@click.option(
    "--dtype",
    type=click.Choice(["auto", "bf16", "fp16", "fp32"]),
    default="auto",
    help="Type of the written weights; auto: that of config.json.",
)
@FORCE
@output_options
def checkpoint(folder: Path, to_hf: Path | None, dtype: str, force: bool, output: Output) -> int:
    """Show what a checkpoint of DeepSpeed or the Trainer holds, check its files, and get its weights out.

    Every file is read once: archives are complete, and those that `launch` or `train` saw written have their
    checksums. The weights are put together by DeepSpeed's zero_to_fp32.

    \b
    ds-advise checkpoint output/checkpoint-500
    ds-advise checkpoint output/checkpoint-500 --to-hf my-model

    Exit code: 0 whole, 1 damaged, 2 it could not be read.
    """
    from ...validate.checkpoint import read_checkpoint
    from ...validate.checkpoint_weights import WeightsOf, contents_of
    from ..render.checkpoint import CheckpointAnswer, render_checkpoint

    if not to_hf:
        warn_ignored("dtype", "without --to-hf")
    if not folder.is_dir():
        raise click.UsageError(phrase("{folder} is not a folder", folder=folder))
    contents = contents_of(folder)
    found = read_checkpoint(folder)
    conversion = None
    if to_hf and found.is_whole:
        weights = WeightsOf(contents, dtype)  # type: ignore[arg-type]  # Click has checked the choice
        conversion = weights.conversion()
        output.say(phrase("needs {size} GiB of RAM", size=f"{conversion.peak_bytes / 2**30:.1f}"))
        weights.write(to_hf, force=force, say=output.say)
    answer = CheckpointAnswer(
        contents=contents,
        evidence=found.evidence,
        damaged=found.damaged,
        conversion=conversion,
        written="" if conversion is None else str(to_hf),
    )
    output.show(lambda: answer, lambda console: render_checkpoint(answer, console))
    return 0 if found.is_whole else 1
