"""DS65x: mixtures of experts: AutoEP."""

from __future__ import annotations

from collections.abc import Iterator

from ....ds_configs.read import FIRST_WITHOUT_AUTOEP
from ...versions import parse_version
from ..installed_facts import installed_version
from ..linted_config import LintedConfig
from ..rule import Hit, Rules, hit
from .examples import ON, plain, zero

rules = Rules()

_AUTOEP = {"enabled": True, "autoep_size": 2, "preset_model": "qwen3_moe"}
_SOURCE = "module_inject/auto_ep_config.py validate_autoep_post_detection; module_inject/auto_ep_folding.py"


def _size(config: LintedConfig) -> int:
    """autoep_size where AutoEP is on, else 0."""
    size = config.number("expert_parallel.autoep_size")
    return int(size if size is not None else 1) if config.flag("expert_parallel.enabled") else 0


@rules.warning(
    "DS651 AutoEP with a transformers it does not know",
    why="DeepSpeed replaces modules of transformers by their inner workings; with 5.23 it stops at initialize with "
    "`_CanRecordRegistry.get() takes 2 positional arguments but 3 were given`",
    fix="install transformers 5.8",
    since="0.19",
    source="module_inject/auto_ep_presets/base.py _install_instance_transformers_output_recorders",
    bad=plain(bf16=ON, zero_optimization=zero(2), expert_parallel=_AUTOEP),
    good=plain(bf16=ON, zero_optimization=zero(2)),
)
def unknown_transformers(config: LintedConfig) -> Iterator[Hit]:
    installed = installed_version("transformers")
    if installed is None:
        return
    release = parse_version(installed).release
    if _size(config) and not (5, 0) <= release < FIRST_WITHOUT_AUTOEP:
        worse = release >= FIRST_WITHOUT_AUTOEP
        how = "cannot be initialized" if worse else "has not been seen to train"
        yield hit("expert_parallel", f"AutoEP {how} with transformers {installed}", severity="error" if worse else None)


@rules.error(
    "DS652 experts or ranks that autoep_size does not divide",
    why="every rank of a group owns as many experts, and groups divide the ranks; DeepSpeed refuses anything else",
    since="0.19",
    source=_SOURCE,
    options={"model": "Qwen3-30B-A3B", "gpus": "8xH100"},
    bad=plain(bf16=ON, zero_optimization=zero(2), expert_parallel=_AUTOEP | {"autoep_size": 3}),
    good=plain(bf16=ON, zero_optimization=zero(2)),
)
def undividable_experts(config: LintedConfig) -> Iterator[Hit]:
    size, ranks = _size(config), config.world_size
    counts = {block.feed_forward.experts for block in config.model.blocks} - {0} if config.model else set()
    for count in sorted(counts):
        if size > 0 and count % size:
            yield hit(
                "expert_parallel.autoep_size",
                f"{count} experts do not divide over {size} ranks",
                fix="write a divisor of the number of experts",
            )
    if size > 0 and ranks is not None and ranks % size:
        yield hit(
            "expert_parallel.autoep_size",
            f"{ranks} ranks do not divide into groups of {size}",
            fix="write a divisor of the number of ranks",
        )


@rules.warning(
    "DS653 AutoEP without experts",
    why="it replaces mixtures of experts, and this model has none",
    fix="remove expert_parallel",
    since="0.19",
    source="runtime/engine.py _configure_expert_parallel",
    options={"model": "Qwen2.5-7B"},
    bad=plain(bf16=ON, zero_optimization=zero(2), expert_parallel=_AUTOEP),
    good=plain(bf16=ON, zero_optimization=zero(2)),
)
def no_experts(config: LintedConfig) -> Iterator[Hit]:
    if _size(config) and config.model and not any(block.feed_forward.experts for block in config.model.blocks):
        yield hit("expert_parallel", f"{config.model.name} has no mixture of experts")


@rules.error(
    "DS654 AutoEP at stage 3 with what it does not know",
    why="DeepSpeed asserts that experts which ranks keep are partitioned neither over ranks that share samples nor in "
    "second copies, and that their gradients travel as they are",
    fix="remove it, or use stage 2",
    since="0.19",
    source="runtime/engine.py _validate_zero3_moe_compatibility",
    bad=plain(
        bf16=ON,
        zero_optimization=zero(3, zero_hpz_partition_size=8),
        expert_parallel=_AUTOEP,
    ),
    good=plain(bf16=ON, zero_optimization=zero(3, zero_hpz_partition_size=8)),
)
def unknown_at_stage_3(config: LintedConfig) -> Iterator[Hit]:
    if config.stage != 3 or not _size(config):
        return
    for path in ("zero_optimization.zero_hpz_partition_size", "sequence_parallel_size"):
        if (config.number(path) or 1) > 1:
            yield hit(path, f"AutoEP at stage 3 does not go with {path.rpartition('.')[2]}")
    if config.flag("zero_optimization.zero_quantized_gradients"):
        yield hit(
            "zero_optimization.zero_quantized_gradients", "AutoEP at stage 3 does not go with quantized gradients"
        )
