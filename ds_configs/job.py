"""What job files are made of: the training that they start, and YAML."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from ..estimators.hardware import Cluster
from ..estimators.phrase import whole_gib
from .launch_commands import threads_setting

JobKind = Literal["slurm", "kubernetes", "skypilot", "ray", "accelerate", "hostfile"]
"""What a job file is for."""

JOB_KINDS: tuple[JobKind, ...] = get_args(JobKind)


class Offer(NamedTuple):
    """A machine that a cloud rents."""

    provider: str
    cluster: Cluster
    """One such machine."""
    most_nodes: int
    """The number that their network may join."""
    per_hour: float
    """US dollars."""
    date: str
    """The day of the price."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training to start, as far as a job file decides on it."""

    cluster: Cluster
    script: str = "train.py"
    """The path of the script, or the name of a module."""
    arguments: tuple[str, ...] = ()
    """The arguments of the script, without those that pass the configuration."""
    is_module: bool = False
    config: Mapping[str, Any]
    config_path: str
    config_words: tuple[str, ...] = ()
    """Arguments that pass the configuration to the script; () where it names the file, or `variables` pass it."""
    packages: tuple[str, ...] = ()
    """pip's names of what the script imports (`training_script.packages`)."""
    variables: Mapping[str, str]
    """To be set for every rank, besides OMP_NUM_THREADS."""
    host_bytes_per_node: int | None = None
    """RAM of a node that the ranks need; None where it is unknown."""
    output_dir: str | None = None
    """Folder of the Trainer's checkpoints; None where the script does not take `--resume_from_checkpoint`."""
    offers: Callable[[], tuple[Offer, ...]] = tuple
    """Machines whose price is known; called where a file says the price."""

    @property
    def name(self) -> str:
        """The script's name, as it may stand in a label of DNS (RFC 1123)."""
        stem = self.script.rpartition(".")[2] if self.is_module else Path(self.script).stem
        return re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:40] or "train"

    @property
    def target(self) -> list[str]:
        """The words of the script with all its arguments."""
        return [self.script, *self.arguments, *self.config_words]

    @property
    def place(self) -> str:
        """`2 nodes of 8 GPUs`."""
        device = "rank" if self.cluster.gpu.is_cpu else "GPU"
        gpus, nodes = self.cluster.gpus_per_node, self.cluster.nodes
        return f"{nodes} node{'s' * (nodes > 1)} of {gpus} {device}{'s' * (gpus > 1)}"

    @property
    def host_gib(self) -> int | None:
        """The RAM of a node in whole GiB."""
        return None if self.host_bytes_per_node is None else whole_gib(self.host_bytes_per_node)

    @property
    def settings(self) -> list[str]:
        """`NAME=value` of every variable, for the shell of a node."""
        given = [f"{name}={shlex.quote(value)}" for name, value in self.variables.items()]
        return [*given, threads_setting(self.cluster)]

    def threads(self, cores: str) -> str:
        """OMP_NUM_THREADS: an equal part of the node's cores. cores: a number, or the name of the variable with it."""
        chosen, ranks = self.cluster.threads_per_rank, self.cluster.gpus_per_node
        return str(chosen) if chosen else f"$(({cores} / {ranks}))"


def yaml_text(value: Mapping[str, Any], *comments: str) -> str:
    """Block style, texts of several lines as such, below comments."""
    import yaml  # imported here: few answers write YAML

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]  # without types
        def ignore_aliases(self, _data: Any) -> bool:
            return True

    def text(dumper: Any, data: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)

    Dumper.add_representer(str, text)
    body: str = yaml.dump(dict(value), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=10**6)
    return "".join(f"# {line}\n" for line in comments) + body
