"""The findings of lint as a document, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...ds_configs.secrets import hide_secrets
from ...estimators.errors import DsAdviseError
from ...estimators.json_form import SCHEMA_VERSION, from_attributes
from ...estimators.memory.fit_probability import host_bytes_to_fit
from ...validate.lint import Document, LintFinding, LintReport, Rule
from ...validate.lint.config_file import apply, shown_name
from ...validate.lint.document import COMMENT
from ...validate.lint.linted_config import NO_GPUS, Situation
from ...validate.lint.rules_file import MORE_THAN_JSON
from ..answer.lint_file import LintAnswer, UnreadFigures, UnreadFile
from ..document import blocks as doc
from ..document.excerpt import Level, changed_excerpt, marked_excerpt
from ..search.candidate import NEEDS_RAM, judge_fit
from ..text.labels import device_label
from ..text.units import counted_noun, ended, gib, printable, rate, whole_gib

_STYLES: Mapping[str, Level] = {"error": "bad", "warning": "unsure", "advice": "advice"}

_LONGEST_PATH = 100
"""Characters of a path, longer than any of DeepSpeed's; an unknown key may have more."""

_MANY = 8
"""Findings that fill a screen; for more the short form is named."""


@dataclass(frozen=True, kw_only=True)
class FindingFigures:
    """One finding at one place."""

    code: str
    severity: str
    title: str
    path: str
    """Key names joined by dots."""
    line: int
    column: int
    what: str
    why: str
    fix: str
    versions: str
    """Affected versions of DeepSpeed."""
    source: str
    can_fix: bool


@dataclass(frozen=True, kw_only=True)
class PredictionFigures:
    """Predicted figures of the configuration."""

    device_bytes_per_gpu: int
    host_bytes_per_node: int
    tokens_per_second: float
    fit_probability: float
    """The smaller one of those of the GPUs and of the RAM."""


@dataclass(frozen=True, kw_only=True)
class LintFigures:
    """A checked configuration; after --fix, the corrected one."""

    schema_version: int
    file: str
    framework: str
    """The framework that reads the file: hf or deepspeed."""
    framework_is_assumed: bool
    deepspeed: str
    facts: str
    """installed, or bundled if DeepSpeed is not installed."""
    errors: int
    warnings: int
    advice: int
    more: int
    """Number of findings that are not listed."""
    prediction: PredictionFigures | None
    """None without a model and GPUs, or if the configuration cannot be predicted."""
    not_predicted: str
    """Why a model's figures are not predicted; "" otherwise."""
    written: str | None
    copy: str | None
    findings: tuple[FindingFigures, ...]


def lint_figures(answer: LintAnswer) -> LintFigures:
    """Return the answer as data."""
    report = answer.report
    return from_attributes(
        LintFigures,
        report,
        schema_version=SCHEMA_VERSION,
        file=str(answer.path),
        deepspeed=report.facts.version,
        facts=report.facts.origin,
        errors=report.count("error"),
        warnings=report.count("warning"),
        advice=report.count("advice"),
        prediction=_prediction(report),
        not_predicted=report.prediction if isinstance(report.prediction, str) else "",
        written=str(answer.path) if answer.copy else None,
        copy=str(answer.copy) if answer.copy else None,
        findings=tuple(map(finding_figures, report.shown)),
    )


@dataclass(frozen=True, kw_only=True)
class LintFilesFigures:
    """Several checked configurations."""

    schema_version: int
    errors: int
    """Of all files, like `warnings` and `advice`."""
    warnings: int
    advice: int
    files: tuple[LintFigures, ...]
    unread: tuple[UnreadFigures, ...]


