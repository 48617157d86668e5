"""The schedule that a dry run records of one step: what it executes, what orders it, and how it plays out."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from ds_advise.advisor.question.cluster import parse_cluster
from ds_advise.advisor.render.dry_run import dry_run_document
from ds_advise.advisor.text.units import gib
from ds_advise.advisor.verification.dry_run import compare_with_closed_form, trace
from ds_advise.ds_configs.read import reduce_bucket_size_in
from ds_advise.estimators.memory.trainable import tensor_set
from ds_advise.estimators.models.families import shape_from_config
from ds_advise.estimators.plan import Plan
from ds_advise.estimators.schedule.recorded import Code, RecordedOperation, Schedule
from ds_advise.estimators.time.flops import block_attention, micro_batch_flops
from ds_advise.estimators.time.host_time import host_work
from ds_advise.estimators.time.memory_bound import concatenated_shares
from ds_advise.estimators.workload import Workload
from ds_advise.probes.dry_run.run import dry_run, simulated_step
from ds_advise.probes.recording.result import DryRunResult
from ds_advise.probes.recording.schedule import _computed, _grouped_product
from ds_advise.probes.run import Run

from tests.helpers import WIDE_LLAMA, dry_runs_in_forks, printed_document, zero_config

CLUSTER = parse_cluster("4xA100-80GB")
MODEL = WIDE_LLAMA
WORKLOAD = Workload(seq_len=256)
MICRO_BATCHES = 2


def recording(config: dict[str, Any], *, iterations: int, workload: Workload = WORKLOAD) -> DryRunResult:
    with dry_runs_in_forks():
        return dry_run(Run(config=config, model=MODEL, cluster=CLUSTER, workload=workload), iterations=iterations)


@pytest.fixture(scope="module")
def recorded() -> DryRunResult:
    return recording(zero_config(2, 2, MICRO_BATCHES, offload_optimizer={"device": "cpu"}), iterations=2)


def ran(schedule: Schedule) -> Counter[tuple[str, RecordedOperation]]:
    """How often each operation ran in each phase."""
    phase, found = "", Counter[tuple[str, RecordedOperation]]()
    for code, first, _ in schedule.entries:
        if code == Code.PHASE:
            phase = schedule.phases[first]
        elif code == Code.RUN:
            found[phase, schedule.operations[first]] += 1
    return found


def recorded_schedule(result: DryRunResult) -> Schedule:
    assert result.schedule is not None
    return result.schedule


def host_calls(schedule: Schedule, only: str = "") -> Counter[str]:
    """Host calls of a step, or of one phase, by kind."""
    phase, found = "", Counter[str]()
    for code, first, second in schedule.entries:
        if code == Code.PHASE:
            phase = schedule.phases[first]
        elif code == Code.CALL and only in ("", phase):
            found[schedule.calls[first]] += second
    return found


def test_the_recording_counts_the_products_of_one_step(recorded: DryRunResult) -> None:
    """FLOPs forward, and backward with what checkpointing runs again, equal the formula's, all micro batches
    together."""
    shape, plan = shape_from_config(MODEL, name="small"), Plan(zero_stage=2, micro_batch_size=2)
    ours = micro_batch_flops(shape, WORKLOAD, plan)
    attention = sum(
        block.count * flops
        for block in shape.blocks
        for _, flops, _ in block_attention(shape, block, WORKLOAD, plan.micro_batch_size)
    )
    for phase, expected in (("forward", ours.forward), ("backward", ours.backward + ours.recompute)):
        own = [(operation, count) for (at, operation), count in ran(recorded_schedule(recorded)).items() if at == phase]
        products = sum(
            2 * count * a * b * c * d
            for operation, count in own
            if operation.kind == "product"
            for a, b, c, d in [operation.product]
        )
        kernels = sum(count * operation.flops for operation, count in own if operation.kind == "attention")
        # The rotary table is a tiny product of its own.
        assert products + kernels == pytest.approx(MICRO_BATCHES * expected, rel=2e-3)
        # Backward: five products for two, and the forward kernel once more.
        assert kernels == pytest.approx(MICRO_BATCHES * attention * (1 if phase == "forward" else 3.5), rel=1e-6)


def test_the_recording_shows_where_the_step_runs(recorded: DryRunResult) -> None:
    """ZeRO-Offload: gradients go to the host, Adam runs there, updated weights come back and are gathered."""
    counted = ran(recorded_schedule(recorded))
    kinds = {(phase, operation.kind) for phase, operation in counted}
    assert {("backward", "to host"), ("step", "host"), ("step", "to device"), ("step", "collective")} <= kinds
    updates = {operation: count for (_, operation), count in counted.items() if operation.name == "adam_update"}
    assert updates and all(operation.kind == "host" for operation in updates)
    # Gradient, master and two states of this rank's part in fp32, each read and all but the gradient written.
    assert sum(count * operation.size_bytes for operation, count in updates.items()) == pytest.approx(
        recorded.parameters / CLUSTER.world_size * 28, rel=0.01
    )


def test_zero3_gathers_and_reduces_on_streams_of_their_own() -> None:
    """The all-gathers of prefetched weights, the reductions of gradients and the computation wait for each other by
    events, and the hooks of every module are recorded in both passes."""
    result = recording(zero_config(3, 2, stage3_param_persistence_threshold=0, overlap_comm=True), iterations=3)
    schedule = recorded_schedule(result)
    streams: dict[str, set[int]] = {}
    for code, first, second in schedule.entries:
        if code == Code.RUN:
            streams.setdefault(schedule.operations[first].kind, set()).add(second)
    assert streams["product"] == {0}
    assert not streams["collective"] & streams["product"]
    assert len(streams["memory"]) == 3  # computing, gathering, reducing
    collectives = {operation for _, operation in ran(schedule) if operation.kind == "collective"}
    assert {operation.ranks for operation in collectives} == {4}
    calls = host_calls(schedule)
    # A module that is recomputed is visited forward once more, and with a threshold of 0 all 30 weights are gathered.
    assert calls["visit_forward"] > calls["visit_backward"] > 0
    assert calls["gather"] >= 30 and calls["partitioned_gradient"] == 30 and calls["micro_batch"] == 1
    codes = Counter(code for code, *_ in schedule.entries)
    assert codes[Code.WAIT] and codes[Code.SYNCHRONIZE]
    step = simulated_step(result, CLUSTER, seq_len=WORKLOAD.seq_len)
    assert step is not None and step.links_busy_s > 0
    assert {"forward: all-gather", "backward: reduce-scatter"} <= {term.name for term in step.time.terms}


@pytest.mark.slow
def test_bytes_that_zero3_concatenates() -> None:
    """Bytes of `cat` against those of prefetches that take one tensor each. A rank's own part is put together, too."""

    def concatenated_bytes(prefetch: int) -> tuple[int, float]:
        """Read and written in a forward pass: recorded, and by the closed form."""
        settings = {"stage3_prefetch_bucket_size": prefetch, "stage3_param_persistence_threshold": 1000}
        counted = ran(recorded_schedule(recording(zero_config(3, 2, **settings), iterations=3)))
        cats = ((operation, n) for (at, operation), n in counted.items() if at == "forward")
        recorded_bytes = sum(n * operation.size_bytes for operation, n in cats if operation.name == "aten::cat")
        tensors = tensor_set(shape_from_config(MODEL, name="small"), WORKLOAD.weights_cache_key())
        share, _ = concatenated_shares(tensors, Plan(zero_stage=3, micro_batch_size=2, **settings))
        return recorded_bytes, (1 + 1 / CLUSTER.world_size) * 4 * share * tensors.numel

    alone, together = concatenated_bytes(1), concatenated_bytes(600_000)
    assert alone[1] == 0 and together[0] - alone[0] == pytest.approx(together[1], rel=0.12)


