"""When a training that is not ours has been seen, and which of its phases are listed."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ds_advise.probes.recording.engine_phases import EngineObserver, TrainingEnded


class Recorder:
    """Phases with scripted memory. `traces`: what each optimizer step allocates; equal ones repeat."""

    def __init__(self, traces: Callable[[int], int]) -> None:
        self.traces, self.steps, self.joined = traces, list[int](), list[int]()
        self.phases: list[Any] = []
        self.parts = list[str]()
        self.live_bytes = 0
        self.begun: tuple[int, str] = (0, "")
        self.schedule = SimpleNamespace(complete_iteration=lambda: None, stop=lambda: self.joined.append(-1))

    def begin(self, iteration: int, name: str, part: str = "") -> None:
        self.begun = iteration, name
        self.parts.append(f"{name} {part}".strip())

    def end(self) -> None:
        iteration, name = self.begun
        self.phases.append(
            SimpleNamespace(iteration=iteration, phase=name, gpu_peak_bytes=self.live_bytes, gpu_live_bytes=0)
        )

    def join_micro_batches(self, first: int) -> None:
        self.joined.append(first)

    def repeats(self, longest_period: int) -> bool:
        self.steps.append(self.traces(len(self.steps) + 1))
        return any(
            len(self.steps) >= 2 * period and self.steps[-period:] == self.steps[-2 * period : -period]
            for period in range(1, longest_period + 1)
        )

    def sweep(self, *_: Any) -> None:
        """A step changes no owner here."""


class Engine:
    def __init__(self, observer: EngineObserver, accumulation: int = 1, configured: int = 0) -> None:
        self.module = torch.nn.Linear(1, 1)
        self.optimizer = None
        self.accumulation, self.micro_steps, self.global_steps = accumulation, 0, 0
        observer.engines.append(self)
        self.gradient_accumulation_steps = lambda: configured or accumulation
        self.forward = lambda: observer._forward(lambda _: None)(self)
        self.backward = lambda: observer._backward(lambda _: None)(self)
        self.step = lambda: observer._step(Engine.end_micro_step)(self)

    def end_micro_step(self) -> None:
        self.micro_steps += 1
        self.global_steps += self.micro_steps % self.accumulation == 0

    def train(self) -> None:
        self.forward()
        self.backward()
        self.step()


def observer_of(
    traces: Callable[[int], int] = lambda _: 0,
    *,
    last_step: int = 8,
    varies: bool = False,
    on_ignored: Callable[[], object] = lambda: None,
) -> EngineObserver:
    recorder: Any = Recorder(traces)
    return EngineObserver(recorder, last_step=last_step, varies=lambda: varies, on_ignored=on_ignored)


def steps_until_seen(observer: EngineObserver, *engines: Engine) -> int:
    """Optimizer steps, turn by turn, until the training was seen."""
    for number in range(1, 100):
        engines[(number - 1) % len(engines)].train()
        if observer.finished:
            return number
    raise AssertionError("it never ends")


@pytest.mark.parametrize(
    ("configured", "first"), [(2, ["micro batch 1 of 2", "micro batch 2 of 2"]), (1, ["", "micro batch 2"])]
)
def test_a_micro_batch_is_named_in_its_step(configured: int, first: list[str]) -> None:
    """Of a Trainer that accumulates, and whose configuration lacks the key, their number is known after a step."""
    observer = observer_of()
    engine = Engine(observer, accumulation=2, configured=configured)
    for _ in range(4):
        engine.train()
    recorder: Any = observer.recorder
    named = [part.removeprefix("forward").strip() for part in recorder.parts if part.startswith("forward")]
    assert named == [*first, "micro batch 1 of 2", "micro batch 2 of 2"]
    assert "backward micro batch 2 of 2" in recorder.parts and "step" in recorder.parts


@pytest.mark.parametrize(
    ("traces", "expected"),
    [
        (lambda _: 0, 3),
        (lambda number: min(number, 2), 3),
        (lambda number: min(number, 4), 5),
        (lambda number: min(number, 3) + number % 2, 6),
        (lambda number: max(0, 2 - number) + number % 4, 9),
    ],
    ids=["equal", "states are created first", "later", "two in turn", "four in turn"],
)
def test_a_training_is_seen_when_steps_repeat(traces: Callable[[int], int], expected: int) -> None:
    """Two equal steps are no repetition where the first of them creates the optimizer's states."""
    observer = observer_of(traces, last_step=50)
    assert steps_until_seen(observer, Engine(observer)) == expected
    assert observer.repeated and observer.steps == expected


