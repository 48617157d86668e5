"""A CPU's single-thread score: seconds of a small fixed piece of what a training step's host thread does.

One round calls three modules in Python, runs a dozen eager operations on a few numbers with autograd (a norm, a
product, a sum, views), and goes backward through them. Nothing in it depends on memory bandwidth, on the number of
cores, or on DeepSpeed and transformers, so that scores of different machines differ by what a core does with Python and
torch's dispatch alone.
"""

from __future__ import annotations

import time

import torch

ROUNDS = 100
"""The score is the seconds of so many rounds: a few hundredths of a second."""


class _Scale(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        squares = values.pow(2).mean(-1, keepdim=True)
        return self.weight * (values * torch.rsqrt(squares + 1e-6))


class _Product(torch.nn.Module):
    """No `nn.Linear`: stage 3 puts a function of its own in place of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8, 8))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = values @ self.weight
        return product


class _Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.product = _Scale(), _Product()

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = self.product(self.norm(values))
        return values + product.view(1, 2, 2, 4).transpose(1, 2).reshape(1, 2, 8)


class HostScore:
    """The workload, made once."""

    def __init__(self) -> None:
        self._layer, self._input = _Layer(), torch.ones(1, 2, 8)
        self.measure()

    def measure(self) -> float:
        """Seconds of the rounds on one core; time in which other programs had it is not counted."""
        started = time.thread_time()
        for _ in range(ROUNDS):
            self._layer(self._input).sum().backward()
        return time.thread_time() - started
