"""Trainings that a command starts in another process are followed: the command of that process is raised as
`Relaunch`, so the training is simulated instead of started. Other subprocesses really run.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import inspect
import os
import re
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from ...estimators.errors import DsAdviseError
from .imports import on_import
from .words import RANK_VARIABLES, Program, inner, is_python, launcher_of, program_of, shell_lines, shell_text

_TRAINS = re.compile(
    r"(torch|transformers|accelerate|deepspeed|lightning|pytorch[-_]lightning|trl)(?![\w.-])(?![^;]*;.*extra)"
)
"""A requirement of a package that trains."""


class Relaunch(BaseException):
    """The command goes on in another process. No `except Exception` of the script stops it.

    words: the command of that process. environment: all its variables, without those of `RANK_VARIABLES`. folder: its
    working folder.
    """

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        super().__init__(shlex.join(words))
        self.words, self.folder = list(words), folder
        self.environment = {name: value for name, value in environment.items() if name not in RANK_VARIABLES}


def install() -> None:
    """Follow the trainings that this process starts, from now on: by `subprocess`, `os.exec*`, `os.posix_spawn`,
    `os.system`, `torch.multiprocessing` and torch's elastic launcher. `datasets` uses no processes.

    The variables of `RANK_VARIABLES` are the simulated rank's, and a function that would be a rank of its own sees
    them again. PATH begins with the interpreter's folder, as in its activated environment, so that `torchrun` is this
    one's.
    """
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    _own_rank.update({name: value for name, value in os.environ.items() if name in RANK_VARIABLES})
    for owner, name, replacement in _replacements():
        setattr(owner, name, replacement)
    for module, change in _ON_IMPORT.items():
        on_import(module, change)


@contextlib.contextmanager
def hooks() -> Iterator[None]:
    """For the time of a block: what a launcher starts is raised as `Relaunch`."""
    from deepspeed.launcher import runner
    from torch.distributed.launcher import api

    environment_file = (runner, "DEEPSPEED_ENVIRONMENT_NAME", os.devnull)  # accelerate writes it for other nodes
    replaced = [*_replacements(), (api, "launch_agent", _launch_agent), environment_file]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    try:
        for owner, name, replacement in replaced:
            setattr(owner, name, replacement)
        yield
    finally:
        for owner, name, original in before:
            setattr(owner, name, original)


_own_rank: dict[str, str] = {}


# ------------------------------------------------------------------------------------------ commands


def follow(
    command: Any, *, shell: bool = False, environment: Mapping[Any, Any] | None = None, folder: Any = None
) -> None:
    """Raise `Relaunch` if a command is a training. command: as for `subprocess.Popen`.

    Errors: DsAdviseError for a shell script with a training in it.
    """
    given = os.environ if environment is None else environment
    variables = {os.fsdecode(name): os.fsdecode(value) for name, value in given.items()}
    words = [os.fsdecode(word) for word in ([command] if isinstance(command, str | bytes | os.PathLike) else command)]
    place = Path(os.fsdecode(folder) if folder else ".").absolute()
    if not words:
        return
    with contextlib.suppress(OSError, UnicodeDecodeError):  # of a shell script
        text = ("", words[0]) if shell else shell_text(_program_words(words), place)
        if text is not None:
            _follow_shell(*text, variables, place)
            return
    if starts_training(words, place):
        raise Relaunch(words, variables, place)


def _follow_shell(name: str, text: str, variables: Mapping[str, str], folder: Path) -> None:
    place = folder
    for line in shell_lines(text):
        if line.words[0] == "cd" and len(line.words) == 2:
            place = place / line.words[1]
        elif not name:
            follow(line.words, environment=variables, folder=place)
        elif starts_training(line.words, place):
            why = f"its line {line.number} starts a training: {line.text}"
            raise DsAdviseError(f"the command runs the shell script {name}", why=why, fix="give that line after --")


def _program_words(words: Sequence[str]) -> Sequence[str]:
    """The words without prefixes; as they are where those are not understood."""
    try:
        return inner(words)
    except DsAdviseError:
        return words


def starts_training(words: Sequence[str], folder: Path) -> bool:
    """Whether a command is a launcher, or Python with a script or module that may train: one of the user's own, or
    of a package that needs torch. `python -c` is none, nor a package such as pip, nor the standard library."""
    rest = _program_words(words)
    try:
        program = program_of(rest)
    except DsAdviseError:  # no script
        return False
    if launcher_of(program):
        return True
    if program.is_module or is_python(rest[0]) or rest[0].endswith(".py"):
        return _may_train(program, folder)
    return any(
        point.dist is not None and _needs_torch(point.dist.metadata["Name"])
        for point in importlib.metadata.entry_points(group="console_scripts", name=Path(program.target).name)
    )


def _may_train(program: Program, folder: Path) -> bool:
    top = program.target.partition(".")[0]
    if not program.is_module:
        file = (folder / program.target).resolve()
        installed = [Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib", "stdlib")]
        root = next((root for root in installed if file.is_relative_to(root)), None)
        if root is None:
            return file.name != "setup.py"
        top = file.relative_to(root).parts[0].removesuffix(".py")
    if top in sys.stdlib_module_names:
        return False
    owners = _packages().get(top)
    return program.is_module if owners is None else any(map(_needs_torch, owners))


@functools.cache
def _packages() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


@functools.cache
def _needs_torch(distribution: str) -> bool:
    return any(_TRAINS.match(need) for need in importlib.metadata.requires(distribution) or ())


# ------------------------------------------------------------------------------------------ what starts a process


def _replacements() -> list[tuple[Any, str, Any]]:
    """(owner, name, function) of everything in the standard library that starts a process."""
    start: Any = subprocess.Popen.__init__
    signature, system = inspect.signature(start), os.system

    @functools.wraps(start)
    def popen(self: Any, *args: Any, **named: Any) -> None:
        given = signature.bind(self, *args, **named).arguments
        follow(given["args"], shell=given.get("shell", False), environment=given.get("env"), folder=given.get("cwd"))
        start(self, *args, **named)

    def run_system(command: Any) -> int:
        follow(command, shell=True)
        return system(command)

    spawns = [(os, name, _spawning(getattr(os, name))) for name in ("posix_spawn", "posix_spawnp")]
    executions = [(os, name, _executing(getattr(os, name), os.getpid())) for name in ("execv", "execve")]
    return [(subprocess.Popen, "__init__", popen), (os, "system", run_system), *spawns, *executions]


def _spawning(real: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(real)
    def spawn(path: Any, argv: Sequence[Any], env: Mapping[Any, Any], **named: Any) -> int:
        follow([path, *argv[1:]], environment=env)
        return real(path, argv, env, **named)

    return spawn


def _executing(real: Callable[..., Any], process: int) -> Callable[..., Any]:
    """`os.execv` and `os.execve`, which the others of the family call for each folder of PATH."""

    @functools.wraps(real)
    def execute(path: Any, argv: Sequence[Any], *env: Mapping[Any, Any]) -> Any:
        # A forked child that becomes another program is a subprocess.
        if os.getpid() == process and not isinstance(path, int):
            exists = Path(os.fsdecode(path)).exists()
            words = [path if exists else argv[0], *argv[1:]]
            follow(words, environment=env[0] if env else None)
            if exists:
                raise DsAdviseError(
                    f"the command replaces itself by {shlex.join(map(os.fsdecode, words))}",
                    why="that is no Python program that trains",
                    fix="give the command that starts the training",
                )
        return real(path, argv, *env)

    return execute


def _in_this_process(function: Callable[..., Any], *args: Any) -> Any:
    """Run a function as the simulated rank, which a launcher's environment would hide."""
    os.environ.update(_own_rank)
    try:
        return function(*args)
    except SystemExit as error:  # it would end only the rank
        if error.code not in (None, 0):
            raise
        return None


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


