"""The job files of a recommended plan."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from ...ds_configs.job import Job, JobKind
from ...ds_configs.job_files import JobFile, fsdp2_config, fsdp_config, job_files, start_accelerate
from ...ds_configs.launch_commands import config_arguments
from ...ds_configs.training_script import arguments_class, fsdp_arguments, packages, python_source
from ...estimators.errors import ClusterError
from ...estimators.objectives import OBJECTIVES
from ..question.prices import offers
from ..search.candidate import Candidate
from .recommendation import Recommendation
from .start import has_fsdp_file, plan_config, rank_variables


def build_jobs(answer: Recommendation, kinds: tuple[JobKind, ...], config_path: str) -> tuple[JobFile, ...]:
    """Return the job files of the recommended plan, placed in the folder of the configuration. With "accelerate", the
    file of the FSDP plan is added if the answer has such a plan, it fits, and `has_fsdp_file`. Raises ClusterError for
    a vLLM server, and as `job_files` does."""
    rollouts = answer.question.workload.rollouts
    if rollouts is not None and rollouts.server_gpus:
        raise ClusterError(
            "job files do not start a vLLM server",
            why="the training would wait for a server",
            fix="pass --rollout vllm-colocate, or leave --emit out and start both with the printed commands",
        )
    if OBJECTIVES[answer.question.workload.objective].value_model:
        raise ClusterError(
            "job files do not support PPO",
            why="they pass the configuration by --deepspeed, which TRL's PPOTrainer does not read",
            fix="leave --emit out, and put the printed accelerate command into a job",
        )
    chosen, plain, folder = answer.recommended, answer.pytorch_baseline, Path(config_path).parent
    files = () if chosen is None else job_files(_job(answer, chosen, config_path), kinds, folder)
    if "accelerate" in kinds and plain is not None and plain.fit.fits and has_fsdp_file(answer.question, plain):
        files += (_fsdp_file(answer, plain, folder / f"accelerate_{plain.strategy}.yaml"),)
    return files


def _job(answer: Recommendation, chosen: Candidate, config_path: str) -> Job:
    workload, script = answer.question.workload, answer.script
    config_words = tuple(config_arguments(workload.framework, config_path))
    own: dict[str, Any] = {"config_words": config_words}
    if script is not None:
        own = {"script": script.path, "arguments": script.arguments, "config_words": script.config_words}
    return Job(
        **own,
        cluster=answer.question.cluster,
        config=plan_config(answer, chosen) if chosen.plan.sharding == "zero" else {},
        config_path=config_path,
        packages=tuple(packages(workload)),
        variables=rank_variables(answer),
        host_bytes_per_node=chosen.memory.host_bytes_per_node,
        output_dir="output" if workload.uses_trainer else None,
        offers=offers,
    )


def _fsdp_file(answer: Recommendation, plain: Candidate, path: Path) -> JobFile:
    """Return the FSDP file, with the script's arguments as comments."""
    question, workload = answer.question, answer.question.workload
    arguments = fsdp_arguments(workload, plain.plan, question.cluster, epochs=question.epochs)
    source = ", ".join(f"{name}={python_source(value, name)}" for name, value in arguments.items())
    job = _job(answer, plain, str(path))
    config = fsdp2_config if plain.plan.sharding == "fsdp2" else fsdp_config
    text = config(job, workload.precision, f"{arguments_class(workload)}({source})")
    return JobFile(
        title=f"{plain.strategy.upper()} under accelerate",
        path=path,
        text=text,
        start=start_accelerate(job, shlex.quote(str(path))),
    )
