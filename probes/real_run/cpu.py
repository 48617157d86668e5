"""Trainings on the CPU with accelerate and transformers, which are made for GPUs there."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any


def count_ranks(module: Any) -> None:
    """Make accelerate join the ranks over gloo if it finds no GPU (module: `accelerate.state`). Unless the script
    itself requests the CPU, accelerate then uses no backend and counts one process (1.15.0 state.py
    `PartialState._prepare_backend`): each rank trains on all samples, and the Trainer's batch sizes contradict the
    engine's. With `cpu=True` accelerate would not use DeepSpeed (`AcceleratorState.__init__`)."""
    prepared = module.PartialState._prepare_backend

    def prepare_backend(state: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        backend, kind = prepared(state, *args, **kwargs)
        joins = backend is None and "LOCAL_RANK" in os.environ
        return ("gloo", module.DistributedType.MULTI_CPU) if joins else (backend, kind)

    module.PartialState._prepare_backend = prepare_backend


def train_on_cpu(module: Any) -> None:
    """Make every TrainingArguments select the CPU, because it otherwise refuses bf16 without a GPU (module:
    `transformers.training_args`). Let DeepSpeed join the process group, as accelerate does on a GPU; otherwise ZeRO-3
    counts one rank when it loads the model."""
    prepared = module.TrainingArguments.__post_init__

    def post_init(arguments: Any) -> None:
        arguments.use_cpu = True
        arguments.ddp_backend = arguments.ddp_backend or "gloo"
        prepared(arguments)
        if arguments.deepspeed_plugin is not None:
            import_module("deepspeed").init_distributed("gloo")

    module.TrainingArguments.__post_init__ = post_init
