"""A tool on the Hugging Face Trainer as a table of its keys, used to read and to change its options."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ...estimators.errors import ConfigFileError
from ...estimators.models.lora import LINEAR_MODULES
from ...estimators.objectives import OBJECTIVES
from ...estimators.optimizers import trainer_optimizer, trainer_optimizer_step
from ...estimators.plan import Plan
from ...estimators.workload import NEXT_TOKEN, Workload
from ...validate.lint.document_reader import read_document
from .accelerate import AccelerateFormat, changed_counts
from .imported_run import (
    TWO_CHECKPOINTINGS,
    DeepSpeedPart,
    ImportedRun,
    Value,
    fsdp_checkpoints,
    names_of,
    nearest_names,
    parse_fsdp,
    read_as_meant,
    read_fsdp,
    with_nearest,
    without_harmless,
)
from .script_arguments import ACCUMULATION, ScriptArguments, rollout_options
from .shipped_configs import TRL_ACCELERATE
from .source import Source, find_file, named_part

_TWO_PRECISIONS = "the Trainer refuses bf16 and fp16 together: bf16 is assumed"

_FSDP = ("fsdp", "fsdp_config", "fsdp_version")
_IN_DEEPSPEED = ("zero_hpz_partition_size", "deepspeed_autotp_size")
"""Options of ms-swift that it copies into the DeepSpeed configuration."""
_ONLY_IN_VERSION_1 = ("no_shard", "hybrid_shard", "hybrid_shard_zero2")
"""Values of `fsdp` that the Trainer takes with FSDP 1 alone (transformers 5.23 training_args.py
`_apply_legacy_fsdp_to_config`)."""
_PARTLY_SHARDED = frozenset(("shard_grad_op", *_ONLY_IN_VERSION_1))
"""Values of `fsdp` without full sharding."""


def deepspeed_part(arguments: ScriptArguments, folder: Path) -> DeepSpeedPart | None:
    """The configuration that `--deepspeed` names or holds as JSON; None without one.

    Raises ConfigFileError if it cannot be read.
    """
    text = next((text for text in arguments.configs.values() if text.lower() != "false"), None)
    if text is None or not text.lstrip().startswith("{"):
        return None if text is None else named_part(text, folder)
    return DeepSpeedPart(name="deepspeed", config=read_document(text.encode(), name="deepspeed").value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """A tool's keys and defaults. `details` has the rules that are not a key of one option."""

    name: str
    """The name in `--format`."""
    title: str
    """A description of such a file, with its article."""
    tool: str = ""
    """The tool's usual name."""
    matches: Callable[[Source], bool]
    """Whether the keys of a file are this tool's."""
    details: Callable[[ImportedRun, ScriptArguments, Source], None]
    """The tool's own rules, which change the run."""
    command: str = ""
    """The command that trains with a file; "" for a file that a script reads. Places: {file}, {gpus} (per node), {trl}
    (TRL's subcommand), {swift} (ms-swift's subcommand)."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of further fields of `ImportedRun`."""
    model: tuple[str, ...] = ()
    """Keys of the model; () for the names that scripts use."""
    seq_len: tuple[str, ...] = ()
    """Keys of the sequence length; () for the names that scripts use."""
    default_seq_len: int | None = None
    optimizer: str = "optim"
    attention: tuple[str, ...] = ("attn_implementation", "attn_impl")
    default_precision: str = "fp32"
    software: Mapping[str, bool | str] = field(default_factory=dict)
    liger: str = ""
    """Switches of Liger's kernels and fused loss; a change sets the first."""
    loss_keys: tuple[str, ...] = ()
    """Further keys that decide the kernel of the loss."""
    fused_loss: Callable[[Mapping[str, Any]], dict[str, Value]] | None = None
    """The keys that turn on Liger's fused loss, by the file's; None for the first of `liger`."""
    reentrant: str = ""
    """The switch of reentrant checkpointing, of a tool where it is on by default."""
    loads_fp32: bool = False
    """Whether weights are loaded in fp32 also for training in 16 bits, if no key names their type."""
    assumes_fp32: bool = False
    """Whether `loads_fp32` is an assumption about the script that reads the file."""
    micro_batch: tuple[str, ...] = ("per_device_train_batch_size",)
    """Keys of the micro batch; changes are written to the first."""
    default_micro_batch: int
    default_accumulation: int | None = 1
    disables_checkpointing: str = ""
    """The switch that disables checkpointing, of a tool that checkpoints by default."""
    checkpoints: bool = False
    """Whether the tool checkpoints activations by default."""
    offload: tuple[str, Value] | None = None
    """(key, value) of the setting that offloads the inputs of checkpointed layers to host RAM. {} in the key stands for
    the key of checkpointing. None if the tool has no such key."""
    fsdp: tuple[str, ...] = ("fsdp",)
    """Keys that turn FSDP on; one is sufficient."""
    fsdp_version: int = 2
    """Default version of FSDP: the Trainer's (transformers 5.23 training_args.py `_process_fsdp_args`; 5.0 had 1)."""
    not_modelled: Mapping[str, str] = field(default_factory=dict)
    """Features that the estimators lack -> the keys that turn them on with a value other than false, 0 or 1."""
    approximated: Mapping[str, str] = field(default_factory=dict)
    """Remarks -> the switches to which they apply."""
    deepspeed: Callable[[ScriptArguments, Path], DeepSpeedPart | None] = deepspeed_part
    completions: Callable[[ScriptArguments, Source], ScriptArguments] = lambda arguments, _: arguments
    """The options of completions, by TRL's names."""
    lists_modules: bool = False
    """Whether the tool gives peft the names of all linear modules, where a file does not name some."""
    has_own_keys: bool = False
    """Whether a file may hold options of the user's own."""
    extensions: frozenset[str] = frozenset()
    """Keys of scripts that extend the tool's; a file with one of them may hold options of the user's own."""
    other_versions: frozenset[str] = frozenset()
    """Keys that only other versions of the tool have, and that are read too."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Former names of keys, which the tool no longer has -> the present ones."""
    stops_at_unknown: str = ""
    """What happens at keys that the tool does not have, as a clause; "" for a tool that is not known to stop."""
    ignores_unknown: str = ""
    """The switch with which such a tool ignores them; "" without one in the file."""
    refuses_two_precisions: bool = True
    refuses_two_checkpointings: bool = False
    """Whether checkpointing by the Trainer beside that of FSDP is known to stop the run."""

    def read(self, source: Source) -> ImportedRun:
        """The training that a file describes. Raises ConfigFileError if the DeepSpeed configuration that it names
        cannot be read. A misspelled key at which the tool stops is read as the one that is meant, and a renamed key by
        its present name."""
        arguments = source.arguments
        run = self._read(source, arguments, {})
        if not self._has_own_keys(source):
            return run
        # Only an option that nothing reads may be a misspelled one: others are the script's.
        names = names_of(self.name, _trl_command(read_objective(arguments, str(source.path))))
        meant = nearest_names((name for name in arguments.unread if name not in names), names)
        return self._read(source, source.arguments, meant) if meant else run

    def _has_own_keys(self, source: Source) -> bool:
        return self.has_own_keys or bool(self.extensions & source.values.keys())

    def _read(self, source: Source, arguments: ScriptArguments, misspelled: Mapping[str, str]) -> ImportedRun:
        """The training that a file's options describe. misspelled: options of a file with options of the user's own ->
        the ones that are meant."""
        folder, has_own = source.path.parent, self._has_own_keys(source)
        objective = read_objective(arguments, str(source.path))
        names = names_of(self.name, _trl_command(objective))
        # What the tool does not have decides nothing else, also where another tool's option has the name.
        unknown = [each for each in arguments.by_name if each not in names | self.other_versions and not has_own]
        stops = bool(self.stops_at_unknown and not has_own and not arguments.switched(self.ignores_unknown))
        # TRL's trainers do not all have the present name of a key.
        renamed = {name: now for name, now in self.renamed.items() if name in arguments.by_name and now in names}
        near = nearest_names((name for name in unknown if name not in renamed), names) if stops else misspelled
        meant = {name: now for name, now in {**renamed, **near}.items() if now not in arguments.by_name}
        arguments.rename(meant)
        arguments.drop([name for name in unknown if name not in meant])
        part = self.deepspeed(arguments, folder)
        checkpointing = self._checkpointing(arguments)
        has_fsdp = any(arguments.flag(name) and arguments.text(name) not in ("[]", "{}") for name in self.fsdp)
        fsdp = _fsdp_settings(arguments, folder) if has_fsdp and part is None else {}
        version = arguments.text("fsdp_version") or fsdp.get("version", self.fsdp_version)
        run = ImportedRun(
            tool=self.tool,
            model=arguments.text(*self.model) if self.model else arguments.model,
            objective=objective,
            micro_batch_size=arguments.number(*self.micro_batch) or self.default_micro_batch,
            gradient_accumulation_steps=arguments.number(ACCUMULATION) or self.default_accumulation,
            gradient_checkpointing=checkpointing,
            sharding="zero" if part is not None else parse_fsdp(version) if has_fsdp else "none",
            deepspeed=part,
            leaves_loss=not {*self.liger.split(), *self.loss_keys} & arguments.by_name.keys(),
            frees_reentrant=bool(self.reentrant) and arguments.flag(self.reentrant) is None,
            **self.defaults,
        )
        run.loads_fp32 = {None: self.loads_fp32, "float32": True}.get(arguments.text("dtype", "torch_dtype"), False)
        run.assumes_fp32 = self.assumes_fp32 and arguments.text("dtype", "torch_dtype") is None
        optimizer, training = arguments.text(self.optimizer), run.training
        training.update(
            optimizer=_optimizer(run, optimizer),
            precision=arguments.precision or self.default_precision,
            seq_len=(arguments.number(*self.seq_len) if self.seq_len else arguments.seq_len) or self.default_seq_len,
            attention=_attention(arguments.text(*self.attention)),
            software={**self.software, **({"reentrant": True} if _is_reentrant(arguments) else {})} or None,
        )
        if arguments.switched(self.liger):
            training.update(kernels="liger", loss="fused")
        run.remarks.extend(text for text, keys in self.approximated.items() if arguments.switched(keys))
        # After the common keys, because a tool's own rules replace their values.
        self.details(run, arguments, source)
        if self.lists_modules and training.get("method") is not None:
            training["lora_targets"] = training.get("lora_targets") or LINEAR_MODULES
        spec = OBJECTIVES.get(run.objective)  # type: ignore[call-overload]
        if spec is not None and (training.get("framework") == "trl" or not spec.trainer):
            training["objective"] = run.objective if run.objective != NEXT_TOKEN else None  # the default
            training.update(rollout_options(self.completions(arguments, source), run.objective))
            # There Liger has kernels of layers alone (`objectives.liger_loss`).
            if training.get("loss") == "fused" and (training.get("framework") == "trl" or spec.labels is not None):
                training["loss"] = None
        elif run.objective != NEXT_TOKEN:
            run.lacks(
                f"{run.objective.upper()} training, whose step has more than one model or pass; "
                "ds-advise MODEL --objective predicts TRL's grpo, rloo and ppo"
            )
        if optimizer is not None:
            run.use_software(**{"optimizer-step": trainer_optimizer_step(optimizer)})
        if arguments.flag("tf32") and training["precision"] == "fp32":
            run.use_software(tf32=True)
        strategy = str(fsdp.get("reshard_after_forward"))
        if run.sharding == "fsdp2" and strategy in _ONLY_IN_VERSION_1:
            run.add_obstacle(f"the Trainer refuses {strategy} with FSDP2: set version to 1 in fsdp_config")
        if checkpointing and self.refuses_two_checkpointings and run.is_fsdp and fsdp_checkpoints(fsdp):
            run.faults += (TWO_CHECKPOINTINGS,)
        read_fsdp(run, fsdp)
        for what, keys in self.not_modelled.items():
            if any(arguments.text(name) not in ("1", "0.0") for name in arguments.switched(keys)):
                run.lacks(what)
        run.uncounted = without_harmless(arguments.unread)
        run.unknown = with_nearest([*unknown, *misspelled], names, renamed)
        run.renamed = {name: now for name, now in renamed.items() if name in unknown}
        read_as_meant(run, meant)
        if arguments.flag("bf16") and arguments.flag("fp16") and self.refuses_two_precisions:
            run.faults += (_TWO_PRECISIONS,)
        if run.unknown and stops:
            run.faults += (f"keys that {self.tool} does not know, {self.stops_at_unknown}: {', '.join(run.unknown)}",)
        run.training = {name: value for name, value in training.items() if value is not None}
        run.remarks = list(dict.fromkeys(run.remarks))
        return run

    def words(self, source: Source, run: ImportedRun, gpus_per_node: int) -> tuple[str, ...]:
        """The tool's command that trains with the file; () for a file that a script reads."""
        swift = "rlhf" if "rlhf_type" in source.values else "sft"
        places = {"gpus": gpus_per_node, "trl": _trl_command(run.objective), "swift": swift, "file": source.path}
        return tuple(word.format(**places) for word in self.command.split())

    def changes(
        self,
        source: Source,
        run: ImportedRun,
        plan: Plan,
        part: DeepSpeedPart | None,
        workload: Workload | None = None,
    ) -> dict[str, Value]:
        """The keys that change the run to this plan.

        part: its DeepSpeed configuration; None without one.
        workload: its training, whose loss and kind of checkpointing the file gets too; None keeps those of the run.

        Raises ConfigFileError if the DeepSpeed configuration is in accelerate's file, which this file names.
        """
        if run.accelerate_file and part is not None and run.accelerate_file not in TRL_ACCELERATE:
            raise ConfigFileError(
                f"the DeepSpeed configuration is in accelerate's {run.accelerate_file}",
                fix="pass that file to ds-advise from, with --model and --gpus",
            )
        options = source.arguments.by_name
        newer = "activation_checkpointing" in options  # transformers 5.23's name, which takes precedence
        key = "activation_checkpointing" if newer else "gradient_checkpointing"
        changed: dict[str, Value] = {}
        for name, now in run.renamed.items():
            changed |= {name: None} | ({} if now in options else {now: source.values[name]})
        if run.micro_batch_size != plan.micro_batch_size:
            changed[self.micro_batch[0]] = plan.micro_batch_size
        if run.gradient_accumulation_steps != plan.gradient_accumulation_steps:
            changed[ACCUMULATION] = plan.gradient_accumulation_steps
        # The settings of FSDP, which may checkpoint, do not stay beside a DeepSpeed configuration.
        loses_fsdp = run.is_fsdp and part is not None
        own = self._checkpointing(source.arguments) if loses_fsdp else run.gradient_checkpointing
        if bool(own) != plan.gradient_checkpointing:
            if self.disables_checkpointing:
                changed[self.disables_checkpointing] = None if plan.gradient_checkpointing else True
            else:
                changed[key] = plan.gradient_checkpointing
        if workload is not None and workload.loss == "fused" and run.training.get("loss") != "fused":
            changed |= self.fused_loss(source.values) if self.fused_loss else {self.liger.split()[0]: True}
        if workload is not None and plan.gradient_checkpointing and run.frees_reentrant:
            changed[self.reentrant] = workload.software.reentrant
        if self.offload is not None and plan.cpu_checkpointing != (run.gradient_checkpointing == "offload"):
            name, value = self.offload[0].format(key), self.offload[1]
            if plan.cpu_checkpointing or name in options:
                changed[name] = value if plan.cpu_checkpointing else None
            if str(options.get(key)).startswith("offload"):
                changed[key] = plan.gradient_checkpointing
        if part is not None:
            # One of TRL's files of accelerate, which the change drops, may have set the number of GPUs.
            changed |= changed_counts(source.values, run.processes, run.nodes)
            replaced = (*(_FSDP if run.is_fsdp else ()), *_IN_DEEPSPEED, "accelerate_config")
            changed |= {name: None for name in replaced if name in options}
            is_inside = isinstance(source.values.get("deepspeed"), Mapping)
            changed["deepspeed"] = part.config if is_inside else part.name
        if _TWO_PRECISIONS in run.faults:
            changed["fp16"] = False
        return changed

    def _checkpointing(self, arguments: ScriptArguments) -> bool | Literal["offload"]:
        if self.disables_checkpointing:
            return not arguments.flag(self.disables_checkpointing)
        named = arguments.gradient_checkpointing
        return self.checkpoints if named is None else named


