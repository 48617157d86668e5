"""How many tiles DeepSpeed's tiled compute cuts a rank's tokens in, and which models it is for."""

from __future__ import annotations

from typing import NamedTuple

from .models.model_shape import ModelShape
from .phrase import phrase
from .plan import Plan
from .workload import Workload

TILED_MODEL_TYPES = frozenset(
    ["gemma", "llama", "mistral", "olmo", "olmo2", "phi3", "qwen2", "qwen3", "smollm3"],
)
"""`model_type`s whose feed-forward is a module of class "...MLP" without dropout, and whose logits are what `lm_head`
gives (transformers 5.23)."""

TILE_OF_LOGITS_BYTES = 1 << 30
"""The fp32 logits of a tile, as ArcticTraining's trainer of ALST cuts them (sft_trainer.py, slice_size_in_gb)."""


def mlp_tiles(model: ModelShape, workload: Workload) -> int:
    """ceil(S / H), as in DeepSpeed's example of TiledMLP: a tile has at most as many tokens as a weight has columns."""
    return -(-workload.seq_len // model.hidden_size)


def loss_tiles(model: ModelShape, workload: Workload, micro_batch_size: int) -> int:
    """ceil(4 B S V / 1 GiB), at most one a token. `workload` is that of a rank."""
    logits = 4 * micro_batch_size * workload.seq_len * model.vocab_size
    return max(1, min(workload.seq_len, -(-logits // TILE_OF_LOGITS_BYTES)))


class Tiles(NamedTuple):
    """Tiles of a plan's feed-forwards and of its loss; 0 where they are not tiled."""

    mlp: int
    loss: int


def tiles_of(model: ModelShape, workload: Workload, plan: Plan) -> Tiles:
    """What `ds_configs.tiled_compute` is told."""
    rank = workload.of_rank(plan.sequence_parallel_size)
    return Tiles(
        mlp_tiles(model, rank) if workload.mlp == "tiled" else 0,
        loss_tiles(model, rank, plan.micro_batch_size) if workload.loss == "tiled" else 0,
    )


def untileable(model: ModelShape, workload: Workload) -> str | None:
    """Why feed-forward or loss cannot be tiled as the workload asks; None where they can, or need not."""
    if workload.mlp == "whole" and workload.loss != "tiled":
        return None
    if model.model_type not in TILED_MODEL_TYPES:
        return phrase("tiled compute does not know {model_type} models", model_type=model.model_type)
    if workload.loss == "tiled" and model.tied:
        # deepspeed 0.19.8 runtime/zero/stage3.py __reduce_and_partition_ipg_grads asserts that it comes once
        return phrase("tiles and embedding would each reduce the gradient of the head, which is tied to the embedding")
    if workload.mlp == "tiled" and workload.lora_dropout and workload.method != "full":
        return phrase("a tile's second forward pass would draw another dropout than its first")
    return None
