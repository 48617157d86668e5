"""The job files of a recommended plan."""

from __future__ import annotations

from pathlib import Path

from ...ds_configs.jobs import JobKind
from ...ds_configs.jobs.files import JobFile, job_files
from ...ds_configs.jobs.job import Job
from ...ds_configs.launch_commands import config_arguments
from ..search.candidate import Candidate
from .recommendation import Recommendation
from .start import plan_config, rank_variables


def jobs_of(
    answer: Recommendation, chosen: Candidate, kinds: tuple[JobKind, ...], config_path: str
) -> tuple[JobFile, ...]:
    """The job files of a plan, in the folder of its configuration. Raises ClusterError as `job_files` does."""
    workload = answer.question.workload
    job = Job(
        cluster=answer.question.cluster,
        config=plan_config(answer, chosen),
        config_path=config_path,
        config_words=tuple(config_arguments(workload.framework, config_path)),
        variables=rank_variables(answer),
        host_bytes_per_node=chosen.memory.host_bytes_per_node,
        output_dir="output" if workload.uses_trainer else None,
    )
    return job_files(job, kinds, Path(config_path).parent)
