"""The command that starts the ranks, as `launch` runs it and as `--dry` prints it."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace

from ...ds_configs.launch_commands import LAUNCHER_MODULES, config_arguments, launcher_words, shell_line
from ...probes.this_machine import can_bind_cores
from .environment import environment_of
from .request import LaunchRequest


def launch_line(request: LaunchRequest, *, port: int | None = None) -> list[str]:
    """The words of the command that starts the ranks, each of which runs the script through `ranks/rank.py`.

    port: on one node; None leaves the launcher's default. The variables of `environment_of` are expected in the
    command's environment; for nodes that are reached by ssh, which passes none on, they are among its arguments.
    """
    script, run, config_path = request.script, request.run, str(request.config_path)
    by_ssh = request.rendezvous is not None and request.rendezvous.kind == "hostfile"
    by_launcher = request.launcher == "accelerate" and request.passes_config
    by_script = request.passes_config and not by_launcher
    variables = environment_of(request)
    settings = [word for name, value in variables.items() for word in ("--set", f"{name}={value}")]
    target = [
        f"{__package__}.rank",
        *("--folder", str(request.folder)),
        *(settings if by_ssh else []),
        *(["--is-module"] if script.is_module else []),
        script.target,
        *script.arguments,
        *(config_arguments(run.workload.framework, config_path, flag=request.config_flag) if by_script else []),
    ]
    return launcher_words(
        request.launcher,
        run.cluster,
        target,
        is_module=True,
        rendezvous=request.rendezvous,
        port=port,
        config_path=config_path if by_launcher else None,
        program=[sys.executable, "-m", LAUNCHER_MODULES[request.launcher]],
        # It sets OMP_NUM_THREADS over what is in the environment, so only where the user has not chosen it.
        bind_cores="OMP_NUM_THREADS" in variables
        and not request.rendezvous
        and can_bind_cores(run.cluster.gpus_per_node),
    )


def dry_lines(request: LaunchRequest) -> list[tuple[str, str]]:
    """(where, the line that runs there) for every node, exactly as `launch` starts it, except for the port on one node,
    where `launch` takes a free one."""
    variables = "".join(f"{name}={shlex.quote(value)} " for name, value in environment_of(request).items())

    def line(of: LaunchRequest) -> str:
        return variables + shell_line(launch_line(of))

    rendezvous = request.rendezvous
    if rendezvous is None or rendezvous.kind != "static":
        where = {"hostfile": "on this node, which reaches the others by ssh", "slurm": "in the allocation"}
        return [("on this node" if rendezvous is None else where[rendezvous.kind], line(request))]
    lines = []
    for node in range(request.run.cluster.nodes):
        its_rendezvous, folder = rendezvous._replace(node_rank=str(node)), request.folder.with_name(f"node{node}")
        lines.append((f"on node {node}", line(replace(request, rendezvous=its_rendezvous, folder=folder))))
    return lines
