"""The command line of a run: the default script that trains it, with its arguments."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...ds_configs.config_keys import CONFIG_KEYS
from ...ds_configs.read import offload_device_in, optimizer_step_in
from ...ds_configs.training_script import ATTENTION, training_arguments
from ...estimators.memory.activations.loss import loss_tiles, mlp_tiles
from ...estimators.models.families import shape_from_config
from ...estimators.models.vision_parts import frozen_pattern
from ...estimators.objectives import OBJECTIVES
from ...estimators.plan import Plan
from ...estimators.workload import TORCH_DTYPES, Workload
from ..run import Run

TRAINER = Path(__file__).with_name("trainer.py")

STEPS = 20
"""Optimizer steps of a training without a number of its own."""

CONFIG_FILE = "ds_config.json"
OUTPUT = "output"


def script_of(run: Run) -> Path:
    """The default script that trains the run.

    `objective.py`: TRL's trainers. `engine.py`: a module of the user's, and plain DeepSpeed. `trainer.py`: the others.
    """
    objective = OBJECTIVES[run.workload.objective]
    if isinstance(run.model, str) or run.workload.framework == "deepspeed":
        name = "engine.py"
    elif objective.trainer or run.workload.loss == "chunked-head":
        name = "objective.py"
    else:
        name = "trainer.py"
    return Path(__file__).with_name(name)


def command_words(run: Run, *, model: str = ".", steps: int = STEPS) -> tuple[str, ...]:
    """The command of one process of the run on random rows, in the folder of `write_folder`.

    model: a folder that `from_pretrained` loads; "." for random weights.
    """
    arguments: dict[str, Any] = {"max_steps": steps, **script_arguments(run)}
    if not isinstance(run.model, str):
        arguments |= {"model_name_or_path": model, "random_weights": model == "." or None}
    return (sys.executable, str(script_of(run)), *option_words(arguments))


def script_arguments(run: Run) -> dict[str, Any]:
    """The arguments of the run's default script, without the model, the data and the number of steps."""
    if script_of(run).name == "engine.py":
        return _engine_arguments(run) | (_adaptation(run) if isinstance(run.model, str) else model_arguments(run))
    workload = run.workload
    arguments = training_arguments(run_plan(run), workload, run.cluster, config_path=CONFIG_FILE)
    arguments.pop("parallelism_config", None)  # the scripts make it
    arguments |= matching_arguments(run.config)
    arguments |= {"output_dir": OUTPUT, "report_to": "none", "save_strategy": "no", "disable_tqdm": True}
    if workload.eval_batch is not None:
        arguments |= {"eval_strategy": "steps", "eval_steps": STEPS}
        arguments["prediction_loss_only"] = workload.eval_logits is None
    arguments |= model_arguments(run)
    if script_of(run).name == "objective.py":
        return _trl_arguments(arguments, workload, checkpoints=run.gradient_checkpointing)
    return arguments


def steps_of_generation(run: Run) -> int:
    """Optimizer steps that train on a generation; 0 without one."""
    rollouts = run.workload.rollouts
    return 0 if rollouts is None else math.ceil(1 / rollouts.per_step(run_plan(run).gradient_accumulation_steps))


def _trl_arguments(arguments: Mapping[str, Any], workload: Workload, *, checkpoints: bool) -> dict[str, Any]:
    """The arguments under the names of TRL's `ModelConfig` and of `objective.py`."""
    objective = OBJECTIVES[workload.objective]
    unknown = {"lora_in_fp32", "model_init_kwargs", "pageable_inputs"}
    if workload.rollouts is not None:
        unknown.add("max_length")
    found = {name: value for name, value in arguments.items() if name not in unknown}
    found["objective"] = workload.objective if objective.trainer else "sft"
    if objective.value_model:
        found |= {"deepspeed_config_file": CONFIG_FILE, "gradient_checkpointing": checkpoints}
    if workload.method != "full":
        found |= {"use_peft": True, "lora_dropout": workload.lora_dropout}  # of 0.05 by default
        found["use_dora"] = found.pop("lora_dora", None)
    if workload.rollouts is not None:
        found["prompt_length"] = workload.seq_len - workload.completion_len
    return found


def _engine_arguments(run: Run) -> dict[str, Any]:
    workload, arguments = run.workload, dict[str, Any](deepspeed_config=CONFIG_FILE, max_length=run.workload.seq_len)
    flags = {
        "gradient_checkpointing": run.gradient_checkpointing,
        "cpu_checkpointing": run.cpu_checkpointing,
        "use_liger_kernel": workload.loss == "fused" or workload.kernels == "liger",
    }
    arguments |= {name: () for name, given in flags.items() if given}
    if flags["use_liger_kernel"] and workload.loss != "fused":
        arguments["liger_kernel_config"] = {"fused_linear_cross_entropy": False}
    if not run.config.get("optimizer"):
        step = optimizer_step_in(run.config, workload)
        arguments["adam"] = step if step != "auto" else None
    if isinstance(run.model, str):
        arguments["module"] = run.model
        if run.inputs:
            arguments["input_shape"] = "+".join(",".join(map(str, each.shape)) or "scalar" for each in run.inputs)
            arguments["input_dtype"] = "+".join(each.dtype for each in run.inputs)
    return arguments | {"eval_batch_size": workload.eval_batch}


