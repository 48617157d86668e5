"""The arguments of the user's script, by the option names of TrainingArguments and of common training scripts."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from ...estimators.objectives import OBJECTIVES
from ...estimators.rollouts import PROMPT_LEN
from ...estimators.workload import PRECISIONS
from ..question.options import OPTIONS, names_in
from ..question.rollout_options import RolloutOptions

FP8_RESTS_IN = "bf16"
"""What accelerate trains in besides the products with `mixed_precision: fp8` (1.15 utils/dataclasses.py
`DeepSpeedPlugin.set_mixed_precision`, `FullyShardedDataParallelPlugin.set_mixed_precision`)."""

_MODEL_OPTIONS = (
    "model_name_or_path",
    "model_name",
    "model_path",
    "base_model",
    "pretrained_model_name_or_path",
    "model",
)
"""Options with the model, in common training scripts."""
_SEQ_LEN = ("max_seq_length", "max_seq_len", "max_length", "model_max_length", "block_size", "cutoff_len", "seq_len")
MICRO_BATCH = ("per_device_train_batch_size", "per_gpu_train_batch_size")
ACCUMULATION = "gradient_accumulation_steps"
_CONFIG = ("deepspeed", "deepspeed_config", "ds_config")
_TRAINING_ARGUMENTS = (
    "output_dir",
    "per_device_train_batch_size",
    ACCUMULATION,
    "num_train_epochs",
    "logging_steps",
    "save_steps",
    "learning_rate",
)
"""Arguments of TrainingArguments. A script that parses TrainingArguments nearly always has at least two of them."""

_ADAPTERS = ("use_peft_lora", "use_peft", "use_lora", "lora_enable", "enable_lora", "lora")
"""Switches for adapters in peft's and TRL's examples, LLaVA and others."""

_METHODS = ("finetuning_type", "tuner_type", "train_type", "sft_type", "tuning_type", "peft_type", "method")
"""Options with the name of the training method, in LLaMA-Factory, ms-swift and others."""

_TRUE = ("true", "1", "yes", "on")
_FALSE = ("false", "0", "no", "off")


class ScriptArguments:
    """Options in the syntax of argparse: `--name value`, `--name=value`, `--name` alone; `-` and `_` are equal."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.words = tuple(arguments)
        """The command line."""
        self._values: dict[str, str] = {}
        self._lists: dict[str, list[str]] = {}
        self._read: set[str] = set()
        current: list[str] = []
        for word, following in pairwise([*arguments, "--"]):
            if word.startswith("--"):
                name, equals, value = word[2:].partition("=")
                self._values[_key(name)] = value if equals else "" if following.startswith("--") else following
                current = self._lists[_key(name)] = [value] if equals else []
            else:
                current.append(word)

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> ScriptArguments:
        """The options of a configuration file, one per key; objects become JSON, null is left out."""
        words: list[str] = []
        for name, value in values.items():
            if value is not None:
                words += [f"--{name}", *(_word(item) for item in (value if isinstance(value, list) else [value]))]
        return cls(words)

    @property
    def by_name(self) -> dict[str, str | list[str]]:
        """Every option with its value: a list if it has several, "true" if it has none."""
        return {
            name: many if len(many := self._lists[name]) > 1 else value or "true"
            for name, value in self._values.items()
        }

    @property
    def unread(self) -> tuple[str, ...]:
        """The names of the options that have not been read."""
        return tuple(name for name in self._values if name not in self._read)

    def text(self, *names: str) -> str | None:
        """The value of the first of these names that has a value."""
        self._read.update(names)
        return next((value for name in names if (value := self._values.get(name))), None)

    def number(self, *names: str) -> int | None:
        text = self.text(*names)
        return int(text) if text is not None and text.isascii() and text.isdigit() else None

    def flag(self, name: str) -> bool | None:
        """The option as a boolean; None if it is not given."""
        self._read.add(name)
        value = self._values.get(name)
        return None if value is None else value.lower() not in _FALSE

    def switched(self, names: str) -> list[str]:
        """The names of the switches that are on. All `names`, separated by blanks, are marked as read."""
        return [name for name in names.split() if self.flag(name)]

    def texts(self, *names: str) -> list[str]:
        """All values of the first of these names that has any, separated by blanks or commas."""
        self._read.update(names)
        words = next((self._lists[name] for name in names if self._lists.get(name)), [])
        return [part for word in words for part in word.split(",") if part]

    @property
    def adapts(self) -> bool:
        """Whether the script trains adapters instead of all weights. A LoRA rank without a switch means adapters
        (FastChat)."""
        method, switches = self.text(*_METHODS), [self.flag(name) for name in _ADAPTERS]
        if method is None and all(switch is None for switch in switches):
            return bool(self.number("lora_r", "lora_rank"))
        return any(switches) or (method is not None and "lora" in method.lower())

    @property
    def lora(self) -> dict[str, Any]:
        """The LoRA options, under the names of the question's options."""
        targets, dropout = self.texts("lora_target_modules", "lora_target", "target_modules"), self.text("lora_dropout")
        saved = self.texts("lora_modules_to_save", "modules_to_save", "additional_target")
        found = {
            "modules_to_save": ",".join(saved) or None,
            "lora_rank": self.number("lora_r", "lora_rank", "lora_dim"),
            "dora": any([self.flag("use_dora"), self.flag("peft_use_dora")]) or None,
            "lora_dropout": float(dropout) if dropout and re.fullmatch(r"0?\.\d+|0|0\.0*", dropout) else None,
            "lora_targets": ",".join(targets) if targets and not {"all-linear", "all"} & set(targets) else None,
        }
        return {name: value for name, value in found.items() if value is not None}

    @property
    def gradient_checkpointing(self) -> bool | Literal["offload"] | None:
        """Whether layers are recomputed, or "offload" if their inputs are also offloaded to the host; None if not
        given."""
        names = ("activation_checkpointing", "gradient_checkpointing")
        switched = next((flag for name in names if (flag := self.flag(name)) is not None), None)
        if not switched:
            return switched
        kept = self.text(*(f"{name}_kwargs" for name in names))
        return "offload" if kept and re.search(r'"offload"\s*:\s*true', kept) else True

    @property
    def precision(self) -> str | None:
        """The precision from the flags bf16 and fp16 and accelerate's mixed_precision, else from the type of the loaded
        weights; None if not given."""
        flags = {name: self.flag(name) for name in ("bf16", "fp16")}
        types = {**PRECISIONS, "no": "fp32", "fp8": FP8_RESTS_IN}
        texts = [self.text(name) for name in ("mixed_precision", "torch_dtype", "dtype")]
        named = [types.get(text, text) for text in texts if text is not None]
        chosen = [*(name for name, flag in flags.items() if flag), *named]
        return next((text for text in chosen if text in ("bf16", "fp16", "fp32")), None)

    @property
    def loads_in_4_bits(self) -> bool:
        switches = ("use_4bit_quantization", "load_in_4bit", "use_4bit", "q_lora")
        return any(map(self.flag, switches)) or self.number("quantization_bit", "quant_bits", "bits") == 4

    @property
    def model(self) -> str | None:
        return self.text(*_MODEL_OPTIONS)

    @property
    def seq_len(self) -> int | None:
        return self.number(*_SEQ_LEN)

    @property
    def micro_batch(self) -> int | None:
        return self.number(*MICRO_BATCH)

    @property
    def accumulation(self) -> int | None:
        return self.number(ACCUMULATION)

    @property
    def output_dir(self) -> Path | None:
        text = self.text("output_dir")
        return None if text is None else Path(text)

    @property
    def checkpoints(self) -> int | None:
        """The largest number of the Trainer's checkpoints that are on the disk at once; None if it is unknown.

        Defaults of transformers 5 (`training_args.py`): every 500 steps and at the end, 3 epochs, all kept. A new one
        is saved before the oldest of `save_total_limit` is removed.
        """
        strategy, every = self.text("save_strategy") or "steps", self.text("save_steps")
        epochs = self.text("num_train_epochs") or "3"
        steps, limit = self.number("max_steps"), self.number("save_total_limit")
        saved: int | None = None
        if strategy == "no":
            saved = 0
        elif strategy == "epoch" and not steps and re.fullmatch(r"\d{1,6}(\.\d+)?", epochs):
            saved = math.ceil(float(epochs))
        elif strategy == "steps" and every is not None and re.fullmatch(r"0?\.\d+", every) and float(every):
            saved = math.ceil(1 / float(every))
        elif strategy == "steps" and steps and (every is None or int(self.number("save_steps") or 0)):
            saved = math.ceil(steps / (self.number("save_steps") or 500))
        if limit is None:
            return saved
        return limit + 1 if saved is None else min(saved, limit + 1)

    @property
    def configs(self) -> dict[str, str]:
        """The DeepSpeed configurations among the arguments, as files or JSON, by option."""
        return {name: value for name in _CONFIG if (value := self.text(name)) and value.lower() not in _TRUE}

    @property
    def are_training_arguments(self) -> bool:
        """Whether the script seems to parse TrainingArguments."""
        return sum(name in self._values for name in _TRAINING_ARGUMENTS) >= 2

    def drop(self, names: Collection[str]) -> None:
        """Remove the options of these names."""
        self.words = self.without(names)
        for name in names:
            self._values.pop(name, None)
            self._lists.pop(name, None)

    def rename(self, names: Mapping[str, str]) -> None:
        """Give options other names. names: their names -> the new ones."""
        for kept in (self._values, self._lists):
            for name, new in names.items():
                if name in kept:
                    kept[new] = kept.pop(name)  # type: ignore[assignment]

    def replace_values(self, values: Mapping[str, str]) -> tuple[str, ...]:
        """The command line with these options at the end, replacing earlier ones of the same names."""
        return (*self.without(values), *(part for name, value in values.items() for part in (f"--{name}", value)))

    def without(self, names: Collection[str]) -> tuple[str, ...]:
        """The command line without the options of these names."""
        kept: list[str] = []
        dropping = False
        for word in self.words:
            if word.startswith("--"):
                dropping = _key(word[2:].partition("=")[0]) in names
            if not dropping:
                kept.append(word)
        return tuple(kept)


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, default=str) if isinstance(value, Mapping | list) else str(value)


