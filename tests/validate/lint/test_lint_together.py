"""Findings of one file agree with each other, with its figures and with what is meant by a misspelled key."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from ds_advise.advisor.cli.main import run
from ds_advise.advisor.text.units import rate
from ds_advise.validate.lint import apply
from ds_advise.validate.lint.linted_config import Situation

from .lint_cases import codes, judged

MODEL = {"model": "Qwen2.5-0.5B", "gpus": "8xA100-80GB", "ram": "500GB"}
CPU = {"device": "cpu"}


def _config(**zero: Any) -> dict[str, Any]:
    return {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": {"stage": 3, **zero}}


@pytest.mark.parametrize("offloads", [{}, {"offload_optimizer": CPU}, {"offload_optimizer": CPU, "offload_param": CPU}])
def test_one_change_of_stage_and_offload_is_proposed_and_its_gain_is_that_of_the_change(offloads: Any) -> None:
    """The proposed file has the predicted speed, and no further advice on stage, offload or what it no longer uses."""
    report = judged(_config(**offloads), **MODEL)
    proposed = [each for each in report.findings if each.code in ("DS903", "DS904")]
    assert len(proposed) == 1 and not proposed[0].edits
    assert not {"DS307", "DS308", "DS415"} & codes(report), "settings of stage 3 or of the removed offload"
    stage = 2 if '"stage": 2' in proposed[0].fix else 3
    after = judged(_config() | {"zero_optimization": {"stage": stage}}, **MODEL)
    assert not {"DS903", "DS904"} & codes(after)
    assert not isinstance(report.prediction, str) and not isinstance(after.prediction, str)
    gain = after.prediction.tokens_per_s() / report.prediction.tokens_per_s()
    assert f"predicted {gain:.1f} x as fast" in proposed[0].what
    assert all(name in proposed[0].fix for name in offloads)


def test_auto_is_filled_again_for_a_proposed_change() -> None:
    """Without the offload a smaller micro batch fits, which is named with the gain."""
    zero = {"stage": 3, "offload_optimizer": CPU, "offload_param": CPU}
    config = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "bf16": {"enabled": True},
    }
    asked = {"model": "Qwen2.5-7B", "gpus": "4xA100-80GB"}
    report, after = (judged(config | {"zero_optimization": each}, **asked) for each in (zero, {"stage": 3}))
    (proposed,) = [each for each in report.findings if each.code == "DS903"]
    assert not isinstance(report.prediction, str) and not isinstance(after.prediction, str)
    gain = after.prediction.tokens_per_s() / report.prediction.tokens_per_s()
    assert report.batch != after.batch
    assert f"({after.batch.words}), and is predicted {gain:.1f} x as fast" in proposed.what


def test_a_misspelled_block_is_first_and_the_others_judge_what_is_meant() -> None:
    """Figures and findings are those of the renamed block, at its keys in the text."""
    wrong = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}
    wrong["zero_optimisation"] = {"stage": 3, "overlap_com": True, "offload_optimizer": {"device": "gpu"}}
    report = judged(wrong, model="Qwen2.5-7B", gpus="4xH100")
    first, *others = report.findings
    assert first.path == ("zero_optimisation",) and "stage 0 instead of 3" in first.what
    assert first.severity == "error" and {"DS010", "DS011", "DS020"} == codes(report, "error")
    lines = report.document.text.splitlines()
    assert all(each.path[-1] in lines[each.line - 1] for each in others if each.severity == "error")
    by_trainer = judged(wrong, framework="hf")
    assert by_trainer.findings[0].severity == "error" and "DS153" not in codes(by_trainer)
    right = _config(sub_group_size=100_000_000)
    misspelled = {"zero_optimisation" if key == "zero_optimization" else key: value for key, value in right.items()}
    figures = [judged(each, model="Qwen2.5-7B", gpus="4xH100").prediction for each in (right, misspelled)]
    assert figures[0] == figures[1] and not isinstance(figures[0], str)


def test_each_misspelled_block_has_its_own_consequence() -> None:
    """Without ZeRO or the precision the training is another one; a script can make the optimizer."""
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimisation": {"stage": 2},
        "optimiser": {"type": "AdamW", "params": {"lr": 1e-5}},
        "bf_16": {"enabled": True},
    }
    found = {each.path[0]: (each.severity, each.what) for each in judged(config).findings if each.code == "DS011"}
    assert {name: severity for name, (severity, _) in found.items()} == {
        "zero_optimisation": "error",
        "optimiser": "warning",
        "bf_16": "error",
    }
    assert "ZeRO is off: it has stage 0 instead of 2" in found["zero_optimisation"][1]
    assert found["optimiser"][1].endswith("so DeepSpeed makes no optimizer")
    assert "in fp32 instead of bf16" in found["bf_16"][1]


def test_the_other_findings_judge_a_block_in_a_wrong_place_as_if_moved() -> None:
    """A block that DeepSpeed rejects there, one that it ignores, and a single key."""
    inside = {"stage": 2, "reduce_bucket_size": 50_000_000, "bf16": {"enabled": True}, "gradient_clipping": "high"}
    config = {"train_batch_size": 8, "zero_optimization": inside, "offload_optimizer": {"device": "gpus"}}
    report = judged(config)
    found = {each.path[-1]: each for each in report.findings}
    assert "DS203" not in codes(report) and found["bf16"].code == "DS012"
    assert found["bf16"].severity == "error" and found["offload_optimizer"].severity == "warning"
    assert found["bf16"].what == "bf16 belongs at the top level" and found["bf16"].judged == "the moved block"
    assert found["device"].code == "DS020" and found["device"].line == found["offload_optimizer"].line + 1
    assert found["gradient_clipping"].fix == "move it to the top level", "its value is no number"
    inside["gradient_clipping"] = 1.0
    assert judged(config).findings[0].path == ("zero_optimization", "bf16")
    taken = {"train_batch_size": 8, "zero_optimization": inside, "bf16": {"enabled": False}}
    assert "DS203" in codes(judged(taken)), "the file has both"


def test_a_repeated_block_is_one_finding_with_both_lines() -> None:
    text = '{"train_batch_size": 8,\n "zero_optimization": {"stage": 2},\n "zero_optimization": {"stage": 3}}'
    found = [(each.line, each.what) for each in judged(text).findings if each.code == "DS004"]
    assert found == [(3, "'zero_optimization' is repeated here; it is first on line 2")]


def test_a_key_with_an_error_has_no_advice_that_contradicts_it() -> None:
    total = {"train_batch_size": 30, "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}}
    found = [each.code for each in judged(total, framework="hf").findings if each.path == ("train_batch_size",)]
    assert found == ["DS101"]


@pytest.mark.parametrize(("ram", "severity"), [("60GB", "error"), ("144GB", "warning"), ("300GB", None)])
def test_ram_has_the_severities_of_gpu_memory(ram: str, severity: str | None) -> None:
    """An error below a probability of 2.5 %, a warning below 97.5 %."""
    report = judged(_config(offload_optimizer=CPU), model="Qwen2.5-7B", gpus="2xH100", ram=ram)
    assert [each.severity for each in report.findings if each.code == "DS902"] == [severity] * bool(severity)
    assert not isinstance(report.prediction, str)
    chance = report.prediction.host_fit_probability()
    assert {"error": chance < 0.025, "warning": 0.025 <= chance < 0.975, None: chance >= 0.975}[severity]


HJSON = """{
  # batch
  train_micro_batch_size_per_gpu: auto
  "bf16": {'enabled': "auto"}, // the Trainer's
  "zero_optimization": {"stage": 2, "note": "a # in text",},
}
"""


def test_fix_writes_plain_json_for_the_trainer_and_keeps_the_values() -> None:
    report = judged(HJSON)
    (finding,) = [each for each in report.findings if each.code == "DS001"]
    assert finding.edits and (finding.line, finding.column) == (2, 3)
    text, _ = apply(report.document, finding.edits)
    assert json.loads(text) == report.document.value and len(text.splitlines()) == 5


@pytest.mark.parametrize("more", ["", ', "foo": 1', ', "bf_16": {"enabled": true}'])
@pytest.mark.parametrize(
    ("form", "severity"),
    [
        ('{{"train_batch_size": 8%s,}}', "advice"),
        ('{{ // mine\n"train_batch_size": 8%s}}', "advice"),
        ('{{"train_batch_size": 8%s\n"gradient_clipping": 1}}', "warning"),
    ],
)
def test_the_syntax_beyond_json_is_reported_beside_other_findings(form: str, severity: str, more: str) -> None:
    """A comma that is missing is a mistake, whoever reads the file."""
    text = form.replace("{{", "{").replace("}}", "}") % more
    assert "DS001" in codes(judged(text), severity)
    assert "DS001" in codes(judged(text, framework="hf"), "error")


def test_no_key_that_may_be_meant_is_removed() -> None:
    """A deprecated name stands for its successor; a name that is like no other may be needed."""
    zero = {
        "stage": 3,
        "stage3_gather_fp16_weights": True,
        "flag_of_mine": 3,
        "cpu_ofload": True,
        "offload_parameter": "cpu",
    }
    config = {"train_batch_size": 8, "bf16": {"enabled": True, "loss_scale": 0}, "zero_optimization": zero}
    report = judged(config | {"compile": {"enabled": True}})
    fixes = {each.path[-1]: (each.fix, bool(each.edits)) for each in report.findings if each.code == "DS010"}
    assert fixes == {
        "stage3_gather_fp16_weights": ("rename it to stage3_gather_16bit_weights_on_model_save", True),
        "flag_of_mine": ("remove it, or write what is meant", False),
        "cpu_ofload": ('rename it to offload_optimizer, and write {"device": "cpu"}', False),
        "offload_parameter": ('rename it to offload_param, and write {"device": "cpu"}', False),
        "loss_scale": ("remove it", True),
        "enabled": ("remove it, or write what is meant", False),
    }


def test_a_trailing_comma_is_reported_and_corrected_unless_deepspeed_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """DeepSpeed reads it, so it is advice. Comments are kept for DeepSpeed, and named where they are in the way."""
    text = '{"train_batch_size": 8, "bf16": {"enabled": true},}'
    assert "DS001" in codes(judged(text), "advice") and "DS001" not in codes(judged(text, framework="deepspeed"))
    Path("comma.json").write_text(text)
    assert run(["lint", "comma.json", "--diff"]) == 1
    assert run(["lint", "comma.json", "--fix"]) == 0
    assert json.loads(Path("comma.json").read_text())
    commented = '{"train_batch_size": 8,\n "bf16": {"loss_scale": 0, /* why */ "enabled": true}}'
    (removal,) = [each for each in judged(commented).findings if each.code not in ("DS001", "DS203")]
    assert not removal.edits and "the comment at line 2, column 28" in removal.fix
    Path("plain.json").write_text('{"train_batch_size": 8, "bf16": {"enabled": true}}')
    capsys.readouterr()
    assert run(["lint", "plain.json", "--diff"]) == 0
    assert "Nothing is found" in capsys.readouterr().out


def test_the_figures_of_a_model_are_printed_or_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    Path("good.json").write_text(json.dumps(_config()))
    asked = ["lint", "good.json", "--model", "Qwen2.5-7B", "--offline"]
    assert run(asked) == 0 and "not predicted: --gpus is missing" in capsys.readouterr().out
    assert run([*asked, "--gpus", "4xH100", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["prediction"]
    assert run([*asked, "--gpus", "4xH100"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"Predicted: {found['device_bytes_per_gpu'] / 2**30:.1f} of 79.1 GiB per GPU" in out
    assert f" {rate(found['tokens_per_second'])} tokens/s." in out
    run([*asked, "--gpus", "1x16GB"])
    (predicted,) = re.findall(r"Predicted: .*?\.(?: |$)(?=[A-Z])", " ".join(capsys.readouterr().out.split()))
    assert "of RAM per node" in predicted and "tokens/s" not in predicted, "it cannot run there"


@pytest.mark.parametrize(("elements", "found"), [(1000, True), (50_000_000, False)])
def test_small_buckets_are_reported_with_what_they_cost(elements: int, found: bool) -> None:
    config = _config(reduce_bucket_size=elements)
    config["zero_optimization"]["stage"] = 2
    words = [each.what for each in judged(config, **MODEL).findings if each.code == "DS318"]
    assert bool(words) == found and all("x as long" in each for each in words)


def test_a_reason_is_about_the_case_of_the_file() -> None:
    config = {"train_batch_size": 8, "gradient_clipping": "one", "zero_optimization": {"stage": 2, "overlap_comm": 5}}
    reasons = {each.path[-1]: each.why for each in judged(config).findings if each.code == "DS020"}
    assert "class" in reasons["overlap_comm"] and "no class" in reasons["gradient_clipping"]
    assert "no class" not in reasons["overlap_comm"]
    nvme = {"device": "nvme", "nvme_path": "/nvme"}
    few = _config(offload_optimizer={**nvme, "buffer_count": 2})
    (buffers,) = [each.why for each in judged(few).findings if each.code == "DS404"]
    assert "one for its gradient" in buffers and "shard" not in buffers
    torch_adam = _config(offload_optimizer=CPU) | {"optimizer": {"type": "AdamW", "params": {"torch_adam": True}}}
    (slow,) = [each.why for each in judged(torch_adam).findings if each.code == "DS414"]
    assert "run there slowly" in slow and "LAMB" not in slow


def test_without_a_model_only_a_bucket_that_holds_no_matrix_is_found() -> None:
    """What a larger one costs depends on the model."""
    found = {
        size: [each.what for each in judged(_config(reduce_bucket_size=size)).findings if each.code == "DS318"]
        for size in (1000, 10_000_000)
    }
    assert found == {1000: ["a bucket holds 1,000 elements: every larger gradient is reduced alone"], 10_000_000: []}


def test_the_findings_of_a_block_around_the_whole_are_those_of_its_keys() -> None:
    """A block next to keys that DeepSpeed reads is the script's."""
    whole = {"train_batch_size": 8, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2, "overlap_com": True}}
    found = judged({"deepspeed": whole}).findings
    assert [(each.code, each.severity, each.path[-1]) for each in found[:2]] == [
        ("DS011", "error", "deepspeed"),
        ("DS010", "error", "overlap_com"),
    ]
    assert "finds no batch size" in found[0].what and found[0].fix.startswith("move its keys to the top level, unless")
    assert codes(judged({"deepspeed": whole})) == codes(judged(whole)) | {"DS011"}
    assert not any(each.edits for each in found)
    (scripts,) = [each for each in judged(whole | {"mine": {"seed": 1, "wandb": {}}}).findings if each.code == "DS011"]
    assert scripts.fix == "remove it, unless the training script reads it"
    rest = judged({"ds_config": whole | {"other": 1}, "gradient_clipping": 1.0}).findings
    assert found[0].fix in {each.fix for each in rest}, "the file has no batch size without the block"
    partly = judged(whole | {"log": {"steps_per_print": 5}}).findings
    assert {(each.severity, each.fix) for each in partly if each.code == "DS011"} == {("warning", scripts.fix)}


