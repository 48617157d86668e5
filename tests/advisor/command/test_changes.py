"""The user's command under another plan: words, copies of files, own options, and lines by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ds_advise
import pytest
import yaml
from ds_advise.advisor.command.advice import CommandAdvice
from ds_advise.advisor.command.changes import ChangedCommand, ChangedLine, changed_command
from ds_advise.advisor.question.model_source import load_model
from ds_advise.advisor.render.command_advice import _where, moved_precision
from ds_advise.estimators.plan import Plan
from ds_advise.estimators.workload import Workload
from ds_advise.probes.command.observed import CommandResult, ObservedOption
from ds_advise.probes.command.request import ForcedSettings

from tests.advisor.observed_training import ARGUMENTS, ENGINE, OBSERVED, TRAINING
from tests.helpers import h100s

OWN = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}, "wall_clock_breakdown": True}
TRAINER = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "gradient_checkpointing": True}
PLAN = Plan(zero_stage=2, micro_batch_size=4, gradient_accumulation_steps=1, gradient_checkpointing=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "zero3.json").write_text(json.dumps(OWN))
    return tmp_path


def option(flag: str, value: Any, *, is_switch: bool = False) -> ObservedOption:
    return ObservedOption(flags=(flag,), value=value, is_switch=is_switch)


OF_TRAINER = tuple(option(f"--{name}", value) for name, value in TRAINER.items())


def found(folder: Path, *, framework: str = "hf", **arguments: Any) -> CommandResult:
    """A training with micro batch 2, 2 steps and checkpointing under zero3.json."""
    engine = replace(ENGINE, micro_batch_size=2, gradient_accumulation_steps=2, config=OWN)
    seen = replace(ARGUMENTS, **{"ds_config": str(folder / "zero3.json"), **arguments})
    result: Any = None  # the changes do not depend on the memory
    return CommandResult(
        result=result,
        observed=replace(OBSERVED, engines=(engine,)),
        training=replace(TRAINING, framework=framework),
        arguments=seen,
    )


def changed(words: str, folder: Path, result: CommandResult, plan: Plan = PLAN, **options: Any) -> ChangedCommand:
    return changed_command(
        words.split(),
        folder,
        result,
        plan,
        shape=load_model("Qwen2.5-0.5B"),
        workload=Workload(),
        cluster=h100s(8),
        **options,
    )


def test_typed_arguments_of_the_trainer_are_set(folder: Path) -> None:
    result = found(folder, options=OF_TRAINER, trainer=TRAINER)
    words = "torchrun t.py --deepspeed zero3.json --per_device_train_batch_size=2 --gradient_checkpointing --seed 2"
    made = changed(words, folder, result)
    assert " ".join(made.words) == (
        "torchrun t.py --deepspeed ds_config.json --per_device_train_batch_size=4 --gradient_checkpointing false "
        "--seed 2 --gradient_accumulation_steps 1"
    )
    config = json.loads(made.files["ds_config.json"])
    assert config["zero_optimization"]["stage"] == 2 and config["wall_clock_breakdown"] is True
    assert config["train_micro_batch_size_per_gpu"] == "auto"
    assert not made.lines and made.forced == ForcedSettings()
    assert json.loads((folder / "zero3.json").read_text()) == OWN


def test_the_same_plan_changes_no_setting(folder: Path) -> None:
    result = found(folder, options=OF_TRAINER, trainer=TRAINER)
    same = PLAN.replace_fields(micro_batch_size=2, gradient_accumulation_steps=2, gradient_checkpointing=True)
    made = changed("python t.py --deepspeed zero3.json", folder, result, same)
    assert made.words == ("python", "t.py", "--deepspeed", "ds_config.json")


def test_arguments_in_the_code_are_lines_that_the_dry_run_forces(folder: Path) -> None:
    result = found(
        folder, trainer=TRAINER, trainer_class="SFTConfig", calls={"TrainingArguments": "/w/t.py:7"}, ds_config=""
    )
    made = changed("python t.py", folder, result)
    text = (
        "SFTConfig(per_device_train_batch_size=4, gradient_accumulation_steps=1, gradient_checkpointing=False, "
        'deepspeed="ds_config.json")'
    )
    assert made.lines == (ChangedLine(place="/w/t.py:7", text=text),)
    assert made.words == ("python", "t.py") and made.forced.trainer["per_device_train_batch_size"] == 4
    assert made.forced.trainer["deepspeed"]["zero_optimization"]["stage"] == 2


@pytest.mark.parametrize(
    ("given", "name"),
    [({"activation_checkpointing": True}, "activation_checkpointing"), ({}, "gradient_checkpointing")],
)
def test_checkpointing_is_an_argument_by_the_name_that_decides(folder: Path, given: dict[str, Any], name: str) -> None:
    """Of transformers 5.23 the new name, if the script sets it; neither has a default."""
    trainer = TRAINER | {"gradient_checkpointing": None, "activation_checkpointing": None, **given}
    result = found(folder, trainer=trainer, trainer_class="TrainingArguments", calls={"TrainingArguments": "/w/t.py:7"})
    wanted = not given
    result = replace(result, observed=replace(result.observed, recomputes=not wanted))
    (line,) = changed("python t.py", folder, result, PLAN.replace_fields(gradient_checkpointing=wanted)).lines
    assert f"{name}={wanted}" in line.text


def test_keys_of_a_yaml_are_changed_in_a_copy(folder: Path) -> None:
    text = "model: m  # mine\nper_device_train_batch_size: 2\ngradient_accumulation_steps: 2\ndeepspeed: zero3.json\n"
    (folder / "run.yaml").write_text(text)
    result = found(folder, fields=TRAINER | {"model": "m"}, trainer=TRAINER)
    made = changed("llamafactory-cli train run.yaml", folder, result)
    assert made.words == ("llamafactory-cli", "train", "run-2.yaml") and not made.lines
    copy = made.files["run-2.yaml"]
    assert copy.startswith("model: m  # mine\nper_device_train_batch_size: 4\n")
    assert yaml.safe_load(copy) == {
        "model": "m",
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "gradient_checkpointing": False,
        "deepspeed": "ds_config.json",
    }
    assert (folder / "run.yaml").read_text() == text and not (folder / "run-2.yaml").exists()
    for content, name in ((copy, "run-2.yaml"), ("another: one\n", "run-3.yaml")):
        (folder / "run-2.yaml").write_text(content)
        assert changed("llamafactory-cli train run.yaml", folder, result).words[-1] == name


def test_own_options_are_known_by_name_and_value(folder: Path) -> None:
    options = (
        option("--mbs", 2),
        option("--eval-batch-size", 2),
        option("--accum", 2),
        option("--recompute", True, is_switch=True),
    )
    result = found(folder, framework="deepspeed", options=options)
    made = changed("deepspeed t.py --recompute --mbs 2 --deepspeed_config zero3.json", folder, result)
    assert " ".join(made.words) == "deepspeed t.py --mbs 4 --deepspeed_config ds_config.json --accum 1"
    config = json.loads(made.files["ds_config.json"])
    assert (config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]) == (4, 1)


def test_a_script_that_makes_the_configuration_of_a_stage_option_gets_no_file(folder: Path) -> None:
    options = (option("--zero_stage", 3), option("--offload", False, is_switch=True), option("--micro_batch", 2))
    result = found(folder, framework="deepspeed", options=options, ds_config="")
    plan = PLAN.replace_fields(gradient_checkpointing=True, offload_optimizer="cpu")
    made = changed("deepspeed t.py --zero_stage 3", folder, result, plan)
    assert not made.files
    assert " ".join(made.words) == "deepspeed t.py --zero_stage 2 --micro_batch 4 --offload"


def test_the_launcher_of_accelerate_gets_the_file_in_place_of_its_settings(folder: Path) -> None:
    result = found(folder, calls={"DataLoader": "/w/loop.py:3"}, ds_config="")
    typed = "accelerate launch --use_deepspeed --zero_stage 3 --num_processes 8 --mixed_precision bf16 loop.py"
    made = changed(typed, folder, result)
    assert " ".join(made.words) == (
        "accelerate launch --use_deepspeed --deepspeed_config_file ds_config.json --num_processes 8 loop.py"
    )
    assert moved_precision(typed.split(), made) == "ds_config.json sets bf16, in place of --mixed_precision."
    scripts = "-m loop --mixed_precision bf16 --gradient_clipping 1"
    kept = f"accelerate launch --zero_stage 3 {scripts}"
    assert moved_precision(kept.split(), changed(kept, folder, result)) == ""
    assert " ".join(changed(f"accelerate launch --zero_stage 3 {scripts}", folder, result).words) == (
        f"accelerate launch --use_deepspeed --deepspeed_config_file ds_config.json {scripts}"
    )
    assert made.lines[0] == ChangedLine(place="/w/loop.py:3", text="DataLoader(batch_size=4)")
    assert made.forced.loader_batches == {"2": 4} and made.forced.checkpointing is False
    assert json.loads(made.files["ds_config.json"])["gradient_accumulation_steps"] == 1


def test_a_configuration_of_accelerate_names_the_file_in_a_copy(folder: Path) -> None:
    own = {"distributed_type": "DEEPSPEED", "mixed_precision": "bf16", "num_processes": 8}
    (folder / "a.yaml").write_text(
        yaml.safe_dump({**own, "deepspeed_config": {"zero_stage": 3, "zero3_init_flag": True}})
    )
    made = changed("accelerate launch --config_file a.yaml loop.py", folder, found(folder, ds_config=""))
    assert made.words[:4] == ("accelerate", "launch", "--config_file", "a-2.yaml")
    values = yaml.safe_load(made.files["a-2.yaml"])
    assert values["num_processes"] == 8 and "num_machines" not in values
    assert values["deepspeed_config"] == {"zero3_init_flag": False, "deepspeed_config_file": "ds_config.json"}
    assert "mixed_precision" not in values
    assert json.loads(made.files["ds_config.json"])["bf16"]["enabled"] is True


@pytest.mark.parametrize("named", [{"deepspeed_config_file": "zero3.json"}, {"zero_stage": 3}])
def test_a_configuration_of_accelerate_starts_the_ranks_of_the_answer(folder: Path, named: dict[str, Any]) -> None:
    """8 GPUs, however the file names DeepSpeed's configuration."""
    own = {"distributed_type": "DEEPSPEED", "num_processes": 4, "num_machines": 2, "deepspeed_config": named}
    (folder / "a.yaml").write_text(yaml.safe_dump(own))
    result = found(folder) if "deepspeed_config_file" in named else found(folder, ds_config="")
    made = changed("accelerate launch --config_file a.yaml loop.py", folder, result)
    values = yaml.safe_load(made.files["a-2.yaml"])
    assert (values["num_processes"], values["num_machines"]) == (8, 1)
    assert values["deepspeed_config"]["deepspeed_config_file"] == "ds_config.json" and len(made.files) == 2


