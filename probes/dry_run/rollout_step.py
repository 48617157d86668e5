"""What GRPO's and RLOO's trainers do before the training of a step: stage 3's gather for `generate`, and scoring.

Nothing is generated, which needs values: completions are zeros, as long as they may be.
"""

from __future__ import annotations

import importlib
from contextlib import nullcontext
from typing import Any

import torch

from ...estimators.rollouts import Rollouts
from ...estimators.workload import Workload
from ..recording.phases import PhaseRecorder


def completions(workload: Workload, count: int, device: str) -> dict[str, Any]:
    """A micro batch as the trainers keep it, each completion of full length (trl 1.16 trainer/grpo_trainer.py
    `_generate_and_score_completions`, trainer/rloo_trainer.py)."""
    rollouts = workload.rollouts
    assert rollouts is not None
    lengths = {"prompt": workload.seq_len - workload.scored_len, "completion": workload.scored_len}
    batch: dict[str, Any] = {}
    for name, length in lengths.items():
        batch[f"{name}_ids"] = torch.zeros((count, length), dtype=torch.long, device=device)
        batch[f"{name}_mask"] = torch.ones((count, length), dtype=torch.long, device=device)
    per_token = torch.zeros((count, workload.scored_len), device=device)
    batch |= {"advantages": per_token[:, 0].clone(), "num_items_in_batch": per_token.sum()}
    if rollouts.scores_policy:
        batch["old_logps"] = per_token[:, 0].clone()
    elif rollouts.policy_passes(1):
        batch["old_per_token_logps"] = per_token.clone()
    if rollouts.beta:
        batch["ref_per_token_logps"] = per_token.clone()
    return batch


def before_training(
    trainer: Any, workload: Workload, engine: Any, recorder: PhaseRecorder, *, iteration: int, micro: int, steps: int
) -> None:
    """The phases "rollout" and "scoring" of an iteration, where there are any. steps: gradient accumulation steps."""
    rollouts = workload.rollouts
    assert rollouts is not None
    if _gathers(rollouts, engine):
        utils = importlib.import_module("trl.models.utils")
        deepspeed = importlib.import_module("deepspeed")
        with recorder.phase(iteration, "rollout"), deepspeed.zero.GatheredParameters(list(engine.parameters())):
            utils.remove_hooks(engine)
            utils.add_hooks(engine)
    models = [(trainer.model, nullcontext())] * rollouts.policy_passes(steps)
    if rollouts.beta:
        without = nullcontext() if trainer.ref_model is not None else trainer.model.disable_adapter()
        models.append((trainer.model if trainer.ref_model is None else trainer.ref_model, without))
    if not models:
        return
    count = micro * rollouts.micro_batches(steps)
    with recorder.phase(iteration, "scoring"), torch.no_grad():
        batch = completions(workload, count, str(trainer.accelerator.device))
        ids, mask = (
            torch.cat([batch[f"prompt_{name}"], batch[f"completion_{name}"]], dim=1) for name in ("ids", "mask")
        )
        for model, context in models:
            with context:
                trainer._get_per_token_logps_and_entropies(model, ids, mask, workload.scored_len, batch_size=micro)


def _gathers(rollouts: Rollouts, engine: Any) -> bool:
    gathers = rollouts.rollout == "generate" and rollouts.ds3_gather_for_generation
    return gathers and engine.zero_optimization_stage() == 3
