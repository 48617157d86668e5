"""`ds-advise check`: one line a requirement, and the exit code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ds_advise.advisor.cli import config_files
from ds_advise.advisor.cli.main import run
from ds_advise.ds_configs.record import without_record

from tests.helpers import TINY

GOOD = {
    "zero_optimization": {"stage": 3},
    "bf16": {"enabled": True},
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
}
BAD = {"zero_optimization": {"stage": 7}, "train_micro_batch_size_per_gpu": 1}
ON = ["--model", "Qwen2.5-7B", "--gpus", "8xA100-80GB", "--offline"]
JOB = ["--tokens", "1B", "--price", "$2/h"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "good.json").write_text(json.dumps(GOOD))
    (tmp_path / "bad.json").write_text(json.dumps(BAD))
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("options", "failed"),
    [
        (["good.json"], []),
        (["bad.json"], ["lint"]),
        (["good.json", "bad.json", *ON], ["lint"]),
        (["good.json", "--model", "Qwen2.5-7B", "--gpus", "1x24GB", "--offline"], ["fits"]),
        (["good.json", *ON, "--max-memory", "70GiB", "--max-ram", "900GiB", "--min-tokens-per-second", "9e3"], []),
        (["good.json", *ON, "--max-memory", "9GiB", "--max-ram", "1GiB"], ["memory", "ram"]),
        (["good.json", *ON, "--min-tokens-per-second", "9e6"], ["speed"]),
        (["good.json", *ON, *JOB, "--max-duration", "3d", "--max-cost", "5000"], []),
        (["good.json", *ON, *JOB, "--max-duration", "9m", "--max-cost", "1"], ["duration", "cost"]),
    ],
)
def test_the_exit_code_says_whether_all_requirements_are_met(
    options: list[str], failed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(["check", *options])
    lines, has_model = capsys.readouterr().out.splitlines(), "--model" in options
    requirements = [line for line in lines if line.startswith(("ok ", "FAIL ", "skip ", "warn "))]
    files = [line for line in lines if line in options]
    assert files == [word for word in options if word.endswith(".json")]
    skipped = [line for line in requirements if line.startswith("skip")]
    assert skipped == ["skip  fits: not checked, lint failed"] * ("bad.json" in options and has_model)
    refused = [line.split()[1].rstrip(":") for line in requirements if line.startswith("FAIL")]
    assert refused == failed + ["lint"] * ("lint" in failed)  # a line with the counts, and one for the error
    total, *note = lines[len(requirements) + len(files) :]
    met = len(requirements) - len(refused) - len(skipped)
    assert total.endswith(f": {met} met, {len(failed)} failed{', 1 skipped' * bool(skipped)}.")
    assert [line.startswith("Only lint was checked") for line in note] == [True] * (not has_model)
    assert code == bool(failed)
    assert run(["check", *options, "--json"]) == code
    answer = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in answer["requirements"] if each["met"] is False] == failed
    assert answer["met"] is not bool(failed) and len(answer["requirements"]) == met + len(failed) + len(skipped)
    checked = [each for each in answer["requirements"] if each["met"] is not None]
    assert all((each["value"] == each["limit"]) <= each["met"] for each in checked)


@pytest.mark.usefixtures("folder")
def test_a_file_that_cannot_be_read_hides_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    """Nor do files that have only their suffix in common count as nearly the same."""
    Path("e.json").write_text(json.dumps(GOOD))
    assert run(["check", "nope.json", "good.json"]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "good.json" and lines[1].startswith("ok    lint: ")
    assert lines[2] == "FAIL  nope.json: no such file"
    assert lines[3] == "1 requirement: 1 met, 0 failed; 1 file not read."
    assert run(["check", "nope.json", "good.json", "--json"]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert answer["met"] is False and answer["unread"] == [{"file": "nope.json", "problem": "nope.json: no such file"}]
    assert run(["check", "nope.json"]) == 2
    assert "e.json" not in capsys.readouterr().err.replace("nope.json", "")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["nope.json"], "no such file"),
        ([], "missing argument"),
        (["good.json", "--max-memory", "9GiB"], "--model"),
        (["good.json", *ON, "--max-memory", "9"], "not a size"),
        (["good.json", *ON, "--max-duration", "24h"], "--tokens"),
        (["good.json", *ON, "--tokens", "1B", "--max-cost", "5"], "--price"),
        (["good.json", *ON, "--min-tokens-per-second", "-1"], "above 0"),
    ],
)
def test_impossible_checks_are_one_line_and_code_2(
    options: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", *options]) == 2
    error = capsys.readouterr().err
    assert text in error and error.count("\n") == 1


@pytest.mark.usefixtures("folder")
def test_a_plan_has_its_speed_and_what_was_not_checked(capsys: pytest.CaptureFixture[str]) -> None:
    """RAM that nobody gave is a figure, as is the speed."""
    offload = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
    Path("offload.json").write_text(json.dumps(GOOD | {"zero_optimization": offload}))
    question = ["check", "offload.json", "--model", "Qwen2.5-14B", "--gpus", "2x32GB", "--offline"]
    assert run(question) == 0
    batch = "full fine-tuning, sequence 2,048; micro batch 2 x accumulation 4, checkpointing on"
    fits = rf"^{{word}}  fits: [\d.]+ of 31\.4 GiB per GPU; host RAM [\d.]+ {{ram}}; [\d,]+ tokens/s \({batch}\)$"
    unchecked = fits.format(word="warn", ram="GiB, not checked: --ram")
    out = capsys.readouterr().out
    assert re.search(unchecked, out, re.MULTILINE)
    assert out.endswith("2 requirements: 2 met (1 if the host's RAM allows), 0 failed.\n")
    assert run([*question, "--json"]) == 0
    assert [each["is_conditional"] for each in json.loads(capsys.readouterr().out)["requirements"]] == [False, True]
    assert run([*question, "--ram", "900GB"]) == 0
    assert re.search(fits.format(word="ok  ", ram=r"of [\d.]+ GiB"), capsys.readouterr().out, re.MULTILINE)


@pytest.mark.usefixtures("folder")
def test_a_plan_that_cannot_run_has_no_speed(capsys: pytest.CaptureFixture[str]) -> None:
    """Nor is a limit of it met."""
    limits = ["--min-tokens-per-second", "1", "--max-cost", "1M", "--max-duration", "99999d"]
    question = ["check", "good.json", "--model", "Qwen2.5-7B", "--gpus", "1x24GB", "--offline", *JOB]
    assert run([*question, *limits]) == 1
    out = capsys.readouterr().out
    assert "tokens/s" not in out and out.count("not checked, the plan does not fit") == 3
    assert "5 requirements: 1 met, 1 failed, 3 skipped." in out


@pytest.mark.usefixtures("folder")
def test_limits_are_numbers_as_people_write_them(capsys: pytest.CaptureFixture[str]) -> None:
    limits = ["--min-tokens-per-second", "1.5k", "--max-cost", "$9k"]
    assert run(["check", "good.json", *ON, *JOB, *limits]) == 0
    out = capsys.readouterr().out
    assert "at least 1,500 required" in out and "at most $9,000 allowed" in out
    assert run(["check", "good.json", *ON, *JOB, "--max-cost", "9000 EUR"]) == 2
    assert "--max-cost 9000 EUR is not in the currency of the prices, $" in capsys.readouterr().err


@pytest.mark.parametrize(
    "question",
    [
        "Qwen2.5-32B --gpus 2xL40S --method qlora --seq-len 4096",
        "Qwen3-30B-A3B --gpus 2x16GB --ram 256GB --nvme /n:4TB --framework deepspeed",
    ],
)
def test_lint_finds_nothing_in_the_file_of_an_answer(question: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Asked about the same training; it says what it predicts for."""
    model, *options = question.split()
    assert run([model, *options, "-o", "own.json", "--no-deepspeed-estimate", "--json"]) == 0
    workload = json.loads(capsys.readouterr().out)["workload"]
    options = [word for word in options if word not in ("--nvme", "/n:4TB")]
    assert run(["lint", "own.json", "--model", model, *options, "--loss", workload["loss"]]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "nothing found" in out and f"sequence {workload['seq_len']}, {workload['loss']} loss" in out


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("names", [("own.json", "good.json"), ("good.json", "own.json")])
def test_a_recorded_question_judges_its_own_file_alone(
    names: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """In either order; of the other file only lint is checked, and limits need a model for it too."""
    question = ["Qwen2.5-1.5B", "--gpus", "8xV100-32GB", "--offline"]
    assert run([*question, "-o", "own.json", "--no-deepspeed-estimate", "--json"]) == 0
    capsys.readouterr()
    assert run(["check", *names, "--offline"]) == 0
    out = capsys.readouterr().out
    assert out.count("fits: ") == 1 and out.index("own.json") < out.index("fits: ")
    assert "Only lint was checked of good.json; --model and --gpus also check" in " ".join(out.split())
    assert run(["check", *names, "--offline", "--max-memory", "20GiB"]) == 2
    assert "need --model; good.json records none" in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
def test_an_impossible_recorded_job_hides_no_other_file(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["gpt2", "--gpus", "24GB", "--samples", "20k", "--offline", "--no-deepspeed-estimate"]
    assert run([*asked, "-o", "own.json"]) == 0
    own = json.loads(Path("own.json").read_text())
    own["ds_advise"]["options"]["epochs"] = -1
    Path("own.json").write_text(json.dumps(own))
    capsys.readouterr()
    assert run(["check", "own.json", "good.json", "--offline"]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "good.json" and lines[2].startswith("FAIL  own.json: --epochs is -1: ")


@pytest.mark.usefixtures("folder")
def test_a_plan_that_the_gpus_cannot_run_is_an_unmet_requirement(capsys: pytest.CaptureFixture[str]) -> None:
    """It stops no other file."""
    Path("fp16.json").write_text(json.dumps({**GOOD, "bf16": {"enabled": False}, "fp16": {"enabled": True}}))
    question = ["--model", "Qwen2.5-1.5B", "--gpus", "8xV100-32GB", "--offline", "--max-memory", "30GiB"]
    assert run(["check", "good.json", "fp16.json", *question]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "FAIL  fits: it cannot run: V100-SXM2-32GB has no bf16 units; use fp16" in lines
    assert "skip  memory: not checked, the plan cannot run" in lines
    assert any(line.startswith("ok    fits: ") for line in lines[lines.index("fp16.json") :])


def test_one_file_has_one_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """Without the record of its question, lint and check fill `auto` with the advice's batch, and say so."""
    question = ["--gpus", "4x8xH100", "--offline"]
    assert run(["Llama-3.1-70B", *question, "-o", "own.json", "--no-deepspeed-estimate", "--json"]) == 0
    advice = json.loads(capsys.readouterr().out)["recommended"]
    Path("own.json").write_text(json.dumps(without_record(json.loads(Path("own.json").read_text()))))
    assert run(["check", "own.json", "--model", "Llama-3.1-70B", *question, "--json"]) == 0
    _, fits = json.loads(capsys.readouterr().out)["requirements"]
    assert f"micro batch {advice['micro_batch_size']}, checkpointing on" in fits["detail"]
    assert fits["value"] == pytest.approx(advice["fit_probability"])
    assert run(["lint", "own.json", "--model", "Llama-3.1-70B", *question]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "nothing found" in out and f"`auto` filled with micro batch {advice['micro_batch_size']}" in out


@pytest.mark.usefixtures("in_forks")
def test_a_key_that_is_not_predicted_is_dry_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """check and compare have the memory of a dry run; without torch, and in lint, the key is named."""
    Path("config.json").write_text(json.dumps(TINY))
    config = {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW"}, "bf16": {"enabled": True}}
    for name, zero in (("plain", {}), ("own", {"round_robin_gradients": True})):
        Path(f"{name}.json").write_text(json.dumps(config | {"zero_optimization": {"stage": 2, **zero}}))
    asked = ["--model", "config.json", "--gpus", "2x24GB", "--seq-len", "64", "--framework", "deepspeed"]

    def answer(*words: str) -> Any:
        assert run([*words, *asked, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    ran = answer("dry-run", "own.json")["required_device_bytes_per_gpu"]
    plain, own = (side["plan"] for side in answer("compare", "plain.json", "own.json")["sides"])
    assert plain["measured_device_bytes_per_gpu"] is None and own["measured_device_bytes_per_gpu"] == ran
    assert "by a dry run" in answer("check", "own.json")["requirements"][1]["detail"]
    (named,) = (each["what"] for each in answer("lint", "own.json")["findings"] if each["code"] == "DS906")
    assert named.startswith("zero_optimization.round_robin_gradients: its effect is not predicted")
    monkeypatch.setattr(config_files, "find_spec", lambda _name: None)
    detail = answer("check", "own.json")["requirements"][1]["detail"]
    assert "without zero_optimization.round_robin_gradients: not predicted, dry-run it" in detail


@pytest.mark.usefixtures("folder")
def test_figures_near_their_limit_have_an_interval_and_units(capsys: pytest.CaptureFixture[str]) -> None:
    limits = ["--max-duration", "24h", "--max-cost", "9000", "--max-memory", "70GB"]
    assert run(["check", "good.json", *ON, "--tokens", "1B", "--price", "2/h", *limits]) == 0
    out = capsys.readouterr().out
    assert re.search(r"duration: \d+\.\d h \([\d.]+ h to [\d.]+ h\), at most 24 h allowed$", out, re.MULTILINE)
    assert re.search(r"cost: \d+ \(\d+ to \d+\) in the currency of --price, at most 9,000 allowed$", out, re.MULTILINE)
    assert "at most 70.0 GiB allowed" in out and out.endswith("A GB of --max-memory and --max-ram is a GiB.\n")
    assert run(["check", "good.json", *ON, *JOB, "--max-cost", "9000", "--max-memory", "70GiB"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"cost: \$\d+ \(\$\d+ to \$\d+\), at most \$9,000 allowed$", out, re.MULTILINE)
    assert "is a GiB" not in out


@pytest.mark.usefixtures("folder")
def test_each_error_has_a_line_and_a_wrong_stage_only_one(capsys: pytest.CaptureFixture[str]) -> None:
    """What depends on the stage is not known of a stage that does not exist."""
    zero = {"stage": 4, "offload_optimizer": {"device": "cpu"}, "overlap_com": True}
    Path("bad.json").write_text(json.dumps({**BAD, "zero_optimization": zero}))
    assert run(["check", "bad.json"]) == 1
    _, *errors, total, _ = capsys.readouterr().out.splitlines()
    assert [re.findall(r"DS\d+", line) for line in errors] == [[], ["DS020"], ["DS010"]]
    assert errors[0].startswith("FAIL  lint: 2 errors, 0 warnings, 1 piece of advice; read by plain DeepSpeed (")
    assert all(line.startswith("FAIL  lint: ") for line in errors)
    assert total == "1 requirement: 0 met, 1 failed."


@pytest.mark.usefixtures("folder")
def test_a_mistake_in_the_syntax_is_an_error_of_lint(capsys: pytest.CaptureFixture[str]) -> None:
    """As in lint, with its code; it hides no other error."""
    Path("python.json").write_text(
        '{\n  // comment\n  "bf16": {"enabled": True},\n  "zero_optimization": {"stage": 7}\n}'
    )
    assert run(["check", "python.json", "good.json", *ON]) == 1
    out = capsys.readouterr().out
    assert "FAIL  lint: DS006 line 3, True is Python\n" in out and "FAIL  lint: DS020 line 4, stage is 7" in out
    assert "skip  fits: not checked, lint failed\n" in out and out.count("ok    fits: ") == 1


@pytest.mark.usefixtures("folder")
def test_lint_is_for_the_reader_that_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Only Python's json refuses a trailing comma: without an `auto` the reader cannot be seen in the file."""
    Path("hjson.json").write_text(json.dumps(GOOD)[:-1] + ",}")
    assert run(["check", "hjson.json"]) == 0
    assert "; read by plain DeepSpeed (assumed: pass --framework)\n" in capsys.readouterr().out
    for options in ([], ON):
        assert run(["check", "hjson.json", "--framework", "hf", *options]) == 1
        out = capsys.readouterr().out
        assert "FAIL  lint: DS001 line 1" in out and "; read by the Trainer or accelerate\n" in out


@pytest.mark.usefixtures("folder")
def test_each_warning_has_a_line_and_fails_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Path("text.json").write_text(json.dumps(GOOD | {"zero_optimization": {"stage": "3"}}))
    assert run(["check", "text.json", "--framework", "hf"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[1].startswith("ok    lint: no errors, 1 warning") and out[2].startswith("warn  lint: DS022 line 1, ")
    assert out[3] == "1 requirement: 1 met, 0 failed."
    assert run(["check", "text.json", "--framework", "hf", "--json"]) == 0
    (lint,) = json.loads(capsys.readouterr().out)["requirements"]
    assert [each.split()[0] for each in lint["warnings"]] == ["DS022"]


_AXOLOTL = {
    "base_model": "Qwen/Qwen2.5-7B",
    "datasets": [{"path": "alpaca", "type": "alpaca"}],
    "sequence_len": 16384,
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "gradient_checkpointing": True,
    "bf16": True,
}
_LLAMA_FACTORY = {
    "model_name_or_path": "Qwen/Qwen2.5-7B",
    "stage": "sft",
    "do_train": True,
    "finetuning_type": "full",
    "template": "qwen",
    "cutoff_len": 16384,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "bf16": True,
}
_AUTO = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}, "train_micro_batch_size_per_gpu": "auto"}


@pytest.mark.parametrize(("name", "values"), [("axo.yaml", _AXOLOTL), ("lf.json", _LLAMA_FACTORY)])
@pytest.mark.parametrize("model", [[], ["--model", "Qwen2.5-7B"]])
def test_the_file_of_a_tool_is_checked_as_the_training_that_it_describes(
    name: str, values: dict[str, Any], model: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """With its own sequence, batch and checkpointing, which its DeepSpeed configuration does not have."""
    Path("auto.json").write_text(json.dumps(_AUTO | {"gradient_accumulation_steps": "auto"}))
    Path(name).write_text(json.dumps(values | {"deepspeed": "auto.json"}))  # JSON is YAML
    asked = ["check", name, "auto.json", *model, "--gpus", "8xA100-80GB", "--offline"]
    assert run([*asked, "--tokens", "1B", "--max-duration", "2d"] if model else [*asked[:2], *asked[3:]]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("ok    lint: no errors") and lines[1].endswith("read by the Trainer or accelerate")
    assert lines[2].startswith("FAIL  fits: needs 1.") and lines[2].endswith(
        "(full fine-tuning, sequence 16,384; micro batch 2 x accumulation 4, checkpointing on)"
    )
    if model:
        assert lines[3].startswith("ok    duration: ") or lines[3].startswith("skip  duration: ")
        assert any(line.startswith("ok    fits: ") and "sequence 2,048" in line for line in lines[4:])


def test_what_a_tool_refuses_in_its_file_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """As are the errors of its DeepSpeed configuration; a key that it does not have is a warning."""
    Path("bad.json").write_text(json.dumps(_AUTO | {"zero_optimization": {"stage": 7}}))
    values = {key: each for key, each in _AXOLOTL.items() if key != "gradient_accumulation_steps"}
    Path("axo.yaml").write_text(json.dumps(values | {"deepspeed": "bad.json", "gradient_acumulation_steps": 4}))
    assert run(["check", "axo.yaml", "--gpus", "8xA100-80GB", "--offline"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("FAIL  lint: at least two of micro_batch_size, gradient_accumulation_steps")
    assert lines[3].startswith("FAIL  lint: DS020 bad.json line 1, stage is 7")
    assert lines[4].startswith("warn  lint: axolotl has no key gradient_acumulation_steps (did you mean ")
    assert lines[5] == "skip  fits: not checked, lint failed"


def test_a_tool_file_keeps_what_it_sets(capsys: pytest.CaptureFixture[str]) -> None:
    """An option that only a DeepSpeed configuration leaves open is refused. accelerate's file names no model, so that
    only lint is checked."""
    Path("axo.yaml").write_text(json.dumps(_AXOLOTL))
    assert run(["check", "axo.yaml", "--gpus", "8xA100-80GB", "--offline", "--accumulation", "2"]) == 2
    assert "axo.yaml: --accumulation does not apply: the file sets it; change it" in capsys.readouterr().err
    Path("accelerate.yaml").write_text(json.dumps({"distributed_type": "MULTI_GPU", "num_processes": 8}))
    assert run(["check", "accelerate.yaml"]) == 0
    out = capsys.readouterr().out
    assert "ok    lint: no errors, 0 warnings; no DeepSpeed configuration\n" in out and "Only lint was checked" in out
    assert "; --model and --gpus also check memory" in out
    assert run(["check", "accelerate.yaml", "--gpus", "4xA100-80GB"]) == 0
    printed = capsys.readouterr()
    assert "Only lint was checked; --model also checks memory and speed." in printed.out
    assert "the figures are those of" not in printed.out + printed.err
    assert run(["check", "accelerate.yaml", "--max-memory", "9GiB"]) == 2
    assert "need --model; accelerate.yaml names none" in capsys.readouterr().err


def test_another_command_judges_no_other_training_than_that_of_a_tools_file(capsys: pytest.CaptureFixture[str]) -> None:
    """Its DeepSpeed configuration alone has another batch and sequence."""
    Path("auto.json").write_text(json.dumps(_AUTO))
    Path("axo.yaml").write_text(yaml.safe_dump(_AXOLOTL | {"deepspeed": "auto.json"}))
    assert run(["lint", "axo.yaml"]) == 2
    assert "names one, auto.json; write ds-advise lint auto.json, or ds-advise from" in capsys.readouterr().err
    assert run(["lint", "axo.yaml", "--model", "Qwen2.5-7B", "--gpus", "8xA100-80GB"]) == 2
    assert "; write ds-advise from axo.yaml --gpus 8xA100-80GB\n" in capsys.readouterr().err