def test_the_answer_holds_the_step_time(recorded: DryRunResult) -> None:
    """JSON has it by component, without the operations; the terminal compares it with the closed form's."""
    shape = shape_from_config(MODEL, name="small")
    run = Run(config=recorded.config, model=MODEL, cluster=CLUSTER, workload=WORKLOAD, shape=shape)
    answer = compare_with_closed_form(run, recorded)
    printed = answer.to_json()
    assert "schedule" not in printed
    assert printed["step_s"] == pytest.approx(sum(printed["step_s_by_component"].values()))
    assert printed["tokens_per_s"] == pytest.approx(2 * MICRO_BATCHES * 4 * WORKLOAD.seq_len / printed["step_s"])
    text = " ".join(printed_document(dry_run_document(answer), 200).split())
    assert f"dry run closed form GPU memory {gib(answer.required_device_bytes_per_gpu)} GiB" in text
    assert re.search(r"allocated \S+ GiB \S+ GiB .*step time \S+ m?s \S+ m?s", text)
    assert re.search(r"optimizer on the host \d+ %", text)
    assert re.search(r"nvidia-smi shows up to \d\S+ GiB\.", text)
    assert re.search(
        r"the GPU computes \d+ % of the time; \d+ % of the \S+ m?s of collectives overlap with computation, and the "
        r"step waits for \S+ m?s of them\.",
        text,
    )


