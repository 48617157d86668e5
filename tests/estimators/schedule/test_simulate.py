"""A recorded step simulated: hand-made schedules whose course can be followed with a pencil."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ds_advise.estimators.gpu_catalogue import find_gpu
from ds_advise.estimators.hardware import Cluster
from ds_advise.estimators.schedule.recorded import (
    ALL_STREAMS,
    Code,
    Entry,
    RecordedOperation,
    Schedule,
    add_serialized_copies,
)
from ds_advise.estimators.schedule.simulate import KERNEL_S, SimulatedStep, duration_s, simulate
from ds_advise.estimators.schedule.streams import Streams
from ds_advise.estimators.time.roofline import EFFICIENT_SPEED

CLUSTER = Cluster(nodes=1, gpus_per_node=4, gpu=find_gpu("A100-80GB"))
KERNEL = RecordedOperation(kind="memory", name="aten::add", precision="bfloat16", size_bytes=10**9)
GATHER = RecordedOperation(kind="collective", name="c10d::_allgather_base_", size_bytes=10**8, ranks=4)
TO_HOST = RecordedOperation(kind="to host", name="aten::copy_", size_bytes=10**8, pinned=True)
ADAM = RecordedOperation(kind="host", name="adam_update", size_bytes=10**8)
COMPUTE, OTHER = 0, 1


def simulated(operations: tuple[RecordedOperation, ...], *entries: Entry) -> SimulatedStep:
    schedule = Schedule(
        operations=operations, phases=("backward",), calls=("view",), entries=((Code.PHASE, 0, 0), *entries)
    )
    return simulate(schedule, CLUSTER, tokens_per_step=100)


def seconds(operation: RecordedOperation) -> float:
    return duration_s(operation, CLUSTER)


def test_attention_with_a_mask_runs_in_the_slower_kernel() -> None:
    attention = RecordedOperation(
        kind="attention", name="efficient_attention", precision="bfloat16", size_bytes=10**6, flops=10**13, keys=4096
    )
    assert seconds(replace(attention, masked=True)) == pytest.approx(seconds(attention) / EFFICIENT_SPEED[False])


def test_two_streams_share_the_gpu_and_not_its_links() -> None:
    both = simulated((KERNEL,), (Code.RUN, 0, COMPUTE), (Code.RUN, 0, OTHER))
    assert both.time.step_s == pytest.approx(2 * seconds(KERNEL), rel=0.02)
    overlapped = simulated((KERNEL, TO_HOST), (Code.RUN, 0, COMPUTE), (Code.RUN, 1, OTHER))
    assert overlapped.time.step_s == pytest.approx(max(seconds(KERNEL), seconds(TO_HOST)), rel=0.02)
    gathered = simulated((KERNEL, GATHER), (Code.RUN, 0, COMPUTE), (Code.RUN, 1, OTHER))
    assert gathered.overlapped_s == pytest.approx(min(gathered.gpu_busy_s, gathered.links_busy_s), rel=0.05)


@pytest.mark.parametrize(("kernel_s", "collective_s"), [(1.0, 3.0), (3.0, 1.0)])
def test_kernels_and_collectives_hold_each_other_up(kernel_s: float, collective_s: float) -> None:
    """Whichever is the longer: both take max + contention min."""
    streams = Streams()
    streams.run(0, COMPUTE, "gpu", kernel_s, 0.0)
    streams.run(1, OTHER, "links", collective_s, 0.0, contention=0.5)
    assert streams.finish()[0] == pytest.approx(3.0 + 0.5 * 1.0)


@pytest.mark.parametrize(("through_host", "ends_s"), [(True, 3.0), (False, 2.0)])
def test_collectives_and_copies_share_the_host_link_of_gpus_without_another(through_host: bool, ends_s: float) -> None:
    streams = Streams(through_host=through_host)
    streams.run(0, COMPUTE, "to device", 1.0, 0.0)
    streams.run(1, OTHER, "links", 2.0, 0.0)
    assert streams.finish()[0] == pytest.approx(ends_s)


def test_operations_issued_after_an_event_overlap_earlier_ones() -> None:
    """The event at 1 s lets the host go on while a kernel of 5 s runs; a copy that it issues then ends at 2 s."""
    streams = Streams()
    streams.run(0, COMPUTE, "gpu", 1.0, 0.0)
    streams.record(7, COMPUTE)
    streams.run(0, COMPUTE, "gpu", 5.0, 0.0)
    at_s, _ = streams.finish(7)
    streams.run(1, OTHER, "to host", 1.0, at_s)
    streams.finish()
    assert [span.ends_s for span in streams.spans] == pytest.approx([1.0, 6.0, 2.0])


def test_a_stream_waits_for_an_event_of_another() -> None:
    step = simulated(
        (KERNEL, GATHER),
        (Code.RUN, 1, OTHER), (Code.RECORD, 7, OTHER), (Code.WAIT, COMPUTE, 7), (Code.RUN, 0, COMPUTE),
    )  # fmt: skip
    assert step.time.step_s == pytest.approx(seconds(GATHER) + seconds(KERNEL), rel=0.02)
    assert step.spans[1].after == 0
    assert step.time.components["backward: all-gather"] == pytest.approx(seconds(GATHER), rel=0.02)


def test_a_wait_means_the_record_that_came_before_it() -> None:
    """Events are used again: what a stream waits for is not a later record of the same event."""
    streams = Streams()
    streams.run(0, OTHER, "links", 1.0, 0.0)
    streams.record(7, OTHER)
    streams.wait(COMPUTE, 7)
    streams.run(0, OTHER, "links", 5.0, 0.0)
    streams.record(7, OTHER)
    streams.run(0, COMPUTE, "gpu", 1.0, 0.0)
    assert streams.finish()[0] == pytest.approx(6.0)
    assert streams.spans[2].begins_s == pytest.approx(1.0)


def test_the_host_waits_for_an_event_and_computes_alone() -> None:
    """Copies to the host, a synchronisation, the optimizer on the host: one after the other."""
    step = simulated(
        (KERNEL, TO_HOST, ADAM),
        (Code.RUN, 0, COMPUTE), (Code.RUN, 1, COMPUTE), (Code.RECORD, 3, COMPUTE), (Code.SYNCHRONIZE, 3, 0),
        (Code.RUN, 2, COMPUTE),
    )  # fmt: skip
    assert step.time.step_s == pytest.approx(sum(map(seconds, (KERNEL, TO_HOST, ADAM))), rel=0.02)
    assert step.time.components["backward: optimizer on the host"] == pytest.approx(seconds(ADAM))
    assert {stretch.name for stretch in step.host} >= {"", "backward: optimizer on the host"}


def test_short_kernels_wait_for_the_host_that_launches_them() -> None:
    small = RecordedOperation(kind="memory", name="aten::add", precision="bfloat16", size_bytes=512)
    step = simulated((small,), *[(Code.CALL, 0, 3), (Code.RUN, 0, COMPUTE)] * 1000, (Code.SYNCHRONIZE, ALL_STREAMS, 0))
    assert seconds(small) == KERNEL_S
    assert step.gpu_busy_s == pytest.approx(1000 * KERNEL_S)
    assert step.time.components["backward: launches"] > 0.9 * step.time.step_s
    assert step.time.bottleneck == "launch"


def test_a_cpu_maps_new_pages_for_large_tensors() -> None:
    """Their pages fault at the measured rate; a GPU's allocator keeps its blocks."""
    large = replace(KERNEL, unmapped_bytes=2 * 10**9)
    cpu = replace(CLUSTER, gpu=replace(CLUSTER.gpu, architecture="cpu"), new_memory_bytes_per_s=4e9)
    assert duration_s(large, cpu) == pytest.approx(duration_s(KERNEL, cpu) + 0.5)
    assert duration_s(large, replace(cpu, new_memory_bytes_per_s=None)) == duration_s(KERNEL, cpu)
    assert duration_s(large, replace(CLUSTER, new_memory_bytes_per_s=4e9)) == duration_s(KERNEL, CLUSTER)


RANKS, BUCKETS = 4, 8
LINKS, COPIES = 1, 2
REDUCE = RecordedOperation(kind="collective", name="c10d::allreduce_", size_bytes=10**8, ranks=RANKS)
SCATTER = replace(REDUCE, name="c10d::_reduce_scatter_base_")


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


def test_copies_of_one_rank_at_a_time_are_shared_out_among_the_reductions() -> None:
    """Two of eight buckets are this rank's; the other three ranks copy as much."""
    found = add_serialized_copies(schedule(REDUCE, (0, 1)))
    assert copied_bytes(found) == [RANKS * 2 * TO_HOST.size_bytes // BUCKETS] * BUCKETS


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
