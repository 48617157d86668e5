"""`ds-advise history`: what was measured, listed, exported or forgotten."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import click

from .options import COUNT


@click.command(short_help="List, export or forget what was measured.")
@click.argument("ids", nargs=-1, metavar="[ID ...]")
@click.option("--forget", is_flag=True, help="Remove the records with these numbers, or `all`.")
@click.option(
    "--limit", type=COUNT, default=20, metavar="N", show_default=True, help="Lines of the list; --json has all."
)
@click.option("--json", "as_json", is_flag=True, help="Print every record whole, as one JSON object.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def history(ids: Sequence[str], forget: bool, limit: int, as_json: bool, debug: bool) -> int:
    """List probes, benchmarks and trainings of this user, the newest first; all of them, or those with the numbers ID.

    \b
    ds-advise history
    ds-advise history 12 --json
    ds-advise history --forget 3 5
    ds-advise history --forget all

    Nothing that identifies the machine beyond its hardware is in a record. Exit code: 0, or 2 for a store that cannot
    be read.
    """
    del debug  # read from the arguments by the program's error handler
    from ...probes.store import Store
    from ..reports.history import render_history, without_nan

    store = Store()
    chosen = None if not ids or tuple(ids) == ("all",) else [_number(text) for text in ids]
    if forget:
        if not ids:
            raise click.UsageError("--forget needs the numbers of records, or all")
        gone = store.forget("all" if chosen is None else chosen)
        if as_json:
            print(json.dumps({"forgotten": gone}))
        else:
            print(_said(gone, chosen))
        return 0
    if as_json:
        records = [without_nan(record.to_json()) for record in store.find(ids=chosen)]
        print(json.dumps({"schema_version": 1, "records": records}, indent=1))
        return 0
    from rich.console import Console

    found = store.find(ids=chosen, limit=limit + 1)
    render_history(found[:limit], Console(file=sys.stdout, highlight=False), path=store.path, more=len(found) > limit)
    return 0


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise click.UsageError(f"{text[:40]!r} is not the number of a record; see ds-advise history")
    return int(text)


def _said(gone: Sequence[int], chosen: Sequence[int] | None) -> str:
    missing = sorted(set(chosen or ()) - set(gone))
    line = f"Forgot {', '.join(map(str, gone))}." if gone else "Forgot nothing."
    return line + (f" There is no {', '.join(map(str, missing))}." if missing else "")
