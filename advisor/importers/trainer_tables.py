"""Scripts and files of TrainingArguments (transformers 5.23) and of TRL 1.16, whose configurations extend them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .imported_run import ImportedRun
from .launch_line import OF_TRL
from .script_arguments import ScriptArguments
from .source import Source
from .tool_format import ToolFormat

_OWN_LOOP = (
    *("zero_stage", "micro_train_batch_size", "with_tracking", "checkpointing_steps", "use_qlora", "max_train_steps"),
    *("num_warmup_steps", "lr_schedule", "gradient_accumulate_every"),
)
"""Options that are not in TrainingArguments: those of DeepSpeed-Chat, OpenRLHF, open-instruct and accelerate's examples
without the Trainer."""

_OWN_BATCH = ("batch_size", "micro_batch_size", "train_batch_size", "per_device_batch_size")
"""Batch options of scripts that do not pass their options to TrainingArguments."""


def _training_arguments_details(run: ImportedRun, arguments: ScriptArguments, source: Source) -> None:
    line = source.line
    if arguments.switched("use_flash_attn use_flash_attention_2"):
        run.training["attention"] = "flash"
    if arguments.adapts:
        run.training.update(method="qlora" if arguments.loads_in_4_bits else "lora", **arguments.lora)
        if arguments.flag("load_in_8bit") and not arguments.loads_in_4_bits:
            run.use_quantization(8)
    if arguments.flag("use_reentrant"):  # peft's examples
        run.training["software"] = {"reentrant": True}
    tool = "" if line is None else line.tool_not_read
    is_open = arguments.number(*TRAINING_ARGUMENTS.micro_batch) is None
    foreign = (*_OWN_LOOP, *_OWN_BATCH) if is_open and line is not None else _OWN_LOOP
    own = next((name for name in foreign if name in arguments.by_name), None)
    if is_open and not arguments.are_training_arguments and line is not None and line.program == "script":
        run.micro_batch_size = None
    if line is not None and tool:
        instead = "; ds-advise MODEL --objective grpo predicts TRL's GRPO instead" * (tool == "verl")
        run.add_obstacle(f"{tool} is not read: {line.target} has its own options for batch and precision{instead}")
    elif own is not None:
        run.add_obstacle(f"not read: the script has options of its own (the Trainer has no option {own})")
    elif is_open and arguments.text("deepspeed_config") is not None:
        part = run.deepspeed
        run.framework = "deepspeed"
        run.lacks(
            "a script that passes --deepspeed_config to DeepSpeed itself: pass "
            f"{part.name[:80] if part is not None else 'it'} to ds-advise check, compare or dry-run, with --model "
            "and --gpus"
        )
    elif run.micro_batch_size is None and line is not None and line.launcher != "accelerate":
        run.add_obstacle(
            f"not read: {line.target[:80]} gets no options of the Trainer; its batch, precision and DeepSpeed "
            "configuration are in its code"
        )


_ONE_PROCESS = {"one_process": "torchrun --nproc_per_node 1"}

TRAINING_ARGUMENTS = ToolFormat(
    name="training-arguments",
    title="a file of TrainingArguments",
    tool="the Trainer",
    is_file=lambda source: (
        source.arguments.are_training_arguments
        and not {"finetuning_type", "stage"} & set(source.values)
        and not isinstance(source.values.get("model"), Mapping)  # torchtune
    ),
    details=_training_arguments_details,
    liger="use_liger_kernel use_liger",
    micro_batch=("per_device_train_batch_size", "per_gpu_train_batch_size"),
    default_micro_batch=8,
    defaults=_ONE_PROCESS,
    offload=("{}_kwargs", {"use_reentrant": False, "offload": True}),
    has_own_keys=True,
    not_modelled={
        "partial training by LLaVA's options": "tune_mm_mlp_adapter mm_tunable_parts freeze_backbone",
    },
)

SCRIPT = replace(
    TRAINING_ARGUMENTS,
    name="script",
    title="a script that starts a training",
    tool="",
    is_file=lambda _: False,
    program="script",
)


def _is_trl(source: Source) -> bool:
    keys = set(source.values)
    named = "model_name_or_path" in keys and "finetuning_type" not in keys and "stage" not in keys
    own = {*OF_TRL, "max_prompt_length", "num_generations", "use_peft"} & keys
    return named and (bool(own) or {"dataset_name", "learning_rate"} <= keys)


def _trl_details(run: ImportedRun, arguments: ScriptArguments, source: Source) -> None:
    _training_arguments_details(run, arguments, source)
    # Options of accelerate (`launch_line`), and options that change no figure.
    arguments.switched("accelerate_config config_file num_processes num_machines beta max_prompt_length eos_token")
    arguments.switched("assistant_only_loss completion_only_loss")
    bf16, fp16 = (arguments.flag(name) for name in ("bf16", "fp16"))
    if not bf16 and not fp16:  # base_config.py: bf16 is on by default
        run.training["precision"] = "bf16" if bf16 is None else "fp32"
    run.training["framework"] = "trl"
    if arguments.flag("precompute_ref_log_probs"):
        run.training["precompute_ref_log_probs"] = True


TRL = replace(
    TRAINING_ARGUMENTS,
    name="trl",
    title="a TRL configuration",
    tool="TRL",
    program="trl",
    is_file=_is_trl,
    details=_trl_details,
    defaults={**_ONE_PROCESS, "launcher": "accelerate"},
    # TRL 1.16 trainer/base_config.py and sft_config.py
    checkpoints=True,
    default_seq_len=1024,
)
