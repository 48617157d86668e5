"""From the command line of `ds-advise launch` to a LaunchRequest: script, framework, launcher, nodes and ranks."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...ds_configs.launch_commands import PORT, Launcher, Rendezvous, read_hostfile
from ...ds_configs.read import has_auto, precision_in
from ...estimators.errors import ClusterError, DsAdviseError, WorkloadError
from ...estimators.hardware.cluster import Cluster
from ...estimators.workload import NEXT_TOKEN, Framework, Workload
from ...probes.run import Device, Run, check_device
from ..question.cluster import cluster_here, cluster_of, counts_in, join_nodes
from ..question.run import configured_run, read_ds_config
from .check import prediction_of
from .config_passing import config_passing
from .request import LaunchRequest, Script
from .script_arguments import ScriptArguments
from .script_source import ScriptSource, described_arguments, script_source

_TRAINER = re.compile(r"\b(TrainingArguments|HfArgumentParser|Seq2SeqTrainer|SFTTrainer|SFTConfig|Trainer)\b")
_ADAPTERS = re.compile(r"\b(LoraConfig|get_peft_model|PeftModel)\b")
_ACCELERATE = re.compile(r"\bAccelerator\s*\(")

_TRAINER_DEFAULTS: dict[str, Any] = {"micro_batch": 8, "accumulation": 1, "gradient_checkpointing": False}

_DEFAULTS: dict[Framework, dict[str, Any]] = {
    "hf": _TRAINER_DEFAULTS,
    "trl": _TRAINER_DEFAULTS | {"gradient_checkpointing": True, "seq_len": 1024, "precision": "bf16"},
    "deepspeed": {},
}
"""Defaults of TrainingArguments, and where TRL's are others (TRL 1.16.0 trainer/base_config.py; `max_length` of
sft_config.py)."""


def launch_question(
    options: dict[str, Any],
    words: tuple[str, ...],
    *,
    given: Collection[str],
    is_module: bool,
    launcher: Launcher | None,
    pass_config: bool | None,
    log_dir: Path | None,
    stall_s: float | None,
    **place_options: Any,
) -> tuple[LaunchRequest, list[str]]:
    """(the request, remarks on what was chosen or assumed).

    options: the arguments of `read_run` but the cluster; those `given` by the user take precedence over the script's
    arguments, and these over the literal ones in its text. words: the script and its arguments. place_options: those
        of `Place`.

    Raises DsAdviseError for what cannot be launched.
    """
    config_file = options["config_file"]
    config = read_ds_config(config_file)
    script = Script(target=words[0], arguments=words[1:], is_module=is_module)
    source = script_source(script)
    text = ScriptSource(source)
    arguments = described_arguments(script)
    place = Place(**place_options)
    cluster, rendezvous = place.resolve()
    framework = options["framework"] if "framework" in given else framework_of(config, source)
    remarks: list[str] = []
    launcher = launcher_for(rendezvous, launcher)
    if launcher is None:
        launcher, why = default_launcher(framework, source, rendezvous, takes_config=text.takes_config)
        remarks.append(f"launcher {launcher}: {why}")
    passing = config_passing(pass_config, config_file, config, framework=framework, script=script, source=source)
    remarks += passing.remarks
    if framework != "deepspeed" and launcher != "accelerate" and passing.passes and not text.takes_config:
        remarks.append(
            f"{script.target} reads no arguments, so {config_file} does not reach its Trainer: pass --launcher "
            f'accelerate, or write deepspeed="{config_file}" into its TrainingArguments'
        )
    remarks += _late_arguments(text, config, script)
    from_script, assumptions = _from_script(given, arguments, text, framework)
    adapters, method = _adapters(options, given, arguments, text, source)
    chosen = options | from_script | adapters | {"cluster": cluster, "framework": framework}
    chosen["model"] = options["model"] or arguments.model
    chosen["objective"] = text.objective or NEXT_TOKEN
    chosen["precompute_ref_log_probs"] = bool(arguments.flag("precompute_ref_log_probs"))
    del chosen["config_file"]
    run = None
    if chosen["model"] is not None:
        try:
            run = configured_run(config, **chosen)
            if run.shape is not None and "seq_len" not in {*given, *from_script}:
                assumptions.append(f"assumed samples of {run.workload.seq_len:,} tokens: pass --seq-len")
            remarks += [*assumptions, *method]
        except DsAdviseError as error:
            if options["model"] or ScriptArguments(script.arguments).model:
                raise
            remarks.append(f"the script's model {chosen['model']} is not read ({error.what}): pass --model")
    if run is None:
        written = precision_in(config)
        is_fp16 = written == "fp16" or (chosen["precision"] == "fp16" and written != "bf16")
        workload = Workload(framework=framework, precision="fp16" if is_fp16 else "bf16")
        run = Run(config=config, model="", cluster=cluster, workload=workload)
    check_device(run, place.device)
    folder = (log_dir or Path("ds-advise-launch", time.strftime("%Y-%m-%dT%H-%M-%S"))).absolute()
    request = LaunchRequest(
        script=script,
        run=run,
        config_path=config_file,
        launcher=launcher,
        folder=folder if place.master is None else folder / f"node{place.node_rank}",  # nodes may share a file system
        device=place.device,
        rendezvous=rendezvous,
        passes_config=passing.passes,
        config_flag=passing.with_flag,
        prediction=None if text.objective is None else prediction_of(run),
        other_loss=text.trainer if text.objective is None else None,
        total_steps=arguments.number("max_steps"),
        stall_s=stall_s,
    )
    return request, remarks


def framework_of(config: Mapping[str, Any], source: str) -> Framework:
    """ "trl" where the script uses a trainer of TRL's, "hf" where the configuration has an `auto`, which plain
    DeepSpeed does not fill, or the script uses the Trainer or accelerate; else "deepspeed"."""
    if ScriptSource(source).is_trl:
        return "trl"
    return "hf" if has_auto(config) or _TRAINER.search(source) or _ACCELERATE.search(source) else "deepspeed"


def default_launcher(
    framework: Framework, source: str, rendezvous: Rendezvous | None = None, *, takes_config: bool = True
) -> tuple[Launcher, str]:
    """(the launcher, the reason): accelerate where the script takes the configuration from it, deepspeed where a plain
    script may read `--local_rank`, which no other launcher passes, torchrun otherwise.

    takes_config: whether the script may read its arguments or names a configuration.
    """
    if _ACCELERATE.search(source) and not _TRAINER.search(source):
        return "accelerate", "the script uses Accelerator, which takes the configuration from its launcher"
    if framework != "deepspeed" and not takes_config and (rendezvous is None or rendezvous.kind == "static"):
        return "accelerate", "the script reads no arguments; its Trainer takes the configuration from this launcher"
    if framework != "deepspeed":
        return "torchrun", "the Trainer needs no other"
    if rendezvous is None:
        return "deepspeed", "a script on deepspeed.initialize may read --local_rank, which only this launcher passes"
    return "torchrun", "the nodes are started one by one; a script that reads --local_rank must use LOCAL_RANK"


def _from_script(
    given: Collection[str], arguments: ScriptArguments, text: ScriptSource, framework: Framework
) -> tuple[dict[str, Any], list[str]]:
    """(options that the user left open, from the script's arguments or else the defaults of its Trainer; a remark on
    the defaults)."""
    in_script = {
        "seq_len": arguments.seq_len,
        "micro_batch": arguments.number("per_device_train_batch_size"),
        "accumulation": arguments.number("gradient_accumulation_steps"),
        "gradient_checkpointing": arguments.gradient_checkpointing,
        "precision": next((name for name in ("bf16", "fp16") if arguments.flag(name)), None),
        "loss": "fused" if framework == "hf" and arguments.flag("use_liger_kernel") else None,
    }
    found = {name: value for name, value in in_script.items() if value is not None and name not in given}
    defaults = {**_DEFAULTS[framework]}
    if framework == "hf" and (text.trainer or arguments.are_training_arguments):
        defaults["precision"] = "fp32"  # a script on accelerate has none
    assumed = {name: value for name, value in defaults.items() if name not in given and name not in found}
    if not assumed:
        return found, []
    titles = {"gradient_checkpointing": ("no checkpointing", "checkpointing")}
    shown = (
        titles[name][bool(value)] if name in titles else f"{name.replace('_', ' ')} {value}"
        for name, value in assumed.items()
    )
    remark = (
        f"assumed {', '.join(shown)}, the defaults of {'TRL' if framework == 'trl' else 'the Trainer'}: where the "
        "script sets others, pass --micro-batch, --accumulation, --gradient-checkpointing, --precision"
    )
    return found | assumed, [remark]


def _adapters(
    options: Mapping[str, Any], given: Collection[str], arguments: ScriptArguments, text: ScriptSource, source: str
) -> tuple[dict[str, Any], list[str]]:
    """(options of the training method in the script's arguments or its text, a remark on the method)."""
    if "method" in given:
        return {}, []
    written = text.adapters
    if arguments.adapts or written is not None:
        read = arguments if written is None else ScriptArguments.of_values(written)
        found = {name: value for name, value in read.lora.items() if name not in given}
        chosen = {**options, **found}
        targets = chosen["lora_targets"] or "all linear layers"
        bits = "; its 4-bit weights are counted as 16-bit ones" if arguments.loads_in_4_bits else ""
        where = "the script's arguments" if written is None else "its LoraConfig"
        return {"method": "lora", **found}, [
            f"counted as LoRA of rank {chosen['lora_rank']} on {targets}, by {where}{bits}"
        ]
    if _ADAPTERS.search(source):
        return {}, [
            "counted as full fine-tuning, although the script names adapters: where it trains them, pass --method lora"
        ]
    return {}, ["counted as full fine-tuning: for adapters pass --method lora"]


def _late_arguments(text: ScriptSource, config: Mapping[str, Any], script: Script) -> list[str]:
    """A remark where ZeRO-3 does not load the model in shards, because transformers does not know of it yet."""
    zero = config.get("zero_optimization")
    late = text.late_arguments
    if late is None or not isinstance(zero, dict) or zero.get("stage") != 3:
        return []
    return [
        f"{script.target} loads the model in line {late[0]}, before its training arguments in line {late[1]}: under "
        "ZeRO-3 every rank then holds the whole model in host memory; make the training arguments first"
    ]


_LAUNCHERS: dict[str, tuple[Launcher, ...]] = {
    "hostfile": ("deepspeed",),
    "slurm": ("torchrun",),
    "static": ("torchrun", "accelerate"),
}
"""Launchers by the kind of rendezvous that they support."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """The options that select the nodes and their ranks."""

    gpus: str
    device: Device
    ranks: int | None
    nodes: int | None
    node_rank: int
    master: str | None
    hostfile: Path | None
    slurm: bool
    starts: bool
    """Whether ranks will be started, not only shown."""

    def resolve(self) -> tuple[Cluster, Rendezvous | None]:
        """(the ranks, the rendezvous of several nodes). Raises ClusterError for options that contradict each other."""
        if sum((self.master is not None, self.hostfile is not None, self.slurm)) > 1:
            raise ClusterError(
                "--master, --hostfile and --slurm are alternatives",
                why="each selects the nodes",
                fix="pass one of them",
            )
        options = {"gpus": self.gpus, "device": self.device, "ranks": self.ranks}
        here = self.starts and self.hostfile is None and not self.slurm  # else this may be a node without GPUs
        cluster = cluster_here(options) if here else cluster_of(options)
        rendezvous: Rendezvous | None = None
        if self.hostfile is not None:
            nodes, gpus_per_node = equal_nodes(self.hostfile)
            self._check_counts(f"hostfile {self.hostfile}", nodes, gpus_per_node)
            cluster = replace(cluster, nodes=nodes, gpus_per_node=gpus_per_node)
            rendezvous = Rendezvous(kind="hostfile", hostfile=str(self.hostfile.absolute()))
        elif self.slurm:
            rendezvous, nodes = slurm_rendezvous(PORT)
            self._check_counts("this Slurm allocation", nodes, None)
            cluster = replace(cluster, nodes=nodes)
        elif self.master is not None:
            rendezvous = static_rendezvous(self.master, self.node_rank)
            if self.nodes is not None:
                self._check_counts("--nodes", self.nodes, None)
                cluster = replace(cluster, nodes=self.nodes)
            if self.node_rank >= cluster.nodes:
                raise WorkloadError(
                    f"there is no node {self.node_rank} among {cluster.nodes}",
                    why="nodes count from 0",
                    fix="pass --nodes N, and --node-rank from 0 to N - 1",
                )
        elif (self.nodes or cluster.nodes) > 1:
            raise ClusterError(
                f"{self.nodes or cluster.nodes} nodes, but no rendezvous given",
                why="without one only this node's ranks are started",
                fix="pass --hostfile FILE, --slurm, or on every node --master ADDRESS --node-rank R",
            )
        return join_nodes(cluster), rendezvous if cluster.nodes > 1 else None

    def _check_counts(self, source: str, nodes: int, gpus_per_node: int | None) -> None:
        """Raises ClusterError where `--gpus` or `--nodes` contradict the counts of the source of the nodes."""
        given_nodes, given_gpus = counts_in(self.gpus)
        for option, given, found, unit in (
            ("--gpus", given_gpus, gpus_per_node, "GPUs a node"),
            ("--gpus", given_nodes, nodes, "nodes"),
            ("--nodes", self.nodes, nodes, "nodes"),
        ):
            if None not in (given, found) and given != found:
                raise ClusterError(
                    f"{option} has {given} {unit}, {source} {found}",
                    why="the plan must be checked on the GPUs that train",
                    fix="make them agree, or name only the kind, such as --gpus H100",
                )


def equal_nodes(hostfile: Path) -> tuple[int, int]:
    """(nodes, GPUs of each) of a hostfile. Raises ConfigFileError, and ClusterError for nodes of different sizes."""
    slots = read_hostfile(hostfile)
    gpus, *others = sorted(set(slots.values()))
    if others or not gpus:
        raise ClusterError(
            f"{hostfile} names nodes {'with different numbers of GPUs' if others else 'without GPUs'}",
            why="a plan assumes equal nodes",
            fix="give every node the same slots",
        )
    return len(slots), gpus


def slurm_rendezvous(port: int, environment: Mapping[str, str] = os.environ) -> tuple[Rendezvous, int]:
    """(the rendezvous of this process's Slurm allocation, its nodes). Raises ClusterError outside of one."""
    nodes, node_list, job = (environment.get(f"SLURM_JOB_{name}", "") for name in ("NUM_NODES", "NODELIST", "ID"))
    if not (re.fullmatch(r"\d{1,6}", nodes, flags=re.ASCII) and re.match(r"[^,\[]", node_list) and job):
        raise ClusterError(
            "--slurm, but this is no Slurm allocation (SLURM_JOB_ID is not set)",
            why="srun starts the nodes of an allocation",
            fix="start it with sbatch or inside salloc",
        )
    return Rendezvous(kind="slurm", address=first_host(node_list), port=port, job=job), int(nodes)


def first_host(node_list: str) -> str:
    """The first host of Slurm's compressed list: `gpu[003-007,9],login` is gpu003."""
    match = re.match(r"([^,\[]+)(?:\[(\w+))?", node_list)
    assert match is not None, "a node list begins with a name"
    return match[1] + (match[2] or "")


def static_rendezvous(master: str, node_rank: int) -> Rendezvous:
    """From `--master ADDRESS[:PORT] --node-rank R`. Raises ClusterError for an invalid port."""
    address, colon, port = master.rpartition(":") if not master.endswith("]") else (master, "", "")
    if not colon:
        address = master
        port = str(PORT)
    if not (address and re.fullmatch(r"\d{1,5}", port, flags=re.ASCII) and 0 < int(port) < 65536):
        raise ClusterError(
            f"--master {master[:60]!r} is no address",
            why="all nodes meet there",
            fix="write the first node's name or address, and optionally a port: node-0:29500",
        )
    return Rendezvous(kind="static", address=address.strip("[]"), port=int(port), node_rank=str(node_rank))


def launcher_for(rendezvous: Rendezvous | None, requested: Launcher | None) -> Launcher | None:
    """The requested launcher, or the only one that supports the rendezvous, or None where several do.

    Raises ClusterError where the requested one does not support it.
    """
    if rendezvous is None:
        return requested
    able = _LAUNCHERS[rendezvous.kind]
    if requested is not None and requested not in able:
        raise ClusterError(
            f"--launcher {requested} does not start nodes this way",
            why=f"of the three, {' and '.join(able)} {'does' if len(able) == 1 else 'do'}",
            fix=f"pass --launcher {able[0]}",
        )
    return requested or (able[0] if len(able) == 1 else None)
