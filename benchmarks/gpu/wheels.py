"""Gather, where there is a network, the packages that a machine without one lacks: python -m benchmarks.gpu.wheels DIR

    --python 3.12         Python of that machine (Linux, x86-64)
    --cuda 13.0           CUDA of its torch: of bitsandbytes' libraries, one for each version of CUDA, only this is kept
    --installed FILE      what it has, a name a line; by default benchmarks/data/gpu/installed.txt, that of an image
                          with torch 2.11 for CUDA 13, transformers 5.17, accelerate and peft

DeepSpeed comes as source and is made a wheel here, without any compiled extension: the machine compiles those. Where
libaio's header and library are installed here, they are copied next to the wheels: DeepSpeed's NVMe code needs them. At
the end pip installs the wheels for that Python into a folder that is thrown away, every requirement of every wheel is
looked for among the wheels and the installed packages, and the sizes are printed. Exit code 1: something is missing, or
it is more than 50 MB.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Sequence
from email.parser import Parser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = ROOT / "benchmarks" / "data" / "gpu" / "installed.txt"
WANTED = (
    "annotated-types",
    "bitsandbytes",
    "datasets",
    "deepspeed",
    "dill",
    "hjson",
    "liger-kernel",
    "multiprocess",
    "platformdirs",
    "pydantic",
    "pydantic-core",
    "typing-extensions",
    "typing-inspection",
)
"""What the program, DeepSpeed, QLoRA, the fused loss and `train` need beyond a machine's torch and transformers."""

MOST_BYTES = 50 * 10**6
_PLATFORMS = ("manylinux_2_28", "manylinux_2_24", "manylinux_2_17", "manylinux2014")
_LIBAIO = (
    ("/usr/include/libaio.h", "libaio.h"),
    ("/usr/lib/x86_64-linux-gnu/libaio.so", "libaio.so"),
    ("/usr/lib/x86_64-linux-gnu/libaio.so", "libaio.so.1"),
)


def main() -> int:
    asked = _arguments()
    asked.folder.mkdir(parents=True, exist_ok=True)
    for old in asked.folder.glob("*.whl"):
        old.unlink()
    versions = _pins()
    wanted = [f"{name}=={versions[name]}" if name in versions else name for name in WANTED if name != "deepspeed"]
    target = _target(asked.python)
    _pip("download", "--no-deps", *target, "-d", str(asked.folder), *wanted)
    _pip("wheel", "--no-deps", "-w", str(asked.folder), f"deepspeed=={versions['deepspeed']}")
    for wheel in asked.folder.glob("bitsandbytes-*.whl"):
        keep_one_library(wheel, f"libbitsandbytes_cuda{asked.cuda.replace('.', '')}.so")
    _copy_libaio(asked.folder / "libaio")
    wheels = sorted(asked.folder.glob("*.whl"))
    with tempfile.TemporaryDirectory() as site:
        _pip("install", "--no-index", "--no-deps", *target, "--target", site, *map(str, wheels))
    missing = unmet(wheels, asked.installed.read_text(encoding="utf-8").split(), asked.python, _own())
    size = sum(file.stat().st_size for file in asked.folder.rglob("*") if file.is_file())
    for wheel in wheels:
        print(f"{wheel.stat().st_size / 1e6:6.2f} MB  {wheel.name}")
    print(f"{size / 1e6:6.2f} MB in all; pip has installed them for Python {asked.python}")
    for line in missing:
        print(f"missing: {line}")
    return int(bool(missing) or size > MOST_BYTES)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.wheels", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--python", default="3.12")
    parser.add_argument("--cuda", default="13.0")
    parser.add_argument("--installed", type=Path, default=INSTALLED, metavar="FILE")
    return parser.parse_args()


def _pins() -> dict[str, str]:
    """The versions of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if "==" in line)
    return {canonicalize_name(name): version for name, version in pairs}


def _target(python: str) -> list[str]:
    platforms = [word for name in _PLATFORMS for word in ("--platform", f"{name}_x86_64")]
    return ["--only-binary=:all:", "--python-version", python, "--implementation", "cp", *platforms]


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *arguments], check=True)


def _copy_libaio(folder: Path) -> None:
    if all(Path(source).exists() for source, _ in _LIBAIO):
        folder.mkdir(exist_ok=True)
        for source, name in _LIBAIO:
            shutil.copyfile(source, folder / name)


def keep_one_library(wheel: Path, library: str) -> None:
    """Rewrite bitsandbytes' wheel with one of its libraries for GPUs and the one for CPUs. Raises SystemExit where it
    has no such library."""
    draft = wheel.with_suffix(".draft")
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as target:
        names = source.namelist()
        if not any(name.endswith("/" + library) for name in names):
            raise SystemExit(f"{wheel.name} has no {library}")
        kept = [
            name for name in names if not name.endswith(".so") or name.endswith(("/" + library, "bitsandbytes_cpu.so"))
        ]
        record = next(name for name in names if name.endswith(".dist-info/RECORD"))
        for name in kept:
            if name != record:
                target.writestr(name, source.read(name))
        target.writestr(record, _record(source, [name for name in kept if name != record], record))
    draft.replace(wheel)


def _record(source: zipfile.ZipFile, names: Iterable[str], record: str) -> str:
    """RECORD of a wheel: every file with its hash and size (PEP 376, PEP 427)."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for name in names:
        if not name.endswith("/"):
            content = source.read(name)
            digest = urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            writer.writerow((name, f"sha256={digest}", len(content)))
    writer.writerow((record, "", ""))
    return text.getvalue()


def _own() -> list[str]:
    """What the program requires, with `train` and LoRA."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *extras["lora"], *extras["train"]]


def unmet(wheels: Sequence[Path], installed: Iterable[str], python: str, own: Iterable[str] = ()) -> list[str]:
    """Requirements of the program and the wheels that neither a wheel nor an installed package meets, with who requires
    them.

    installed: names without a version: any version is right. own: requirements of the program.
    """
    have = {canonicalize_name(name) for name in installed}
    have |= {canonicalize_name(wheel.name.split("-")[0]) for wheel in wheels}
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "extra": "",
    }
    required = [(line, "the program") for line in own]
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            metadata = Parser().parsestr(archive.read(name).decode())
        required += [(line, wheel.name) for line in metadata.get_all("Requires-Dist") or ()]
    missing = []
    for line, by in required:
        requirement = Requirement(line)
        applies = requirement.marker is None or requirement.marker.evaluate(environment)
        if applies and canonicalize_name(requirement.name) not in have:
            missing.append(f"{requirement} (of {by})")
    return missing


if __name__ == "__main__":
    sys.exit(main())
