"""Which keys are a tool's own: what is none of them is most often a typing error.

The names are those of the classes in the tools' sources (`benchmarks/tool_keys.py`: LLaMA-Factory ff6d4d1, axolotl
067b021, ms-swift 3602360, transformers 5.23's TrainingArguments); a key of an older or newer version is none of them.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("known_keys.json")

_OLDER = frozenset(
    [
        "evaluation_strategy",
        "overwrite_output_dir",
        "logging_dir",
        "no_cuda",
        "use_mps_device",
        "per_gpu_train_batch_size",
        "per_gpu_eval_batch_size",
        "fp16_backend",
        "fp16_opt_level",
        "half_precision_backend",
        "mp_parameters",
        "tpu_num_cores",
        "tpu_metrics_debug",
        "past_index",
        "include_inputs_for_metrics",
        "dispatch_batches",
        "split_batches",
        "group_by_length",
        "length_column_name",
        "jit_mode_eval",
        "use_ipex",
        "ray_scope",
        "save_safetensors",
        "sharded_ddp",
        "fsdp_min_num_params",
        "fsdp_transformer_layer_cls_to_wrap",
        "torchdynamo",
        "warmup_ratio",
        "tp_size",
        "local_rank",
        "include_tokens_per_second",
        "push_to_hub_model_id",
        "push_to_hub_organization",
        "push_to_hub_token",
        "do_train",
        "do_eval",
        "do_predict",
    ]
)
"""TrainingArguments of transformers 4."""


class Keys(NamedTuple):
    """The keys of a configuration from which nothing is concluded."""

    uncounted: tuple[str, ...]
    """Those that the tool knows, and that no figure here has."""
    unknown: tuple[str, ...]
    """Those that the tool does not know, each with the nearest name that it does."""


def keys_of(tool: str, unread: Iterable[str]) -> Keys:
    """The unread keys of a tool's configuration, told apart."""
    names, unread = _names(tool), tuple(unread)
    return Keys(
        uncounted=tuple(name for name in unread if name in names),
        unknown=tuple(_with_nearest(name, names) for name in unread if name not in names),
    )


def _with_nearest(name: str, names: frozenset[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.85)
    return f"{name} (did you mean {near[0]}?)" if near else name


@cache
def _names(tool: str) -> frozenset[str]:
    known = json.loads(FILE.read_text(encoding="utf-8"))
    shared = known["training-arguments"].split() if tool != "axolotl" else []
    return frozenset([*known.get(tool, "").split(), *shared]) | (_OLDER if tool != "axolotl" else frozenset())
