"""The installed packages, without importing them."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path


def installed_version(package: str) -> str:
    """The version of an installed package; "" if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def source_folder(package: str) -> Path | None:
    """The folder of an installed package's sources; None if it is not installed or has none."""
    spec = find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin else None
