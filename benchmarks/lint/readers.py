"""How a configuration gets to the engine: the installed DeepSpeed's, transformers' and accelerate's own code, called in
the order in which DeepSpeed and the Trainer call it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

_DEFAULTS = {
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 1,
    "max_grad_norm": 1.0,
    "learning_rate": 1e-5,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "weight_decay": 0.0,
    "save_on_each_node": False,
    "fp16_full_eval": False,
    "bf16_full_eval": False,
}
"""What the Trainer fills `auto` with: fields of TrainingArguments."""

_SAID = {
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
}


def read(config: Any, framework: str) -> dict[str, Any]:
    """The settings; a text is read as DeepSpeed reads a file (`DeepSpeedConfig.__init__`), or as transformers does
    (`HfDeepSpeedConfig.__init__`)."""
    if not isinstance(config, str):
        return dict(config)
    if framework == "hf":
        return dict(json.loads(config))
    import hjson
    from deepspeed.runtime.config_utils import dict_raise_error_on_duplicate_keys

    return dict(hjson.loads(config, object_pairs_hook=dict_raise_error_on_duplicate_keys))


def first_tuned(config: dict[str, Any]) -> dict[str, Any]:
    """The first configuration that DeepSpeed's autotuner would try, where a file asks for it: it takes lists in
    zero_optimization as choices, and writes that block where none stands (`Autotuner.tune_space`)."""
    from deepspeed.autotuning.utils import get_first_config

    if (config.get("autotuning") or {}).get("enabled") is not True:
        return config
    return {**config, "zero_optimization": get_first_config(config.get("zero_optimization")) or {"stage": 0}}


def checked_by_deepspeed(config: dict[str, Any], world_size: int) -> None:
    """Raise what `DeepSpeedConfig` raises for this many ranks. The dry run fills in a batch size where none stands."""
    from deepspeed.runtime import config as reader

    asked = reader.dist.get_rank, reader.dist.get_world_size
    reader.dist.get_rank, reader.dist.get_world_size = (lambda *_: 0), (lambda *_: world_size)
    try:
        reader.DeepSpeedConfig(config)
    finally:
        reader.dist.get_rank, reader.dist.get_world_size = asked


def filled_by_trainer(config: dict[str, Any], world_size: int, hidden_size: int) -> dict[str, Any]:
    """The configuration as a Trainer hands it to DeepSpeed whose TrainingArguments agree with the file's numbers.

    In its order: `TrainingArguments.__post_init__`, `deepspeed_init`, `Accelerator._prepare_deepspeed`. What
    TrainingArguments contradicts is not asked here, because that depends on them.
    """
    from accelerate.utils import DeepSpeedPlugin
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    half, scheduler = _precision(config), (config.get("scheduler") or {}).get("params") or {}
    steps = scheduler.get("total_num_steps", "auto")
    warmup = scheduler.get("warmup_num_steps", "auto")
    stated = {name: config[key] for key, name in _SAID.items() if config.get(key, "auto") != "auto"}
    arguments = SimpleNamespace(
        **_DEFAULTS | stated,
        world_size=world_size,
        fp16=half == "fp16",
        bf16=half == "bf16",
        get_warmup_steps=lambda _steps: 1 if warmup == "auto" else warmup,
    )
    trainers: Any = HfTrainerDeepSpeedConfig(config)  # type: ignore[no-untyped-call]
    trainers.trainer_config_process(arguments)
    plugin = DeepSpeedPlugin(hf_ds_config=trainers)
    plugin.set_mixed_precision(half)
    plugin.set_deepspeed_weakref()
    trainers.mismatches.clear()
    model = SimpleNamespace(config=SimpleNamespace(hidden_size=hidden_size))
    trainers.trainer_config_finalize(arguments, model, 1000 if steps == "auto" else steps)
    micro = plugin.get_value("train_micro_batch_size_per_gpu")
    plugin.fill_match("gradient_accumulation_steps", must_match=False, gradient_accumulation_steps=1)
    given = {
        "gradient_clipping": 1.0,
        "zero_optimization.stage3_gather_16bit_weights_on_model_save": False,
        "zero_optimization.reduce_bucket_size": hidden_size**2,
        "zero_optimization.stage3_prefetch_bucket_size": int(0.9 * hidden_size**2),
        "zero_optimization.stage3_param_persistence_threshold": 10 * hidden_size,
    }
    if micro is not None:
        given["train_micro_batch_size_per_gpu"] = micro
        given["train_batch_size"] = micro * plugin.get_value("gradient_accumulation_steps") * world_size
    plugin.deepspeed_config_process(must_match=False, **given)
    return {name: value for name, value in plugin.deepspeed_config.items() if value != float("inf")}


def _precision(config: dict[str, Any]) -> str:
    """`--bf16`, `--fp16` or neither, whichever the file asks for or leaves to them."""
    asked = {
        name: str((config.get(name) or {}).get("enabled", "")).lower() if isinstance(config.get(name), dict) else ""
        for name in ("bf16", "fp16")
    }
    for wanted in ("true", "auto"):
        for name, stated in asked.items():
            if stated == wanted:
                return name
    return "no"
