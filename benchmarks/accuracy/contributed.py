"""Measured runs that users contributed (`ds-advise contribute`), as further rows of the published runs.

    python -m benchmarks.accuracy --add FILE --by NAME

adds the file's runs to `benchmarks/data/contributed/NAME.json`, after each was predicted and asked back through the
public options. NAME, such as `issue-12`, is the source, which counts once however many runs it has. The next `--write`
fits the spreads again with these runs, and states the errors. Step times are predicted by constants that have not seen
them until `python -m benchmarks.accuracy --fit --write`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ds_advise.advisor.verification.contribution import (
    ContributedRun,
    Contribution,
    ContributionError,
    read_contribution,
)
from ds_advise.ds_configs.files import config_text, read_json_object
from ds_advise.estimators.estimate import Estimate
from ds_advise.estimators.json_form import to_json

from .questions import DATA, MODELS, Asked, is_public, model_of

FOLDER = DATA / "contributed"

PREFIX = "contributed/"
"""Of the sources' names."""


class Row(NamedTuple):
    """A contributed run with its prediction."""

    source: str
    number: int
    run: ContributedRun
    asked: Asked

    @property
    def step_asked(self) -> Asked:
        """With the mean length of the samples, which decides on the time; the memory's is the longest."""
        tokens, plan = self.run.measured.tokens_per_step, self.asked.plan
        samples = plan.micro_batch_size * plan.gradient_accumulation_steps * self.asked.cluster.world_size
        samples //= self.run.run.ranks_per_sample
        length = round(tokens / samples) if tokens else self.asked.workload.seq_len
        return self.asked._replace(workload=self.asked.workload.at_length(length))


def rows() -> Iterator[Row]:
    """Every contributed run, by source."""
    for file in sorted(FOLDER.glob("*.json")):
        yield from _rows(f"{PREFIX}{file.stem}", _read(file))


def _read(file: Path) -> Contribution:
    words = {"what": "a contribution", "fix": "pass a file of ds-advise contribute"}
    return read_contribution(read_json_object(file, error=ContributionError, **words))


def _rows(source: str, contribution: Contribution) -> Iterator[Row]:
    for number, run in enumerate(contribution.runs, start=1):
        yield Row(source, number, run, _asked(run))


def _asked(run: ContributedRun) -> Asked:
    estimate: Estimate | None = run.run.estimate()
    if estimate is None:
        raise ContributionError(f"{run.model}: the closed form does not predict the configuration", fix="leave it out")
    # Batches are part of the plan; the machine is as its name says.
    workload = replace(run.trained, global_batch_size=None)
    return Asked(run.model, run.gpus, model_of(run.model), workload, run.cluster, estimate.plan)


def add(file: Path, name: str) -> list[Row]:
    """Add the runs of a file to those of a source, and return them. Models without a public name are added to `MODELS`.

    Raises ContributionError for a file of another form, a name that is none, or a run that is there already or that the
    public options cannot ask.
    """
    if not re.fullmatch(r"[A-Za-z0-9-]+", name):
        raise ContributionError(f"{name!r} is no name of a source", fix="use letters, digits and hyphens")
    own = FOLDER / f"{name}.json"
    found, earlier = _read(file), _read(own) if own.exists() else Contribution()
    if any(run in earlier.runs for run in found.runs):
        raise ContributionError(f"{own.name} has a run of {file.name} already", fix="remove it from one of them")
    configs = {MODELS / f"{run.model}.json": run.model_config for run in found.runs if run.model_config is not None}
    new = {path: config for path, config in configs.items() if not path.exists()}
    for path, config in new.items():
        path.write_text(config_text(config), encoding="utf-8")
    added = list(_rows(f"{PREFIX}{name}", found))
    if refused := [row.number for row in added if not is_public(row.asked)]:
        for path in new:
            path.unlink()
        raise ContributionError(
            f"runs of {file.name} that public options cannot ask: {', '.join(map(str, refused))}", fix="leave them out"
        )
    FOLDER.mkdir(exist_ok=True)
    own.write_text(config_text(to_json(replace(earlier, runs=(*earlier.runs, *found.runs)))), encoding="utf-8")
    return added
