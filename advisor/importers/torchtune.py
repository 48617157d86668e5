"""The question that answers for a configuration of torchtune, which is not read."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ...estimators.workload import TORCH_DTYPES
from ..question.gpu_text import counts_in

_COMPONENT = "_component_"


def is_torchtune(values: Mapping[str, Any]) -> bool:
    """Whether a file names components of torchtune."""
    blocks = [block for block in values.values() if isinstance(block, Mapping)]
    return any(str(block.get(_COMPONENT)).startswith("torchtune.") for block in blocks)


def torchtune_question(values: Mapping[str, Any], gpus: str | None, further: Sequence[str]) -> str:
    """The command that asks about the training, with MODEL in place of the model, which torchtune names by a function.

    further: the options of the command line.
    """
    tokenizer = values.get("tokenizer")
    samples, steps = _count(values, "batch_size"), _count(values, "gradient_accumulation_steps") or 1
    ranks = _ranks(gpus)
    checkpoints, dtype = values.get("enable_activation_checkpointing"), str(values.get("dtype"))
    options = {
        "--seq-len": _count(tokenizer, "max_seq_len") if isinstance(tokenizer, Mapping) else None,
        "--micro-batch": samples,
        "--global-batch": samples * steps * ranks if samples and ranks else None,
        "--gradient-checkpointing": ("on" if checkpoints else "off") if isinstance(checkpoints, bool) else None,
        "--precision": dtype if dtype in TORCH_DTYPES else None,
    }
    words = [word for option, value in options.items() if value is not None for word in (option, str(value))]
    return shlex.join(["ds-advise", "MODEL", "--gpus", gpus or "SPEC", *words, *further])


def _ranks(gpus: str | None) -> int | None:
    nodes, per_node = counts_in(gpus or "")
    return None if per_node is None else (nodes or 1) * per_node


def _count(values: Mapping[str, Any], key: str) -> int | None:
    value = values.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