@pytest.mark.parametrize(
    ("framework", "words", "gives"),
    [
        (
            "hf",
            "env ACCELERATE_USE_DEEPSPEED=true ACCELERATE_DEEPSPEED_CONFIG_FILE=ds_config.json python t.py",
            False,
        ),
        ("deepspeed", "python t.py", True),
    ],
)
def test_a_command_that_names_none_gets_it_by_variables_or_in_front(
    folder: Path, framework: str, words: str, gives: bool
) -> None:
    same = PLAN.replace_fields(micro_batch_size=2, gradient_accumulation_steps=2, gradient_checkpointing=True)
    result = found(folder, framework=framework)
    made = changed("python t.py", folder, result, same, given_config=folder / "zero3.json")
    assert (" ".join(made.words), made.gives_config) == (words, gives)
    assert json.loads(made.files["ds_config.json"])["wall_clock_breakdown"] is True


def test_checkpointing_in_evaluation_mode_needs_a_call(folder: Path) -> None:
    result = found(folder, framework="deepspeed")
    observed = replace(result.observed, recomputes=False, in_training_mode=False)
    plan = PLAN.replace_fields(micro_batch_size=2, gradient_accumulation_steps=2, gradient_checkpointing=True)
    made = changed("python t.py zero3.json", folder, replace(result, observed=observed), plan)
    assert [line.text for line in made.lines] == [
        "call model.train() before the training, so that gradient checkpointing runs"
    ]
    assert made.forced.checkpointing is True


