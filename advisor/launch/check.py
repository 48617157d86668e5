"""Before the start: does it fit the device, the host and the disk?"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...estimators.estimate import Estimate
from ...estimators.time.job import checkpoint_bytes
from ...probes.real_run.job import Device
from ...probes.run import Run
from ...probes.store_path import anything_kept
from ..search.candidate import LIKELY, chance
from ..text.labels import checkpointing_title, plan_title
from ..text.units import age, gib
from ..verification.dry_run import prove_by_dry_run
from ..verification.past_results import PastProbe, PastProbes, probe_and_keep
from ..verification.probe_order import as_measured
from .fallback import plans_that_fit

How = Literal["dry-run", "probe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Objection:
    """Why the training must not start: one sentence, and what to change."""

    what: str
    fix: str


def prediction_of(run: Run) -> Estimate | None:
    """The closed form for a run, with the time of the newest probe of the same on this machine; None for a model that
    it does not know, or a GPU of unknown speed."""
    estimate, past = run.estimate(), past_probe_of(run)
    if estimate is None or past is None or past.result.failure is not None:
        return estimate
    return as_measured(estimate, past.result)


def past_probe_of(run: Run) -> PastProbe | None:
    """The newest probe on this machine that answers for the run."""
    if run.shape is None or not run.cluster.is_this_machine or not anything_kept():
        return None
    return PastProbes(run.shape, run.workload, run.cluster).of(run)


def objections(
    run: Run,
    prediction: Estimate | None,
    *,
    how: How,
    anew: bool = False,
    device: Device,
    output_dir: Path | None,
    checkpoints: int | None,
    on_progress: Callable[[str], None],
) -> list[Objection]:
    """Everything that speaks against starting it; empty where it may start.

    how: "probe" runs a few real steps on this machine, "dry-run" the real engine on a simulated GPU.
    anew: probe it even if it was probed before.
    output_dir: where checkpoints go, None where that is not known. checkpoints: the most that are on the disk at once,
        None where that is not known: there must be room for one, and for how many there is is said.

    Raises DsAdviseError where the check itself cannot be made.
    """
    before = [*_disk(run, output_dir, checkpoints, on_progress), *_loading(run, prediction)]
    return before + (_probe(run, device, on_progress, anew=anew) if how == "probe" else _dry_run(run, on_progress))


def _dry_run(run: Run, on_progress: Callable[[str], None]) -> list[Objection]:
    on_progress("dry run ...")
    answer = prove_by_dry_run(run)
    probability = answer.fit.probability
    if probability >= LIKELY:
        if not answer.fit.fits:
            sure = chance(probability)
            on_progress(f"by its dry run it fits with a probability of {sure}; the training is started all the same")
        return []
    gpu, host_bytes = run.cluster.gpu, run.cluster.host_memory_bytes_per_node
    host_need_bytes = answer.required_host_bytes_per_node
    if host_bytes is not None and host_need_bytes > host_bytes:
        what = f"the dry run needs {gib(host_need_bytes)} GiB of the host's {gib(host_bytes)}"
    else:
        need = f"{gib(answer.required_device_bytes_per_gpu)} GiB of the {gpu.name}'s {gib(gpu.memory_bytes)}"
        what = f"the dry run needs {need}: it fits with a probability of {chance(probability)}"
    return [Objection(what=what, fix=_other_plan(run))]


def _probe(run: Run, device: Device, on_progress: Callable[[str], None], *, anew: bool) -> list[Objection]:
    past = None if anew else past_probe_of(run)
    if past is None:
        which = "the probe"
        result = probe_and_keep(run, device=device, on_progress=lambda phase: on_progress(f"probe: {phase} ..."))
    else:
        result, which = past.result, f"probe {past.id} ({age(past.age_s)})"
        on_progress(f"{which} answers for this plan; --check probe makes another")
    failure = result.failure
    if failure is None:
        return []
    is_memory = failure.kind in ("out_of_memory", "killed")
    what = f"{which} failed in {failure.phase} on rank {failure.rank}: {failure.message}"
    return [Objection(what=what, fix=_other_plan(run) if is_memory else "repair that first")]


def _loading(run: Run, prediction: Estimate | None) -> list[Objection]:
    """Whether the host survives the moment at which every local rank holds the model."""
    offer = run.cluster.host_memory_bytes_per_node
    need = 0 if prediction is None else prediction.memory.host_loading_bytes_per_node
    if offer is None or need <= offer:
        return []
    what = f"loading the model takes {gib(need)} GiB of the host's {gib(offer)}"
    fix = "use ZeRO-3, under which the model is loaded in shards, or fewer ranks on this node"
    return [Objection(what=what, fix=fix)]


def _disk(
    run: Run, output_dir: Path | None, checkpoints: int | None, on_progress: Callable[[str], None]
) -> list[Objection]:
    if output_dir is None or run.shape is None:
        return []
    one, free = checkpoint_bytes(run.shape, run.workload), free_bytes(output_dir)
    count = 1 if checkpoints is None else checkpoints
    if count * one <= free:
        if checkpoints is None:
            room = f"a checkpoint takes {gib(one)} GiB, and {free // one} fit into the {gib(free)} GiB free"
            on_progress(f"{room} in {output_dir}: how many are kept cannot be told (--save_total_limit bounds them)")
        return []
    needed = f"{count} checkpoint{'s' * (count > 1)} of {gib(one)} GiB"
    what = f"{needed} need more than the {gib(free)} GiB free in {output_dir}"
    fix = "free some space, name another --output_dir, or keep fewer with --save_total_limit 1"
    return [Objection(what=what, fix=fix)]


def free_bytes(folder: Path) -> int:
    """Free space where the folder is or will be."""
    existing = folder.resolve()
    while not existing.exists():
        existing = existing.parent
    return shutil.disk_usage(existing).free


def _other_plan(run: Run) -> str:
    """What fits in its place, with the same samples in a step."""
    plans = plans_that_fit(run)
    if not plans or run.shape is None:
        return "no plan with this global batch is predicted to fit: a smaller model, LoRA or a shorter --seq-len might"
    best = plans[0].estimate.plan
    return (
        f"{plan_title(best)} with micro batch {best.micro_batch_size} and {checkpointing_title(best)} is predicted to "
        f"fit: ds-advise {run.shape.name} --seq-len {run.workload.seq_len} --global-batch {run.samples_per_step} "
        "writes it"
    )
