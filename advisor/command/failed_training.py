"""What a log tells of the training that ran out of memory, as the next command."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...ds_configs.launch_commands import COUNTS, shell_line
from ...estimators.gpu_catalogue import gpus
from ...probes.failures.diagnosis import Diagnosis
from ..importers.script_arguments import ScriptArguments
from ..question.file_question import is_ds_config, option_words
from ..question.options import MachineOptions, names_in

ALLOWED = frozenset({*names_in(MachineOptions), "offline"})
"""Options beside a command, which describes its training itself."""

COMMAND, MODEL, COUNT, SIZE, RAM = "COMMAND", "MODEL", "N", "SIZEGB", "RAMGB"
"""What the user fills in where the log does not show it."""

_ROUNDED_BYTES = 2**30 // 200
"""Most that torch's message, with two decimals, rounds a size of a GiB and more."""

_GRAIN_BYTES = 2 * 2**20
"""What a large request is rounded up to a multiple of before the message (torch 2.13 `get_allocation_size`)."""


def machines(found: Diagnosis, given: Mapping[str, Any]) -> str:
    """The value of `--gpus`: the user's, or the number of GPUs by the launcher's options, else by the ranks of the log,
    and their size by the allocator's message."""
    if "gpus" in given:
        return str(given["gpus"])
    options = ScriptArguments(found.command)
    several, ranks = found.started.nodes or 1, 0
    for names in COUNTS.values():
        if number := options.number(names.ranks):
            several = options.number(names.nodes) or 1
            ranks = number // several if names.of_all_nodes else number
    if not ranks and found.started.nodes:
        ranks = found.started.on_a_node or found.started.total
    total = found.memory.total_bytes if found.memory is not None else None
    size = SIZE
    if total is not None:
        size = f"{min(gpus(), key=lambda gpu: abs(gpu.memory_bytes - total)).nominal_gb}GB"
    return f"{f'{several}x' if several > 1 else ''}{ranks or COUNT}x{size}"


def logged_machines(found: Diagnosis) -> str:
    """The value of `--gpus` by the log alone; "" if it does not show number and size."""
    shown = machines(found, {})
    return "" if missing(f" {shown}") else shown


def logged_options(found: Diagnosis) -> dict[str, Any]:
    """The training by the arguments of the command in the log, as options of a question: the model, how it was trained,
    and what fills an `auto` of its configuration. Only those that are given."""
    arguments = ScriptArguments(found.command)
    checkpointing = arguments.gradient_checkpointing
    given = {
        "model": arguments.model,
        "seq_len": arguments.seq_len,
        "precision": arguments.precision,
        "micro_batch": arguments.micro_batch,
        "accumulation": arguments.accumulation,
        "gradient_checkpointing": "on" if checkpointing is True else "off" if checkpointing is False else checkpointing,
    }
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if arguments.adapts:
        options["method"] = "qlora" if arguments.loads_in_4_bits else "lora"
        if "lora_rank" in arguments.lora:
            options["lora_rank"] = arguments.lora["lora_rank"]
    return options


_FP32_LOGITS = re.compile(r"\blogits\w*(?:\[[^\]]*\])?\.(?:float\(\)|to\((?:dtype=)?torch\.float32\))")
"""The code of a frame that copies the logits to fp32, as transformers does before the loss (5.24 loss/loss_utils.py
`ForCausalLMLoss`)."""


def logged_length(found: Diagnosis, vocabulary: int, micro_batch: int) -> int | None:
    """Tokens of a sample, by the request for the logits in fp32 that did not fit; None if another one did not."""
    frames = found.first.error.frames if found.first is not None else ()
    asked = found.memory.asked_bytes if found.memory is not None else None
    if not frames or not asked or not _FP32_LOGITS.search(frames[-1].code):
        return None
    row = 4 * vocabulary * micro_batch
    rounded = _ROUNDED_BYTES if asked >= 2**30 else 0
    longest = (asked + rounded) // row
    shortest = max(1, (asked - rounded - _GRAIN_BYTES) // row + 1)
    # Of the lengths that it may be, the one with the most factors of 2.
    return max(range(shortest, longest + 1), key=lambda length: length & -length, default=None)


def logged_config(found: Diagnosis) -> Path | None:
    """The DeepSpeed configuration that the command in the log names, if the file is in this folder."""
    named = (Path(value) for value in ScriptArguments(found.command).configs.values() if not value.startswith("{"))
    return next((path for path in named if is_ds_config(path)), None)


def next_words(found: Diagnosis, logs: Sequence[str], config: str, given: Mapping[str, Any]) -> str:
    """The command that finds the plan that fits the training of a log, with placeholders for what neither it nor the
    user's options show."""
    words = ["ds-advise", "why", *logs, *(["--config", config] if config else []), "--gpus", machines(found, given)]
    others = {name: value for name, value in given.items() if name in ALLOWED and name != "gpus"}
    if found.kind == "host_out_of_memory" and found.first is not None and "ram" not in others:
        others = {"ram": found.first.memory_limit or RAM} | others
    return f"{shell_line([*words, *option_words(others)])} -- {shell_line(found.command) if found.command else COMMAND}"


def model_words(found: Diagnosis, given: Mapping[str, Any]) -> str:
    """The command that finds a plan for the model and the GPUs."""
    model = given.get("model") or ScriptArguments(found.command).model or MODEL
    others = {name: value for name, value in given.items() if name not in ("model", "gpus", "accumulation")}
    return shell_line(["ds-advise", str(model), "--gpus", machines(found, given), *option_words(others)])


def missing(text: str) -> str:
    """What to fill in in such a command, as the end of a sentence."""
    meanings = {
        COMMAND: "COMMAND is the one that started the training",
        f" {COUNT}x": "N the number of GPUs",
        SIZE: "SIZE the memory of a GPU in GB",
        RAM: "RAM that of a node",
    }
    return ", ".join(meaning for sign, meaning in meanings.items() if sign in text)
