"""`ds-advise contribute`: a stored record becomes a row without anything private, and the row a published run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ds_advise.advisor.cli.main import run
from ds_advise.advisor.cli.schema import command_schema
from ds_advise.advisor.question.cluster import parse_cluster
from ds_advise.advisor.question.model_source import model_shape
from ds_advise.estimators.models.catalogue import find
from ds_advise.estimators.models.model_shape import ModelShape
from ds_advise.estimators.plan import Plan
from ds_advise.estimators.workload import Workload
from ds_advise.probes.machine import Machine
from ds_advise.probes.run import Run
from ds_advise.probes.store import Store, build_record

from benchmarks.accuracy import __main__, contributed, rows, software, timed_runs
from benchmarks.accuracy.questions import is_public
from tests.helpers import TINY, schema_errors

A100S = Machine(
    gpus=("A100-SXM4-80GB",) * 2,
    gpu_memory_bytes=(80 * 2**30,) * 2,
    driver="570.1",
    cpu="AMD EPYC 7742",
    cpu_cores=64,
    ram_bytes=512 * 2**30,
)
RAN = {"device": "cuda", "world_size": 4, "failure": None, "step_s": 2.5, "tokens_per_step": 8 * 1024}
PEAKS = {"allocated_bytes": 30 * 2**30, "reserved_bytes": 33 * 2**30, "device_bytes": None, "host_bytes": 20 * 2**30}
PRIVATE = {
    "wandb": {"enabled": True, "team": "secret-team"},
    "my_block": {"note": "secret-note"},
    "ds_advise": {"model": "/home/secret-user/model"},
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "nvme", "nvme_path": "/mnt/secret-drive", "buffer_count": 5},
    },
}


@pytest.fixture
def add_record(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that stores what `launch` stores on two nodes of two A100, and returns its number."""
    monkeypatch.setattr("ds_advise.probes.store.this_machine", lambda: A100S)

    def add(
        shape: ModelShape,
        config: Any = None,
        result: Any = None,
        **other: Any,
    ) -> int:
        plan = Plan(zero_stage=3, micro_batch_size=1, gradient_accumulation_steps=2)
        launched = Run.from_plan(plan, shape, Workload(seq_len=2048), parse_cluster("2x2xA100-80GB"))
        launched = replace(launched, config={**launched.config, **(config or {})})
        record = build_record(launched, other.pop("kind", "training"), {**RAN, "peaks": PEAKS, **(result or {})})
        return Store().add(replace(record, **other))

    return add


