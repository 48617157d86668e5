"""The command that started a training, in a line of its log."""

from __future__ import annotations

import ast
import base64
import json
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import NamedTuple

from ...ds_configs.launch_commands import COUNTS
from .log_runs import START_WORDS

_RANK_WORDS = (
    "orld_size",
    "WORLD_SIZE",
    "num_local_procs",
    "nproc_per_node",
    "Num processes",
    ", MEMBER: ",
    "nvidia.com/gpu",
)
"""Every line with a number of ranks has one of them."""

COMMAND_WORDS = (
    *(b"cmd = ", b"spawned with command", b"torchrun ", b"accelerate launch ", b"deepspeed "),
    *map(str.encode, _RANK_WORDS),
    *START_WORDS,
)
"""Every line with a command, a launcher's start or a number of ranks has one of them, or one of a message's
triggers."""

_TOTAL = re.compile(
    r"\b(?:dist_world_size|world_size|WORLD_SIZE)['\"]?(?: \.{3,})?(?: ?[=:] ?| )(\d+)\b(?! ?(?:!=|\*))|"
    r"\bNum processes: (\d+)|, MEMBER: \d+/(\d+)"
)
"""DeepSpeed's launcher and comm, accelerate's state, Lightning."""
_ON_A_NODE = re.compile(
    r"\b(?:num_local_procs|nproc_per_node|local_world_size|LOCAL_WORLD_SIZE|nvidia\.com/gpu)['\"]?\s*[=:]\s*(\d+)\b"
)
"""The last one is of a pod (`kubectl describe`)."""

MOST_ON_A_NODE = 8
"""Most ranks that are taken to be on one node where the log does not show it."""

_RUNNER = re.compile(r"\bcmd = (.+deepspeed\.launcher\.launch .+)$")
_RANK = re.compile(r"(?:spawned with command: |sigkill_handler\] )(\['.+'\])")

_PROMPT = r"(?:\([\w.-]+\) )?(?:[$%] ?|\S{1,60}[$#] |\[\S+ \S+\][$#] )"
"""Of a shell: `$ `, `ann@node-1:/work$ `, `(base) [ann@node-1 work]$ `."""

_LAUNCHER = r"(?:\w+=\S+ )*(?:torchrun|accelerate launch|deepspeed) "
_SRUN = r"(?:(?:\w+=\S+ )*srun (?:\S+ )*?)?"
"""Slurm's starter of the launchers, one on each node; what it starts is the command of a node."""
_TYPED = re.compile(rf"^(?:{_PROMPT}|(?:\++|[#>]) ?)?{_SRUN}({_LAUNCHER}(?:.* )?\S+\.py(?: .*)?)$")
_AT_PROMPT = re.compile(_PROMPT + _SRUN + _LAUNCHER)
_WORLD = "--world_info="


class Ranks(NamedTuple):
    """The number of ranks of a training; 0 if it is not known."""

    total: int = 0
    on_a_node: int = 0

    def joined(self, other: Ranks) -> Ranks:
        return Ranks(max(self.total, other.total), max(self.on_a_node, other.on_a_node))

    @property
    def nodes(self) -> int:
        """The number of nodes; 0 if it is not known."""
        per_node = self.on_a_node or (self.total if self.total <= MOST_ON_A_NODE else 0)
        return max(1, self.total // per_node) if per_node else 0


_NONE = Ranks()


def ranks_in(text: str) -> Ranks:
    """The number of ranks in a line of a launcher or a library."""
    if not any(word in text for word in _RANK_WORDS):
        return _NONE
    total, per_node = _TOTAL.search(text), _ON_A_NODE.search(text)
    return Ranks(int(next(filter(None, total.groups()))) if total else 0, int(per_node[1]) if per_node else 0)


def seen_ranks(numbers: Sequence[int]) -> Ranks:
    """The number of ranks by those that wrote lines, if they are all from 0 on, or end with a usual node's last. One
    alone may be one of more, except the last of a node that has as many as nodes have."""
    last, seen = max(numbers, default=0), len({*numbers})
    is_whole = (seen > 1 and (seen == last + 1 or last + 1 == 4)) or last + 1 == MOST_ON_A_NODE
    return Ranks(total=last + 1) if is_whole else _NONE


def command_in(text: str) -> tuple[str, ...]:
    """The command in a line: as DeepSpeed's launcher prints it (0.19.8 launcher/runner.py, launch.py), or as a shell
    shows it (`set -x`, a prompt). No words if there is none, or if it goes on in the next line."""
    with suppress(ValueError, SyntaxError, KeyError):
        if found := _RUNNER.search(text):
            return _of_runner(shlex.split(found[1]))
        if found := _RANK.search(text):
            return ("deepspeed", *_script([str(word) for word in ast.literal_eval(found[1])]))
        if (found := _TYPED.search(text)) and not text.endswith("\\"):
            return tuple(shlex.split(found[1]))
    return ()


def is_typed(text: str) -> bool:
    """Whether somebody starts a training in a line, at the prompt of a shell: nobody does while another one runs there.
    What `set -x` prints may be of a further node."""
    return _AT_PROMPT.match(text) is not None


def _of_runner(words: Sequence[str]) -> tuple[str, ...]:
    """The words of DeepSpeed's launcher for one node, whose GPUs are encoded; none if the line ends before the
    script."""
    rest = words[words.index("deepspeed.launcher.launch") + 1 :]
    world = next((word.removeprefix(_WORLD) for word in rest if word.startswith(_WORLD)), "")
    begin = next((at for at, word in enumerate(rest) if not word.startswith("--")), None)
    if begin is None:
        return ()
    nodes = json.loads(base64.urlsafe_b64decode(world))
    options = [word for word in rest[:begin] if word in ("--module", "--no_python", "--no_local_rank")]
    count = max(map(len, nodes.values()))
    names = COUNTS["deepspeed"]
    several = (f"--{names.nodes}", f"{len(nodes)}") if len(nodes) > 1 else ()
    return ("deepspeed", *several, f"--{names.ranks}", f"{count}", *options, *rest[begin:])


def _script(words: Sequence[str]) -> list[str]:
    """The script and its arguments, of a rank's words."""
    python = PurePath(words[0]).name.startswith("python")
    rest = [word for word in words[1 if python else 0 :] if word != "-u" and not word.startswith("--local_rank=")]
    return ["--module", *rest[1:]] if rest[:1] == ["-m"] else rest