Format = AccelerateFormat | ToolFormat


def _trl_command(objective: str) -> str:
    """TRL's subcommand that trains an objective."""
    return "sft" if objective == NEXT_TOKEN else objective


def _fsdp_settings(arguments: ScriptArguments, folder: Path) -> dict[str, object]:
    """The Trainer's settings of FSDP, without `fsdp_`: those in `fsdp_config`, an object or the path of one, and those
    that the words in `fsdp` stand for (transformers 5.23 training_args.py `_apply_legacy_fsdp_to_config`)."""
    text = arguments.text("fsdp_config") or "{}"
    if not text.startswith("{"):
        path = find_file(text, folder)
        text = "{}" if path is None else path.read_text(errors="replace")
    try:
        config = json.loads(text)
    except ValueError:
        config = {}
    settings: dict[str, object] = {}
    if isinstance(config, dict):
        settings |= {name.removeprefix("fsdp_"): value for name, value in config.items()}
    words = set(" ".join(arguments.texts("fsdp")).lower().split())
    if "offload" in words:
        settings["cpu_offload"] = True
    if others := words & _PARTLY_SHARDED:
        settings.setdefault("reshard_after_forward", others.pop())
    return settings


def _is_reentrant(arguments: ScriptArguments) -> bool:
    settings = arguments.text("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs") or ""
    return re.search(r"""["']?use_reentrant["']?\s*[:=]\s*["']?true""", settings, flags=re.IGNORECASE) is not None


