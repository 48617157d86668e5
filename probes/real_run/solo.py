"""One rank of a job alone on one device: the other ranks do not exist, and their messages are undefined."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..simulated_gpu import collectives
from .environment import Solo

_CHECKS = """has_overflow has_overflow_serial has_overflow_partitioned_grads_serial check_overflow _has_inf_or_nan
    _check_overflow"""


def join_alone(module: Any, solo: Solo) -> None:
    """Make the first process group torch's fake one (module: `torch.distributed.distributed_c10d`)."""
    plain = module.init_process_group

    def init_process_group(*_: Any, **__: Any) -> None:
        if module.is_initialized():
            return
        distributed: Any = import_module("torch.distributed")
        module.init_process_group = distributed.init_process_group = plain
        collectives.join(solo.rank, solo.world_size, solo.ranks_per_node)
        module.init_process_group = distributed.init_process_group = init_process_group
        # Undefined values include many denormals, a hundred times slower on a CPU.
        import_module("torch").set_flush_denormal(True)

    module.init_process_group = init_process_group


def never_skip_a_step(optimizer: Any) -> None:
    """Prevent skipped steps: a rank alone computes with undefined values, and a NaN must not skip the step that creates
    the optimizer's states."""
    for name in _CHECKS.split():
        if hasattr(optimizer, name):
            setattr(optimizer, name, lambda *_, **__: False)
    import_module("deepspeed.runtime.utils").CheckOverflow.check = lambda *_, **__: False
