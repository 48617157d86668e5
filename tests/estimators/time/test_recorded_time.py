"""Step time from recorded operations: what the recording counts, and how it is timed."""

from __future__ import annotations

import dataclasses
import re
from io import StringIO
from typing import Any

import pytest
from ds_advise.advisor.prove.dry_run import beside_closed_form
from ds_advise.advisor.prove.dry_run_report import render_dry_run
from ds_advise.advisor.question.cluster_spec import parse_cluster
from ds_advise.estimators.models.families import shape_from_config
from ds_advise.estimators.plan import Plan
from ds_advise.estimators.time.flops import block_attention, micro_batch_flops
from ds_advise.estimators.time.host_time import MICRO_STEP_HOST_S, ZERO3_VISIT_S
from ds_advise.estimators.time.recorded_time import KERNEL_S, RecordedOperation, recorded_time
from ds_advise.estimators.time.roofline import memory_rate, product_rate, product_s
from ds_advise.estimators.time.step_time import estimate_time
from ds_advise.estimators.workload import Workload
from ds_advise.probes.dry_run import DryRunResult, dry_run
from ds_advise.probes.dry_run.step_time import step_time
from ds_advise.probes.run import Run
from rich.console import Console

from benchmarks.accuracy import timed_runs

CLUSTER = parse_cluster("4xA100-80GB")
MODEL: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 4000,
    "tie_word_embeddings": False,
    "max_position_embeddings": 1024,
}
WORKLOAD = Workload(seq_len=256)
MICRO_BATCHES = 2


def timed(*operations: RecordedOperation, **settings: Any) -> dict[str, float]:
    estimate = recorded_time(
        operations, CLUSTER, **{"zero_stage": 2, "micro_batches": 1, "tokens_per_step": 1000, **settings}
    )
    assert estimate.step_s == pytest.approx(sum(estimate.components.values()))
    return estimate.components


def test_a_kernel_takes_its_roofline_but_no_less_than_a_launch() -> None:
    """Products as in the closed form, the rest by bytes, and small work by its number of kernels."""
    gpu = CLUSTER.gpu
    product = RecordedOperation(
        phase="step", kind="product", name="aten::mm", count=3, precision="bfloat16", product=(1, 4096, 4096, 4096)
    )
    large = RecordedOperation(
        phase="step", kind="memory", name="aten::add", count=2, precision="float32", size_bytes=10**9
    )
    small = dataclasses.replace(large, name="aten::mul", count=1000, size_bytes=64)
    components = timed(product, large, small)
    once = product_s(4096, 4096, 4096, copies=1, rate=product_rate(gpu, "bf16"), bandwidth=memory_rate(gpu), element=2)
    assert components["step: product"] == pytest.approx(3 * once)
    assert components["step: memory"] == pytest.approx(2 * 10**9 / memory_rate(gpu) + 1000 * KERNEL_S)


def test_the_gpu_waits_for_hooks_at_stage_3_only() -> None:
    """A submodule that ran forward is visited on the way back, too."""
    visit = RecordedOperation(phase="forward", kind="visit", name="submodule", count=100)
    below, at = timed(visit), timed(visit, zero_stage=3)
    assert below["forward: launch overhead"] == pytest.approx(MICRO_STEP_HOST_S)
    assert at["forward: launch overhead"] == pytest.approx(MICRO_STEP_HOST_S + 100 * ZERO3_VISIT_S)
    assert at["backward: launch overhead"] == pytest.approx(100 * ZERO3_VISIT_S)


def test_a_collective_hides_behind_its_pass_only() -> None:
    """An all-reduce takes twice what an all-gather does, and less where it overlaps."""
    gather = RecordedOperation(
        phase="step", kind="collective", name="c10d::_allgather_base_", count=1, size_bytes=10**9
    )
    reduction = dataclasses.replace(gather, name="c10d::allreduce_")
    assert timed(reduction)["step: collectives"] == pytest.approx(2 * timed(gather)["step: collectives"])
    busy = RecordedOperation(phase="backward", kind="memory", name="aten::add", count=100, size_bytes=10**9)
    beside = dataclasses.replace(reduction, phase="backward")
    hidden, shown = timed(busy, beside), timed(busy, beside, overlap_comm=False)
    assert shown["backward: collectives"] == timed(busy, beside, zero_stage=0)["backward: collectives"]
    assert hidden["backward: collectives"] < 0.5 * shown["backward: collectives"]


