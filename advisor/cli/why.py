"""The command `why`: the cause of a failed training, by its log."""

from __future__ import annotations

import gzip
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import click

from ...estimators.errors import ConfigFileError, DsAdviseError
from ..text.output import Output
from .config_files import file_options
from .options import ACCUMULATION, PATH, model_option, output_options

if TYPE_CHECKING:
    from ...probes.failures.diagnosis import Diagnosis
    from ..answer.memory_change import MemoryForecast


@click.command()
@click.argument("log", metavar="LOG", required=False)
@click.option(
    "--config", type=PATH, metavar="FILE", help="The training's ds_config.json, to name the change that fits."
)
@click.option("--list", "listed", is_flag=True, help="List the known messages.")
@file_options(extra=[model_option("The training's model, if FILE does not record it."), ACCUMULATION])
@output_options
def why(log: str | None, config: Path | None, listed: bool, question: dict[str, Any], output: Output) -> int:
    """Name the cause of a failed training and its fix, by the log of any launcher.

    LOG is a file (also .gz), or - for standard input. It is read once, whatever its size, with all ranks in it.

    \b
    ds-advise why train.log
    ds-advise why slurm-1234.out --config ds_config.json
    ds-advise why train.log --config ds_config.json --model Qwen2.5-7B --gpus 4x48GB
    kubectl logs my-job | ds-advise why -

    Exit code: 0 if the cause is known, 1 if it is not, 2 if the log cannot be read.
    """
    from ...probes.failures.diagnosis import diagnose
    from ..render.deliver import show_document
    from ..render.why import message_list, why_document

    if listed:
        from ..document.terminal import print_blocks

        print_blocks(message_list(), output.console())
        return 0
    if log is None:
        raise click.UsageError("missing argument 'LOG'")
    if question and config is None:
        raise click.UsageError("--model, --gpus and the like need --config")
    with _opened(log) as stream:
        try:
            found = diagnose(stream)
        except (OSError, EOFError, ValueError) as error:
            raise ConfigFileError(
                f"{log} cannot be read", why=getattr(error, "strerror", None) or str(error)
            ) from error
    name = "the input" if log == "-" else Path(log).name
    forecast = None if config is None else _forecast(config, found, question, output)
    show_document(lambda: why_document(name, found, forecast), output)
    return 0 if found.message is not None else 1


def _opened(log: str) -> AbstractContextManager[BinaryIO]:
    """Open a log. Raises ConfigFileError if it cannot be opened."""
    if log == "-":
        return nullcontext(sys.stdin.buffer)
    path = Path(log)
    try:
        return cast("BinaryIO", gzip.open(path)) if path.suffix == ".gz" else path.open("rb")
    except (OSError, ValueError) as error:
        reason = "it is a folder; name a file in it" if path.is_dir() else getattr(error, "strerror", "") or str(error)
        raise ConfigFileError(f"{log[:200]} cannot be read", why=reason) from error


def _forecast(config: Path, found: Diagnosis, question: dict[str, Any], output: Output) -> MemoryForecast | None:
    """The prediction for the configuration of a training whose memory ran out; None for another failure."""
    if found.kind not in ("gpu_out_of_memory", "host_out_of_memory"):
        return None
    from ..advise import files_context
    from ..answer.memory_change import memory_forecast
    from ..question.file_question import read_file_question

    file = read_file_question(config, question)
    context = files_context([file], question, say=output.say)
    if context is None:
        raise DsAdviseError(
            f"{file.name} does not say for which model it is", fix="pass --model and --gpus, or leave --config out"
        )
    return memory_forecast(file, context, "gpu" if found.kind == "gpu_out_of_memory" else "host")
