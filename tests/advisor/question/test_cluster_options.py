"""Commands that start ranks on this machine look first whether it has what the ranks need."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ds_advise.advisor.cli.main import run
from ds_advise.advisor.question.cluster import cluster_here
from ds_advise.estimators.errors import ClusterError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with what the commands are given."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ds_config.json").write_text(json.dumps({"train_micro_batch_size_per_gpu": 1}))
    (tmp_path / "train.py").write_text("import deepspeed\n")
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    return tmp_path


@pytest.mark.parametrize("gpus", [[], ["--gpus", "2x24GB"]], ids=["auto", "described"])
@pytest.mark.parametrize(
    "words",
    [
        ["probe", "ds_config.json", "--model", "gpt2"],
        ["launch", "ds_config.json", "--no-check"],
        ["train", "--model", "gpt2", "--data", "rows.jsonl"],
        ["gpt2", "--probe", "--no-write"],
    ],
    ids=lambda words: words[0],
)
def test_no_ranks_are_started_on_gpus_that_are_not_there(
    folder: Path,
    own_store: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    gpus: list[str],
) -> None:
    """One line says that there are none and what to do; nothing is kept, and nothing made."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    before = set(folder.iterdir())
    script = ["--", "train.py"] if words[0] == "launch" else []
    assert run([*words, *gpus, *script]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("ds-advise: this machine has no GPU: ")
    assert printed.count("\n") == 1
    assert "--device cpu" in printed
    assert "dry-run" in printed
    assert "2x24GB" not in printed  # what describes GPUs does not make them
    assert not own_store.exists()
    assert set(folder.iterdir()) == before


def test_more_gpus_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both numbers are told; a rank that runs alone needs one only."""
    monkeypatch.setattr("ds_advise.probes.machine._gpus_of_the_driver", lambda: 1)
    described = {"gpus": "2x24GB"}
    with pytest.raises(ClusterError, match="this machine has only 1 GPU"):
        cluster_here(described)
    assert cluster_here(described, devices=1).gpus_per_node == 2


@pytest.mark.usefixtures("folder")
def test_several_nodes_are_no_probe_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their ranks would all be started here."""
    monkeypatch.setattr("ds_advise.probes.machine._gpus_of_the_driver", lambda: 8)
    assert run(["probe", "ds_config.json", "--model", "gpt2", "--gpus", "2x8xH100"]) == 2
    assert "--solo" in capsys.readouterr().err
