"""`ds-advise page`: the what-if page, opened here or built into a folder for a web server."""

from __future__ import annotations

from pathlib import Path

import click

from .options import DEBUG, PATH


@click.command()
@click.option("--build", "folder", type=PATH, metavar="DIR", help="Build a static page into this folder.")
@click.option(
    "--pyodide", type=PATH, metavar="FILE", help="Pyodide's npm package or folder.  [default: npm fetches it]"
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of the server; 0: a free one.")
@click.option("--no-browser", is_flag=True, help="Print the address, and open no browser.")
@DEBUG
def page(folder: Path | None, pyodide: Path | None, port: int, no_browser: bool) -> int:
    """Ask what if: the advice changes with GPUs, sequence, batch and RAM.

    \b
    ds-advise page                         # opens it here; ends with Ctrl-C
    ds-advise page --build site            # a folder for any web server, which works offline

    Exit code: 0, or 2 if the page cannot be opened or built.
    """
    if folder is not None:
        return _build(folder, pyodide)
    if pyodide is not None:
        raise click.UsageError("--pyodide needs --build")
    from ..page.serve import page_server

    with page_server(port) as server:
        address = f"http://127.0.0.1:{server.server_address[1]}/"
        click.echo(f"The page is at {address} until you press Ctrl-C.")
        if not no_browser:
            click.launch(address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            click.echo()
    return 0


def _build(folder: Path, pyodide: Path | None) -> int:
    from ..page.build import MEMORY, build_page

    files = build_page(folder, pyodide=pyodide)
    size = sum(file.stat().st_size for file in files) / 1e6
    click.echo(f"Built {folder}: {len(files)} files, {size:.1f} MB.")
    if not any(file.name == MEMORY for file in files):
        click.echo("Node is missing or could not run Pyodide: each visit imports everything, which takes seconds.")
    click.echo(f"Open it: python3 -m http.server --directory {folder} 8000, then http://localhost:8000")
    return 0
