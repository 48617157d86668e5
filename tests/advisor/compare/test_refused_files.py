"""`compare` gives no figures for a file that DeepSpeed refuses: it names lint's rule and the line."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from ds_advise.advisor.advise import comparison_context
from ds_advise.advisor.answer.comparison import compare
from ds_advise.advisor.cli.main import run
from ds_advise.advisor.question.cluster import parse_cluster
from ds_advise.estimators.errors import DsAdviseError
from ds_advise.validate.lint import lint, load_facts
from ds_advise.validate.lint.config_file import read_config_file

GPUS, RANKS = "4xA100-80GB", 4
BATCH: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}
BF16: dict[str, Any] = BATCH | {"bf16": {"enabled": True}}
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "a repeated key": ("DS004", BF16 | {"zero_optimization": {"stage": 2}}),
    "a key that does not exist": ("DS010", BF16 | {"zero_optimization": {"stage": 2, "overlap_com": True}}),
    "Apex": ("DS013", BATCH | {"amp": {"enabled": True}}),
    "two names of the offload": (
        "DS015",
        BF16 | {"zero_optimization": {"stage": 2, "cpu_offload": True, "offload_optimizer": {"device": "cpu"}}},
    ),
    "a stage that does not exist": ("DS020", BF16 | {"zero_optimization": {"stage": 4}}),
    "a text for a switch": ("DS020", BATCH | {"bf16": {"enabled": "maybe"}, "zero_optimization": {"stage": 2}}),
    "a list for the optimizer": ("DS020", BF16 | {"optimizer": ["AdamW"], "zero_optimization": {"stage": 2}}),
    "a batch of other GPUs": ("DS101", BF16 | {"train_batch_size": 7, "zero_optimization": {"stage": 2}}),
    "two precisions": ("DS201", BF16 | {"fp16": {"enabled": True}, "zero_optimization": {"stage": 2}}),
}
"""Code of the rule, and the file."""


def write(kind: str, folder: Path) -> Path:
    file = folder / "refused.json"
    text = json.dumps(REFUSED[kind][1], indent=1)
    file.write_text(text.replace("{", '{\n "train_micro_batch_size_per_gpu": 2,', 1) if "repeated" in kind else text)
    return file


@pytest.mark.parametrize("kind", REFUSED)
def test_files_that_deepspeed_refuses_are_not_compared(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On either side. The error names the file, the rule and the line, and says what lint says."""
    from deepspeed.runtime.config import DeepSpeedConfig, DeepSpeedConfigError

    class FourRanks:
        def get_data_parallel_world_size(self) -> int:
            return RANKS

    file = write(kind, tmp_path)
    with pytest.raises((DeepSpeedConfigError, ValueError, AssertionError, AttributeError)):
        DeepSpeedConfig(str(file), mpu=FourRanks())
    report = lint(read_config_file(file).document, facts=load_facts(), cluster=parse_cluster(GPUS))
    finding = next(each for each in report.findings if each.severity == "error")
    assert finding.code == REFUSED[kind][0]
    capsys.readouterr()  # warnings of DeepSpeed
    needs_gpus = kind == "a batch of other GPUs"
    assert run(["compare", str(file), str(file)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    problem = f"B cannot run: line {finding.line}: {finding.what} ({finding.code})."
    assert (problem in out) != needs_gpus, "named without a model, where keys alone are compared"
    for sides in ((str(file), "zero3"), ("zero3", str(file))):
        assert run(["compare", *sides, "--model", "gpt2", "--gpus", GPUS, "--offline"]) == 2
        said = capsys.readouterr()
        assert said.out == "" and f"{file}, line {finding.line}: {finding.what} ({finding.code})" in said.err


def test_no_file_that_lint_calls_an_error_is_compared(tmp_path: Path) -> None:
    """The bad examples of all rules, for which lint has an error on these GPUs."""
    known, facts, refused = comparison_context("gpt2", gpus=GPUS, offline=True), load_facts(), set[str]()
    file = tmp_path / "example.json"
    examples = json.loads(files("ds_advise.validate.lint").joinpath("rule_examples.json").read_text(encoding="utf-8"))
    for code, example in examples.items():
        bad = example["bad"]
        file.write_text(bad if isinstance(bad, str) else json.dumps(bad))
        report = lint(read_config_file(file, as_meant=True).document, facts=facts, cluster=known.question.cluster)
        if report.count("error"):
            refused.add(code)
            with pytest.raises(DsAdviseError):
                compare(str(file), "zero3", known)
    assert len(refused) > 20


def test_a_file_with_warnings_alone_is_compared(tmp_path: Path) -> None:
    file = tmp_path / "warned.json"
    file.write_text(json.dumps(BF16 | {"zero_optimization": {"stage": 2, "stage3_max_live_parameters": 7}}))
    known = comparison_context("gpt2", gpus=GPUS, offline=True)
    report = lint(read_config_file(file).document, facts=load_facts(), cluster=known.question.cluster)
    assert report.count("error") == 0 < len(report.findings)
    assert all(side.candidate is not None for side in compare(str(file), "zero3", known).sides)


def test_several_errors_name_the_command_that_has_their_fixes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "several.json"
    file.write_text(json.dumps(BATCH | {"gradient_clipping": "a", "zero_optimization": {"stage": 7, "foo": 1}}))
    question = ["--model", "gpt2", "--gpus", GPUS, "--offline"]
    for asked in (["explain", str(file)], ["compare", str(file), "zero3"]):
        assert run([*asked, *question]) == 2
        command = f"ds-advise lint {file} --model gpt2 --gpus {GPUS}"
        assert capsys.readouterr().err.endswith(f"; `{command}` has the fix of each\n")


def test_an_error_that_depends_on_the_model_has_lints_fix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """DS404: a buffer that is smaller than the shard of the model's largest parameter."""
    on_drive = {"device": "nvme", "nvme_path": "/nvme", "buffer_size": 1000}
    file = tmp_path / "nvme.json"
    file.write_text(json.dumps(BF16 | {"zero_optimization": {"stage": 3, "offload_param": on_drive}}))
    question = ["--model", "gpt2", "--gpus", GPUS, "--ram", "256GB", "--nvme", "/nvme:1TB", "--offline"]
    assert run(["explain", str(file), *question]) == 2
    said = capsys.readouterr().err
    assert "(DS404)" in said and 'write "buffer_size": ' in said and "without --model" not in said