def test_an_option_that_switches_checkpointing_off_is_used(folder: Path) -> None:
    (folder / "run.yaml").write_text("stage: sft\nmodel: m\n")
    fields = {"stage": "sft", "model": "m", "disable_gradient_checkpointing": False}
    result = found(folder, fields=fields, trainer=TRAINER | {"gradient_checkpointing": False})
    plan = PLAN.replace_fields(micro_batch_size=2, gradient_accumulation_steps=2)
    made = changed("llamafactory-cli train run.yaml deepspeed=zero3.json", folder, result, plan)
    assert yaml.safe_load(made.files["run-2.yaml"])["disable_gradient_checkpointing"] is True
    assert made.words[-1] == "deepspeed=ds_config.json" and not made.lines


@pytest.mark.parametrize(
    ("calls", "where"),
    [
        ({"model": "/w/t.py:7"}, "First add in /w/t.py, after the model is made (line 7)"),
        ({}, "First add in the script, after the model is made"),
    ],
)
def test_the_line_that_enables_checkpointing_stands_after_the_model(
    folder: Path, calls: dict[str, str], where: str
) -> None:
    result = found(folder, framework="deepspeed", calls=calls)
    engine = replace(result.observed.engines[0], checkpointing=False)
    result = replace(result, observed=replace(result.observed, recomputes=False, engines=(engine,)))
    same = PLAN.replace_fields(micro_batch_size=2, gradient_accumulation_steps=2, gradient_checkpointing=True)
    made = changed("python t.py", folder, result, same)
    (line,) = (each for each in made.lines if "checkpointing" in each.text)
    assert (line.text, line.place) == ("model.gradient_checkpointing_enable(); model.train()", calls.get("model", ""))
    assert _where(line) == where and made.forced.checkpointing is True


@pytest.mark.parametrize(("micro", "needed"), [(16, True), (1, False)])
def test_a_plan_that_fits_by_a_line_alone_says_so(micro: int, needed: bool) -> None:
    found = ds_advise.advise(
        "Qwen2.5-0.5B", gpus="1x24GB", seq_len=2048, micro_batch=micro, gradient_checkpointing="on", offline=True
    )
    forced = SimpleNamespace(forced=ForcedSettings(checkpointing=True))
    answer: Any = SimpleNamespace(changed=forced, recommended=found.recommended, question=found.question)
    needs = vars(CommandAdvice)["needs_its_lines"].func
    assert needs(answer) is needed
    answer.changed = SimpleNamespace(forced=ForcedSettings())
    assert needs(answer) is False