def test_advice_that_a_correction_makes_needless_is_left_out() -> None:
    """bf16 is not proposed next to fp16, which the correction of its value enables."""
    config = {"train_batch_size": 8, "zero_optimization": {"stage": 2, "reduce_bucket_size": 50_000_000}}
    assert codes(judged(config)) == {"DS203"}
    assert codes(judged(config | {"fp16": True})) == {"DS020"}
    assert codes(judged(config | {"fp16": False})) == {"DS020", "DS203"}


STAGE_3_KEYS = {"stage3_max_live_parameters": 1e8, "overlap_comm": True, "offload_param": {"device": "cpu"}}


@pytest.mark.parametrize("stage", [33, 4, "three", 3.5, None, [3]])
def test_a_wrong_stage_is_not_stage_0(stage: Any) -> None:
    """What is meant is unknown, so no key is without effect, and `--fix` keeps all."""
    report = judged(
        {"train_batch_size": 8, "bf16": {"enabled": True}, "zero_optimization": STAGE_3_KEYS | {"stage": stage}}
    )
    assert codes(report) == {"DS020"} and not report.fixable


def test_a_misspelled_stage_is_the_stage() -> None:
    """`zero_stage` is accelerate's name of it; the block has the word already."""
    report = judged(
        {"train_batch_size": 8, "bf16": {"enabled": True}, "zero_optimization": STAGE_3_KEYS | {"zero_stage": 3}}
    )
    (finding,) = report.findings
    assert (finding.code, finding.fix) == ("DS010", "rename it to stage")
    unknown = judged(
        {"train_batch_size": 8, "bf16": {"enabled": True}, "zero_optimization": STAGE_3_KEYS | {"zero_stage": 33}}
    )
    assert [(each.code, each.severity) for each in unknown.findings] == [("DS010", "error")]


