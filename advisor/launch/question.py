"""From the command line of `ds-advise launch` to a `LaunchRequest`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...ds_configs.launch_commands import Launcher
from ...ds_configs.read import precision_in
from ...estimators.errors import ClusterError
from ...estimators.hardware import Cluster
from ...estimators.workload import Workload
from ...probes.command.training_command import TrainingCommand, read_command
from ...probes.command.words import check_script
from ...probes.run import Run, check_device
from ..question.file_question import FileQuestion
from ..question.run import read_run
from .check import predict_run
from .place import command_cluster, launcher_for, resolve_place
from .request import LaunchRequest


def launch_request(
    words: tuple[str, ...],
    question: FileQuestion | None,
    *,
    config_file: Path | None,
    is_config_given: bool,
    offline: bool,
    launcher: Launcher | None,
    log_dir: Path | None,
    stall_s: float | None,
    **place: Any,
) -> LaunchRequest:
    """The launch of a command, before it is checked.

    question: that of the configuration file, if there is one. Without a model only the file itself counts.
    is_config_given: whether the user named the file.
    place: the options of `resolve_place`.

    Raises DsAdviseError for a command or options that cannot be launched.
    """
    command, config = read_command(words), {} if question is None else question.config
    if place["starts"]:
        check_script(words, Path.cwd())
    if command.program is None:
        cluster, rendezvous = _own_processes(command, launcher, place), None
    else:
        cluster, rendezvous = resolve_place(**place)
    workload = Workload(precision="fp16" if precision_in(config) == "fp16" else "bf16")
    run, estimate = Run(config=config, model={}, cluster=cluster, workload=workload), None
    if question is not None and question.model is not None:
        run = read_run(config, question.model, cluster, **question.options)
        estimate = predict_run(run)
    check_device(run, place["device"])
    folder = (log_dir or Path("ds-advise-launch", time.strftime("%Y-%m-%dT%H-%M-%S"))).absolute()
    several = place["master"] is not None  # the nodes may share a file system
    return LaunchRequest(
        words=words,
        run=run,
        config_path=config_file,
        is_config_given=is_config_given,
        requested_launcher=launcher_for(rendezvous, launcher),
        folder=folder / f"node{place['node_rank']}" if several else folder,
        is_folder_given=log_dir is not None,
        device=place["device"],
        rendezvous=rendezvous,
        estimate=estimate,
        offline=offline,
        stall_s=stall_s,
    )


def _own_processes(command: TrainingCommand, launcher: Launcher | None, place: Mapping[str, Any]) -> Cluster:
    """The cluster of the ranks that a command starts itself."""
    given = {"--launcher": launcher, **{f"--{each}": place[each] for each in ("hostfile", "slurm", "master", "nodes")}}
    if option := next((option for option, value in given.items() if value), None):
        raise ClusterError(
            f"{option} has no effect on this command",
            why=f"{command.launcher or command.words[0]} starts the ranks",
            fix="leave it out, or write only the script and its arguments behind --",
        )
    return command_cluster(command, place, here=place["starts"])
