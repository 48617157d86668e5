"""Job files for schedulers: Slurm, SkyPilot, Ray Train, Kubeflow Trainer."""

from __future__ import annotations

import pprint
import re
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..estimators.errors import ClusterError
from ..estimators.hardware import Cluster, cpu_cores
from .job import Job, yaml_text
from .launch_commands import IN_ALLOCATION, PORT, Rendezvous, launcher_words, shell_line


def slurm_script(job: Job) -> str:
    """An sbatch script: srun starts torchrun once on every node."""
    cluster = job.cluster
    device = [] if cluster.gpu.is_cpu else [f"#SBATCH --gpus-per-node={cluster.gpus_per_node}"]
    words = launcher_words("torchrun", cluster, job.target, is_module=job.is_module, rendezvous=IN_ALLOCATION)
    lines = [
        "#!/bin/bash",
        f"# {job.script} on {job.place}. Submit it from the folder of the paths below: sbatch FILE",
        f"#SBATCH --job-name={job.name}",
        f"#SBATCH --nodes={cluster.nodes}",
        "#SBATCH --ntasks-per-node=1",
        *device,
        f"#SBATCH --cpus-per-task={cpu_cores(cluster)}",
        f"#SBATCH --mem={job.host_gib or 0}G",
        "#SBATCH --output=%x-%j.log",
        "#SBATCH --open-mode=append",
        "#SBATCH --requeue",
        *(["#SBATCH --signal=B:USR1@300"] if job.output_dir else []),
        "# Your site decides on these; remove one # where it asks for them:",
        "##SBATCH --account=NAME",
        "##SBATCH --partition=NAME",
        "##SBATCH --time=24:00:00",
        "# NCCL chooses the network interface. Where it takes a wrong one, your site's documentation has the right",
        "# NCCL_SOCKET_IFNAME and NCCL_IB_HCA.",
        "",
        "# Activate the environment of the training here: module load ..., source .venv/bin/activate",
        "",
        *(f"export {name}={shlex.quote(value)}" for name, value in job.variables.items()),
        f"export OMP_NUM_THREADS={job.threads('SLURM_CPUS_PER_TASK')}",
        "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK  # since Slurm 22.05 srun does not take it from sbatch",
        "",
    ]
    line = shell_line(words)
    if job.output_dir is None:
        loads = "# Slurm starts the script again after a node failed or the job was preempted: it must load its newest"
        return "\n".join([*lines, loads, "# checkpoint by itself.", line, ""])
    wait = "wait $! || wait $!  # the signal ends the first wait, not the training"
    return "\n".join([*lines, *_resuming(job.output_dir), f'{line} "${{resume[@]}}" &', wait, ""])


def _resuming(output_dir: str) -> list[str]:
    """Lines of a job that Slurm can restart. `resume` holds the argument for the newest complete checkpoint, in which
    the Trainer writes trainer_state.json last. Before the time limit the job is requeued if it has saved a new one."""
    found = """find "$output_dir" -mindepth 2 -maxdepth 2 -path '*/checkpoint-*/trainer_state.json' -printf '%h\\n'"""
    return [
        f"output_dir={shlex.quote(output_dir)}  # of the script's TrainingArguments",
        f"newest_checkpoint() {{ {found} 2>/dev/null | sort -V | tail -n 1; }}",
        "",
        "# After a failed node, a preemption or the time limit Slurm starts this script again, and it goes on from the",
        "# newest checkpoint. RESUME=1 sbatch FILE goes on with an earlier job.",
        "resume=()",
        'if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] || [ -n "${RESUME:-}" ]; then',
        "    before=$(newest_checkpoint)",
        '    [ -z "$before" ] || resume=(--resume_from_checkpoint "$before")',
        "fi",
        "",
        "# Five minutes before the time limit (--signal) it is queued again, if it has saved a checkpoint.",
        "queue_again() {",
        '    [ "$(newest_checkpoint)" = "${before:-}" ] || scontrol requeue "$SLURM_JOB_ID"',
        "}",
        "trap queue_again USR1",
        "",
    ]


