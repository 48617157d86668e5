"""Lint of a configuration file for given GPUs, model and workload."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from ...estimators.errors import ConfigFileError, DsAdviseError
from ...estimators.hardware import Cluster
from ...estimators.models.model_shape import ModelShape
from ...estimators.optimizers import OPTIMIZERS
from ...estimators.workload import Framework, Workload
from ...validate.lint import DeepSpeedFacts, Document, LintReport, lint, load_facts, read_document
from ...validate.lint.config_file import apply, read_config_file, shown_name, write_corrected
from ...validate.lint.linted_config import NOTHING_FILLED, Fill, FilledBatch
from ...validate.lint.rules_batch import reader_of
from ..question.file_question import FileQuestion, file_question, question_words, split_batch
from ..question.model_source import load_model
from ..question.question import Question
from ..question.rollouts import training_cluster
from ..question.workload import apply_model_options, configured_workload
from ..text.labels import method_title


def lint_settings(
    config: Mapping[str, Any],
    *,
    framework: Framework | None = None,
    model: str | ModelShape | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Return keyword arguments of `lint`.

    The workload is None without a model and for an unknown optimizer; memory and speed are then not checked. The advice
    fills an `auto` batch. options: those of a question, and `accumulation`. Raises DsAdviseError for invalid GPUs, an
    unknown model, and impossible options.
    """
    options, batch = split_batch(options)
    is_placed = any(name in options for name in ("gpus", "device", "ranks"))
    cluster = training_cluster(options) if is_placed else None
    shape = load_model(model, offline=options.get("offline", False)) if isinstance(model, str) else model
    workload = None
    if shape is not None:
        options |= {} if framework is None else {"framework": framework}
        facts = load_facts()
        if reader_of(framework, config, facts) == "deepspeed":
            config = facts.without_autos(config)
        shape = apply_model_options(shape, options)
        workload = configured_workload(config, options, shape, None if cluster is None else cluster.gpu)
        if workload.optimizer not in OPTIMIZERS:
            workload = None
    known: dict[str, Any] = {"framework": framework, "cluster": cluster, "model": shape, "workload": workload}
    if shape is not None and workload is not None and cluster is not None:
        words = question_words(model if isinstance(model, str) else shape.name, options)
        asked: dict[str, Any] = {
            "model": shape,
            "workload": workload,
            "cluster": cluster,
            "free_loss": options.get("loss") is None,
        }
        known["fill"] = _fill(shape, workload, cluster, batch)
        known["what_fits"] = cache(lambda: what_fits(lambda: Question(**asked), f"ds-advise {words}"))
    return known


def _fill(model: ModelShape, workload: Workload, cluster: Cluster, given: Mapping[str, Any]) -> Fill:
    """The function that fills `auto` with the given batch and the advice's. It searches once for a configuration."""
    from ..search.open_batch import filled_batch  # imported here: a file without a model needs no search

    @cache
    def fill_text(text: str) -> FilledBatch:
        with suppress(DsAdviseError):  # a lint rule reports it
            return filled_batch(json.loads(text), model, workload, cluster, **given)
        return NOTHING_FILLED

    return lambda config: fill_text(json.dumps(config))


def what_fits(ask: Callable[[], Question], command: str) -> str:
    """The plan that fits the model and the machines of a question, and the command that writes it; without one, the
    first changes of the question with which a plan fits. ask: returns the question."""
    from ..search.candidate import ram_condition  # imported here: only a configuration that does not fit needs it
    from ..search.choice import fastest_that_fits
    from ..search.search import predict_all
    from .what_if import changes

    try:
        question = ask()
        if question.workload.global_batch_size is None:
            question = question.with_default_batch()
        question = question.offered_loss_question or question
        ladder, _ = predict_all(question)
    except DsAdviseError:  # the command explains it
        return f"find a plan that fits: `{command}`"
    if (chosen := fastest_that_fits(ladder)) is not None:
        return f"`{command}` writes a plan that fits: {chosen.strategy}{ram_condition(chosen.fit)}"
    found = islice(changes(question, ladder, None), _MOST_CHANGES)
    fitting = [f"`{each.flags}` ({each.outcome.removeprefix('fits: ')})" for each in found]
    none = "no stage and no offload fits these machines"
    return f"{none}; a plan fits with {' or '.join(fitting)}" if fitting else f"{none}; use a smaller model"


_MOST_CHANGES = 4
"""Most changes of the question that a fix names."""


Correction = Literal["none", "fix", "diff"]
"""Whether corrections are written, or only shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LintAnswer:
    """The result of linting a file."""

    path: Path
    report: LintReport
    """Report on the file; after a correction, on the corrected file."""
    basis: str | None
    """The training for which memory and speed are predicted; None if they are not predicted."""
    correction: Correction
    old_text: str
    text: str
    """The file's text after a correction, which "diff" does not write; equal to `old_text` if nothing is corrected."""
    copy: Path | None
    """Copy of the original file; None if nothing was corrected."""
    corrected: int
    """Number of findings that were corrected; for "diff", that would be."""
    left: int = 0
    """Number of findings after the correction."""
    is_strict: bool = False
    """Whether warnings fail as errors do."""

    @property
    def exit_code(self) -> int:
        """1 with errors, with warnings if strict, and if "diff" shows changes; else 0."""
        fails = self.report.count("error") > 0 or (self.is_strict and self.report.count("warning") > 0)
        return int(fails or (self.correction == "diff" and self.text != self.old_text))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadFile:
    """A file that was not linted, because it cannot be read or corrected."""

    path: Path
    error: ConfigFileError


