"""Steps, seconds and cost of a whole training."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random
from statistics import mean

import pytest
from ds_advise.estimators.gpu_catalogue import find_gpu
from ds_advise.estimators.hardware import Cluster
from ds_advise.estimators.models.catalogue import find
from ds_advise.estimators.plan import Plan
from ds_advise.estimators.time.flops import model_flops_utilization, peak_flops_per_s
from ds_advise.estimators.time.job import (
    MOST_WRITING_SHARE,
    Job,
    JobDuration,
    Price,
    SamplesOfLength,
    job_duration,
    saving,
    young_interval_s,
)
from ds_advise.estimators.time.step_time import estimate_forward_s, estimate_time
from ds_advise.estimators.workload import Workload

MODEL = find("Qwen2.5-1.5B")
WORKLOAD = Workload(seq_len=1024)
CLUSTER = Cluster(nodes=1, gpus_per_node=4, gpu=find_gpu("A100-80GB"))
PLAN = Plan(zero_stage=2, micro_batch_size=2, gradient_accumulation_steps=3)
LENGTHS = (SamplesOfLength(100, 3), SamplesOfLength(333, 1), SamplesOfLength(1024, 1))


def duration(job: Job, *, plan: Plan = PLAN, cluster: Cluster = CLUSTER) -> JobDuration:
    time = estimate_time(MODEL, WORKLOAD, cluster, plan)
    return job_duration(MODEL, WORKLOAD, cluster, plan, time, job)


@pytest.mark.parametrize(
    ("job", "steps"),
    [
        (Job(samples=24), 1),
        (Job(samples=25), 2),
        (Job(samples=100, epochs=3), 15),  # no batch has samples of two epochs
        (Job(samples=1, epochs=0.5), 1),
        (Job(tokens=24 * 1024 * 7), 7),
        (Job(tokens=24 * 1024 * 7 + 1), 8),
    ],
)
def test_the_last_step_may_see_fewer_samples(job: Job, steps: int) -> None:
    assert job.steps(PLAN.samples_per_step(4), 1024) == steps == duration(job).steps


@pytest.mark.parametrize("draws", [1, 2, 3])
def test_samples_are_padded_to_the_longest_that_is_drawn_with_them(draws: int) -> None:
    """The expectation is that over all ways to draw, of lengths rounded up to a multiple of 8."""
    rounded = [104, 104, 104, 336, 1024]
    expected = mean(max(drawn) for drawn in product(rounded, repeat=draws))
    assert Job(samples=5, lengths=LENGTHS).padded_len(1024, draws) == pytest.approx(expected)


@pytest.mark.parametrize(("stage", "accumulation"), [(0, 1), (1, 1), (2, 3), (3, 3)])
def test_ranks_wait_for_the_longest_sample_of_all_where_they_exchange(stage: int, accumulation: int) -> None:
    job, plan = Job(samples=5, lengths=LENGTHS), replace(PLAN, gradient_accumulation_steps=accumulation)
    plan = replace(plan, zero_stage=stage)  # type: ignore[arg-type]
    assert job.waited_len(1024, plan, 4) == job.padded_len(1024, 8)
    assert job.waited_len(1024, replace(plan, sequence_parallel_size=2), 4) == job.padded_len(1024, 4)


@pytest.mark.parametrize("accumulation", [2, 8, 32])
def test_ranks_that_wait_at_the_step_alone_wait_for_the_longest_sum(accumulation: int) -> None:
    """Against the mean of 4,000 draws of eight ranks' micro batches."""
    chance, plan = Random(0), Plan(zero_stage=1, micro_batch_size=2, gradient_accumulation_steps=accumulation)
    lengths = (SamplesOfLength(104, 5), SamplesOfLength(336, 3), SamplesOfLength(1024, 1))
    pool = [each.tokens for each in lengths for _ in range(each.samples)]
    ranks = [
        [sum(max(chance.choices(pool, k=2)) for _ in range(accumulation)) / accumulation for _ in range(8)]
        for _ in range(4000 // accumulation)
    ]
    drawn = mean(max(sums) for sums in ranks)
    assert Job(samples=9, lengths=lengths).waited_len(1024, plan, 8) == pytest.approx(drawn, rel=0.05)


def test_a_run_of_full_samples_takes_its_steps_and_the_named_parts() -> None:
    found, time = duration(Job(samples=2400, evaluation_samples=48)), estimate_time(MODEL, WORKLOAD, CLUSTER, PLAN)
    assert found.training_s == pytest.approx(100 * time.step_s)
    assert found.evaluation_s == found.saving.count * 2 * estimate_forward_s(MODEL, WORKLOAD, CLUSTER, PLAN)
    parts = found.training_s + found.loading_s + found.saving.total_s + found.evaluation_s
    assert found.duration_s == pytest.approx(parts)
    assert (found.tokens, found.padding) == (2400 * 1024, 0)


def _times(number: int) -> tuple[SamplesOfLength, ...]:
    return tuple(SamplesOfLength(tokens, number * samples) for tokens, samples in LENGTHS)


def test_the_interval_is_that_of_the_step_and_holds_the_duration() -> None:
    found = duration(Job(tokens=10**8))
    assert found.duration_s_range is not None and found.spread is not None
    low, high = found.duration_s_range
    fixed_s = found.loading_s + found.saving.total_s
    assert low < found.duration_s < high
    assert (high - fixed_s) / (low - fixed_s) == pytest.approx(found.spread.high / found.spread.low)


def test_a_measured_step_scales_the_prediction_of_shorter_samples() -> None:
    job, time = Job(samples=2400, lengths=_times(480)), estimate_time(MODEL, WORKLOAD, CLUSTER, PLAN)
    slower = replace(time, terms=(*time.terms, time.terms[0]._replace(seconds=time.step_s)))
    measured = job_duration(MODEL, WORKLOAD, CLUSTER, PLAN, slower, job)
    assert measured.step_s == pytest.approx(2 * duration(job).step_s)


def test_a_price_counts_gpus_or_nodes_by_the_hour() -> None:
    nodes = replace(CLUSTER, nodes=2)
    assert Price(per_hour=2.0).cost(nodes, 1800) == 8.0
    assert Price(per_hour=2.0, unit="node").cost(nodes, 1800) == 2.0
    found = duration(Job(tokens=10**8))
    assert found.cost(Price(per_hour=1.0)) == pytest.approx(found.gpu_hours)


def test_checkpoints_come_by_failures_and_not_so_often_that_writing_counts() -> None:
    assert young_interval_s(2, 100) == 20
    for training_s in (60.0, 3600.0, 30 * 86400.0):
        saved = saving(MODEL, WORKLOAD, CLUSTER, PLAN, training_s)
        assert saved.count == 1 or saved.total_s <= 1.5 * MOST_WRITING_SHARE * training_s
        assert saved.interval_s <= training_s


@pytest.mark.parametrize("checkpointing", [True, False])
def test_mfu_counts_what_the_model_needs_and_nothing_twice(checkpointing: bool) -> None:
    """6 FLOPs a weight and token, and attention besides; recomputation takes time alone."""
    plan = replace(PLAN, gradient_checkpointing=checkpointing)
    time, peak = estimate_time(MODEL, WORKLOAD, CLUSTER, plan), peak_flops_per_s(CLUSTER.gpu, "bf16")
    found = model_flops_utilization(MODEL, WORKLOAD, CLUSTER, plan, time)
    assert found is not None and peak is not None
    weights = 6 * MODEL.parameters * time.tokens_per_s / 4 / peak
    assert weights < found < 1.15 * weights
    flash = model_flops_utilization(MODEL, replace(WORKLOAD, attention="flash"), CLUSTER, plan, time)
    assert flash == found
