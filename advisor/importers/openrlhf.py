"""OpenRLHF's trainings without completions: train_sft, train_dpo and train_rm, by their options.

Option names are those of 3c3be62 (`--ds.zero_stage`) and the earlier ones (`--zero_stage`). OpenRLHF makes its
DeepSpeed configuration from them (utils/deepspeed/deepspeed_utils.py `get_train_ds_config`; DeepSpeed replaces "auto"
with its defaults), so no configuration is written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .imported_run import DeepSpeedPart, ImportedRun
from .script_arguments import ScriptArguments
from .source import Source
from .tool_format import ToolFormat

_PRECISION = ("ds.param_dtype", "param_dtype")
_MICRO_BATCH = ("train.micro_batch_size", "micro_train_batch_size")
_DEFAULT_MICRO_BATCH = 8
_DEFAULT_GLOBAL_BATCH = 128

_SPLITS = {
    "samples shared over GPUs by ring attention": ("ds.ring_attn_size", "ring_attn_size"),
    "layers split over GPUs by OpenRLHF": ("ds.tensor_parallel_size", "ds_tensor_parallel_size"),
}

_WITHOUT_EFFECT = (
    "bf16 model.beta beta model.loss_type lr_scheduler max_norm use_ms ref.pretrain ref.model_name_or_path "
    "model.margin_loss_enable model.compute_fp32_loss_enable apply_chat_template data.apply_chat_template chosen_key "
    "rejected_key prompt_key input_key output_key data.chosen_key data.rejected_key data.prompt_key data.input_key "
    "data.output_key save_path save_steps logging_steps eval_steps ckpt_path ckpt.output_dir ckpt.save_steps ckpt.path "
    "logger.logging_steps eval.steps ckpt.load_enable l2 adam_betas adam.lr learning_rate max_epochs train.max_epochs "
    "max_samples data.max_samples dataset data.dataset load_checkpoint"
)
"""Options that change neither the memory nor the time of a step."""


def _deepspeed(arguments: ScriptArguments, _: Path) -> DeepSpeedPart:
    stage = arguments.number("ds.zero_stage", "zero_stage")
    group = arguments.number("ds.zpg", "zpg") or 1
    zero: dict[str, Any] = {"stage": 2 if stage is None else stage}
    if arguments.switched("ds.adam_offload adam_offload"):
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if group > 1:
        zero["zero_hpz_partition_size"] = group
    if arguments.switched("ds.overlap_comm overlap_comm"):
        zero |= {"overlap_comm": True, "contiguous_gradients": True}
    return DeepSpeedPart(
        name="its DeepSpeed configuration",
        config={
            "train_micro_batch_size_per_gpu": arguments.number(*_MICRO_BATCH) or _DEFAULT_MICRO_BATCH,
            "gradient_clipping": 1.0,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
            "zero_optimization": zero,
            arguments.text(*_PRECISION) or "bf16": {"enabled": True},
        },
    )


def _details(run: ImportedRun, arguments: ScriptArguments, _: Source) -> None:
    run.framework = "deepspeed"
    run.gradient_accumulation_steps = None
    run.least_global_batch = arguments.number("train.batch_size", "train_batch_size") or _DEFAULT_GLOBAL_BATCH
    checkpoints = arguments.switched("model.gradient_checkpointing_enable gradient_checkpointing")
    run.gradient_checkpointing = bool(checkpoints)
    if arguments.switched("model.gradient_checkpointing_reentrant gradient_checkpointing_use_reentrant"):
        run.use_software(reentrant=True)
    # models/actor.py: logits become fp32, and log-probabilities are computed from all of them.
    run.training.update(precision=arguments.text(*_PRECISION) or "bf16", framework="deepspeed", loss="standard")
    if run.objective in ("dpo", "reward"):
        run.training["framework"] = "trl"
    if arguments.flag("flash_attn"):
        run.training["attention"] = "flash"
    if arguments.text("optim") == "muon":
        run.training["optimizer"] = "muon"
    if rank := arguments.number("ds.lora.rank", "lora_rank"):
        four_bits = arguments.switched("ds.load_in_4bit load_in_4bit")
        run.training.update(method="qlora" if four_bits else "lora", lora_rank=rank)
    if arguments.switched("ds.packing_samples packing_samples"):
        run.remarks.append("packed samples are counted as samples of the full length")
    if (arguments.text("ds.grad_accum_dtype", "grad_accum_dtype") or "bf16") != "bf16":
        run.remarks.append("accumulated gradients are counted in the training precision")
    if arguments.switched("ref.offload ref_offload"):
        run.lacks("a reference model in host RAM")
    for what, names in _SPLITS.items():
        if (arguments.number(*names) or 1) > 1:
            run.lacks(what)
    arguments.switched(_WITHOUT_EFFECT)


OPENRLHF = ToolFormat(
    name="openrlhf",
    title="an OpenRLHF script",
    tool="OpenRLHF",
    program="openrlhf",
    is_file=lambda _: False,
    details=_details,
    defaults={"launcher": "deepspeed"},
    unwritable="OpenRLHF makes its DeepSpeed configuration from its options",
    deepspeed=_deepspeed,
    model=("model.model_name_or_path", "pretrain"),
    seq_len=("data.max_len", "max_len"),
    default_seq_len=512,
    optimizer="",
    attention=("ds.attn_implementation", "attn_implementation"),
    default_precision="bf16",
    liger="ds.use_liger_kernel use_liger_kernel",
    micro_batch=_MICRO_BATCH,
    default_micro_batch=_DEFAULT_MICRO_BATCH,
    has_own_keys=True,
)