@dataclass(frozen=True, kw_only=True)
class UnreadFigures:
    """A file that was not checked."""

    file: str
    problem: str
    """Why it cannot be read or corrected, or has no plan."""


def lint_files(paths: Sequence[Path], **options: Any) -> tuple[LintAnswer | UnreadFile, ...]:
    """Lint several files, each as `lint_file` does, with its arguments. Raises its errors, except those of a file."""

    def lint_one(path: Path) -> LintAnswer | UnreadFile:
        try:
            return lint_file(path, **options)
        except ConfigFileError as error:
            return UnreadFile(path=path, error=error)

    return tuple(map(lint_one, paths))


def lint_question(file: FileQuestion, facts: DeepSpeedFacts, model: ModelShape | None = None) -> LintReport:
    """Lint a configuration for its machines. Without a model: hardly anything that DeepSpeed, the Trainer and
    accelerate refuse depends on it."""
    options = file.asked
    placed = {name: options[name] for name in ("framework", "gpus", "device", "ranks") if name in options}
    return lint(file.document, facts=facts, **lint_settings(file.config, model=model, **placed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Linted:
    """The findings in a configuration, and for what they were found."""

    report: LintReport
    known: dict[str, Any]
    """The keyword arguments of `lint`."""

    @property
    def basis(self) -> str | None:
        """The training for which memory and speed are predicted; None if they are not predicted."""
        if "fill" not in self.known:
            return None
        workload: Workload = self.known["workload"]
        checkpointing = "on" if self.report.batch.gradient_checkpointing else "off"
        return (
            f"{method_title(workload)} in {workload.precision}, sequence {workload.seq_len}, {workload.loss} loss, "
            f"checkpointing {checkpointing} (--method, --precision, --seq-len, --loss, --gradient-checkpointing)"
        )

    def corrected(self) -> tuple[LintReport, int]:
        """Return (the report on the corrected configuration, the number of corrected findings). A correction may show
        another finding that can be corrected, such as a renamed key that has no effect, so the edits are repeated until
        there are none."""
        report, corrected, seen = self.report, 0, {self.report.document.text}
        reader = {"framework": report.framework, "framework_is_assumed": report.framework_is_assumed}
        while report.fixable:
            text, made = apply(report.document, report.edits)
            if not made or (text in seen and not report.document.has_byte_order_mark):
                break
            seen.add(text)
            corrected += report.fixable
            document = read_document(text.encode(), name="the corrected file", as_meant=True)
            report = lint(document, facts=report.facts, **self.known | reader)
        return report, corrected


def lint_for(
    document: Document,
    given: Mapping[str, Any],
    *,
    name: str,
    ignored: Sequence[str] = (),
    say: Callable[[str], None] = lambda _: None,
) -> Linted:
    """Lint a configuration for a question: `given`, as for `file_question`, and what the file records. name: of the
    file. Raises DsAdviseError as `file_question` and `lint_settings`."""
    question = file_question(document, given, name=name)
    question.tell(say)
    known = lint_settings(question.config, model=question.model, **question.options) | {"ignored": ignored}
    return Linted(report=lint(document, facts=load_facts(), **known), known=known)


def lint_file(
    path: Path,
    *,
    correction: Correction = "none",
    ignored: Sequence[str] = (),
    is_strict: bool = False,
    say: Callable[[str], None] = lambda _: None,
    **given: Any,
) -> LintAnswer:
    """Lint a configuration file; `-` reads standard input.

    correction: "fix" writes the corrections that cannot change the training; "diff" only shows them.
    ignored: codes of rules without findings. is_strict: whether warnings fail as errors do.
    given: arguments of `lint_settings`; others are those that the file records.

    Raises DsAdviseError for a file that cannot be read or corrected, and as `lint_settings`.
    """
    file = read_config_file(path, as_meant=True, command="ds-advise lint")
    found = lint_for(file.document, given, name=shown_name(path), ignored=ignored, say=say)
    report = found.report
    old_text = text = "\ufeff" * file.document.has_byte_order_mark + file.document.text
    copy, after, corrected = None, report, 0
    if correction != "none":
        after, corrected = found.corrected()
    if corrected:
        text = after.document.text
    if corrected and correction == "fix":
        copy, report = write_corrected(file, text), after
    return LintAnswer(
        path=path,
        report=report,
        basis=replace(found, report=report).basis,
        correction=correction,
        old_text=old_text,
        text=text,
        copy=copy,
        corrected=corrected,
        left=len(after.findings),
        is_strict=is_strict,
    )
