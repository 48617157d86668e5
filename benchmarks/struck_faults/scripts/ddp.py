"""Train a small model with DistributedDataParallel in a plain loop, on the CPU."""

from datetime import timedelta
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

BATCH, WIDTH = 2, 8


class Samples(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(index))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, WIDTH)
        self.second = torch.nn.Linear(WIDTH, 1)

    def forward(self, batch: torch.Tensor) -> Any:
        return self.second(self.first(batch).relu()).square().mean()


def main() -> None:
    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank = torch.distributed.get_rank()
    samples = Samples()
    loader = DataLoader(samples, batch_size=BATCH, sampler=DistributedSampler(samples))
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, batch in enumerate(loader):
        loss = model(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step + 1}, loss: {loss.item():.4f}") if rank == 0 else None
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
