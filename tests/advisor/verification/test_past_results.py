"""Earlier dry runs and probes answer for the same run, and for no other one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ds_advise.advisor.cli.main import run
from ds_advise.advisor.verification import past_results
from ds_advise.advisor.verification.past_results import dry_run_once, keep_probe
from ds_advise.estimators.json_form import to_json
from ds_advise.estimators.models.catalogue import find
from ds_advise.estimators.workload import Workload
from ds_advise.probes.machine import this_machine
from ds_advise.probes.real_run.result import ProbeResult
from ds_advise.probes.run import Run
from ds_advise.probes.store import Store, model_key

from tests.helpers import failed_probe, h100s

RUN = Run(config={"zero_optimization": {"stage": 2}}, model={"model_type": "llama"}, cluster=h100s(2))


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """The dry runs that were executed; their result is its own JSON."""
    runs: list[Run] = []

    def executed(run: Run, **_: Any) -> SimpleNamespace:
        runs.append(run)
        return SimpleNamespace(config={}, to_json=lambda: {"seconds": 0.5})

    monkeypatch.setattr(past_results, "dry_run", executed)
    monkeypatch.setattr(past_results, "from_json", lambda _kind, values: values)
    return runs


def _once(run: Run, **settings: Any) -> tuple[Any, float | None]:
    return dry_run_once(run, figures=lambda _: {"required_device_bytes_per_gpu": 7}, **settings)


def test_the_same_dry_run_is_made_once_until_it_is_forgotten(ran: list[Run]) -> None:
    first, second = (_once(RUN, rank=None, fast=False) for _ in range(2))
    assert second[0] == {"seconds": 0.5} and len(ran) == 1
    assert first[1] is None and second[1] is not None
    (record,) = Store().find(kind="dry-run")
    assert record.result == {"seconds": 0.5, "required_device_bytes_per_gpu": 7}, "the verdict's figures"
    assert record.id is not None and Store().forget([record.id]) == [record.id]
    _once(RUN, rank=None, fast=False)
    assert len(ran) == 2


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
def test_another_dry_run_is_made(ran: list[Run], other: Run) -> None:
    _once(RUN, fast=False)
    _once(other, fast=False)
    assert ran == [RUN, other]


def test_another_version_or_setting_is_another_dry_run(ran: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    _once(RUN, fast=False)
    _once(RUN, fast=True)
    monkeypatch.setattr(past_results, "installed_version", lambda _library: "0.0.1")
    _once(RUN, fast=True)
    assert len(ran) == 3


def test_a_module_of_the_users_own_is_run_each_time(ran: list[Run]) -> None:
    """What its file imports may have changed."""
    own = replace(RUN, model="net.py:build")
    _once(own)
    _once(own)
    assert len(ran) == 2 and not Store().find(kind="dry-run")


FAILED = failed_probe("out_of_memory")
PROBED = replace(
    RUN,
    model={},
    model_name="gpt2",
    shape=find("gpt2"),
    micro_batch_size=4,
    gradient_accumulation_steps=2,
    gradient_checkpointing=False,
)


def _keep(result: ProbeResult, **changes: Any) -> int | None:
    return keep_probe(result, replace(PROBED, **changes), memory_limit_bytes=10**9)


def test_a_failed_probe_is_kept_with_its_plan_workload_and_versions(capsys: pytest.CaptureFixture[str]) -> None:
    number = _keep(FAILED)
    (record,) = Store().find(kind="probe", machine=this_machine(), model=model_key(find("gpt2")))
    assert record.id == number
    batch = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}
    assert record.plan == {"zero_optimization": {"stage": 2}, **batch}
    assert record.workload["seq_len"] == Workload().seq_len
    assert (record.workload["gradient_checkpointing"], record.workload["memory_limit_bytes"]) == (False, 10**9)
    assert record.result["failure"]["kind"] == "out_of_memory"
    assert record.versions["deepspeed"]
    run(["history"])
    lines = capsys.readouterr().out.splitlines()
    assert any("gpt2" in line and "zero2" in line and " OOM " in line for line in lines)


def test_a_failure_and_a_success_of_a_plan_are_kept_with_the_same_plan() -> None:
    given = {"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": "auto", "bf16": {"enabled": "auto"}}
    _keep(FAILED, config=given)
    _keep(replace(FAILED, failure=None, config={**given, "bf16": {"enabled": True}}), config=given)
    first, second = Store().find()
    assert first.plan == second.plan == {**given, "gradient_accumulation_steps": 2}
    assert first.result["config"]["bf16"] == {"enabled": True}


def test_a_local_model_is_kept_without_its_path(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    _keep(FAILED, model_name=str(folder), shape=None)
    (record,) = Store().find()
    assert (record.model, record.model_name) == ("", "my-model")
    assert str(tmp_path) not in json.dumps(to_json(record))