def _optimizer(run: ImportedRun, name: str | None) -> str:
    if name is None:
        return "adamw"
    known = trainer_optimizer(name)
    if known is None:
        run.lacks(f"the optimizer {name[:40]}: its states are not known")
    elif name.startswith("paged"):
        run.remarks.append(f"{name} is counted as if its states stayed on the GPU: it pages them out as needed")
    return known or "adamw"


def _attention(name: str | None) -> str | None:
    if name is None:
        return None
    if name.lower().startswith(("flash", "fa2", "fa3", "kernels-community")):
        return "flash"
    return "eager" if name.lower() in ("eager", "disabled") else "sdpa"


_OPTIONS = ("stage", "rlhf_type", "rl")
"""Options of LLaMA-Factory, ms-swift and axolotl that name the objective."""

_TASKS = {"causal_lm": NEXT_TOKEN, "seq_cls": "classification", "reranker": "classification"}
"""Values of ms-swift's `task_type` that have another name in `OBJECTIVES`."""

_NAMES = {"sft": NEXT_TOKEN, "pt": NEXT_TOKEN, "false": NEXT_TOKEN, "none": NEXT_TOKEN, "rm": "reward", "ipo": "dpo"}
"""Values of these options that have another name in `OBJECTIVES`."""

_KEYS = {
    "grpo": "num_generations reward_funcs num_generations_eval",
    "classification": "label_column_name text_column_names remove_splits shuffle_train_dataset",
    "kto": "desirable_weight undesirable_weight",
    "reward": "center_rewards_coefficient reward_model process_reward_model",
    "dpo": "beta max_prompt_length precompute_ref_log_probs sync_ref_model",
}
"""Options of TRL's and axolotl's configurations that no supervised training has, and of transformers'
run_classification.py."""

