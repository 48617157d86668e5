"""The user's command under another plan: the words that change, the new files that it names, and the lines that the
user changes by hand where the script takes a setting from no argument.

No file of the user's is overwritten: a changed YAML is a copy beside it, and the words name the copy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...ds_configs.emit import ds_config, merge_plan_into_config
from ...ds_configs.files import CONFIG_NAME, config_text
from ...ds_configs.launch_commands import accelerate_variables
from ...ds_configs.read import offload_device_in
from ...ds_configs.training_script import python_source
from ...estimators.hardware import Cluster
from ...estimators.models.model_shape import ModelShape
from ...estimators.plan import Plan
from ...estimators.workload import Workload
from ...probes.command.observed import CommandResult, ObservedArguments
from ...probes.command.request import ForcedSettings
from ...probes.command.words import option_name
from ..question.run import read_ds_config
from .edited import EditedCommand

_NEWER_NAME = "activation_checkpointing"
"""The field of TrainingArguments since transformers 5.23, which takes precedence where it is set."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedLine:
    """A change that the user makes by hand."""

    place: str
    """FILE:LINE of the call that decides; "" if it is not known."""
    text: str
    after: str = ""
    """What happens in `place` before the new line; "" for a change of the call itself."""


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
    destination: str = CONFIG_NAME,
    settings: Mapping[str, Any] | None = None,
) -> ChangedCommand:
    """The command that trains under `plan`, from what a dry run of it has observed.

    folder: the working folder of the command.
    given_config: DeepSpeed's configuration if it stands in front of `--`, because the command names none.
    is_own_config: whether its other keys are to stay.
    destination: path of the new configuration, which exists neither in `folder` nor in the words.
    settings: further fields of TrainingArguments to change.

    Raises ConfigFileError and WorkloadError like `ds_config`.
    """
    change = _Change(words, folder, found)
    change.ranks(cluster)
    engine = found.observed.engines[0]
    change.setting(_MICRO, engine.micro_batch_size, plan.micro_batch_size)
    change.setting(_STEPS, engine.gradient_accumulation_steps, plan.gradient_accumulation_steps)
    change.setting(_CHECKPOINTING, found.observed.recomputes, plan.gradient_checkpointing)
    for name, value in (settings or {}).items():
        change.setting(name, found.arguments.trainer.get(name), value)
    if given_config is not None or not change.own_options(engine.zero_stage, offload_device_in(engine.config), plan):
        file, own = given_config or found.arguments.ds_config, {}
        if file and is_own_config:
            own = read_ds_config(Path(file))
        elif not found.arguments.trainer and "initialize" in found.arguments.calls:
            own = engine.config
        # else the launcher or the Trainer made it, from settings that the plan replaces
        config = _config(own, found, plan, shape, workload, cluster)
        change.name_config(config, destination, workload.precision, is_given=given_config is not None)
    return change.made(destination)


def _config(
    own: Mapping[str, Any], found: CommandResult, plan: Plan, shape: ModelShape, workload: Workload, cluster: Cluster
) -> dict[str, Any]:
    """DeepSpeed's configuration of the plan, with what the script's own one has beside it."""
    flavor: Any = found.training.framework
    config = merge_plan_into_config(own, ds_config(plan, shape, workload, cluster, flavor=flavor), plan)
    if flavor != "deepspeed" and not found.arguments.trainer:
        # accelerate fills the micro batch from the loader; the steps would be those of `Accelerator(...)`.
        config[_STEPS] = plan.gradient_accumulation_steps
        config = _with_precision(config, workload.precision)
    return config


