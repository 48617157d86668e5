"""The answer as GitHub-flavoured Markdown, to be pasted into an issue or a chat."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...ds_configs.write import config_text
from ..answer.recommendation import Recommendation
from ..answer.view import AnswerView, LadderRow, view_of

_SPECIAL = re.compile(r"([\\`*_\[\]<>#|~&@])")

_ALIGNMENT = ("---", "---", "---:", "---:", "---:", "---")


def advice_markdown(answer: Recommendation, config_path: str) -> str:
    """Verdict, ladder, what would change it, and, folded, configuration and commands."""
    view = view_of(answer, config_path=config_path, details=True)
    steps = (line for block in view.steps for line in (block.text, *(f"   {code}" for code in block.code)))
    parts = [
        f"**{_plain(view.verdict.headline)}** {_plain(' '.join(view.verdict.sentences))}",
        _plain(" · ".join(view.subject)),
        _ladder(view),
        f"{view.changes}:" if view.change_rows else "",
        "\n".join(f"- `{change.flags}`: {_plain(change.outcome)}" for change in view.change_rows),
        _folded("Configuration", "json", "" if view.config is None else config_text(view.config).rstrip()),
        _folded("Script and commands", "text", "\n".join(steps)),
        _folded("Assumed", "", "\n".join(f"- {_plain(text)}" for text in view.assumptions)),
        _plain(view.evidence[0]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _ladder(view: AnswerView) -> str:
    """The plans as a table."""
    head = ("rung", "shape", *(view.columns[name] for name in ("gpu_gib", "ram_gib", "tokens_per_s")), "verdict")
    rows = (_cells(row) for row in view.ladder if row.candidate is not None)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, _ALIGNMENT, *rows))


def _cells(row: LadderRow) -> Iterable[str]:
    speed = row.tokens_per_s if row.fits else ""
    cells = (row.rung, row.shape, row.gpu_gib, row.ram_gib, speed, _plain(row.verdict))
    return [f"**{cell}**" if row.is_chosen and cell else cell for cell in cells]


def _folded(title: str, language: str, text: str) -> str:
    """A part that a click opens; text in a language stands in a fence that is longer than any in it."""
    if not text:
        return ""
    longest = max((len(found) for found in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    body = f"{fence}{language}\n{text}\n{fence}" if language else text
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"


def _plain(text: str) -> str:
    """Text without markup and mentions."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
