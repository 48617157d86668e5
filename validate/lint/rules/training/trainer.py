"""DS15x: `auto` and the Trainer."""

from __future__ import annotations

from collections.abc import Iterator

from ...linted_config import LintedConfig
from ...rule import Hit, Rules, hit
from ..examples import trainer, zero

rules = Rules()

_TRAINER = "transformers/integrations/deepspeed.py HfTrainerDeepSpeedConfig"
_FILLED = {
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "optimizer.params.lr",
    "optimizer.params.betas",
    "optimizer.params.eps",
    "optimizer.params.weight_decay",
    "scheduler.params.warmup_min_lr",
    "scheduler.params.warmup_max_lr",
    "scheduler.params.warmup_num_steps",
    "scheduler.params.total_num_steps",
    "fp16.enabled",
    "bf16.enabled",
    "zero_optimization.reduce_bucket_size",
    "zero_optimization.stage3_prefetch_bucket_size",
    "zero_optimization.stage3_param_persistence_threshold",
}
"""Keys for which the Trainer has a value (`trainer_config_process`, `trainer_config_finalize`)."""

_NUMBERS = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "steps_per_print",
    "wall_clock_breakdown",
    "gradient_predivide_factor",
    "communication_data_type",
    "seq_parallel_communication_data_type",
    "gradient_allreduce_op",
)
"""Keys whose text "auto" DeepSpeed computes or looks up with, and fails."""

_OTHERS = {  # TrainingArguments' names
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "max_grad_norm",
    "optimizer.params.lr": "learning_rate",
    "optimizer.params.weight_decay": "weight_decay",
    "scheduler.params.warmup_max_lr": "learning_rate",
}


@rules.error(
    'DS151 "auto" that nobody fills',
    why="only the Trainer and accelerate replace it, and only for some keys; DeepSpeed computes with the text and "
    "stops",
    fix="write a value",
    source=_TRAINER,
    options={"framework": "deepspeed"},
    bad=trainer(),
    good={"train_micro_batch_size_per_gpu": 1},
)
def unfilled(config: LintedConfig) -> Iterator[Hit]:
    paths = list(_NUMBERS)
    for block in ("optimizer.params", "scheduler.params"):
        paths += [f"{block}.{name}" for name in config.block(block)]
    for path in paths:
        if config.is_auto(path) and (config.framework == "deepspeed" or path not in _FILLED):
            who = "plain DeepSpeed" if config.framework == "deepspeed" else "the Trainer"
            yield hit(path, f'{who} does not fill "auto" here')


@rules.advice(
    'DS152 "auto" that means DeepSpeed\'s default',
    why='DeepSpeed drops "auto" from the blocks that it checks, and its own default holds',
    fix="write the value that you want",
    source="runtime/config_utils.py DeepSpeedConfigModel.__init__",
    options={"framework": "hf"},
    bad=trainer(zero_optimization=zero(2, allgather_bucket_size="auto")),
    good=trainer(zero_optimization=zero(2, reduce_bucket_size="auto")),
)
def default(config: LintedConfig) -> Iterator[Hit]:
    for block in config.facts.blocks:
        for key in config.block(block.path) if block.strict else ():
            path = f"{block.path}.{key}"
            field = block.field(key)
            filled = config.framework == "hf" and path in _FILLED
            if field is not None and config.is_auto(path) and not filled and not field.block:
                yield hit(
                    path,
                    f'"auto" here is the default, {field.default!r}'
                    if field.default_known
                    else '"auto" here is the default',
                )


@rules.error(
    "DS153 no zero_optimization for the Trainer",
    why="accelerate refuses a configuration without it, even for plain data parallelism",
    fix='add "zero_optimization": {"stage": 0}',
    source="accelerate/utils/dataclasses.py DeepSpeedPlugin.__post_init__",
    options={"framework": "hf"},
    bad=trainer(),
    good=trainer(zero_optimization=zero(0)),
)
def no_zero(config: LintedConfig) -> Iterator[Hit]:
    tuned = config.flag("autotuning.enabled")  # DeepSpeed's autotuner writes the block itself
    if config.framework == "hf" and not config.has("zero_optimization") and not tuned:
        yield hit("zero_optimization", "zero_optimization is missing")


@rules.advice(
    "DS154 a number that TrainingArguments has too",
    why="the Trainer compares them when it starts, and stops where they differ",
    fix='write "auto", so that TrainingArguments decides',
    source=_TRAINER + ".fill_match",
    options={"framework": "hf"},
    bad={"train_micro_batch_size_per_gpu": 4, "zero_optimization": zero(2)},
    good=trainer(zero_optimization=zero(2)),
)
def in_both(config: LintedConfig) -> Iterator[Hit]:
    for path, argument in _OTHERS.items():
        if config.framework == "hf" and config.number(path) is not None:
            yield hit(path, f"{path} must be equal to TrainingArguments' {argument}")


@rules.warning(
    "DS155 a learning rate that TrainingArguments cannot set",
    why='the Trainer fills lr only where the file says "auto"; without the key DeepSpeed\'s Adam takes 1e-3, whatever '
    "learning_rate is",
    fix='add "lr": "auto" to optimizer.params',
    source=_TRAINER + ".fill_match; ops/adam/fused_adam.py",
    options={"framework": "hf"},
    bad=trainer(zero_optimization=zero(2), optimizer={"type": "AdamW", "params": {"weight_decay": 0.0}}),
    good=trainer(zero_optimization=zero(2), optimizer={"type": "AdamW", "params": {"lr": "auto"}}),
)
def no_rate(config: LintedConfig) -> Iterator[Hit]:
    adam = config.optimizer in ("adam", "adamw")
    if config.framework == "hf" and adam and "lr" not in config.block("optimizer.params"):
        yield hit("optimizer.params", "optimizer.params has no lr")


@rules.advice(
    "DS156 a bucket of H^2 that is too small for any link",
    why="the Trainer fills reduce_bucket_size with the square of the hidden size; below about a million elements a "
    "collective takes hardly more than its latency",
    source=_TRAINER + ".trainer_config_finalize",
    options={"framework": "hf", "model": "gpt2", "gpus": "8xA100-80GB"},
    bad=trainer(zero_optimization=zero(2, reduce_bucket_size="auto")),
    good=trainer(zero_optimization=zero(2, reduce_bucket_size=50_000_000)),
)
def small_bucket(config: LintedConfig) -> Iterator[Hit]:
    path = "zero_optimization.reduce_bucket_size"
    if config.framework == "hf" and config.model is not None and config.is_auto(path) and config.stage:
        elements = config.model.hidden_size**2
        if elements < 1_000_000:
            yield hit(path, f"the bucket is {elements:,} elements", fix="write a number, such as 50000000")
