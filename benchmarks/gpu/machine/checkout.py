"""Makes this checkout importable as `ds_advise`, whatever its folder is called, here and in processes started here."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def make_importable(cache: Path, packages: Sequence[Path] = ()) -> None:
    """Put the checkout, and folders of further packages before it, on the search path of this process and its children.

    cache: where a link named `ds_advise` is made, unless Python finds this checkout under that name already.
    """
    folders = [*packages, ROOT]
    found = find_spec("ds_advise")
    if found is None or found.origin is None or Path(found.origin).resolve() != ROOT / "__init__.py":
        # A folder for each checkout: two of them may be used at the same time.
        links = cache / f"import-{sha256(str(ROOT).encode()).hexdigest()[:8]}"
        links.mkdir(parents=True, exist_ok=True)
        if not (links / "ds_advise").exists():
            (links / "ds_advise").symlink_to(ROOT, target_is_directory=True)
        folders.append(links)
    sys.path[:0] = [str(folder) for folder in folders]
    importlib.invalidate_caches()
    inherited = filter(None, [os.environ.get("PYTHONPATH")])
    os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, folders), *inherited])
