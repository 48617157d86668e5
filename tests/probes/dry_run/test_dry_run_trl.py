"""The dry run of preferences and reward models counts the bytes that TRL's own trainers allocate on two ranks."""

from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from ds_advise.advisor.question.model_source import model_shape
from ds_advise.estimators.objectives import OBJECTIVES, trained_model
from ds_advise.estimators.rollouts import Rollouts
from ds_advise.probes.run import Request
from packaging.version import Version

from .test_dry_run_truth import Case, answers, request

pytest.importorskip("trl")

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


def asked(objective: str, case: Case, folder: Path) -> tuple[Request, Request, str]:
    name, _, more = objective.partition(" ")
    plain = request(case, folder)
    rollouts = OBJECTIVES[name].rollouts  # type: ignore[index]
    workload = replace(
        plain.run.workload,
        objective=name,  # type: ignore[arg-type]
        precompute_ref_log_probs=more == "precomputed",
        rollouts=rollouts and _rollouts(rollouts, name, with_reference=bool(more)),
        framework="trl",
        modules_to_save=("score",) if name == "reward" and case.method == "lora" else (),
    )
    shape = model_shape(plain.run.description or {}, name=case.model)
    config = {**plain.run.config, "bf16": {"enabled": "auto"}}  # without it zero.Init makes fp32 weights
    shape = trained_model(shape, workload.objective)
    made = replace(plain, run=replace(plain.run, config=config, workload=workload, shape=shape))
    if name == "ppo":  # the script makes the optimizer; two steps on each of two generations
        del config["optimizer"]
        made = replace(made, iterations=4)
    return made, made, "gloo"


def _rollouts(rollouts: Rollouts, name: str, *, with_reference: bool) -> Rollouts:
    if name == "ppo":
        return replace(rollouts, max_completion_length=64, num_iterations=2)
    return replace(rollouts, num_generations=2, max_completion_length=64, beta=0.1 * with_reference)


def errors(answer: dict[str, Any]) -> dict[tuple[int, str], float]:
    """By iteration and phase: the peak of the dry run's tensors over that of TRL's, less 1. A phase of several passes
    (scoring by the policy, then by the reference) is the largest of them."""
    dry = {(phase["iteration"], phase["phase"]): phase["total_peak_bytes"] for phase in answer["dry"]["phases"]}
    last = max(iteration for iteration, _ in dry)
    real: dict[tuple[int, str], int] = {}
    for phase in answer["real"]["phases"]:
        key = (phase["iteration"], phase["phase"])
        if phase["iteration"]:  # it loads on the host
            real[key] = max(real.get(key, 0), phase["total_peak_bytes"])
    return {key: dry[min(key[0], last), key[1]] / size - 1 for key, size in real.items()}


@pytest.mark.slow
@pytest.mark.parametrize(("objective", "case"), CASES, ids=str)
def test_the_dry_run_counts_what_trl_allocates(objective: str, case: Case, tmp_path: Path) -> None:
    """The peak of every phase within 0.5 %."""
    (answer,) = answers([asked(objective, case, tmp_path)], tmp_path)
    assert "error" not in answer, answer["error"]
    assert {phase: error for phase, error in errors(answer).items() if abs(error) > 0.005} == {}
