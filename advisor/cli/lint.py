"""`ds-advise lint DS_CONFIG`: what DeepSpeed refuses, ignores, or does other than meant, before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..text.output import Output
from .completion import complete_gpus, complete_model
from .options import COUNT, OFFLINE, RAM, output_options


@click.command(name="lint", short_help="Check a ds_config: what is refused, ignored, or slower than need be.")
@click.argument("config_file", metavar="DS_CONFIG", required=False)
@click.option(
    "--model",
    metavar="MODEL",
    help="Name the model, as for the advice: then memory and speed are judged.",
    shell_complete=complete_model,
)
@click.option(
    "--gpus",
    metavar="SPEC",
    help="Name the GPUs, as for the advice, or auto (this machine).",
    shell_complete=complete_gpus,
)
@RAM
@click.option("--seq-len", type=COUNT, help="Set the tokens per sample; by default 2048, or the model's positions.")
@click.option(
    "--framework",
    type=click.Choice(["hf", "deepspeed"]),
    help="Say who reads the file: the Trainer or accelerate (hf), or deepspeed.initialize; by default hf for a file "
    'that holds an "auto".',
)
@click.option(
    "--fix",
    is_flag=True,
    help="Correct what can be corrected without changing the training; the old file stays as DS_CONFIG.bak.",
)
@click.option("--list", "listed", is_flag=True, help="List the rules.")
@click.option("--explain", "explained", metavar="CODE", help="Explain one rule, such as DS101.")
@OFFLINE
@output_options
def lint(config_file: str | None, listed: bool, explained: str | None, output: Output, **options: Any) -> int:
    """Check a DeepSpeed configuration file.

    \b
    ds-advise lint ds_config.json
    ds-advise lint ds_config.json --model Qwen2.5-14B --gpus 8xA100-80GB
    ds-advise lint ds_config.json --fix
    python make_config.py | ds-advise lint -

    Exit code: 0 without errors, 1 with errors, 2 where the file cannot be read.
    """
    if listed or explained:
        return _show_rules(explained, output)
    if config_file is None:
        raise click.UsageError("missing argument 'DS_CONFIG'")
    from ..question.lint_file import lint_file
    from ..render.lint import answer_json, render_answer

    answer = lint_file(Path(config_file), **options)
    if answer.unknown_optimizer:
        output.say(
            f"memory and speed are not judged: the states of the optimizer {answer.unknown_optimizer!r} are not known"
        )
    output.show(lambda: answer_json(answer), lambda console: render_answer(answer, console))
    return int(answer.report.count("error") > 0)


def _show_rules(code: str | None, output: Output) -> int:
    from ...validate.lint import RULES
    from ..render.lint import render_rule, render_rules

    rules = RULES if code is None else [rule for rule in RULES if rule.code == code.upper()]
    if not rules:
        raise click.UsageError(f"there is no rule {(code or '')[:20]!r}; --list shows them")
    console = output.console()
    if code is None:
        render_rules(rules, console)
    else:
        render_rule(rules[0], console)
    return 0