def test_a_missing_stage_is_one_finding_that_removes_nothing() -> None:
    report = judged({"train_batch_size": 8, "bf16": {"enabled": True}, "zero_optimization": STAGE_3_KEYS})
    (finding,) = report.findings
    assert finding.what == (
        "stage is missing, so ZeRO is off: overlap_comm, stage3_max_live_parameters and offload_param have no effect"
    )
    assert finding.fix.startswith('write "stage": 3 in zero_optimization') and not finding.edits


def test_accelerate_fills_in_stage_2() -> None:
    """accelerate 1.15 DeepSpeedPlugin: {'stage': 2, 'overlap_comm': True, ...}."""
    zero = {"stage": "auto", "overlap_comm": True, "reduce_bucket_size": 5e7, "offload_optimizer": {"device": "cpu"}}
    config = {"train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"}, "zero_optimization": zero}
    for framework in ("hf", None):
        report = judged(config, framework=framework, model="Qwen2.5-1.5B", gpus="8xA100-80GB")
        assert not {"DS302", "DS303"} & codes(report) and not report.fixable
        assert isinstance(report.prediction, Situation) and report.prediction.plan.zero_stage == 2
    (finding,) = judged({**config, "zero_optimization": {**zero, "stage3_max_live_parameters": 1e8}}).findings
    assert finding.what == (  # its environment may name stage 3
        'stage is "auto", for which accelerate fills in 2: stage3_max_live_parameters has no effect'
    )
    assert not finding.edits


def test_plain_deepspeed_trains_without_auto() -> None:
    """runtime/config_utils.py drops the value, so bf16 is off, ZeRO is at stage 0 and nothing is offloaded."""
    zero = {"stage": "auto", "offload_optimizer": {"device": "auto"}}
    config = {"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": "auto"}, "zero_optimization": zero}
    report = judged(config, framework="deepspeed", model="Qwen2.5-1.5B", gpus="8xA100-80GB")
    found = [(each.what, each.severity) for each in report.findings if each.code == "DS156"]
    assert found == [
        ('"auto" is dropped: bf16.enabled has its default, which is false', "warning"),
        ('"auto" is dropped: zero_optimization.stage has its default, which is 0', "warning"),
        ('"auto" is dropped: zero_optimization.offload_optimizer.device has its default, which is "none"', "warning"),
    ]
    assert isinstance(report.prediction, Situation)
    plan, workload = report.prediction.plan, report.prediction.workload
    assert (plan.zero_stage, plan.offload_optimizer, workload.precision) == (0, "none", "fp32")
