"""The optimizer's step on the host by the threads that each rank has, and gradients on their way there."""

from __future__ import annotations

import dataclasses
import math

import pytest
from ds_advise.advisor.question.cluster import parse_cluster
from ds_advise.estimators.hardware import Cluster
from ds_advise.estimators.models.catalogue import find
from ds_advise.estimators.plan import Plan
from ds_advise.estimators.time.offload_time import (
    ADAM_BYTES,
    CONTENTION_EXPONENT,
    cpu_step_bytes_per_s,
    host_link_s,
)
from ds_advise.estimators.time.step_time import estimate_time
from ds_advise.estimators.workload import Workload

MODEL, WORKLOAD = find("qwen2.5-7b"), Workload(seq_len=1024)
PAIR, EIGHT = parse_cluster("2xRTX4090"), parse_cluster("8xA100-80GB")


def rate(cluster: Cluster, threads: int | None) -> float:
    return cpu_step_bytes_per_s(dataclasses.replace(cluster, threads_per_rank=threads))


def test_the_host_steps_only_its_share_of_the_optimizer() -> None:
    """With half of the sub-groups on the GPU the step on the host takes about half as long; with all, none."""
    plan = Plan(zero_stage=3, micro_batch_size=1, offload_optimizer="cpu", offload_param="cpu", sub_group_size=10**7)

    def host_s(ratio: float) -> float:
        terms = estimate_time(MODEL, WORKLOAD, EIGHT, dataclasses.replace(plan, offload_optimizer_ratio=ratio)).terms
        return math.fsum(term.seconds for term in terms if term.name == "optimizer on the host")

    assert host_s(0.5) == pytest.approx(host_s(1) / 2, rel=0.2)
    assert host_s(0) == 0 < host_s(0.9) < host_s(1)


def gradients_s(cluster: Cluster, plan: Plan) -> float:
    terms = estimate_time(MODEL, WORKLOAD, cluster, plan).terms
    return math.fsum(term.seconds + term.hidden_s for term in terms if term.name == "gradients to host")


def test_ranks_that_take_all_cores_wait_for_each_other() -> None:
    """The deepspeed launcher's default: eight ranks of 128 threads on 128 cores."""
    assert rate(EIGHT, 128) == pytest.approx(rate(EIGHT, 16) / 8**CONTENTION_EXPONENT)
    alone = dataclasses.replace(EIGHT, gpus_per_node=1)
    assert rate(alone, cores := 32) == rate(alone, None), f"one rank may take all {cores}"


def test_a_measured_rate_is_that_of_all_cores() -> None:
    """Ranks that share the cores reach it together; with one thread each a core's part of it."""
    measured = dataclasses.replace(PAIR, cpu_adam_parameters_per_s_per_node=20e9, cpu_cores_per_node=16)
    assert rate(measured, None) == 20e9 * ADAM_BYTES
    assert rate(measured, 1) == pytest.approx(20e9 * ADAM_BYTES / 8)


def test_copies_of_stages_1_and_2_follow_each_other() -> None:
    """A bucket smaller than a rank's part is copied by one rank while the others wait; stage 3 copies on all ranks."""
    small = Plan(zero_stage=2, micro_batch_size=1, offload_optimizer="cpu", reduce_bucket_size=10**8)
    whole = host_link_s(EIGHT, 4 * MODEL.parameters, pinned=True, alone=1.0)
    assert gradients_s(EIGHT, small) == pytest.approx(whole)
    at_once = dataclasses.replace(small, reduce_bucket_size=10**10)
    assert gradients_s(EIGHT, at_once) < whole / 3
    assert gradients_s(EIGHT, dataclasses.replace(small, zero_stage=3)) < whole
