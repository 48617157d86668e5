"""The hook of mkdocs: output in the colours that it has in a terminal, and the README as the first page.

The pages contain plain text, which every Markdown viewer shows. `docs/colours.json`, written by
`python -m benchmarks.shown_output --write`, has the same lines with the terminal's escape codes. mkdocs loads this file
by its path, so it imports nothing of the project.
"""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.style import Style
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
COLOURS = ROOT / "docs" / "colours.json"
STYLES = ROOT / "docs" / "terminal.css"
_CONSOLE = Console(color_system="standard", force_terminal=True)
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CODE_OR_UNIT = re.compile(r"(<(?:pre|code)\b.*?</(?:pre|code)>)|(?<=\d) (?=%|[kMGT]i?B\b)", re.DOTALL)
_CODE_IN_ROW = re.compile(r"(?<=[ |])`[^`\n]*\\\|[^`\n]*`")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return a page with each console block as HTML with a class for each style; the first page is the README.

    GitHub needs `\\|` for a bar in a table's code, Python-Markdown prints the backslash.
    """
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]
        markdown = first_page((ROOT / "README.md").read_text(encoding="utf-8"))
    coloured = json.loads(COLOURS.read_text(encoding="utf-8"))

    def block(found: re.Match[str]) -> str:
        lines = "\n".join(_line(line, coloured.get(line, line)) for line in found[1].splitlines())
        return f'<div class="highlight"><pre class="terminal"><code>{lines}</code></pre></div>'

    return _CODE_IN_ROW.sub(lambda code: code[0].replace("\\|", "|"), _BLOCK.sub(block, markdown))


def on_page_content(html: str, **_: Any) -> str:
    """Return a page whose tables have no empty headers, which mean nothing to a screen reader, whose options are not
    divided after their hyphens, and whose numbers are not divided from their units."""
    html = _CODE_OR_UNIT.sub(lambda found: found[1] or "\N{NO-BREAK SPACE}", html)
    html = re.sub(r"(?<!<pre>)<code>(?=[^<\n]{1,26}</code>)", '<code class="short">', html)
    return re.sub(r"<th[^>]*></th>", "<td></td>", html)


def on_post_page(output: str, **_: Any) -> str:
    """Return a page whose search has a name for screen readers; the theme leaves it out."""
    return output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )


def first_page(readme: str) -> str:
    """Return the README without its parts for developers, with links from the folder of the manual."""
    for_users = re.sub(r"^\[中文\].*\n", "", readme.partition("\n## Contributing\n")[0], flags=re.MULTILINE)
    return for_users.replace("](docs/", "](")


def terminal_colours() -> dict[str, str]:
    """Return the site's colours of a dark terminal by class, of this file's spans."""
    dark = next(line for line in STYLES.read_text(encoding="utf-8").splitlines() if line.startswith("[data-md"))
    return dict(re.findall(r"--(term-\w+): (#\w+)", dark))


def _line(plain: str, coloured: str) -> str:
    return spans(Text(plain, style="bold") if plain.startswith("$ ") else Text.from_ansi(coloured), "span")


def spans(line: Text, element: str) -> str:
    """Return a line as text in elements with a class for each style."""
    parts = line.render(_CONSOLE)
    return "".join(_span(escape(part.text), part.style or Style(), element) for part in parts if part.text)


def _span(text: str, style: Style, element: str) -> str:
    names = [name for name, is_set in (("bold", style.bold), ("dim", style.dim)) if is_set]
    names += [str(style.color.number)] if style.color and style.color.number is not None else []
    classes = " ".join(f"term-{name}" for name in names)
    return f'<{element} class="{classes}">{text}</{element}>' if names else text
