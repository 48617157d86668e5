"""Host time: the committed costs are those of the measured steps, and predict them."""

from __future__ import annotations

import pytest
from ds_advise.estimators.gpu_catalogue import find_gpu
from ds_advise.estimators.hardware import HOST_SCORE_S, Cluster
from ds_advise.estimators.models.catalogue import find
from ds_advise.estimators.plan import Plan
from ds_advise.estimators.time.host_costs import HostCosts, host_costs
from ds_advise.estimators.time.step_time import assumptions, estimate_time
from ds_advise.estimators.workload import Workload

from benchmarks.probes import host_time


def test_committed_costs_are_those_of_the_measured_cases() -> None:
    solved = host_time.solve(host_time.read())
    for name in host_time.UNKNOWNS:
        assert getattr(HostCosts(), name) == pytest.approx(getattr(solved, name), rel=0.02)


def test_costs_predict_the_cases_that_they_were_solved_from() -> None:
    rows = host_time.read()
    errors = sorted(abs(host_time.error(row, HostCosts())) for row in rows)
    assert errors[len(errors) // 2] < 0.09 and errors[-1] < 0.46


def test_counts_of_the_closed_form_are_as_good() -> None:
    errors = sorted(abs(host_time.closed_form_error(row, HostCosts())) for row in host_time.read())
    assert errors[len(errors) // 2] < 0.12 and errors[-1] < 0.4


def test_a_faster_core_launches_faster() -> None:
    gpu, plan = find_gpu("A100-80GB"), Plan(zero_stage=3, micro_batch_size=1)
    model, workload = find("Qwen2.5-0.5B"), Workload(seq_len=128)
    slow, fast, unknown = (
        Cluster(nodes=1, gpus_per_node=2, gpu=gpu, host_score_s=score)
        for score in (2 * HOST_SCORE_S, HOST_SCORE_S, None)
    )
    newer = Cluster(nodes=1, gpus_per_node=2, gpu=find_gpu("H100-80GB"))
    assert host_costs(fast).view_s == pytest.approx(host_costs(slow).view_s / 2)
    times = [estimate_time(model, workload, cluster, plan) for cluster in (slow, fast, unknown)]
    assert times[1].step_s < 0.7 * times[0].step_s
    assert times[2].step_s > times[0].step_s
    assert host_costs(fast).view_s < host_costs(newer).view_s < host_costs(unknown).view_s
    assert any("CPU cores as fast" in phrase for phrase in assumptions(unknown, times[2]))
    assert not any("CPU cores as fast" in phrase for phrase in assumptions(slow, times[0]))
