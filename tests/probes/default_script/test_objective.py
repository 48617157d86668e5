"""The default script of TRL's objectives: what it knows of the trainers, and the command line of a run."""

from dataclasses import replace
from typing import Any

import pytest
from ds_advise.estimators.models.catalogue import config, find
from ds_advise.estimators.objectives import OBJECTIVES, framework_loss, trained_model
from ds_advise.estimators.workload import Software, Workload
from ds_advise.probes.default_script.words import command_words, script_of, steps_of_generation
from ds_advise.probes.dry_run.run import DryRunError, dry_run
from ds_advise.probes.run import Run

from tests.helpers import h100s, preset

MODEL = find("Qwen2.5-1.5B")


def run_of(objective: Any, **changes: Any) -> Run:
    rollouts = OBJECTIVES[objective].rollouts
    loss = framework_loss(objective, "trl", Software())
    workload = Workload(objective=objective, framework="trl", loss=loss, rollouts=rollouts, **changes)
    model = trained_model(MODEL, objective)
    plan = preset("zero3", model, workload, h100s(8))
    return Run.from_plan(plan, model, workload, h100s(8), description=config(MODEL.name))


@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("objective", [name for name in OBJECTIVES if name != "ppo"])
def test_trls_own_parser_takes_the_words_of_a_run(objective: Any, method: Any, monkeypatch: Any) -> None:
    trl = pytest.importorskip("trl")
    from ds_advise.probes.default_script import objective as script

    run = run_of(objective, method=method)
    assert script_of(run).name == "objective.py"
    name = objective if OBJECTIVES[objective].trainer else "sft"
    module, stem = script.TRAINERS[name]
    spec = OBJECTIVES[objective]
    if spec.trainer:
        assert (module, f"{stem}Trainer") == (spec.module, spec.trainer)
    # transformers would look for a GPU that computes in bf16, and read the configuration.
    words = [word for word in command_words(run)[2:] if word not in ("--bf16", "--deepspeed", "ds_config.json")]
    arguments = getattr(pytest.importorskip(module), f"{stem}Config")
    monkeypatch.setattr(arguments, "__post_init__", lambda _own: None)
    parser = trl.TrlParser([script.ScriptArguments, arguments, trl.ModelConfig], allow_abbrev=False)
    options, parsed, model = parser.parse_args_into_dataclasses(words, return_remaining_strings=True)[:3]
    assert (options.objective, parsed.per_device_train_batch_size, model.use_peft) == (name, 2, method == "lora")
    assert model.dtype == "bfloat16" and (method == "full" or (model.lora_r, model.lora_dropout) == (8, 0.0))
    if spec.rollouts is None:
        assert parsed.max_length == run.workload.seq_len
    else:
        assert options.prompt_length + parsed.max_completion_length == run.workload.seq_len


def test_a_generation_serves_the_steps_of_its_iterations() -> None:
    assert steps_of_generation(run_of("dpo")) == 0
    assert (steps_of_generation(run_of("grpo")), steps_of_generation(run_of("ppo"))) == (1, 4)
    run = run_of("grpo")
    rollouts = replace(run.workload.rollouts, steps_per_generation=8, num_iterations=2)  # type: ignore[type-var]
    assert steps_of_generation(replace(run, workload=replace(run.workload, rollouts=rollouts))) == 8


def test_a_dry_run_says_which_trl_it_needs() -> None:
    """The last TRL with PPO is older than the one that is installed, if any."""
    pytest.importorskip("torch")
    with pytest.raises(DryRunError, match=r"needs trl<1\.13") as raised:
        dry_run(run_of("ppo"))
    assert "pip install" in raised.value.fix
