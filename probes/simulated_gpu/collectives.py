"""One rank of many in a single process: torch's fake process group in place of NCCL.

Collectives return at once without writing their output, so partition sizes, buckets and lifetimes are those of the
whole job. Comparisons of values between ranks are disabled.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import GroupName

    from ..recording.schedule import ScheduleRecorder


def rank_variables(rank: int, world_size: int, ranks_per_node: int) -> dict[str, str]:
    """The variables of rank `rank` of `world_size`."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": "0",  # this process sees one GPU
        # DeepSpeed's shared-memory collectives for CPUs start when LOCAL_SIZE equals WORLD_SIZE, and wait for peers.
        "LOCAL_SIZE": str(ranks_per_node if ranks_per_node != world_size else world_size + 1),
        "LOCAL_WORLD_SIZE": str(ranks_per_node),
        # Without all five of these variables DeepSpeed searches for MPI (comm/comm.py init_distributed).
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }


def join(rank: int, world_size: int, ranks_per_node: int) -> None:
    """Make this process rank `rank` of `world_size`. To be called before DeepSpeed is imported."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    os.environ.update(rank_variables(rank, world_size, ranks_per_node))
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)


def silence_comparisons() -> None:
    """Disable DeepSpeed's checks that all ranks have the same integers, and that those which split layers have the same
    first batch. To be called after DeepSpeed is imported."""
    # `from ... import` has bound the functions in several modules.
    for name, module in list(sys.modules.items()):
        if name.startswith("deepspeed"):
            for check in ("assert_ints_same_as_other_ranks", "assert_lst_len_same_as_other_ranks"):
                if hasattr(module, check):
                    setattr(module, check, lambda *_: None)
    engine = getattr(sys.modules.get("deepspeed.runtime.engine"), "DeepSpeedEngine", None)
    split: Any = getattr(engine, "_configure_tensor_parallel_states", None)
    if split is None:  # an older DeepSpeed
        return

    def without_check(own: Any, *arguments: Any) -> None:
        split(own, *arguments)
        own.first_dataloader_check.remove()

    setattr(engine, "_configure_tensor_parallel_states", without_check)  # noqa: B010  mypy


_COMMUNICATES = ("reduce", "gather", "scatter", "broadcast", "alltoall", "all_to_all", "send", "recv", "coalescing")
"""Parts of the names of the `ProcessGroup` methods that start a collective."""


def record(recorder: ScheduleRecorder, ranks_per_node: int) -> None:
    """Record the process group of each collective, and the waits for it."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import _resolve_process_group

    groups: dict[dist.ProcessGroup, tuple[int, int, int]] = {}

    def described(group: dist.ProcessGroup) -> tuple[int, int, int]:
        if group not in groups:
            members = dist.get_process_group_ranks(group)
            nodes = len({rank // ranks_per_node for rank in members})
            groups[group] = recorder.new_stream(), len(members), nodes
        return groups[group]

    # DeepSpeed's all-to-all is an operator, whose arguments cannot be objects.
    recorder.group_named = lambda name: described(_resolve_process_group(cast("GroupName", name)))

    def recorded(method: Any) -> Any:
        def issue(group: dist.ProcessGroup, *arguments: Any, **options: Any) -> Any:
            # Restored at the end, because one method may call another.
            before = recorder.group
            recorder.group = described(group)
            try:
                work = method(group, *arguments, **options)
                return _Work(work, recorder, recorder.group[0]) if isinstance(work, dist.Work) else work
            finally:
                recorder.group = before

        return issue

    # Methods of the class: every function of torch.distributed calls one, whoever created the group.
    for name in dir(dist.ProcessGroup):
        method = getattr(dist.ProcessGroup, name)
        if callable(method) and any(part in name for part in _COMMUNICATES):
            setattr(dist.ProcessGroup, name, recorded(method))


class _Work:
    """A `torch.distributed.Work` whose `wait` makes the current stream wait."""

    def __init__(self, work: Any, recorder: ScheduleRecorder, stream: int) -> None:
        self._work = work
        self._recorder = recorder
        self._event = recorder.new_event()
        recorder.record(self._event, stream)

    def wait(self, *arguments: Any) -> bool:
        self._recorder.wait(self._recorder.current_stream(), self._event)
        return bool(self._work.wait(*arguments))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)
