"""DS8xx: saving checkpoints, and checkpointing of activations."""

from __future__ import annotations

from collections.abc import Iterator

from ..linted_config import LintedConfig, shown
from ..rule import Hit, Rules, hit
from .examples import plain, trainer, zero

rules = Rules()

_CHECKPOINT = "runtime/model_checkpointing/config.py"


@rules.error(
    "DS801 an unknown tag validation",
    why="DeepSpeed knows Warn, Ignore and Fail",
    fix='write "Warn"',
    source="runtime/config.py get_checkpoint_tag_validation_mode",
    bad=plain(checkpoint={"tag_validation": "strict"}),
    good=plain(checkpoint={"tag_validation": "Fail"}),
)
def tag_validation(config: LintedConfig) -> Iterator[Hit]:
    value = config.get("checkpoint.tag_validation")
    known = isinstance(value, str) and value.upper() in ("WARN", "IGNORE", "FAIL")
    if "tag_validation" in config.block("checkpoint") and not known:
        yield hit("checkpoint.tag_validation", f"tag_validation is {shown(value)}")


@rules.error(
    "DS802 an unknown checkpoint writer",
    why="DeepSpeed asserts the writer's type and its unit of data parallelism",
    fix='types are "mock", "python", "fast"; units "replica", "socket", "machine"',
    source=_CHECKPOINT,
    bad=plain(checkpoint={"writer": {"type": "quick"}}),
    good=plain(checkpoint={"writer": {"type": "fast"}}),
)
def writer(config: LintedConfig) -> Iterator[Hit]:
    known = {"type": ("MOCK", "PYTHON", "FAST"), "data_parallel": ("REPLICA", "SOCKET", "MACHINE")}
    for name, values in known.items():
        value = config.get(f"checkpoint.writer.{name}")
        if value is not None and not (isinstance(value, str) and value.upper() in values):
            yield hit(f"checkpoint.writer.{name}", f"{name} is {shown(value)}")


@rules.advice(
    "DS806 a checkpoint writer, which needs the deepspeed launcher",
    why="the writer reads CROSS_SIZE from the environment, which only the deepspeed launcher sets: under torchrun "
    "or accelerate DeepSpeed stops with a KeyError",
    fix="start with the deepspeed launcher, or export CROSS_SIZE and CROSS_RANK (number of nodes, and this node's)",
    source="runtime/model_checkpointing/utils.py, launcher/launch.py",
    bad=plain(checkpoint={"writer": {"type": "fast"}}),
    good=plain(checkpoint={"tag_validation": "Warn"}),
)
def needs_launcher(config: LintedConfig) -> Iterator[Hit]:
    if isinstance(config.get("checkpoint.writer"), dict):
        yield hit("checkpoint.writer", "it needs the deepspeed launcher")


@rules.error(
    "DS803 a pipeline stage that is not true or false",
    why="DeepSpeed raises an error for any other value",
    fix="write true or false",
    source="runtime/config.py get_checkpoint_parallel_write_pipeline",
    bad=plain(checkpoint={"parallel_write": {"pipeline_stage": "yes"}}),
    good=plain(checkpoint={"parallel_write": {"pipeline_stage": True}}),
)
def pipeline_stage(config: LintedConfig) -> Iterator[Hit]:
    value = config.get("checkpoint.parallel_write.pipeline_stage")
    right = isinstance(value, bool) or (isinstance(value, int | float) and value in (0, 1))
    if "pipeline_stage" in config.block("checkpoint.parallel_write") and not right:
        yield hit("checkpoint.parallel_write.pipeline_stage", f"pipeline_stage is {shown(value)}")


@rules.advice(
    "DS804 activation_checkpointing that has no effect",
    why="it configures deepspeed.checkpointing; transformers' models use torch's checkpointing, so this block "
    "recomputes and saves nothing",
    fix="set gradient_checkpointing in TrainingArguments, and remove the block",
    source="runtime/activation_checkpointing/checkpointing.py configure",
    options={"framework": "hf"},
    bad=trainer(zero_optimization=zero(2), activation_checkpointing={"partition_activations": True}),
    good=trainer(zero_optimization=zero(2)),
)
def activations(config: LintedConfig) -> Iterator[Hit]:
    block = config.block("activation_checkpointing")
    if config.framework == "hf" and any(block.values()):
        yield hit("activation_checkpointing", "the block does not checkpoint a transformers model")


@rules.warning(
    "DS805 contiguous checkpoints without what they need",
    why="deepspeed.checkpointing asserts that activations are partitioned and that the number of layers is known",
    fix='set "partition_activations": true and "number_checkpoints"',
    source="runtime/activation_checkpointing/checkpointing.py configure",
    bad=plain(activation_checkpointing={"contiguous_memory_optimization": True}),
    good=plain(
        activation_checkpointing={
            "contiguous_memory_optimization": True,
            "partition_activations": True,
            "number_checkpoints": 32,
        }
    ),
)
def contiguous(config: LintedConfig) -> Iterator[Hit]:
    block = "activation_checkpointing"
    if not config.flag(f"{block}.contiguous_memory_optimization"):
        return
    if not config.flag(f"{block}.partition_activations"):
        yield hit(f"{block}.contiguous_memory_optimization", "partition_activations is off")
    elif config.get(f"{block}.number_checkpoints") is None:
        yield hit(f"{block}.number_checkpoints", "number_checkpoints is missing")
