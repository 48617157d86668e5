"""What long sequences need of the model: tiled compute, and a sample that several ranks share, as accelerate and the
Trainer do for `sp_size`, without them.

accelerate registers Ulysses' attention with transformers and gives DeepSpeed its groups
(`Accelerator._prepare_deepspeed`); its loader hands each rank its own part of the tokens, with their positions and
shifted labels (`UlyssesSPDataLoaderAdapter`); the Trainer averages the parts' losses (`deepspeed_sp_compute_loss`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ...ds_configs.tiled_compute import tile_feed_forward, tile_loss
from ...estimators.memory.activations.loss import loss_tiles, mlp_tiles
from ...estimators.models.families import shape_from_config
from ..recording.request import Request
from .models import TrainableModel


def prepared(subject: TrainableModel, request: Request, config: dict[str, Any], device: str) -> TrainableModel:
    """The model with feed-forward and loss in tiles, and as each of the ranks that share a sample trains it, with the
    groups for DeepSpeed; a module of the user's own as it is, for what its ranks share is its own business.

    Raises ValueError, as DeepSpeed words it, for heads or an attention kernel that cannot be shared.
    """
    ranks = request.sequence_parallel_size
    if request.model is not None:
        _tile(subject.model, request, config)
    if ranks == 1 or request.model is None:
        return subject
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

    model: Any = subject.model
    groups = UlyssesSPAttentionHF.register_with_transformers(
        model,
        core_attn_implementation=model.config._attn_implementation,
        sequence_parallel_size=ranks,
        micro_batch_size=_micro_batch_size(config, request),
        seq_length_is_variable=True,
    )
    group, rank = groups.get_sequence_parallel_group(), groups.get_sequence_parallel_rank()
    tokens = request.workload.seq_len // ranks

    def make_batch(batch: int) -> dict[str, torch.Tensor]:
        positions = torch.arange(rank * tokens, (rank + 1) * tokens, device=device)
        ids = torch.zeros((batch, tokens), dtype=torch.long, device=device)
        labels = torch.zeros_like(ids)
        return {
            "input_ids": ids,
            "position_ids": positions.expand(batch, tokens).contiguous(),
            "labels": labels,
            "shift_labels": labels,
        }

    def loss(output: Any, _batch: Any) -> Any:
        """The mean over the ranks, which all have as many labels. Its derivative by a rank's own loss, summed over the
        ranks' copies of it, is 1; torch's differentiable all-gather finds the same, but not over gloo's subgroups."""
        own = output.loss
        parts = [torch.empty_like(own) for _ in range(ranks)]
        torch.distributed.all_gather(parts, own.detach(), group=group)
        return own + (torch.stack(parts).mean() - own).detach()

    return replace(subject, make_batch=make_batch, loss=loss, groups=groups)


def _tile(model: Any, request: Request, config: dict[str, Any]) -> None:
    """Feed-forward and loss in tiles, as the printed lines switch them on."""
    workload = request.workload.of_rank(request.sequence_parallel_size)
    if workload.mlp == "whole" and workload.loss != "tiled":
        return
    shape = shape_from_config(request.model or {}, name="")
    if workload.mlp == "tiled":
        tile_feed_forward(model, mlp_tiles(shape, workload))
    if workload.loss == "tiled":
        tile_loss(model, loss_tiles(shape, workload, _micro_batch_size(config, request)))


def _micro_batch_size(config: dict[str, Any], request: Request) -> int:
    """What DeepSpeed will find it to be; Ulysses wants to know it before."""
    given = config.get("train_micro_batch_size_per_gpu")
    if given is not None:
        return int(given)
    replicas = request.world_size // request.sequence_parallel_size
    total, steps = config.get("train_batch_size", replicas), config.get("gradient_accumulation_steps", 1)
    return int(total) // int(steps) // replicas
