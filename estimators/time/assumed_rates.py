"""The interval of a step time where the rate of a drive is assumed."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..estimate import Spread, TimeTerm
from ..hardware import Cluster, assumes_drive
from ..machine_parts import ASSUMED_DRIVE, FASTEST_DRIVE, SLOWEST_DRIVE

DRIVES = tuple(SLOWEST_DRIVE * (FASTEST_DRIVE / SLOWEST_DRIVE) ** share / ASSUMED_DRIVE[0] for share in (0.1, 0.9))
"""Factors on the assumed rates between which 80 % of drives lie, if the logarithms of their rates are spread evenly
between those of the slowest and the fastest."""


def widened(spread: Spread, terms: Iterable[TimeTerm], cluster: Cluster) -> Spread:
    """Return the 80 % interval of the speed of a step with these terms, which `spread` is with known drives.

    A drive of f times the assumed rates takes 1 / f of the seconds, so the speed changes by a factor r = T / (T - d + d
    / f) with T seconds a step, d of them at the drive. Both errors are independent, so the squares of their logarithms
    add up: low = exp(-sqrt(ln(low)^2 + ln(r)^2)), and high likewise.
    """
    if not assumes_drive(cluster):
        return spread
    total_s = drive_s = 0.0
    for term in terms:
        total_s += term.seconds
        drive_s += term.seconds * (term.resource == "nvme")
    if not drive_s:
        return spread
    slow, fast = (math.log(total_s / (total_s - drive_s + drive_s / factor)) for factor in DRIVES)
    return Spread(math.exp(-math.hypot(math.log(spread.low), slow)), math.exp(math.hypot(math.log(spread.high), fast)))
