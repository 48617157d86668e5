"""Facts of this machine, all parts read at the same time and none waited for longer than a few seconds.

A dead network drive or a driver that hangs blocks whoever asks it, and such a call cannot be broken off. So each reader
has a thread that the program does not wait for at its end.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from shutil import which
from typing import Any, TypeVar

from ...ds_configs.hostfile import read_hostfile
from ...estimators.errors import ConfigFileError
from .facts import MachineFacts
from .graphics import read_graphics
from .read_folder import read_folder
from .read_host import rank_port, read_host, read_memory, read_processor
from .read_nodes import AT_ONCE, MOST_NODES, read_nodes
from .software import read_software
from .toolchain import read_ops_folder, read_toolchain
from .tools import Runner, run_tool

_Part = TypeVar("_Part")

_LIMIT_S = 4.0
"""For everything; the programs that are asked end themselves before."""

_LOOKED_AT = re.compile(
    r"(?:NCCL|TORCH_NCCL|GLOO|UCX|CUDA|NVIDIA|PYTORCH|TORCH|DS|OMP|KMP|MKL|HF_HUB|ACCELERATE|MASTER)_"
    r"|HF_DATASETS_OFFLINE|TRANSFORMERS_OFFLINE|LD_LIBRARY_PATH|(?:(?:LOCAL_)?RANK|WORLD_SIZE|CXX|CC)$"
    r"|(?i:https?|all|no)_(?:proxy|PROXY)$"
)
_SECRET = ("TOKEN", "KEY", "SECRET", "PASSWORD")


def gather(
    *,
    nvme: str | None = None,
    hostfile: Path | None = None,
    environment: Mapping[str, str] | None = None,
    run: Runner = run_tool,
    root: Path = Path("/"),
) -> MachineFacts:
    """Read everything; what fails is named in `unread`. Raises ConfigFileError for a hostfile that cannot be read.

    nvme: a folder to swap to. hostfile: of the deepspeed launcher; its machines are then asked by ssh.
    """
    known = os.environ if environment is None else environment
    hosts = read_hostfile(hostfile) if hostfile is not None else {}
    if len(hosts) > MOST_NODES:
        raise ConfigFileError(f"{hostfile}: {len(hosts)} nodes", fix=f"name at most {MOST_NODES} of them")
    port = rank_port(known)
    end = time.monotonic() + _LIMIT_S * (1 + len(hosts) // AT_ONCE)

    software = _start(read_software)
    readers: dict[str, Future[Any]] = {
        "software": software,
        "toolchain": _start(lambda: read_toolchain(run, known, software.result().packages.get("torch", ""))),
        "graphics": _start(lambda: read_graphics(root)),
        "memory": _start(lambda: read_memory(root)),
        "processor": _start(lambda: read_processor(root)),
        "host": _start(lambda: read_host(root, known, run)),
        "ops_folder": _start(lambda: read_ops_folder(known, root)),
    }
    if nvme is not None:
        readers["folder"] = _start(lambda: read_folder(nvme, root))
    if hosts:
        readers["nodes"] = _start(lambda: read_nodes(hosts, port, run))
    unread: list[tuple[str, str]] = []
    parts = {name: part for name, reader in readers.items() if (part := _result(name, reader, end, unread)) is not None}
    return MachineFacts(pdsh=which("pdsh") is not None, environment=looked_at(known), unread=tuple(unread), **parts)


def looked_at(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that are judged or shown; nothing whose name speaks of a secret."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if _LOOKED_AT.match(name) and not any(word in name for word in _SECRET)
    }


def _start(reader: Callable[[], _Part]) -> Future[_Part]:
    """Read in a thread that the end of the program does not wait for."""
    future: Future[_Part] = Future()

    def read() -> None:
        try:
            future.set_result(reader())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=read, daemon=True).start()
    return future


def _result(name: str, reader: Future[_Part], end: float, unread: list[tuple[str, str]]) -> _Part | None:
    """A part; a machine that is unlike all others must not cost the answer to everything else."""
    try:
        return reader.result(max(0.0, end - time.monotonic()))
    except Exception as error:
        late = isinstance(error, TimeoutError) and not reader.done()
        unread.append(
            (name.replace("_", " "), "no answer within the time" if late else f"{type(error).__name__}: {error}")
        )
        return None
