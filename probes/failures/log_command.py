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

COMMAND_WORDS = (b"cmd = ", b"spawned with command", b"torchrun ", b"accelerate launch ", b"deepspeed --")
"""Every line with a command has one of them, or one of a message's triggers."""

_RUNNER = re.compile(r"\bcmd = (.+deepspeed\.launcher\.launch .+)$")
_RANK = re.compile(r"(?:spawned with command: |sigkill_handler\] )(\['.+'\])")
_TYPED = re.compile(
    r"(?:^|^[+$#>%] ?|^\S{1,60}[$#] )((?:\w+=\S+ )*(?:torchrun|accelerate launch|deepspeed) (?:.* )?\S+\.py(?: .*)?)$"
)
_WORLD = "--world_info="


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


def _of_runner(words: Sequence[str]) -> tuple[str, ...]:
    """The words of DeepSpeed's launcher for one node, whose GPUs are encoded."""
    world = next(word.removeprefix(_WORLD) for word in words if word.startswith(_WORLD))
    nodes = json.loads(base64.urlsafe_b64decode(world))
    rest = words[words.index("deepspeed.launcher.launch") + 1 :]
    begin = next(at for at, word in enumerate(rest) if not word.startswith("--"))
    options = [word for word in rest[:begin] if word in ("--module", "--no_python", "--no_local_rank")]
    count = max(map(len, nodes.values()))
    several = ("--num_nodes", f"{len(nodes)}") if len(nodes) > 1 else ()
    return ("deepspeed", *several, "--num_gpus", f"{count}", *options, *rest[begin:])


def _script(words: Sequence[str]) -> list[str]:
    """The script and its arguments, of a rank's words."""
    python = PurePath(words[0]).name.startswith("python")
    rest = [word for word in words[1 if python else 0 :] if word != "-u" and not word.startswith("--local_rank=")]
    return ["--module", *rest[1:]] if rest[:1] == ["-m"] else rest
