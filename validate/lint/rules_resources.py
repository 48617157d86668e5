"""The model on these GPUs: memory and avoidable slowness (DS9xx). Predictions, not measurements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...estimators.memory.fit_probability import FIT_THRESHOLD
from ...estimators.units import gib
from .key_effects import unpredicted
from .linted_config import FasterConfig, LintedConfig
from .rule import Severity, Violation, advice_rule, error_rule, section, violation

_SOURCE = "estimators/memory/plan_memory.py, estimators/time/step_time.py"

_GPU_RUNS_OUT = "a GPU that runs out of memory ends the training"
_RAM_RUNS_OUT = "a process that the system kills because RAM runs out leaves no message"


def _too_large(config: LintedConfig) -> Iterator[Violation]:
    situation = config.situation
    if situation is None:
        return
    memory, available = situation.memory(), gib(situation.cluster.gpu.memory_bytes)
    time = " at the first evaluation" if memory.peak.name == "evaluation" else ""
    what = f"it needs about {gib(memory.device_bytes_per_gpu)} GiB per GPU{time}, which has {available} GiB"
    yield from _may_not_fit(config, what, situation.fit_probability(), _GPU_RUNS_OUT)


def _too_much_ram(config: LintedConfig) -> Iterator[Violation]:
    situation = config.situation
    ram = situation.cluster.host_memory_bytes_per_node if situation else None
    if situation and ram:
        need = gib(situation.memory().host_bytes_per_node)
        what = f"it needs about {need} GiB of RAM per node, which has {gib(ram)} GiB"
        yield from _may_not_fit(config, what, situation.host_fit_probability(), _RAM_RUNS_OUT)


def _may_not_fit(config: LintedConfig, what: str, probability: float, why: str) -> Iterator[Violation]:
    """An error if it cannot be expected to fit, a warning if it may."""
    if probability >= FIT_THRESHOLD:
        return
    severity: Severity = "error" if probability < 1 - FIT_THRESHOLD else "warning"
    if severity == "warning":
        what += f": it fits with a probability of {probability:.0%}, because the prediction has an error"
    yield violation("zero_optimization", what, why=why, fix=config.what_fits(), severity=severity)


def _unneeded_offload(config: LintedConfig) -> Iterator[Violation]:
    if (faster := config.faster) and faster.removed:
        names = " and ".join(faster.removed)
        at_stage = "" if faster.stage is None else f" at stage {faster.stage}"
        how = f"{at_stage}{_filled(faster, config)}"
        what = f"without {names} the model fits{how}, and is predicted {faster.gain:.1f} x as fast"
        fix = f"remove {names}" + ("" if faster.stage is None else f', and write "stage": {faster.stage}')
        yield violation(f"zero_optimization.{faster.removed[0]}", what, fix=fix)


def _filled(faster: FasterConfig, config: LintedConfig) -> str:
    """The batch that fills `auto` in the proposed configuration if it differs."""
    return f" ({faster.config.batch.words})" if faster.config.batch.words not in ("", config.batch.words) else ""


def _lower_stage(config: LintedConfig) -> Iterator[Violation]:
    if (faster := config.faster) and not faster.removed:
        what = f"at stage {faster.stage} it fits{_filled(faster, config)}, and is predicted {faster.gain:.1f} x as fast"
        yield violation("zero_optimization.stage", what)


def _left_out(config: LintedConfig) -> Iterator[Violation]:
    situation = config.situation
    found = unpredicted(config.values, config.facts, situation.plan, situation.model) if situation else ()
    for feature in found:
        yield violation(feature.key, f"{feature.name}: {feature.predicted}")


def _temporaries(config: LintedConfig) -> Iterator[Violation]:
    situation = config.situation
    if situation is None or situation.workload.software.optimizer_step == "auto":  # DeepSpeed's own optimizer
        return
    fused = replace(situation.workload.software, optimizer_step="fused")
    without = replace(situation, workload=replace(situation.workload, software=fused))
    more = situation.memory().allocated_bytes_per_gpu - without.memory().allocated_bytes_per_gpu
    if more > 0.01 * situation.cluster.gpu.memory_bytes:
        step = situation.workload.software.optimizer_step
        what = f"the {step} step needs {gib(more)} GiB more than a fused one"
        if situation.plan.zero_stage == 3:
            what += "; at stage 3 a smaller sub_group_size also helps"
        yield violation("zero_optimization", what)


PROPOSALS = ("DS903", "DS904")
"""Rules that propose another stage or offload."""

_MAY_FIT = (
    f"a warning if the probability that it fits is between {100 * (1 - FIT_THRESHOLD):g} and {100 * FIT_THRESHOLD:g} %"
)

RESOURCE_RULES = section(
    "Model and GPUs",
    error_rule(
        "DS901 a training that does not fit the GPUs",
        _too_large,
        why=f"{_GPU_RUNS_OUT}; {_MAY_FIT}",
        source=_SOURCE,
    ),
    error_rule(
        "DS902 a training that does not fit the RAM",
        _too_much_ram,
        why=f"{_RAM_RUNS_OUT}; {_MAY_FIT}",
        source=_SOURCE,
    ),
    advice_rule(
        "DS903 an offload that is not needed",
        _unneeded_offload,
        why="a model that fits the GPUs runs faster there: nothing waits for the CPU's optimizer or copies over PCIe",
        source=_SOURCE,
    ),
    advice_rule(
        "DS904 a higher stage than needed",
        _lower_stage,
        why="stage 3 gathers the weights for every forward and backward pass; a lower stage communicates less",
        fix='write "stage": 2',
        source=_SOURCE,
    ),
    advice_rule(
        "DS906 a feature that the predictions leave out",
        _left_out,
        why="the predicted memory and time are those of the same configuration without it",
        fix="run it: `ds-advise dry-run`, or on the GPUs `ds-advise probe`",
        source="ds_configs/read.py, validate/lint/key_effects.json",
    ),
    advice_rule(
        "DS907 temporaries of torch's AdamW",
        _temporaries,
        why="without an optimizer block the script makes torch's AdamW, whose foreach step (torch's default, and the "
        "Trainer's before transformers 4.54) holds the square roots of all second moments of a sub-group or partition",
        fix='pass optim="adamw_torch_fused" to the Trainer or fused=True to torch\'s class, or add an optimizer block',
        source="torch optim/adam.py _multi_tensor_adam",
    ),
)