_SKYPILOT_GPUS = """A10 A10G A30 A40 A100 A100-80GB A800 B200 GH200 H100 H100-NVL H200 L4 L40 L40S MI300X P100 RTX3060
    RTX3070 RTX3090 RTX4090 RTX5060 RTX5090 RTX6000-Ada RTXA4000 RTXA4500 RTXA5000 RTXA6000 T4 V100 V100-32GB"""
"""GPUs in SkyPilot's catalogue (skypilot-org/skypilot-catalog catalogs/v8/common/accelerators.csv). It does not
distinguish form factors; of two memory sizes only the larger is in the name."""

_SKYPILOT_CLOUDS = ("AWS", "Azure", "Hyperstack", "Lambda", "RunPod", "Verda")
"""Clouds in SkyPilot's catalogue (folders of catalogs/v5 to v8) with known prices."""


def gpu_name(cluster: Cluster) -> str:
    """The GPU's name in SkyPilot's catalogue. Raises ClusterError if it has none, or if only the GPU's memory is
    known."""
    gpu = cluster.gpu
    name = re.sub(r"-(PCIe|SXM\d?)\b", "", gpu.name).replace(" Ada", "-Ada").replace(" ", "")
    known = next((each for each in (name, re.sub(r"-\d+GB$", "", name)) if each in _SKYPILOT_GPUS.split()), None)
    if gpu.assumed or known is None:
        what = "a GPU that is given by its memory alone" if gpu.assumed else gpu.name
        raise ClusterError(
            f"SkyPilot's catalogue has no name for {what}",
            why="its file must name the GPU to rent",
            fix="pass --gpus with a GPU that clouds offer, such as 8xH100, or leave skypilot out",
        )
    return known


def skypilot_task(job: Job) -> str:
    """The YAML of a SkyPilot task. Raises ClusterError like `gpu_name`."""
    cluster = job.cluster
    resources: dict[str, Any] = {"accelerators": f"{gpu_name(cluster)}:{cluster.gpus_per_node}"}
    if job.host_gib is not None:
        resources["memory"] = f"{job.host_gib}+"
    static = Rendezvous(kind="static")
    run = [
        'export MASTER_ADDR=$(echo "$SKYPILOT_NODE_IPS" | head -n 1) NODE_RANK=$SKYPILOT_NODE_RANK',
        f"export OMP_NUM_THREADS={job.threads('$(nproc)')}",
        shell_line(launcher_words("torchrun", cluster, job.target, is_module=job.is_module, rendezvous=static)),
        "",
    ]
    values: dict[str, Any] = {
        "name": job.name,
        "num_nodes": cluster.nodes,
        "resources": resources,
        "workdir": ".",
        "envs": dict(job.variables),
        "setup": f"pip install {shlex.join(['torch', 'deepspeed', *_TRAINER_PACKAGES, *job.packages])}\n",
        "run": "\n".join(run),
    }
    return yaml_text(
        values,
        f"{job.script} on {job.place}. The folder from which it is launched is copied to every node.",
        "Checkpoints that outlive the machines need a bucket under file_mounts (mode: MOUNT), with its folder as",
        "output_dir.",
        _prices(job),
    )


def _prices(job: Job) -> str:
    """A line with the hourly price of all nodes together, from the cheapest to the most expensive cloud."""
    wanted, nodes, gpus = gpu_name(job.cluster), job.cluster.nodes, job.cluster.gpus_per_node
    found = []
    for offer in job.offers():
        with suppress(ClusterError):
            matches = offer.cluster.gpus_per_node == gpus and gpu_name(offer.cluster) == wanted
            if matches and offer.provider in _SKYPILOT_CLOUDS and nodes <= offer.most_nodes:
                found.append((offer.per_hour * nodes, f"{offer.provider}, {offer.date}"))
    if not found:
        return f"ds-advise has no price of {job.place} with {wanted}; sky launch shows it before it rents."
    ends = " to ".join(f"${amount:,.2f} ({where})" for amount, where in sorted({min(found), max(found)}))
    return f"Price of an hour, {job.place}: {ends}; sky launch shows today's before it rents."


