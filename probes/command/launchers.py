"""The user's command read to its target: the script or module that a rank runs, and what the launchers in front say.

The launchers' own parsers and functions are run, in the environment of the command: `torchrun`'s and `deepspeed`'s
parsers, and the whole of `accelerate launch` up to the process that it would start.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import runpy
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from ...estimators.errors import DsAdviseError
from .follow import Relaunch, hooks
from .words import (
    RANK_VARIABLES,
    Program,
    check_script,
    is_python,
    is_training,
    launcher_of,
    peel,
    program_of,
    shebang,
    shell_lines,
    shell_text,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The processes that a launcher starts; None is what it takes from the machine."""

    launcher: str
    gpus_per_node: int | None
    nodes: int | None
    is_plain: bool = False
    """Whether it starts one process without the variables of a rank, whatever number it was given."""
    counted: int | None = None
    """What it takes from this machine in place of an unset `gpus_per_node`; None if it was not asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What a rank of the command runs."""

    target: str
    """The path of a script as given, the full path of a console script, or a module."""
    is_module: bool
    arguments: tuple[str, ...]
    environment: dict[str, str]
    """The variables that prefixes and launchers set, without those of `RANK_VARIABLES`."""
    starts: tuple[Start, ...]
    """The processes of each launcher, outermost first."""

    @property
    def gpus_per_node(self) -> int | None:
        """Processes per node of the innermost launcher: `srun` starts one torchrun per node."""
        return self.starts[-1].gpus_per_node if self.starts else None

    @property
    def nodes(self) -> int | None:
        return next((start.nodes for start in reversed(self.starts) if start.nodes), None)


@dataclass(slots=True)
class _Reading:
    words: list[str]
    folder: Path
    starts: list[Start] = field(default_factory=list)
    inside: str = ""
    """The launcher that itself uses the next one: the user gave no such word."""

    def add(self, launcher: str, gpus_per_node: int | None, nodes: int | None, **further: Any) -> None:
        if not self.inside:
            self.starts.append(Start(launcher=launcher, gpus_per_node=gpus_per_node, nodes=nodes, **further))


def read_launch(words: Sequence[str], *, folder: Path) -> Launch:
    """Read a command as typed in `folder`. The environment of this process is that of the command's caller; it is left
    as it was.

    Errors: a launcher refuses its options; the target is no Python program, or is not there.
    """
    folder = folder.absolute()
    before, reading = dict(os.environ), _Reading(list(words), folder)
    try:
        with contextlib.chdir(folder):
            while _step(reading):
                pass
            program = _resolved(reading.words, folder)
            if reading.starts and reading.starts[-1].launcher == "srun":
                os.environ.update(_slurm_variables())
        changed = {name: value for name, value in os.environ.items() if before.get(name) != value}
    finally:
        os.environ.clear()
        os.environ.update(before)
    return Launch(
        target=program.target,
        is_module=program.is_module,
        arguments=tuple(program.arguments),
        environment={name: value for name, value in changed.items() if name not in RANK_VARIABLES},
        starts=tuple(reading.starts),
    )


