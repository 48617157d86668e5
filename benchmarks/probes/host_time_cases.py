"""Host time of the real engine: cases, their narrow models, and their measurement in a subprocess of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ds_advise.estimators.errors import DsAdviseError
from ds_advise.estimators.plan import Offload
from ds_advise.probes.scratch import scratch

Checkpointing = Literal["none", "non-reentrant", "reentrant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTimeCase:
    """One model's structure under one way of training it, in JSON's types."""

    model: Mapping[str, Any]
    """A transformers `config.json`, or its `model_type` alone; its widths are replaced (`narrow`)."""
    layers: int
    zero_stage: Literal[0, 1, 2, 3]
    offload_optimizer: Offload = "none"
    offload_param: Offload = "none"
    lora_targets: tuple[str, ...] | None = None
    """Ends of module names, ("all-linear",) for every linear layer; None: all parameters are trained."""
    checkpointing: Checkpointing = "none"
    accumulation: int = 2
    """Micro batches of a step, at least 2; the last one may reduce gradients that the others only sum."""
    width: int = 16
    """Hidden size. Wide enough for two heads and narrow enough that arithmetic takes no time."""
    world_size: int = 8
    """Ranks that are pretended."""
    reduce_bucket: int | None = None
    """Elements of a bucket of gradients; None: the square of the width, as transformers fills `auto`."""
    gathers: bool = True
    """Stage 3 gathers the weights of linear layers; False: everything is small enough to stay on every rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCounts:
    """What the host does in one pass, counted by a dispatch mode in a run of its own."""

    kernels: int = 0
    """Dispatched operations that would launch a kernel."""
    views: int = 0
    """Dispatched operations that only describe a tensor anew."""
    hook_kernels: int = 0
    """The same inside DeepSpeed's hooks around modules and gradients; not in `kernels`."""
    hook_views: int = 0
    calls: int = 0
    """Calls of an `nn.Module`; stage 3 hooks each of them."""
    gathered: int = 0
    """Parameters that stage 3 gathers."""
    gathers: int = 0
    """Collectives that gather them."""
    reduced: int = 0
    """Gradients that a hook of DeepSpeed takes."""
    buckets: int = 0
    """Buckets of gradients that are reduced."""


PHASES = ("forward", "recompute", "backward", "last backward", "step")
"""Passes that are counted apart; the backward pass of a step's last micro batch may reduce gradients that the others
keep, and what is recomputed within a backward pass is counted there only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTime:
    """Host seconds of one micro batch, and of the optimizer's step; medians over the measured steps."""

    forward_s: float
    backward_s: float
    """Of a micro batch that is not the last of its step, what it recomputes included."""
    last_backward_s: float
    step_s: float
    """Of `engine.step()` after the last micro batch."""
    counts: Mapping[str, HostCounts]
    """By phase (`PHASES`)."""
    parameters: int
    """Trained tensors."""
    score_s: float
    """The core's single-thread score around the measurement (`score.py`), to which all seconds belong."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> HostTime:
        counts = {phase: HostCounts(**found) for phase, found in values["counts"].items()}
        return cls(**{**values, "counts": counts})


_HEADS = 2

_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "word_embed_proj_dim")
_INNER = ("intermediate_size", "ffn_dim", "n_inner", "d_ff", "moe_intermediate_size", "ffn_hidden_size")
_HEAD_COUNTS = ("num_attention_heads", "n_head", "num_key_value_heads", "num_kv_heads", "n_heads", "num_heads")
_EXPERTS = {"num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2}


def narrow(values: Mapping[str, Any], *, layers: int, width: int) -> dict[str, Any]:
    """The configuration with `layers` layers of `width`, two heads and a vocabulary of `2 width`.

    Widths of fields that the configuration does not have are left alone; so is whatever decides which modules and
    operations a layer has (biases, norms, windows, rotary embedding), but for the number of experts.
    """
    found = dict(values)

    def put(names: tuple[str, ...], value: int) -> None:
        found.update({name: value for name in names if found.get(name) is not None})

    put(_LAYERS, layers)
    put(_HIDDEN, width)
    put(_INNER, 2 * width)
    put(_HEAD_COUNTS, _HEADS)
    put(("head_dim", "d_kv", "query_pre_attn_scalar"), width // _HEADS)
    put(("vocab_size",), 2 * width)
    found.update({name: value for name, value in _EXPERTS.items() if found.get(name)})
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        if isinstance(found.get(name), int):
            found[name] = 1
    for name in ("layer_types", "mlp_layer_types"):
        if found.get(name):
            found[name] = (list(found[name]) * layers)[:layers]
    return found


def defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with the defaults of its `model_type` for what it leaves out, as transformers fills them in."""
    from transformers import CONFIG_MAPPING

    given = dict(values)
    kind = given.pop("model_type")
    return {**CONFIG_MAPPING[kind](**given).to_dict(), "model_type": kind}


class HostTimeError(DsAdviseError):
    """A case could not be run; the message is torch's, transformers' or DeepSpeed's."""


def host_times(cases: Sequence[HostTimeCase], *, steps: int = 7, timeout_s: float = 1200.0) -> list[HostTime]:
    """Host seconds of a micro batch's passes under the installed DeepSpeed's real engine.

    One process pretends to be rank 0 of `world_size`: collectives return at once (torch's fake process group), and
    widths are too small for arithmetic to take time, so what is left is Python, dispatch, autograd and DeepSpeed's
    hooks. Seconds are those in which the process had a core, so other programs on the machine change little.

    Not covered: what CUDA adds (launches, streams, events, NCCL's enqueue); the input pipeline and the Trainer's own
    bookkeeping; NVMe.

    Raises HostTimeError with the original message where a case cannot be run.
    """
    with scratch("host_time") as folder:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "TRANSFORMERS_VERBOSITY": "error"}
        process = subprocess.run(
            [sys.executable, "-m", f"{__package__}.host_time_worker", str(folder)],
            cwd=Path(__file__).parents[2],
            input=json.dumps([[asdict(case) for case in cases], steps]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=timeout_s,
            env=environment,
            check=False,
        )
        return [_read(folder, index, process.stderr) for index in range(len(cases))]


def _read(folder: Path, index: int, printed: str) -> HostTime:
    file = folder / f"answer-{index}.json"
    answer = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"error": printed[-500:]}
    if "error" in answer:
        raise HostTimeError(answer["error"], why=answer.get("traceback", "")[-1500:])
    return HostTime.from_json(answer)
