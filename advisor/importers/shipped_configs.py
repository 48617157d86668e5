"""DeepSpeed configurations that tools ship, for files that name one where the tool's checkout is absent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

_ON_CPU = {"device": "cpu", "pin_memory": True}
_STAGE_3 = {
    "overlap_comm": False,
    "sub_group_size": 1e9,
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto",
    "stage3_max_live_parameters": 1e9,
    "stage3_max_reuse_distance": 1e9,
    "stage3_gather_16bit_weights_on_model_save": True,
}
_STAGE_3_OFFLOAD = {"stage": 3, "offload_optimizer": _ON_CPU, "offload_param": _ON_CPU, **_STAGE_3}


def _buckets(elements: float) -> dict[str, Any]:
    return {"overlap_comm": False, "allgather_bucket_size": elements, "reduce_bucket_size": elements}


_OF_MS_SWIFT = _buckets(2e8)
_MS_SWIFT: Mapping[str, Mapping[str, Any]] = {
    "zero0": {"stage": 0, **_OF_MS_SWIFT},
    "zero1": {"stage": 1, **_OF_MS_SWIFT},
    "zero2": {"stage": 2, **_OF_MS_SWIFT},
    "zero2_offload": {"stage": 2, "offload_optimizer": _ON_CPU, **_OF_MS_SWIFT},
    "zero3": {"stage": 3, **_STAGE_3},
    "zero3_offload": _STAGE_3_OFFLOAD,
}
"""`zero_optimization` by the names that ms-swift knows (3602360 swift/config/*.json), reduced to the keys that decide
memory and speed."""

_OF_LLAMA_FACTORY = {**_buckets(5e8), "round_robin_gradients": True}
_LLAMA_FACTORY: Mapping[str, Mapping[str, Any]] = {
    "ds_z0_config.json": {"stage": 0, **_OF_LLAMA_FACTORY},
    "ds_z2_config.json": {"stage": 2, **_OF_LLAMA_FACTORY},
    "ds_z2_offload_config.json": {"stage": 2, "offload_optimizer": _ON_CPU, **_OF_LLAMA_FACTORY},
    "ds_z3_config.json": {"stage": 3, **_STAGE_3},
    "ds_z3_offload_config.json": _STAGE_3_OFFLOAD,
}
"""`zero_optimization` of LLaMA-Factory's examples (ff6d4d1 examples/deepspeed/*.json), without keys at DeepSpeed's
default. Older versions of stage 3 have `overlap_comm: true`."""


def ms_swift_config(name: str) -> dict[str, Any] | None:
    """The configuration that ms-swift ships under this name; None if it has none."""
    return _config(_MS_SWIFT[name]) if name in _MS_SWIFT else None


def llama_factory_config(path: str) -> dict[str, Any] | None:
    """The configuration at this path in LLaMA-Factory's checkout; None if it has none there."""
    *folders, name = PurePosixPath(path).parts or ("",)
    if folders[-2:] != ["examples", "deepspeed"] or name not in _LLAMA_FACTORY:
        return None
    return {**_config(_LLAMA_FACTORY[name]), "zero_allow_untested_optimizer": True}


def _config(zero: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration, which leaves batch, clipping and precision to the tool."""
    batch = ("gradient_accumulation_steps", "gradient_clipping", "train_batch_size", "train_micro_batch_size_per_gpu")
    config: dict[str, Any] = dict.fromkeys(batch, "auto")
    config |= {precision: {"enabled": "auto"} for precision in ("bf16", "fp16")}
    return config | {"zero_optimization": dict(zero)}
