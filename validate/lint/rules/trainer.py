"""DS15x: `auto` and the Trainer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..facts import DeepSpeedFacts
from ..linted_config import LintedConfig
from ..rule import Hit, Path, Rules, hit
from .examples import trainer, zero

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
    "steps_per_print",
}
"""Keys for which the Trainer has a value (`trainer_config_process`, `trainer_config_finalize`), and the one that
accelerate overwrites whatever it says (`DeepSpeedPlugin.__post_init__`)."""

_ACCELERATES = {
    "zero_optimization.stage": "2",
    "zero_optimization.offload_optimizer.device": '"none"',
    "zero_optimization.offload_optimizer.nvme_path": '"none"',
    "zero_optimization.offload_param.device": '"none"',
    "zero_optimization.offload_param.nvme_path": '"none"',
    "zero_optimization.stage3_gather_16bit_weights_on_model_save": "false",
}
"""Keys that accelerate's plugin fills from its environment, and what with where nothing is set there."""

_READ_AS_THEY_ARE = (
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
    why="only the Trainer and accelerate replace it, and only for some keys: accelerate stops at any that is left; "
    "DeepSpeed computes with the text and stops",
    fix="write a value, or leave the key out",
    source=_TRAINER + "; accelerate/utils/dataclasses.py DeepSpeedPlugin.deepspeed_config_process",
    options={"framework": "hf"},
    bad=trainer(zero_optimization=zero(3, stage3_max_live_parameters="auto")),
    good=trainer(zero_optimization=zero(3, reduce_bucket_size="auto")),
)
def unfilled(config: LintedConfig) -> Iterator[Hit]:
    if config.framework == "hf":
        for path in _autos(config.values):
            if not _filled(path):
                yield Hit(path=path, what='neither the Trainer nor accelerate fills "auto" here')
        return
    paths = list(_READ_AS_THEY_ARE)
    for block in ("optimizer.params", "scheduler.params"):
        paths += [f"{block}.{name}" for name in config.block(block)]
    for each in paths:
        if config.is_auto(each):
            yield hit(each, 'plain DeepSpeed does not fill "auto" here')


def is_for_the_trainer(values: Any, facts: DeepSpeedFacts) -> bool:
    """Whether a file with these settings must be meant for the Trainer or accelerate: it leaves them an "auto" that
    plain DeepSpeed does not take as its default, or only such as they fill."""
    paths = list(_autos(values)) if isinstance(values, dict) else []
    blocks = [facts.block(".".join(path[:-1])) for path in paths]
    dropped = all(block is not None and block.strict for block in blocks)
    return bool(paths) and (all(map(_filled, paths)) or not dropped)


def _filled(path: Path) -> bool:
    return ".".join(path) in _FILLED or ".".join(path) in _ACCELERATES


def _autos(node: dict[str, Any], above: Path = ()) -> Iterator[Path]:
    """Where "auto" stands; accelerate looks into objects, not into lists."""
    for name, value in node.items():
        if isinstance(value, dict):
            yield from _autos(value, (*above, name))
        elif isinstance(value, str) and value == "auto":
            yield (*above, name)


@rules.advice(
    'DS152 "auto" that means a default',
    why='DeepSpeed drops "auto" from the blocks that it checks, and its own default holds; accelerate fills a few keys '
    "with its own",
    fix="write the value that you want",
    source="runtime/config_utils.py DeepSpeedConfigModel.__init__; accelerate/utils/dataclasses.py DeepSpeedPlugin",
    options={"framework": "deepspeed"},
    bad={"train_micro_batch_size_per_gpu": 1, "zero_optimization": zero(2, allgather_bucket_size="auto")},
    good={"train_micro_batch_size_per_gpu": 1, "zero_optimization": zero(2, allgather_bucket_size=100_000_000)},
)
def default(config: LintedConfig) -> Iterator[Hit]:
    if config.framework == "hf":
        for path, value in _ACCELERATES.items():
            if config.is_auto(path):
                yield hit(path, f'"auto" here is {value}, unless accelerate is told otherwise')
        return
    for block in config.facts.blocks:
        for key in config.block(block.path) if block.strict else ():
            path = f"{block.path}.{key}"
            field = block.field(key)
            if field is not None and config.is_auto(path) and not field.block:
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
    if config.framework == "hf" and config.has_adam and "lr" not in config.block("optimizer.params"):
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
