"""A small convolutional network for CIFAR-10, as the user of a dry run hands it in: model, batch and loss."""

import torch
from torch import nn
from torch.nn import functional as F


class ConvNet(nn.Module):
    """315,722 parameters; takes the weights' dtype, whatever the batch has."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 32, 3, 1), nn.Conv2d(32, 64, 3, 1)
        self.fc1, self.fc2 = nn.Linear(64 * 6 * 6, 128), nn.Linear(128, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if next(self.parameters()).dtype != images.dtype:
            images = images.to(next(self.parameters()).dtype)
        x = F.max_pool2d(F.relu(self.conv1(images)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.view(-1, 64 * 6 * 6))))


def make_batch(micro_batch_size: int, seq_len: int) -> dict[str, torch.Tensor]:  # noqa: ARG001  # images have no length
    return {"images": torch.zeros(micro_batch_size, 3, 32, 32)}


def loss_fn(output: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return F.cross_entropy(output, torch.zeros(len(batch["images"]), dtype=torch.long, device=output.device))
