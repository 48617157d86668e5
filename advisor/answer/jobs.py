"""The job files of a recommended plan."""

from __future__ import annotations

import shlex
from pathlib import Path

from ...ds_configs.job import Job, JobKind
from ...ds_configs.job_files import JobFile, fsdp2_config, job_files, start_accelerate
from ...ds_configs.launch_commands import config_arguments
from ...ds_configs.training_script import arguments_class, packages, python_source, script_arguments
from ...estimators.errors import ClusterError
from ...estimators.objectives import OBJECTIVES
from ..question.prices import offers
from ..search.candidate import Candidate
from .recommendation import Recommendation
from .start import plan_config, rank_variables

FSDP2_FILE = "accelerate_fsdp2.yaml"


def build_jobs(answer: Recommendation, kinds: tuple[JobKind, ...], config_path: str) -> tuple[JobFile, ...]:
    """Return the job files of the recommended plan, placed in the folder of the configuration. With "accelerate", the
    file of the FSDP2 plan is added if the answer has such a plan and it fits. Raises ClusterError for a vLLM server,
    and as `job_files` does."""
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
    if "accelerate" in kinds and plain is not None and plain.plan.sharding == "fsdp2" and plain.fit.fits:
        files += (_fsdp2_file(answer, plain, folder / FSDP2_FILE),)
    return files


def _job(answer: Recommendation, chosen: Candidate, config_path: str) -> Job:
    workload = answer.question.workload
    return Job(
        cluster=answer.question.cluster,
        config=plan_config(answer, chosen) if chosen.plan.sharding == "zero" else {},
        config_path=config_path,
        config_words=tuple(config_arguments(workload.framework, config_path)),
        packages=tuple(packages(workload)),
        variables=rank_variables(answer),
        host_bytes_per_node=chosen.memory.host_bytes_per_node,
        output_dir="output" if workload.uses_trainer else None,
        offers=offers,
    )


def _fsdp2_file(answer: Recommendation, plain: Candidate, path: Path) -> JobFile:
    """Return the FSDP2 file, with the script's arguments as comments. Without `sync_each_batch`, accumulated gradients
    stay unsharded on every GPU (accelerate 1.15 accelerator.py `no_sync`)."""
    question, plan = answer.question, plain.plan
    arguments = script_arguments(question.workload, plan, question.cluster, "")
    arguments.pop("deepspeed", None)
    if plan.gradient_accumulation_steps > 1:
        arguments["accelerator_config"] = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
    source = ", ".join(f"{name}={python_source(value, name)}" for name, value in arguments.items())
    job = _job(answer, plain, str(path))
    text = fsdp2_config(job, question.workload.precision, f"{arguments_class(question.workload)}({source})")
    return JobFile(
        title="FSDP2 under accelerate", path=path, text=text, start=start_accelerate(job, shlex.quote(str(path)))
    )
