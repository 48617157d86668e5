"""A dry run of an earlier time answers the same question again, and no other one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ds_advise.advisor.verification import past_results as past_dry_runs
from ds_advise.advisor.verification.past_results import dry_run_once
from ds_advise.estimators.workload import Workload
from ds_advise.probes.dry_run import DryRunResult, Peak, PhaseMemory
from ds_advise.probes.recording.result import Reserved
from ds_advise.probes.run import Run
from ds_advise.probes.store import Store

from tests.helpers import h100s

RUN = Run(config={"zero_optimization": {"stage": 2}}, model={"model_type": "llama"}, cluster=h100s(2))


def result_of(run: Run) -> DryRunResult:
    held = Reserved(reserved_bytes_per_gpu=2, required_bytes_per_gpu=2)
    figures = {name: 1 for name in PhaseMemory.__dataclass_fields__ if name.endswith("_bytes")}
    nvme = {"nvme_read_bytes": 0, "nvme_written_bytes": 0}
    return DryRunResult(
        phases=tuple(PhaseMemory(iteration=1, phase=phase, **figures | nvme) for phase in ("forward", "step")),
        iterations=1,
        peak=Peak(
            iteration=1,
            phase="step",
            allocated_bytes_per_gpu=1,
            reserved_bytes_per_gpu=2,
            required_bytes_per_gpu=2,
            with_expandable_segments=held,
            without_expandable_segments=held,
            device_bytes_per_gpu=3,
            host_bytes_per_node=4,
            by_category={"gradients": 1},
            by_module={},
            largest=(),
        ),
        peak_loading_gpu_bytes=1,
        nvme_bytes_per_rank=0,
        parameters=1,
        trainable_parameters=1,
        world_size=2,
        rank=0,
        gpus_per_node=2,
        versions={},
        config=dict(run.config),
        seconds=0.5,
        peak_by_phase={},
    )


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """The runs that were executed."""
    runs: list[Run] = []

    def executed(run: Run, **_: Any) -> DryRunResult:
        runs.append(run)
        return result_of(run)

    monkeypatch.setattr(past_dry_runs, "dry_run", executed)
    return runs


def test_a_question_is_answered_by_the_run_of_an_earlier_time(ran: list[Run]) -> None:
    first, second = (dry_run_once(RUN, rank=None) for _ in range(2))
    assert first[0] == second[0] and len(ran) == 1
    assert first[1] is None and second[1] is not None


@pytest.mark.parametrize(
    "other",
    [
        replace(RUN, config={"zero_optimization": {"stage": 1}}),
        replace(RUN, model={"model_type": "llama", "vocab_size": 7}),
        replace(RUN, workload=Workload(seq_len=77)),
        replace(RUN, cluster=h100s(4)),
        replace(RUN, micro_batch_size=3),
    ],
)
def test_another_question_is_run(ran: list[Run], other: Run) -> None:
    dry_run_once(RUN)
    dry_run_once(other)
    assert ran == [RUN, other]


def test_another_version_or_setting_is_another_question(ran: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    dry_run_once(RUN)
    dry_run_once(RUN, iterations=2)
    monkeypatch.setattr(past_dry_runs, "version", lambda _library: "0.0.1")
    dry_run_once(RUN, iterations=2)
    assert len(ran) == 3


def test_forgotten_answers_are_run_again(ran: list[Run]) -> None:
    dry_run_once(RUN)
    (record,) = Store().find(kind="dry-run")
    assert record.id is not None and Store().forget([record.id]) == [record.id]
    dry_run_once(RUN)
    assert len(ran) == 2


def test_a_module_of_the_users_own_is_run_each_time(ran: list[Run]) -> None:
    """What its file imports may have changed."""
    own = replace(RUN, model="net.py:build")
    dry_run_once(own)
    dry_run_once(own)
    assert len(ran) == 2 and not Store().find(kind="dry-run")
