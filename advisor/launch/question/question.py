"""From what a user says on the command line to a launch."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ....ds_configs.launch_commands import PORT, Launcher, Rendezvous
from ....estimators.errors import ClusterError, WorkloadError
from ....estimators.hardware.cluster import Cluster
from ....probes.run import Run
from ...question.cluster_options import ClusterOptions
from ...question.cluster_spec import join_nodes
from ...question.ds_config_file import read_ds_config
from ...question.run import read_run
from ..check import prediction_of
from ..request import LaunchRequest, Script
from .framework import framework_of, launcher_of, source_of
from .nodes import equal_nodes, launcher_for, slurm_rendezvous, static_rendezvous
from .script_arguments import ScriptArguments

_TRAINER_MICRO_BATCH = 8
"""TrainingArguments' default for per_device_train_batch_size."""


@dataclass(frozen=True, kw_only=True)
class LaunchQuestion:
    """What is to be launched, and what is known of it besides.

    run:     what a dry run or a probe takes; None where no model was named.
    said:    sentences that tell what was chosen or assumed, and why.
    """

    request: LaunchRequest
    run: Run | None
    arguments: ScriptArguments
    said: tuple[str, ...]


def launch_question(
    config_file: Path,
    words: tuple[str, ...],
    run: dict[str, Any],
    *,
    given: Collection[str],
    is_module: bool,
    launcher: Launcher | None,
    gpus: str,
    device: Any,
    ranks: int | None,
    nodes: int | None,
    node_rank: int,
    master: str | None,
    hostfile: Path | None,
    slurm: bool,
    pass_config: bool,
    log_dir: Path | None,
) -> LaunchQuestion:
    """words: the script and its arguments. run: arguments of `read_run`; `given`: those that the user gave, which
    count more than what the script's arguments say.

    Raises DsAdviseError for what cannot be launched.
    """
    config = read_ds_config(config_file)
    script = Script(target=words[0], arguments=words[1:], is_module=is_module)
    source, arguments = source_of(script), ScriptArguments(words[1:])
    cluster, rendezvous = _place(gpus, device, ranks, nodes, node_rank, master, hostfile, slurm)
    framework = run["framework"] if "framework" in given else framework_of(config, source)
    launcher = launcher_for(rendezvous, launcher)
    said = []
    if launcher is None:
        launcher, why = launcher_of(framework, source)
        if rendezvous is not None and launcher == "deepspeed":
            launcher, why = (
                "torchrun",
                "the nodes are started one by one; a script that reads --local_rank must use LOCAL_RANK",
            )
        said.append(f"launcher {launcher}: {why}")
    planned = None
    model = run["model"] or arguments.model
    if model is not None:
        settings, assumed = _settings(run, given, arguments, framework)
        planned = read_run(config_file, model, cluster, **settings)
        said += assumed
    folder = (log_dir or Path("ds-advise-launch", time.strftime("%Y-%m-%dT%H-%M-%S"))).absolute()
    request = LaunchRequest(
        script=script,
        config=config,
        config_path=config_file,
        framework=framework,
        launcher=launcher,
        cluster=cluster,
        folder=folder if master is None else folder / f"node{node_rank}",
        device=device,  # nodes may share a file system
        rendezvous=rendezvous,
        passes_config=pass_config and not arguments.passes_a_config,
        total_steps=arguments.number("max_steps"),
    )
    if planned is not None:
        request = replace(
            request,
            prediction=prediction_of(planned),
            model=planned.shape,
            model_name=str(model),
            workload=planned.workload,
            gradient_checkpointing=planned.gradient_checkpointing,
        )
    return LaunchQuestion(request=request, run=planned, arguments=arguments, said=tuple(said))


def _settings(
    run: dict[str, Any], given: Collection[str], arguments: ScriptArguments, framework: str
) -> tuple[dict[str, Any], list[str]]:
    """The arguments of `read_run`, from the user, else the script's arguments, else TrainingArguments' defaults."""
    is_trainer = framework == "hf"
    known = {
        "seq_len": arguments.seq_len,
        "micro_batch": arguments.number("per_device_train_batch_size"),
        "accumulation": arguments.number("gradient_accumulation_steps"),
        "gradient_checkpointing": arguments.flag("gradient_checkpointing"),
        "precision": next((name for name in ("bf16", "fp16") if arguments.flag(name)), None),
    }
    defaults = (
        {"micro_batch": _TRAINER_MICRO_BATCH, "accumulation": 1, "gradient_checkpointing": False} if is_trainer else {}
    )
    settings = {name: value for name, value in run.items() if name not in ("model", "config_file")} | {
        "framework": framework
    }
    assumed = []
    for name in known | defaults:
        if name in given:
            continue
        value = known.get(name)
        if value is None and name in defaults:
            value = defaults[name]
            assumed.append(
                f"{name.replace('_', ' ')} {value}" if name != "gradient_checkpointing" else "no checkpointing"
            )
        if value is not None:
            settings[name] = value
    if not assumed:
        return settings, []
    return settings, [
        f"checked with {', '.join(assumed)}, the Trainer's defaults: where the script says otherwise, pass "
        "--micro-batch, --accumulation, --gradient-checkpointing on"
    ]


def _place(
    gpus: str,
    device: Literal["cuda", "cpu"],
    ranks: int | None,
    nodes: int | None,
    node_rank: int,
    master: str | None,
    hostfile: Path | None,
    slurm: bool,
) -> tuple[Cluster, Rendezvous | None]:
    """(the ranks, how several nodes meet)."""
    if sum((master is not None, hostfile is not None, slurm)) > 1:
        raise ClusterError(
            "--master, --hostfile and --slurm are three ways to the nodes",
            why="they contradict each other",
            fix="pass one of them",
        )
    cluster = ClusterOptions(gpus=gpus, device=device, ranks=ranks).cluster()
    rendezvous: Rendezvous | None = None
    if hostfile is not None:
        count, gpus_per_node = equal_nodes(hostfile)
        cluster = replace(cluster, nodes=count, gpus_per_node=gpus_per_node)
        rendezvous = Rendezvous(kind="hostfile", hostfile=str(hostfile.absolute()))
    elif slurm:
        rendezvous, count = slurm_rendezvous(PORT)
        cluster = replace(cluster, nodes=count)
    elif master is not None:
        rendezvous = static_rendezvous(master, node_rank)
        cluster = replace(cluster, nodes=nodes or cluster.nodes)
        if node_rank >= cluster.nodes:
            raise WorkloadError(
                f"there is no node {node_rank} among {cluster.nodes}",
                why="nodes count from 0",
                fix="pass --nodes N, and --node-rank from 0 to N - 1",
            )
    elif (nodes or cluster.nodes) > 1:
        raise ClusterError(
            f"{nodes or cluster.nodes} nodes, and no word of how they meet",
            why="this starts the ranks of one",
            fix="pass --hostfile FILE, --slurm, or on every node --master ADDRESS --node-rank R",
        )
    return join_nodes(cluster), rendezvous if cluster.nodes > 1 else None
