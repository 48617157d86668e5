"""PATH as in an activated virtual environment, for the processes that are started."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def search_path() -> str:
    """$PATH with the programs installed beside this Python first.

    `.venv/bin/ds-advise` may be called by its path alone. Its processes would then compile DeepSpeed's extensions with
    the system's ninja, or none; and two versions of ninja do not accept each other's logs: a training in the activated
    environment would compile everything again, and so in turns.
    """
    return os.pathsep.join(filter(None, (str(Path(sys.executable).parent), os.environ.get("PATH"))))
