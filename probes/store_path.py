"""Where results are kept; apart from the store, so that asking whether there are any loads no database."""

from __future__ import annotations

import os
from pathlib import Path


def store_path() -> Path:
    """`results.sqlite` in DS_ADVISE_CACHE, or in the folder that the platform has for caches (XDG_CACHE_HOME on
    Linux)."""
    chosen = os.environ.get("DS_ADVISE_CACHE")
    if chosen:
        return Path(chosen).expanduser() / "results.sqlite"
    from platformdirs import user_cache_path

    return user_cache_path("ds-advise") / "results.sqlite"


def anything_kept() -> bool:
    """Whether the file is there; a folder that may not be read counts, and the store says what is wrong with it."""
    try:
        store_path().stat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True
