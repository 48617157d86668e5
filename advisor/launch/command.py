"""The command that starts the ranks, run by `launch` and printed by `--dry`, and the environment of the ranks."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace

from ...ds_configs.job import Job
from ...ds_configs.launch_commands import (
    ALLOCATOR_SETTING,
    LAUNCHER_MODULES,
    accelerate_variables,
    launcher_words,
    shell_line,
    threads_setting,
)
from ...ds_configs.read import offload_device_in
from ...ds_configs.training_script import packages
from ...estimators.errors import WorkloadError
from ...probes.command.words import interpreter_of
from ...probes.machine import ON_CPU, can_bind_cores, cores_per_rank, search_path
from ...probes.real_run.environment import Settings, observed_environment
from ..question.prices import offers
from .request import LaunchRequest


def launch_line(request: LaunchRequest, *, port: int | None = None) -> list[str]:
    """The words of the command that starts the ranks: the user's own, with the request's launcher in front of a program
    without one. It expects `launch_environment` in its environment.

    port: rendezvous port on one node; None is the launcher's default.
    """
    command, run, launcher = request.command, request.run, request.launcher
    if command.program is None:
        return [*command.before, *command.words]
    python = interpreter_of(request.words) or sys.executable
    by_launcher = launcher == "accelerate" and request.config_path is not None
    return [
        *command.before,
        *launcher_words(
            launcher,
            run.cluster,
            [command.program.target, *command.program.arguments],
            is_module=command.program.is_module,
            rendezvous=request.rendezvous,
            port=port,
            config_path=str(request.config_path) if by_launcher else None,
            program=[str(python), "-m", LAUNCHER_MODULES[launcher]],
            # Core binding overwrites OMP_NUM_THREADS, so it is used only if the user has not set the variable.
            bind_cores="OMP_NUM_THREADS" in launch_environment(request)
            and not request.rendezvous
            and can_bind_cores(run.cluster.gpus_per_node),
        ),
    ]


def observed(request: LaunchRequest) -> dict[str, str]:
    """The environment in which the ranks of `launch_line` are observed."""
    variables = launch_environment(request)
    by_ssh = request.rendezvous is not None and request.rendezvous.kind == "hostfile"
    settings = Settings(
        folder=str(request.folder),
        variables=variables if by_ssh else {},
        config_file=str(request.config_path.absolute()) if request.config_path else None,
    )
    path = search_path(interpreter_of(launch_line(request)))
    return observed_environment(settings, {**os.environ, "PATH": path, **variables})


def dry_lines(request: LaunchRequest) -> list[tuple[str, str]]:
    """(location, command line) of every node, as `launch` starts it. On one node `launch` uses a free port instead.

    The configuration is in the line if `passed_config` knows how to pass it: `launch` passes it without a word in the
    line."""
    rendezvous, (words, passed) = request.rendezvous, passed_config(request) or ((), {})
    environment = launch_environment(request) | passed
    settings = [f"{name}={shlex.quote(value)}" for name, value in environment.items() if name != "OMP_NUM_THREADS"]
    if "OMP_NUM_THREADS" in environment:  # computed from this machine's cores; other nodes may differ
        here = rendezvous is None or rendezvous.kind == "hostfile"
        threads = f"OMP_NUM_THREADS={environment['OMP_NUM_THREADS']}" if here else threads_setting(request.run.cluster)
        settings.append(threads)
    variables = "".join(f"{setting} " for setting in settings)
    if rendezvous is None or rendezvous.kind != "static":
        where = {"hostfile": "on this node, which reaches the others by ssh", "slurm": "in the allocation"}
        line = variables + shell_line([*launch_line(request), *words])
        return [("on this node" if rendezvous is None else where[rendezvous.kind], line)]
    lines = []
    for node in range(request.run.cluster.nodes):
        own = replace(request, rendezvous=rendezvous._replace(node_rank=str(node)))
        lines.append((f"on node {node}", variables + shell_line([*launch_line(own), *words])))
    return lines


def launch_environment(request: LaunchRequest, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that are set for the ranks, without those already in the user's `environment`. DS_ACCELERATOR and
    CUDA_VISIBLE_DEVICES are always set for training on the CPU, which must not use a GPU."""
    forced = dict(ON_CPU) if request.device == "cpu" else {}
    needed = _needed(request)
    if "PYTORCH_ALLOC_CONF" in environment:  # torch >= 2.9 reads it too
        needed.pop("PYTORCH_CUDA_ALLOC_CONF", None)
    return forced | {name: value for name, value in needed.items() if name not in environment}


