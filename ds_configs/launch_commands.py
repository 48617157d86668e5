"""The commands that start the training, for each launcher."""

from __future__ import annotations

import shlex

from ..estimators.cluster import Cluster
from ..estimators.workload import Framework

ALLOCATOR_SETTING = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
"""The environment variable that the memory figures rest on: segments that grow lose almost nothing to fragmentation."""

PORT = 29500
"""torch's default rendezvous port."""


def launch_commands(cluster: Cluster, *, script: str = "train.py", config_path: str = "ds_config.json",
                    framework: Framework) -> dict[str, list[str]]:
    """Shell lines by launcher: `deepspeed`, `torchrun` and `accelerate`; each list is run from top to bottom.

    On one node each is one line. On several, `deepspeed` is started once and reaches the nodes of a hostfile by ssh; a
    comment line says what stands in that. The other launchers are started on every node, with MASTER_ADDR set to the
    first node's address and NODE_RANK to the node's number from 0.

    The configuration is passed as the frameworks' argument parsers expect it: `--deepspeed FILE` (TrainingArguments) or
    `--deepspeed --deepspeed_config FILE` (deepspeed.add_config_arguments). accelerate is for "hf" only.
    """
    config = shlex.quote(config_path)
    arguments = f"--deepspeed {config}" if framework == "hf" else f"--deepspeed --deepspeed_config {config}"
    command = f"{shlex.quote(script)} {arguments}"
    nodes, gpus = cluster.nodes, cluster.gpus_per_node
    if nodes == 1:
        commands = {
            "deepspeed": [f"deepspeed --num_gpus {gpus} {command}"],
            "torchrun": [f"torchrun --nproc_per_node {gpus} {command}"],
        }
        place = f"--num_processes {gpus}"
    else:
        commands = {
            "deepspeed": [
                f"# hostfile names the nodes, one a line: node-0 slots={gpus}",
                f"echo {ALLOCATOR_SETTING} >> .deepspeed_env",
                f"deepspeed --hostfile hostfile {command}",
            ],
            "torchrun": [
                f"torchrun --nnodes {nodes} --nproc_per_node {gpus} --node_rank $NODE_RANK "
                f"--master_addr $MASTER_ADDR --master_port {PORT} {command}",
            ],
        }
        place = (f"--num_machines {nodes} --num_processes {cluster.world_size} --machine_rank $NODE_RANK "
                 f"--main_process_ip $MASTER_ADDR --main_process_port {PORT} --deepspeed_multinode_launcher standard")
    if framework == "hf":
        commands["accelerate"] = [
            f"accelerate launch --use_deepspeed --deepspeed_config_file {config} {place} {shlex.quote(script)}"]
    return commands
