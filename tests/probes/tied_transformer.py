"""A module of one's own: the test records it from this file, in a process that has no tests on its path."""

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Transformer(torch.nn.Module):
    """Tied weights, attention, and checkpointing with timm's method."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(500, 64)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True) for _ in range(3)
        )
        self.head = torch.nn.Linear(64, 500, bias=False)
        self.head.weight = self.embedding.weight
        self.is_checkpointed = False

    def set_grad_checkpointing(self) -> None:
        self.is_checkpointed = True

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        for layer in self.layers:
            if self.is_checkpointed and torch.is_grad_enabled():
                hidden = checkpoint(layer, hidden, use_reentrant=False)
            else:
                hidden = layer(hidden)
        return self.head(hidden)


def loss_fn(output: torch.Tensor, batch: tuple[torch.Tensor]) -> torch.Tensor:
    return F.cross_entropy(output.flatten(0, 1), batch[0].flatten())
