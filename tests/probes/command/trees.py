"""What a run leaves behind, and a way to run a script that leaves nothing."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

_HASHED_BYTES = 1 << 20

_WORKER = """
import os, runpy, sys
from ds_advise.probes.command import files, redirect
scratch, folder, script, wall, limit = sys.argv[1:]
os.chdir(files.View(scratch).mirror(folder))
redirect.install(scratch, wall=wall == "wall", limit_bytes=int(limit))
if "torch.save" in open(script).read():
    from ds_advise.probes.command import savers
    savers.install()
sys.argv = [script, folder]
runpy.run_path(script, run_name="__main__")
"""


def tree_state(folder: Path) -> dict[str, tuple[object, ...]]:
    """Every entry below the folder: kind and mode, size, time of change, link target, content of small files."""
    state: dict[str, tuple[object, ...]] = {}
    for path in (folder, *folder.rglob("*")):
        found = path.lstat()
        content = ""
        if path.is_symlink():
            content = str(path.readlink())
        elif path.is_file() and found.st_size <= _HASHED_BYTES:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        size = 0 if path.is_dir() else found.st_size
        state[str(path.relative_to(folder))] = (found.st_mode, size, found.st_mtime_ns, content)
    return state


def run_in_view(
    script: str, folder: Path, scratch: Path, *, wall: bool = True, limit_bytes: int = 1 << 30
) -> subprocess.CompletedProcess[str]:
    """Run a script, which knows its folder as `here`, through a view in `scratch`."""
    from ds_advise.probes.command import files

    file = scratch / "script.py"
    file.write_text(f"import os, sys\nfrom pathlib import Path\nhere = Path(sys.argv[1])\n{script}")
    arguments = [str(scratch), str(folder), str(file), "wall" if wall else "open", str(limit_bytes)]
    return subprocess.run(
        [sys.executable, "-c", _WORKER, *arguments],
        cwd=folder,
        env=os.environ | files.environment(scratch),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