def lint_files_figures(answers: Sequence[LintAnswer | UnreadFile]) -> LintFilesFigures:
    """Return the answers as data."""
    files = tuple(lint_figures(each) for each in answers if isinstance(each, LintAnswer))
    unread = (each for each in answers if isinstance(each, UnreadFile))
    return LintFilesFigures(
        schema_version=SCHEMA_VERSION,
        errors=sum(each.errors for each in files),
        warnings=sum(each.warnings for each in files),
        advice=sum(each.advice for each in files),
        files=files,
        unread=tuple(UnreadFigures(file=str(each.path), problem=str(each.error)) for each in unread),
    )


def _prediction(report: LintReport) -> PredictionFigures | None:
    found = report.prediction
    if isinstance(found, str):
        return None
    return from_attributes(
        PredictionFigures,
        found.memory(),
        tokens_per_second=found.tokens_per_s(),
        fit_probability=min(found.fit_probability(), found.host_fit_probability()),
    )


def finding_figures(finding: LintFinding) -> FindingFigures:
    """Return one finding as data."""
    return from_attributes(FindingFigures, finding, path=".".join(finding.path), can_fix=bool(finding.edits))


def lint_document(answer: LintAnswer, *, is_one_of_several: bool = False) -> doc.Document:
    """Return the changes of `--fix`, then the findings; for `--diff` only the changes."""
    name, report = shown_name(answer.path), answer.report
    changes = doc.Diff(name, f"{name} (corrected)", *map(hide_secrets, (answer.old_text, answer.text)))
    prefix = f"{printable(name)}: " * is_one_of_several
    nothing = doc.Sentence(f"{prefix}{_not_corrected(report)}")
    blocks = finding_blocks(name, report, answer.basis, if_many="A line for each: --output-format concise.")
    if answer.correction == "diff":
        would = (
            f"--fix would correct {counted_noun(answer.corrected, 'finding')}; {answer.left or 'none'} would be left."
        )
        blocks = [nothing]
        if answer.text != answer.old_text:
            blocks = [changes, doc.Gap(), doc.Sentence(would, "bold")]
    elif answer.copy is not None:
        corrected = f"Corrected {counted_noun(answer.corrected, 'finding')}; the original is {answer.copy.name}."
        blocks = [changes, doc.Gap(), doc.Sentence(corrected, "good"), *blocks]
    elif answer.correction == "fix":
        blocks = [nothing, doc.Gap(), *blocks]
    elif report.fixable:
        blocks += [doc.Gap(), doc.Sentence(f" {report.fixable} fixable with --fix.", mark="[*]", mark_style="good")]
    return doc.Document(subject=name, verdict="", tone=None, blocks=blocks, data=lint_figures(answer))


def error_excerpt(error: DsAdviseError) -> list[doc.Block]:
    """Return the lines around the place at which a file cannot be read; empty if the error has none."""
    text, line, column = getattr(error, "place_in_text", ("", 1, 1))
    return [marked_excerpt(hide_secrets(text), line, column, 1, "bad")] if text.strip() else []


def lint_files_document(answers: Sequence[LintAnswer | UnreadFile]) -> doc.Document:
    """Return the findings of every file, or why it was not linted, and their number in all files."""
    blocks: list[doc.Block] = []
    for each in answers:
        if isinstance(each, LintAnswer):
            blocks += [*lint_document(each, is_one_of_several=True).blocks, doc.Gap()]
            continue
        blocks.append(doc.Sentence(ended(printable(each.error.reason)), "bad"))
        blocks += error_excerpt(each.error)
        if each.error.fix:
            blocks.append(_fix(each.error.fix))
        blocks.append(doc.Gap())
    blocks.append(doc.Sentence(counted_findings(answers), "bold"))
    files, figures = counted_noun(len(answers), "file"), lint_files_figures(answers)
    return doc.Document(subject=files, verdict="", tone=None, blocks=blocks, data=figures)


def counted_findings(answers: Sequence[LintAnswer | UnreadFile]) -> str:
    """Return the number of findings in all files, as a sentence."""
    reports = [each.report for each in answers if isinstance(each, LintAnswer)]
    errors, warnings, advice = (sum(each.count(name) for each in reports) for name in ("error", "warning", "advice"))
    found = [*_counts(errors, warnings, advice)] or ["nothing found"]
    if unread := len(answers) - len(reports):
        found.append(f"{unread} not read")
    return f"{counted_noun(len(answers), 'file')}: {', '.join(found)}."


