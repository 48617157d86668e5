"""A ds_config.json that a user names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...validate.lint.config_file import read_config_file


def read_ds_config(path: Path) -> dict[str, Any]:
    """The configuration, which may have comments, as DeepSpeed reads it. Raises ConfigFileError where it cannot be read
    or holds no object."""
    value: dict[str, Any] = read_config_file(path).document.root.value
    return value