def launch_job(request: LaunchRequest) -> Job:
    """The job that runs the script without `launch` around its ranks. It resumes if the script's arguments are the
    Trainer's. Raises WorkloadError for a command that starts its ranks itself."""
    command, path = request.command, request.config_path
    program = command.program
    if program is None:
        raise WorkloadError(
            "a job file needs the script itself",
            why=f"{command.words[0]} starts the ranks, which the job file does too",
            fix="write only the script and its arguments behind --",
        )
    variables = launch_environment(request, {})
    variables.pop("OMP_NUM_THREADS", None)  # computed for this machine
    # A script that reads neither is told to the user (`lost_config`).
    words, passed = passed_config(request) or ((), accelerate_variables(str(path)))
    variables |= passed
    output_dir = request.arguments.output_dir
    host_bytes = None if request.prediction is None else request.prediction.host_bytes
    return Job(
        cluster=request.run.cluster,
        script=program.target,
        arguments=tuple(program.arguments),
        is_module=program.is_module,
        config=request.run.config,
        config_path=str(path),
        config_words=words,
        packages=tuple(packages(request.run.workload)),
        variables=variables,
        host_bytes_per_node=host_bytes,
        output_dir=str(output_dir) if output_dir and request.options.are_training_arguments else None,
        offers=offers,
    )


def passed_config(request: LaunchRequest) -> tuple[tuple[str, ...], dict[str, str]] | None:
    """(arguments of the script, variables) that pass the configuration in front of `--` to a script that is not
    observed, as it is under `launch`; nothing if the command has it already. None if nothing is known to pass it: the
    script was not seen, or gives `deepspeed.initialize` a configuration that it reads from no argument."""
    path, command, seen = request.config_path, request.command, request.dry_run
    by_launcher = request.launcher == "accelerate" and command.program is not None
    if path is None or by_launcher or request.options.configs:
        return (), {}
    words = config_words(request)
    if words and (command.program is not None or command.launcher):  # behind another command they may not arrive
        return words, {}
    by_ssh = request.rendezvous is not None and request.rendezvous.kind == "hostfile"  # passes no variable on
    if seen is None or seen.training.framework == "deepspeed" or by_ssh:
        return None
    return (), accelerate_variables(str(path))


def lost_config(request: LaunchRequest, what: str) -> str:
    """The sentence that only `launch` passes the configuration; "" if `what` passes it too."""
    if request.config_path is None or passed_config(request) is not None:
        return ""
    return f"{request.config_path.name} is passed to the script by ds-advise launch at run time; {what} lacks it"


def config_words(request: LaunchRequest) -> tuple[str, ...]:
    """Arguments that pass the configuration to a script whose parser was seen to take it."""
    path, seen = str(request.config_path), request.dry_run and request.dry_run.arguments
    flags = {flag for option in seen.options for flag in option.flags} if seen and request.config_path else set[str]()
    if "--deepspeed_config" in flags:
        return (*["--deepspeed"] * ("--deepspeed" in flags), "--deepspeed_config", path)
    return ("--deepspeed", path) if "--deepspeed" in flags else ()


def kept_settings(request: LaunchRequest, environment: Mapping[str, str] = os.environ) -> list[str]:
    """A phrase for each of the user's variables that differs from the plan's value."""
    return [
        f"{name}={environment[name]} (instead of {value})"
        for name, value in _needed(request).items()
        if environment.get(name, value) != value
    ]


def _needed(request: LaunchRequest) -> dict[str, str]:
    """The variables that the plan needs.

    PYTORCH_CUDA_ALLOC_CONF: assumed by the memory figures.
    OMP_NUM_THREADS: an equal part of the cores for each rank, on the CPU and for CPU Adam. torchrun would set 1, and
        CPU Adam's time would grow with the number of idle cores.
    """
    on_cpu = request.device == "cpu"
    needed = {} if on_cpu else dict([ALLOCATOR_SETTING.split("=")])
    if on_cpu or offload_device_in(request.run.config) != "none":
        needed["OMP_NUM_THREADS"] = str(cores_per_rank(request.run.cluster.gpus_per_node))
    return needed
