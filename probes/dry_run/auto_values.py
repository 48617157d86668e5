"""The `auto` values of a ds_config, filled as the Hugging Face Trainer fills them.

Source: transformers `integrations/deepspeed.py`, `HfTrainerDeepSpeedConfig.trainer_config_process` and
`trainer_config_finalize`; hidden size H: reduce_bucket_size H^2, stage3_prefetch_bucket_size int(0.9 H^2),
stage3_param_persistence_threshold 10 H. The remaining values do not change memory; any valid one does.
"""

from __future__ import annotations

import copy
from typing import Any

from ..recording.request import Request


class UnfilledAutoError(ValueError):
    """An `auto` that neither the Trainer nor the question has a value for."""

    fix = "write a number there: the Trainer's own rule is for models with a hidden size, and knows some keys only"

    def __init__(self, name: str) -> None:
        super().__init__(f'nothing fills "auto" at {name}')


def filled(request: Request, hidden_size: int | None) -> dict[str, Any]:
    """The configuration with every `auto` replaced and the batch sizes set.

    Raises UnfilledAutoError where the Trainer reads the file, for an `auto` that needs a hidden size when the model has
    none, and for one that nothing fills; plain DeepSpeed gets such an `auto` as it stands.
    """
    config = copy.deepcopy(request.config)
    _set_batch(config, request)
    values: dict[str, Any] = {
        "gradient_clipping": 1.0,
        "bf16.enabled": request.workload.precision == "bf16",
        "fp16.enabled": request.workload.precision == "fp16",
        "optimizer.params.lr": 1e-5,
        "optimizer.params.betas": [0.9, 0.999],
        "optimizer.params.eps": 1e-8,
        "optimizer.params.weight_decay": 0.0,
        "scheduler.params.warmup_min_lr": 0.0,
        "scheduler.params.warmup_max_lr": 1e-5,
        "scheduler.params.warmup_num_steps": 1,
        "scheduler.params.total_num_steps": 1000,
    }
    if hidden_size is not None:
        values |= {
            "zero_optimization.reduce_bucket_size": hidden_size * hidden_size,
            "zero_optimization.stage3_prefetch_bucket_size": int(0.9 * hidden_size * hidden_size),
            "zero_optimization.stage3_param_persistence_threshold": 10 * hidden_size,
        }
    strict = request.workload.framework == "hf"
    if strict:  # as accelerate does (DeepSpeedPlugin.__post_init__)
        values |= {"steps_per_print": 10, "zero_optimization.stage3_gather_16bit_weights_on_model_save": False}
    _fill(config, "", values, strict=strict)
    enabled = any((config.get(key) or {}).get("enabled") for key in ("bf16", "fp16"))
    if not enabled and request.workload.precision != "fp32" and request.workload.precision not in config:
        config[request.workload.precision] = {
            "enabled": True
        }  # as accelerate adds the block (DeepSpeedPlugin.set_mixed_precision)
    return config


def _set_batch(config: dict[str, Any], request: Request) -> None:
    """Replace `auto` and absent batch sizes by what was asked for; DeepSpeed derives what then is missing."""
    total = config.get("train_batch_size")
    for key, wanted in (
        ("train_micro_batch_size_per_gpu", request.micro_batch_size),
        ("gradient_accumulation_steps", request.gradient_accumulation_steps),
    ):
        if config.get(key, "auto") == "auto":
            config.pop(key, None)
            if wanted is not None or not isinstance(total, int):
                config[key] = wanted or 1
    if total == "auto":
        del config["train_batch_size"]


def _fill(node: dict[str, Any], prefix: str, values: dict[str, Any], *, strict: bool) -> None:
    """strict: whoever reads the file stops at an `auto` without a value, as accelerate does. DeepSpeed may take it."""
    for key, value in node.items():
        name = prefix + key
        if isinstance(value, dict):
            _fill(value, name + ".", values, strict=strict)
        elif value == "auto":
            if name in values:
                node[key] = values[name]
            elif strict:
                raise UnfilledAutoError(name)