@pytest.fixture(scope="module")
def recorded() -> DryRunResult:
    config = {
        "bf16": {"enabled": True},
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": MICRO_BATCHES,
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    }
    return dry_run(Run(config=config, model=MODEL, cluster=CLUSTER, workload=WORKLOAD), iterations=2)


def test_the_recording_counts_the_products_of_one_step(recorded: DryRunResult) -> None:
    """FLOPs forward, and backward with what checkpointing runs again, equal the formula's, all micro batches
    together."""
    shape, plan = shape_from_config(MODEL, name="small"), Plan(zero_stage=2, micro_batch_size=2)
    ours = micro_batch_flops(shape, WORKLOAD, plan)
    attention = sum(
        block.count * flops
        for block in shape.blocks
        for _, flops in block_attention(shape, block, WORKLOAD, plan.micro_batch_size)
    )
    for phase, expected in (("forward", ours.forward), ("backward", ours.backward + ours.recompute)):
        own = [operation for operation in recorded.operations if operation.phase == phase]
        products = sum(
            2 * operation.count * a * b * c * d
            for operation in own
            if operation.kind == "product"
            for a, b, c, d in [operation.product]
        )
        kernels = sum(operation.count * operation.flops for operation in own if operation.kind == "attention")
        # The rotary table is a tiny product of its own.
        assert products + kernels == pytest.approx(MICRO_BATCHES * expected, rel=2e-3)
        # Backward: five products for two, and the forward kernel once more.
        assert kernels == pytest.approx(MICRO_BATCHES * attention * (1 if phase == "forward" else 3.5), rel=1e-6)


def test_the_recording_shows_where_the_step_runs(recorded: DryRunResult) -> None:
    """ZeRO-Offload: gradients go to the host, Adam runs there, updated weights come back and are gathered."""
    kinds = {(operation.phase, operation.kind) for operation in recorded.operations}
    assert {("backward", "to host"), ("step", "host"), ("step", "to device"), ("step", "collective")} <= kinds
    updates = [operation for operation in recorded.operations if operation.name == "adam_update"]
    assert updates and all(operation.kind == "host" for operation in updates)
    # Gradient, master and two states of this rank's part in fp32, each read and all but the gradient written.
    assert sum(operation.count * operation.size_bytes for operation in updates) == pytest.approx(
        recorded.parameters / CLUSTER.world_size * 28, rel=0.01
    )


def test_the_answer_holds_the_step_time(recorded: DryRunResult) -> None:
    """In JSON by component, without the operations; for people in a line beside the closed form's."""
    shape = shape_from_config(MODEL, name="small")
    run = Run(config=recorded.config, model=MODEL, cluster=CLUSTER, workload=WORKLOAD, shape=shape)
    answer = beside_closed_form(run, recorded)
    printed = answer.to_json()
    assert "operations" not in printed
    assert printed["step_s"] == pytest.approx(sum(printed["step_s_by_component"].values()))
    assert printed["tokens_per_s"] == pytest.approx(2 * MICRO_BATCHES * 4 * WORKLOAD.seq_len / printed["step_s"])
    console = Console(width=200, record=True, file=StringIO())
    render_dry_run(answer, console)
    text = " ".join(console.export_text().split())
    assert re.search(
        r"A step takes about \S+ m?s, by the operations that it executed; the closed form says \S+ m?s\.", text
    )


def test_both_depths_agree_on_published_runs() -> None:
    """Ten recorded runs of three models, stages 0 to 3, with and without offload: within 15 % of the closed form
    each."""
    known = {(run.source, run.name): run for run in timed_runs.read_runs()}
    recorded_runs = timed_runs.recorded_operations()
    assert len(recorded_runs) == 10
    for key, operations in recorded_runs.items():
        assert known[key].recorded_s(operations) == pytest.approx(known[key].step_s, rel=0.15), key


def test_both_depths_are_close_in_time(recorded: DryRunResult) -> None:
    """A launch-bound model of three layers: within 40 %, with neither told what the other counts."""
    plan = Plan(zero_stage=2, micro_batch_size=2, gradient_accumulation_steps=MICRO_BATCHES, offload_optimizer="cpu")
    closed = estimate_time(shape_from_config(MODEL, name="small"), WORKLOAD, CLUSTER, plan)
    from_operations = step_time(recorded, CLUSTER, seq_len=WORKLOAD.seq_len)
    assert from_operations is not None
    assert from_operations.tokens_per_step == closed.tokens_per_step
    assert from_operations.step_s == pytest.approx(closed.step_s, rel=0.4)
    assert step_time(dataclasses.replace(recorded, operations=()), CLUSTER, seq_len=256) is None
