"""Copies that ranks make in turn, of which the recorded rank sees its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ds_advise.estimators.hardware.cluster import Cluster
from ds_advise.estimators.hardware.gpus import find_gpu
from ds_advise.estimators.schedule.recorded import Code, Entry, RecordedOperation, Schedule, add_serialized_copies
from ds_advise.estimators.schedule.simulate import simulate

RANKS, BUCKETS = 4, 8
LINKS, COPIES = 1, 2
REDUCE = RecordedOperation(kind="collective", name="c10d::allreduce_", size_bytes=10**8, ranks=RANKS)
SCATTER = replace(REDUCE, name="c10d::_reduce_scatter_base_")
TO_HOST = RecordedOperation(kind="to host", name="aten::copy_", size_bytes=10**8, pinned=True)


def schedule(collective: RecordedOperation, copied_after: tuple[int, ...]) -> Schedule:
    """A backward pass that reduces bucket by bucket; this rank copies after some."""
    entries: list[Entry] = [(Code.PHASE, 0, 0)]
    for bucket in range(BUCKETS):
        entries += [(Code.RUN, 0, LINKS), (Code.RECORD, bucket, LINKS), (Code.WAIT, COPIES, bucket)]
        entries += [(Code.RUN, 1, COPIES)] if bucket in copied_after else []
        entries += [(Code.RECORD, BUCKETS + bucket, COPIES), (Code.WAIT, LINKS, BUCKETS + bucket)]
    return Schedule(operations=(collective, TO_HOST), phases=("backward",), calls=(), entries=tuple(entries))


def copied_bytes(found: Schedule) -> list[int]:
    """Bytes copied after each collective."""
    copied: list[int] = []
    for code, first, _ in found.entries:
        if code == Code.RUN and found.operations[first].kind == "collective":
            copied.append(0)
        elif code == Code.RUN:
            copied[-1] += found.operations[first].size_bytes
    return copied


def test_what_all_ranks_copy_in_turn_is_shared_out_among_the_reductions() -> None:
    """Two of eight buckets are this rank's; the other three ranks copy as much."""
    found = add_serialized_copies(schedule(REDUCE, (0, 1)))
    assert copied_bytes(found) == [RANKS * 2 * TO_HOST.size_bytes // BUCKETS] * BUCKETS


def test_there_are_no_more_turns_than_buckets() -> None:
    found = add_serialized_copies(schedule(replace(REDUCE, ranks=64), (0,)))
    assert sum(copied_bytes(found)) == BUCKETS * TO_HOST.size_bytes


@pytest.mark.parametrize(
    "unchanged",
    [
        schedule(SCATTER, (0, 1)),  # gives every rank its part
        schedule(REDUCE, tuple(range(BUCKETS))),  # a part of every bucket is this rank's
        schedule(replace(REDUCE, size_bytes=4), (0, 1)),  # a number
        schedule(replace(REDUCE, ranks=1), (0, 1)),
    ],
)
def test_copies_that_all_ranks_make_at_once_stay_as_they_are(unchanged: Schedule) -> None:
    assert add_serialized_copies(unchanged).entries == unchanged.entries


def test_the_turns_of_others_take_time() -> None:
    """The links wait for all of them; alone a GPU does not share its link to the host."""
    cluster = Cluster(nodes=1, gpus_per_node=RANKS, gpu=find_gpu("A100-80GB"))
    seconds = [simulate(schedule(each, (0, 1)), cluster, tokens_per_step=1).time.step_s for each in (SCATTER, REDUCE)]
    reduced = simulate(schedule(REDUCE, ()), cluster, tokens_per_step=1).time.step_s
    scattered = simulate(schedule(SCATTER, ()), cluster, tokens_per_step=1).time.step_s
    assert seconds[1] - reduced == pytest.approx(RANKS * (seconds[0] - scattered), rel=0.05)
