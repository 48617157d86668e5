"""The training that another tool's file describes, in this project's terms, its unused keys, and the change that is
written back."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from ...ds_configs.launch_commands import Launcher
from ...estimators.plan import Fsdp, Sharding
from ...estimators.workload import NEXT_TOKEN, Framework

Value = str | int | float | bool | None | Mapping[str, Any]
"""The new value of a key. None takes the key out."""

KeyPath = tuple[str, ...]
"""The names that lead to a key, the outermost first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeedPart:
    """The DeepSpeed configuration that a file names or holds."""

    name: str
    """The path as the file writes it, or the key that holds the configuration itself."""
    config: Mapping[str, Any] | None
    """None if the file that is named is not there."""
    path: Path | None = None
    """Where it was found, None if it is part of the file, or built in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRun:
    """A training as a file describes it; what the file leaves open has the default of its tool."""

    tool: str
    """As its users call it."""
    model: str | None = None
    objective: str = NEXT_TOKEN
    """As `objective_of` has it."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """Options of the question, by the names of `QuestionOptions`."""
    micro_batch_size: int | None = None
    """None if the script decides it."""
    gradient_accumulation_steps: int | None = 1
    """None: as many as `least_global_batch` takes."""
    least_global_batch: int | None = None
    """Samples per optimizer step that the tool makes up by accumulation."""
    gradient_checkpointing: bool | Literal["offload"] = False
    """"offload" also holds the inputs of checkpointed layers in host RAM."""
    sharding: Sharding = "none"
    """Training backend: DeepSpeed ("zero"), FSDP, or torch alone."""
    deepspeed: DeepSpeedPart | None = None
    framework: Framework = "hf"
    """The reader of the DeepSpeed configuration."""
    nodes: int | None = None
    gpus_per_node: int | None = None
    leaves_batch_to_script: bool = False
    """The file can hold neither micro batch nor gradient checkpointing."""
    launcher: Launcher | None = None
    """The launcher of the ranks, None if it is not known."""
    one_process: str = ""
    """What starts a single process in a process group, which DeepSpeed needs; "" if the launcher does so anyway."""
    threads_per_rank: int | None = None
    """OMP_NUM_THREADS, None if it is not set."""
    expandable_segments: bool = False
    """Whether the tool or the script's environment sets this option of PyTorch's allocator."""
    faults: tuple[str, ...] = ()
    """Sentences: what the tool itself refuses or ignores."""
    remarks: tuple[str, ...] = ()
    """Sentences: approximations, and what the figures leave out."""
    obstacle: str = ""
    """Why there can be no figures; "" if there can."""
    uncounted: tuple[str, ...] = ()
    """Keys that may decide memory or speed, and from which nothing is concluded."""
    unknown: tuple[str, ...] = ()
    """Keys that the tool does not have, with the nearest that it has."""

    @property
    def is_fsdp(self) -> bool:
        """Whether PyTorch's FSDP, of either version, is the training backend."""
        return self.sharding in get_args(Fsdp)


def fsdp_of(version: object) -> Fsdp:
    """FSDP by the value of accelerate's `fsdp_version`, which is 1 where it is missing."""
    return "fsdp2" if str(version) == "2" else "fsdp"


_PREDICTED_FSDP = {
    "offload_params": ("false",),
    "cpu_offload": ("false",),
    "sharding_strategy": ("1", "full_shard"),
    "reshard_after_forward": ("true", "full_shard"),
}
"""The values of FSDP's settings with which everything is sharded and stays on the GPUs, as figures take it."""


def unpredicted_fsdp(settings: Mapping[str, object]) -> list[str]:
    """The settings, by accelerate's names with or without `fsdp_`, that the figures of a run would not follow."""
    return [
        f"{name}: {str(value).lower()}"
        for name, value in settings.items()
        if value is not None
        and str(value).lower() not in _PREDICTED_FSDP.get(name.removeprefix("fsdp_"), (str(value).lower(),))
    ]


KNOWN_KEYS = Path(__file__).with_name("known_keys.json")
"""The names in the tools' sources (`benchmarks/tool_keys.py`: LLaMA-Factory ff6d4d1, axolotl 067b021, ms-swift 3602360,
the TrainingArguments of transformers 5.23); a key of another version is unknown. Written by hand are accelerate's,
those that only transformers 4 has, and those that change neither the memory nor the time of a step: in "harmless" *
stands for any letters, and in "harmless-topics" NAME also for all keys that begin with NAME_."""


def unused_keys(tool: str, unread: Iterable[str], *, has_own: bool = False) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(keys of the tool that the estimators do not use, but for harmless ones; keys that it does not have, each with
    the nearest that it has). has_own: keys of the user's own are among them, so that none is unknown."""
    lists: dict[str, str] = json.loads(KNOWN_KEYS.read_text(encoding="utf-8"))
    shared = [] if tool in ("accelerate", "axolotl") else ["training-arguments", "transformers-4"]
    names = {name for kind in (tool, *shared) for name in lists.get(kind, "").split()}
    topics, others = (lists[kind].replace(" ", "|") for kind in ("harmless-topics", "harmless"))
    harmless = re.compile(rf"({topics})(_\w+)?|" + others.replace("*", r"\w*"))
    uncounted, unknown = [], []
    for name in unread:
        if not has_own and name not in names:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.85)
            unknown.append(f"{name} (did you mean {near[0]}?)" if near else name)
        elif not harmless.fullmatch(name):
            uncounted.append(name)
    return tuple(uncounted), tuple(unknown)
