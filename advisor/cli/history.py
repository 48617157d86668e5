"""`ds-advise history`: what was measured, listed, exported or forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...estimators.errors import DsAdviseError
from ..text.output import Output
from .options import COUNT, output_options, share_options

if TYPE_CHECKING:
    from rich.console import Console

    from ...probes.store import Store


@click.command(short_help="List, export or forget what was measured.")
@click.argument("ids", nargs=-1, metavar="[ID ...]")
@click.option("--forget", is_flag=True, help="Remove the records with these numbers, or `all`.")
@click.option(
    "--limit", type=COUNT, default=20, metavar="N", show_default=True, help="Show so many lines; --json has all."
)
@share_options()
@output_options
def history(ids: Sequence[str], forget: bool, limit: int, html: Path | None, force: bool, output: Output) -> int:
    """List probes, benchmarks, trainings and dry runs, the newest first; all of them, or those with the numbers ID.

    \b
    ds-advise history
    ds-advise history 12 --json
    ds-advise history 12 --html training.html
    ds-advise history --forget 3 5
    ds-advise history --forget all

    Nothing that identifies the machine beyond its hardware is in a record. Exit code: 0, or 2 for a store that cannot
    be read.
    """
    from ...probes.store import Store
    from ..render.history import json_form, render_forgotten, render_history

    store = Store()
    chosen = None if not ids or tuple(ids) == ("all",) else [_number(text) for text in ids]
    if html is not None:
        if forget or chosen is None or len(chosen) != 1:
            raise click.UsageError("--html is a report of one training; give its number, and no --forget")
        _share(store, chosen[0], html, force=force, output=output)
    if forget:
        if not ids:
            raise click.UsageError("--forget needs the numbers of records, or all")
        gone = store.forget("all" if chosen is None else chosen)
        output.show(lambda: {"forgotten": gone}, lambda console: render_forgotten(gone, chosen or (), console))
        return 0

    def render(console: Console) -> None:
        found = store.find(ids=chosen, limit=limit + 1)
        render_history(found[:limit], console, path=store.path, more=len(found) > limit)

    output.show(lambda: json_form(store.find(ids=chosen)), render)
    return 0


def _share(store: Store, number: int, html: Path, *, force: bool, output: Output) -> None:
    """Write the report of a record."""
    from ..html_report.launch import record_html
    from ..html_report.output_files import check_targets, write_file

    check_targets(html, None, force=force)
    found = store.find(ids=[number])
    if not found:
        raise DsAdviseError(f"there is no record {number}", fix="`ds-advise history` lists them")
    write_file(record_html(found[0]).encode(), html, "--html")
    output.say(f"wrote {html}")


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise DsAdviseError(f"{text[:40]!r} is not the number of a record", fix="`ds-advise history` lists them")
    return int(text)
