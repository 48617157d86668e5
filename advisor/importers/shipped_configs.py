"""Configurations of DeepSpeed and of accelerate that tools ship, for files that name one where the tool's checkout is
absent."""

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


_OF_AXOLOTL = {
    "stage": 3,
    "overlap_comm": True,
    "sub_group_size": 0,
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto",
    "stage3_max_live_parameters": 0,
    "stage3_max_reuse_distance": 0,
    "stage3_gather_16bit_weights_on_model_save": True,
}
_AXOLOTL_1 = {"stage": 1, "overlap_comm": True}
_AXOLOTL_2 = {"stage": 2, "overlap_comm": True, "offload_optimizer": {"device": "cpu"}}
_AXOLOTL: Mapping[str, Mapping[str, Any]] = {
    "zero1.json": _AXOLOTL_1,
    "zero1_torch_compile.json": _AXOLOTL_1,
    "zero2.json": _AXOLOTL_2,
    "zero2_torch_compile.json": _AXOLOTL_2,
    "zero3.json": _OF_AXOLOTL,
    "zero3_bf16.json": _OF_AXOLOTL,
    "zero3_bf16_cpuoffload_all.json": {**_OF_AXOLOTL, "offload_optimizer": _ON_CPU, "offload_param": _ON_CPU},
    "zero3_bf16_cpuoffload_params.json": {**_OF_AXOLOTL, "offload_param": _ON_CPU},
}
"""`zero_optimization` of axolotl's configurations (067b021 deepspeed_configs/*.json), without keys at DeepSpeed's
default and with its present names of keys."""

_AXOLOTL_COMPILE = {"disable": False, "backend": "inductor"}
"""`compile` of the files with torch_compile in their names, keys that DeepSpeed 0.19.8 refuses."""


_ON_8_GPUS = {"mixed_precision": "bf16", "num_processes": 8}
_NO_OFFLOAD = {"offload_optimizer_device": "none", "offload_param_device": "none"}
_TRL_DEEPSPEED: Mapping[str, Mapping[str, Any]] = {
    "zero1": {"zero_stage": 1, "gradient_accumulation_steps": 1},
    "zero2": {"zero_stage": 2, **_NO_OFFLOAD},
    "zero3": {"zero_stage": 3, **_NO_OFFLOAD, "zero3_save_16bit_model": True},
}
TRL_ACCELERATE: Mapping[str, Mapping[str, Any]] = {
    "single_gpu": {"distributed_type": "NO", "num_processes": 1, "mixed_precision": "bf16"},
    "multi_gpu": {"distributed_type": "MULTI_GPU", **_ON_8_GPUS},
    "fsdp1": {"distributed_type": "FSDP", **_ON_8_GPUS},
    "fsdp2": {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2}, **_ON_8_GPUS},
    **{
        name: {"distributed_type": "DEEPSPEED", "deepspeed_config": block, **_ON_8_GPUS}
        for name, block in _TRL_DEEPSPEED.items()
    },
}
"""accelerate's configurations that TRL ships, by the names of `--accelerate_config`, reduced to the keys that decide a
figure or a finding (TRL 1.16 trl/accelerate_configs/*.yaml)."""


def ms_swift_config(name: str) -> dict[str, Any] | None:
    """The configuration that ms-swift ships under this name; None if it has none."""
    return _config(_MS_SWIFT[name]) if name in _MS_SWIFT else None


def llama_factory_config(path: str) -> dict[str, Any] | None:
    """The configuration at this path in LLaMA-Factory's checkout; None if it has none there."""
    name = _name_below("examples/deepspeed", path)
    if name not in _LLAMA_FACTORY:
        return None
    return {**_config(_LLAMA_FACTORY[name]), "zero_allow_untested_optimizer": True}


def axolotl_config(path: str) -> dict[str, Any] | None:
    """The configuration at this path in axolotl's checkout, or as `axolotl fetch` copies it; None if it has none
    there."""
    name = _name_below("deepspeed_configs", path)
    if name not in _AXOLOTL:
        return None
    config = _config(_AXOLOTL[name])
    if "bf16" in name:  # fixed, where the others leave the precision to the tool
        config["bf16"] = {"enabled": True}
        del config["fp16"]
    if "torch_compile" in name:
        config["compile"] = _AXOLOTL_COMPILE
    if "cpuoffload" in name:
        config |= {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
    return config


def _name_below(folder: str, path: str) -> str:
    """The name of a file in this folder, wherever it lies; "" for a file elsewhere."""
    file = PurePosixPath(path)
    return file.name if f"/{file.parent}".endswith(f"/{folder}") else ""


def _config(zero: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration, which leaves batch, clipping and precision to the tool."""
    batch = ("gradient_accumulation_steps", "gradient_clipping", "train_batch_size", "train_micro_batch_size_per_gpu")
    config: dict[str, Any] = dict.fromkeys(batch, "auto")
    config |= {precision: {"enabled": "auto"} for precision in ("bf16", "fp16")}
    return config | {"zero_optimization": dict(zero)}