_GLUE = ("cola", "mnli", "mrpc", "qnli", "qqp", "rte", "sst2", "stsb", "wnli")
"""Values of `task_name` in transformers' run_glue.py."""

_NAME = re.compile(r"(?:^|[/_.])(dpo|kto|ppo|grpo|orpo|simpo|cpo|rloo|gkd|bco|xpo|prm|rm|reward)(?:[/_.]|$)")
"""Objective in the path of a file."""


def read_objective(arguments: ScriptArguments, path: str) -> str:
    """The objective: a key of `estimators.objectives.OBJECTIVES`, or another tool's term in lower case, such as `grpo`
    or `ppo`. path: the file's path."""
    named = arguments.text(*_OPTIONS)
    if named is not None and named.isalpha():
        preference = arguments.text("pref_loss") if named == "dpo" else None  # LLaMA-Factory's option
        return preference if preference in ("orpo", "simpo") else _NAMES.get(named.lower(), named.lower()[:20])
    if task := arguments.text("task_type"):
        return _TASKS.get(task, task[:20])
    if arguments.text("task_name") in _GLUE:
        return "classification"
    objective = next((name for name, keys in _KEYS.items() for key in keys.split() if arguments.flag(key)), NEXT_TOKEN)
    if objective == "dpo" and (match := _NAME.search(path)):  # ORPO's and CPO's files have the same options
        return match[1]
    return objective
