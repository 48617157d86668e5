"""Lint of a configuration file with the GPUs, the model and the workload that a user names."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...ds_configs.read import optimizer_in
from ...estimators.errors import DsAdviseError
from ...estimators.models.model_shape import ModelShape
from ...estimators.optimizers import OPTIMIZERS
from ...estimators.workload import Framework
from ...validate.lint import LintReport, lint, load_facts
from ...validate.lint.config_file import correct, read_config_file
from ..question.cluster import parse_cluster
from ..question.model_source import load_model
from ..question.workload import configured_workload


def lint_settings(
    config: Mapping[str, Any],
    *,
    framework: Framework | None = None,
    model: str | ModelShape | None = None,
    gpus: str | None = None,
    ram: str | None = None,
    seq_len: int | None = None,
    software: str | None = None,
    offline: bool = False,
    **evaluation: int | None,
) -> dict[str, Any]:
    """Keyword arguments of `lint`. The workload is None, and memory and speed are not checked, without a model and for
    an unknown optimizer. An `auto` batch is the advice's. evaluation: the question's options of evaluations.

    Raises DsAdviseError for invalid GPUs, an unknown model, software or an impossible length.
    """
    cluster = None if gpus is None else parse_cluster(gpus, ram=ram)
    shape = load_model(model, offline=offline) if isinstance(model, str) else model
    workload = None
    if shape is not None:
        options = {"seq_len": seq_len, "framework": framework or "hf", "software": software, **evaluation}
        workload = configured_workload(config, options, shape, None if cluster is None else cluster.gpu)
        if workload.optimizer not in OPTIMIZERS:
            workload = None
    known: dict[str, Any] = {"framework": framework, "cluster": cluster, "model": shape, "workload": workload}
    if shape is not None and workload is not None and cluster is not None:
        from ..search.open_batch import filled_batch  # a file alone needs no search

        with suppress(DsAdviseError):  # a rule reports it
            known["batch"] = filled_batch(config, shape, workload, cluster)
    return known


@dataclass(frozen=True, slots=True, kw_only=True)
class LintAnswer:
    """The result of linting a file."""

    path: Path
    report: LintReport
    """Of the file after a correction."""
    correction_wanted: bool
    old_text: str
    text: str
    """The file's text after a correction; equal to `old_text` without one."""
    copy: Path | None
    """The copy of the old file; None without a correction."""
    unknown_optimizer: str = ""
    """The file's optimizer, if a model is given and the optimizer is unknown: memory is not checked."""


def lint_file(path: Path, *, fix: bool = False, **settings: Any) -> LintAnswer:
    """Lint a configuration file, `-` for standard input.

    fix: correct what cannot change the training.
    settings: arguments of `lint_settings`.

    Raises DsAdviseError for a file that cannot be read or corrected, and as `lint_settings`.
    """
    file = read_config_file(path)
    known = lint_settings(file.document.root.value, **settings)
    facts = load_facts()
    report = lint(file.document, facts=facts, **known)
    old_text, copy = file.document.text, None
    if fix and (corrected := correct(file, report.edits, keep_byte_order_mark=report.framework != "hf")):
        file, copy = corrected
        report = lint(file.document, facts=facts, **known | {"framework": report.framework})
    unchecked = known["model"] is not None and known["workload"] is None
    return LintAnswer(
        path=path,
        report=report,
        correction_wanted=fix,
        old_text=old_text,
        text=file.document.text,
        copy=copy,
        unknown_optimizer=optimizer_in(file.document.root.value) or "" if unchecked else "",
    )
