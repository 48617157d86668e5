"""What the measurements' processes find in their environment on an unknown machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

_QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
    "DS_SKIP_CUDA_CHECK": "1",  # nvcc of another minor version of CUDA than torch's compiles what is needed here
}


def cache_folder() -> Path:
    """Where extensions, packages and results of the program are kept from one call to the next on the same machine."""
    folder = Path(tempfile.gettempdir()) / f"ds-advise-gpu-{os.getuid()}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def prepare(cache: Path, device: str) -> None:
    """Set the variables that every process inherits; what the user has set stays, but for what would reach outside."""
    os.environ.update(_QUIET)
    os.environ["DS_ADVISE_CACHE"] = str(cache / "results")
    home = Path(os.environ.get("HOME") or "/nonexistent")
    if not os.access(home, os.W_OK):
        (cache / "home").mkdir(exist_ok=True)
        os.environ["HOME"] = str(cache / "home")
    # The CPU's and CUDA's builds of one extension have one name, and torch tells neither its versions nor Python's.
    extensions = cache / f"extensions-{device}-{sys.implementation.cache_tag}"
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(extensions))
    for lock in extensions.glob("*/lock"):
        lock.unlink()  # torch's, of a build that was ended: the next one would wait for it for ever
    for variable in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        os.environ.pop(variable, None)  # a measurement sets its own
    if device == "cuda":
        _find_cuda_headers(cache)


def install(wheels: Path, cache: Path) -> Path:
    """Install the wheels of a folder (`benchmarks.gpu.wheels`) into a folder of their own, which is answered.

    Raises subprocess.CalledProcessError where pip fails; its output stays visible.
    """
    site = cache / "site"
    files = sorted(map(str, wheels.glob("*.whl")))
    mark, names = site / "installed", "\n".join(files)
    if files and not (mark.exists() and mark.read_text(encoding="utf-8") == names):
        shutil.rmtree(site, ignore_errors=True)
        options = "--quiet --no-index --no-deps --no-compile --no-cache-dir --disable-pip-version-check --target"
        subprocess.run([sys.executable, "-m", "pip", "install", *options.split(), str(site), *files], check=True)
        mark.write_text(names, encoding="utf-8")
    library = wheels / "libaio"
    if library.is_dir():
        for variable, folder in (("CPATH", library), ("LIBRARY_PATH", library), ("LD_LIBRARY_PATH", library)):
            _append(variable, folder.resolve())
    return site


def _find_cuda_headers(cache: Path) -> None:
    """Let compilers find CUDA's headers and libraries in NVIDIA's Python packages where the toolkit lacks them."""
    nvcc = shutil.which("nvcc")
    toolkit = Path(os.environ.get("CUDA_HOME") or (Path(nvcc).resolve().parents[1] if nvcc else "/usr/local/cuda"))
    if (toolkit / "include" / "cusparse.h").exists():
        return
    packages = Path(sysconfig.get_path("purelib")) / "nvidia"
    for folder in packages.glob("*/include"):
        _append("CPATH", folder)
    links = cache / "cuda-libraries"
    links.mkdir(exist_ok=True)
    for library in packages.glob("*/lib/lib*.so.*"):
        link = links / (library.name.partition(".so")[0] + ".so")  # the name that -lNAME looks for
        if not link.is_symlink():
            link.symlink_to(library)
    _append("LIBRARY_PATH", links)


def _append(variable: str, folder: Path) -> None:
    parts = [*filter(None, os.environ.get(variable, "").split(os.pathsep)), str(folder)]
    os.environ[variable] = os.pathsep.join(dict.fromkeys(parts))
