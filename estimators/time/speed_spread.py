"""How far a predicted speed may be off: 80 % intervals from the residuals of published runs.

`data/speed_spread.csv` holds the tenth and ninetieth percentiles of measured over predicted speed, by kind of plan, of
runs whose origin no constant was fitted on. `python -m benchmarks.accuracy --write` writes it, and docs/accuracy.md
says how many of the runs of an origin lie in the interval that the others give. The ratio of two plans on one machine
is known better than either speed; its interval is that of pairs of runs which differ in their rung.

Not covered: machines whose speeds were measured, for which no published runs exist; they are given the same interval.
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import Literal

from ..estimate import Spread
from ..hardware.cluster import Cluster
from ..plan import Plan

DATA = Path(__file__).parents[1] / "data" / "speed_spread.csv"

Kind = Literal["one GPU", "several GPUs", "offload", "ratio", "ratio with offload"]


def speed_kind(world_size: int, plan: Plan) -> Kind:
    """The kind of a plan, by what its speed depends on."""
    if plan.offloads:
        return "offload"
    return "several GPUs" if world_size > 1 else "one GPU"


def speed_spread(cluster: Cluster, plan: Plan) -> Spread:
    """The interval of a predicted speed."""
    return _spreads()[speed_kind(cluster.world_size, plan)]


def ratio_spread(one: Plan, other: Plan) -> Spread:
    """The interval of the ratio of two plans' speeds on one machine."""
    return _spreads()["ratio with offload" if one.offloads or other.offloads else "ratio"]


@cache
def _spreads() -> dict[str, Spread]:
    with DATA.open(newline="", encoding="utf-8") as file:
        return {row["kind"]: Spread(float(row["low"]), float(row["high"])) for row in csv.DictReader(file)}
