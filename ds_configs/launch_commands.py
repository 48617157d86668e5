"""The commands that start a training with each launcher, and the hostfile of DeepSpeed's launcher."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from ..estimators.errors import ConfigFileError
from ..estimators.hardware import Cluster, cpu_cores, threads_per_rank
from ..estimators.workload import Framework
from .files import read_text

Launcher = Literal["deepspeed", "torchrun", "accelerate"]

ALLOCATOR_SETTING = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
"""The environment variable that the memory estimates assume: expandable segments lose almost nothing to
fragmentation."""


def threads_setting(cluster: Cluster) -> str:
    """`OMP_NUM_THREADS=...`: an equal part of a node's cores for each rank. If the number of cores is unknown, the
    node's shell counts them. A value set by the user takes precedence."""
    if cluster.cpu_cores_per_node is not None:
        return f"OMP_NUM_THREADS={threads_per_rank(cluster)}"
    cores = "$(nproc)" if cluster.gpus_per_node == 1 else f"$(($(nproc) / {cluster.gpus_per_node}))"
    return f"OMP_NUM_THREADS=${{OMP_NUM_THREADS:-{cores}}}"


def unset_threads(launcher: Launcher, cluster: Cluster) -> int:
    """Threads of each rank if OMP_NUM_THREADS is not set.

    torchrun sets 1 for several ranks on a node (torch 2.13 distributed/run.py), accelerate always (1.15
    commands/launch.py); the deepspeed launcher does not set it (0.19.8 launcher/launch.py), and every rank takes all
    cores.
    """
    one = launcher == "accelerate" or (launcher == "torchrun" and cluster.gpus_per_node > 1)
    return 1 if one else cpu_cores(cluster)


PORT = 29500
"""torch's default rendezvous port."""

PROGRAMS: Mapping[Launcher, tuple[str, ...]] = {
    "deepspeed": ("deepspeed",),
    "torchrun": ("torchrun",),
    "accelerate": ("accelerate", "launch"),
}
"""Program of each launcher."""

LAUNCHER_MODULES: Mapping[Launcher, str] = {
    "deepspeed": "deepspeed.launcher.runner",
    "torchrun": "torch.distributed.run",
    "accelerate": "accelerate.commands.launch",
}
"""Module of each launcher, for `python -m` in the same environment."""


class Counts(NamedTuple):
    """The options of a launcher with the numbers of nodes and of ranks."""

    nodes: str
    ranks: str
    of_all_nodes: bool = False
    """Whether `ranks` counts those of all nodes, not of each."""


COUNTS: Mapping[Launcher, Counts] = {
    "deepspeed": Counts("num_nodes", "num_gpus"),
    "torchrun": Counts("nnodes", "nproc_per_node"),
    "accelerate": Counts("num_machines", "num_processes", of_all_nodes=True),
}
"""The options with the numbers of ranks, of each launcher."""

_NODE_RANK, _MASTER_ADDR = "$NODE_RANK", "$MASTER_ADDR"
_SLURM_JOB, _SLURM_HEAD = "$SLURM_JOB_ID", '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'


class Rendezvous(NamedTuple):
    """Rendezvous of the ranks of several nodes.

    "hostfile": the deepspeed launcher is started once and reaches the nodes of `hostfile` by ssh.
    "static":   a launcher is started on every node, with its number `node_rank` and the first node's `address`.
    "slurm":    `srun` starts torchrun once on every node of the allocation `job`; `address` is the rendezvous endpoint.

    The defaults of `node_rank`, `address` and `job` are expressions for the shell that starts the launcher.
    """

    kind: Literal["hostfile", "static", "slurm"]
    hostfile: str = "hostfile"
    address: str = _MASTER_ADDR
    port: int | str = PORT
    node_rank: str = _NODE_RANK
    job: str = ""


_FIRST_PORT, _PORTS = 10_000, 20_000
"""Range of ports below Linux's ephemeral ports."""


def slurm_port(job: str) -> int:
    """A rendezvous port that depends on the job, so that two jobs on one node use different ports."""
    return _FIRST_PORT + int(job) % _PORTS