def _not_corrected(report: LintReport) -> str:
    findings = len(report.findings)
    if not findings:
        return "Nothing is found, so --fix has nothing to correct."
    if {each.code for each in report.findings} == {MORE_THAN_JSON}:  # --fix removes anything but comments
        return "--fix keeps the comments while plain DeepSpeed, which reads them, is assumed; pass --framework."
    which = "the finding" if findings == 1 else f"any of the {findings} findings"
    has_comments = any(each.kind == COMMENT for each in report.document.extensions)
    return (
        f"--fix cannot correct {which} without changing the training{' or removing a comment' * has_comments}; each "
        "names its fix."
    )


def finding_blocks(
    name: str,
    report: LintReport,
    basis: str | None = None,
    *,
    if_many: str = "",
    if_assumed: str = "pass --framework",
) -> list[doc.Block]:
    """Return a line with counts, then every finding: place, line of the file, problem, reason (once per rule), and fix.

    basis: the training for which memory and speed are predicted, if no other line states it. if_many: a sentence above
    many findings. if_assumed: what to do if the reader of the file is assumed.
    """
    counts = report.count("error"), report.count("warning"), report.count("advice")
    found = ", ".join(_counts(*counts)) or "nothing found"
    version: str = report.facts.version
    if report.facts.origin == "bundled":
        version = f"{version} (not installed here: built-in facts)"
    reader = f"{report.reader} (assumed: {if_assumed})" if report.framework_is_assumed else report.reader
    condition = _ram_condition(report.prediction)
    blocks: list[doc.Block] = [
        doc.Sentence(f"{printable(name)}: {found}{condition}.", "bold" if report.findings or condition else "good"),
        doc.Sentence(f"DeepSpeed {version}, read by {reader}.", "dim"),
    ]
    if isinstance(report.prediction, Situation):
        blocks.append(doc.Sentence(f"Predicted: {_figures(report.prediction)}."))
    elif report.prediction:
        is_known = report.prediction != NO_GPUS and report.count("error")
        why = "the file has errors" if is_known else report.prediction
        blocks.append(doc.Sentence(f"Memory and speed are not predicted: {why}.", "unsure"))
    if basis is not None and isinstance(report.prediction, Situation):
        blocks.append(doc.Sentence(f"For {basis}.", "dim"))
    if report.batch.words:
        blocks.append(doc.Sentence(f"{report.batch.words}.", "dim"))
    if if_many and len(report.shown) > _MANY:
        blocks.append(doc.Sentence(if_many, "dim"))
    explained: set[tuple[str, str]] = set()
    for finding in report.shown:
        reason = finding.code, finding.why
        blocks += [doc.Gap(), *_finding(finding, name, report.document, why=reason not in explained)]
        explained.add(reason)
    if report.more:
        blocks += [doc.Gap(), doc.Sentence(f"{report.more} more are not shown.")]
    return blocks


def _ram_condition(prediction: Situation | str) -> str:
    """Return what the plan needs of a RAM that is unknown and above the usual one; "" otherwise."""
    if isinstance(prediction, str):
        return ""
    memory = prediction.memory()
    fit = judge_fit(memory, prediction.cluster)
    needed = fit.assumed_host_bytes
    if fit.reason == NEEDS_RAM:
        needed = host_bytes_to_fit(memory.host_bytes_per_node)
    whole = f"{whole_gib(needed):,} GiB of RAM per node with a margin for the error"
    return f"; the plan needs {whole}, which is not checked without --ram" if needed else ""