class _Change:
    """A command while it is changed."""

    def __init__(self, words: Sequence[str], folder: Path, found: CommandResult) -> None:
        self._found = found
        self._arguments: ObservedArguments = found.arguments
        self._command = EditedCommand(words, folder, found.arguments.options)
        self._lines: list[ChangedLine] = []
        self._trainer: dict[str, Any] = {}
        """Fields of TrainingArguments that are written in the code."""
        self._loader_batches: dict[str, int] = {}
        self._checkpointing: bool | None = None
        self._ds_config: Mapping[str, Any] | None = None
        self._gives_config = False

    def made(self, destination: str) -> ChangedCommand:
        if self._trainer:
            values = self._trainer | ({"deepspeed": destination} if "deepspeed" in self._trainer else {})
            written = ", ".join(f"{name}={python_source(value)}" for name, value in values.items())
            self._line("TrainingArguments", f"{self._arguments.trainer_class}({written})")
        return ChangedCommand(
            words=tuple(self._command.words),
            files=self._command.files,
            lines=tuple(self._lines),
            forced=ForcedSettings(
                trainer=self._trainer,
                ds_config=self._ds_config,
                loader_batches=self._loader_batches,
                checkpointing=self._checkpointing,
            ),
            gives_config=self._gives_config,
        )

    def setting(self, setting: str, old: Any, new: Any) -> None:
        """Change a setting where the script takes it from."""
        if old == new:
            return
        negated = [(not old, not new, _NEGATION)] if isinstance(old, bool) else []
        for was, to, prefix in ((old, new, ""), *negated):
            names = self._names(setting, was, prefix)
            if self._set_option(names, to, was):
                return
        trainer = self._arguments.trainer
        field = _NEWER_NAME if setting == _CHECKPOINTING and trainer.get(_NEWER_NAME) is not None else setting
        if trainer and (setting != _CHECKPOINTING or bool(trainer.get(field)) == old):  # None if it is not given
            self._trainer[field] = new
        elif setting == _MICRO and "DataLoader" in self._arguments.calls:
            self._line("DataLoader", f"DataLoader(batch_size={new})")
            self._loader_batches[str(old)] = new
        elif setting == _CHECKPOINTING:
            self._line_of_checkpointing(enable=new)
            self._checkpointing = new

    def ranks(self, cluster: Cluster) -> None:
        """Start the ranks of the cluster where a file has another number; the words have it (`replace_counts`)."""
        self._command.set_ranks(cluster.nodes, cluster.gpus_per_node)

    def own_options(self, stage: int, offload: str, plan: Plan) -> bool:
        """Change the options from which the script itself makes DeepSpeed's configuration; False if it has none."""
        own = {option_name(flag) for option in self._arguments.options for flag in option.flags}
        names = self._names("zero_stage", stage) & own
        if not names or self._arguments.ds_config:
            return False
        if stage != plan.zero_stage:
            self._set_option(names, plan.zero_stage, stage)
        was, offloads = offload != "none", plan.offload_optimizer != "none"
        if was != offloads and not self._set_option(self._names("offload", was) & own, offloads, was):
            self._line("initialize", f"offload_optimizer: {plan.offload_optimizer}")
        return True

    def name_config(self, config: dict[str, Any], destination: str, precision: str, *, is_given: bool) -> None:
        """Put the configuration into a new file, and name it where the command names the present one."""
        command, arguments = self._command, self._arguments
        command.files = {destination: config_text(config), **command.files}
        if arguments.ds_config and command.replace_path(arguments.ds_config, destination):
            return
        if command.name_to_accelerate(destination, stage=config["zero_optimization"]["stage"]):
            command.files[destination] = config_text(_with_precision(config, precision))
        elif command.add_option({"deepspeed"} if arguments.trainer else {"deepspeed_config"}, destination):
            pass
        elif is_given:
            self._gives_config = self._found.training.framework == "deepspeed"
            if not self._gives_config:
                variables = accelerate_variables(destination)
                command.words[:0] = ["env", *(f"{name}={value}" for name, value in variables.items())]
        elif arguments.trainer:
            self._trainer["deepspeed"] = config
        else:
            call = "DeepSpeedPlugin" if "DeepSpeedPlugin" in arguments.calls else "initialize"
            written = {"DeepSpeedPlugin": "DeepSpeedPlugin(hf_ds_config={})"}.get(
                call, "deepspeed.initialize(config={})"
            )
            self._line(call, written.format(json.dumps(destination)))
            self._ds_config = config

    def _set_option(self, names: set[str], new: Any, old: Any) -> bool:
        command = self._command
        return (
            command.set_typed(names, new)
            or command.set_key(names, old, new, self._arguments.fields)
            or command.add_option(names, new)
        )

    def _names(self, setting: str, old: Any, prefix: str = "") -> set[str]:
        """The names of a setting: the Trainer's if it decides, and those of the script's own options and keys with the
        observed value. prefix: a pattern before the names of options that switch it off."""
        own = {option_name(flag): option.value for option in self._arguments.options for flag in option.flags}
        pattern = re.compile(prefix + _OWN_NAMES.get(setting, setting))
        known = {**self._arguments.fields, **own}
        names = {name for name, value in known.items() if pattern.fullmatch(name.lower()) and _equal(value, old)}
        decides = not prefix and _equal(self._arguments.trainer.get(setting, old), old)
        return names | {setting} if decides else names

    def _line_of_checkpointing(self, *, enable: bool) -> None:
        observed, calls = self._found.observed, self._arguments.calls
        if not enable:
            self._line(
                "checkpointing", "leave gradient checkpointing out, or call model.gradient_checkpointing_disable()"
            )
        elif observed.engines[0].checkpointing and not observed.in_training_mode:
            text = "call model.train() before the training, so that gradient checkpointing runs"
            self._line("checkpointing", text)
        else:
            text = "model.gradient_checkpointing_enable(); model.train()"
            self._lines.append(ChangedLine(place=calls.get("model", ""), text=text, after="the model is made"))

    def _line(self, call: str, text: str) -> None:
        self._lines.append(ChangedLine(place=self._arguments.calls.get(call, ""), text=text))


def _equal(value: Any, other: Any) -> bool:
    return type(value) is type(other) and bool(value == other)


def _with_precision(config: Mapping[str, Any], precision: str) -> dict[str, Any]:
    """The configuration with the precision in place of `auto`, which only `mixed_precision` or a Trainer fills."""
    autos = [name for name in ("bf16", "fp16") if (config.get(name) or {}).get("enabled") == "auto"]
    return {**config, **{name: {**config[name], "enabled": name == precision} for name in autos}}
