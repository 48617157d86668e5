"""From the options of a question to a `Workload`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from math import inf
from typing import Any, cast, get_args, get_origin, get_type_hints

from ...ds_configs.read import has_auto, optimizer_in, optimizer_step_in, precision_in
from ...estimators.errors import WorkloadError
from ...estimators.hardware import Gpu
from ...estimators.memory.evaluation import EVALUATION_BATCH
from ...estimators.models.heads import find_classifier
from ...estimators.models.lora import LINEAR_MODULES, linear_modules
from ...estimators.models.model_shape import ModelShape
from ...estimators.models.vision_parts import apply_images, check_image_tokens, freeze_parts, select_parts
from ...estimators.objectives import LAST_TRL_WITH_PPO, LIGER_LAYERS_ALONE, OBJECTIVES, framework_loss, trained_model
from ...estimators.optimizers import OPTIMIZERS, optimizer_names, trainer_optimizer, trainer_optimizer_step
from ...estimators.rollouts import PROMPT_LEN, Rollouts
from ...estimators.workload import (
    DEFAULT_SEQ_LEN,
    NEXT_TOKEN,
    Framework,
    LossKernel,
    OptimizerStep,
    Precision,
    Software,
    Workload,
)
from .effective import effective_objectives, obstacle_to_framework
from .options import OPTIONS, fill_defaults
from .rollouts import build_rollouts

_SHARED = {field.name for field in fields(Workload)} & OPTIONS.keys() - {"sequence_parallel_size"}
"""Options that are fields of a workload. The sequence-parallel size belongs to the plan."""

_WORDS = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}


TOOL_SOFTWARE: Mapping[str, Mapping[str, Any]] = {
    # LLaMA-Factory ff6d4d1 hparams/model_args.py: use_reentrant_gc is on; hparams/parser.py: `device_map` is the rank's
    # GPU, except at stage 3; model/adapter.py: what trains is cast to fp32 there, without DeepSpeed for good.
    "llama-factory": {"reentrant": True, "autocast": True, "fp32_adapters": True, "loading": "gpu-fp32"},
    # axolotl 067b021 utils/config/__init__.py normalize_config: `device_map` is the rank's GPU.
    "axolotl": {"fp32_adapters": True, "loading": "gpu"},
    # ms-swift 3602360 model/utils.py get_default_device_map
    "ms-swift": {"fp32_adapters": True, "loading": "gpu"},
}
"""Fields of `Software` by tools around transformers' Trainer, which are values of `--framework`."""

TOOL_TRL: Mapping[str, tuple[int, int]] = {"llama-factory": (0, 24), "axolotl": (1, 8), "ms-swift": (0, 29)}
"""The TRL whose trainers the tools extend for preferences, by their pyproject.toml and requirements."""