def _key(name: str) -> str:
    return name.replace("-", "_")


def rollout_options(arguments: ScriptArguments, objective: str | None) -> dict[str, Any]:
    """Rollout settings from the arguments; empty for an objective without completions. The sequence length is
    `max_prompt_length` (an argument of TRL until 0.27), or the assumed prompt length, plus the completion length. The
    arguments do not give the GPUs of a server; one is assumed."""
    spec = OBJECTIVES.get(objective or "")  # type: ignore[call-overload]
    if spec is None or spec.rollouts is None:
        return {}
    found: dict[str, Any] = {"rollout": "generate"}
    for name in names_in(RolloutOptions):  # they have the names of TRL's arguments
        kind = OPTIONS[name].kind
        if kind in ("count", "number") and (text := arguments.text(name)) is not None:
            with suppress(ValueError):
                found[name] = int(text) if kind == "count" else float(text)
    if arguments.flag("use_vllm"):
        found["rollout"] = f"vllm-{arguments.text('vllm_mode') or 'colocate'}"
    if found["rollout"] == "vllm-server":
        found["server_gpus"] = found.pop("vllm_tensor_parallel_size", 1)  # the training's own value is for colocation
    # ms-swift's sleep_level is 0 for no sleep.
    sleeps = arguments.flag("vllm_enable_sleep_mode") or arguments.number("sleep_level")
    found["vllm_enable_sleep_mode"] = "on" if sleeps else "off"
    if arguments.flag("ds3_gather_for_generation") is False:
        found["ds3_gather_for_generation"] = "off"
    prompt = arguments.number("max_prompt_length") or PROMPT_LEN
    completion = found.get("max_completion_length") or spec.rollouts.max_completion_length
    return found | {"seq_len": prompt + completion}