def test_a_bucket_that_is_most_of_the_memory_is_named(recorded: DryRunResult) -> None:
    """Only a bucket that is allocated whole: one that follows the model's size has another shape."""
    elements = reduce_bucket_size_in(recorded.config)
    bucket = replace(recorded.peak.largest[0], category="buckets", shape=(elements,), size_bytes=2 * elements)
    named = f"a reduction bucket of {elements:,} elements (reduce_bucket_size)"
    run = Run(config=recorded.config, model=MODEL, cluster=CLUSTER, workload=WORKLOAD)
    for shape, is_named in ((elements,), True), ((elements - 1,), False):
        largest = (replace(bucket, shape=shape),)
        peak = replace(recorded.peak, largest=largest, allocated_bytes_per_gpu=3 * elements)
        answer = compare_with_closed_form(run, replace(recorded, peak=peak))
        text = " ".join(printed_document(dry_run_document(answer), 200).split())
        assert (named in text) == is_named


def test_nvidia_smi_shows_no_more_than_the_gpu_has(recorded: DryRunResult) -> None:
    """The replayed allocator has unlimited memory."""
    needed = recorded.peak.required_bytes_per_gpu
    peak = replace(recorded.peak, reserved_bytes_per_gpu=needed + 2**40, device_bytes_per_gpu=needed + 2**40)
    answer = compare_with_closed_form(
        Run(config=recorded.config, model=MODEL, cluster=CLUSTER, workload=WORKLOAD), replace(recorded, peak=peak)
    )
    assert f"shows up to {gib(CLUSTER.gpu.memory_bytes)} GiB." in printed_document(dry_run_document(answer), 200)


def test_the_trace_shows_the_lanes_of_one_step(recorded: DryRunResult) -> None:
    """Host, streams and copies as threads; their spans end with the step, and two of one thread never overlap."""
    run = Run(config=recorded.config, model=MODEL, cluster=CLUSTER, workload=WORKLOAD)
    answer = compare_with_closed_form(run, recorded)
    assert answer.step is not None
    events = json.loads(json.dumps(trace(answer)))["traceEvents"]
    spans = [event for event in events if event["ph"] == "X" and event["pid"] == 2]
    assert max(event["ts"] + event["dur"] for event in spans) == pytest.approx(answer.step.time.step_s * 1e6)
    threads = {
        event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name" and event["pid"] == 2
    }
    assert {"host", "stream 0: gpu"} <= set(threads.values())
    for thread in threads:
        own = sorted((event["ts"], event["ts"] + event["dur"]) for event in spans if event["tid"] == thread)
        assert all(begins >= before - 1e-3 for (_, before), (begins, _) in pairwise(own))


