"""The training that a job file starts, and the YAML of job files."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from ..estimators.hardware import Cluster
from ..estimators.memory.fit_probability import host_bytes_to_fit
from ..estimators.units import whole_gib
from .launch_commands import threads_setting

JobKind = Literal["slurm", "kubernetes", "skypilot", "ray", "accelerate", "hostfile"]
"""Kinds of job files."""

JOB_KINDS: tuple[JobKind, ...] = get_args(JobKind)


class Offer(NamedTuple):
    """A rentable cloud machine."""

    provider: str
    cluster: Cluster
    """One machine of this type."""
    most_nodes: int
    """Maximum number of nodes in one network."""
    per_hour: float
    """Price in US dollars."""
    date: str
    """Date of the price."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training to start, with the facts that a job file needs."""

    cluster: Cluster
    script: str = "train.py"
    """The path of the script, or the name of a module."""
    arguments: tuple[str, ...] = ()
    """The arguments of the script, without those that pass the configuration."""
    is_module: bool = False
    config: Mapping[str, Any]
    config_path: str
    config_words: tuple[str, ...] = ()
    """Arguments that pass the configuration to the script; () if the script names the file, or `variables` pass it."""
    packages: tuple[str, ...] = ()
    """pip names of the packages that the script imports (`training_script.packages`)."""
    variables: Mapping[str, str]
    """Environment variables of every rank, in addition to OMP_NUM_THREADS."""
    host_bytes_per_node: int | None = None
    """RAM of a node that its ranks need; None if unknown."""
    output_dir: str | None = None
    """Folder of the Trainer's checkpoints; None if the script does not accept `--resume_from_checkpoint`."""
    offers: Callable[[], tuple[Offer, ...]] = tuple
    """Machines with known prices; called only if a file states the price."""

    @property
    def name(self) -> str:
        """The script's name in the form of a DNS label (RFC 1123)."""
        stem = self.script.rpartition(".")[2] if self.is_module else Path(self.script).stem
        return re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:40] or "train"

    @property
    def target(self) -> list[str]:
        """The script and all its arguments, as words."""
        return [self.script, *self.arguments, *self.config_words]

    @property
    def place(self) -> str:
        """The size of the cluster: `2 nodes of 8 GPUs`."""
        device = "rank" if self.cluster.gpu.is_cpu else "GPU"
        gpus, nodes = self.cluster.gpus_per_node, self.cluster.nodes
        return f"{nodes} node{'s' * (nodes > 1)} of {gpus} {device}{'s' * (gpus > 1)}"

    @property
    def host_gib(self) -> int | None:
        """The RAM of a node in whole GiB, with room for the error of the prediction; at most what the node has."""
        if self.host_bytes_per_node is None:
            return None
        needed, have = host_bytes_to_fit(self.host_bytes_per_node), self.cluster.host_memory_bytes_per_node
        return whole_gib(needed) if have is None or needed <= have else max(1, have >> 30)

    @property
    def settings(self) -> list[str]:
        """`NAME=value` for every variable, in the syntax of a node's shell."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.variables.items()]
        return [*variables, threads_setting(self.cluster)]

    def threads(self, cores: str) -> str:
        """OMP_NUM_THREADS: an equal part of the node's cores. cores: a number, or the name of the variable that holds
        it."""
        chosen, ranks = self.cluster.threads_per_rank, self.cluster.gpus_per_node
        return str(chosen) if chosen else f"$(({cores} / {ranks}))"


def yaml_text(value: Mapping[str, Any], *comments: str) -> str:
    """YAML in block style below comments; multi-line texts as literal blocks."""
    import yaml  # imported here: few answers write YAML

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]  # without types
        def ignore_aliases(self, _data: Any) -> bool:
            return True

    def text(dumper: Any, data: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)

    Dumper.add_representer(str, text)
    body: str = yaml.dump(dict(value), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=10**6)
    return "".join(f"# {line}\n" for line in comments) + body
