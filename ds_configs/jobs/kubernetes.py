"""A TrainJob of Kubeflow Trainer v2.

Several nodes take its runtime for DeepSpeed, where mpirun starts the ranks; the runtime makes ssh keys and hostfile. It
always starts a launcher and at least one more pod (kubeflow/trainer pkg/runtime/framework/plugins/mpi/mpi.go
`EnforceMLPolicy`), so one node takes its runtime for torch, with the same image.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from ..launch_commands import PORT
from .job import Job, yaml_text

_FOLDER = "/job"
"""Where the pods find the script and the configuration."""

_IMAGE = "ghcr.io/kubeflow/trainer/deepspeed-runtime"
"""Of the runtime for DeepSpeed (kubeflow/trainer manifests/base/runtimes/deepspeed_distributed.yaml)."""

_OF_OPEN_MPI = {"RANK": "RANK", "LOCAL_RANK": "LOCAL_RANK", "WORLD_SIZE": "SIZE", "LOCAL_WORLD_SIZE": "LOCAL_SIZE"}
"""torchrun's variables by Open MPI's. DeepSpeed finds these by itself, transformers does not."""


def train_job(job: Job) -> str:
    """The TrainJob's YAML."""
    cluster = job.cluster
    several = cluster.nodes > 1
    resources: dict[str, Any] = {}
    if job.host_gib is not None:
        resources["requests"] = {"memory": f"{job.host_gib}Gi"}
    if not cluster.gpu.is_cpu:
        vendor = "amd" if cluster.gpu.vendor == "AMD" else "nvidia"
        resources["limits"] = {f"{vendor}.com/gpu": cluster.gpus_per_node}
    mounts = {
        "job": (_FOLDER, {"configMap": {"name": job.name}}),
        "shm": ("/dev/shm", {"emptyDir": {"medium": "Memory"}}),
    }
    pods = {
        "containers": [
            {"name": "node", "volumeMounts": [{"name": name, "mountPath": path} for name, (path, _) in mounts.items()]}
        ],
        "volumes": [{"name": name, **source} for name, (_, source) in mounts.items()],
    }
    patches = [
        {"name": name, "template": {"spec": {"template": {"spec": pods}}}}
        for name in (("node", "launcher") if several else ("node",))
    ]
    body = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": job.name},
        "spec": {
            "runtimeRef": {"name": "deepspeed-distributed" if several else "torch-distributed"},
            "trainer": {
                "image": _IMAGE,
                "numNodes": cluster.nodes,
                "numProcPerNode": cluster.gpus_per_node,
                "resourcesPerNode": resources,
                "command": ["bash", "-c"],
                "args": ["\n".join([*(_by_mpirun if several else _by_torchrun)(job), ""])],
            },
            "runtimePatches": [
                {"manager": "ds-advise", "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": patches}}}}
            ],
        },
    }
    return yaml_text(
        body,
        f"{job.script} on {job.place}. The pods take script and configuration from a ConfigMap, made by",
        create_configmap(job),
        "Other files, and checkpoints that outlive the pods, need a volume to which all pods may write: add its",
        "persistentVolumeClaim to volumes and volumeMounts below, with its folder as output_dir.",
    )


def create_configmap(job: Job) -> str:
    """The command that puts the script and the configuration where the pods look for them."""
    return shlex.join(["kubectl", "create", "configmap", job.name, *(f"--from-file={file}" for file in _files(job))])


def _files(job: Job) -> list[str]:
    return [job.config_path] if job.is_module else [job.config_path, job.script]


def _in_pod(job: Job, word: str) -> str:
    return f"{_FOLDER}/{Path(word).name}" if word in _files(job) else word


def _exports(job: Job) -> list[str]:
    given = [f"export {name}={shlex.quote(_in_pod(job, value))}" for name, value in job.variables.items()]
    return [*given, f"export OMP_NUM_THREADS={job.threads('$(nproc)')}"]


def _by_torchrun(job: Job) -> list[str]:
    words = ["torchrun", "--nproc_per_node", str(job.cluster.gpus_per_node), *["--module"] * job.is_module]
    return [*_exports(job), shlex.join([*words, *(_in_pod(job, word) for word in job.target)])]


def _by_mpirun(job: Job) -> list[str]:
    """Without the binding of Open MPI, which would leave each rank one core or one NUMA node."""
    ranks = " ".join(f"{name}=$OMPI_COMM_WORLD_{theirs}" for name, theirs in _OF_OPEN_MPI.items())
    program = shlex.join(["python3", *["-m"] * job.is_module, *(_in_pod(job, word) for word in job.target)])
    each = "; ".join([*_exports(job), f"export {ranks} MASTER_PORT={PORT}", f"exec {program}"])
    return [
        "# Rank 0 runs on the first node of the runtime's hostfile.",
        "export MASTER_ADDR=$(head -n 1 \"$OMPI_MCA_orte_default_hostfile\" | cut -d ' ' -f 1)",
        f"mpirun -np {job.cluster.world_size} --bind-to none -x MASTER_ADDR bash -c {shlex.quote(each)}",
    ]
