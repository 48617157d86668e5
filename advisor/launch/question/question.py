"""From what a user says on the command line to a launch."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ....ds_configs.launch_commands import PORT, Launcher, Rendezvous
from ....estimators.errors import ClusterError, WorkloadError
from ....estimators.hardware.cluster import Cluster
from ....estimators.workload import Framework, Workload
from ....probes.real_run.job import Device
from ....probes.run import Run
from ...question.cluster_options import ClusterOptions
from ...question.cluster_spec import join_nodes
from ...question.ds_config_file import read_ds_config
from ...question.run import read_run
from ..check import prediction_of
from ..request import LaunchRequest, Script
from .framework import framework_of, launcher_of, source_of
from .handing_over import handing_over
from .nodes import equal_nodes, launcher_for, slurm_rendezvous, static_rendezvous
from .script_arguments import ScriptArguments

_TRAINER_MICRO_BATCH = 8
"""TrainingArguments' default for per_device_train_batch_size."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """The options that say where the ranks run, and how several nodes meet."""

    gpus: str
    device: Device
    ranks: int | None
    nodes: int | None
    node_rank: int
    master: str | None
    hostfile: Path | None
    slurm: bool
    starts: bool
    """Whether ranks are to be started, not only shown."""

    def resolve(self) -> tuple[Cluster, Rendezvous | None]:
        """(the ranks, how several nodes meet). Raises ClusterError for options that contradict each other."""
        if sum((self.master is not None, self.hostfile is not None, self.slurm)) > 1:
            raise ClusterError(
                "--master, --hostfile and --slurm are three ways to the nodes",
                why="they contradict each other",
                fix="pass one of them",
            )
        options = ClusterOptions(gpus=self.gpus, device=self.device, ranks=self.ranks)
        here = self.starts and self.hostfile is None and not self.slurm  # else this may be a node without GPUs
        cluster = options.cluster_here() if here else options.cluster()
        rendezvous: Rendezvous | None = None
        if self.hostfile is not None:
            count, gpus_per_node = equal_nodes(self.hostfile)
            cluster = replace(cluster, nodes=count, gpus_per_node=gpus_per_node)
            rendezvous = Rendezvous(kind="hostfile", hostfile=str(self.hostfile.absolute()))
        elif self.slurm:
            rendezvous, count = slurm_rendezvous(PORT)
            cluster = replace(cluster, nodes=count)
        elif self.master is not None:
            rendezvous = static_rendezvous(self.master, self.node_rank)
            cluster = replace(cluster, nodes=self.nodes or cluster.nodes)
            if self.node_rank >= cluster.nodes:
                raise WorkloadError(
                    f"there is no node {self.node_rank} among {cluster.nodes}",
                    why="nodes count from 0",
                    fix="pass --nodes N, and --node-rank from 0 to N - 1",
                )
        elif (self.nodes or cluster.nodes) > 1:
            raise ClusterError(
                f"{self.nodes or cluster.nodes} nodes, and no word of how they meet",
                why="this starts the ranks of one",
                fix="pass --hostfile FILE, --slurm, or on every node --master ADDRESS --node-rank R",
            )
        return join_nodes(cluster), rendezvous if cluster.nodes > 1 else None


def launch_question(
    options: dict[str, Any],
    words: tuple[str, ...],
    *,
    given: Collection[str],
    is_module: bool,
    launcher: Launcher | None,
    pass_config: bool | None,
    log_dir: Path | None,
    **place_options: Any,
) -> tuple[LaunchRequest, list[str]]:
    """(what is launched, sentences that say what was chosen or assumed, and why).

    options: the arguments of `read_run` but the cluster; those that are `given` by the user count more than what the
    script's arguments say. words: the script and its arguments. place_options: those of `Place`.

    Raises DsAdviseError for what cannot be launched.
    """
    config_file, config = options["config_file"], read_ds_config(options["config_file"])
    script, arguments = Script(target=words[0], arguments=words[1:], is_module=is_module), ScriptArguments(words[1:])
    source = source_of(script)
    place = Place(**place_options)
    cluster, rendezvous = place.resolve()
    framework = options["framework"] if "framework" in given else framework_of(config, source)
    launcher, remarks = _launcher(launcher_for(rendezvous, launcher), framework, source, rendezvous)
    handing = handing_over(pass_config, config_file, config, framework=framework, script=script, source=source)
    remarks += handing.remarks
    model = options["model"] or arguments.model
    if model is None:
        run = Run(config=config, model="", cluster=cluster, workload=Workload(framework=framework))
    else:
        filled, assumed = _filled(options, given, arguments, framework)
        run = read_run(**{**filled, "model": model, "cluster": cluster, "framework": framework})
        remarks += assumed
    folder = (log_dir or Path("ds-advise-launch", time.strftime("%Y-%m-%dT%H-%M-%S"))).absolute()
    request = LaunchRequest(
        script=script,
        run=run,
        config_path=config_file,
        launcher=launcher,
        folder=folder if place.master is None else folder / f"node{place.node_rank}",  # nodes may share a file system
        device=place.device,
        rendezvous=rendezvous,
        passes_config=handing.passes,
        config_flag=handing.with_flag,
        prediction=prediction_of(run),
        total_steps=arguments.number("max_steps"),
    )
    return request, remarks


def _launcher(
    needed: Launcher | None, framework: Framework, source: str, rendezvous: Rendezvous | None
) -> tuple[Launcher, list[str]]:
    """(the launcher, why it was chosen where it was)."""
    if needed is not None:
        return needed, []
    launcher, why = launcher_of(framework, source)
    if rendezvous is not None and launcher == "deepspeed":
        launcher = "torchrun"
        why = "the nodes are started one by one; a script that reads --local_rank must use LOCAL_RANK"
    return launcher, [f"launcher {launcher}: {why}"]


def _filled(
    options: dict[str, Any], given: Collection[str], arguments: ScriptArguments, framework: Framework
) -> tuple[dict[str, Any], list[str]]:
    """(the options with what the user left open, from the script's arguments or else TrainingArguments' defaults; a
    sentence about the latter)."""
    in_script = {
        "seq_len": arguments.seq_len,
        "micro_batch": arguments.number("per_device_train_batch_size"),
        "accumulation": arguments.number("gradient_accumulation_steps"),
        "gradient_checkpointing": arguments.flag("gradient_checkpointing"),
        "precision": next((name for name in ("bf16", "fp16") if arguments.flag(name)), None),
    }
    defaults = {"micro_batch": _TRAINER_MICRO_BATCH, "accumulation": 1, "gradient_checkpointing": False}
    in_script = {name: value for name, value in in_script.items() if value is not None and name not in given}
    assumed = {
        name: value
        for name, value in defaults.items()
        if framework == "hf" and name not in given and name not in in_script
    }
    filled = {**options, **in_script, **assumed}
    if not assumed:
        return filled, []
    titles = (
        "no checkpointing" if value is False else f"{name.replace('_', ' ')} {value}" for name, value in assumed.items()
    )
    return filled, [
        f"checked with {', '.join(titles)}, the Trainer's defaults: where the script says otherwise, pass "
        "--micro-batch, --accumulation, --gradient-checkpointing on"
    ]