def test_a_row_has_no_path_name_or_unknown_key(add_record: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a model in a folder it has the configuration, without strings that may be names."""
    Path("secret-model").mkdir()
    config = {**TINY, "_name_or_path": "/home/secret-user", "license": "a secret sentence"}
    Path("secret-model/config.json").write_text(json.dumps(config))
    add_record(replace(model_shape(config, name="secret-model"), name="/home/secret-user/secret-model"), PRIVATE)
    assert run(["contribute"]) == 2  # the record does not say where the model's folder is
    assert "pass --model FOLDER" in capsys.readouterr().err
    assert run(["contribute", "--model", "secret-model", "-o", "row.json"]) == 0
    shown, written = capsys.readouterr().out, Path("row.json").read_text()
    assert "secret" not in shown + written
    value = json.loads(written)
    assert schema_errors(value, command_schema("contribute")) == []
    (row,) = value["runs"]
    assert row["model"].startswith("qwen2-") and row["model_config"]["hidden_size"] == TINY["hidden_size"]
    offload = row["ds_config"]["zero_optimization"]["offload_optimizer"]
    assert offload == {"device": "nvme", "nvme_path": "/nvme", "buffer_count": 5}
    assert (row["ds_config"]["train_micro_batch_size_per_gpu"], row["gpus"]) == (1, "2x2xA100-SXM4-80GB")
    # The closed form is the public one, of the file.
    assert run(["contribute", "--json", "--model", "secret-model"]) == 0
    assert json.loads(capsys.readouterr().out) == value
    words = " ".join(shown.split())
    for word in ("allocated GiB 30.0", "step 2.5 s", "tokens/s 3,280", "row.json has the rows", "measured-run.yml"):
        assert word in words
    assert '"format"' not in shown  # the file has it
    Path("row.json").write_text("{}")
    assert run(["contribute", "--model", "secret-model", "-o", "row.json"]) == 2
    assert "row.json exists and differs: its content would be lost" in capsys.readouterr().err


def test_rows_are_in_the_order_of_their_numbers_and_may_go_to_stdout(
    add_record: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without numbers it is the last run, also one that ran out of memory, which refutes a prediction that fits."""
    for model, failure in {"Qwen2.5-1.5B": None, "Qwen2.5-7B": {"kind": "out_of_memory", "rank": 0}}.items():
        add_record(find(model), result={"failure": failure})
    add_record(find("Qwen2.5-3B"), result={"failure": {"kind": "crash", "rank": 0}})
    assert run(["contribute", "1", "2", "-o", "-"]) == 0
    models = [each["model"] for each in json.loads(capsys.readouterr().out)["runs"]]
    assert models == [find("Qwen2.5-1.5B").name, find("Qwen2.5-7B").name] and not Path("-").exists()
    assert run(["contribute", "1", "-o", "-", "--json"]) == 2
    capsys.readouterr()
    assert run(["contribute"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "device GiB out of memory" in shown and "refuted of the card, GiB 79." in shown
    assert "The prediction is refuted" in shown


def test_what_is_no_measured_run_is_refused(add_record: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shape = find("Qwen2.5-1.5B")
    failure = {"kind": "crash", "rank": 0, "phase": "forward", "message": "x"}
    for why, number in {
        "it is neither a probe nor a training": add_record(shape, kind="dry-run"),
        "it ran on the CPU": add_record(shape, result={"device": "cpu"}),
        "one rank ran alone": add_record(shape, result={"solo": True}),
        "not for lack of GPU memory": add_record(shape, result={"failure": failure}),
        "its micro batch is not recorded": add_record(shape, plan={"zero_optimization": {"stage": 3}}),
        "is another model": add_record(shape, model="0123456789ab"),
    }.items():
        assert run(["contribute", str(number)]) == 2
        assert why in capsys.readouterr().err, why
    assert run(["contribute", "999"]) == 2
    assert "there is no record 999" in capsys.readouterr().err


def test_an_added_row_is_a_published_run(
    add_record: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It counts in both halves, under the versions that ran, and its question is public."""
    monkeypatch.setattr(contributed, "FOLDER", tmp_path / "contributed")
    older = {"deepspeed": "0.14.2", "transformers": "4.44.0"}
    add_record(find("Qwen2.5-1.5B"), versions=older)
    out_of_memory = {"kind": "out_of_memory", "rank": 0, "phase": "forward", "message": "x"}
    add_record(find("Qwen2.5-7B"), versions=older, result={"failure": out_of_memory})
    assert run(["contribute", "1", "2", "-o", "rows.json"]) == 0
    for words, code in ((["--add", "rows.json", "--by", "issue-1"], 0), (["--add", "rows.json", "--by", "issue-1"], 2)):
        monkeypatch.setattr("sys.argv", ["accuracy", *words])
        assert __main__.main() == code  # a run counts once
    assert "has a run of rows.json already" in capsys.readouterr().err

    ended, died = rows.runs.__wrapped__()[-2:]  # without its cache
    assert (died.fitted, died.measured_bytes, ended.fitted, ended.measured_bytes) == (False, None, True, 30 * 2**30)
    assert ended.workload.software.deepspeed == (0, 14, 2) and software.software_of(ended.source) == "older"
    assert {ended.origin, died.origin} == {"contributed/issue-1"} and is_public(ended.asked) and is_public(died.asked)
    (timed,) = [each for each in timed_runs.read_runs() if each.source == ended.source]
    # 8,192 tokens of 8 samples: the mean length decides on the time, the longest on the memory.
    assert (timed.workload.seq_len, ended.workload.seq_len, timed.measured_s) == (1024, 2048, 2.5)
    assert timed.unseen_error == timed.error and is_public(timed.asked)
