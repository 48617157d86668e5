"""Loops over chunks or tokens, whose operations a trace repeats: those of one iteration stand for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from .trace import Step, UnrecordableError

LONGEST_BODY = 4_000
"""Operations of one iteration."""

Group = Sequence[Step]
"""One operation in all iterations of the loops around it; one step outside of loops."""


@dataclass(frozen=True)
class _Loop:
    """Neighbouring repetitions of the same operations."""

    iterations: Sequence[Sequence[_Token]]


_Token = int | _Loop
"""The place of a step, or a loop."""


def groups(traces: Sequence[Sequence[Step]]) -> list[list[Group]]:
    """The steps of several traces of one module, grouped so that all traces have the same groups.

    Without a difference between the traces each step is a group. Otherwise repetitions are found by the names of the
    operations, the shortest first; those whose number is the same in all traces are no loops. Releases of memory
    (`hold`) are left out then. Raises UnrecordableError where the traces differ in anything else.
    """
    kinds = [[kind(step) for step in steps] for steps in traces]
    if all(each == kinds[0] for each in kinds):
        return [[[step] for step in steps] for steps in traces]
    identity: dict[object, int] = {}
    forests = []
    for steps in traces:
        places = [place for place, step in enumerate(steps) if step.kind != "hold"]
        names = [identity.setdefault((steps[place].kind, steps[place].name), len(identity)) for place in places]
        forests.append(_compressed(list(places), names, identity))
    if any(names != forests[0][1] for _, names in forests):
        raise UnrecordableError("its operations depend on the sequence length in another way than loops do")
    aligned = _aligned([[tokens] for tokens, _ in forests])
    return [
        [[steps[place] for place in group] for group in own]
        for steps, own in zip(traces, zip(*aligned, strict=True), strict=True)
    ]


def kind(step: Step) -> tuple[str, str, int]:
    """What two steps have in common that run the same operation."""
    return step.kind, step.name, len(step.inputs)


def _compressed(tokens: list[_Token], names: list[int], identity: dict[object, int]) -> tuple[list[_Token], list[int]]:
    """Repetitions as loops, from the shortest to the longest, and within longer ones again."""
    period = 1
    while period <= min(len(names) // 2, LONGEST_BODY):
        array = torch.tensor(names)
        same = array[:-period] == array[period:]
        matches = torch.nn.functional.pad(same.cumsum(0), (1, 0))
        if not (matches[period:] - matches[:-period] == period).any():
            period += 1
            continue
        tokens, names = _with_loops(tokens, names, period, same.tolist(), identity)
        period = 1
    return tokens, names


def _with_loops(
    tokens: list[_Token], names: list[int], period: int, same: list[bool], identity: dict[object, int]
) -> tuple[list[_Token], list[int]]:
    """One token for all repetitions of this period. same: whether a name is that of one period later."""
    made: list[_Token] = []
    called: list[int] = []
    begin = place = 0
    while place < len(same):
        end = next((end for end in range(place, len(same)) if not same[end]), len(same))
        count = (end - place) // period + 1
        if count == 1:
            place = end + 1
            continue
        made, called = made + tokens[begin:place], called + names[begin:place]
        made.append(_Loop([tokens[place + i * period : place + (i + 1) * period] for i in range(count)]))
        called.append(identity.setdefault(tuple(names[place : place + period]), len(identity)))
        begin = place = place + count * period
    return made + tokens[begin:], called + names[begin:]


def _aligned(traces: Sequence[Sequence[Sequence[_Token]]]) -> Iterator[list[list[int]]]:
    """For each operation its places in each trace. traces: for each trace the iterations of a sequence of tokens."""
    for place in range(len(traces[0][0])):
        column = [[iteration[place] for iteration in iterations] for iterations in traces]
        if not isinstance(column[0][0], _Loop):
            yield column  # type: ignore[misc]
            continue
        loops: list[list[_Loop]] = column  # type: ignore[assignment]
        counts = {len(loop.iterations) for own in loops for loop in own}
        if len(counts) == 1:  # no loop over the sequence
            for index in range(counts.pop()):
                yield from _aligned([[loop.iterations[index] for loop in own] for own in loops])
        else:
            yield from _aligned([[body for loop in own for body in loop.iterations] for own in loops])
