"""The training that another tool's file describes, in this project's terms; its unused keys; the change to write."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from ...ds_configs.launch_commands import Launcher
from ...estimators.plan import Fsdp, Sharding
from ...estimators.workload import NEXT_TOKEN

Value = str | int | float | bool | None | Mapping[str, Any] | list[str]
"""The new value of a key. None removes the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeedPart:
    """The DeepSpeed configuration that a file names or holds."""

    name: str
    """The path in the file, or the key that holds the configuration itself."""
    config: Mapping[str, Any] | None
    """The configuration; None if the named file does not exist."""
    path: Path | None = None
    """The path of the found file; None if the configuration is part of the tool's file, or built in."""
    remark: str = ""
    """What is assumed of it; "" for nothing."""
    implied: tuple[tuple[str, ...], ...] = ()
    """Paths of keys in `config` that accelerate adds to what its file says, with DeepSpeed's defaults."""


@dataclass(slots=True, kw_only=True)
class ImportedRun:
    """A training as a file describes it. Settings that the file leaves open have the defaults of the tool. The rules of
    a tool change it while the file is read."""

    tool: str
    """The tool's usual name."""
    model: str | None = None
    objective: str = NEXT_TOKEN
    """A result of `objective_of`."""
    training: dict[str, Any] = field(default_factory=dict)
    """Options of the question, by the names of `QuestionOptions`; None for one that is left open."""
    micro_batch_size: int | None = None
    """Samples per GPU; None if the script decides it."""
    gradient_accumulation_steps: int | None = 1
    """Accumulation steps; None if they follow from `least_global_batch`."""
    least_global_batch: int | None = None
    """Least number of samples per optimizer step; the tool reaches it by accumulation."""
    gradient_checkpointing: bool | Literal["offload"] = False
    """Whether layers are recomputed; "offload" also keeps the inputs of checkpointed layers in host RAM."""
    sharding: Sharding = "none"
    """Training backend: DeepSpeed ("zero"), FSDP, or torch alone."""
    hybrid_shard_size: int | Literal["node"] | None = None
    """GPUs that share FSDP's shards under hybrid sharding; None for all."""
    deepspeed: DeepSpeedPart | None = None
    accelerate_file: str = ""
    """accelerate's configuration, which the file names and which decides the backend; "" without one."""
    nodes: int | None = None
    gpus_per_node: int | None = None
    leaves_batch_to_script: bool = False
    """Whether the file cannot hold micro batch and gradient checkpointing."""
    launcher: Launcher | None = None
    """The launcher of the ranks; None if unknown."""
    one_process: str = ""
    """The command that starts a single process in a process group, which DeepSpeed needs; "" if the launcher already
    does so."""
    expandable_segments: bool = False
    """Whether the tool sets `expandable_segments` of PyTorch's allocator."""
    leaves_loss: bool = True
    """Whether the file leaves the kernel of the loss to the tool's default."""
    frees_reentrant: bool = False
    """Whether reentrant checkpointing is the tool's default, and a key that the file lacks turns it off."""
    loads_fp32: bool = False
    """Whether weights are loaded in fp32 also for training in 16 bits, by the tool or by the script."""
    assumes_fp32: bool = False
    """Whether `loads_fp32` is an assumption about the script."""
    faults: tuple[str, ...] = ()
    """Settings that the tool itself refuses or ignores, as sentences."""
    remarks: list[str] = field(default_factory=list)
    """Approximations and omissions of the figures, as sentences."""
    obstacle: str = ""
    """Why there can be no figures; "" if there can."""
    uncounted: tuple[str, ...] = ()
    """Keys that may decide memory or speed and that the figures ignore."""
    unknown: tuple[str, ...] = ()
    """Keys that the tool does not have, with the nearest key that it has."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Those among them that the tool renamed -> the present names."""

    @property
    def kept_unknown(self) -> tuple[str, ...]:
        """The unknown keys that a changed file keeps, because what is meant by them is not certain."""
        return tuple(each for each in self.unknown if each.partition(" ")[0] not in self.renamed)

    def add_obstacle(self, reason: str) -> None:
        """Keep the first reason for which there can be no figures."""
        self.obstacle = self.obstacle or reason

    def lacks(self, what: str) -> None:
        """Record a feature that the estimators cannot compute."""
        self.add_obstacle(f"not predicted: {what}")

    def use_software(self, **habits: Any) -> None:
        """Record differences from current software, in addition to the known ones."""
        self.training["software"] = {**(self.training.get("software") or {}), **habits}

    def use_quantization(self, bits: int | None, *, bitsandbytes: bool = True) -> None:
        """Record adapters on frozen weights of this number of bits; None for no quantization."""
        if bits is None:
            return
        if bits not in (4, 8):
            self.remarks.append(f"its {bits}-bit weights are counted as 16-bit ones")
            return
        name, title = ("nf4", "NF4") if bits == 4 else ("int8", "bitsandbytes' int8")
        self.training.update(method="qlora", quantization=name)
        if not bitsandbytes:
            self.remarks.append(f"its {bits}-bit weights are counted as {title} ones")

    @property
    def processes(self) -> int | None:
        """The number of ranks; None if the file does not set it."""
        return None if self.gpus_per_node is None else (self.nodes or 1) * self.gpus_per_node

    @property
    def is_from_fields(self) -> bool:
        """Whether accelerate makes the DeepSpeed configuration from the fields of its own file."""
        is_inside = self.deepspeed is not None and self.deepspeed.path is None
        return is_inside and (self.tool == "accelerate" or bool(self.accelerate_file))

    @property
    def is_fsdp(self) -> bool:
        """Whether the training backend is PyTorch's FSDP, of either version."""
        return self.sharding in get_args(Fsdp)


