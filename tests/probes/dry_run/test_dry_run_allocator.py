"""The replay of PyTorch's caching allocator, against its published rules."""

from ds_advise.probes.recording.allocator import Allocate, CachingAllocator, EmptyCache, Event, Free, most_held
from hypothesis import given
from hypothesis import strategies as st

KIB, MIB = 1 << 10, 1 << 20


def reserved(*events: Event, expandable: bool = False, capacity: int | None = None) -> int:
    allocator = CachingAllocator(expandable_segments=expandable, capacity_bytes=capacity)
    for event in events:
        allocator.apply(event)
    return allocator.reserved_bytes


def test_a_small_request_takes_a_segment_of_two_mebibytes() -> None:
    """One byte reserves 2 MiB, and the next small requests share it."""
    assert reserved(Allocate(0, 1)) == 2 * MIB
    assert reserved(*(Allocate(key, 512 * KIB) for key in range(4))) == 2 * MIB
    assert reserved(*(Allocate(key, 512 * KIB) for key in range(5))) == 4 * MIB


def test_medium_requests_share_twenty_mebibytes_and_large_ones_are_rounded_to_two() -> None:
    """Between 1 and 10 MiB a segment has 20 MiB; from 10 MiB on it has the request's size, rounded up to 2 MiB."""
    assert reserved(Allocate(0, 3 * MIB)) == 20 * MIB
    assert reserved(Allocate(0, 3 * MIB), Allocate(1, 9 * MIB)) == 20 * MIB
    assert reserved(Allocate(0, 11 * MIB)) == 12 * MIB


def test_small_and_large_requests_and_streams_never_share_a_segment() -> None:
    """Each stream has its own small and its own large segments."""
    assert reserved(Allocate(0, 512), Allocate(1, 2 * MIB)) == 22 * MIB
    assert reserved(Allocate(0, 512), Allocate(1, 512, stream=1)) == 4 * MIB


def test_a_freed_block_is_reused_and_stays_reserved() -> None:
    """Freeing gives nothing back to the driver; a request of the same size takes the freed block."""
    assert reserved(Allocate(0, 100 * MIB), Free(0)) == 100 * MIB
    assert reserved(Allocate(0, 100 * MIB), Free(0), Allocate(1, 100 * MIB)) == 100 * MIB


def test_free_neighbours_join() -> None:
    """Two freed halves of a segment serve one request for the whole; a block in use between them prevents it."""
    parts = [Allocate(0, 4 * MIB), Allocate(1, 8 * MIB), Allocate(2, 8 * MIB)]
    assert reserved(*parts, Free(1), Free(2), Allocate(3, 16 * MIB)) == 20 * MIB
    assert reserved(*parts, Free(0), Free(2), Allocate(3, 12 * MIB)) == 32 * MIB


def test_the_rest_of_a_large_block_is_split_off_only_above_one_mebibyte() -> None:
    """A 12 MiB block that serves 11 MiB keeps its last MiB; one that serves 10 MiB gives 2 MiB to the next request."""
    freed = [Allocate(0, 12 * MIB), Free(0)]
    assert reserved(*freed, Allocate(1, 11 * MIB), Allocate(2, MIB + 1)) == 32 * MIB
    assert reserved(*freed, Allocate(1, 10 * MIB), Allocate(2, MIB + 1)) == 12 * MIB


def test_emptying_the_cache_returns_only_wholly_free_segments() -> None:
    """A segment with one live block stays."""
    assert reserved(Allocate(0, 30 * MIB), Free(0), EmptyCache()) == 0
    assert reserved(Allocate(0, 4 * MIB), Allocate(1, 4 * MIB), Free(0), EmptyCache()) == 20 * MIB


def test_a_full_device_empties_the_cache_before_it_grows() -> None:
    """With 100 MiB, a freed 60 MiB segment goes back when 80 MiB are asked for."""
    events = [Allocate(0, 60 * MIB), Free(0), Allocate(1, 80 * MIB)]
    assert reserved(*events) == 140 * MIB
    assert reserved(*events, capacity=100 * MIB) == 80 * MIB


def test_expandable_segments_grow_a_free_end_instead_of_fragmenting() -> None:
    """Sizes that creep up by 2 MiB fragment fixed segments; an expandable one only grows by the difference."""
    creeping: list[Event] = []
    for key in range(10):
        creeping += [Allocate(key, (100 + 2 * key) * MIB), Free(key)]
    assert reserved(*creeping) == sum((100 + 2 * key) * MIB for key in range(10))
    assert reserved(*creeping, expandable=True) == 120 * MIB


def test_what_was_held_before_training_does_not_count() -> None:
    """The most is that of the events from the given one on."""
    events = [Allocate(0, 100 * MIB), Free(0), EmptyCache(), Allocate(1, 20 * MIB)]
    assert most_held(events, 3).reserved_bytes == 20 * MIB
    assert most_held(events, 2).reserved_bytes == 100 * MIB


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
        allocator.allocate(key, size, 0)
    assert allocator.touched_bytes == allocator.reserved_bytes == 100 * MIB
    allocator.free(1)
    assert (allocator.reserved_bytes, allocator.touched_bytes) == (100 * MIB, 60 * MIB)
    allocator.allocate(3, 10 * MIB, 0)
    assert allocator.touched_bytes == 60 * MIB
    for key in (0, 2, 3):
        allocator.free(key)
    assert allocator.touched_bytes == 0


def test_an_emptied_cache_gives_back_pages_between_live_blocks_and_uses_their_addresses_first() -> None:
    """Of 100 MiB with the middle 40 freed, two pages go. 30 MiB then take them again, and the rest of the hole."""
    allocator = CachingAllocator(expandable_segments=True)
    for key, size in enumerate((30 * MIB, 50 * MIB, 20 * MIB)):
        allocator.allocate(key, size, 0)
    allocator.free(1)
    allocator.empty_cache()
    assert allocator.reserved_bytes == allocator.touched_bytes == 60 * MIB
    allocator.allocate(3, 30 * MIB, 0)
    assert allocator.reserved_bytes == 80 * MIB
    allocator.allocate(4, 60 * MIB, 0)
    assert allocator.reserved_bytes == 140 * MIB