def build_workload(options: Mapping[str, Any], model: ModelShape | None, gpu: Gpu | None) -> Workload:
    """The workload of a model on a GPU.

    options: `QuestionOptions`.
    model: None for a module of the user.
    gpu: None if unknown; it is then assumed to support bf16.

    Raises WorkloadError for unknown, impossible or contradictory options.
    """
    options = fill_defaults(options)
    rollouts = build_rollouts(options)
    wanted_len: Any = options["seq_len"]
    document_len: Any = options["document_len"]
    if wanted_len is None and rollouts is not None:
        wanted_len = PROMPT_LEN + rollouts.max_completion_length
    seq_len = sequence_length(model, wanted_len)
    if model is not None:
        check_image_tokens(model, seq_len)
    dropout = _dropout(options["lora_dropout"])
    adapted = options["method"] != "full"
    settings = plan_settings(Software, options["software"] or {}, option="--software")
    chosen, step = _optimizer(options["optimizer"])
    objective, tool = OBJECTIVES[options["objective"]], options["framework"]
    habits = {"optimizer_step": step, **TOOL_SOFTWARE.get(tool, {})}
    if objective.trainer and tool in TOOL_TRL:
        habits["trl"] = TOOL_TRL[tool]
    if objective.value_model:
        habits["trl"] = LAST_TRL_WITH_PPO
    software = Software(**(habits | settings))
    saved = _names("--modules-to-save", options["modules_to_save"], "leave it out") if adapted else None
    if adapted and objective.labels and model is not None:  # peft trains the new head whole (`task_type="SEQ_CLS"`)
        head = "summary" if options["loss"] == "value-head" else find_classifier(model).module
        saved = tuple(dict.fromkeys((*(saved or ()), head)))
    framework: Framework = "trl" if objective.trainer else "hf" if tool in TOOL_SOFTWARE else tool  # type: ignore[assignment]
    if obstacle := obstacle_to_framework(tool, options["objective"]):
        raise WorkloadError(
            f"--framework {tool} cannot be used with --objective {options['objective']}",
            why=obstacle,
            fix=f"leave --framework out{' for the trainer of TRL' * bool(objective.trainer)}",
        )
    converted: dict[str, Any] = {
        "lora_dropout": dropout if adapted else 0.0,
        "dora": adapted and options["dora"],
        # The tools give peft the names of all linear modules, if a file names none.
        "lora_targets": _lora_targets(
            options["lora_targets"] or (LINEAR_MODULES if tool in TOOL_SOFTWARE else None), model, software
        ),
        "modules_to_save": saved or (),
        "freeze": select_parts(model, _frozen_parts(options)) if model is not None else (),
        "seq_len": seq_len,
        "rollouts": rollouts and _within(rollouts, seq_len),
        "document_len": _document_length(document_len, seq_len),
        "precision": resolve_precision(options["precision"], gpu),
        "optimizer": chosen,
        "software": software,
        "framework": framework,
        "loss": _loss(options, framework, software),
        "global_batch_size": options["global_batch"],
        "eval_batch": _evaluation_batch(options),
    }
    return Workload(**{name: options[name] for name in _SHARED} | converted)  # type: ignore[literal-required]


def configured_workload(
    config: Mapping[str, Any], options: Mapping[str, Any], model: ModelShape | None, gpu: Gpu | None
) -> Workload:
    """The workload of a ds_config, whose precision and optimizer take precedence over the options. Without an optimizer
    block the training script makes the optimizer. The optimizer keeps its name in the file, because the closed forms do
    not cover every class of torch.optim."""
    precision = precision_in(config)
    requested = options.get("precision", "auto")
    is_added = options.get("framework") != "deepspeed" and requested in ("bf16", "fp16") and requested not in config
    if assumes_half_precision(config, options) or (is_added and precision == "fp32"):
        precision = "auto"  # accelerate adds the block (1.15.0 `DeepSpeedPlugin.set_mixed_precision`)
    # The file decides, so the option must not be refused for a GPU without bf16.
    if precision != "auto":
        options = {**options, "precision": "fp32"}  # every GPU supports it
    workload = build_workload(options, model, gpu)
    software = replace(workload.software, optimizer_step=optimizer_step_in(config, workload))
    name = optimizer_in(config)
    return replace(
        workload,
        optimizer_block=name is not None,
        software=software,
        precision=workload.precision if precision == "auto" else precision,
        optimizer=name or workload.optimizer,
    )


