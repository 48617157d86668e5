"""Probes are kept, successes and failures, with what is needed to tell whether they answer a later question."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ds_advise.advisor.cli.main import run
from ds_advise.advisor.verification.past_results import keep_probe
from ds_advise.estimators.json_form import to_json
from ds_advise.estimators.models.catalogue import find
from ds_advise.estimators.workload import Workload
from ds_advise.probes.machine import this_machine
from ds_advise.probes.real_run.result import ProbeResult, RankFailure
from ds_advise.probes.run import Run
from ds_advise.probes.store import Store, model_key

from tests.helpers import h100s

FAILED = ProbeResult(
    world_size=2,
    device="cpu",
    solo=False,
    tokens_per_step=0,
    ranks=(),
    versions={},
    failure=RankFailure(kind="out_of_memory", rank=1, phase="step 1", message="no memory"),
)


RUN = Run(
    config={"zero_optimization": {"stage": 2}},
    model={},
    model_name="gpt2",
    shape=find("gpt2"),
    cluster=h100s(2),
    micro_batch_size=4,
    gradient_accumulation_steps=2,
    gradient_checkpointing=False,
)


def _keep(result: ProbeResult, **changes: Any) -> int | None:
    return keep_probe(result, replace(RUN, **changes), memory_limit_bytes=10**9)


def test_a_failed_probe_is_kept_with_what_was_asked() -> None:
    """Its plan as given, the workload with checkpointing and the limit, the machine, versions."""
    number = _keep(FAILED)
    (record,) = Store().find(kind="probe", machine=this_machine(), model=model_key(find("gpt2")))
    assert record.id == number
    assert record.plan == {
        "zero_optimization": {"stage": 2},
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
    }
    assert record.workload["seq_len"] == Workload().seq_len
    assert (record.workload["gradient_checkpointing"], record.workload["memory_limit_bytes"]) == (False, 10**9)
    assert record.result["failure"]["kind"] == "out_of_memory"
    assert record.versions["deepspeed"]


def test_the_plan_is_kept_as_it_was_given_with_its_batch() -> None:
    """What the configuration says itself is not replaced; a failure and a success of a plan are found by the same
    plan."""
    given = {"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": "auto", "bf16": {"enabled": "auto"}}
    _keep(FAILED, config=given)
    _keep(replace(FAILED, failure=None, config={**given, "bf16": {"enabled": True}}), config=given)
    first, second = Store().find()
    assert first.plan == second.plan == {**given, "gradient_accumulation_steps": 2}
    assert first.result["config"]["bf16"] == {"enabled": True}


def test_a_local_model_is_kept_by_its_folders_name(tmp_path: Path) -> None:
    """Where somebody keeps their models is nobody's business; a module of the user's own has no key."""
    folder = tmp_path / "my-model"
    folder.mkdir()
    _keep(FAILED, model_name=str(folder), shape=None)
    (record,) = Store().find()
    assert (record.model, record.model_name) == ("", "my-model")
    assert str(tmp_path) not in json.dumps(to_json(record))


def test_an_unusable_store_costs_one_line(own_store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The probe itself is not lost."""
    own_store.mkdir(parents=True)
    assert _keep(FAILED) is None
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_history_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    """By model, rung and how it ended."""
    _keep(FAILED)
    run(["history"])
    assert any(
        "gpt2" in line and "zero2" in line and line.endswith("out of memory")
        for line in capsys.readouterr().out.splitlines()
    )
