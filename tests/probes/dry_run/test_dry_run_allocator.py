"""The replay of PyTorch's caching allocator, against its published rules."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ds_advise.probes.recording.allocator import CachingAllocator
from ds_advise.probes.recording.ledger import Ledger
from ds_advise.probes.recording.phases import RecordedPhase, _max_held
from hypothesis import given
from hypothesis import strategies as st

KIB, MIB = 1 << 10, 1 << 20
EMPTY = "empty"


def reserved(*steps: Any, **settings: Any) -> int:
    """Steps: (key, bytes[, stream]) allocates, a key frees, EMPTY empties the cache."""
    allocator = CachingAllocator(**settings)
    for step in steps:
        if step == EMPTY:
            allocator.empty_cache()
        elif isinstance(step, tuple):
            allocator.allocate(*step)
        else:
            allocator.free(step)
    return allocator.reserved_bytes


def small(count: int) -> list[tuple[int, int]]:
    return [(key, 512 * KIB) for key in range(count)]


THREE = [(0, 4 * MIB), (1, 8 * MIB), (2, 8 * MIB)]
FREED = [(0, 12 * MIB), 0]
REPLACED = [(0, 60 * MIB), 0, (1, 80 * MIB)]


@pytest.mark.parametrize(
    ("steps", "mebibytes"),
    [
        # A small request takes a segment of 2 MiB, which the next small ones share.
        ([(0, 1)], 2),
        (small(5), 4),
        # Between 1 and 10 MiB a segment has 20 MiB; from 10 MiB on the request's size, rounded up to 2 MiB.
        ([(0, 3 * MIB)], 20),
        ([(0, 11 * MIB)], 12),
        # Each stream has its own small and its own large segments.
        ([(0, 512), (1, 2 * MIB)], 22),
        ([(0, 512), (1, 512, 1)], 4),
        # A freed block stays reserved and serves the next request of its size.
        ([(0, 100 * MIB), 0], 100),
        ([(0, 100 * MIB), 0, (1, 100 * MIB)], 100),
        # Free neighbours join; a block in use between them prevents it.
        ([*THREE, 1, 2, (3, 16 * MIB)], 20),
        ([*THREE, 0, 2, (3, 12 * MIB)], 32),
        # The rest of a large block is split off above 1 MiB only.
        ([*FREED, (1, 11 * MIB), (2, MIB + 1)], 32),
        ([*FREED, (1, 10 * MIB), (2, MIB + 1)], 12),
        # Emptying the cache returns only segments without a live block.
        ([(0, 30 * MIB), 0, EMPTY], 0),
        ([(0, 4 * MIB), (1, 4 * MIB), 0, EMPTY], 20),
        (REPLACED, 140),
    ],
)
def test_the_rules_of_fixed_segments(steps: list[Any], mebibytes: int) -> None:
    assert reserved(*steps) == mebibytes * MIB


def test_a_full_device_empties_the_cache_before_it_grows() -> None:
    assert reserved(*REPLACED, capacity_bytes=100 * MIB) == 80 * MIB


def test_expandable_segments_grow_a_free_end_instead_of_fragmenting() -> None:
    """Sizes that creep up by 2 MiB fragment fixed segments; an expandable one only grows by the difference."""
    creeping = [step for key in range(10) for step in ((key, (100 + 2 * key) * MIB), key)]
    assert reserved(*creeping) == sum((100 + 2 * key) * MIB for key in range(10))
    assert reserved(*creeping, expandable_segments=True) == 120 * MIB


def test_memory_held_before_training_does_not_count() -> None:
    """Loading holds 100 MiB and empties the cache; training holds 20 MiB."""
    ledger = Ledger("cpu", lambda _tensor: ("", ""))
    phases = [RecordedPhase(iteration=0, name="load", first_event=ledger.events)]
    ledger.track(torch.empty(100 * MIB, dtype=torch.uint8))
    ledger.empty_cache()
    phases.append(RecordedPhase(iteration=1, name="forward", first_event=ledger.events))
    trained = torch.empty(20 * MIB, dtype=torch.uint8)
    ledger.track(trained)
    recorder: Any = SimpleNamespace(ledger=ledger, recorded=phases)
    assert _max_held(recorder, CachingAllocator())[0] == 20 * MIB
    recorder.recorded = phases[:1]
    assert _max_held(recorder, CachingAllocator())[0] == 100 * MIB


@given(st.lists(st.tuples(st.integers(1, 64 * MIB), st.integers(0, 1), st.integers(0, 5)), max_size=60), st.booleans())
def test_blocks_never_overlap_and_reserved_covers_allocated(
    requests: list[tuple[int, int, int]], expandable: bool
) -> None:
    """Whatever is asked and freed in whatever order: reserved is at least the live bytes, and all freed leaves no
    block."""
    allocator = CachingAllocator(expandable_segments=expandable)
    live: dict[int, int] = {}
    for key, (size, stream, frees) in enumerate(requests):
        allocator.allocate(key, size, stream)
        live[key] = size
        assert allocator.reserved_bytes >= allocator.allocated_bytes >= sum(live.values())
        for victim in list(live)[: frees if frees < 3 else 0]:
            allocator.free(victim)
            del live[victim]
        if frees == 5:
            allocator.empty_cache()
            assert not expandable or allocator.reserved_bytes == allocator.touched_bytes
    for key in live:
        allocator.free(key)
    assert allocator.allocated_bytes == 0
    allocator.empty_cache()
    assert allocator.reserved_bytes == 0


def test_expandable_segments_keep_only_the_pages_that_live_blocks_touch() -> None:
    """Of 100 MiB with the middle freed, 20-MiB pages inside the hole can go; a page that a neighbour touches stays."""
    allocator = CachingAllocator(expandable_segments=True)
    for key, size in enumerate((30 * MIB, 50 * MIB, 20 * MIB)):
        allocator.allocate(key, size)
    assert allocator.touched_bytes == allocator.reserved_bytes == 100 * MIB
    allocator.free(1)
    assert (allocator.reserved_bytes, allocator.touched_bytes) == (100 * MIB, 60 * MIB)
    allocator.allocate(3, 10 * MIB)
    assert allocator.touched_bytes == 60 * MIB
    for key in (0, 2, 3):
        allocator.free(key)
    assert allocator.touched_bytes == 0
