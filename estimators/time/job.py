"""How much is trained: samples or tokens, how often, and how long the samples are."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, lcm, sqrt
from typing import NamedTuple

from ..plan import Plan

PADDED_TO = 8
"""A batch's length is a multiple of this, in which tensor cores work (NVIDIA, Deep Learning Performance Guide)."""


class SamplesOfLength(NamedTuple):
    """So many samples of so many tokens each."""

    tokens: int
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a user wants trained, whatever the plan: `samples`, each `epochs` times, or `tokens` once."""

    samples: int | None = None
    """Samples of one epoch, as the model sees them: after packing and what the sequence length cuts off."""
    tokens: int | None = None
    """Tokens in all, in samples that fill the sequence length, where `samples` is None."""
    epochs: float = 1.0
    lengths: tuple[SamplesOfLength, ...] = ()
    """How many of `samples` have how many tokens, by rising length; empty: each fills the sequence length."""
    evaluation_samples: int = 0
    """Samples that are evaluated whenever a checkpoint is written."""
    evaluation_batch: int | None = None
    """Samples that a GPU evaluates at a time; None: as many as it trains on."""

    def __post_init__(self) -> None:
        assert (self.samples is None) != (self.tokens is None), "a job is so many samples or so many tokens"
        assert not self.lengths or sum(each.samples for each in self.lengths) == self.samples

    def samples_in_all(self, seq_len: int) -> float:
        """Samples that the optimizer sees, those of every epoch."""
        if self.samples is not None:
            return self.epochs * self.samples
        assert self.tokens is not None
        return self.epochs * self.tokens / seq_len

    def tokens_in_all(self, seq_len: int) -> float:
        """Tokens that the optimizer sees, padding not counted."""
        return self.samples_in_all(seq_len) * self.mean_len(seq_len)

    def mean_len(self, seq_len: int) -> float:
        """Tokens of the average sample, padding not counted."""
        if not self.lengths:
            return seq_len
        return sum(tokens * samples for tokens, samples in self.lengths) / sum(each.samples for each in self.lengths)

    def steps(self, samples_per_step: int, seq_len: int) -> int:
        """Optimizer steps; the last one may see fewer samples."""
        return max(1, ceil(self.samples_in_all(seq_len) / samples_per_step))

    def padded_len(self, seq_len: int, draws: int, multiple: int = PADDED_TO) -> float:
        """The expected length of the longest of `draws` samples, to which the others are padded.

            sum over lengths l of l (F(l)^draws - F(below l)^draws)

        with F the share of samples up to a length, each rounded up to a multiple and at most `seq_len`. The samples of
        a batch are drawn at random, as Trainer's sampler does; one that groups samples by length pads less.
        """
        return self._longest(seq_len, draws, multiple)[0]

    def waited_len(self, seq_len: int, plan: Plan, ranks: int) -> float:
        """The expected length whose time a micro batch takes: of the longest sample that is waited for.

        Where ranks exchange something in each micro batch (stages 2 and 3, or no accumulation) all of them wait for the
        longest sample of any rank, `padded_len` of all their samples. Otherwise they wait for the rank whose n micro
        batches are longest together:

            mean + deviation / sqrt(n) x z,  z = inverse normal of (N - 3/8) / (N + 1/4)

        of one rank's micro batch, with the expected largest of N normal values (G. Blom, 1958), at most the former.
        """
        replicas, multiple = ranks // plan.ranks_per_sample, length_multiple(plan)
        longest = self.padded_len(seq_len, plan.micro_batch_size * replicas, multiple)
        if replicas == 1 or plan.zero_stage >= 2 or plan.gradient_accumulation_steps == 1:
            return longest
        mean, variance = self._longest(seq_len, plan.micro_batch_size, multiple)
        from statistics import NormalDist  # here: it takes milliseconds that most answers do not need

        slowest = NormalDist().inv_cdf((replicas - 0.375) / (replicas + 0.25))
        return min(longest, mean + sqrt(variance / plan.gradient_accumulation_steps) * slowest)

    def _longest(self, seq_len: int, draws: int, multiple: int) -> tuple[float, float]:
        """Mean and variance of the longest of `draws` samples, rounded up."""
        if not self.lengths:
            return seq_len, 0.0
        total, seen, below, mean, square = sum(each.samples for each in self.lengths), 0, 0.0, 0.0, 0.0
        for tokens, samples in self.lengths:
            seen += samples
            upto = (seen / total) ** draws
            length = min(-(-tokens // multiple) * multiple, seq_len)
            mean += length * (upto - below)
            square += length * length * (upto - below)
            below = upto
        return mean, max(0.0, square - mean * mean)


def length_multiple(plan: Plan) -> int:
    """What the length of a batch is a multiple of: `PADDED_TO`, and the ranks that share a sample."""
    return lcm(PADDED_TO, plan.sequence_parallel_size)