def test_steps_that_never_repeat_end_at_the_last_one_of_each_engine() -> None:
    observer = observer_of(lambda number: number, last_step=5)
    assert steps_until_seen(observer, Engine(observer)) == 5 and not observer.repeated
    observer = observer_of(lambda number: number, last_step=5)
    assert steps_until_seen(observer, Engine(observer), Engine(observer)) == 10


@pytest.mark.parametrize(("accumulation", "expected"), [(1, 4), (2, 4), (4, 2), (16, 2)])
def test_batches_of_different_lengths_end_after_some(accumulation: int, expected: int) -> None:
    """Four optimizer steps, or eight micro batches in at least two of them."""
    observer = observer_of(lambda number: number, last_step=50, varies=True)
    engine = Engine(observer, accumulation)
    while not observer.finished:
        engine.train()
    assert observer.steps == expected and not observer.repeated


def test_micro_batches_of_a_step_are_joined() -> None:
    observer = observer_of(lambda number: number, last_step=2)
    engine = Engine(observer, accumulation=3)
    for _ in range(6):
        engine.train()
    recorder: Any = observer.recorder
    assert observer.finished and recorder.joined == [0, 9, -1]


def test_a_script_that_goes_on_is_ended() -> None:
    ignored: list[int] = []
    observer = observer_of(last_step=3, on_ignored=lambda: ignored.append(1))
    engine = Engine(observer)
    steps_until_seen(observer, engine)
    for _ in range(6):
        engine.train()
    ends = 0
    for _ in range(7):
        try:
            engine.train()
        except TrainingEnded:
            ends += 1
    assert (ends, ignored) == (7, [1]), "it catches everything: the process must end"
    assert not issubclass(TrainingEnded, Exception)
    observer.close()
    names = [(phase.iteration, phase.phase) for phase in observer.recorder.phases]
    assert names == [(number, name) for number in (1, 2, 3) for name in ("forward", "backward", "step")]


def test_steps_without_an_engine_are_counted() -> None:
    observer = observer_of()
    for _ in range(19):
        observer._count_plain_step()
    with pytest.raises(TrainingEnded):
        observer._count_plain_step()
    other = observer_of()
    Engine(other)
    for _ in range(30):
        other._count_plain_step()
    assert other.plain_steps == 0, "they are the engine's"


def test_a_pause_is_listed_where_it_allocates() -> None:
    observer = observer_of()
    recorder: Any = observer.recorder
    engine = Engine(observer)
    engine.train()
    recorder.live_bytes = 1 << 20
    engine.train()
    assert [phase.phase for phase in recorder.phases].count("between") == 0
    recorder.live_bytes = 1 << 30
    engine.forward()
    assert [(phase.iteration, phase.phase) for phase in recorder.phases].count((3, "between")) == 1


def test_evaluation_generation_and_scores_are_phases() -> None:
    observer = observer_of(lambda number: number)
    recorder: Any = observer.recorder
    recorder.live_bytes = 1 << 30
    engine = Engine(observer)
    with torch.no_grad(), observer.during("saving"):
        engine.forward()  # within another phase
    engine.train()
    with observer.during("generation"):
        engine.forward()
        with observer.during("saving"):
            engine.forward()
    with torch.no_grad():
        engine.forward()  # a model in training mode scores
    engine.train()
    engine.module.eval()
    with torch.no_grad():
        engine.forward()
    engine.module.train()
    engine.train()
    observer.close()
    listed = [phase.phase for phase in recorder.phases if phase.phase != "between"]
    step = ["forward", "backward", "step"]
    assert listed == ["saving", *step, "generation", "scoring", *step, "evaluation", *step]


def test_whether_the_script_trains_now() -> None:
    observer = observer_of()
    assert observer.is_training, "loaders may be asked before the first step"
    engine = Engine(observer)
    engine.train()
    assert observer.is_training
    with torch.no_grad():
        assert not observer.is_training
    with observer.during("generation"):
        assert not observer.is_training
    engine.module.eval()
    assert not observer.is_training, "it was in training mode before"
    engine.train()
    assert observer.is_training and not observer.in_training_mode
