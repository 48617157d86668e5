"""The page's files, and a folder of them for any web server: the page, this package, and Python for the browser."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Literal

import packaging

from ...estimators.errors import DsAdviseError
from .. import html_report
from ..html_report.report import SCRIPTS
from ..text.language import Language
from .answers import FIRST

VERSION = "314.0.7"
"""Version of Pyodide, with Python 3.14.2; the page is tested with this version only."""

_SHA_512 = (
    "d18bd7c4485f11da4b7dbfd790cd8114078c44eab488c517d9bcf31fda4eb6dc"
    "8c716930abe1db139bb2b860fcd8b37bcb6abe48dbe2ffa579244b0e943d91d4"
)
"""Checksum of the npm package's file `pyodide-314.0.7.tgz`."""

FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
"""Files of Pyodide."""

PAGE_SCRIPTS = ("question.js", "controls.js", "field_links.js", "answer.js", "sources.js", "lint_form.js", "page.js")
"""Scripts of the page alone, in the order of loading; the last one starts it."""

TYPES = {
    "index.html": "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    **dict.fromkeys((*SCRIPTS, *PAGE_SCRIPTS), "text/javascript; charset=utf-8"),
    "icon.svg": "image/svg+xml",
}
"""Media types of the page's own files."""

WORKER_FILES = ("worker.js", "service_worker.js")
"""Additional files of a static page."""

TEMPLATES = frozenset(("index.html", "service_worker.js"))

PACKAGE = "ds_advise.bin"
"""This package's files, as a gzip-compressed tar archive. No server recognizes one by this suffix."""

MEMORY = "python_memory.bin"
"""Python's memory with this package imported, compressed with gzip."""

_LEFT_OUT = (
    "advisor/cli",
    "advisor/importers",
    "advisor/launch",
    "advisor/page/static",
    "advisor/verification",
    "advisor/rent.py",
    "advisor/train",
    "estimators/schedule",
    "probes/dry_run",
    "probes/recording",
    "probes/simulated_gpu",
    "probes/real_run",
    "validate/doctor",
)
"""Modules that the page does not use: terminal commands, and modules that need torch."""

_KEPT = ("probes/dry_run/__init__.py", "probes/dry_run/supported.py")
"""Modules among those that the page does use: which questions have no dry run."""

_MOST_S = 300
"""Timeout of npm and Node in seconds; they need about five."""

_MARK = "built-by-ds-advise"
"""File that marks a built folder; a build accepts only such a folder or an empty one."""


def page_file(
    name: str,
    *,
    answers: Literal["worker", "server"],
    language: Language | None = None,
    build: str = "",
    kept: str = "[]",
    shown: str = "null",
) -> bytes:
    """Return one of the page's own files as served. answers: where the answers are computed. language: None selects
    the browser's. build: name of this build's cache. kept: JSON, the files in the cache. shown: JSON, the content of
    the page before Python runs."""
    folder = files(html_report) if name in SCRIPTS else files(__package__).joinpath("static")
    raw = folder.joinpath(name).read_bytes()
    if name not in TEMPLATES:
        return raw
    text = raw.decode()
    shown = shown.replace("<", "\\u003c")  # "</script>" would end the script element around it
    values = {
        "answers": answers,
        "language": language or "",
        "build": build,
        "files": kept,
        "first": json.dumps(FIRST),
        "shown": shown,
    }
    return re.sub(r"{{(\w+)}}", lambda key: values[key[1]], text).encode()


