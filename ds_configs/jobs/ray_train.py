"""A script for Ray Train, each of whose workers runs the user's script as one rank."""

from __future__ import annotations

import pprint

from .job import Job

_SCRIPT = '''\
"""{script} on {place} with Ray Train: python FILE, from the folder of the paths below.

It joins the Ray cluster of $RAY_ADDRESS, or starts one on this machine. Every node must have this folder.
"""

import json
import os
import runpy
import sys
import tempfile
import time
from pathlib import Path

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

SCRIPT = {script!r}
ARGUMENTS = {arguments!r}
CONFIG_PATH = {config_path!r}  # in ARGUMENTS and VARIABLES; every rank writes CONFIG into a file of its own
OUTPUT_DIR = {output_dir!r}  # of the Trainer's checkpoints; None: the script loads its newest by itself
VARIABLES = {variables!r}
RANKS, RANKS_PER_NODE, USES_GPUS = {ranks}, {ranks_per_node}, {uses_gpus}
CONFIG = {config}


def train(job):
    # Ray has set RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
    os.chdir(job["folder"])
    config_path = Path(tempfile.mkdtemp(), "ds_config.json")
    config_path.write_text(json.dumps(CONFIG))
    os.environ |= {{name: str(config_path) for name, value in VARIABLES.items() if value == CONFIG_PATH}}
    words = [str(config_path) if word == CONFIG_PATH else word for word in ARGUMENTS]
    states = Path(OUTPUT_DIR).glob("checkpoint-*/trainer_state.json") if OUTPUT_DIR else []
    saved = [(state.stat().st_mtime, str(state.parent)) for state in states]
    if saved and max(saved)[0] > job["started"]:  # Ray has started the ranks again after a failure
        words += ["--resume_from_checkpoint", max(saved)[1]]
    sys.argv = [SCRIPT, *words]
    sys.path.insert(0, {folder})
    runpy.{run}(SCRIPT, run_name="__main__")


if __name__ == "__main__":
    ray.init(runtime_env={{"env_vars": VARIABLES}})
    cores = int(min(node["Resources"].get("CPU", 1) for node in ray.nodes() if node["Alive"]))
    each = {{"CPU": max(1, cores // RANKS_PER_NODE)}}  # Ray sets OMP_NUM_THREADS to it
    scaling = ScalingConfig(
        num_workers=RANKS, use_gpu=USES_GPUS, resources_per_worker=each | ({{"GPU": 1}} if USES_GPUS else {{}})
    )
    run = RunConfig(name={name!r}, failure_config=FailureConfig(max_failures=3))
    job = {{"folder": os.getcwd(), "started": time.time()}}
    TorchTrainer(train, train_loop_config=job, scaling_config=scaling, run_config=run).fit()
'''


def ray_script(job: Job) -> str:
    """The script's source."""
    cluster, threads = job.cluster, job.cluster.threads_per_rank
    return _SCRIPT.format(
        script=job.script,
        place=job.place,
        arguments=[*job.arguments, *job.config_words],
        config_path=job.config_path,
        output_dir=job.output_dir,
        variables=dict(job.variables) | ({"OMP_NUM_THREADS": str(threads)} if threads else {}),
        ranks=cluster.world_size,
        ranks_per_node=cluster.gpus_per_node,
        uses_gpus=not cluster.gpu.is_cpu,
        config=pprint.pformat(dict(job.config), sort_dicts=False, width=110),
        folder='""' if job.is_module else "str(Path(SCRIPT).resolve().parent)",
        run=f"run_{'module' if job.is_module else 'path'}",
        name=job.name,
    )
