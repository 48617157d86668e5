"""DeepSpeed's extensions compiled, side by side and before anything waits for them; seconds and errors of each."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

from ds_advise.probes.machine import search_path
from ds_advise.probes.real_run import extension_lock

from ..machine.place import Place
from ..outcome import Outcome

_BUILD = """
import sys
from ds_advise.probes.real_run import extension_lock
extension_lock.install()  # a build that is ended leaves no lock that others wait for
from deepspeed.accelerator import get_accelerator
get_accelerator().create_op_builder(sys.argv[1]).load()
"""
_TAIL = 3000
"""Characters of a compiler's output that are kept."""


def measure(arguments: dict[str, Any], place: Place) -> Outcome:
    """arguments: {"builders": [...]}. An extension that does not compile is a result."""
    environment = {**os.environ, "PATH": search_path()}
    if place.device == "cpu":
        environment["DS_ACCELERATOR"] = "cpu"
    started = time.monotonic()
    compilers = {
        builder: subprocess.Popen(
            [sys.executable, "-c", _BUILD, builder],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
        )
        for builder in arguments["builders"]
    }
    value = {}
    for builder, compiler in compilers.items():
        try:
            output, _ = compiler.communicate(timeout=max(1.0, place.limit_s - 5 - (time.monotonic() - started)))
        except subprocess.TimeoutExpired:
            compiler.kill()
            output = f"not done within {place.limit_s:.0f} s\n{compiler.communicate()[0]}"
        error = "" if compiler.returncode == 0 else output[-_TAIL:]
        extension_lock.remove_abandoned()
        value[builder] = {"seconds": time.monotonic() - started, "error": error}
    return {"value": value}