def assumes_half_precision(config: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
    """Whether a file of the Trainer or accelerate has no block of a precision, and no option names one. Their own
    arguments then add the block. Trainings on GPUs are in half precision, so that is assumed."""
    by_trainer = options["framework"] != "deepspeed" if "framework" in options else has_auto(config)
    return by_trainer and options.get("precision", "auto") == "auto" and not {"bf16", "bfloat16", "fp16"} & {*config}


def sequence_length(model: ModelShape | None, seq_len: int | None) -> int:
    """The sequence length; for None, the model's default. Raises WorkloadError if the model does not support it."""
    if model is not None and model.fixed_len is not None:
        if seq_len not in (None, model.fixed_len):
            raise WorkloadError(
                f"every sample of {model.name} has {model.fixed_len} tokens",
                why="all its images have the same size",
                fix="leave --seq-len out",
            )
        return model.fixed_len
    longest = model.max_positions if model is not None and model.has_learned_positions else None
    if seq_len is None:  # a position beyond the stated ones is only on request
        stated = model.max_positions if model is not None else None
        return min(DEFAULT_SEQ_LEN, stated) if stated else DEFAULT_SEQ_LEN
    if model is not None and longest is not None and seq_len > longest:
        raise WorkloadError(
            f"{model.name} has {longest} learned positions, fewer than a sequence of {seq_len}",
            why="the position embedding has no row for the tokens beyond",
            fix=f"pass --seq-len {longest} or less",
        )
    return seq_len


def _within(rollouts: Rollouts, seq_len: int) -> Rollouts:
    if rollouts.max_completion_length < seq_len:
        return rollouts
    raise WorkloadError(
        f"a completion of {rollouts.max_completion_length} tokens leaves no room for the prompt in {seq_len}",
        why="--seq-len includes prompt and completion",
        fix="pass a longer --seq-len or a shorter --max-completion-length",
    )


def resolve_precision(precision: str, gpu: Gpu | None) -> Precision:
    """The precision, with `auto` replaced. Raises WorkloadError if the GPU does not support it."""
    if precision == "auto":
        return "bf16" if gpu is None else gpu.half_precision
    if precision == "bf16" and gpu is not None and not gpu.has_bf16:
        raise WorkloadError(
            f"the {gpu.name} has no bf16 units",
            why="bf16 is emulated there, several times slower than fp16",
            fix="pass --precision fp16 (or auto)",
        )
    return precision  # type: ignore[return-value]  # one of the option's choices


def plan_settings(
    kind: type, settings: str | Mapping[str, Any], *, option: str, without: Collection[str] = ()
) -> dict[str, Any]:
    """Fields of a dataclass from a mapping, or from a text such as `a=1,b`, in which a name alone means yes. Raises
    WorkloadError for an unknown name, or for a value of the wrong type."""
    settings = named_settings(settings) if isinstance(settings, str) else settings
    types = {name: hint for name, hint in get_type_hints(kind).items() if name not in without}
    defaults = {each.name: each.default for each in fields(kind)}
    found: dict[str, Any] = {}
    for name, value in settings.items():
        field = str(name).replace("-", "_").lower()
        if field not in types:
            from difflib import get_close_matches  # imported here: only mistakes need it

            own = field.removeprefix("zero_optimization.")
            near = [own] if own in types else get_close_matches(own[:100], types)
            # As the help has them; those of a plan are keys of the ds_config.
            known = ", ".join(near or types).replace("_", "-" if kind is Software else "_")
            fix = f"did you mean {known}?" if near else f"set one of {known}"
            parts = re.fullmatch(r"([\w-]+)[\s:]+(\S+)", str(name).strip())
            if parts and parts[1].replace("-", "_").lower() in types:  # `transformers 4.45`
                given = {each: each_value for each, each_value in settings.items() if each != name}
                fix = f"pass {option} {settings_text({parts[1]: parts[2], **given})}"
            if passed := meant_option(own.replace(".", "_"), str(value)):
                fix = f"pass {passed}"
            raise WorkloadError(f"{option} has no setting {str(name)[:40]!r}", fix=fix)
        found[field] = _typed(f"{option} {name}", value, types[field], defaults[field])
    return found


def named_settings(text: str) -> dict[str, str]:
    """The values by name of a text such as `a=1,b`, in which a name alone means yes; `==` is pip's `=`."""
    words = [word.partition("=") for word in text.split(",") if word.strip()]
    return {name.strip(): value.removeprefix("=").strip() or "yes" for name, _, value in words}


def settings_text(settings: Mapping[str, Any]) -> str:
    """The text of such values by name."""
    words = ((name, str(value)) for name, value in settings.items())
    return ",".join(name if value.lower() in ("yes", "true") else f"{name}={value}" for name, value in words)


def meant_option(name: str, value: str) -> str:
    """Return the option of a question, with its value, for a setting that is none of a plan: `--strategy zero3` for a
    stage of 3, `--micro-batch 4`; "" for any other name."""
    from .gpu_text import with_counts  # imported here: few questions have settings
    from .other_names import advice_for, meant_choice, meant_strategy, other_name

    if "{STRATEGY}" in advice_for(name):
        return f"--strategy {meant_strategy({name: value})}"
    if name in OPTIONS and OPTIONS[name].kind == "switch":
        return OPTIONS[name].flag
    written = OPTIONS[name].flag + " {N}" if name in OPTIONS else other_name(name)
    if written.startswith("--gpus {"):
        value = with_counts("", per_node=value) if "{GPUS}" in written and value.isdigit() else "SPEC"
    option = next((each for each in OPTIONS.values() if each.flag == written.partition(" ")[0]), None)
    if option is not None and option.choices:
        value = meant_choice(value, option.choices) or value
    return re.sub(r"\{.+\}", lambda _: value[:40], written)


def _typed(name: str, value: Any, kind: Any, default: Any) -> Any:
    """The value of a text as a bool, a count (`200000000`, `2e8`), a share, a version (`4.45`) or a Literal.

    default: that of the setting; its version is the example in an error.
    """
    choices: Sequence[Any] = get_args(kind)
    wanted = ""
    if kind is bool:
        choices = tuple(_WORDS)
        if isinstance(value, bool) or str(value).lower() in choices:
            return value if isinstance(value, bool) else _WORDS[str(value).lower()]
    elif kind is int:
        wanted = "a whole number such as 200000000 or 2e8"
        with suppress(TypeError, ValueError):
            if 0 <= float(value) < 2**63 and float(value).is_integer():
                return int(float(value))
    elif kind is float:
        wanted = "a number such as 0.5"
        with suppress(TypeError, ValueError):
            if 0 <= float(value) < inf:
                return float(value)
    elif get_origin(kind) is tuple:
        wanted = f"a version such as {'.'.join(map(str, default[:2]))}"
        text = ".".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
        version = re.fullmatch(r"(\d{1,3})(?:\.(\d{1,3})(?:\.(\d{1,3})?.*)?)?", text)
        if version is not None:
            major, minor, patch = version.groups()
            with_patch = (patch,) if patch is not None and ... in choices else ()
            return tuple(map(int, (major, minor or 0, *with_patch)))
    elif value in choices:
        return value
    named = ", ".join(str(choice) for choice in choices if choice != "")
    wanted = wanted or (f"one of {named}" if "," in named else named)
    raise WorkloadError(f"{name} is {str(value)[:40]!r}", fix=f"pass {wanted}")


def _loss(options: Mapping[str, Any], framework: Framework, software: Software) -> LossKernel:
    """The loss, by default that of the objective and the framework. Raises WorkloadError for an unsupported loss."""
    objective, loss = options["objective"], options["loss"]
    own = framework_loss(objective, framework, software)
    if loss in ("auto", own):
        return own
    possible = OBJECTIVES[objective].losses
    if loss not in possible:
        raise WorkloadError(
            f"--loss {loss} cannot be used with --objective {objective}", why=f"it has {own}", fix="leave --loss out"
        )
    if loss == "fused" and framework == "trl" and software.trl >= LIGER_LAYERS_ALONE:
        raise WorkloadError(
            "--loss fused cannot be used with --framework trl",
            why="use_liger_kernel of TRL 1.15 and newer replaces layers alone, not its loss",
            fix="leave --loss out; --kernels liger counts those layers",
        )
    return cast(LossKernel, loss)


def _evaluation_batch(options: Mapping[str, Any]) -> int | None:
    """Samples per GPU of an evaluation. If only other evaluation options are given, it is the Trainer's default. Raises
    WorkloadError for logits of trainers whose metrics have none."""
    if options["eval_logits"] and options["objective"] not in effective_objectives("eval_logits"):
        raise WorkloadError(
            f"--eval-logits cannot be used with --objective {options['objective']}",
            why="its trainer's metrics are computed batch by batch",
            fix="leave --eval-logits out",
        )
    evaluates = options["eval_logits"] or options["eval_new_tokens"]
    return options["eval_batch"] or (EVALUATION_BATCH if evaluates else None)


def _document_length(document_len: int | None, seq_len: int) -> int | None:
    if document_len is None or document_len == seq_len:
        return None
    if document_len > seq_len:
        raise WorkloadError(
            f"documents of {document_len} tokens do not fit into samples of {seq_len}",
            why="--document-len is the mean length of the documents packed into a sample",
            fix="pass a longer --seq-len, or leave --document-len out",
        )
    return document_len


def _dropout(probability: float) -> float:
    if not 0 <= probability < 1:
        raise WorkloadError(
            f"lora_dropout is {probability}",
            why="it must be at least 0 and below 1",
            fix="pass a probability such as --lora-dropout 0.05",
        )
    return probability


def _names(option: str, names: str | Sequence[str] | None, fix: str) -> tuple[str, ...] | None:
    """Names from a list, or from a text separated by commas; empty for None. Raises WorkloadError for a text without a
    name."""
    if names is None:
        return None
    listed = names.split(",") if isinstance(names, str) else names
    found = tuple(name.strip() for name in listed if name.strip())
    if not found and isinstance(names, str):
        raise WorkloadError(f"{option} names no module", fix=fix)
    return found or None


def _lora_targets(
    names: str | Sequence[str] | None, model: ModelShape | None, software: Software
) -> tuple[str, ...] | None:
    targets = _names("--lora-targets", names, "leave it out for all linear layers")
    if targets != (LINEAR_MODULES,):
        return targets
    return None if model is None else linear_modules(model, software)


def absent_parts(model: ModelShape, options: Mapping[str, Any]) -> tuple[str, ...]:
    """The parts in --freeze that the model does not have."""
    parts = _frozen_parts(options)
    return tuple(part for part in parts if part not in select_parts(model, parts))


def _frozen_parts(options: Mapping[str, Any]) -> tuple[str, ...]:
    names = _names("--freeze", options.get("freeze"), "leave it out") or ()
    return tuple(name.replace("_", "-") for name in names)


def trains_projector_alone(options: Mapping[str, Any]) -> bool:
    """Whether only the projector of a vision-language model trains, which samples of text leave idle."""
    return {"vision-tower", "language-model"} <= {*_frozen_parts(options)}


def apply_model_options(model: ModelShape, options: Mapping[str, Any]) -> ModelShape:
    """The model with the objective's head, for the images of a sample, with its frozen parts marked. Raises
    WorkloadError."""
    model = trained_model(model, options.get("objective", NEXT_TOKEN), options.get("loss", "auto"))
    model = apply_images(model, options.get("images_per_sample"), options.get("max_pixels"))
    return freeze_parts(model, select_parts(model, _frozen_parts(options)))


def _optimizer(name: str) -> tuple[str, OptimizerStep]:
    """The key of `OPTIMIZERS` for a name, and the implementation of its step. `AdamW_8bit`, `adamw-8bit` and
    `adamw8bit` are equal. Values of the Trainer's `optim=` are names too."""

    def letters(text: str) -> str:
        return text.lower().replace("-", "").replace("_", "")

    key = next((known for known in OPTIMIZERS if letters(known) == letters(name)), None)
    if key is not None:
        return key, "auto"
    key = trainer_optimizer(name)
    if key is not None and name.lower().startswith("paged_"):
        raise WorkloadError(
            f"{name} is not predicted",
            why="bitsandbytes moves its states between GPU and host on demand",
            fix=f"pass {key}, whose states have the same size and stay on the GPU",
        )
    if key is None:
        from difflib import get_close_matches  # imported here: only mistakes need it

        def parts(text: str) -> tuple[str, tuple[str, ...]]:
            """The name without the number of bits, and the number, which may stand anywhere in it."""
            return re.sub(r"\d+(bits?)?", "", letters(text)), tuple(re.findall(r"\d+", text))

        word, bits = parts(name[:100])
        of_bits = ((known, *parts(each)) for known in reversed(OPTIMIZERS) for each in optimizer_names(known))
        names = {each: known for known, each, own in of_bits if own == bits}
        near = get_close_matches(word, names, n=1, cutoff=0.75)
        raise WorkloadError(
            f"unknown optimizer {name[:60]!r}",
            why="the memory depends on its state bytes per parameter",
            fix=f"pass {names[near[0]]}" if near else f"pass one of {', '.join(sorted(OPTIMIZERS))}",
        )
    return key, trainer_optimizer_step(name)
