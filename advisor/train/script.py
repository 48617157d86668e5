"""The training script of `ds-advise train`: the Hugging Face Trainer on token sequences that are ready.

    torchrun -m ds_advise.advisor.train.script --model_name_or_path MODEL --tokenizer_name TOKENIZER
        --train_file train.arrow --max_length 2048 --output_dir output --deepspeed ds_config.json ...

The options are those of `ScriptArguments` and of TrainingArguments. `--per_device_eval_batch_size 0` selects the batch
size of the training. No code from the model's folder is executed: weights are safetensors only, without remote code.

TRL's SFTTrainer (1.16) is not used: it finds answers only in chat templates that it knows by their text; it packs a
micro batch into one sequence, whose mask without FlashAttention has (micro batch x length)^2 elements, which no plan
counts; and its own loss replaces those of `--loss`.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from ...ds_configs.tiled_compute import tile_feed_forward, tile_loss
from ...estimators.time.job import PADDED_TO
from ..data.tokenizing import IGNORED


@dataclass
class ScriptArguments:
    model_name_or_path: str
    tokenizer_name: str
    """Folder of the tokenizer, which is saved with the model."""
    train_file: str
    """Arrow file of samples with `input_ids` and `labels`; packed samples also have `position_ids`."""
    max_length: int
    """Maximum tokens of a sample."""
    eval_file: str | None = None
    dtype: str = "bfloat16"
    attn_implementation: str = "sdpa"
    lora_r: int = 0
    """Rank of LoRA adapters; 0 trains all weights."""
    lora_alpha: int = 0
    lora_dropout: float = 0.0
    lora_target_modules: list[str] = field(default_factory=lambda: ["all-linear"])
    lora_modules_to_save: list[str] = field(default_factory=list)
    load_in_4bit: bool = False
    sequence_parallel_size: int = 1
    """Ranks that share each sample (Ulysses)."""
    mlp_tiles: int = 0
    """Number of tiles of the feed-forward layers; 0 for no tiling."""
    loss_tiles: int = 0


class Collator:
    """Collator that pads on the right to the longest sample of a batch, rounded up to `PADDED_TO` within `seq_len`.

    Packed samples have `position_ids`, and the batch no attention mask: transformers keeps attention within each piece,
    and padding forms pieces of its own. Otherwise the batch has the mask, and the model derives the positions.

    shared_by: ranks that share each sample. The length is then a multiple of their number, and the batch has
        `position_ids` and no mask, which Ulysses drops: padding comes last, so no token attends to it.
    """

    def __init__(self, *, pad_id: int, seq_len: int, shared_by: int = 1) -> None:
        self._padding = {"input_ids": pad_id, "labels": IGNORED, "position_ids": 0}
        self._seq_len = seq_len
        self._shared_by = shared_by

    def __call__(self, samples: Sequence[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        multiple = math.lcm(PADDED_TO, self._shared_by)
        lengths = [len(sample["input_ids"]) for sample in samples]
        length = min(-(-max(lengths) // multiple) * multiple, self._seq_len)
        batch = {
            name: torch.tensor([sample[name] + [value] * (length - len(sample[name])) for sample in samples])
            for name, value in self._padding.items()
            if name in samples[0]
        }
        if self._shared_by > 1:
            batch["position_ids"] = torch.arange(length).repeat(len(samples), 1)
        elif "position_ids" not in batch:
            batch["attention_mask"] = (torch.arange(length) < torch.tensor(lengths)[:, None]).long()
        return batch


def main() -> None:
    # TrainingArguments come before the model, so that transformers knows of ZeRO-3 and shards the model while it loads.
    parser = HfArgumentParser([ScriptArguments, TrainingArguments])  # type: ignore[list-item]
    options, arguments = parser.parse_args_into_dataclasses()
    arguments.per_device_eval_batch_size = arguments.per_device_eval_batch_size or arguments.per_device_train_batch_size
    if options.sequence_parallel_size > 1:
        arguments.parallelism_config = _sharing(options, arguments.world_size)
    set_seed(arguments.seed)
    tokenizer = AutoTokenizer.from_pretrained(options.tokenizer_name, trust_remote_code=False)
    model = load_model(options, arguments)
    uses_cache = getattr(model.config, "use_cache", None)
    pad_id = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_file(options.train_file),
        eval_dataset=Dataset.from_file(options.eval_file) if options.eval_file else None,
        data_collator=Collator(pad_id=pad_id, seq_len=options.max_length, shared_by=options.sequence_parallel_size),
        processing_class=tokenizer,
        callbacks=[EndsAtLastStep()],
    )
    if options.mlp_tiles:
        tile_feed_forward(trainer.model, options.mlp_tiles)
    if options.loss_tiles:
        tile_loss(trainer.model, options.loss_tiles)
    swanlab = start_swanlab() if "swanlab" in arguments.report_to and trainer.is_world_process_zero() else None
    with contextlib.suppress(AllStepsMadeError):
        trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint)
    state = trainer.state
    if state.global_step >= state.max_steps:
        if options.eval_file and not any(
            "eval_loss" in log for log in state.log_history if log["step"] == state.max_steps
        ):
            trainer.evaluate()
        if uses_cache is not None:  # the Trainer turns it off, and the saved model would generate without a cache
            model.config.use_cache = uses_cache
        gathers = "zero_optimization.stage3_gather_16bit_weights_on_model_save"
        if not _is_zero3(arguments) or arguments.hf_deepspeed_config.is_true(gathers):
            trainer.save_model()
        trainer.save_state()
    if swanlab is not None:
        swanlab.finish()
    trainer.accelerator.end_training()


def _is_zero3(arguments: TrainingArguments) -> bool:
    config = arguments.hf_deepspeed_config
    return config is not None and bool(config.is_zero3())


def load_model(options: ScriptArguments, arguments: TrainingArguments) -> Any:
    dtype = getattr(torch, options.dtype)
    more: dict[str, Any] = {}
    if options.load_in_4bit:
        quantization = BitsAndBytesConfig(  # type: ignore[no-untyped-call]
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
        )
        # Under ZeRO-3 transformers takes no device_map; bitsandbytes' quantizer then takes the rank's own GPU.
        place = {} if _is_zero3(arguments) else {"device_map": {"": arguments.local_process_index}}
        more = {"quantization_config": quantization, **place}
    model = AutoModelForCausalLM.from_pretrained(
        options.model_name_or_path,
        dtype=dtype,
        attn_implementation=options.attn_implementation,
        trust_remote_code=False,
        use_safetensors=True,
        **more,
    )
    if not options.lora_r:
        return model
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

    if options.load_in_4bit:
        model = prepare_model_for_kbit_training(  # type: ignore[no-untyped-call]
            model,
            use_gradient_checkpointing=arguments.gradient_checkpointing,
            gradient_checkpointing_kwargs=arguments.gradient_checkpointing_kwargs,
        )
    targets = options.lora_target_modules
    config = LoraConfig(
        r=options.lora_r,
        lora_alpha=options.lora_alpha,
        lora_dropout=options.lora_dropout,
        task_type="CAUSAL_LM",
        target_modules="all-linear" if targets == ["all-linear"] else targets,
        modules_to_save=options.lora_modules_to_save or None,
    )
    # ZeRO-3 wants one type for all trained tensors (`ds_configs.training_script`).
    in_fp32 = options.load_in_4bit and not options.lora_modules_to_save
    return get_peft_model(model, config, autocast_adapter_dtype=in_fp32)


def _sharing(options: ScriptArguments, world_size: int) -> Any:
    """accelerate's ParallelismConfig of Ulysses. DeepSpeed's loader is restarted in every epoch: the Trainer takes
    exactly as many batches as an epoch has, but the loader detects the end of an epoch only beyond its last batch, and
    every second epoch would be empty (deepspeed 0.19.8 ulysses_sp.py `UlyssesSPDataLoaderAdapter`)."""
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils import DeepSpeedSequenceParallelConfig

    loader: Any = import_module("deepspeed.runtime.sequence_parallel.ulysses_sp").UlyssesSPDataLoaderAdapter

    def begin(self: Any) -> Any:
        self.iter = iter(self.dl)
        self.micro_batches.clear()
        return self

    loader.__iter__ = begin
    return ParallelismConfig(
        sp_backend="deepspeed",
        sp_size=options.sequence_parallel_size,
        dp_shard_size=world_size // options.sequence_parallel_size,
        sp_handler=DeepSpeedSequenceParallelConfig(
            sp_seq_length_is_variable=True, sp_attn_implementation=options.attn_implementation
        ),
    )


class AllStepsMadeError(Exception):
    """Raised if the checkpoint to resume from is that of the last step."""


class EndsAtLastStep(TrainerCallback):
    """Callback that prevents a step beyond the last, which the Trainer would make after a resumption unless an epoch
    ends there."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        if state.global_step >= state.max_steps:
            raise AllStepsMadeError


def start_swanlab() -> Any:
    """The swanlab module with an active run, which transformers' callback (5.23) requires: `get_run` raises without
    one. SWANLAB_MODE selects the mode. If SwanLab cannot be reached or no user is logged in, the run is kept in
    ./swanlog for `swanlab sync`."""
    swanlab = import_module("swanlab")
    try:
        swanlab.init(project=os.environ.get("SWANLAB_PROJECT"))
    except Exception as error:
        print(f"SwanLab is offline: {error}", file=sys.stderr)
        swanlab.init(project=os.environ.get("SWANLAB_PROJECT"), mode="offline", reinit=True)
    return swanlab


if __name__ == "__main__":
    main()