def parse_fsdp(version: object) -> Fsdp:
    """The FSDP version from accelerate's `fsdp_version`, which is 1 if missing."""
    return "fsdp2" if str(version) == "2" else "fsdp"


_ON = ("y", "yes", "t", "true", "on", "1")
"""Texts that accelerate takes for true (1.15 utils/environment.py `str_to_bool`)."""

_STRATEGY = ("sharding_strategy", "reshard_after_forward")
_PREDICTED_FSDP = {
    "offload_params": ("false",),
    "cpu_offload": ("false",),
    "sharding_strategy": ("1", "full_shard", "4", "hybrid_shard"),
    "reshard_after_forward": ("true", "full_shard", "hybrid_shard"),
}
"""Values of FSDP's settings that are predicted: everything is sharded, over all GPUs or within each node (FSDP 1), and
stays on the GPUs."""


def fsdp_checkpoints(settings: Mapping[str, object], name: str = "activation_checkpointing") -> bool:
    """Whether FSDP's settings, with or without `fsdp_`, turn its checkpointing on. name: another switch."""
    return any(str(settings.get(f"{prefix}{name}")).lower() in _ON for prefix in ("", "fsdp_"))


TWO_CHECKPOINTINGS = "the Trainer refuses activation_checkpointing of FSDP beside gradient_checkpointing: turn one off"
"""transformers 5.24 trainer.py `create_accelerator_and_postprocess`."""


def read_fsdp(run: ImportedRun, settings: Mapping[str, object]) -> None:
    """Put FSDP's settings into a run, by accelerate's names with or without `fsdp_`. Version 2 has no
    `sharding_strategy`, and it alone offloads the inputs of the layers that FSDP checkpoints (accelerate 1.15
    utils/dataclasses.py `FullyShardedDataParallelPlugin.__post_init__`)."""
    if fsdp_checkpoints(settings) and not run.gradient_checkpointing:
        offloads = fsdp_checkpoints(settings, "activation_checkpointing_offload") and run.sharding == "fsdp2"
        run.gradient_checkpointing = "offload" if offloads else True
    for key, setting in settings.items():
        name, value = key.removeprefix("fsdp_"), str(setting).lower()
        if setting is None or (name == "sharding_strategy" and run.sharding == "fsdp2"):
            continue
        if value not in _PREDICTED_FSDP.get(name, (value,)):
            run.lacks(f"{key}: {value}")
        elif name in _STRATEGY and value in ("4", "hybrid_shard"):
            run.hybrid_shard_size = "node"


KNOWN_KEYS = Path(__file__).with_name("known_keys.json")
"""Keys in the tools' sources (`benchmarks/tool_keys.py`: LLaMA-Factory ff6d4d1, axolotl 067b021, ms-swift 3602360, TRL
1.16, the TrainingArguments of transformers 5.23); a key of another version is unknown. The keys of accelerate, those
that only transformers 4 has, and those that change neither the memory nor the time of a step are maintained by hand. In
"harmless" * stands for any letters; in "harmless-topics" NAME also stands for all keys that begin with NAME_."""


def known_names(*kinds: str) -> set[str]:
    """The keys of some lists of `KNOWN_KEYS`."""
    return {name for kind in kinds for name in _lists().get(kind, "").split()}


@cache
def _lists() -> dict[str, str]:
    lists: dict[str, str] = json.loads(KNOWN_KEYS.read_text(encoding="utf-8"))
    return lists


def names_of(tool: str, objective: str = "") -> set[str]:
    """The keys that a tool has; those of its trainer of an objective, if they are listed by trainer."""
    shared = [] if tool in ("accelerate", "axolotl") else ["training-arguments", "transformers-4"]
    of_trainer = known_names(f"{tool}-{objective}")
    return known_names(*shared) | (of_trainer | known_names(f"{tool}-all") if of_trainer else known_names(tool))


def nearest_names(unknown: Iterable[str], names: Collection[str]) -> dict[str, str]:
    """The keys that a tool does not have and that are a misspelling of one that it has -> that one."""
    # 0.85 lets one letter of a key differ, and keeps apart keys that share only a beginning.
    near = {name: difflib.get_close_matches(name, names, n=1, cutoff=0.85) for name in unknown}
    return {name: found[0] for name, found in near.items() if found}


def with_nearest(unknown: Iterable[str], names: Collection[str], renamed: Mapping[str, str]) -> tuple[str, ...]:
    """Keys that a tool does not have, each with its present name, or else with the nearest of the tool's names.
    renamed: former names of the tool's keys -> present ones."""
    unknown = list(unknown)
    near = {name: f"{name} (did you mean {meant}?)" for name, meant in nearest_names(unknown, names).items()}
    near |= {name: f"{name} (now {renamed[name]})" for name in unknown if name in renamed}
    return tuple(near.get(name, name) for name in unknown)


def read_as_meant(run: ImportedRun, meant: Mapping[str, str]) -> None:
    """Say in the run which keys are read by other names. meant: the keys of the file -> the names."""
    if meant:
        named = ", ".join(f"{name} as {near}" for name, near in meant.items())
        run.remarks.append(f"the figures take {named}")


def without_harmless(unread: Iterable[str]) -> tuple[str, ...]:
    """The keys among those that the estimators do not use that may change the memory or the time of a step."""
    topics, others = (_lists()[kind].replace(" ", "|") for kind in ("harmless-topics", "harmless"))
    harmless = re.compile(rf"({topics})(_\w+)?|" + others.replace("*", r"\w*"))
    return tuple(name for name in unread if not harmless.fullmatch(name))
