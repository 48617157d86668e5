"""Files that start a training with a scheduler or a launcher: Slurm, Kubernetes, SkyPilot, Ray, accelerate, a hostfile.

They only distribute: every rank runs the user's script with the arguments and variables of the printed commands
(`launch_commands`). What each needs, and what was tried: docs/job-files.md.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from . import JobKind
from .job import Job
from .kubernetes import create_configmap, train_job
from .launchers import accelerate_config, hostfile, start_accelerate, start_hostfile
from .ray_train import ray_script
from .skypilot import skypilot_task
from .slurm import slurm_script


class JobFile(NamedTuple):
    """A job file."""

    title: str
    """Who reads it."""
    path: Path
    text: str
    start: tuple[str, ...]
    """The shell lines that start it."""


class _Kind(NamedTuple):
    title: str
    file: str
    text: Callable[[Job], str]
    start: Callable[[Job, str], tuple[str, ...]]
    """From the job and the file's path."""


_KINDS: Mapping[JobKind, _Kind] = {
    "slurm": _Kind("Slurm", "job.sbatch", slurm_script, lambda _, path: (f"sbatch {path}",)),
    "kubernetes": _Kind(
        "Kubernetes",
        "trainjob.yaml",
        train_job,
        lambda job, path: (create_configmap(job), f"kubectl create -f {path}"),
    ),
    "skypilot": _Kind("SkyPilot", "sky.yaml", skypilot_task, lambda _, path: (f"sky launch {path}",)),
    "ray": _Kind("Ray", "ray_train.py", ray_script, lambda _, path: (f"python {path}",)),
    "accelerate": _Kind("accelerate", "accelerate.yaml", accelerate_config, start_accelerate),
    "hostfile": _Kind("The hostfile of DeepSpeed", "hostfile", hostfile, start_hostfile),
}


def job_files(job: Job, kinds: tuple[JobKind, ...], folder: Path) -> tuple[JobFile, ...]:
    """The files of these kinds, to be written into a folder. They are started from the working folder.

    Raises ClusterError where a kind cannot name the GPU.
    """
    specs = [_KINDS[kind] for kind in dict.fromkeys(kinds)]
    paths = [folder / spec.file for spec in specs]
    return tuple(
        JobFile(title=spec.title, path=path, text=spec.text(job), start=spec.start(job, shlex.quote(str(path))))
        for spec, path in zip(specs, paths, strict=True)
    )
