"""The table of commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module

import click

GROUPS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Ask": {
        "advise": ("advise:advise", "Recommend the fastest DeepSpeed configuration that fits."),
        "explain": ("explain:explain", "Show each figure's formula, values and source."),
        "compare": ("config_files:compare", "Compare two configurations: differences and their effects."),
        "rent": ("rent:rent", "Compare the machines that one can rent by cost and hours."),
        "page": ("machine:page", "Open the what-if page in the browser, or build it."),
    },
    "Try and run a training": {
        "dry-run": ("runs:dry_run", "Run your script, a configuration or a model on a simulated GPU."),
        "probe": ("runs:probe", "Run a configuration for a few real steps on this machine."),
        "launch": ("launch:launch", "Launch the training with your own script, and monitor it."),
        "train": ("train:train", "Train a model on a data file: advise, check, launch and save."),
        "why": ("why:why", "Name the cause of a failed training and its fix, by its log."),
        "checkpoint": ("machine:checkpoint", "Inspect a checkpoint, and export its weights as a model."),
    },
    "Check a file": {
        "lint": ("lint:lint", "Check a ds_config for refused, ignored and slow settings."),
        "check": ("config_files:check", "Check configurations against requirements, one line each (CI)."),
        "from": ("config_files:from_file", "Check another tool's configuration, and write a better one."),
    },
    "This machine": {
        "doctor": ("machine:doctor", "Find what makes trainings fail or slow on this machine."),
        "bench": ("machine:bench", "Measure this machine's speeds for later answers."),
        "history": ("records:history", "List measurements, print them as JSON, or remove them."),
        "contribute": ("records:contribute", "Show measured runs as rows that improve the predictions."),
    },
    "For other programs": {
        "schema": ("schema:schema", "Print the JSON Schema of a command's --json."),
        "mcp": ("mcp:mcp", "Serve these commands to a coding agent (Model Context Protocol)."),
    },
}
"""What one wants -> command -> (module of this folder and function, summary). A module is imported when its command
runs."""

COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}


def command_named(name: str) -> click.Command:
    """Return a command of the table. Imports its module."""
    module, function = COMMANDS[name][0].split(":")
    command: click.Command = getattr(import_module(f".{module}", __package__), function)
    return command


def named_command(args: Sequence[str]) -> str:
    """Return the command that the first word of a line names; "" if it names none."""
    return args[0] if args and args[0] in COMMANDS else ""


def command_of(args: Sequence[str]) -> click.Command:
    """Return the command that answers a line: `advise` if its first word names none."""
    return command_named(named_command(args) or "advise")