def test_heads_are_exchanged_for_tokens_over_the_links() -> None:
    """Ulysses: queries, keys, values and results of every layer, forward, again in the backward pass and back."""
    shared = {"sequence_parallel_size": 2, "seq_parallel_communication_data_type": "bf16"}
    workload = replace(WORKLOAD, seq_len=512, attention="sdpa")
    result = recording(zero_config(2) | shared, iterations=2, workload=workload)
    exchanged = Counter[str]()
    for (phase, operation), count in ran(recorded_schedule(result)).items():
        if operation.name == "c10d::alltoall_base_":
            assert (operation.kind, operation.ranks) == ("collective", 2)
            exchanged[phase] += count
    layers = MODEL["num_hidden_layers"]
    assert exchanged == {"forward": 4 * layers, "backward": 8 * layers}
    slow = replace(CLUSTER, gpu=replace(CLUSTER.gpu, peer_bytes_per_s=1e8))
    step = simulated_step(result, slow, seq_len=512)
    assert step is not None
    assert step.time.components["forward: all-to-all"] > step.time.components["forward: launches"] > 0


def test_products_of_experts_are_products() -> None:
    """Of eight experts' tokens with their matrices, and the gradient of these, which sums over the tokens."""
    tokens, weights = torch.empty(64, 16, device="meta"), torch.empty(8, 16, 32, device="meta")
    result = torch.empty(64, 32, device="meta")
    assert _grouped_product(tokens, weights, result) == (8, 8, 16, 32)
    assert _grouped_product(tokens.t(), result, weights) == (8, 16, 8, 32)


def test_a_product_into_a_given_tensor_has_the_shape_of_its_factors() -> None:
    """As in Liger's loss, whose products fill parts of tensors: a chunk of logits, and the head's gradient."""
    states, weight = torch.empty(8, 16, device="meta"), torch.empty(32, 16, device="meta")
    logits, aten = torch.empty(8, 32, device="meta"), torch.ops.aten
    factors, out = (states, weight.t()), {"out": logits}
    product = _computed(aten.mm.out, factors, out, logits, [*factors, logits])
    factors, out = (weight, logits.t(), states), {"out": weight}
    gradient = _computed(aten.addmm.out, factors, out, weight, [*factors, weight])
    assert product is not None and product.product == (1, 8, 16, 32)
    assert gradient is not None and gradient.product == (1, 32, 8, 16)


def test_large_tensors_are_new_where_an_operation_makes_them() -> None:
    """What is written in place, and what a CPU's allocator keeps, is not."""
    large, small = (torch.empty(numel, device="meta") for numel in (9 * 2**20, 8 * 2**20))
    for target, unmapped_bytes in ((large, 36 * 2**20), (small, 0)):
        doubled = _computed(torch.ops.aten.mul.Tensor, (target, 2), {}, torch.empty_like(target), [target])
        in_place = _computed(torch.ops.aten.mul_.Tensor, (target, 2), {}, target, [target])
        assert doubled is not None and in_place is not None
        assert (doubled.unmapped_bytes, in_place.unmapped_bytes) == (unmapped_bytes, 0)


def test_the_closed_form_counts_the_operations_of_a_forward_pass(recorded: DryRunResult) -> None:
    """Layers, embedding, mask, rotary table, last norm, head and loss."""
    found = host_calls(recorded_schedule(recorded), "forward")["operation"]
    work = host_work(shape_from_config(MODEL, name="llama"), WORKLOAD, 0)
    assert found / MICRO_BATCHES == pytest.approx(work.counts.operations, abs=1)
