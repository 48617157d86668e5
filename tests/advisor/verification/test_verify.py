"""`--verify` and `ds-advise dry-run`: the real engine confirms the recommendation and accounts for every byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ds_advise.advisor.cli import main as cli
from ds_advise.probes.dry_run.run import DryRunError

from tests.helpers import SMALL_LLAMA

ON = ("--gpus", "2x24GB", "--seq-len", "128")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(SMALL_LLAMA))
    return tmp_path


@pytest.mark.usefixtures("in_forks")
def test_a_verified_answer_carries_its_dry_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert cli.run(["config.json", *ON, "--verify", "--json", "--no-deepspeed-estimate"]) == 0
    answer = json.loads(capsys.readouterr().out)
    (verified,) = answer["verifications"]
    assert verified["strategy"] == answer["recommended"]["strategy"] and verified["fits"]
    assert verified["parameters"] == answer["model"]["parameters"]
    assert verified["peak"]["allocated_bytes_per_gpu"] == pytest.approx(
        answer["recommended"]["allocated_bytes_per_gpu"], rel=0.08
    )
    assert verified["required_host_bytes_per_node"] == pytest.approx(
        answer["recommended"]["host_bytes_per_node"], rel=0.08
    ), "the processes' own memory is in both"


def test_a_dry_run_that_fails_is_one_line_of_what_why_and_fix(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:

    def rejected(*_: object, **__: object) -> None:
        raise DryRunError("no_such_key is unknown", phase="initialize", why="DeepSpeed rejects it", fix="leave it out")

    monkeypatch.setattr("ds_advise.probes.command.run.start", rejected)
    monkeypatch.chdir(folder)
    (folder / "plain.json").write_text(json.dumps({"train_batch_size": 2, "zero_optimization": {"stage": 1}}))
    assert cli.run(["dry-run", "plain.json", "--model", "config.json", "--gpus", "2x24GB"]) == 2
    printed = capsys.readouterr()
    predicted, error = printed.err.splitlines()
    assert printed.out == "" and "predicted without the run: " in predicted
    for words in ("no_such_key is unknown", "DeepSpeed rejects it", "leave it out"):
        assert words in error
