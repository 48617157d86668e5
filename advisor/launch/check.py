"""Before the start: does it fit the device, the host and the disk?"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...ds_configs.read import plan_from_ds_config
from ...estimators.errors import ClusterError, ConfigFileError
from ...estimators.estimate import Estimate
from ...estimators.estimate_plan import estimate_plan
from ...estimators.memory.checkpoint_size import checkpoint_bytes
from ...probes.dry_run import dry_run
from ...probes.real_run import probe
from ...probes.real_run.job import Device
from ...probes.store_path import anything_kept
from ..prove.calibration import as_measured
from ..prove.dry_run_answer import dry_run_answer
from ..prove.past_probes import KeptProbes, keep_probe
from ..question.run import RunQuestion
from ..recommend.fit import MARGIN
from ..terminal.units import gib, percent
from ..terminal.words import plan_title
from .other_plans import global_batch_size, plans_that_fit

How = Literal["dry-run", "probe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Objection:
    """Why the training must not start: one sentence, and what to change."""

    what: str
    fix: str


def prediction_of(asked: RunQuestion) -> Estimate | None:
    """The closed form for what is asked, with the time of the newest probe of the same on this machine; None for a
    model that it does not know, or a GPU of unknown speed."""
    if asked.shape is None:
        return None
    try:
        plan = plan_from_ds_config(
            asked.config,
            asked.shape,
            asked.cluster,
            micro_batch_size=asked.micro_batch_size,
            gradient_accumulation_steps=asked.gradient_accumulation_steps,
            gradient_checkpointing=asked.gradient_checkpointing,
        )
        estimate = estimate_plan(asked.shape, asked.workload, asked.cluster, plan)
    except (ClusterError, ConfigFileError):
        return None
    kept = None
    if asked.cluster.is_this_machine and anything_kept():
        kept = KeptProbes(asked.shape, asked.workload, asked.cluster).of_config(
            asked.config,
            asked.micro_batch_size,
            asked.gradient_accumulation_steps,
            gradient_checkpointing=asked.gradient_checkpointing,
        )
    if kept is None or kept.result.failure is not None:
        return estimate
    return as_measured(estimate, kept.result)


def objections(
    asked: RunQuestion,
    prediction: Estimate | None,
    *,
    how: How,
    device: Device,
    output_dir: Path | None,
    checkpoints: int,
    on_progress: Callable[[str], None],
) -> list[Objection]:
    """Everything that speaks against starting it; empty where it may start.

    how:         "probe" runs a few real steps on this machine, "dry-run" the real engine on a simulated GPU.
    output_dir:  where checkpoints go, None where that is not known. checkpoints: how many are on the disk at once at
        most.

    Raises DsAdviseError where the check itself cannot be made.
    """
    found = _disk(asked, output_dir, checkpoints) + _loading(asked, prediction)
    return found + (_probed(asked, device, on_progress) if how == "probe" else _dry_run(asked, on_progress))


def _dry_run(asked: RunQuestion, on_progress: Callable[[str], None]) -> list[Objection]:
    on_progress("dry run ...")
    result = dry_run(
        asked.config,
        asked.description,
        cluster=asked.cluster,
        workload=asked.workload,
        micro_batch_size=asked.micro_batch_size,
        gradient_accumulation_steps=asked.gradient_accumulation_steps,
        gradient_checkpointing=asked.gradient_checkpointing,
        input_shape=asked.input_shape,
        expandable_segments=asked.cluster.gpu.vendor == "NVIDIA",
    )
    answer = dry_run_answer(
        result, asked.cluster, asked.shape, asked.workload, gradient_checkpointing=asked.gradient_checkpointing
    )
    if answer.fits:
        return []
    need, offer = answer.required_device_bytes_per_gpu, asked.cluster.gpu.memory_bytes
    host, there = result.peak.host_bytes_per_node, asked.cluster.host_memory_bytes_per_node
    return [
        Objection(
            what=f"the dry run needs {gib(host)} GiB of the host's {gib(there)}"
            if there is not None and host > there
            else f"the dry run needs {gib(need)} GiB of the {asked.cluster.gpu.name}'s {gib(offer)}, and "
            f"{percent(MARGIN['dry-run'])} must stay free",
            fix=_other_plan(asked),
        )
    ]


def _probed(asked: RunQuestion, device: Device, on_progress: Callable[[str], None]) -> list[Objection]:
    result = probe(
        asked.config,
        asked.description,
        cluster=asked.cluster,
        workload=asked.workload,
        device=device,
        micro_batch_size=asked.micro_batch_size,
        gradient_accumulation_steps=asked.gradient_accumulation_steps,
        gradient_checkpointing=asked.gradient_checkpointing,
        input_shape=asked.input_shape,
        on_progress=lambda phase: on_progress(f"probe: {phase} ..."),
    )
    keep_probe(
        result,
        model=asked.shape,
        name="" if asked.shape is None else asked.shape.name,
        config=asked.config,
        workload=asked.workload,
        micro_batch_size=asked.micro_batch_size,
        gradient_accumulation_steps=asked.gradient_accumulation_steps,
        gradient_checkpointing=asked.gradient_checkpointing,
        memory_limit_bytes=None,
    )
    if result.failure is None:
        return []
    failure = result.failure
    return [
        Objection(
            what=f"the probe failed in {failure.phase} on rank {failure.rank}: {failure.message}",
            fix=_other_plan(asked) if failure.kind in ("out_of_memory", "killed") else "mend that first",
        )
    ]


def _loading(asked: RunQuestion, prediction: Estimate | None) -> list[Objection]:
    """Whether the host survives the moment at which every local rank holds the model."""
    offer = asked.cluster.host_memory_bytes_per_node
    need = 0 if prediction is None else prediction.memory.host_loading_bytes_per_node
    if offer is None or need <= offer:
        return []
    return [
        Objection(
            what=f"loading the model takes {gib(need)} GiB of the host's {gib(offer)}",
            fix="use ZeRO-3, under which the model is loaded in shards, or fewer ranks on this node",
        )
    ]


def _disk(asked: RunQuestion, output_dir: Path | None, checkpoints: int) -> list[Objection]:
    if output_dir is None or asked.shape is None:
        return []
    need, free = checkpoints * checkpoint_bytes(asked.shape, asked.workload), free_bytes(output_dir)
    if need <= free:
        return []
    return [
        Objection(
            what=f"{checkpoints} checkpoint{'s' * (checkpoints > 1)} of {gib(need // checkpoints)} GiB need more than "
            "the "
            f"{gib(free)} GiB free in {output_dir}",
            fix="free some space, name another --output_dir, or keep fewer with --save_total_limit 1",
        )
    ]


def free_bytes(folder: Path) -> int:
    """Free space where the folder is or will be."""
    existing = folder.resolve()
    while not existing.exists():
        existing = existing.parent
    return shutil.disk_usage(existing).free


def _other_plan(asked: RunQuestion) -> str:
    """What fits in its place, with the same samples in a step."""
    plans = plans_that_fit(asked)
    if not plans:
        return "no plan with this global batch is predicted to fit: a smaller model, LoRA or a shorter --seq-len might"
    best, shape = plans[0].estimate.plan, asked.shape
    assert shape is not None, "plans are those of a known model"
    return (
        f"{plan_title(best)} with micro batch {best.micro_batch_size} and checkpointing "
        f"{'on' if best.gradient_checkpointing else 'off'} is predicted to fit: ds-advise {shape.name} "
        f"--seq-len {asked.workload.seq_len} --global-batch {global_batch_size(asked)} writes it"
    )
