"""OpenRLHF's trainings without completions: train_sft, train_dpo and train_rm, by their options.

Option names are those of 3c3be62 (`--ds.zero_stage`) and the earlier ones (`--zero_stage`). OpenRLHF makes its
DeepSpeed configuration from them (utils/deepspeed/deepspeed_utils.py `get_train_ds_config`; DeepSpeed replaces "auto"
with its defaults), so no configuration is written.
"""

from __future__ import annotations

from typing import Any

from ...estimators.phrase import phrase
from .imported_run import DeepSpeedPart
from .tool_format import Reading, ToolFormat

_PRECISION = ("ds.param_dtype", "param_dtype")
_MICRO_BATCH = ("train.micro_batch_size", "micro_train_batch_size")
_DEFAULT_MICRO_BATCH, _DEFAULT_GLOBAL_BATCH = 8, 128

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


def _deepspeed(reading: Reading) -> DeepSpeedPart:
    arguments = reading.arguments
    stage, zpg = arguments.number("ds.zero_stage", "zero_stage"), arguments.number("ds.zpg", "zpg") or 1
    zero: dict[str, Any] = {"stage": 2 if stage is None else stage}
    if reading.switched("ds.adam_offload adam_offload"):
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if zpg > 1:
        zero["zero_hpz_partition_size"] = zpg
    if reading.switched("ds.overlap_comm overlap_comm"):
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


def _details(reading: Reading) -> None:
    arguments, training, objective = reading.arguments, reading.training, reading.run["objective"]
    reading.run.update(
        framework="deepspeed",
        gradient_accumulation_steps=None,
        least_global_batch=arguments.number("train.batch_size", "train_batch_size") or _DEFAULT_GLOBAL_BATCH,
        gradient_checkpointing=bool(reading.switched("model.gradient_checkpointing_enable gradient_checkpointing")),
    )
    if reading.switched("model.gradient_checkpointing_reentrant gradient_checkpointing_use_reentrant"):
        reading.use_software(reentrant=True)
    # models/actor.py: logits become fp32, and log-probabilities are computed from all of them.
    training.update(precision=arguments.text(*_PRECISION) or "bf16", framework="deepspeed", loss="standard")
    if objective in ("dpo", "reward"):
        training["framework"] = "trl"
    if arguments.flag("flash_attn"):
        training["attention"] = "flash"
    if arguments.text("optim") == "muon":
        training["optimizer"] = "muon"
    if rank := arguments.number("ds.lora.rank", "lora_rank"):
        four_bits = reading.switched("ds.load_in_4bit load_in_4bit")
        training.update(method="qlora" if four_bits else "lora", lora_rank=rank)
    if reading.switched("ds.packing_samples packing_samples"):
        reading.remarks.append("packed samples are counted as samples of the full length")
    if (arguments.text("ds.grad_accum_dtype", "grad_accum_dtype") or "bf16") != "bf16":
        reading.remarks.append("accumulated gradients are counted in the training precision")
    if reading.switched("ref.offload ref_offload"):
        reading.lacks("a reference model in host RAM")
    for what, names in _SPLITS.items():
        if (arguments.number(*names) or 1) > 1:
            reading.lacks(what)
    reading.switched(_WITHOUT_EFFECT)


OPENRLHF = ToolFormat(
    name="openrlhf",
    title=phrase("an OpenRLHF script"),
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