_RAY_SCRIPT = '''\
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
    """The source of a Python script for Ray Train."""
    cluster, threads = job.cluster, job.cluster.threads_per_rank
    return _RAY_SCRIPT.format(
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


_TRAINER_PACKAGES = ("transformers", "accelerate", "datasets")
"""Packages that a script with the Trainer imports."""

_POD_FOLDER = "/job"
"""The folder of the script and the configuration in the pods."""

_KUBEFLOW_IMAGE = "ghcr.io/kubeflow/trainer/deepspeed-runtime"
"""Image of the runtime for DeepSpeed (kubeflow/trainer manifests/base/runtimes/deepspeed_distributed.yaml). It has
torch, DeepSpeed, transformers and datasets, but not accelerate (cmd/runtimes/deepspeed/requirements.txt)."""

_OPEN_MPI_NAMES = {"RANK": "RANK", "LOCAL_RANK": "LOCAL_RANK", "WORLD_SIZE": "SIZE", "LOCAL_WORLD_SIZE": "LOCAL_SIZE"}
"""torchrun's variables -> Open MPI's. DeepSpeed reads the latter by itself, transformers does not."""


def train_job(job: Job) -> str:
    """A TrainJob of Kubeflow Trainer v2.

    Several nodes use its runtime for DeepSpeed, where mpirun starts the ranks; the runtime creates ssh keys and
    hostfile. It always starts a launcher and at least one more pod (kubeflow/trainer
    pkg/runtime/framework/plugins/mpi/mpi.go `EnforceMLPolicy`), so a single node uses its runtime for torch, with the
    same image.
    """
    cluster = job.cluster
    several = cluster.nodes > 1
    resources: dict[str, Any] = {}
    if job.host_gib is not None:
        resources["requests"] = {"memory": f"{job.host_gib}Gi"}
    if not cluster.gpu.is_cpu:
        vendor = "amd" if cluster.gpu.vendor == "AMD" else "nvidia"
        resources["limits"] = {f"{vendor}.com/gpu": cluster.gpus_per_node}
    mounts = {
        "job": (_POD_FOLDER, {"configMap": {"name": job.name}}),
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
                "image": _KUBEFLOW_IMAGE,
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
    """The command that creates the ConfigMap of the script and the configuration, which the pods mount."""
    return shlex.join(
        ["kubectl", "create", "configmap", job.name, *(f"--from-file={file}" for file in _own_files(job))]
    )


def _own_files(job: Job) -> list[str]:
    return [job.config_path] if job.is_module else [job.config_path, job.script]


def _in_pod(job: Job, word: str) -> str:
    return f"{_POD_FOLDER}/{Path(word).name}" if word in _own_files(job) else word


def _exports(job: Job) -> list[str]:
    variables = [f"export {name}={shlex.quote(_in_pod(job, value))}" for name, value in job.variables.items()]
    return [*variables, f"export OMP_NUM_THREADS={job.threads('$(nproc)')}"]


def _by_torchrun(job: Job) -> list[str]:
    words = ["torchrun", "--nproc_per_node", str(job.cluster.gpus_per_node), *["--module"] * job.is_module]
    return [_install(job), *_exports(job), shlex.join([*words, *(_in_pod(job, word) for word in job.target)])]


def _install(job: Job) -> str:
    return f"python3 -m pip install -q {shlex.join(['accelerate', *job.packages])}"


def _by_mpirun(job: Job) -> list[str]:
    """Shell lines that start the ranks by mpirun. Open MPI's binding is disabled: it would limit each rank to one core
    or one NUMA node."""
    ranks = " ".join(f"{name}=$OMPI_COMM_WORLD_{theirs}" for name, theirs in _OPEN_MPI_NAMES.items())
    program = shlex.join(["python3", *["-m"] * job.is_module, *(_in_pod(job, word) for word in job.target)])
    each = "; ".join([*_exports(job), f"export {ranks} MASTER_PORT={PORT}", f"exec {program}"])
    return [
        "# Rank 0 runs on the first node of the runtime's hostfile.",
        "export MASTER_ADDR=$(head -n 1 \"$OMPI_MCA_orte_default_hostfile\" | cut -d ' ' -f 1)",
        f"mpirun -np {job.cluster.nodes} --map-by ppr:1:node {_install(job)}",
        f"mpirun -np {job.cluster.world_size} --bind-to none -x MASTER_ADDR bash -c {shlex.quote(each)}",
    ]
