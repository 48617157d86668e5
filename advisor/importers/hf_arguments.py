"""The words that tools on the Trainer share: TrainingArguments, and peft's."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from ...estimators.errors import ConfigFileError
from ..launch.script_arguments import ScriptArguments
from ..question.run import read_ds_config
from .imported_run import DeepSpeedPart, ImportedRun
from .known_keys import Keys, keys_of

OPTIMIZERS = {
    "adamw_torch": "adamw",
    "adamw_torch_fused": "adamw",
    "adamw_hf": "adamw",
    "adamw_apex_fused": "adamw",
    "adamw_anyprecision": "",
    "adamw_bnb_8bit": "adamw_8bit",
    "adamw_8bit": "adamw_8bit",
    "adamw_torch_8bit": "adamw_8bit",
    "paged_adamw": "adamw",
    "paged_adamw_32bit": "adamw",
    "paged_adamw_8bit": "adamw_8bit",
    "adafactor": "adafactor",
    "lion": "lion",
    "lion_32bit": "lion",
    "paged_lion": "lion",
    "paged_lion_32bit": "lion",
    "sgd": "sgd",
    "adagrad": "adagrad",
    "adamw": "adamw",
    "adam": "adam",
    "muon": "muon",
}
"""`optim` (transformers 5.23 training_args.py `OptimizerNames`) as this project calls it. bitsandbytes' and torchao's
8-bit AdamW have states of one size."""

HARMLESS = re.compile(
    r"(output|overwrite|logging|log|save|eval|evaluation|report|hub|push_to_hub|wandb|swanlab|trackio|mlflow|comet|adam|"
    r"lr|warmup|dataloader|preprocessing|dataset|datasets|data|train_data|eval_data|validation|test|metric|greater|"
    r"include|load_best|early_stopping|generation|num_generation|generate|predict|tokenizer|special|chat|do|debug|label"
    r"|neftune|jit|restore|resume|ignore|remove|torch_empty_cache|skip|length_column|past_index|batch_eval|tpu"
    r")(_\w+)?|learning_rate|weight_decay|max_grad_norm|num_train_epochs|num_epochs|max_steps|seed|epochs|train_file|"
    r"train_on_\w+|run_name|project|disable_tqdm|cache_dir|use_fast_tokenizer|trust_remote_code|token|use_auth_token|"
    r"hf_\w+|ddp_\w+|local_rank|tf32|per_device_eval_batch_size|per_gpu_eval_batch_size|low_cpu_mem_usage|streaming|"
    r"max_train_samples|max_eval_samples|max_samples|model_revision|config_name|group_by_length|full_determinism|"
    r"train_sampling_strategy|auto_find_batch_size_start|accelerator_config|use_cache|prediction_loss_only|lora_alpha|"
    r"enable_jit_checkpoint|no_cuda|use_cpu|use_legacy_prediction_loop|mp_parameters|lora_bias|with_tracking"
)
"""Names, and beginnings of names, of what decides neither the memory of a step nor its time."""

_FLASH = ("flash", "fa2", "fa3", "kernels-community")

_CALLED_DEEPSPEED = ("deepspeed", "deepspeed_config", "ds_config")


def with_leftovers(
    run: ImportedRun, arguments: ScriptArguments, tool: str | None, harmless: re.Pattern[str]
) -> ImportedRun:
    """The run with the options that nobody has asked for, without those that change no figure.

    tool: None for a script, whose own options nobody knows.
    """
    passed = {name for name in arguments.unread if HARMLESS.fullmatch(name) or harmless.fullmatch(name)}
    keys = Keys(uncounted=arguments.unread, unknown=()) if tool is None else keys_of(tool, arguments.unread)
    uncounted = tuple(name for name in keys.uncounted if name not in passed)
    faults = (TWO_PRECISIONS,) if tool != "axolotl" and two_precisions(arguments) else ()
    return replace(run, uncounted=uncounted, unknown=keys.unknown, faults=(*run.faults, *faults))


TWO_PRECISIONS = "the Trainer refuses bf16 and fp16 at once: it is counted as bf16"


def two_precisions(arguments: ScriptArguments) -> bool:
    """Whether both are asked for, at which TrainingArguments stop (transformers 5.23 training_args.py)."""
    return bool(arguments.flag("bf16") and arguments.flag("fp16"))


def optimizer_of(name: str | None) -> tuple[str, str, str]:
    """(the optimizer, a remark, an obstacle) for a value of `optim`; "" for what there is none of."""
    if name is None:
        return "adamw", "", ""
    known = OPTIMIZERS.get(name.lower())
    if not known:
        return "adamw", "", f"there are no figures here of the optimizer {name[:40]}: its states are not known"
    if name.startswith("paged"):
        return known, f"{name} is counted as if its states stayed on the GPU: it pages them out where memory ends", ""
    return known, "", ""


def precision_of(arguments: ScriptArguments, *, unset: str = "fp32") -> str:
    """By the flags bf16 and fp16 and accelerate's mixed_precision, else by the type that the weights are loaded in."""
    flags = {name: arguments.flag(name) for name in ("bf16", "fp16")}
    chosen = next((name for name, flag in flags.items() if flag), None)
    types = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "no": "fp32"}
    given = [arguments.text(name) for name in ("mixed_precision", "torch_dtype", "dtype")]
    named = [types.get(text, text) for text in given if text is not None]
    return chosen or next((text for text in named if text in ("bf16", "fp16", "fp32")), unset)


