"""A SkyPilot task: its script runs on every node, with the nodes' addresses in variables."""

from __future__ import annotations

import re
from typing import Any

from ...estimators.errors import ClusterError
from ...estimators.hardware.cluster import Cluster
from ..launch_commands import Rendezvous, launcher_words, shell_line
from .job import Job, yaml_text

_GPUS = frozenset(
    re.findall(
        r"\S+",
        """A10 A10G A30 A40 A100 A100-80GB A800 B200 GH200 H100 H100-NVL H200 L4 L40 L40S MI300X P100 RTX3060 RTX3070
        RTX3090 RTX4090 RTX5060 RTX5090 RTX6000-Ada RTXA4000 RTXA4500 RTXA5000 RTXA6000 T4 V100 V100-32GB""",
    )
)
"""GPUs in SkyPilot's catalogue (skypilot-org/skypilot-catalog catalogs/v8/common/accelerators.csv). It tells apart no
form factors, and names the larger of two sizes only."""


def gpu_name(cluster: Cluster) -> str:
    """The GPU's name in SkyPilot's catalogue. Raises ClusterError where it has none, or only its memory is known."""
    gpu = cluster.gpu
    name = re.sub(r"-(PCIe|SXM\d?)\b", "", gpu.name).replace(" Ada", "-Ada").replace(" ", "")
    known = next((each for each in (name, re.sub(r"-\d+GB$", "", name)) if each in _GPUS), None)
    if gpu.assumed or known is None:
        what = "a GPU of which only the memory is given" if gpu.assumed else gpu.name
        raise ClusterError(
            f"SkyPilot's catalogue has no name for {what}",
            why="its file must name the GPU to rent",
            fix="pass --gpus with one that clouds rent, such as 8xH100, or leave skypilot out",
        )
    return known


def skypilot_task(job: Job) -> str:
    """The task's YAML. Raises ClusterError as `gpu_name` does."""
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
        "setup": "pip install torch deepspeed transformers accelerate\n",
        "run": "\n".join(run),
    }
    return yaml_text(
        values,
        f"{job.script} on {job.place}. The folder from which it is launched is copied to every node.",
        "Checkpoints that outlive the machines need a bucket under file_mounts (mode: MOUNT), with its folder as",
        "output_dir.",
    )
