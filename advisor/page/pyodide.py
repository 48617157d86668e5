"""Pyodide, Python for browsers: which version the page is made with, and where its files come from.

It is 13 MB and no package of PyPI, so it is not installed with ds-advise. The npm package `pyodide` holds it; whoever
has no npm downloads that package elsewhere and names the file.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ...estimators.errors import DsAdviseError

VERSION = "314.0.7"
"""Python 3.14.2's; a page is tested with this one alone."""

_SHA_512 = (
    "d18bd7c4485f11da4b7dbfd790cd8114078c44eab488c517d9bcf31fda4eb6dc"
    "8c716930abe1db139bb2b860fcd8b37bcb6abe48dbe2ffa579244b0e943d91d4"
)
"""Of the npm package's file `pyodide-314.0.7.tgz`."""

FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")

_DOWNLOAD_S = 300
"""Seconds after which a download of 6 MB is given up."""


def pyodide_files(place: Path | None) -> Mapping[str, bytes]:
    """The files by name, from a folder or from the npm package's file; without a place npm is asked for it.

    Raises DsAdviseError where they cannot be had, or are of another version.
    """
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
        raise _unusable("Pyodide is needed, and npm, which brings it, is not installed")
    command = [npm, "pack", "--silent", "--ignore-scripts", "--pack-destination", str(folder), f"pyodide@{VERSION}"]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_DOWNLOAD_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _unusable(f"npm could not bring Pyodide ({type(error).__name__})") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise _unusable(f"npm could not bring Pyodide ({last})")
    return folder / f"pyodide-{VERSION}.tgz"


def _unusable(what: str) -> DsAdviseError:
    return DsAdviseError(
        what,
        why=f"a page that answers by itself holds Pyodide {VERSION}",
        fix=f"get it where there is a network (npm pack pyodide@{VERSION}) and pass --pyodide pyodide-{VERSION}.tgz; "
        "ds-advise page without --build needs none",
    )
