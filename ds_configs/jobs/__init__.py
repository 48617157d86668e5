"""Files that start a training with a scheduler or a launcher."""

from typing import Literal, get_args

JobKind = Literal["slurm", "kubernetes", "skypilot", "ray", "accelerate", "hostfile"]
"""What a job file is for."""

JOB_KINDS: tuple[JobKind, ...] = get_args(JobKind)
