"""Facts of this machine, all parts read at the same time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from shutil import which
from typing import Any, TypeVar

from .facts import Facts
from .read_folder import read_folder
from .read_graphics import read_graphics
from .read_host import read_host, read_memory, read_processor
from .read_nodes import read_hostfile, read_nodes
from .read_software import read_software
from .read_toolchain import read_ops_folder, read_toolchain
from .tools import Runner, run_tool

_Part = TypeVar("_Part")

_LOOKED_AT = ("NCCL_", "TORCH_NCCL_", "GLOO_", "UCX_", "CUDA_", "NVIDIA_", "PYTORCH_", "TORCH_", "DS_", "OMP_", "KMP_", "MKL_",
              "HF_HUB_", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE", "ACCELERATE_", "MASTER_", "LD_LIBRARY_PATH")
_BY_NAME = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY",
            "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "CXX", "CC")
_SECRET = ("TOKEN", "KEY", "SECRET", "PASSWORD")


def gather(*, nvme: str | None = None, hostfile: Path | None = None, environment: Mapping[str, str] | None = None,
           run: Runner = run_tool, root: Path = Path("/")) -> Facts:
    """Read everything; what fails is named in `unread`. Raises ConfigFileError for a hostfile that cannot be read.

    nvme: a folder to swap to. hostfile: of the deepspeed launcher; its machines are then asked by ssh.
    """
    known = os.environ if environment is None else environment
    hosts = read_hostfile(hostfile) if hostfile is not None else ()
    unread: list[tuple[str, str]] = []
    with ThreadPoolExecutor(8) as pool:
        readers: dict[str, Future[Any]] = {
            "software": pool.submit(read_software),
            "graphics": pool.submit(read_graphics, root),
            "memory": pool.submit(read_memory, root),
            "processor": pool.submit(read_processor, root),
            "host": pool.submit(read_host, root, known),
            "ops_folder": pool.submit(read_ops_folder, known, root),
        }
        if nvme is not None:
            readers["folder"] = pool.submit(read_folder, nvme, root)
        software = _result("software", readers["software"], unread)
        version = software.packages.get("torch", "") if software else ""
        readers["toolchain"] = pool.submit(read_toolchain, run, known, version)
        host = _result("host", readers["host"], unread)
        if hosts:
            readers["nodes"] = pool.submit(read_nodes, hosts, host.port if host else 29500, run)
        parts = {name: _result(name, reader, unread) for name, reader in readers.items() if name not in ("software", "host")}
    return Facts(software=software, host=host, pdsh=which("pdsh") is not None, environment=looked_at(known),
                 unread=tuple(unread), **{name: part for name, part in parts.items() if part is not None})


def looked_at(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that are judged or shown; nothing whose name speaks of a secret."""
    return {name: value for name, value in sorted(environment.items())
            if (name.startswith(_LOOKED_AT) or name in _BY_NAME) and not any(word in name for word in _SECRET)}


def _result(name: str, reader: Future[_Part], unread: list[tuple[str, str]]) -> _Part | None:
    """A part; a machine that is unlike all others must not cost the answer to everything else."""
    try:
        return reader.result()
    except Exception as error:
        unread.append((name.replace("_", " "), f"{type(error).__name__}: {error}"))
        return None
