"""The dry run of TRL's trainers, in the default script, counts the bytes that the same command allocates on two
ranks."""

import os
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
from ds_advise.advisor.question.model_source import model_shape
from ds_advise.estimators.objectives import OBJECTIVES, trained_model
from ds_advise.estimators.rollouts import Rollouts
from ds_advise.probes.default_script.folder import write_folder
from ds_advise.probes.default_script.words import command_words
from ds_advise.probes.run import Run
from packaging.version import Version

from benchmarks.own_scripts import ranks

from .test_dry_run_truth import Case, request

pytest.importorskip("trl")

LIMIT_S = 300
CASES = [
    ("dpo", Case("zero2", model="llama")),
    ("dpo", Case("zero2", model="llama", checkpointing=False)),
    ("dpo", Case("zero2", model="llama", method="lora")),
    ("dpo", Case("zero2-offload", model="llama")),
    ("dpo", Case("zero3", model="llama")),
    ("dpo", Case("zero3", checkpointing=False)),
    ("dpo", Case("zero3", model="llama", method="lora", checkpointing=False)),
    ("dpo", Case("zero3", model="llama", method="lora")),
    ("dpo", Case("zero3-offload", model="llama")),
    ("dpo precomputed", Case("zero2", model="llama")),
    ("grpo", Case("zero2", model="llama")),
    ("grpo", Case("zero3", model="llama")),
    ("grpo reference", Case("zero2", model="llama", checkpointing=False)),
    ("grpo reference", Case("zero3", model="llama")),
    ("grpo", Case("zero2", model="llama", method="lora")),
    ("grpo reference", Case("zero3", model="llama", method="lora", checkpointing=False)),
    ("rloo reference", Case("zero3", model="llama")),
    ("kto", Case("zero2", model="llama")),
    ("kto", Case("zero3", model="llama", method="lora")),
    ("orpo", Case("zero3", model="llama")),
    ("simpo", Case("zero2", model="llama", checkpointing=False)),
    ("reward", Case("zero2", model="llama")),
    ("reward", Case("zero2", model="llama", method="lora")),
    ("reward", Case("zero3", model="llama")),
    ("reward", Case("zero3-offload", model="llama", checkpointing=False)),
    ("reward", Case("zero3", model="llama", method="lora", checkpointing=False)),
    *(
        [
            ("ppo", Case("zero2", model="llama", checkpointing=False)),
            ("ppo", Case("zero3", model="llama")),
        ]
        if Version(version("trl")) < Version("1.13")  # the last with PPO is 1.12
        else []
    ),
]


def run_of(objective: str, case: Case, folder: Path) -> Run:
    name, _, more = objective.partition(" ")
    plain = request(case, folder).run
    rollouts = OBJECTIVES[name].rollouts  # type: ignore[index]
    workload = replace(
        plain.workload,
        objective=name,  # type: ignore[arg-type]
        precompute_ref_log_probs=more == "precomputed",
        rollouts=rollouts and _rollouts(rollouts, name, with_reference=bool(more)),
        framework="trl",
        modules_to_save=("score",) if name == "reward" and case.method == "lora" else (),
    )
    shape = trained_model(model_shape(plain.description or {}, name=case.model), workload.objective)
    run = replace(plain, workload=workload, shape=shape)
    if name != "ppo":
        return run
    # accelerate reads this configuration before the trainer does, and the script makes the optimizer.
    sizes = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1, "bf16": {"enabled": True}}
    return replace(run, config={**{key: run.config[key] for key in run.config if key != "optimizer"}, **sizes})


def _rollouts(rollouts: Rollouts, name: str, *, with_reference: bool) -> Rollouts:
    if name == "ppo":
        return replace(rollouts, max_completion_length=64, num_iterations=2)
    return replace(rollouts, num_generations=2, max_completion_length=64, beta=0.1 * with_reference)


@pytest.mark.slow
@pytest.mark.parametrize(("objective", "case"), CASES, ids=str)
def test_the_dry_run_counts_what_trl_allocates(objective: str, case: Case, tmp_path: Path) -> None:
    """The end and the peak of every phase within 0.5 %. The dry run has its completions at once, without the keys and
    values of the real generation."""
    run = run_of(objective, case, tmp_path)
    write_folder(run, tmp_path)
    words, log = list(command_words(run)), tmp_path / "log"
    variables = dict(os.environ, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path / "cache"))
    dry = ranks.simulated_rank(words, tmp_path, variables, log, LIMIT_S, generates=False)
    assert "error" not in dry, dry["error"]
    real = ranks.real_ranks(Path(sys.executable), words, tmp_path, variables, log, LIMIT_S)
    assert "error" not in real, real["error"]
    found = ranks.compare(dry, real)
    assert found["order"], found["phases"]
    assert found["parameters"] == found["configuration"] == []
    assert found["lengths"][0] == found["lengths"][1]
    errors = {key: error for key, (error, _) in found["differences"].items() if key[1:] != ("generation", "peak")}
    assert len(errors) > 20
    assert {key: error for key, error in errors.items() if abs(error) > ranks.CLOSE} == {}
