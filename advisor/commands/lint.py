"""`ds-advise lint DS_CONFIG`: what DeepSpeed refuses, ignores, or does other than meant, before anything runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from .options import COUNT


@click.command(name="lint", short_help="Check a ds_config: what is refused, ignored, or slower than need be.")
@click.argument("config_file", metavar="DS_CONFIG", required=False)
@click.option(
    "--model", metavar="MODEL", help="A model in any form that `ds-advise MODEL` takes; for memory and speed."
)
@click.option("--gpus", metavar="SPEC", help="2x32GB, 8xA100-80GB, 4x8xH100, RTX4090, or auto (this machine).")
@click.option("--ram", metavar="SIZE", help="Host RAM per node, such as 256GB; unset: detected with --gpus auto.")
@click.option("--seq-len", type=COUNT, help="Tokens per sample; unset: 2048, or the model's positions if fewer.")
@click.option(
    "--framework",
    type=click.Choice(["hf", "deepspeed"]),
    help='Who reads the file: the Trainer or accelerate, or deepspeed.initialize; unset: hf if it holds an "auto".',
)
@click.option(
    "--fix",
    is_flag=True,
    help="Correct what can be corrected without changing the training; the old file stays as DS_CONFIG.bak.",
)
@click.option("--list", "listed", is_flag=True, help="List the rules.")
@click.option("--explain", "explained", metavar="CODE", help="Explain one rule, such as DS101.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--offline", is_flag=True, help="Do not use the network.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def lint(
    config_file: str | None, listed: bool, explained: str | None, as_json: bool, debug: bool, **options: Any
) -> int:
    """Check a DeepSpeed configuration file.

    \b
    ds-advise lint ds_config.json
    ds-advise lint ds_config.json --model Qwen2.5-14B --gpus 8xA100-80GB
    ds-advise lint ds_config.json --fix

    Exit code: 0 without errors, 1 with errors, 2 where the file cannot be read.
    """
    del debug  # read from the arguments by the program's error handler
    if listed or explained:
        return _show_rules(explained)
    if config_file is None:
        raise click.UsageError("missing argument 'DS_CONFIG'")
    from ..lint import lint_file

    answer = lint_file(Path(config_file), **options)
    if as_json:
        from ..reports.lint import answer_json

        print(json.dumps(answer_json(answer), indent=1))
    else:
        from rich.console import Console

        from ..reports.lint import render_answer

        render_answer(answer, Console(file=sys.stdout, highlight=False))
    return int(answer.report.count("error") > 0)


def _show_rules(code: str | None) -> int:
    from rich.console import Console

    from ...validate.lint import RULES
    from ..reports.lint import render_rule, render_rules

    console = Console(file=sys.stdout, highlight=False)
    if code is None:
        render_rules(RULES, console)
        return 0
    rule = next((rule for rule in RULES if rule.code == code.upper()), None)
    if rule is None:
        raise click.UsageError(f"there is no rule {code[:20]!r}; --list shows them")
    render_rule(rule, console)
    return 0
