"""Which software a published run was made with: the versions that ds-advise supports, or others.

`benchmarks/data/software_of_sources.csv` has a line for each source, by the beginning of its name, with the evidence.
Contributed runs state their versions.
A source belongs to one of four groups:

    supported:  every version of DeepSpeed and transformers that its runs used is supported
    older:      one of them is older
    not stated: neither the source nor its date decides
    neither:    its runs use neither library, but model code on torch alone

All four count alike in every statistic. Where the version changes a prediction, it is predicted for the version that
ran (`Software`).
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Literal, Protocol, cast, get_args

from ds_advise.estimators.plan import Plan
from ds_advise.estimators.workload import Software, Workload

from . import contributed

FILE = Path(__file__).parents[1] / "data" / "software_of_sources.csv"

Group = Literal["supported", "older", "not stated", "neither"]
GROUPS: tuple[Group, ...] = get_args(Group)


@cache
def software_groups() -> dict[str, Group]:
    """The group of each source, by the beginning of its name."""
    with FILE.open(newline="", encoding="utf-8") as file:
        return {row["source"]: cast(Group, row["software"]) for row in csv.DictReader(file)}


def software_of(source: str) -> Group:
    """The group of a source. Raises ValueError unless exactly one line is the beginning of its name."""
    if source.startswith(contributed.PREFIX):
        ran = [row.run.trained.software for row in contributed.rows() if row.source == source]
        is_old = any(
            each.deepspeed < SUPPORTED_SINCE.deepspeed or each.transformers < SUPPORTED_SINCE.transformers
            for each in ran
        )
        return "older" if is_old else "supported"
    found = [group for start, group in software_groups().items() if source.startswith(start)]
    if len(found) != 1:
        raise ValueError(f"{FILE.name} has {len(found)} lines for {source!r}")
    return found[0]


def _is_in(group: Group, source: str) -> bool:
    return software_of(source) == group


SELECTIONS: dict[str, Callable[[str], bool]] = {
    "": lambda _: True,
    **{f"_{group.replace(' ', '_')}": partial(_is_in, group) for group in GROUPS},
}
"""Which sources a figure is of, by the end of its group's name in docs/numbers.json."""


SUPPORTED_SINCE = Software(transformers=(4, 51), deepspeed=(0, 18))
"""The oldest versions in pyproject.toml, 4.51.3 and 0.18.3, as far as a row states them."""


class Ran(Protocol):
    """A published run of either half."""

    @property
    def source(self) -> str: ...
    @property
    def workload(self) -> Workload: ...
    @property
    def plan(self) -> Plan: ...


def counts(runs: Sequence[Ran]) -> dict[str, str]:
    """How many runs there are, in all and of each group; `replayed`: predicted for a version below the supported."""
    groups = [software_of(run.source) for run in runs]
    return {
        "runs": f"{len(runs):,}",
        **{group.replace(" ", "_"): str(groups.count(group)) for group in GROUPS},
        "replayed": str(sum(map(_is_replayed, runs))),
    }


def _is_replayed(run: Ran) -> bool:
    software = run.workload.software
    old_engine = run.plan.sharding == "zero" and software.deepspeed < SUPPORTED_SINCE.deepspeed
    return old_engine or software.transformers < SUPPORTED_SINCE.transformers
