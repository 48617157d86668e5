"""One rank of many, alone: torch's fake process group in place of NCCL.

Collectives return at once and leave their output tensors as they were, so partition sizes, buckets and lifetimes are
those of the whole job. What compares values between ranks would compare junk and is switched off.
"""

from __future__ import annotations

import os
import sys


def join(rank: int, world_size: int, ranks_per_node: int) -> None:
    """Make this process rank `rank` of `world_size`; before DeepSpeed is imported."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_RANK="0",  # the number of the GPU, of which this process sees one
        # DeepSpeed's shared-memory collectives for CPUs start when LOCAL_SIZE equals WORLD_SIZE, and wait for peers.
        LOCAL_SIZE=str(ranks_per_node if ranks_per_node != world_size else world_size + 1),
        LOCAL_WORLD_SIZE=str(ranks_per_node),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29500",
    )
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)


def silence_comparisons() -> None:
    """Switch off DeepSpeed's checks that all ranks hold the same integers; after DeepSpeed is imported."""
    for name, module in list(sys.modules.items()):
        if name.startswith("deepspeed"):
            for check in ("assert_ints_same_as_other_ranks", "assert_lst_len_same_as_other_ranks"):
                if hasattr(module, check):
                    setattr(module, check, lambda *_: None)
