"""Feed-forward and loss of a transformers model in tiles of tokens, by DeepSpeed's own tiled compute.

A training script calls each function once: with `trainer.model` before `trainer.train()` (the Trainer installs Liger's
kernels when it is created), or with its own model before `deepspeed.initialize`. This module needs torch, transformers
and DeepSpeed, and no other module of this package. Source: deepspeed 0.19.8 runtime/sequence_parallel/ulysses_sp.py
(TiledMLP, sequence_tiled_compute).

Not covered: feed-forwards with dropout, because their second forward pass would draw another mask; batches of fewer
than (tiles - 1)^2 tokens, which may be cut into fewer tiles: DeepSpeed then never reduces the feed-forward's gradients.
"""

from __future__ import annotations

from types import MethodType
from typing import Any


def tile_feed_forward(model: Any, tiles: int) -> None:
    """Split the tokens of every MLP of the model into tiles, in the forward and the backward pass."""
    from deepspeed.runtime.sequence_parallel.ulysses_sp import TiledMLP

    def tiled(module: Any) -> Any:
        whole = module.forward
        return lambda x: TiledMLP.apply(lambda _, tile: whole(tile), module, x, tiles, list(module.parameters()))

    for module in model.modules():
        if type(module).__name__.endswith("MLP"):
            module.forward = tiled(module)


def tile_loss(model: Any, tiles: int) -> None:
    """Make the causal language model in `model` compute its loss without materializing all logits.

    The loss is that of transformers' `ForCausalLMLoss`: the sum over the labels other than -100, divided by their
    number or by the Trainer's num_items_in_batch. DeepSpeed's TiledFusedLogitsLoss is not used: it computes the head's
    gradient in the forward pass, which is correct only for an unscaled loss; accumulation and fp16 scale it.
    """
    for module in model.modules():
        if type(module).__module__.startswith("transformers.models") and hasattr(module, "lm_head"):
            module.forward = MethodType(_tiled_forward(tiles), module)


def _tiled_forward(tiles: int) -> Any:
    import torch
    from deepspeed.runtime.sequence_parallel.ulysses_sp import sequence_tiled_compute
    from transformers.modeling_outputs import CausalLMOutputWithPast

    def summed_loss(head: Any, states: Any, targets: Any) -> Any:
        logits = head(states).float()
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")

    def forward(
        self: Any,
        input_ids: Any = None,
        labels: Any = None,
        shift_labels: Any = None,
        num_items_in_batch: Any = None,
        **kwargs: Any,
    ) -> Any:
        states = self.model(input_ids=input_ids, **kwargs).last_hidden_state
        if shift_labels is None:
            shift_labels = torch.nn.functional.pad(labels, (0, 1), value=-100)[:, 1:]
        total = sequence_tiled_compute(
            fn=summed_loss,
            seqlen=states.shape[1],
            shards=tiles,
            kwargs_to_shard={"states": states, "targets": shift_labels},
            kwargs_to_pass={"head": self.lm_head},
            grad_requiring_tensor_key="states",
            compute_params=list(self.lm_head.parameters()),
            output_unshard_dimension=0,
            output_reduction="sum",
        )
        count = (shift_labels != -100).sum() if num_items_in_batch is None else num_items_in_batch
        return CausalLMOutputWithPast(loss=total / count)

    return forward