def attention_of(arguments: ScriptArguments, *names: str) -> str | None:
    """The kernel by the first of these options that is given; None where none is."""
    text = arguments.text(*names)
    if text is None:
        return None
    lowered = text.lower()
    return "flash" if lowered.startswith(_FLASH) else "eager" if lowered in ("eager", "disabled") else "sdpa"


def checkpointing_of(
    arguments: ScriptArguments, *, unset: bool = False
) -> tuple[bool | Literal["offload"], dict[str, Any]]:
    """(gradient checkpointing, what it says of the software)."""
    given = arguments.gradient_checkpointing
    kept = arguments.text("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs") or ""
    reentrant = re.search(r"""["']?use_reentrant["']?\s*[:=]\s*["']?true""", kept, flags=re.IGNORECASE)
    return (unset if given is None else given), ({"reentrant": True} if reentrant else {})


def deepspeed_part(arguments: ScriptArguments, folder: Path) -> DeepSpeedPart | None:
    """The configuration that `--deepspeed FILE` or JSON in its place hands over, None for none.

    Raises ConfigFileError where the file that is named is there and cannot be read.
    """
    texts = (arguments.text(name) for name in _CALLED_DEEPSPEED)
    text = next((text for text in texts if text and text.lower() not in ("true", "false")), None)
    if text is None:
        return None
    if text.lstrip().startswith("{"):
        return inline_part("deepspeed", text)
    return named_part(text, folder)


def inline_part(key: str, text: str) -> DeepSpeedPart:
    """A configuration that stands in the file itself, as JSON."""
    try:
        config = json.loads(text)
    except ValueError as problem:
        raise ConfigFileError(f"{key}: its JSON cannot be read ({problem})", fix="write one object") from problem
    return DeepSpeedPart(name=key, config=config if isinstance(config, Mapping) else None)


def named_part(name: str, folder: Path) -> DeepSpeedPart:
    """The configuration in a file that another file of this folder names."""
    path = found(name, folder)
    return DeepSpeedPart(name=name, config=None if path is None else read_ds_config(path), path=path)


def found(name: str, folder: Path) -> Path | None:
    """A file that is named, looked for from the working folder, and from the folder of the file that names it and those
    above: tools are started from the root of their own checkout. None where it is not there."""
    for place in (Path(), folder, *folder.resolve().parents[:5]):
        try:
            if (place / name).is_file():
                return place / name
        except (OSError, ValueError):
            continue
    return None


def quantization_of(bits: int, *, bitsandbytes: bool) -> tuple[dict[str, Any], str]:
    """(the method and the format that a number of bits means, a remark where they are not quite its own)."""
    if bits not in (4, 8):
        return {"method": "lora"}, f"its {bits}-bit weights are counted as 16-bit ones"
    name, said = ("nf4", "NF4") if bits == 4 else ("int8", "bitsandbytes' int8")
    remark = "" if bitsandbytes else f"its {bits}-bit weights are counted as {said} ones"
    return {"method": "qlora", "quantization": name}, remark