def _figures(situation: Situation) -> str:
    memory, cluster = situation.memory(), situation.cluster
    ram = cluster.host_memory_bytes_per_node
    host = f"{gib(memory.host_bytes_per_node)} {f'of {gib(ram)} ' if ram else ''}GiB of RAM per node"
    device = f"{gib(memory.device_bytes_per_gpu)} of {gib(cluster.gpu.memory_bytes)} GiB per {device_label(cluster)}"
    runs = judge_fit(memory, cluster).gpu_likely_suffices  # as in the answer's table of strategies
    return ", ".join([device, host, *([f"{rate(situation.tokens_per_s())} tokens/s"] if runs else [])])


def _counts(errors: int, warnings: int, advice: int) -> Iterator[str]:
    if errors:
        yield counted_noun(errors, "error")
    if warnings:
        yield counted_noun(warnings, "warning")
    if advice:
        yield f"{counted_noun(advice, 'piece')} of advice"


def key_path(finding: LintFinding) -> str:
    """The path of a finding's key, with an ellipsis where it is cut."""
    path = printable(".".join(finding.path))
    return path if len(path) <= _LONGEST_PATH else f"{path[: _LONGEST_PATH - 3]}..."


def _finding(finding: LintFinding, name: str, document: Document, *, why: bool) -> Iterator[doc.Block]:
    path, style = key_path(finding), _STYLES[finding.severity]
    mark, fixable = f"{finding.code} {finding.severity}", "[*] " if finding.edits else ""
    yield doc.Sentence(f" {fixable}{ended(printable(finding.sentence))}", "bold", mark=mark, mark_style=style)
    yield doc.Sentence(f"  --> {printable(name)}:{finding.line}:{finding.column}  {path}".rstrip(), "dim", hang=6)
    text = hide_secrets(document.text)
    yield marked_excerpt(text, finding.line, finding.column, finding.length, style)
    if why:
        yield doc.Sentence(f" {ended(finding.why)}", hang=4, mark="  Why:", mark_style="bold")
    if finding.fix:
        judged = f"; the other findings and the figures are those of {finding.judged}" if finding.judged else ""
        yield _fix(f"{finding.fix}{judged}")
    if finding.edits:
        yield changed_excerpt(text, hide_secrets(apply(document, finding.edits)[0]))


def finding_lines(finding: LintFinding, name: str) -> Iterator[doc.Block]:
    """Yield a finding's problem, place, key and fix, without the lines of the file."""
    mark = f"{finding.code} {finding.severity}"
    place = f"{printable(name)}:{finding.line} {key_path(finding)}".rstrip()
    fix = f" Fix: {ended(printable(finding.fix))}" if finding.fix else ""
    problem = f" {place}: {ended(printable(finding.sentence))}{fix}"
    yield doc.Sentence(problem, hang=4, mark=mark, mark_style=_STYLES[finding.severity])


def _fix(words: str) -> doc.Sentence:
    return doc.Sentence(f" {ended(printable(words))}", hang=4, mark="  Fix:", mark_style="bold")


def rule_blocks(rule: Rule) -> Iterator[doc.Block]:
    """Yield one rule with its examples."""
    yield doc.Sentence(f"{rule.code} {rule.severity}: {rule.title}", _STYLES[rule.severity])
    yield doc.Sentence(f"Why: {ended(rule.why)}")
    if rule.fix:
        yield doc.Sentence(f"Fix: {ended(rule.fix)}")
    yield doc.Sentence(f"DeepSpeed {rule.versions}; read in {rule.source}.", "dim")
    bad, good, settings = rule.example
    options = "".join(f" --{name} {value}" for name, value in settings.items())
    for title, example in (("Found in", bad), ("Not in", good)):
        place = f"{title} (with{options})" if options else title
        text = example if isinstance(example, str) else json.dumps(example)
        yield doc.Sentence(f"{place}: {printable(text)}")


def rule_list(rules: Sequence[Rule]) -> Iterator[doc.Block]:
    """Yield one line per rule."""
    for rule in rules:
        yield doc.Sentence(f"{rule.code} {rule.severity:<8} {rule.title}", hang=15)
