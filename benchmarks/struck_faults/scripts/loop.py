"""Train a small model with the DeepSpeed engine in a plain loop, on the CPU."""

import argparse
from datetime import timedelta
from typing import Any

import deepspeed
import torch
from torch.nn.functional import cross_entropy

VOCABULARY, WIDTH, LENGTH = 32, 16, 8


class Samples(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, VOCABULARY, (LENGTH,), generator=torch.Generator().manual_seed(index))
        return {"tokens": tokens, "labels": tokens}


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.hidden = torch.nn.Linear(WIDTH, WIDTH)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> Any:
        hidden = torch.relu(self.hidden(self.embedding(tokens)))
        return cross_entropy(self.head(hidden).flatten(0, 1), labels.flatten())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--save")
    parser.add_argument("--resume")
    args = deepspeed.add_config_arguments(parser).parse_args()
    deepspeed.init_distributed("gloo", timeout=timedelta(seconds=60))
    torch.manual_seed(0)
    rank = torch.distributed.get_rank()
    model = Model()
    engine, _, loader, _ = deepspeed.initialize(
        args=args, model=model, model_parameters=model.parameters(), training_data=Samples()
    )
    if args.resume:
        path, _ = engine.load_checkpoint(args.resume)
        print(f"resumed from {path}")
    for step, batch in zip(range(args.steps), loader, strict=False):
        loss = engine(**batch)
        engine.backward(loss)
        engine.step()
        print(f"step {step + 1}, loss: {loss.item():.4f}") if rank == 0 else None
    if args.save:
        engine.save_checkpoint(args.save)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
