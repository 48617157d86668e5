"""A key of a ds_config explained, for people."""

from __future__ import annotations

from rich.console import Console

from ...validate.lint.linted_config import shown
from ..answer.explained_key import KeyExplanation
from ..text.lines import blank, capitalised, cells, ended, sentence
from ..text.units import gib, rate


def render_key(key: KeyExplanation, console: Console) -> None:
    """Meaning, type and default, where it acts, the rules about it, and the figures by value."""
    sentence(console, key.path, style="bold")
    if key.meaning:
        sentence(console, ended(capitalised(key.meaning)))
    if key.description:
        sentence(console, f'DeepSpeed: "{key.description}"', style="dim")
    blank(console)
    default = f"; default {key.default}" if key.default else ""
    if key.type or default:
        sentence(console, ended(f"{capitalised(key.type or 'value')}{default}"))
    stages = ", ".join(map(str, key.stages))
    if key.path.startswith("zero_optimization"):
        sentence(console, f"Used at ZeRO stage {stages}." if stages else "No stage uses it.")
    for words in key.acts:
        sentence(console, words)
    if key.keys:
        blank(console)
        width = max(map(len, key.keys))
        for name, words in key.keys.items():
            sentence(console, f"{name:<{width}}  {words}".rstrip(), hang=width + 2)
    if key.rules:
        blank(console)
        sentence(console, "Rules of lint about it (lint --explain CODE):")
        for rule in key.rules:
            sentence(console, f"  {rule}", hang=8)
    if key.plan:
        blank(console)
        sentence(console, f"What it costs here ({key.plan}): {key.no_cost or 'predicted figures by value'}.")
    if len(key.costs) > 1:
        cells(console, "    value                 GPU GiB    RAM GiB    tokens/s", style="bold")
        for cost in key.costs:
            mark = "*" if cost.is_the_plans else " "
            value = f"{cost.value:,}" if type(cost.value) is int else shown(cost.value)
            figures = f"{gib(cost.device_bytes_per_gpu):>10} {gib(cost.host_bytes_per_node):>10}"
            cells(console, f"  {mark} {value:<18} {figures} {rate(cost.tokens_per_s):>11}")
        sentence(console, "* the recommended plan's value", style="dim")
    blank(console)
    sentence(console, f"Read in the sources of DeepSpeed {key.deepspeed}.", style="dim")
