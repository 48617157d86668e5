"""One fault in a real training: its folder, its command under a time limit, and the log that it leaves."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from textwrap import indent
from typing import Any

import psutil
from ds_advise.probes.real_run.torchrun import free_port

FOLDER = Path(__file__).parent
LIMIT_S = 120.0
PREPARATION_LIMIT_S = 600.0
"""The first engine of a machine compiles DeepSpeed's extension for shared memory."""

EXTENSIONS = Path(tempfile.gettempdir(), f"struck-extensions-{os.getuid()}")
"""What DeepSpeed compiles for these trainings. A killed rank may leave a lock there, for which a user's training would
wait in the common folder."""

_MARK = "STRUCK_FAULT"
"""The variable by which every process of a training is found, whatever session it is in."""

_CONFIG: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": 2},
}


_ALONE = "train.py --output_dir out --use_cpu --max_steps 3 --report_to none --save_strategy no"
_WORDS = {
    "LOOP": "train.py --deepspeed_config ds.json",
    "ALONE": _ALONE,
    "ACCELERATED": "--num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no",
    "TRAINER": f"{_ALONE} --per_device_train_batch_size 2 --learning_rate 1e-3 --deepspeed ds.json",
}
"""Variables of the commands: the plain loop, the Trainer without and with DeepSpeed, and the launcher of accelerate.
Later arguments replace these."""

_DEFAULTS = {
    "loop": {"command": "torchrun --nproc_per_node 1 --master_port $PORT $LOOP"},
    "trainer": {"command": "python $ALONE"},
    "ddp": {"command": "torchrun --nproc_per_node 2 --master_port $PORT train.py"},
    "sft": {"command": "python train.py", "needs": "module trl"},
}
"""What a fault has by its script, if `faults.toml` does not say otherwise."""

_IMPORTS = "from typing import Any\n"
_STEPS = {"loop": "        loss = engine(**batch)\n", "ddp": "        loss = model(batch)\n"}
"""The lines of the scripts before which a fault's `imports` and `before_step` stand."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One table of `faults.toml`."""

    name: str
    script: str
    """The training in `scripts/`, written as train.py into the folder of the training."""
    command: str
    """The shell's line that fails, by default that of the script. $LOOP, $ALONE and $TRAINER are the script with its
    arguments, $ACCELERATED are arguments of `accelerate launch`, $PORT is a free port, and on $BUSY another program
    listens."""
    cause: tuple[str, ...]
    """The messages that are right; empty where the table has none, so that "not known" is right."""
    fix: tuple[str, ...] = ()
    """Words that the right fix has, in any order."""
    imports: tuple[str, ...] = ()
    """Modules that the script imports besides."""
    before_step: str = ""
    """Lines of the script before the forward pass, without their indentation."""
    edit: tuple[tuple[str, str], ...] = ()
    """What is replaced in the script, each found once."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Keys of ds.json in place of the sound ones, one level deep."""
    first: str = ""
    """The shell's line of a sound training before, which leaves a checkpoint; faults with the same one share it."""
    prepare: str = ""
    """What the shell does then, such as the damage."""
    rank: int | None = None
    """The rank that the answer must name; None if it does not matter."""
    needs: str = ""
    """What the machine must have: `module NAME`, `no PROGRAM` (it must lack it), or `shell LINE` (which must
    succeed)."""
    limit_s: float = LIMIT_S
    """After this time the training is ended, as somebody ends one that hangs."""

    @property
    def launcher(self) -> str:
        """What starts the ranks, and the Trainer if it trains."""
        started = next((word for word in ("accelerate", "torchrun", "deepspeed") if word in self.command), "python")
        trainer = {"trainer": ", Trainer", "sft": ", TRL"}.get(self.script, "")
        return started + trainer


@cache
def faults() -> tuple[Fault, ...]:
    """The faults in their order."""
    rows = tomllib.loads((FOLDER / "faults.toml").read_text(encoding="utf-8"))["fault"]
    return tuple(
        Fault(**_DEFAULTS.get(row["script"], {}) | {name: _tuple(value) for name, value in row.items()}) for row in rows
    )


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list) else value


