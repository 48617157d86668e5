"""The user's command under another plan: the words that change, the new files that it names, and the lines that the
user changes by hand where the script takes a setting from no argument.

No file of the user's is overwritten: a changed YAML is a copy beside it, and the words name the copy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...ds_configs.emit import ds_config, merge_plan_into_config
from ...ds_configs.files import config_text
from ...ds_configs.launch_commands import accelerate_variables
from ...ds_configs.read import offload_device_in
from ...ds_configs.training_script import python_source
from ...estimators.errors import ConfigFileError
from ...estimators.hardware import Cluster
from ...estimators.models.model_shape import ModelShape
from ...estimators.plan import Plan
from ...estimators.workload import Workload
from ...probes.command.observed import CommandResult, ObservedArguments
from ...probes.command.request import ForcedSettings
from ..importers.file_text import edit_json, edit_yaml, read_yaml
from ..question.run import read_ds_config

_MICRO, _STEPS, _CHECKPOINTING = "per_device_train_batch_size", "gradient_accumulation_steps", "gradient_checkpointing"
_OWN_NAMES = {
    _MICRO: r"(.*micro.*batch.*|(per_(device|gpu)_)?(train_?)?(batch_?size|bs|bsz|batch)|mbs)",
    _STEPS: r"(.*accum.*|gas)",
    _CHECKPOINTING: r".*(checkpointing|recompute).*",
    "zero_stage": r"(zero_?stage|stage|zero)",
    "offload": r".*offload.*",
}
"""Setting -> the names that scripts, other tools and launchers give it, besides the Trainer's."""
_NEGATION = r"(no|disable|without)_"

_ACCELERATE = ["use_deepspeed", "zero_stage", "offload_optimizer_device", "offload_param_device", "zero3_init_flag"]
"""Options of `accelerate launch` that a configuration file takes the place of."""
_EXCLUDED = ("gradient_accumulation_steps", "gradient_clipping", "zero_stage", "offload_optimizer_device")
_EXCLUDED += (
    "offload_param_device",
    "offload_optimizer_nvme_path",
    "offload_param_nvme_path",
    "zero3_save_16bit_model",
)
"""Keys that accelerate refuses beside a configuration file (1.15 utils/dataclasses.py `_deepspeed_config_checks`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedLine:
    """A change that the user makes by hand."""

    place: str
    """FILE:LINE of the call that decides; "" if it is not known."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedCommand:
    """A command under a plan. Paths are as the words name them, from the folder of the command."""

    words: tuple[str, ...]
    files: dict[str, str]
    """Texts of the new files by path: DeepSpeed's configuration first, then changed copies of YAML and JSON files."""
    lines: tuple[ChangedLine, ...]
    forced: ForcedSettings = field(default_factory=ForcedSettings)
    """The settings of `lines`, for a dry run of the command without them."""
    gives_config: bool = False
    """Whether the configuration stands in front of `--`, because nothing in the command names it."""


def changed_command(
    words: Sequence[str],
    folder: Path,
    found: CommandResult,
    plan: Plan,
    *,
    shape: ModelShape,
    workload: Workload,
    cluster: Cluster,
    given_config: Path | None = None,
    is_own_config: bool = True,
    destination: str = "ds_config.json",
) -> ChangedCommand:
    """The command that trains under `plan`, from what a dry run of it has observed.

    folder: the working folder of the command.
    given_config: DeepSpeed's configuration if it stands in front of `--`, because the command names none.
    is_own_config: whether its other keys are to stay.
    destination: path of the new configuration, which exists neither in `folder` nor in the words.

    Raises ConfigFileError and WorkloadError like `ds_config`.
    """
    assert found.arguments is not None, "the dry run of a command observes its arguments"
    change = _Change(list(words), folder, found)
    engine = found.observed.engines[0]
    change.set(_MICRO, engine.micro_batch_size, plan.micro_batch_size)
    change.set(_STEPS, engine.gradient_accumulation_steps, plan.gradient_accumulation_steps)
    change.set(_CHECKPOINTING, found.observed.recomputes, plan.gradient_checkpointing)
    if given_config is not None or not change.own_options(engine.zero_stage, offload_device_in(engine.config), plan):
        file, own = given_config or found.arguments.ds_config, {}
        if file and is_own_config:
            own = read_ds_config(Path(file))
        elif not found.arguments.trainer and "initialize" in found.arguments.calls:
            own = engine.config
        # else the launcher or the Trainer made it, from settings that the plan replaces
        config = _config(own, found, plan, shape, workload, cluster)
        change.name_config(config, destination, is_given=given_config is not None)
    return change.made()


