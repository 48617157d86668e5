"""Every probe goes into the store, so that a later question about the same machine and model can use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..estimators.model_shape import ModelShape
from ..estimators.workload import Workload
from ..probes.machine import this_machine
from ..probes.real_run import ProbeResult
from ..probes.store import Record, model_key, try_store


def keep_probe(result: ProbeResult, *, model: ModelShape | None, name: str, config: Mapping[str, Any], workload: Workload,
               micro_batch_size: int, gradient_accumulation_steps: int, gradient_checkpointing: bool,
               memory_limit_bytes: int | None) -> int | None:
    """Keep a probe, failed ones too; answers its number, None where the store cannot be used (which it says on stderr).

    model: None for a module of the user's own, which `name` tells. config: as it was given, kept with its `auto` batch sizes
    filled; all that DeepSpeed filled is in the result of a run that succeeded.
    """
    batch = {"train_micro_batch_size_per_gpu": micro_batch_size, "gradient_accumulation_steps": gradient_accumulation_steps}
    filled = {key: size for key, size in batch.items() if config.get(key, "auto") == "auto"}
    record = Record(
        kind="probe", machine=this_machine(), model="" if model is None else model_key(model),
        # The last part of a path is a name; the rest says where somebody keeps their models.
        model_name=Path(name).name if ".py:" in name or Path(name).exists() else name,
        plan={**config, **filled}, result=result.to_json(),
        versions={library: version(library) for library in ("torch", "deepspeed", "transformers")},
        workload={**asdict(workload), "gradient_checkpointing": gradient_checkpointing,
                  "memory_limit_bytes": memory_limit_bytes})
    return try_store(lambda store: store.add(record), None)
