"""The evaluation loop of transformers' Trainer on the engine of a run (`estimators.memory.evaluation`)."""

from __future__ import annotations

from typing import Any

import torch

from ..run import Run
from .models import TrainableModel


def evaluate(engine: Any, subject: TrainableModel, run: Run) -> None:
    """Forward passes without gradients; for metrics the logits of all ranks, gathered and put together batch by batch.
    Nothing is generated."""
    from transformers.trainer_pt_utils import EvalLoopContainer

    workload, kept = run.workload, EvalLoopContainer(padding_index=-100)
    gathered = None
    engine.eval()
    for _ in range(workload.eval_logits or 1):
        logits = _prediction_step(engine, subject, workload.eval_batch or 1, keeps=workload.eval_logits is not None)
        if logits is not None:
            gathered = None
            gathered = torch.empty(run.cluster.world_size * logits.numel(), dtype=logits.dtype, device=logits.device)
            torch.distributed.all_gather_into_tensor(gathered, logits)
            gathered = gathered.view(-1, *logits.shape[1:])
            del logits
            kept.add(gathered)
    engine.train()


@torch.no_grad()
def _prediction_step(engine: Any, subject: TrainableModel, samples: int, *, keeps: bool) -> Any:
    """The logits, None where metrics do not get them."""
    batch = subject.make_batch(samples)
    if not keeps:
        subject.loss_of(engine, batch, None)
        return None
    output = engine(**batch)
    subject.loss(output, batch)
    return output.logits
