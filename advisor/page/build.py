"""A folder that any web server can serve: the page, this package, and Python for the browser."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import packaging

from ...estimators.errors import DsAdviseError
from .files import TYPES, WORKER_FILES, page_file
from .pyodide import FILES, pyodide_files

PACKAGE = "ds_advise.zip"

MEMORY = "python_memory.bin"
"""Python's memory with this package imported, compressed by gzip (under a name that no server takes for that)."""

_LEFT_OUT = (
    "advisor/cli",
    "advisor/importers",
    "advisor/launch",
    "advisor/page/static",
    "advisor/verification",
    "advisor/rent",
    "advisor/train",
    "estimators/schedule",
    "probes/dry_run",
    "probes/recording",
    "probes/simulated_gpu",
    "probes/rank_processes",
    "probes/real_run",
    "validate/doctor",
)
"""What answers nothing in a browser: commands of a terminal, and what works on a machine with torch."""

_IMPORT_S = 300
"""Seconds after which Node is given up; it needs about five."""

_MARK = "built-by-ds-advise"
"""A file that says whose folder it is: only such a one, or an empty one, is built into."""


def build_page(folder: Path, *, pyodide: Path | None) -> list[Path]:
    """Write the page's files into a folder, and return them.

    pyodide: the npm package's file, or a folder with its files; None asks npm.

    Raises DsAdviseError for a folder with other files in it or that cannot be written, and where there is no Pyodide.
    """
    _check(folder)
    contents = {PACKAGE: package_zip(), **pyodide_files(pyodide)}
    contents |= {name: page_file(name, answers="worker") for name in (*TYPES, *WORKER_FILES)}
    build = hashlib.sha256(b"".join(contents[name] for name in sorted(contents))).hexdigest()[:12]
    memory = _imported(contents)
    contents |= {} if memory is None else {MEMORY: memory}
    kept = json.dumps(sorted({*contents} - {"index.html", "service_worker.js"}))
    contents |= {name: page_file(name, answers="worker", build=build, kept=kept) for name in (*TYPES, *WORKER_FILES)}
    contents[_MARK] = f"{build}\n".encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, raw in contents.items():
            (folder / name).write_bytes(raw)
    except OSError as error:
        raise DsAdviseError(
            f"{folder}: cannot be written ({error.strerror})", fix="name a folder that you may write to"
        ) from error
    return [folder / name for name in contents]


def _imported(contents: Mapping[str, bytes]) -> bytes | None:
    """Python's memory once it has imported this package and answered; None without Node, or where that fails.

    Node runs the same WebAssembly as browsers do. Two builds differ in it (seeds of hashes), so it names no build.
    """
    node = shutil.which("node")
    if node is None:
        return None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in (*FILES, PACKAGE):
            (folder / file).write_bytes(contents[file])
        script, written = folder / "memory.mjs", folder / MEMORY
        script.write_bytes(page_file(script.name, answers="worker"))
        try:
            subprocess.run(
                [node, script, f"{folder}/", written],
                check=True,
                capture_output=True,
                timeout=_IMPORT_S,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return gzip.compress(written.read_bytes(), mtime=0)


def package_zip() -> bytes:
    """This package, and `packaging` that lint needs, as an archive; the same to the byte for the same sources."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as zipped:
        for name, file in (*_own_files(), *_packaging_files()):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            zipped.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED, compresslevel=9)
    return archive.getvalue()


def _own_files() -> Iterator[tuple[str, Path]]:
    """Modules and data by their names in the archive. Of the root, which in a checkout holds other things too, the
    package's own module alone."""
    root = Path(__file__).parents[2]
    yield "ds_advise/__init__.py", root / "__init__.py"
    for room in ("estimators", "ds_configs", "probes", "validate", "advisor"):
        for file in sorted((root / room).rglob("*")):
            name = file.relative_to(root).as_posix()
            if file.suffix in (".py", ".json", ".csv") and not name.startswith(_LEFT_OUT):
                yield f"ds_advise/{name}", file


def _packaging_files() -> Iterator[tuple[str, Path]]:
    folder = Path(packaging.__file__).parent
    for file in sorted(folder.glob("*.py")):
        yield f"packaging/{file.name}", file


def _check(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise DsAdviseError(f"{folder} is a file", fix="name a folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / _MARK).is_file():
        raise DsAdviseError(
            f"{folder} holds other files", why="the page's would lie among them", fix="name an empty or a new folder"
        )