IN_ALLOCATION = Rendezvous(
    "slurm", address=_SLURM_HEAD, port=f"$(({_FIRST_PORT} + SLURM_JOB_ID % {_PORTS}))", job=_SLURM_JOB
)
"""The rendezvous of any allocation with its `slurm_port`, as expressions for the shell of its first node."""


def config_arguments(framework: Framework, config_path: str, *, flag: bool = True) -> list[str]:
    """The configuration as the frameworks' argument parsers expect it: `--deepspeed FILE` (TrainingArguments) or
    `--deepspeed --deepspeed_config FILE` (deepspeed.add_config_arguments), without the first if `flag` is False."""
    if framework != "deepspeed":
        return ["--deepspeed", config_path]
    return [*(["--deepspeed"] if flag else []), "--deepspeed_config", config_path]


def accelerate_variables(config_path: str) -> dict[str, str]:
    """Environment variables by which accelerate's launcher passes the configuration to a script (accelerate 1.15
    utils/launch.py `prepare_deepspeed_cmd_env`), for use with other launchers."""
    return {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_CONFIG_FILE": config_path}


def launcher_words(
    launcher: Launcher,
    cluster: Cluster,
    target: Sequence[str],
    *,
    config_path: str | None = None,
    is_module: bool = False,
    rendezvous: Rendezvous | None = None,
    port: int | None = None,
    program: Sequence[str] | None = None,
    bind_cores: bool = False,
) -> list[str]:
    """The words of the command that starts `target` (a script or module and its arguments) on every rank.

    config_path: for accelerate, which passes the configuration to the script; None if the script has it.
    rendezvous:  for several nodes. The deepspeed launcher needs "hostfile"; "slurm" is for torchrun.
    port:        on one node, in place of the launcher's default. program: in place of `PROGRAMS`.
    bind_cores:  the deepspeed launcher binds each rank to its part of the cores, which needs numactl, and sets
        OMP_NUM_THREADS; no effect on the others.
    """
    call = list(PROGRAMS[launcher] if program is None else program)
    nodes, gpus, names = cluster.nodes, cluster.gpus_per_node, COUNTS[launcher]
    ranks = {names.ranks: cluster.world_size if names.of_all_nodes and rendezvous is not None else gpus}
    if launcher == "accelerate":
        place = ["--use_deepspeed", *([] if config_path is None else _options(deepspeed_config_file=config_path))]
        if rendezvous is not None:
            place += _options(**{names.nodes: nodes}, **ranks, machine_rank=rendezvous.node_rank)
            place += _options(main_process_ip=rendezvous.address, main_process_port=rendezvous.port)
            place += _options(deepspeed_multinode_launcher="standard")
        else:
            place += _options(**ranks)
            place += [] if port is None else _options(main_process_port=port)
    elif rendezvous is None:
        place = [] if port is None else _options(master_port=port)
        place += _options(**ranks)
    elif rendezvous.kind == "hostfile":
        place = _options(hostfile=rendezvous.hostfile)
    elif rendezvous.kind == "slurm":
        call = ["srun", "--nodes", str(nodes), "--ntasks-per-node", "1", "--kill-on-bad-exit", *call]
        endpoint = f"{rendezvous.address}:{rendezvous.port}"
        place = _options(**{names.nodes: nodes}, **ranks, rdzv_backend="c10d")
        place += _options(rdzv_id=rendezvous.job, rdzv_endpoint=endpoint)
    else:
        place = _options(**{names.nodes: nodes}, **ranks, node_rank=rendezvous.node_rank)
        place += _options(master_addr=rendezvous.address, master_port=rendezvous.port)
    bound = ["--bind_cores_to_rank"] if bind_cores and launcher == "deepspeed" else []
    return [*call, *place, *bound, *(["--module"] if is_module else []), *target]


def _options(**values: str | int) -> list[str]:
    return [word for name, value in values.items() for word in (f"--{name}", str(value))]


def shell_line(words: Sequence[str]) -> str:
    """The words as a shell line, with the expressions of `Rendezvous` unquoted."""
    kept = (_NODE_RANK, _MASTER_ADDR, _SLURM_JOB)
    return " ".join(word if word in kept or word.startswith(_SLURM_HEAD) else shlex.quote(word) for word in words)


def launch_commands(
    cluster: Cluster,
    *,
    script: str = "train.py",
    config_path: str = "ds_config.json",
    framework: Framework,
    sets_threads: bool = False,
    bind_cores: bool = False,
) -> dict[str, list[str]]:
    """Shell lines by launcher: `deepspeed`, `torchrun`, `accelerate` and, for several nodes, `srun`, in the order of
    execution.

    On several nodes `deepspeed` is started once, with a comment line about its hostfile, and `srun` once in a Slurm
    allocation. The others are started on every node, with MASTER_ADDR set to the first node's address and NODE_RANK to
    the node's number from 0. accelerate is for "hf" only.

    sets_threads: pass `threads_setting` to nodes reached by ssh; on other nodes the environment must set it.
    bind_cores:   see `launcher_words`; on one node only.
    """
    target = [script, *config_arguments(framework, config_path)]
    by_ssh, by_hand, before = None, None, []
    if cluster.nodes > 1:
        by_ssh, by_hand = Rendezvous(kind="hostfile"), Rendezvous(kind="static")
        settings = [ALLOCATOR_SETTING, *([threads_setting(cluster)] if sets_threads else [])]
        before = [
            f"# hostfile names the nodes, one a line: node-0 slots={cluster.gpus_per_node}",
            *(f"echo {setting} >> .deepspeed_env" for setting in settings),
        ]
    by_deepspeed = launcher_words(
        "deepspeed", cluster, target, rendezvous=by_ssh, bind_cores=bind_cores and cluster.nodes == 1
    )
    commands = {
        "deepspeed": [*before, shell_line(by_deepspeed)],
        "torchrun": [shell_line(launcher_words("torchrun", cluster, target, rendezvous=by_hand))],
    }
    if framework != "deepspeed":
        words = launcher_words("accelerate", cluster, [script], config_path=config_path, rendezvous=by_hand)
        commands["accelerate"] = [shell_line(words)]
    if cluster.nodes > 1:
        commands["srun"] = [shell_line(launcher_words("torchrun", cluster, target, rendezvous=IN_ALLOCATION))]
    return commands


_ENTRY = re.compile(r"^(\S+)\s+slots=(\d{1,9})(?!\d)")
"""A line as launcher/runner.py `_parse_hostfile` (DeepSpeed 0.19.8) reads it; the rest of the line is ignored."""

_NAME = re.compile(r"^(?:[\w.-]+@)?[A-Za-z0-9_][\w.:-]*$")
"""Host names that ssh cannot parse as an option."""

_MAX_BYTES = 1_000_000
_FIX = "write a line such as `worker-0 slots=8` for each node"


def read_hostfile(file: Path) -> dict[str, int]:
    """Node -> slots (GPUs), as the launcher reads them. Raises ConfigFileError for content that the launcher rejects (a
    line without slots, a duplicate node, no node), for a name that ssh could parse as an option, and for a file that
    cannot be read; every faulty line is named, up to 5."""
    nodes: dict[str, int] = {}
    problems: list[str] = []
    text = read_text(file, _MAX_BYTES, what="a hostfile", fix="pass the path of a file; " + _FIX)
    for number, line in enumerate(re.split(r"\r\n?|\n", text), start=1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        match = _ENTRY.match(entry)
        if match is None or not _NAME.match(match[1]):
            problems.append(f"line {number} is not a node with its slots: {entry[:60]!r}")
        elif match[1] in nodes:
            problems.append(f"line {number}: {match[1]} is listed twice")
        else:
            nodes[match[1]] = int(match[2])
    if not nodes and not problems:
        problems = ["it names no node"]
    if problems:
        more = [f"{len(problems) - 5} more"] if len(problems) > 5 else []
        said = "; ".join([*problems[:5], *more])
        raise ConfigFileError(f"hostfile {file}: {said}", why="DeepSpeed's launcher refuses it", fix=_FIX)
    return nodes