def model_arguments(run: Run) -> dict[str, Any]:
    """The arguments that describe the model and its adapters, which are not TrainingArguments."""
    workload, plan = run.workload, run_plan(run)
    arguments: dict[str, Any] = {"max_length": workload.seq_len, "dtype": TORCH_DTYPES[workload.precision]}
    if OBJECTIVES[workload.objective].labels is not None and not OBJECTIVES[workload.objective].trainer:
        arguments["objective"] = workload.objective
    if workload.attention in ATTENTION and workload.attention != "sdpa":  # the default of models that support it
        arguments["attn_implementation"] = ATTENTION[workload.attention]
    arguments |= _adaptation(run)
    if plan.sequence_parallel_size > 1:
        arguments["sequence_parallel_size"] = plan.sequence_parallel_size
    if workload.loss == "chunked-softmax":
        arguments["chunked_softmax"] = True
    if plan.cpu_checkpointing and not workload.software.pinned_inputs:
        arguments["pageable_inputs"] = True
    return {name: value for name, value in (arguments | _tiles(run, plan)).items() if value is not None}


def _adaptation(run: Run) -> dict[str, Any]:
    """Adapters and frozen parts."""
    workload, arguments = run.workload, dict[str, Any]()
    if workload.freeze:
        arguments["freeze"] = frozen_pattern(workload.freeze)
    if workload.method != "full":
        in_fp32 = workload.software.fp32_adapters or workload.method == "qlora"
        arguments |= {
            "lora_r": workload.lora_rank,
            "lora_alpha": workload.lora_alpha,
            "lora_dropout": workload.lora_dropout or None,
            "lora_dora": workload.dora or None,
            "lora_target_modules": list(workload.lora_targets or ("all-linear",)),
            "lora_modules_to_save": list(workload.modules_to_save) or None,
            # ZeRO-3 wants one type for all trained tensors (`ds_configs.training_script`).
            "lora_in_fp32": (in_fp32 and not workload.modules_to_save) or None,
            "load_in_4bit": workload.method == "qlora" or None,
        }
    return arguments


def _tiles(run: Run, plan: Plan) -> dict[str, int]:
    workload = run.workload.rank_share(plan.sequence_parallel_size)
    if run.description is None or (workload.mlp == "whole" and workload.loss != "tiled"):
        return {}
    shape = run.shape or shape_from_config(run.description, name="")
    tiles = {"mlp_tiles": mlp_tiles(shape, workload)} if workload.mlp == "tiled" else {}
    if workload.loss == "tiled":
        tiles["loss_tiles"] = loss_tiles(shape, workload, plan.micro_batch_size)
    return tiles


def run_plan(run: Run) -> Plan:
    """The fields of the run's plan that scripts need, also of a model without closed form. A batch size of None is
    that of the configuration, by DeepSpeed's rules."""
    zero = run.config.get("zero_optimization") or {}
    accumulation = _number(run.config, "gradient_accumulation_steps", run.gradient_accumulation_steps)
    micro = _number(run.config, "train_micro_batch_size_per_gpu", run.micro_batch_size)
    total, replicas = run.config.get("train_batch_size"), run.cluster.world_size // run.ranks_per_sample
    if isinstance(total, int) and micro is None:
        micro = total // (accumulation or 1) // replicas
    elif isinstance(total, int) and accumulation is None and micro:
        accumulation = total // micro // replicas
    stage = zero.get("stage", 0)
    return Plan(
        zero_stage=stage if stage in (0, 1, 2, 3) else 0,
        micro_batch_size=max(1, micro or 1),
        gradient_accumulation_steps=max(1, accumulation or 1),
        gradient_checkpointing=run.gradient_checkpointing,
        cpu_checkpointing=run.cpu_checkpointing,
        sequence_parallel_size=run.sequence_parallel_size,
        offload_optimizer=offload_device_in(run.config),
    )


def _number(config: Mapping[str, Any], key: str, requested: int | None) -> int | None:
    value = config.get(key, "auto")
    return int(value) if isinstance(value, int | float) else requested


def matching_arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """The TrainingArguments that must equal numbers of the configuration (`ConfigKey.argument`)."""
    found: dict[str, Any] = {}
    for path, known in CONFIG_KEYS.items():
        value: Any = config
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        if known.argument and isinstance(value, int | float):
            # DeepSpeed takes 8.0 as a number of samples, and the Trainer's arguments 8 alone.
            found[known.argument] = int(value) if float(value).is_integer() else value
    return found


def option_words(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Arguments as words of a command line: objects become JSON, None is left out, () is a name without a value."""
    words: list[str] = []
    for name, value in values.items():
        if value is not None:
            words += [f"--{name}", *map(_word, value if isinstance(value, list | tuple) else [value])]
    return tuple(words)


def _word(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict | bool) else str(value)
