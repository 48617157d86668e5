"""Every training goes into the store: measured beside predicted."""

from __future__ import annotations

from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ...probes.machine import this_machine
from ...probes.store import Record, model_key, try_store
from .request import LaunchRequest, Outcome


def keep_training(request: LaunchRequest, outcome: Outcome) -> int | None:
    """Keep a training of a known model; answers its number, None where nothing was kept."""
    if request.model is None or not outcome.last_step:
        return None
    prediction, name = request.prediction, request.model_name or request.model.name
    result: dict[str, Any] = {
        "status": outcome.status,
        "failure": None if outcome.failure is None else asdict(outcome.failure),
        "world_size": request.cluster.world_size,
        "device": request.device,
        "steps": outcome.last_step,
        "seconds": outcome.seconds,
        "step_s": outcome.step_s,
        "tokens_per_s": outcome.tokens_per_s,
        "peaks": asdict(outcome.peaks),
    }
    if prediction is not None:
        memory = prediction.memory
        result["predicted"] = {
            "evidence": prediction.evidence,
            "step_s": prediction.time.step_s,
            "tokens_per_s": prediction.time.tokens_per_s,
            "allocated_bytes": memory.allocated_bytes_per_gpu,
            "reserved_bytes": memory.reserved_bytes_per_gpu,
            "device_bytes": memory.device_bytes_per_gpu,
            "host_bytes": memory.host_bytes_per_node,
        }
    record = Record(
        kind="training",
        machine=this_machine(),
        model=model_key(request.model),
        # The last part of a path is a name; the rest says where somebody keeps their models.
        model_name=Path(name).name if Path(name).exists() else name,
        plan=dict(request.config),
        result=result,
        workload={**asdict(request.workload), "gradient_checkpointing": request.gradient_checkpointing},
        versions={library: version(library) for library in ("torch", "deepspeed", "transformers")},
    )
    return try_store(lambda store: store.add(record), None)