def missing(fault: Fault) -> str:
    """What the fault needs and this machine lacks; "" if nothing."""
    kind, _, what = fault.needs.partition(" ")
    has: dict[str, Callable[[], bool]] = {
        "": lambda: True,
        "module": lambda: find_spec(what) is not None,
        "no": lambda: shutil.which(what) is None,
        "shell": lambda: subprocess.run(["bash", "-c", what], capture_output=True, check=False).returncode == 0,
    }
    if has[kind]():
        return ""
    return f"a PATH without {what}" if kind == "no" else fault.needs


def strike(fault: Fault, log: Path, kept: Path) -> None:
    """Run the training of a fault in a temporary folder, and write what it prints to `log`.

    kept: a folder for what sound trainings leave, which later faults find there.
    Raises RuntimeError if the preparation fails, so that no fault is struck."""
    with tempfile.TemporaryDirectory(prefix="struck-") as name, _busy_port() as busy:
        folder = Path(name)
        (folder / "train.py").write_text(edited(fault), encoding="utf-8")
        config = {key: value for key, value in (_CONFIG | dict(fault.config)).items() if value != "none"}
        (folder / "ds.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
        variables = _variables() | _WORDS | {"BUSY": str(busy), _MARK: name}
        if fault.first:
            said = json.dumps([edited(fault), config, fault.first])
            left = kept / hashlib.sha256(said.encode()).hexdigest()[:16]
            if not left.exists():
                _prepare(fault.first, folder, variables, fault.name)
                shutil.copytree(folder, left)
            shutil.copytree(left, folder, dirs_exist_ok=True)
        if fault.prepare:
            _prepare(fault.prepare, folder, variables, fault.name)
        _run(fault.command, folder, variables, log, fault.limit_s)


def _prepare(command: str, folder: Path, variables: dict[str, str], name: str) -> None:
    log = folder / "prepare.log"
    if status := _run(f"set -e\n{command}", folder, variables, log, PREPARATION_LIMIT_S):
        raise RuntimeError(f"{name}: the preparation ended with {status}: {log.read_text('utf-8')[-2000:]}")


def edited(fault: Fault) -> str:
    """The script of a fault."""
    text = (FOLDER / "scripts" / f"{fault.script}.py").read_text(encoding="utf-8")
    edits = [*fault.edit]
    if fault.imports:
        edits.append((_IMPORTS, "".join(f"import {name}\n" for name in fault.imports) + _IMPORTS))
    if fault.before_step:
        step = _STEPS[fault.script]
        edits.append((step, indent(f"{fault.before_step.rstrip()}\n", " " * 8) + step))
    for old, new in edits:
        if text.count(old) != 1:
            raise ValueError(f"{fault.name}: {old!r} is {text.count(old)} times in the script")
        text = text.replace(old, new)
    return text


def _variables() -> dict[str, str]:
    """The environment of a training on the CPU that asks no network, with the programs of this interpreter."""
    hidden = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "WANDB_API_KEY", "HF_TOKEN", "COLUMNS")
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    return kept | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "DS_ACCELERATOR": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "TORCH_EXTENSIONS_DIR": str(EXTENSIONS),
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
    }


def _run(command: str, folder: Path, variables: dict[str, str], log: Path, limit_s: float) -> int | None:
    """The exit status of a shell's line; None if it ran past the limit. No process is left behind."""
    for lock in EXTENSIONS.glob("*/lock"):
        lock.unlink()
    with log.open("wb") as out:
        shell = subprocess.Popen(
            ["bash", "-c", command],
            cwd=folder,
            env=variables | {"PORT": str(free_port())},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_heed_interrupts,
        )
        try:
            return shell.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(variables[_MARK])
            shell.wait()


def _heed_interrupts() -> None:
    """What is started in the background of a shell ignores Ctrl-C, and so would all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _end(mark: str) -> None:
    """Kill every process that the training started."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(_MARK) == mark:
                process.kill()


@contextlib.contextmanager
def _busy_port() -> Iterator[int]:
    """A port on which this process listens."""
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        yield int(taken.getsockname()[1])
