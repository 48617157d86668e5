"""The summary for an issue: GitHub's tables, nothing that calls anybody, and the figures of the answer."""

from __future__ import annotations

import json

import pytest
from ds_advise.advisor.cli.main import run

QUESTION = ["Qwen2.5-14B", "--gpus", "2x32GB", "--no-write", "--offline", "--no-deepspeed-estimate"]


def test_the_summary_has_verdict_ladder_and_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of the ladder all have as many cells, with the figures of --json; the configuration is JSON in a fence."""
    assert run([*QUESTION, "--json"]) == 0
    best = json.loads(capsys.readouterr().out)["recommended"]
    assert run([*QUESTION, "--markdown"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("**ZeRO-3 with optimizer and parameters in host RAM fits if the host has 394 GiB of RAM.**")
    ladder = text.partition("### Every strategy")[2].partition("###")[0]
    rows = [line for line in ladder.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 8 and {row.count("|") for row in rows} == {8}
    (row,) = [row for row in rows if "**if RAM allows**" in row]
    strategy, batch, _, gpu, ram, speed, _ = row.replace("**", "").strip("| ").split(" | ")
    assert (strategy, batch) == (best["strategy"], str(best["micro_batch_size"]))
    assert (float(gpu), float(ram)) == pytest.approx(
        (best["device_bytes_per_gpu"] / 2**30, best["host_bytes_per_node"] / 2**30), abs=0.05
    )
    assert float(speed.replace(",", "")) == pytest.approx(best["tokens_per_second"], rel=0.01)
    config = json.loads(text.partition("```json\n")[2].partition("\n```")[0])
    assert config["zero_optimization"]["stage"] == 3
    assert "| `--method lora` | " in text and text.count("<details>") == text.count("</details>") == 3


def test_where_nothing_fits_there_is_no_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["Qwen2.5-72B", "--gpus", "1x8GB", "--ram", "64GB", "--no-write", "--offline", "--markdown"]) == 1
    text = capsys.readouterr().out
    assert text.startswith("**Nothing fits.") and "```json" not in text and "### What would make it fit" in text


@pytest.mark.parametrize("other", ["--json", "--quiet", "--details", "--all", "-o-"])
def test_it_is_an_answer_of_its_own(other: str, capsys: pytest.CaptureFixture[str]) -> None:
    question = QUESTION if other != "-o-" else [word for word in QUESTION if word != "--no-write"]
    assert run([*question, "--markdown", other]) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 1