def _start_processes(
    fn: Callable[..., Any], args: Sequence[Any] = (), _nprocs: int = 1, join: bool = True, *_: Any, **__: Any
) -> Any:
    _in_this_process(fn, _local_rank(), *args)
    return None if join else SimpleNamespace(join=lambda *_, **__: True, processes=[], pids=list)


def _launch_agent(config: Any, entrypoint: Any, args: Sequence[Any], *_: Any, **__: Any) -> dict[int, Any]:
    """torch's elastic launcher, which is below torchrun, `accelerate launch` and `notebook_launcher`."""
    log_folder = Path(getattr(config.logs_specs, "root_log_dir", ""))
    if log_folder.name.startswith("torchelastic_"):  # made beforehand, for the logs of this launch
        with contextlib.suppress(OSError):
            log_folder.rmdir()
    if callable(entrypoint):
        return {_local_rank(): _in_this_process(entrypoint, *args)}
    counts = [f"--nproc-per-node={config.nproc_per_node}", f"--nnodes={config.max_nodes}"]
    raise Relaunch(["torchrun", *counts, "--no-python", entrypoint, *args], os.environ, Path.cwd())


def _change_spawn(module: ModuleType) -> None:
    for owner in (module, sys.modules["torch.multiprocessing"]):
        vars(owner).update(spawn=_start_processes, start_processes=_start_processes)


def _change_elastic(module: ModuleType) -> None:
    vars(module)["launch_agent"] = _launch_agent


def _change_deepspeed(module: ModuleType) -> None:
    def main(args: Sequence[str] | None = None) -> None:
        raise Relaunch(["deepspeed", *(sys.argv[1:] if args is None else args)], os.environ, Path.cwd())

    vars(module).update(main=main, DEEPSPEED_ENVIRONMENT_NAME=os.devnull)


def _without_processes(owner: Any, *names: str) -> None:
    """Methods of `datasets` without their `num_proc`: a fork of the simulation has no use."""

    def changed(real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def method(*args: Any, **named: Any) -> Any:
            return real(*args, **{name: None if name == "num_proc" else value for name, value in named.items()})

        return method

    for name in names:
        setattr(owner, name, changed(getattr(owner, name)))


_ON_IMPORT: Mapping[str, Callable[[ModuleType], None]] = {
    "torch.multiprocessing.spawn": _change_spawn,
    "torch.distributed.launcher.api": _change_elastic,
    "deepspeed.launcher.runner": _change_deepspeed,
    "datasets.arrow_dataset": lambda module: _without_processes(module.Dataset, "map", "filter", "save_to_disk"),
    "datasets.builder": lambda module: _without_processes(module.DatasetBuilder, "download_and_prepare"),
    "datasets.utils.py_utils": lambda module: _without_processes(module, "map_nested"),
}
