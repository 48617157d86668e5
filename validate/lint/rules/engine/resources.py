"""DS9xx: the model on these GPUs: what does not fit, and what is slower than need be. Predictions, not measurements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from .....estimators.memory.plan_memory import estimate_memory, unsupported
from .....estimators.plan import Plan
from .....estimators.time.step_time import estimate_time
from ...linted_config import LintedConfig
from ...rule import Hit, Rules, hit
from ..examples import CPU, zero

rules = Rules()

MARGIN = 0.05
"""Share of the predicted need that must be free besides; the recommendation's (advisor/recommend/fit.py)."""

GAIN = 1.10
"""A prediction of less is within the error of the time model."""

_SOURCE = "estimators/memory/plan_memory.py, estimators/time/step_time.py"
_BF16: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}


@rules.warning(
    "DS901",
    "a training that does not fit the GPUs",
    why="the predicted need, with the margin of its error, is more than the GPU has",
    fix="`ds-advise MODEL --gpus SPEC` finds what fits",
    source=_SOURCE,
    options={"model": "Qwen2.5-7B", "gpus": "2x24GB"},
    bad=_BF16 | {"zero_optimization": zero(2)},
    good=_BF16
    | {
        "zero_optimization": zero(
            3,
            sub_group_size=1e8,
            reduce_bucket_size=5e7,
            stage3_max_live_parameters=1e8,
            stage3_max_reuse_distance=1e8,
            offload_optimizer=CPU,
            offload_param=CPU,
        )
    },
)
def too_large(config: LintedConfig) -> Iterator[Hit]:
    plan, cluster = _plan(config), config.cluster
    if plan is None or cluster is None:
        return
    need = _need(config, plan)
    if need is not None and need * (1 + MARGIN) > cluster.gpu.memory_bytes:
        yield hit(
            "zero_optimization",
            f"it needs about {_gb(need)} per GPU, which has {_gb(cluster.gpu.memory_bytes)}",
        )


@rules.warning(
    "DS902",
    "a training that does not fit the RAM",
    why="a process that the system kills because RAM runs out leaves no message",
    fix="offload less, or use a machine with more RAM",
    source=_SOURCE,
    options={"model": "Qwen2.5-7B", "gpus": "2x24GB", "ram": "64GB"},
    bad=_BF16 | {"zero_optimization": zero(3, offload_optimizer=CPU)},
    good=_BF16 | {"zero_optimization": zero(3)},
)
def too_much_ram(config: LintedConfig) -> Iterator[Hit]:
    plan, cluster = _plan(config), config.cluster
    ram = cluster.host_memory_bytes_per_node if cluster is not None else None
    if plan is None or cluster is None or not ram or config.model is None or config.workload is None:
        return
    need = estimate_memory(config.model, config.workload, cluster, plan).host_bytes_per_node
    if need > ram:
        yield hit("zero_optimization", f"it needs about {_gb(need)} of RAM per node, which has {_gb(ram)}")


@rules.advice(
    "DS903",
    "an offload that is not needed",
    why="what fits the GPUs runs faster there, because nothing waits for the CPU's optimizer or for copies over PCIe",
    fix="remove it",
    source=_SOURCE,
    options={"model": "Qwen2.5-0.5B", "gpus": "8xA100-80GB"},
    bad=_BF16 | {"zero_optimization": zero(2, offload_optimizer=CPU)},
    good=_BF16 | {"zero_optimization": zero(2)},
)
def unneeded_offload(config: LintedConfig) -> Iterator[Hit]:
    plan = _plan(config)
    if plan is None:
        return
    without: dict[str, Plan] = {
        "offload_param": replace(plan, offload_param="none"),
        "offload_optimizer": replace(plan, offload_optimizer="none", offload_param="none"),
    }
    for name, other in reversed(without.items()):
        if getattr(plan, name) != "none" and (gain := _gain(config, plan, other)):
            yield hit(f"zero_optimization.{name}", f"without it the model fits, and is predicted {gain:.1f} x as fast")
            return


@rules.advice(
    "DS904",
    "a higher stage than needed",
    why="stage 3 gathers the weights for every forward and backward pass; a lower stage that fits communicates less",
    source=_SOURCE,
    options={"model": "Qwen2.5-0.5B", "gpus": "8xL40S"},
    bad=_BF16
    | {
        "zero_optimization": zero(
            3, stage3_max_live_parameters=1e7, stage3_max_reuse_distance=1e7, reduce_bucket_size=5e7
        )
    },
    good=_BF16 | {"zero_optimization": zero(2, reduce_bucket_size=5e7)},
)
def lower_stage(config: LintedConfig) -> Iterator[Hit]:
    plan = _plan(config)
    if plan is None or plan.zero_stage != 3 or plan.offload_param != "none" or plan.offload_optimizer == "nvme":
        return
    gain = _gain(config, plan, replace(plan, zero_stage=2))
    if gain:
        yield hit("zero_optimization.stage", f"stage 2 fits, and is predicted {gain:.1f} x as fast", fix="use stage 2")


@rules.advice(
    "DS905",
    "an offloaded optimizer that steps often",
    why="the CPU's optimizer takes its time once a step, however many micro batches the step has",
    source=_SOURCE,
    options={"model": "Qwen2.5-7B", "gpus": "4xA100-40GB", "framework": "deepspeed"},
    bad=_BF16 | {"zero_optimization": zero(3, offload_optimizer=CPU)},
    good=_BF16 | {"gradient_accumulation_steps": 64, "zero_optimization": zero(3, offload_optimizer=CPU)},
)
def steps_often(config: LintedConfig) -> Iterator[Hit]:
    plan = _plan(config)
    if plan is None or plan.offload_optimizer == "none" or plan.gradient_accumulation_steps >= 16:
        return
    more = replace(plan, gradient_accumulation_steps=4 * plan.gradient_accumulation_steps)
    gain = _gain(config, plan, more)
    if gain and gain > 1.25:
        yield hit(
            "gradient_accumulation_steps",
            f"{more.gradient_accumulation_steps} accumulation steps are predicted to give {gain:.1f} x the tokens per "
            "second",
            fix="accumulate more, if the training may have the larger batch",
        )


def _plan(config: LintedConfig) -> Plan | None:
    """The plan, where the closed forms can predict it."""
    plan, model, workload = config.plan, config.model, config.workload
    if plan is None or model is None or workload is None or unsupported(model, workload, plan, config.cluster):
        return None
    return plan


def _need(config: LintedConfig, plan: Plan) -> int | None:
    model, workload, cluster = config.model, config.workload, config.cluster
    if model is None or workload is None or cluster is None or unsupported(model, workload, plan, cluster):
        return None
    return estimate_memory(model, workload, cluster, plan).device_bytes_per_gpu


def _gain(config: LintedConfig, plan: Plan, other: Plan) -> float:
    """How many times as many tokens per second another plan gives; 0 where it does not fit or gains nothing."""
    model, workload, cluster = config.model, config.workload, config.cluster
    need = _need(config, other)
    if model is None or workload is None or cluster is None or need is None:
        return 0.0
    if need * (1 + MARGIN) > cluster.gpu.memory_bytes:
        return 0.0

    def rate(of: Plan) -> float:
        return of.gradient_accumulation_steps / estimate_time(model, workload, cluster, of).step_s

    gain = rate(other) / rate(plan)
    return gain if gain >= GAIN else 0.0


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB"
