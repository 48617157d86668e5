"""From what a user says besides the file to what lint knows: GPUs, model and workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...ds_configs.read import optimizer_in
from ...estimators.optimizers import OPTIMIZERS
from ...estimators.workload import Framework
from ...validate.lint import LintReport, lint, load_facts
from ...validate.lint.config_file import correct, read_config_file
from .cluster import parse_cluster
from .model_source import load_model
from .workload import configured_workload


def lint_settings(
    config: Mapping[str, Any],
    *,
    framework: Framework | None,
    model: str | None,
    gpus: str | None,
    ram: str | None,
    seq_len: int | None,
    offline: bool,
) -> dict[str, Any]:
    """Keyword arguments of `lint`.

    The workload is None without a model, and for an optimizer whose states are not known: then memory and speed are not
    judged.

    Raises DsAdviseError for GPUs, a model or a length that cannot be.
    """
    cluster = parse_cluster(gpus, ram=ram) if gpus is not None else None
    shape = load_model(model, offline=offline) if model is not None else None
    workload = None
    if shape is not None:
        options = {"seq_len": seq_len, "framework": framework or "hf"}
        workload = configured_workload(config, options, shape, None if cluster is None else cluster.gpu)
        if workload.optimizer not in OPTIMIZERS:
            workload = None
    return {"framework": framework, "cluster": cluster, "model": shape, "workload": workload}


@dataclass(frozen=True, slots=True, kw_only=True)
class LintAnswer:
    """What lint says of a file."""

    path: Path
    report: LintReport
    """Of the file as it is now."""
    correction_wanted: bool
    old_text: str
    text: str
    """The file's text now, `old_text` where nothing was corrected."""
    copy: Path | None
    """Where the old file is kept, None where nothing was corrected."""
    unknown_optimizer: str = ""
    """The file's optimizer, where a model was named and its states are not known: then memory is not judged."""


def lint_file(
    path: Path,
    *,
    fix: bool = False,
    framework: Framework | None = None,
    model: str | None = None,
    gpus: str | None = None,
    ram: str | None = None,
    seq_len: int | None = None,
    offline: bool = False,
) -> LintAnswer:
    """Judge a configuration file, `-` for standard input; `fix` corrects what cannot change the training.

    Raises DsAdviseError for a file that cannot be read or corrected, and for GPUs, a model or a length that cannot be.
    """
    file = read_config_file(path)
    settings = lint_settings(
        file.document.root.value, framework=framework, model=model, gpus=gpus, ram=ram, seq_len=seq_len, offline=offline
    )
    facts = load_facts()
    report = lint(file.document, facts=facts, **settings)
    old_text, copy = file.document.text, None
    if fix and (corrected := correct(file, report.edits, keep_byte_order_mark=report.framework != "hf")):
        file, copy = corrected
        report = lint(file.document, facts=facts, **settings | {"framework": report.framework})
    unjudged = settings["model"] is not None and settings["workload"] is None
    return LintAnswer(
        path=path,
        report=report,
        correction_wanted=fix,
        old_text=old_text,
        text=file.document.text,
        copy=copy,
        unknown_optimizer=optimizer_in(file.document.root.value) or "" if unjudged else "",
    )
