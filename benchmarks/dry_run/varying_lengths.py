"""`EARLIER_BATCHES` of `estimators.memory.device_overhead`, for batches of varying length in fixed segments.

    python -m benchmarks.dry_run.varying_lengths

The expected sum of the batches that were the longest before the longest one, relative to that one, of Alpaca's samples.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..accuracy.whole_runs import alpaca


def earlier_batches(lengths: Sequence[tuple[int, int]], batches: int) -> float:
    """Expected sum of the successive maxima of random batches of one sample, without the last, over the last.

    lengths: (tokens, samples), ascending.
    """
    total = sum(samples for _, samples in lengths)
    below, maxima, longest = 0, 0.0, 0.0
    for tokens, samples in lengths:
        shorter, up_to = below / total, (below + samples) / total
        maxima += tokens * samples / total * (1 - shorter**batches) / (1 - shorter)
        longest += tokens * (up_to**batches - shorter**batches)
        below += samples
    return maxima / longest - 1


def capped(lengths: Sequence[tuple[int, int]], share: float) -> list[tuple[int, int]]:
    """The lengths with this share of the samples cut off at one length."""
    total, seen = sum(samples for _, samples in lengths), 0
    for at, (tokens, samples) in enumerate(lengths):
        seen += samples
        if seen >= (1 - share) * total:
            return [*lengths[:at], (tokens, sum(rest for _, rest in lengths[at:]))]
    return list(lengths)


def main() -> None:
    lengths = sorted((each.tokens, each.samples) for each in alpaca(2048, scaled=False))
    counts = (20, 100, 1000, 10000)
    print("cut off " + "".join(f"{count:>8} batches" for count in counts))
    for share in (0.0, 0.01, 0.02, 0.05):
        row = (earlier_batches(capped(lengths, share), batches) for batches in counts)
        print(f"{share:7.0%} " + "".join(f"{found:16.2f}" for found in row))


if __name__ == "__main__":
    main()
