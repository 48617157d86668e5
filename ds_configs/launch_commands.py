"""The commands that start the training, for each launcher."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..estimators.hardware.cluster import Cluster
from ..estimators.workload import Framework

Launcher = Literal["deepspeed", "torchrun", "accelerate"]

ALLOCATOR_SETTING = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
"""The environment variable that the memory figures rest on: segments that grow lose almost nothing to fragmentation."""

PORT = 29500
"""torch's default rendezvous port."""

PROGRAMS: Mapping[Launcher, tuple[str, ...]] = {
    "deepspeed": ("deepspeed",),
    "torchrun": ("torchrun",),
    "accelerate": ("accelerate", "launch"),
}
"""The launchers as they are typed."""

LAUNCHER_MODULES: Mapping[Launcher, str] = {
    "deepspeed": "deepspeed.launcher.runner",
    "torchrun": "torch.distributed.run",
    "accelerate": "accelerate.commands.launch",
}
"""The modules behind them, for `python -m`: certain to be of the same environment as that python."""

_NODE_RANK, _MASTER_ADDR = "$NODE_RANK", "$MASTER_ADDR"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """How the ranks of several nodes meet.

    "hostfile": the deepspeed launcher is started once and reaches the nodes of `hostfile` by ssh.
    "static":   a launcher is started on every node; `node_rank` says which it is, `address` is the first node's.
    "slurm":    `srun` starts torchrun once on every node of the allocation `job`; they meet at `address`.
    """

    kind: Literal["hostfile", "static", "slurm"]
    hostfile: str = "hostfile"
    address: str = _MASTER_ADDR
    port: int = PORT
    node_rank: str = _NODE_RANK
    job: str = ""


def config_arguments(framework: Framework, config_path: str) -> list[str]:
    """The configuration as the frameworks' argument parsers expect it: `--deepspeed FILE` (TrainingArguments) or
    `--deepspeed --deepspeed_config FILE` (deepspeed.add_config_arguments)."""
    return ["--deepspeed", config_path] if framework == "hf" else ["--deepspeed", "--deepspeed_config", config_path]


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
) -> list[str]:
    """The words of the command that starts `target` (a script or module and its arguments) on every rank.

    config_path: for accelerate, which hands the configuration to the script itself; None where the script knows it.
    rendezvous:  of several nodes. "hostfile" needs the deepspeed launcher, which also knows no other, "slurm" torchrun.
    port:        on one node, in place of the launcher's default. program: how the launcher is called (default
        `PROGRAMS`).
    """
    call = list(PROGRAMS[launcher] if program is None else program)
    module = ["--module"] if is_module else []
    nodes, gpus = cluster.nodes, cluster.gpus_per_node
    if launcher == "accelerate":
        config = ["--use_deepspeed"] + ([] if config_path is None else ["--deepspeed_config_file", config_path])
        if rendezvous is None:
            place = ["--num_processes", str(gpus)] + ([] if port is None else ["--main_process_port", str(port)])
        else:
            place = [
                "--num_machines",
                str(nodes),
                "--num_processes",
                str(cluster.world_size),
                "--machine_rank",
                rendezvous.node_rank,
                "--main_process_ip",
                rendezvous.address,
                "--main_process_port",
                str(rendezvous.port),
                "--deepspeed_multinode_launcher",
                "standard",
            ]
        return [*call, *config, *place, *module, *target]
    if rendezvous is None:
        number = "--num_gpus" if launcher == "deepspeed" else "--nproc_per_node"
        return [*call, *([] if port is None else ["--master_port", str(port)]), number, str(gpus), *module, *target]
    if rendezvous.kind == "hostfile":
        return [*call, "--hostfile", rendezvous.hostfile, *module, *target]
    torchrun = [*call, "--nnodes", str(nodes), "--nproc_per_node", str(gpus)]
    if rendezvous.kind == "slurm":
        return [
            "srun",
            "--nodes",
            str(nodes),
            "--ntasks-per-node",
            "1",
            *torchrun,
            "--rdzv_backend",
            "c10d",
            "--rdzv_id",
            rendezvous.job,
            "--rdzv_endpoint",
            f"{rendezvous.address}:{rendezvous.port}",
            *module,
            *target,
        ]
    return [
        *torchrun,
        "--node_rank",
        rendezvous.node_rank,
        "--master_addr",
        rendezvous.address,
        "--master_port",
        str(rendezvous.port),
        *module,
        *target,
    ]


def shell_line(words: Sequence[str]) -> str:
    """The words as a line to paste; the two variables that every node fills in itself stay variables."""
    return " ".join(word if word in (_NODE_RANK, _MASTER_ADDR) else shlex.quote(word) for word in words)


def launch_commands(
    cluster: Cluster, *, script: str = "train.py", config_path: str = "ds_config.json", framework: Framework
) -> dict[str, list[str]]:
    """Shell lines by launcher: `deepspeed`, `torchrun` and `accelerate`; each list is run from top to bottom.

    On one node each is one line. On several, `deepspeed` is started once and reaches the nodes of a hostfile by ssh; a
    comment line says what stands in that. The other launchers are started on every node, with MASTER_ADDR set to the
    first node's address and NODE_RANK to the node's number from 0. accelerate is for "hf" only.
    """
    target = [script, *config_arguments(framework, config_path)]
    by_ssh, by_hand = (Rendezvous(kind="hostfile"), Rendezvous(kind="static")) if cluster.nodes > 1 else (None, None)
    before = (
        []
        if by_ssh is None
        else [
            f"# hostfile names the nodes, one a line: node-0 slots={cluster.gpus_per_node}",
            f"echo {ALLOCATOR_SETTING} >> .deepspeed_env",
        ]
    )
    commands = {
        "deepspeed": [*before, shell_line(launcher_words("deepspeed", cluster, target, rendezvous=by_ssh))],
        "torchrun": [shell_line(launcher_words("torchrun", cluster, target, rendezvous=by_hand))],
    }
    if framework == "hf":
        commands["accelerate"] = [
            shell_line(launcher_words("accelerate", cluster, [script], config_path=config_path, rendezvous=by_hand))
        ]
    return commands
