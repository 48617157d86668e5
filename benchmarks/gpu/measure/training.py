"""A few real steps of a configuration, by the program's own probe: memory and time of every step."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from ds_advise.probes.dry_run.run import request_for
from ds_advise.probes.real_run.run import probe
from ds_advise.probes.run import Run

from ..configuration import Configuration, from_arguments
from ..machine.place import NotPossibleError, Place
from ..outcome import Outcome

_AFTERWARDS_S = 5.0
"""For ending the probe's processes and writing the answer, of the measurement's time."""

_OUTCOMES = {"out_of_memory": "out of memory", "timeout": "timed out", "hang": "timed out"}
"""Of a probe's failures; any other is a failure here too."""


def measure(arguments: dict[str, Any], place: Place) -> Outcome:
    """The probe's result; where DeepSpeed's fused Adam did not compile, of torch's, which keeps the same states."""
    configuration = from_arguments(arguments)
    _check(configuration, place)
    run = configuration.run(place.cluster(configuration.world_size))
    client_optimizer = configuration.strategy in ("ddp", "zero1", "zero2", "zero3", "zero3-offload-param") and (
        "FusedAdamBuilder" in place.broken
    )
    if client_optimizer:
        run = _without_optimizer(run)
    if place.device == "cuda":
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = f"expandable_segments:{configuration.expandable_segments}"
    limit_s = max(5.0, place.limit_s - _AFTERWARDS_S)
    result = probe(
        run,
        device=place.device,
        solo=configuration.world_size > 1,
        rank=request_for(run, rank=None).rank,
        steps=configuration.steps,
        stall_s=limit_s,
        timeout_s=limit_s,
    )
    value = {"result": result.to_json(), "client_optimizer": client_optimizer}
    if result.failure is None:
        return {"value": value}
    reason = f"{result.failure.message} (during {result.failure.phase})"
    return {"outcome": _OUTCOMES.get(result.failure.kind, "failed"), "value": value, "reason": reason}


def _check(configuration: Configuration, place: Place) -> None:
    """Raises NotPossibleError for a configuration that something is missing for."""
    needed = {
        "bitsandbytes": configuration.method == "qlora",
        "liger_kernel": configuration.loss == "fused",
        "peft": configuration.method != "full",
    }
    missing = [package for package, wanted in needed.items() if wanted and find_spec(package) is None]
    if missing:
        raise NotPossibleError(f"{', '.join(missing)} is not installed")
    if place.device == "cpu" and configuration.loss == "fused":
        raise NotPossibleError("Liger's kernels are for GPUs")
    extensions = {
        "CPUAdamBuilder": configuration.strategy in ("zero2-offload", "zero3-offload", "zero3-nvme"),
        "AsyncIOBuilder": configuration.strategy == "zero3-nvme",
    }
    for builder, wanted in extensions.items():
        if wanted and builder in place.broken:
            raise NotPossibleError(f"{builder} does not compile here: {place.broken[builder][:300]}")


def _without_optimizer(run: Run) -> Run:
    return replace(run, config={key: value for key, value in run.config.items() if key != "optimizer"})
