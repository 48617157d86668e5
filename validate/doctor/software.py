"""Versions of torch, DeepSpeed and what they need, from files: importing torch alone takes seconds."""

from __future__ import annotations

import ast
import platform
import re
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from .facts import InstalledSoftware

PACKAGES = (
    "torch",
    "deepspeed",
    "transformers",
    "accelerate",
    "peft",
    "triton",
    "flash-attn",
    "bitsandbytes",
    "ninja",
    "setuptools",
    "numpy",
    "mpi4py",
    "nvidia-ml-py",
)

_PINNED = re.compile(r"^(nvidia-[a-z0-9-]+)\s*==\s*([0-9.]+)")


def read_software() -> InstalledSoftware:
    """What Python's metadata and the installed packages' own files say."""
    known = {name: found for name in PACKAGES if (found := _installed(name)) is not None}
    torch, deepspeed = known.get("torch"), known.get("deepspeed")
    built = _constants(torch, "torch/version.py")
    ahead = _constants(deepspeed, "deepspeed/git_version_info_installed.py")
    torch_cuda = built.get("cuda") or ""
    return InstalledSoftware(
        python=platform.python_version(),
        packages={name: found.version for name, found in known.items()},
        torch_cuda=torch_cuda,
        torch_hip=built.get("hip") or "",
        wrong_libraries=tuple(_wrong_libraries(torch)) if torch_cuda else (),
        toolkits_taken_as_equal=_taken_as_equal(deepspeed, torch_cuda),
        cpu_adam_needs_cuda="TorchCPUOpBuilder" in _text(deepspeed, "deepspeed/ops/op_builder/cpu_adam.py"),
        built_ahead=tuple(sorted(name for name, there in ahead.get("installed_ops", {}).items() if there)),
        built_with_torch=ahead.get("torch_info", {}).get("version", ""),
    )


def _installed(name: str) -> Distribution | None:
    with suppress(PackageNotFoundError):
        return distribution(name)
    return None


def _wrong_libraries(torch: Distribution | None) -> Iterator[tuple[str, str, str]]:
    """NVIDIA's packages of which torch names one version and another, or none, is installed."""
    for requirement in (torch.requires if torch else None) or ():
        match = _PINNED.match(requirement)
        if match is None or "extra ==" in requirement or not _for_this_platform(requirement):
            continue
        found = _installed(match[1])
        version = "" if found is None else found.version
        if version != match[2]:
            yield match[1], match[2], version


def _for_this_platform(requirement: str) -> bool:
    """Whether the markers that torch uses for its libraries name this operating system and processor."""
    named = dict(re.findall(r"""(platform_system|platform_machine)\s*==\s*["']([^"']+)""", requirement))
    return all(
        {"platform_system": platform.system(), "platform_machine": platform.machine()}[key] == value
        for key, value in named.items()
    )


def _taken_as_equal(deepspeed: Distribution | None, torch_cuda: str) -> tuple[str, ...]:
    """DeepSpeed's list for torch's major CUDA version (ops/op_builder/builder.py `cuda_minor_mismatch_ok`)."""
    major = torch_cuda.partition(".")[0]
    table = _constants(deepspeed, "deepspeed/ops/op_builder/builder.py").get("cuda_minor_mismatch_ok", {})
    return tuple(table.get(int(major), ())) if major.isdigit() else ()


def _constants(package: Distribution | None, file: str) -> dict[str, Any]:
    """The module-level names of a package's file that are set to literals; the file is read and not run."""
    values: dict[str, Any] = {}
    with suppress(SyntaxError, ValueError):
        for node in ast.parse(_text(package, file)).body:
            if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
                continue
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name):
                with suppress(ValueError):
                    values[target.id] = ast.literal_eval(node.value)
    return values


def _text(package: Distribution | None, file: str) -> str:
    if package is None:
        return ""
    try:
        return Path(str(package.locate_file(file))).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
