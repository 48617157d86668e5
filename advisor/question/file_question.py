"""The question that a configuration file answers: recorded when the file is written, read by every command on it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ... import __version__
from ...ds_configs.emit import ds_config
from ...ds_configs.files import CONFIG_NAME
from ...ds_configs.record import RECORD_KEY, changed_keys, without_record
from ...estimators.errors import ConfigFileError, DsAdviseError, WorkloadError
from ...estimators.objectives import OBJECTIVES
from ...estimators.plan import Plan
from ...estimators.rollouts import Rollouts
from ...validate.lint.config_file import read_config_file, shown_name
from ...validate.lint.document import Document
from ...validate.lint.document_reader import FIX
from .cluster import build_cluster, gpus_argument, machine_arguments, parse_cluster
from .model_source import is_user_module, load_model
from .options import OPTIONS, CpuOptions, JobOptions, MachineOptions, fill_defaults, names_in
from .question import Question
from .rollout_options import RolloutOptions
from .workload import apply_model_options, build_workload, plan_settings, trains_projector_alone

_MACHINE, _JOB = names_in(MachineOptions, CpuOptions), names_in(JobOptions)
_AMOUNTS = ("data", "samples", "tokens")

_DETECTED = ("gpus", "ram", "host", "link")
"""Options of the machine that `--gpus auto` detects."""

_NOT_RECORDED = {"offline", "global_batch", "micro_batch", "gradient_checkpointing", "sequence_parallel_size"}
"""Options that do not belong to the question, or that the plan decides."""

BATCH_OPTIONS = ("micro_batch", "accumulation", "gradient_checkpointing")
"""What the training script decides, and a DeepSpeed configuration does not or by `auto`: the arguments of
`search.open_batch.filled_batch`."""

FILLED = {"micro_batch": "train_micro_batch_size_per_gpu", "accumulation": "gradient_accumulation_steps"}
"""Options that fill the `auto` of a key."""


def record(question: Question, plan: Plan, predicted: Mapping[str, Any]) -> dict[str, Any]:
    """The block that records a question and its plan: {RECORD_KEY: ...}. Empty if the question was not asked by the
    name of a model.

    The options have the values that the answer chose: the loss, the sequence length, the precision, the completions.
    predicted: figures of the answer, for readers of the file.
    """
    if question.asked is None:
        return {}
    workload, asked, software = question.workload, question.asked, question.workload.software
    used = ("deepspeed", *(("transformers",) * workload.uses_trainer), *(("trl",) * (workload.framework == "trl")))
    options = {name: _plain(value) for name, value in asked.items() if name not in _NOT_RECORDED}
    names = ("seq_len",) * (question.model.unit == "tokens") + ("precision", "loss", "framework")
    options |= {name: getattr(workload, name) for name in names}
    if workload.rollouts is not None:
        rollouts = workload.rollouts.as_in_trl(plan.gradient_accumulation_steps)
        options |= _completions(rollouts, OBJECTIVES[workload.objective].lacks)
    is_detected = "gpus" not in asked and not question.cluster.gpu.is_cpu
    detected = {name: text for name, text in _detected(question).items() if name not in asked} if is_detected else {}
    options |= detected
    settings = {each.name: getattr(plan, each.name) for each in fields(plan)}
    defaults = {each.name: each.default for each in fields(plan)}
    return {
        RECORD_KEY: {
            "versions": {"ds_advise": __version__}
            | {name: ".".join(map(str, getattr(software, name))) for name in used},
            "model": asked["model"],
            "options": {name: options[name] for name in OPTIONS if name in options},
            **({"detected": [*detected]} if is_detected else {}),
            "plan": {name: value for name, value in settings.items() if value != defaults[name]},
            "predicted": dict(predicted),
        }
    }


def _completions(rollouts: Rollouts, lacks: Collection[str]) -> dict[str, Any]:
    """The options that choose these settings of the completions."""
    found: dict[str, Any] = {}
    for name in names_in(RolloutOptions, without=("reward_model", *lacks)):
        value = getattr(rollouts, name)
        if isinstance(value, bool):
            found[name] = "on" if value else "off"
        elif value and not (name.startswith("vllm_") and rollouts.rollout == "generate"):
            found[name] = value
    return found


def _detected(question: Question) -> dict[str, Any]:
    """The options that describe this machine elsewhere, where `auto` would be another one."""
    cluster, rollouts = question.cluster, question.workload.rollouts
    if rollouts is not None and rollouts.server_gpus:  # the question's cluster is without the server's GPUs
        cluster = replace(cluster, gpus_per_node=cluster.gpus_per_node + rollouts.server_gpus)
    return {name: text for name, text in machine_arguments(cluster).items() if name in _DETECTED}


def _is_here(gpus: str) -> bool:
    """Whether recorded GPUs, which were detected, are those of this machine."""
    try:
        here = gpus_argument(parse_cluster("auto"))
    except DsAdviseError:
        return False
    return here == gpus


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True, kw_only=True)
class FileQuestion:
    """A configuration file with what is known of its question: the options that the user gave, and the recorded ones
    for the others."""

    name: str
    document: Document
    config: dict[str, Any]
    """The configuration without its record."""
    model: str | None
    asked: dict[str, Any]
    """Options of a question by name, without those in `batch`. One that is not known is missing."""
    batch: dict[str, Any]
    """Those in `BATCH_OPTIONS`."""
    recorded: Mapping[str, Any] | None = None
    """The record's options; None for a file without a record."""
    plan: Plan | None = None
    """The recorded plan."""

    @property
    def options(self) -> dict[str, Any]:
        """All options that are known, and `accumulation`."""
        return self.asked | self.batch

    def samples_per_step(self, ranks: int) -> int | None:
        """The global batch of the file's plan on this number of GPUs; None without a record."""
        if self.plan is None:
            return None
        batch = {"micro_batch": self.plan.micro_batch_size, "accumulation": self.plan.gradient_accumulation_steps}
        batch |= {name: value for name, value in self.batch.items() if name in batch}
        return int(batch["micro_batch"] * batch["accumulation"] * ranks // self.plan.sequence_parallel_size)

    @cached_property
    def changes(self) -> tuple[str, ...]:
        """What differs from the configuration of the recorded plan, a phrase each. Empty if it cannot be derived."""
        if self.recorded is None or self.plan is None:
            return ()
        with suppress(DsAdviseError):
            options = fill_defaults(self.recorded)
            cluster = build_cluster(options)
            model = load_model(str(self.model), offline=True, with_image=trains_projector_alone(options))
            model = apply_model_options(model, options)
            workload = build_workload(options, model, cluster.gpu)
            written = ds_config(self.plan, model, workload, cluster, flavor=workload.framework)
            return changed_keys(written, self.config)
        return ()

    def tell(self, say: Callable[[str], None]) -> None:
        """Tell the user the recorded question, and what has changed in the file since."""
        if self.recorded is not None:
            say(f"{self.name}: {self.words}")
            if self.changes:
                say(f"{self.name} was changed: {'; '.join(self.changes)}")

    @property
    def words(self) -> str:
        """The question as the arguments of a command."""
        return question_words(self.model, self.options)


def question_words(model: object, options: Mapping[str, Any]) -> str:
    """The arguments of a command that asks about a model."""
    return shlex.join([str(model), *option_words(options)])


def option_words(options: Mapping[str, Any]) -> list[str]:
    """Options of a question as the words of a command, without those that have their default."""
    shown = list[str]()
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            shown.append(flag)
        elif value not in (False, None) and value != getattr(OPTIONS.get(name), "default", None):
            shown += [flag, _text(value)]
    return shown


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{name}={each}" for name, each in value.items())
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def read_file_question(path: Path, given: Mapping[str, Any], *, as_meant: bool = False) -> FileQuestion:
    """The question of a configuration file, `-` for standard input. as_meant: as in `read_document`, for a reader that
    lints it. Raises ConfigFileError if it cannot be read, and like `file_question`."""
    return file_question(read_config_file(path, as_meant=as_meant).document, given, name=shown_name(path))


def file_question(document: Document, given: Mapping[str, Any], *, name: str) -> FileQuestion:
    """The question of a configuration that was read from a file with this name.

    given: options of a question by name, `model` and `accumulation`, as the user gave them. They replace the recorded
        ones. An option that describes the machine replaces the whole recorded machine, an amount of training the whole
        recorded job. Another model has no recorded question.

    Raises ConfigFileError for the config.json of a model, and for a record that is not understood.
    """
    value = document.value
    if key := _key_of_model(value):
        raise ConfigFileError(f"{name} is a model's config.json, not a DeepSpeed configuration: it has {key}", fix=FIX)
    config = without_record(value)
    given, batch = split_batch(given)
    model = given.pop("model", None)
    unrecorded = FileQuestion(name=name, document=document, config=config, model=model, asked=given, batch=batch)
    if RECORD_KEY not in value:
        return unrecorded
    try:
        recorded, own_model, plan = _parsed(value[RECORD_KEY])
    except (DsAdviseError, KeyError, TypeError, ValueError) as error:
        what = error.what if isinstance(error, DsAdviseError) else "its form is unknown"
        raise ConfigFileError(
            f"{name}: the block {RECORD_KEY} is not understood: {what}",
            why="it records the question that the file answers",
            fix="remove the block, or write the file again with ds-advise",
        ) from error
    if model not in (None, own_model):
        return unrecorded
    is_elsewhere = any(each in given for each in ("gpus", "device", "ranks", "memory"))
    detected = value[RECORD_KEY].get("detected", ())
    if detected and not is_elsewhere and _is_here(recorded["gpus"]):
        recorded = {each: what for each, what in recorded.items() if each not in detected}
    replaced = {*(_MACHINE if is_elsewhere else ()), *(_JOB if any(each in given for each in _AMOUNTS) else ())}
    known = {each: what for each, what in recorded.items() if each not in replaced}
    resized = FILLED if "global_batch" in given else ()
    return FileQuestion(
        name=name,
        document=document,
        config=config,
        model=own_model,
        asked=known | given,
        batch={name: what for name, what in _of_plan(plan, config).items() if name not in resized} | batch,
        recorded=recorded,
        plan=plan,
    )


def split_batch(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the options of the question, those in `BATCH_OPTIONS`), each without those that are None."""
    given = {name: value for name, value in options.items() if value is not None}
    batch = {name: given.pop(name) for name in BATCH_OPTIONS if name in given}
    return given, batch


def recorded_files(folder: Path) -> list[Path]:
    """The configurations in a folder that record their question, under the usual name or a numbered one, the newest
    first."""
    stem = Path(CONFIG_NAME).stem
    named = (path for path in folder.glob(f"{stem}*.json") if re.fullmatch(rf"{stem}(-\d+)?", path.stem))
    return sorted((path for path in named if records_question(path)), key=_written_at, reverse=True)


def _written_at(path: Path) -> int:
    return path.stat().st_mtime_ns


def is_ds_config(path: Path) -> bool:
    """Whether a file exists that is a DeepSpeed configuration: it has one of its keys, and is not that of a model."""
    return is_of_deepspeed(_values(path))


def is_of_deepspeed(values: Mapping[str, Any]) -> bool:
    """Whether the values of a JSON file are a DeepSpeed configuration."""
    if not values or _key_of_model(values):
        return False
    from ...validate.lint import load_facts  # imported here: names of models need no facts

    return RECORD_KEY in values or any("" in load_facts().owners(key) for key in values)


def _key_of_model(values: Mapping[str, Any]) -> str:
    """The key by which a file is a model's config.json; "" for any other file."""
    return next((key for key in ("model_type", "architectures") if key in values), "")


def records_question(path: Path) -> bool:
    """Whether a file is a configuration that records its question."""
    return RECORD_KEY in _values(path)


def _values(path: Path) -> Mapping[str, Any]:
    """The values of a JSON file; empty for anything else."""
    try:
        return read_config_file(path).document.value if path.suffix == ".json" and path.is_file() else {}
    except (DsAdviseError, OSError, ValueError):
        return {}


def _of_plan(plan: Plan, config: Mapping[str, Any]) -> dict[str, Any]:
    """The options that give the script the plan's batch and checkpointing. A number in the file itself counts."""
    checkpointing = "offload" if plan.cpu_checkpointing else "on" if plan.gradient_checkpointing else "off"
    found = {
        "micro_batch": plan.micro_batch_size,
        "accumulation": plan.gradient_accumulation_steps,
        "gradient_checkpointing": checkpointing,
    }
    return {name: value for name, value in found.items() if config.get(FILLED.get(name, ""), "auto") == "auto"}


def _parsed(block: Any) -> tuple[dict[str, Any], str | None, Plan]:
    """(options, model, plan) of a record. The code of a model in the user's file is not run for a record: such a model
    must be named by the user."""
    options, model, settings = dict(block["options"]), block["model"], block["plan"]
    if not (isinstance(model, str) and isinstance(settings, Mapping)):
        raise TypeError(block)
    for name, value in options.items():
        if name not in OPTIONS or name in _NOT_RECORDED:
            raise WorkloadError(f"{name} is no recorded option", fix="remove it")
        OPTIONS[name].check(value)
    plan = Plan(**plan_settings(Plan, settings, option=f"{RECORD_KEY}.plan"))
    return options, None if is_user_module(model) else model, plan
