"""What fixed segments hold for batches of varying length: `EARLIER_BATCHES` of `estimators.memory.device_overhead`.

    python -m benchmarks.dry_run.varying_lengths [MODEL] [--seq-len 2048] [--steps 200]

First the expected sum of the batches that were the longest before the longest one, over that one, of Alpaca's samples.
Then a step of LoRA on one GPU is recorded at two lengths. Every request is a line through its two sizes, so that steps
of uniformly random lengths are replayed through the caching allocator, with fixed and with expandable segments, against
steps of the longest alone. Uniform lengths have twice as many successive maxima's tokens as Alpaca's.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ds_advise.advisor.advise import build_question, strategy_candidate
from ds_advise.advisor.question.run import build_run
from ds_advise.probes.dry_run import models, training, worker
from ds_advise.probes.dry_run.run import request_for
from ds_advise.probes.recording.allocator import CachingAllocator
from ds_advise.probes.recording.phases import PhaseRecorder

from ..accuracy.whole_runs import alpaca

_GIB = 2**30
_LEAST_BYTES = 20 << 20
"""Smaller requests share segments, and are left out: a replay takes a fiftieth of the time."""


class Step(NamedTuple):
    """What one training step allocates."""

    kept: list[int]
    """Sizes of what was there before, and stays."""
    events: list[tuple[int, float, float, int] | tuple[int]]
    """Key, bytes of no token and bytes a token, stream; a free has the key alone."""


def earlier_batches(lengths: Sequence[tuple[int, int]], batches: int) -> float:
    """Expected sum of the successive maxima of random batches of one sample, without the last, over it.

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


def recorded(model: str, seq_len: int) -> Step:
    """A step of LoRA on one GPU, whose second and third steps have samples of half the length and of the whole."""
    question = build_question(model, gpus="1xA100-80GB", method="lora", micro_batch=1, seq_len=seq_len, offline=True)
    run = build_run(question, strategy_candidate(question, "ddp").estimate.plan, offline=True)
    recorders: list[PhaseRecorder] = []
    make, build, train = worker._recorder, models.from_config, training.run
    lengths = iter([seq_len, seq_len // 2, seq_len])

    def recorder(on_phase: Callable[[str], object]) -> PhaseRecorder:
        recorders.append(make(on_phase))
        return recorders[-1]

    def built(*arguments: Any, **options: Any) -> models.TrainableModel:
        subject = build(*arguments, **options)

        def batch(size: int) -> dict[str, Any]:
            tokens = next(lengths)
            return {name: values[:, :tokens].clone() for name, values in subject.make_batch(size).items()}

        return replace(subject, make_batch=batch)

    def trained(*arguments: Any, **_: Any) -> Any:
        return train(*arguments)  # all steps, though none repeats the one before

    worker._recorder, models.from_config, training.run = recorder, built, trained
    answer = worker.run_request(request_for(run, iterations=3))
    if "error" in answer:
        raise RuntimeError(answer["traceback"])
    return _step(recorders[0], seq_len)


def _step(recorder: PhaseRecorder, seq_len: int) -> Step:
    starts = {phase.iteration: phase.first_event for phase in reversed(recorder.recorded)}
    lives = [life for life in recorder.ledger.storages if life.device == "gpu"]
    half, whole = ([life for life in lives if starts[n] < life.born <= starts.get(n + 1, life.born)] for n in (2, 3))
    kept = [life.size_bytes for life in lives if life.born <= starts[3] and life.died < 0]
    events: list[tuple[int, tuple[int, float, float, int] | tuple[int]]] = []
    for key, (short, long) in enumerate(zip(half, whole, strict=True)):
        if long.died < 0 or long.size_bytes < _LEAST_BYTES:
            continue
        per_token = (long.size_bytes - short.size_bytes) / (seq_len - seq_len // 2)
        events.append((long.born, (key, long.size_bytes - per_token * seq_len, per_token, long.stream)))
        events.append((long.died, (key,)))
    return Step(kept, [event for _, event in sorted(events)])


def reserved_bytes(step: Step, lengths: Iterable[int], *, expandable: bool) -> int:
    """What the allocator holds after steps of these lengths."""
    allocator = CachingAllocator(expandable_segments=expandable)
    for key, size in enumerate(step.kept):
        allocator.allocate(-1 - key, size)
    for tokens in lengths:
        for event in step.events:
            if len(event) == 1:
                allocator.free(event[0])
            else:
                key, fixed, per_token, stream = event
                allocator.allocate(key, round(fixed + per_token * tokens), stream)
    return allocator.reserved_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default="Qwen2.5-7B")
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=200)
    given = parser.parse_args()
    print("Alpaca's longest batches before the longest, over it, by batches and the share that a cap cuts off")
    samples = sorted((each.tokens, each.samples) for each in alpaca(2048, scaled=False))
    for share in (0.0, 0.01, 0.02, 0.05):
        row = (f"{earlier_batches(_cut(samples, share), batches):.2f}" for batches in (20, 100, 1000, 10000))
        print(f"  {share:4.0%}", *row)
    step = recorded(given.model, given.seq_len)
    for expandable in (True, False):
        longest = reserved_bytes(step, [given.seq_len] * 2, expandable=expandable)
        found = []
        for seed in range(9):
            drawn = random.Random(seed)
            lengths = [drawn.randint(16, given.seq_len) for _ in range(given.steps)]
            found.append(reserved_bytes(step, lengths, expandable=expandable))
        each = " ".join(f"{(size - longest) / _GIB:.1f}" for size in sorted(found))
        print(f"expandable {expandable}: the longest alone {longest / _GIB:.1f} GiB; random lengths more by {each}")


def _cut(lengths: Sequence[tuple[int, int]], share: float) -> list[tuple[int, int]]:
    """With this share of the samples cut off at one length."""
    total, seen = sum(samples for _, samples in lengths), 0
    for at, (tokens, samples) in enumerate(lengths):
        seen += samples
        if seen >= (1 - share) * total:
            return [*lengths[:at], (tokens, sum(rest for _, rest in lengths[at:]))]
    return list(lengths)


if __name__ == "__main__":
    main()
