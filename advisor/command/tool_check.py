"""Requirements on the file of a training tool (`ds-advise check axolotl.yaml`): the training that it describes, as
`ds-advise from` reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...estimators.errors import ConfigFileError, DsAdviseError
from ..answer.requirements import Limits, Requirement, check_plan, lint_requirement, refuse_plan, skip_refused
from ..importers.answer import DEEPSPEED_KEYS, ImportAnswer, YamlConfigError, detect_format, import_file
from ..question.job import build_job, has_amount, parse_price
from ..question.options import IMPORT_OPTIONS, JobOptions, fill_defaults, names_in

_SUFFIXES = (".json", ".yaml", ".yml")
"""Endings of the files of training tools."""

_OF_DEEPSPEED = DEEPSPEED_KEYS | {"train_batch_size"}
"""Keys that a DeepSpeed configuration has and no tool's JSON file."""

_TAKEN = frozenset(("model", *IMPORT_OPTIONS))
"""The options of `ds-advise from`."""


def is_tool_file(path: Path) -> bool:
    """Whether a file is that of a training tool. Raises YamlConfigError for a DeepSpeed configuration in YAML."""
    if path.suffix.lower() not in _SUFFIXES:
        return False
    try:
        source, _ = detect_format(path)
    except YamlConfigError:
        raise
    except DsAdviseError:
        return False
    return source.kind == "yaml" or not _OF_DEEPSPEED & source.values.keys()


def read_tool_file(path: Path, given: Mapping[str, Any]) -> ImportAnswer:
    """The training of a tool's file. given: options of a question by name. Raises DsAdviseError for a file that cannot
    be read, and for an option that its tool sets itself."""
    taken = {name: value for name, value in given.items() if value is not None and name not in names_in(JobOptions)}
    if foreign := next((name for name in taken if name not in _TAKEN), ""):
        raise ConfigFileError(
            f"{path}: --{foreign.replace('_', '-')} does not apply", why="the file sets it", fix="change it in the file"
        )
    return import_file(path, **taken)


def check_tool_file(answer: ImportAnswer, given: Mapping[str, Any], limits: Limits) -> Iterator[Requirement]:
    """Check that neither the tool nor DeepSpeed refuses a file; if a model is known, also that its training fits and
    meets the limits. Raises DsAdviseError if its training cannot be predicted."""
    name, run, figures = str(answer.source.path), answer.run, answer.figures
    tool = run.tool or "the Trainer"
    lint = lint_requirement(
        name,
        answer.report,
        part="" if run.deepspeed is None else run.deepspeed.name,
        faults=run.faults,
        unknown=[f"{tool} has no key {key}" for key in run.unknown],
    )
    yield lint
    if not lint.met:
        yield from skip_refused(name, limits)
        return
    if run.model is None:
        return
    if figures is None:
        assert answer.obstacle is not None, "a training without figures has an obstacle"
        raise answer.obstacle
    if figures.as_is is None:
        yield from refuse_plan(name, figures.refusal, limits)
        return
    question = figures.own
    if has_amount(given):
        options = fill_defaults({key: each for key, each in given.items() if key in names_in(JobOptions)})
        built = build_job(options, run.model, question.model, seq_len=question.workload.seq_len)
        price = None if given.get("price") is None else parse_price(given["price"])
        question = replace(question, job=None if built is None else built.job, price=price)
    yield from check_plan(name, figures.as_is, question, limits, unpredicted=run.uncounted)
