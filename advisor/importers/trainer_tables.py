"""Files of TrainingArguments (transformers 5.23) and of TRL 1.16, whose configurations extend them."""

from __future__ import annotations

from dataclasses import replace

from .accelerate import CONFIG_OPTIONS, add_accelerate_file
from .imported_run import ImportedRun
from .removed_arguments import are_refused_here, refusal_of, removed_arguments
from .script_arguments import MICRO_BATCH, ScriptArguments
from .source import Source
from .tool_format import ToolFormat

_OWN_LOOP = (
    *("zero_stage", "micro_train_batch_size", "with_tracking", "checkpointing_steps", "use_qlora", "max_train_steps"),
    *("num_warmup_steps", "lr_schedule", "gradient_accumulate_every"),
)
"""Options that are not in TrainingArguments: those of DeepSpeed-Chat, open-instruct and accelerate's examples without
the Trainer."""

OF_TRL = {
    *("accelerate_config", "dataset_config", "dataset_train_split", "dataset_test_split", "dataset_streaming"),
    *("dataset_text_field", "dataset_kwargs", "packing", "eval_packing", "assistant_only_loss", "completion_only_loss"),
    *("chat_template_path", "truncation_mode", "max_prompt_length", "max_completion_length", "num_generations"),
    *("reward_funcs", "precompute_ref_log_probs", "sync_ref_model", "generate_during_eval", "model_init_kwargs"),
    *("use_peft", "lora_task_type", "use_bnb_nested_quant"),
}
"""Options of TRL's script arguments and configurations that neither TrainingArguments nor the usual scripts of the
Trainer have. One of them is sufficient."""

_MIXTURES = {"dataset_mixture", "dataset_mixer"}
"""Options of open-r1 and the alignment handbook, whose scripts extend TRL's."""

_DATA_OF_TRL = {"dataset_name", "datasets"}
"""TRL's options of the data, which other scripts may have too."""

OF_EXAMPLES = {
    *("dataset_config_name", "train_file", "validation_file", "validation_split_percentage", "block_size"),
    *("preprocessing_num_workers", "overwrite_cache", "max_train_samples", "max_eval_samples", "tokenizer_name"),
    *("task_name", "text_column", "text_column_names", "image_column_name", "label_column_name", "mlm_probability"),
}
"""Options of transformers' example scripts beside `dataset_name` that TRL does not have (examples/pytorch)."""


def _training_arguments_details(run: ImportedRun, arguments: ScriptArguments, _: Source) -> None:
    if arguments.switched("use_flash_attn use_flash_attention_2"):
        run.training["attention"] = "flash"
    if arguments.adapts:
        run.training.update(method="qlora" if arguments.loads_in_4_bits else "lora", **arguments.lora)
        if arguments.flag("load_in_8bit") and not arguments.loads_in_4_bits:
            run.use_quantization(8)
    if arguments.flag("use_reentrant"):  # peft's examples
        run.training["software"] = {"reentrant": True}
    gone = removed_arguments()
    if refused := [name for name in arguments.by_name if name in gone]:
        if are_refused_here():
            run.faults += (refusal_of(refused),)
        else:
            run.remarks.append(refusal_of(refused))
    if own := next((name for name in _OWN_LOOP if name in arguments.by_name), None):
        run.add_obstacle(f"not read: its script has options of its own (the Trainer has no option {own})")


_ONE_PROCESS = {"one_process": "torchrun --nproc_per_node 1"}

TRAINING_ARGUMENTS = ToolFormat(
    name="training-arguments",
    title="a file of TrainingArguments",
    tool="the Trainer",
    matches=lambda source: (
        source.arguments.are_training_arguments and not {"finetuning_type", "stage"} & set(source.values)
    ),
    details=_training_arguments_details,
    liger="use_liger_kernel use_liger",
    loads_fp32=True,  # `from_pretrained` before transformers 5; since then the checkpoint's type
    assumes_fp32=True,
    micro_batch=MICRO_BATCH,
    default_micro_batch=8,
    defaults=_ONE_PROCESS,
    offload=("{}_kwargs", {"use_reentrant": False, "offload": True}),
    has_own_keys=True,
    refuses_two_checkpointings=True,
    not_modelled={
        "partial training by LLaVA's options": "tune_mm_mlp_adapter mm_tunable_parts freeze_backbone",
    },
)


def _is_trl(source: Source) -> bool:
    keys = set(source.values)
    named = "model_name_or_path" in keys and "finetuning_type" not in keys and "stage" not in keys
    return named and not keys & OF_EXAMPLES and bool(keys & (OF_TRL | _MIXTURES | _DATA_OF_TRL))


def _trl_details(run: ImportedRun, arguments: ScriptArguments, source: Source) -> None:
    _training_arguments_details(run, arguments, source)
    arguments.switched("beta max_prompt_length eos_token assistant_only_loss completion_only_loss")
    bf16, fp16 = (arguments.flag(name) for name in ("bf16", "fp16"))
    if not bf16 and not fp16:  # base_config.py: bf16 is on by default
        run.training["precision"] = "bf16" if bf16 is None else "fp32"
    # cli/accelerate_config.py: keys that are accelerate's go to its launcher.
    if (name := arguments.text(*CONFIG_OPTIONS)) and run.deepspeed is None:
        add_accelerate_file(run, name, source.path.parent)
    machines = arguments.number("num_machines") or run.nodes or 1
    if processes := arguments.number("num_processes"):
        run.nodes, run.gpus_per_node = machines, max(1, processes // machines)
    run.training["framework"] = "trl"
    if arguments.flag("precompute_ref_log_probs"):
        run.training["precompute_ref_log_probs"] = True


TRL = replace(
    TRAINING_ARGUMENTS,
    name="trl",
    title="a TRL configuration",
    tool="TRL",
    command="trl {trl} --config {file}",
    matches=_is_trl,
    details=_trl_details,
    defaults={**_ONE_PROCESS, "launcher": "accelerate"},
    # TRL 1.16 trainer/base_config.py, sft_config.py and model_config.py (dtype)
    checkpoints=True,
    seq_len=("max_length",),
    default_seq_len=1024,
    assumes_fp32=False,
    has_own_keys=False,
    extensions=frozenset(_MIXTURES),
    renamed={"max_seq_length": "max_length", "torch_dtype": "dtype"},
    # cli/commands/training.py gives them to `accelerate launch`, which refuses them; scripts/sft.py and others have
    # fail_with_unknown_args=False.
    stops_at_unknown="at which `trl` stops, and which its scripts ignore where another launcher starts them",
)
