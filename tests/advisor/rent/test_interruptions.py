"""Interruptions against a simulation, and at their limits."""

from __future__ import annotations

import random

import pytest
from ds_advise.advisor.rent.rent import interrupted_run

HOUR = 3600.0


def _simulated(work_s: float, write_s: float, restart_s: float, between_s: float, interval_s: float) -> float:
    """The mean paid seconds of runs whose machines are taken back at random times."""
    dice, runs, total = random.Random(1), 1500, 0.0
    for _ in range(runs):
        left, until = work_s, dice.expovariate(1 / between_s)
        while left > 0:
            piece = min(interval_s, left)
            needed = piece + write_s
            while until < needed:  # lost; start again, which may be interrupted too
                total += until
                needed, until = restart_s + piece + write_s, dice.expovariate(1 / between_s)
            total += needed
            until -= needed
            left -= piece
    return total / runs


@pytest.mark.parametrize("between_h", [1.0, 4.0, 24.0])
def test_the_paid_time_is_that_of_a_simulation(between_h: float) -> None:
    """Daly's formula lets each piece begin with a restart's share, which at long pieces is a little much."""
    work, write, restart, between = 10 * HOUR, 60.0, 400.0, between_h * HOUR
    run = interrupted_run(work, write_s=write, restart_s=restart, between_s=between)
    assert run is not None
    assert run.paid_s == pytest.approx(_simulated(work, write, restart, between, run.interval_s), rel=0.06)


def test_hardly_any_interruption_costs_only_the_checkpoints() -> None:
    run = interrupted_run(HOUR, write_s=1.0, restart_s=60.0, between_s=1e9)
    assert run is not None
    assert run.interval_s == HOUR
    assert run.paid_s == pytest.approx(HOUR + 1, rel=1e-4)


def test_machines_that_hardly_reach_a_checkpoint_are_no_offer() -> None:
    assert interrupted_run(HOUR, write_s=3 * HOUR, restart_s=60.0, between_s=60.0) is None


def test_more_interruptions_never_cost_less() -> None:
    runs = [
        interrupted_run(20 * HOUR, write_s=20.0, restart_s=300.0, between_s=hours * HOUR)
        for hours in (0.5, 1, 2, 4, 8, 100)
    ]
    paid = [run.paid_s for run in runs if run is not None]
    assert len(paid) == 6 and paid == sorted(paid, reverse=True)
