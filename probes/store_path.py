"""The path of the store, in a separate module so that a check for results does not load the database."""

from __future__ import annotations

import os
from pathlib import Path


def store_path() -> Path:
    """`results.sqlite` in DS_ADVISE_CACHE, or in the platform's cache folder (XDG_CACHE_HOME on Linux)."""
    chosen = os.environ.get("DS_ADVISE_CACHE")
    if chosen:
        return Path(chosen).expanduser() / "results.sqlite"
    from platformdirs import user_cache_path

    return user_cache_path("ds-advise") / "results.sqlite"


def store_exists() -> bool:
    """Whether the store exists. An unreadable folder counts as existing; the store then raises its error."""
    try:
        store_path().stat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True