def _config(
    own: Mapping[str, Any], found: CommandResult, plan: Plan, shape: ModelShape, workload: Workload, cluster: Cluster
) -> dict[str, Any]:
    """DeepSpeed's configuration of the plan, with what the script's own one has beside it."""
    assert found.training is not None and found.arguments is not None
    flavor: Any = found.training.framework
    config = merge_plan_into_config(own, ds_config(plan, shape, workload, cluster, flavor=flavor), plan)
    if flavor != "deepspeed" and not found.arguments.trainer:
        # accelerate fills the micro batch from the loader; the steps would be those of `Accelerator(...)`.
        config[_STEPS] = plan.gradient_accumulation_steps
    return config


class _Change:
    """A command while it is changed."""

    def __init__(self, words: list[str], folder: Path, found: CommandResult) -> None:
        assert found.arguments is not None
        self.words, self.folder, self.found = words, folder, found
        self.arguments: ObservedArguments = found.arguments
        self.files: dict[str, str] = {}
        self.copies: dict[str, str] = {}
        """Path of a file that the words name -> path of its changed copy."""
        self.lines: list[ChangedLine] = []
        self.trainer: dict[str, Any] = {}
        """Fields of TrainingArguments that are written in the code."""
        self.shown: dict[str, Any] = {}
        """What the user writes where the dry run takes another value."""
        self.loader_batches: dict[str, int] = {}
        self.checkpointing: bool | None = None
        self.ds_config: Mapping[str, Any] | None = None
        self.gives_config = False

    def made(self) -> ChangedCommand:
        if self.trainer:
            values = {name: self.shown.get(name, value) for name, value in self.trainer.items()}
            written = ", ".join(f"{name}={python_source(value)}" for name, value in values.items())
            self._line("TrainingArguments", f"{self.arguments.trainer_class}({written})")
        forced = ForcedSettings(
            trainer=self.trainer,
            ds_config=self.ds_config,
            loader_batches=self.loader_batches,
            checkpointing=self.checkpointing,
        )
        return ChangedCommand(
            words=tuple(self.words),
            files=self.files,
            lines=tuple(self.lines),
            forced=forced,
            gives_config=self.gives_config,
        )

    # ------------------------------------------------------------------ settings

    def set(self, setting: str, old: Any, new: Any) -> None:
        """Change a setting where the script takes it from."""
        if old == new:
            return
        for was, to, prefix in ((old, new, ""), (not old, not new, _NEGATION)):
            if prefix and not isinstance(old, bool):
                continue
            names = self._names(setting, was, prefix)
            if self._in_words(names, to) or self._in_files(names, was, to) or self._as_option(names, to):
                return
        if self.arguments.trainer and (setting != _CHECKPOINTING or self.arguments.trainer.get(setting) == old):
            self.trainer[setting] = new
        elif setting == _MICRO and "DataLoader" in self.arguments.calls:
            self._line("DataLoader", f"DataLoader(batch_size={new})")
            self.loader_batches[str(old)] = new
        elif setting == _CHECKPOINTING:
            self._line("checkpointing", _checkpointing_line(self.found, enable=new))
            self.checkpointing = new

    def own_options(self, stage: int, offload: str, plan: Plan) -> bool:
        """Change the options from which the script itself makes DeepSpeed's configuration; False if it has none."""
        flags = {flag.lstrip("-").replace("-", "_") for option in self.arguments.options for flag in option.flags}
        names = self._names("zero_stage", stage) & flags
        if not names or self.arguments.ds_config:
            return False
        if stage != plan.zero_stage:
            self._in_words(names, plan.zero_stage) or self._as_option(names, plan.zero_stage)
        if (offload != "none") != (plan.offload_optimizer != "none"):
            names = self._names("offload", offload != "none") & flags
            offloads = plan.offload_optimizer != "none"
            if not (self._in_words(names, offloads) or self._as_option(names, offloads)):
                self._line("initialize", f"offload_optimizer: {plan.offload_optimizer}")
        return True

    def _names(self, setting: str, old: Any, prefix: str = "") -> set[str]:
        """The names of a setting: the Trainer's if it decides, and those of the script's own options and keys with the
        observed value. prefix: a pattern before the names of options that switch it off."""
        own = {
            flag.lstrip("-").replace("-", "_"): option.value
            for option in self.arguments.options
            for flag in option.flags
        }
        own = {**self.arguments.fields, **own}
        pattern = re.compile(prefix + _OWN_NAMES[setting])
        names = {name for name, value in own.items() if pattern.fullmatch(name.lower()) and _equal(value, old)}
        decides = not prefix and _equal(self.arguments.trainer.get(setting, old), old)
        return names | {setting} if decides else names

    def _line(self, call: str, text: str) -> None:
        self.lines.append(ChangedLine(place=self.arguments.calls.get(call, ""), text=text))

    # ------------------------------------------------------------------ words

    def _in_words(self, names: set[str], new: Any) -> bool:
        """Set an option that was typed."""
        for index, word in enumerate(self.words):
            flag, equals, _ = word.partition("=")
            if flag.lstrip("-").replace("-", "_") not in names or not (equals or flag.startswith("-")):
                continue
            if equals:
                self.words[index] = f"{flag}={_text(new)}"
            elif self._is_switch(flag):
                self.words[index : index + 1] = [flag] * bool(new)
            elif index + 1 < len(self.words) and not self.words[index + 1].startswith("--"):
                self.words[index + 1] = _text(new)
            else:  # a bare switch of a parser of dataclasses
                self.words[index : index + 1] = [flag, _text(new)]
            return True
        return False

    def _as_option(self, names: set[str], new: Any) -> bool:
        """Add an option that the script knows."""
        for option in self.arguments.options:
            flag = max(option.flags, key=len)
            if flag.lstrip("-").replace("-", "_") in names:
                if option.is_switch and not new:
                    continue
                self.words += [flag] if option.is_switch else [flag, _text(new)]
                return True
        return False

    def _is_switch(self, flag: str) -> bool:
        return any(flag in option.flags and option.is_switch for option in self.arguments.options)

    # ------------------------------------------------------------------ files

    def _named_files(self) -> Iterator[tuple[int, str, Path]]:
        """(place, path as written, file) of the YAML and JSON files that the words name."""
        for index, word in enumerate(self.words):
            path = word.partition("=")[2] if word.startswith("-") and "=" in word else word
            file = self.folder / path
            if file.suffix in (".yaml", ".yml", ".json"):
                with suppress(OSError):
                    if path in self.files or file.is_file():
                        yield index, path, file

    def _in_files(self, names: set[str], old: Any, new: Any) -> bool:
        """Set the key in a file that the command names: one that it has, or one that the script reads from a file."""
        for index, path, file in self._named_files():
            values, text = self._read(path, file)
            key = next((name for name in names if name in values and _same(values[name], old)), None)
            if key is None and len(self.arguments.fields.keys() & values.keys()) > 1:
                key = next(iter(sorted(names & self.arguments.fields.keys())), None)
            if key is not None and self._edit(index, path, text, {key: new}):
                return True
        return False

    def _read(self, path: str, file: Path) -> tuple[dict[str, Any], str]:
        text = self.files[path] if path in self.files else file.read_text(encoding="utf-8")
        if _is_ds_config(text):
            return {}, text
        with suppress(ConfigFileError, ValueError):
            return dict(json.loads(text)) if file.suffix == ".json" else read_yaml(text, path), text
        return {}, text

    def _edit(self, index: int, path: str, text: str, changes: Mapping[str, Any]) -> bool:
        """Write the changed copy of a file, and name it in the words."""
        try:
            new_text = (edit_json if path.endswith(".json") else edit_yaml)(text, changes)
        except ConfigFileError:
            return False
        copy = path if path in self.files else _free(self.folder, path)
        self.files[copy] = new_text
        self.words[index] = self.words[index].removesuffix(path) + copy
        return True

    # ------------------------------------------------------------------ DeepSpeed's configuration

    def name_config(self, config: dict[str, Any], destination: str, *, is_given: bool) -> None:
        """Put the configuration into a new file, and name it where the command names the present one."""
        files, self.files = self.files, {destination: config_text(config)}
        self.files |= files
        names = {"deepspeed"} if self.arguments.trainer else {"deepspeed_config"}
        if self._replace_path(self.arguments.ds_config, destination) or self._for_accelerate(config, destination):
            return
        if self._as_option(names, destination):
            return
        if is_given:
            assert self.found.training is not None
            self.gives_config = self.found.training.framework == "deepspeed"
            if not self.gives_config:
                variables = accelerate_variables(destination)
                self.words[:0] = ["env", *(f"{name}={value}" for name, value in variables.items())]
        elif self.arguments.trainer:
            self.trainer["deepspeed"] = config
            self.shown["deepspeed"] = destination
        elif "DeepSpeedPlugin" in self.arguments.calls:
            self._line("DeepSpeedPlugin", f"DeepSpeedPlugin(hf_ds_config={json.dumps(destination)})")
            self.ds_config = config
        else:
            self._line("initialize", f"deepspeed.initialize(config={json.dumps(destination)})")
            self.ds_config = config

    def _replace_path(self, present: str, destination: str) -> bool:
        """Name the new file in place of the present one, in the words or in a file that they name."""
        if not present:
            return False
        is_present: Callable[[str], bool] = lambda text: _is_path(text, self.folder, present)  # noqa: E731
        for index, word in enumerate(self.words):
            flag, equals, path = word.partition("=")
            if is_present(path if equals else word):
                named = (
                    destination if not Path(path if equals else word).is_absolute() else f"{self.folder / destination}"
                )
                self.words[index] = f"{flag}={named}" if equals else named
                return True
        for index, path, file in self._named_files():
            values, text = self._read(path, file)
            for key, value in values.items():
                if isinstance(value, str) and is_present(value):
                    return self._edit(index, path, text, {key: destination})
                if isinstance(value, Mapping):
                    inner = {name: destination for name, each in value.items() if is_present(str(each))}
                    if inner:
                        return self._edit(index, path, text, {key: {**value, **inner}})
        return False

    def _for_accelerate(self, config: dict[str, Any], destination: str) -> bool:
        """Name the file to accelerate's launcher, in place of the settings from which it makes a configuration."""
        for index, path, file in self._named_files():
            values, text = self._read(path, file)
            if "distributed_type" in values:
                block = values.get("deepspeed_config") or {}
                kept = {name: value for name, value in block.items() if name not in _EXCLUDED}
                changes = {
                    "distributed_type": "DEEPSPEED",
                    "deepspeed_config": {**kept, "deepspeed_config_file": destination},
                    "mixed_precision": None,
                }
                self._enable_precision(config, destination)
                return self._edit(index, path, text, changes)
        if self.words[:2] != ["accelerate", "launch"]:
            return False
        kept_words, skips = ["accelerate", "launch"], False
        for word in self.words[2:]:
            name = word.partition("=")[0].lstrip("-")
            if skips and not word.startswith("-"):
                skips = False
                continue
            skips = (
                word.startswith("--")
                and name in (*_ACCELERATE, *_EXCLUDED)
                and "=" not in word
                and name != "use_deepspeed"
            )
            if not (word.startswith("--") and name in (*_ACCELERATE, *_EXCLUDED)):
                kept_words.append(word)
        kept_words[2:2] = ["--use_deepspeed", "--deepspeed_config_file", destination]
        self.words = kept_words
        return True

    def _enable_precision(self, config: dict[str, Any], destination: str) -> None:
        """Without `mixed_precision` accelerate fills no `auto` of a precision."""
        for name in ("bf16", "fp16"):
            if config.get(name, {}).get("enabled") == "auto":
                config[name] = {**config[name], "enabled": True}
        self.files[destination] = config_text(config)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _equal(value: Any, other: Any) -> bool:
    return type(value) is type(other) and bool(value == other)


def _same(written: Any, value: Any) -> bool:
    return bool(written == value) or str(written).lower() == _text(value)


def _is_ds_config(text: str) -> bool:
    return '"zero_optimization"' in text or '"train_micro_batch_size_per_gpu"' in text


def _is_path(text: str, folder: Path, file: str) -> bool:
    with suppress(OSError, ValueError):
        return bool(text) and (folder / text).exists() and (folder / text).samefile(file)
    return False


def _free(folder: Path, path: str) -> str:
    """A path beside `path` at which there is no file."""
    file, number = Path(path), 1
    while True:
        named = file.with_stem(f"{file.stem}_advised{'' if number == 1 else number}")
        if not (folder / named).exists():
            return str(named)
        number += 1


def _checkpointing_line(found: CommandResult, *, enable: bool) -> str:
    if not enable:
        return "leave gradient checkpointing out, or call model.gradient_checkpointing_disable()"
    if found.observed.engines[0].checkpointing and not found.observed.in_training_mode:
        return "call model.train() before the training, so that gradient checkpointing runs"
    return "model.gradient_checkpointing_enable(); model.train()"
