"""The answer as GitHub-flavoured Markdown, to be pasted into an issue or a chat."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from ...ds_configs.write import config_text
from ...estimators.json_form import to_json
from ..answer.advice import advice_of
from ..answer.recommendation import Recommendation
from ..text.labels import device_word, shape_words
from ..text.units import gib, rate
from .deliver import recommended_config
from .next_steps import render_next_steps
from .proofs import evidence_sentence
from .subject import subject
from .verdict import verdict

_SPECIAL = re.compile(r"([\\`*_\[\]<>#|~&@])")


def advice_markdown(answer: Recommendation, config_path: str) -> str:
    """Verdict, ladder, what would change it, and, folded, configuration and commands."""
    form = to_json(advice_of(answer))
    first, *more = (str(line) for line in verdict(answer))
    changes = [f"- `{change['flags']}`: {_plain(change['outcome'])}" for change in form["changes"]]
    parts = [
        f"**{_plain(first)}** {_plain(' '.join(more))}",
        _plain(" · ".join(subject(answer))),
        _ladder(answer),
        *(["What would change the answer:" if answer.recommended else "What would make it fit:"] if changes else []),
        "\n".join(changes),
        _folded("Configuration", "json", _config(answer)),
        _folded("Script and commands", "text", _start(answer, config_path)),
        _folded("Assumed", "", "\n".join(f"- {_plain(text)}" for text in answer.assumptions)),
        _plain(evidence_sentence(answer)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _ladder(answer: Recommendation) -> str:
    form = to_json(advice_of(answer))
    head = ["rung", "shape", f"GiB per {device_word(answer.question.cluster)}", "GiB RAM", "tokens/s", "verdict"]
    rows = [_row(plan, plan == form["recommended"]) for plan in form["candidates"]]
    rule = ["---", "---", "---:", "---:", "---:", "---"]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows))


def _row(plan: Mapping[str, Any], chosen: bool) -> Sequence[str]:
    cells = [
        plan["rung"],
        shape_words(plan),
        gib(plan["device_bytes_per_gpu"]),
        gib(plan["host_bytes_per_node"]),
        rate(plan["tokens_per_second"]) if plan["fits"] else "",
        _plain(plan["reason"]),
    ]
    return [f"**{cell}**" if chosen and cell else cell for cell in cells]


def _config(answer: Recommendation) -> str:
    config = recommended_config(answer)
    return "" if config is None else config_text(config).rstrip()


def _start(answer: Recommendation, config_path: str) -> str:
    page = io.StringIO()
    console = Console(file=page, width=200, highlight=False, color_system=None)
    render_next_steps(answer, config_path, console, details=True)
    return page.getvalue().strip("\n")


def _folded(title: str, language: str, text: str) -> str:
    """A part that a click opens; text in a language stands in a fence that is longer than any in it."""
    if not text:
        return ""
    longest = max((len(found) for found in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    body = f"{fence}{language}\n{text}\n{fence}" if language else text
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"


def _plain(text: str) -> str:
    """Text in which nothing is markup or calls somebody."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
