"""A written configuration records its question: every command on it gives the answer's figures, to the digit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ds_advise.advisor.answer.lint_file import lint_settings
from ds_advise.advisor.cli.main import run
from ds_advise.advisor.question.file_question import read_file_question
from ds_advise.advisor.question.rollouts import training_cluster
from ds_advise.advisor.question.run import read_run
from ds_advise.ds_configs.record import RECORD_KEY, without_record

A100S = "Qwen2.5-7B --gpus 4xA100-80GB"

QUESTIONS = (
    "Qwen2.5-14B --gpus 2x32GB",
    "Qwen2.5-7B --gpus 8xA100-80GB",
    "Qwen2.5-7B --gpus 1xRTX4090 --method lora",
    "Qwen2.5-7B --gpus 1xRTX4090 --method qlora",
    "Qwen2.5-7B --gpus 2xRTX3090 --ram 256GB",
    "llama3.1-8b --gpus 8xA100-80GB --method lora --seq-len 8192",
    "llama3.1-70b --gpus 2x8xH100",
    "llama3.1-70b --gpus 8xH100 --method lora --lora-rank 64",
    "llama3.1-70b --gpus 4x8xA100-80GB --interconnect 100Gb/s --ram 2TB",
    "Qwen2.5-7B --gpus 2xRTX3090 --link nvlink,pcie4x8 --host 16cores,2xDDR5-5600 --ram 256GB --nvme /nvme:2TB@sata",
    "llama3.1-70b --gpus 4x8xH100 --zeropp",
    "Qwen2.5-32B --gpus 8xA100-80GB --ram 1TB",
    "Qwen2.5-0.5B --gpus 1xT4",
    "Qwen2.5-1.5B --gpus 4xV100-32GB --precision fp16",
    "Mixtral-8x7B --gpus 8xH100",
    "Mixtral-8x7B --gpus 8xH100 --experts autoep",
    "gpt2-xl --gpus 4x16GB --seq-len 1024",
    "Qwen2.5-7B --gpus 4xA100-40GB --global-batch 64",
    "Qwen2.5-7B --gpus 4xA100-40GB --micro-batch 2",
    "Qwen2.5-7B --gpus 2xA100-40GB --framework deepspeed --ram 256GB",
    "Qwen2.5-7B --gpus 2xA100-40GB --gradient-checkpointing offload",
    "Qwen2.5-7B --gpus 2xA100-40GB --gradient-checkpointing off --method lora",
    "Qwen2.5-7B --gpus 2xA100-40GB --nvme /nvme:2TB --ram 64GB",
    "Qwen2.5-7B --gpus 2xA100-40GB --ram 512GB --threads 8",
    "Qwen2.5-7B --gpus 8xA100-80GB --sequence-parallel-size 4 --seq-len 32768",
    "Qwen2.5-7B --gpus 8xA100-80GB --seq-len 131072",
    "Qwen2.5-7B --gpus 8xA100-80GB --zeropp",
    "Qwen2.5-7B --gpus 2xMI300X",
    "Qwen2.5-0.5B --device cpu --ranks 2",
    "Qwen2.5-14B --gpus 4xA100-80GB --precision fp32",
    "Qwen2-VL-7B --gpus 8xA100-80GB --freeze vision-tower",
    "Qwen2.5-VL-7B --gpus 4xA100-80GB --images-per-sample 2 --seq-len 4096",
    "Qwen2.5-3B --gpus 4xA100-80GB --objective grpo",
    "Qwen2.5-3B --gpus 8xH100 --objective grpo --rollout vllm-server --server-gpus 2",
    "Qwen2.5-3B --gpus 4xA100-80GB --objective rloo --method lora",
    "Qwen2.5-3B --gpus 4xA100-80GB --objective ppo",
    f"{A100S} --micro-batch max",
    f"{A100S} --seq-len max",
    f"{A100S} --loss chunked-softmax",
    f"{A100S} --loss standard",
    f"{A100S} --framework trl",
    f"{A100S} --framework deepspeed",
    f"{A100S} --attention flash",
    f"{A100S} --attention flash --document-len 512",
    f"{A100S} --attention eager",
    f"{A100S} --optimizer adamw_8bit",
    f"{A100S} --optimizer adafactor",
    f"{A100S} --optimizer lion",
    f"{A100S} --optimizer muon",
    f"{A100S} --optimizer sgd",
    f"{A100S} --optimizer-dtype bf16",
    f"{A100S} --kernels liger",
    f"{A100S} --mlp tiled --loss tiled --seq-len 65536",
    f"{A100S} --software transformers=4.45,padding-mask",
    f"{A100S} --objective dpo",
    f"{A100S} --objective dpo --method lora",
    f"{A100S} --objective orpo",
    f"{A100S} --objective kto",
    f"{A100S} --objective reward",
    f"{A100S} --eval-batch 4 --eval-logits 2",
    f"{A100S} --samples 52000 --epochs 2 --price 2/h",
    f"{A100S} --method lora --modules-to-save embed_tokens,lm_head --lora-targets q_proj,v_proj",
    f"{A100S} --risk bold",
)

FIGURES = ("device_bytes_per_gpu", "tokens_per_second", "step_seconds", "fit_probability")


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def said(line: str, capsys: pytest.CaptureFixture[str]) -> Any:
    """The JSON of a command that succeeds."""
    assert run([*line.split(), "--json"]) == 0, line
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_file_reproduces_its_answer_without_a_further_word(question: str, capsys: pytest.CaptureFixture[str]) -> None:
    """explain, compare and check print the answer's figures; lint, and the runs of dry-run, probe and launch, have its
    plan and figures; nothing counts as changed, and lint warns of nothing."""
    answer = said(f"advise {question} --offline --no-deepspeed-estimate", capsys)["recommended"]
    explained = said("explain ds_config.json", capsys)
    assert {name: explained[name] for name in FIGURES} == {name: answer[name] for name in FIGURES}
    compared = said("compare ds_config.json ds_config.json", capsys)["sides"][0]["plan"]
    settings = answer.keys() - {"job", "model_flops_utilization", "measured_device_bytes_per_gpu"}
    assert {name: compared[name] for name in settings} == {name: answer[name] for name in settings}
    _, fits = said("check ds_config.json", capsys)["requirements"]
    assert fits["value"] == answer["fit_probability"]

    file = read_file_question(Path("ds_config.json"), {"offline": True})
    assert file.changes == ()
    estimate = read_run(file.config, str(file.model), training_cluster(file.options), **file.options).estimate()
    assert estimate is not None
    assert estimate.memory.device_bytes_per_gpu == answer["device_bytes_per_gpu"]
    assert estimate.time.tokens_per_s == answer["tokens_per_second"]
    linted = lint_settings(file.config, model=file.model, **file.options)
    plan = linted["fill"](file.config).plan(file.config, linted["model"], linted["cluster"])
    report = said("lint ds_config.json", capsys)
    assert plan == estimate.plan and (report["errors"], report["warnings"]) == (0, 0)


def test_options_given_by_hand_replace_the_recorded_ones(capsys: pytest.CaptureFixture[str]) -> None:
    """Another machine replaces the whole machine, another model the whole question."""
    run(["Qwen2.5-7B", "--gpus", "2xA100-40GB", "--ram", "256GB", "--seq-len", "1024", "--quiet"])
    here = said("explain ds_config.json", capsys)
    longer = said("explain ds_config.json --seq-len 4096", capsys)
    assert longer["device_bytes_per_gpu"] > here["device_bytes_per_gpu"]
    file = read_file_question(Path("ds_config.json"), {"gpus": "2xH100", "micro_batch": 1})
    assert file.asked["gpus"] == "2xH100" and "ram" not in file.asked and file.asked["seq_len"] == 1024
    assert file.batch["micro_batch"] == 1 and file.batch["accumulation"] >= 1
    other = read_file_question(Path("ds_config.json"), {"model": "Qwen2.5-3B"})
    assert other.model == "Qwen2.5-3B" and other.recorded is None and not other.asked and not other.batch


def test_a_strategy_has_the_samples_per_step_of_the_file_that_it_is_compared_with(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run([*f"{A100S} --global-batch 96 --seq-len 512".split(), "--quiet"])
    sides = said("compare ds_config.json zero2-offload", capsys)["sides"]
    batches = [side["plan"]["micro_batch_size"] * side["plan"]["gradient_accumulation_steps"] * 4 for side in sides]
    assert batches == [96, 96]


def test_a_changed_file_names_its_changes_and_is_judged_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    run(["Qwen2.5-7B", "--gpus", "8xA100-80GB", "--framework", "deepspeed", "--quiet"])
    path = Path("ds_config.json")
    config = json.loads(path.read_text())
    before = said("explain ds_config.json", capsys)
    config["zero_optimization"] = {"stage": 1, "reduce_bucket_size": 1000}
    config["wall_clock_breakdown"] = True
    path.write_text(json.dumps(config))
    assert run(["explain", "ds_config.json", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["zero_stage"] == 1 != before["zero_stage"] or before["zero_stage"] == 1
    assert "zero_optimization.reduce_bucket_size is 1000, not" in shown.err
    assert "wall_clock_breakdown is new" in shown.err
    del config[RECORD_KEY]
    path.write_text(json.dumps(config))
    assert run(["explain", "ds_config.json"]) == 2 and "records no model" in capsys.readouterr().err
    assert run(["check", "ds_config.json"]) == 0 and "fits" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("where", "value", "said_of_it"),
    [
        (("options", "gpus"), "9x", "--gpus '9x'"),
        (("options", "seq_len"), "long", "seq_len is 'long'"),
        (("options", "surprise"), 1, "surprise is no recorded option"),
        (("plan", "zero_stage"), 7, "zero_stage"),
        (("plan", "no_such"), 7, "no_such"),
        (("plan",), [], "its form is unknown"),
        (("model",), 3, "its form is unknown"),
    ],
)
def test_a_record_that_is_not_understood_is_an_error_that_names_it(
    where: tuple[str, ...], value: Any, said_of_it: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["Qwen2.5-0.5B", "--gpus", "1x24GB", "--quiet"])
    path = Path("ds_config.json")
    config = json.loads(path.read_text())
    owner = config[RECORD_KEY]
    for name in where[:-1]:
        owner = owner[name]
    owner[where[-1]] = value
    path.write_text(json.dumps(config))
    assert run(["check", "ds_config.json"]) == 2
    assert said_of_it in capsys.readouterr().err


def test_a_record_never_runs_the_code_of_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("net.py").write_text("raise SystemExit('the file ran')")
    run(["Qwen2.5-0.5B", "--gpus", "1x24GB", "--quiet"])
    path = Path("ds_config.json")
    config = json.loads(path.read_text())
    config[RECORD_KEY]["model"] = "net.py:build"
    path.write_text(json.dumps(config))
    for command in ("explain", "dry-run", "probe"):
        assert run([command, "ds_config.json"]) == 2
        assert "the file ran" not in capsys.readouterr().err


def test_a_record_has_no_auto_for_accelerate_to_fill(capsys: pytest.CaptureFixture[str]) -> None:
    """accelerate refuses an `auto` in a key that it does not know."""
    for question in (
        "gpt2 --device cpu --offline",
        f"{A100S} --objective grpo",
        "Qwen2.5-14B --gpus 2x32GB --seq-len max",
    ):
        run([*question.split(), "--quiet", "--force"])
        record = json.loads(Path("ds_config.json").read_text())[RECORD_KEY]
        assert '"auto"' not in json.dumps(record) and record["versions"]["ds_advise"]
    assert not capsys.readouterr().out


def test_commands_without_a_file_find_that_of_the_folder(capsys: pytest.CaptureFixture[str]) -> None:
    """`launch -- COMMAND` takes the machine and the configuration of the folder, unless the command names one; a file
    without a record is not found."""
    Path("train.py").write_text("")
    assert run(["Qwen2.5-0.5B", "--gpus", "4xH100", "--quiet"]) == 0
    launch = ["launch", "--dry", "--no-check", "--", "train.py"]
    assert run(launch) == 0
    shown = capsys.readouterr()
    assert "with ds_config.json of this folder" in shown.err and "--nproc_per_node 4" in shown.out
    assert run([*launch[:-1], "deepspeed", "train.py"]) == 0  # the launcher names no file
    assert "with ds_config.json of this folder" in capsys.readouterr().err
    assert run(["Qwen2.5-0.5B", "--gpus", "2xH100", "--quiet"]) == 0  # into the next free name
    assert run(launch) == 0
    shown = capsys.readouterr()
    assert "with ds_config-2.json, the newest here (not ds_config.json)" in shown.err
    assert "--nproc_per_node 2" in shown.out
    assert run(["Qwen2.5-0.5B", "--gpus", "4xH100", "--quiet"]) == 0  # the first answer again
    assert run(launch) == 0 and "with ds_config.json, the newest here" in capsys.readouterr().err
    Path("ds_config-2.json").unlink()
    assert run([*launch, "--deepspeed", "other.json"]) == 2 and "of this folder" not in capsys.readouterr().err
    config = json.loads(Path("ds_config.json").read_text())
    Path("ds_config.json").write_text(json.dumps(without_record(config)))
    assert run(launch) == 2 and run(["dry-run"]) == 2
    assert "of this folder" not in capsys.readouterr().err
