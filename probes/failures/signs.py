"""What a log shows of the training besides its errors, on which a fix depends: its engine, and its precision."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal, get_args

Sign = Literal["deepspeed", "zero12", "zero3", "fsdp", "outside_fp16", "prediction_loop"]
"""zero12, zero3: DeepSpeed's ZeRO stage 1 or 2, and 3. outside_fp16: it computes in bf16 or fp32. prediction_loop: that
of transformers 3, which joins the logits on the GPU and has no argument against it."""

SIGNS: tuple[Sign, ...] = get_args(Sign)
"""Texts of a later one replace those of an earlier one."""

_FORMS: dict[Sign, re.Pattern[str]] = {
    # What installs or imports DeepSpeed without using it is none: `Setting ds_accelerator to cuda`.
    "deepspeed": re.compile(
        r"\bdeepspeed/(?:runtime|launcher|utils|checkpoint|ops|pipe|moe|sequence|pt)/|\bDeepSpeed info: version|"
        r"transformers/(?:integrations/)?deepspeed\.py:deepspeed_\w+|accelerate/utils/deepspeed\.py:|:_prepare_deepspeed\b|"
        r"--(?:use_)?deepspeed(?:_config\w*)?\b(?![ =](?:None|[Ff]alse|\"\"))|^deepspeed .*\.py\b|\] \[deepspeed\] |"
        r"\bdeepspeed\.initialize\(|\[(?:launch|runner|engine|stage_1_and_2)\.py:\d+:\w+\]"
    ),
    "zero12": re.compile(r"deepspeed/runtime/zero/stage_1_and_2\.py|\[stage_1_and_2\.py:\d+:\w+\]"),
    "zero3": re.compile(
        r"deepspeed/runtime/zero/(?:stage3|partition_parameters|parameter_offload|partitioned_param\w+)\.py|"
        r"_zero3_consolidated_16bit_state_dict|\[stage3\.py:\d+:\w+\]|--zero_?stage[ =]3\b|\bzero_?stage['\"]?: ?3\b|"
        r"--(?:deepspeed|config_file)\S*[ =]\S*(?<![A-Za-z])(?:zero|z|stage)[_-]?3(?!\d)"
    ),
    "fsdp": re.compile(
        r"torch/distributed/(?:fsdp|_composable/fsdp)/|--(?:use_)?fsdp(?:[= ](?!(?:[Ff]alse|\"\"|''))|$)|"
        r"accelerate/utils/fsdp_utils\.py:|\bFSDP\(|\bfsdp_workers\.py\b"
    ),
    # Not the configuration of a model, which names the type of its files: it may be trained in another one.
    "outside_fp16": re.compile(
        r"--bf16\b(?![ =](?:[Ff]alse|0))|\bbf16['\"]?\s?[:=]\s?['\"]?[Tt]rue|"
        r"--(?:torch_)?dtype[ =](?:torch\.)?(?:bfloat16|bf16)\b|"
        r"\btorch_dtype=torch\.bfloat16\b|mixed_precision['\"]?\s?[:= ]\s?['\"]?bf16|"
        r"\bbfloat16_(?:enabled|config) \.+ (?:enabled=)?True|"
        r"['\"]bf16['\"]: ?\{\s*['\"]enabled['\"]: ?[Tt]rue"
    ),
    "prediction_loop": re.compile(r"trainer\.py:prediction_loop .*torch\.cat\("),
}

SIGN_WORDS = (b"DeepSpeed info", b"[stage_1_and_2.py:", b"[stage3.py:", b"bf16", b"bfloat16")
"""Lines with one of them are read: those of a start, long before an error."""

_WORDS = (
    "eep",
    "stage",
    "_zero3_",
    "fsdp",
    "FSDP",
    "bf16",
    "bfloat16",
    "dtype",
    "[launch.py",
    "[runner.py",
    "[engine.py",
    "--config_file",
    "_loop",
)
"""Every form has one of them."""


def signs_in(text: str) -> frozenset[Sign]:
    """The signs in a line of a log, or a frame."""
    return _searched(text) if any(word in text for word in _WORDS) else frozenset()


@lru_cache(maxsize=8_192)
def _searched(text: str) -> frozenset[Sign]:
    """Frames that ranks and errors repeat are searched once."""
    found = {sign for sign, form in _FORMS.items() if form.search(text)}
    return frozenset(found | ({"deepspeed"} if found & {"zero12", "zero3"} else set()))


def signs_of(texts: Iterable[str]) -> frozenset[Sign]:
    """The signs in several lines or frames."""
    return frozenset[Sign]().union(*map(signs_in, texts))