def build_page(folder: Path, *, pyodide: Path | None) -> list[Path]:
    """Write the page's files into a folder, and return them.

    pyodide: the npm package's file, or a folder with its files; None downloads it with npm. Raises DsAdviseError for a
    folder with other files, a folder that is not writable, and a missing Pyodide.
    """
    if folder.exists() and not folder.is_dir():
        raise DsAdviseError(f"{folder} is a file", fix="name a folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / _MARK).is_file():
        raise DsAdviseError(
            f"{folder} holds other files",
            why="they would be mixed with the page's files",
            fix="name an empty or a new folder",
        )
    contents = {PACKAGE: package_archive(), **pyodide_files(pyodide)}
    contents |= {name: page_file(name, answers="worker") for name in (*TYPES, *WORKER_FILES)}
    build = hashlib.sha256(b"".join(contents[name] for name in sorted(contents))).hexdigest()[:12]
    shown = "null"
    if run := _imported(contents):
        contents[MEMORY], shown = run
    kept = json.dumps(sorted({*contents} - TEMPLATES))
    contents |= {name: page_file(name, answers="worker", build=build, kept=kept, shown=shown) for name in TEMPLATES}
    contents[_MARK] = f"{build}\n".encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, raw in contents.items():
            (folder / name).write_bytes(raw)
    except OSError as error:
        raise DsAdviseError(
            f"{folder}: cannot be written ({error.strerror})",
            fix="name a folder that you may write to",
        ) from error
    return [folder / name for name in contents]


def _imported(contents: Mapping[str, bytes]) -> tuple[bytes, str] | None:
    """Return Python's memory with this package imported, and its answer to `FIRST`; None without Node or on failure.

    Node runs the same WebAssembly as browsers. The memory differs between builds (hash seeds), so it is not part of the
    build's name.
    """
    node = shutil.which("node")
    if node is None:
        return None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in (*FILES, PACKAGE):
            (folder / file).write_bytes(contents[file])
        script, written, shown = folder / "memory.mjs", folder / MEMORY, folder / "shown.json"
        script.write_bytes(page_file(script.name, answers="worker"))
        try:
            _run([node, str(script), f"{folder}/", str(written), str(shown)], folder).check_returncode()
        except (OSError, subprocess.SubprocessError):
            return None
        return gzip.compress(written.read_bytes(), mtime=0), shown.read_text("utf-8")


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_MOST_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def pyodide_files(place: Path | None) -> Mapping[str, bytes]:
    """Return Pyodide's files by name, from a folder, from the npm package's file, or from npm. Raises DsAdviseError if
    files are missing or of another version."""
    if place is None:
        with tempfile.TemporaryDirectory() as folder:
            return _from_package(_downloaded(Path(folder)))
    return _from_folder(place) if place.is_dir() else _from_package(place)


def _from_folder(folder: Path) -> Mapping[str, bytes]:
    try:
        found = {name: (folder / name).read_bytes() for name in FILES}
    except OSError as error:
        raise _unusable(f"{folder}: {error.strerror} ({Path(error.filename).name})") from None
    if f'"{VERSION}"'.encode() not in found["pyodide.mjs"]:
        raise _unusable(f"{folder} holds another version of Pyodide")
    return found


def _from_package(file: Path) -> Mapping[str, bytes]:
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise _unusable(f"{file}: {error.strerror}") from None
    if hashlib.sha512(raw).hexdigest() != _SHA_512:
        raise _unusable(f"{file} is not the npm package pyodide {VERSION}: its SHA-512 is another")
    with tarfile.open(file) as archive:
        streams = {name: archive.extractfile(f"package/{name}") for name in FILES}
        return {name: stream.read() for name, stream in streams.items() if stream is not None}


def _downloaded(folder: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise _unusable("Pyodide is needed, and npm, which fetches it, is not installed")
    command = [npm, "pack", "--silent", "--ignore-scripts", "--pack-destination", str(folder), f"pyodide@{VERSION}"]
    try:
        done = _run(command, folder)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _unusable(f"npm could not fetch Pyodide ({type(error).__name__})") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise _unusable(f"npm could not fetch Pyodide ({last})")
    return folder / f"pyodide-{VERSION}.tgz"


def _unusable(what: str) -> DsAdviseError:
    return DsAdviseError(
        what,
        why=f"a static page includes Pyodide {VERSION}",
        fix=(
            f"get it where there is a network (npm pack pyodide@{VERSION}) and pass --pyodide pyodide-{VERSION}.tgz; "
            "ds-advise page without --build needs none"
        ),
    )


def package_archive() -> bytes:
    """Return this package, and `packaging` for lint, as `PACKAGE`. The same sources give the same bytes."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, file in _packed_files():
            entry = tarfile.TarInfo(name)
            entry.size = file.stat().st_size
            archive.addfile(entry, io.BytesIO(file.read_bytes()))
    return gzip.compress(written.getvalue(), mtime=0)


def _packed_files() -> Iterator[tuple[str, Path]]:
    root = Path(__file__).parents[2]
    yield "ds_advise/__init__.py", root / "__init__.py"
    for layer in ("estimators", "ds_configs", "probes", "validate", "advisor"):
        for file in sorted((root / layer).rglob("*")):
            name = file.relative_to(root).as_posix()
            if file.suffix in (".py", ".json", ".gz", ".csv", ".po") and (
                name in _KEPT or not name.startswith(_LEFT_OUT)
            ):
                yield f"ds_advise/{name}", file
    for file in sorted(Path(packaging.__file__).parent.glob("*.py")):
        yield f"packaging/{file.name}", file
