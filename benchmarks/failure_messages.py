"""The known failure messages as tables of the manual: `python -m benchmarks.failure_messages [--write]`."""

from __future__ import annotations

from itertools import groupby
from typing import Literal

from ds_advise.probes.failures.messages import MemoryPhase, Message, filled, memory_phases, messages
from ds_advise.probes.failures.signs import Sign

from .document import table_command

_WHERE: dict[Sign, str] = {
    "deepspeed": "With DeepSpeed",
    "zero3": "Under ZeRO-3",
    "fsdp": "Under FSDP",
    "outside_fp16": "In bf16 or fp32",
    "prediction_loop": "With transformers 3",
}


def table() -> str:
    """The messages by area, and the phases in which a GPU's memory runs out."""
    lines = list[str]()
    for area, rows in groupby(messages(), key=lambda message: message.area):
        lines += [f"## {area}", "", "| message | cause | fix | confirmed by |", "|---|---|---|---|"]
        for row in rows:
            cause, fix = (filled(_text(row, name), {}) for name in ("cause", "fix"))
            cause = cause if row.certain else f"Usually: {cause}"
            lines.append(_row(f"`{row.title}`", cause, fix, _link(row.source)))
        lines.append("")
    lines += ["## Where a GPU's memory runs out", "", "| it fails | cause | fix | read in |", "|---|---|---|---|"]
    lines += [
        _row(each.title, _text(each, "cause"), _text(each, "fix"), _link(each.source)) for each in memory_phases()
    ]
    return "\n".join([*lines, ""])


def _text(row: Message | MemoryPhase, name: Literal["cause", "fix"]) -> str:
    """A text without any sign, and those of each sign that has its own."""
    own = [f"{_WHERE[sign]}: {texts[name].rstrip('.')}" for sign, texts in row.under.items() if name in texts]
    return ". ".join([getattr(row, name).rstrip(".") if own else getattr(row, name), *own])


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _link(source: str) -> str:
    """The source as a link with a short text, or a file of an installed package."""
    if not source.startswith("https://"):
        return source
    where = source.removeprefix("https://").removeprefix("github.com/").split("/")
    is_thread = len(where) == 4 and where[2] in ("issues", "pull")
    return f"[{where[1]} #{where[3]}]({source})" if is_thread else f"[{where[0]}]({source})"


if __name__ == "__main__":
    table_command(__doc__, "messages.md", "failure_messages", table)