def contradictions(launch: Launch, cluster_nodes: int, cluster_gpus_per_node: int) -> list[str]:
    """A sentence for each number of the command that is not the simulated cluster's."""
    said = []
    starter, typed = launch.starts[-1] if launch.starts else None, launch.gpus_per_node
    if starter and typed and typed != cluster_gpus_per_node:
        of_a_node = " per node" * (cluster_nodes > 1)
        times = cluster_nodes * cluster_gpus_per_node / (typed * (launch.nodes or cluster_nodes))
        said.append(
            f"{starter.launcher} starts {typed} rank{'s' * (typed != 1)}{of_a_node}, and --gpus has "
            f"{cluster_gpus_per_node}: the answer is for {cluster_gpus_per_node}, whose step has "
            f"{times:.3g} x the samples"
        )
    visible = [each for each in launch.environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
    if visible and not said and len(visible) != cluster_gpus_per_node:
        said.append(
            f"CUDA_VISIBLE_DEVICES names {len(visible)} GPU{'' if len(visible) == 1 else 's'} of a node; --gpus has "
            f"{cluster_gpus_per_node}: simulated with {cluster_gpus_per_node}"
        )
    if launch.nodes not in (None, cluster_nodes):
        name = next(start.launcher for start in reversed(launch.starts) if start.nodes)
        nodes = f"{launch.nodes} node{'' if launch.nodes == 1 else 's'}"
        said.append(f"{name} starts on {nodes}; --gpus has {cluster_nodes}: simulated with {cluster_nodes}")
    return said


def run_target(launch: Launch) -> None:
    """Run the target in this process as `python` would, in the current folder, with the launch's environment.

    Whatever the target raises passes through, `SystemExit` too.
    """
    os.environ.update(launch.environment)
    searched = [path for path in _python_path() if path not in sys.path]
    first = str(Path.cwd()) if launch.is_module else str(Path(launch.target).resolve().parent)
    sys.path[:0] = [first, *searched]
    sys.argv[:] = [launch.target, *launch.arguments]
    if launch.is_module:
        runpy.run_module(launch.target, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(launch.target, run_name="__main__")


def _step(reading: _Reading) -> bool:
    """Take one layer off the words; False when the target is left."""
    if layer := peel(reading.words):
        reading.words = layer.words
        os.environ.update({name: value for name, value in layer.variables.items() if name not in RANK_VARIABLES})
        if layer.name == "srun":
            reading.add(layer.name, layer.tasks_per_node, layer.nodes)
        return True
    try:
        shell = shell_text(reading.words, reading.folder)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", "") or str(error)
        raise DsAdviseError(f"{shlex.join(reading.words[:2])} cannot be read", why=why.lower()) from error
    if shell:
        reading.words = _words_in_shell(*shell)
        return True
    found = launcher_of(program_of(reading.words))
    if found is None:
        return False
    name, arguments = found
    read = {"deepspeed": _deepspeed, "accelerate launch": _accelerate}.get(name, _torchrun)
    with _refusals(name):
        reading.words = read(name, arguments, reading)
    return True


def _words_in_shell(name: str, text: str) -> list[str]:
    """The words of the one command in the text of `bash -c`.

    Errors: a shell script, or several commands; the line of its training is named.
    """
    lines = list(shell_lines(text))
    if not name and len(lines) == 1:
        return lines[0].words
    trainings = [line for line in lines if is_training(line.words)]
    what = f"{name} is a shell script" if name else "the shell has several commands"
    fix = "give the command that starts the training instead"
    if len(trainings) == 1:
        place = f"line {trainings[0].number}" if name else "the training"
        fix = f"give {place} instead, without shell variables: {trainings[0].text}"
    raise DsAdviseError(what, why="only the Python program that it starts can be run", fix=fix)


@contextlib.contextmanager
def _refusals(name: str) -> Iterator[None]:
    """A launcher's refusal of its options as a `DsAdviseError` with its own message."""
    messages = io.StringIO()
    try:
        with contextlib.redirect_stderr(messages):
            yield
    except DsAdviseError:
        raise
    except SystemExit as error:  # argparse has printed its message
        line = (messages.getvalue().strip().splitlines() or ["it ends by itself"])[-1]
        raise DsAdviseError(f"{name} refuses its options", why=line.partition("error: ")[2] or line) from error
    except Exception as error:
        why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise DsAdviseError(f"{name} refuses its options", why=why.splitlines()[0]) from error


def _local_rank() -> str:
    return os.environ.get("LOCAL_RANK", "0")


def _torchrun(name: str, arguments: list[str], reading: _Reading) -> list[str]:
    from torch.distributed import launch, run
    from torch.distributed.elastic.utils.api import macros

    args = (launch if name == "torch.distributed.launch" else run).parse_args(arguments)
    args.log_dir = os.devnull  # else a folder is made
    config, command, rest = run.config_from_args(args)
    reading.add(name, config.nproc_per_node, config.max_nodes)
    reading.inside = ""
    # `torch.distributed.is_torchelastic_launched` asks for the first.
    os.environ.update(
        TORCHELASTIC_RUN_ID=config.run_id or "none",
        TORCHELASTIC_RESTART_COUNT="0",
        TORCHELASTIC_MAX_RESTARTS=str(config.max_restarts),
    )
    return [command if isinstance(command, str) else "python", *macros.substitute(rest, _local_rank())]


def _deepspeed(name: str, arguments: list[str], reading: _Reading) -> list[str]:
    from deepspeed.accelerator import get_accelerator
    from deepspeed.launcher import runner

    args = runner.parse_args(arguments)
    hosts = runner.fetch_hostfile(args.hostfile) if Path(args.hostfile).is_file() else None
    here = {"localhost": get_accelerator().device_count()}
    active = runner.parse_inclusion_exclusion(hosts or here, args.include, args.exclude)
    active = runner.apply_num_nodes_and_gpus(active, args.num_nodes, args.num_gpus)
    gpus: int | None = max(each if isinstance(each, int) else len(each) for each in active.values())
    if not hosts and not args.include and not args.exclude:
        gpus = args.num_gpus if args.num_gpus > 0 else None
    nodes = len(active) if hosts else args.num_nodes if args.num_nodes > 0 else None  # the hostfile may be elsewhere
    reading.add(name, gpus, nodes, counted=None if hosts else here["localhost"])
    reading.inside = ""
    # mpirun and srun start no launch.py, which sets them.
    if _nodes()[0] == 1 or args.no_ssh or args.launcher.lower() == runner.PDSH_LAUNCHER:
        os.environ.update(node_variables())
    # As the launcher does (runner.py `main`): modules of the current folder are found.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path.cwd()), os.environ.get("PYTHONPATH"))))
    return [
        *([] if args.no_python else ["python"]),
        *(["-m"] if args.module else []),
        args.user_script,
        *([] if args.no_local_rank else [f"--local_rank={_local_rank()}"]),
        *args.user_args,
    ]


def _accelerate(name: str, arguments: list[str], reading: _Reading) -> list[str]:
    from accelerate.commands import launch

    plain, simple_launcher = list[Any](), launch.simple_launcher

    def without_ranks(args: Any) -> None:
        plain.append(args)
        simple_launcher(args)

    parser: Any = launch.launch_command_parser()
    args = parser.parse_args(arguments)
    args.main_process_port = 0  # a free one: the process that listens on the real one may be here
    try:
        with hooks():
            launch.simple_launcher = without_ranks
            launch.launch_command(args)
    except Relaunch as started:
        nodes = args.num_machines or 1
        reading.add(name, max(1, (args.num_processes or 1) // nodes), nodes, is_plain=bool(plain))
        reading.inside = name
        os.environ.update(started.environment)
        return started.words
    finally:
        launch.simple_launcher = simple_launcher
    raise DsAdviseError(f"{name} starts no process", fix="give the command without it")


def _slurm_variables() -> dict[str, str]:
    """What srun sets for the simulated rank, for scripts that read their place from Slurm."""
    place = _place()
    nodes, node = _nodes()
    return {
        "SLURM_JOB_ID": os.environ.get("SLURM_JOB_ID", "1"),
        "SLURM_PROCID": place["RANK"],
        "SLURM_LOCALID": place["LOCAL_RANK"],
        "SLURM_NODEID": str(node),
        "SLURM_NTASKS": place["WORLD_SIZE"],
        "SLURM_NTASKS_PER_NODE": place["LOCAL_WORLD_SIZE"],
        "SLURM_NNODES": str(nodes),
        "SLURM_JOB_NUM_NODES": str(nodes),
    }


_PLACE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}


def _place() -> dict[str, str]:
    return {name: os.environ.get(name, default) for name, default in _PLACE.items()}


def _nodes() -> tuple[int, int]:
    """(number of nodes, this one's) of the simulated rank."""
    place = {name: int(value) for name, value in _place().items()}
    return max(1, place["WORLD_SIZE"] // place["LOCAL_WORLD_SIZE"]), place["RANK"] // place["LOCAL_WORLD_SIZE"]


def node_variables() -> dict[str, str]:
    """What only the launcher of DeepSpeed sets on each node (launcher/launch.py `main`), for checkpoint writers."""
    nodes, node = _nodes()
    return {"CROSS_SIZE": str(nodes), "CROSS_RANK": str(node)}


def _python_path() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def _resolved(words: Sequence[str], folder: Path) -> Program:
    """The program of a command without launchers, with the full path of a console script.

    Errors: the file or module is not there, or is no Python program.
    """
    program = program_of(words)
    target, by_python = program.target, is_python(words[0])
    if program.is_module:
        name = target.partition(".")[0]
        searched = [str(folder), *_python_path()]
        if importlib.util.find_spec(name) is None and PathFinder.find_spec(name, searched) is None:
            raise DsAdviseError(f"there is no module {name}", fix=f"install it for {sys.executable}, or set PYTHONPATH")
        return program
    if by_python or target.endswith(".py") or os.sep in target:
        check_script(words, folder)
        if not by_python and not target.endswith(".py") and shebang(folder / target) is None:
            raise _no_python(target, "its first line names no Python")
        return program
    found = shutil.which(target, path=str(Path(sys.executable).parent)) or shutil.which(target)
    if found is None:
        why = f"it is no command on PATH or beside {sys.executable}"
        raise DsAdviseError(f"there is no {target}", why=why, fix="install it, or give the script that it runs")
    if shebang(Path(found)) is None:
        raise _no_python(target, f"the first line of {found} names no Python")
    return Program(found, False, program.arguments)


def _no_python(target: str, why: str) -> DsAdviseError:
    return DsAdviseError(f"{target} is no Python program", why=why, fix="give the Python command that it starts")
