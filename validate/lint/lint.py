"""Apply every rule of the DeepSpeed version to a configuration; findings are in the order of the file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...ds_configs.record import without_record
from ...ds_configs.secrets import is_secret
from ...estimators.hardware import Cluster
from ...estimators.models.model_shape import ModelShape
from ...estimators.workload import Framework, Workload
from .config_file import Edit, Remove, Replace, apply, can_be_made, comment_in_the_way
from .document import Document, KeyPath
from .document_reader import read_document
from .facts import DeepSpeedFacts
from .linted_config import NOTHING_FILLED, OTHER_PLAN, Fill, FilledBatch, LintedConfig, Situation, nothing_filled
from .rule import REMOVAL, Rule, Severity, Violation
from .rules_batch import BATCH_RULES, TRAINER_RULES, reader_of
from .rules_combinations import COMBINATION_RULES
from .rules_experts import EXPERT_RULES
from .rules_file import FILE_RULES
from .rules_keys import KEY_RULES, with_right_names
from .rules_logging import LOGGING_RULES
from .rules_offload import OFFLOAD_RULES
from .rules_optimizer import OPTIMIZER_RULES
from .rules_precision import PRECISION_RULES
from .rules_resources import PROPOSALS, RESOURCE_RULES
from .rules_types import TYPE_RULES
from .rules_zero import ZERO_RULES
from .values import json_text

RULES: tuple[Rule, ...] = (
    *(*FILE_RULES, *KEY_RULES, *TYPE_RULES, *BATCH_RULES, *TRAINER_RULES, *PRECISION_RULES, *ZERO_RULES),
    *(*COMBINATION_RULES, *OFFLOAD_RULES, *OPTIMIZER_RULES, *EXPERT_RULES, *LOGGING_RULES, *RESOURCE_RULES),
)
"""All rules, in the order of their codes. The code of a removed rule is never reused."""

MAX_FINDINGS = 200
"""Maximum number of findings that are listed and corrected; a file with more is not a configuration."""

_ORDER: dict[Severity, int] = {"error": 0, "warning": 1, "advice": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class LintFinding:
    """A violation with the texts of its rule and its place."""

    code: str
    severity: Severity
    title: str
    path: KeyPath
    line: int
    """Line of the key, or of its block if the key is missing; from 1, like `column`."""
    column: int
    length: int
    """Number of characters of the key or of the place, which may extend beyond the line."""
    what: str
    why: str
    fix: str
    versions: str
    source: str
    edits: tuple[Edit, ...] = ()
    meant: KeyPath = ()
    """The path of the key to which the fix renames an unknown one."""
    missing: tuple[KeyPath, ...] = ()
    """The paths of the missing keys of which any mends it."""
    judged: str = ""
    """The block that the other findings and the figures are about in place of this one; "" for none."""

    @property
    def sentence(self) -> str:
        """`what` with a capital letter, unless it begins with a key."""
        first = self.what.split(" ", 1)[0]
        is_key = first in self.path or "_" in first or "." in first
        return self.what if is_key else self.what[:1].upper() + self.what[1:]


@dataclass(frozen=True, kw_only=True)
class LintReport:
    """The findings of one configuration."""

    document: Document
    findings: tuple[LintFinding, ...]
    """Errors first; within each severity in the order of the file."""
    facts: DeepSpeedFacts
    framework: Framework
    framework_is_assumed: bool
    batch: FilledBatch = NOTHING_FILLED
    """Values assumed for an `auto` batch, for memory and speed."""
    prediction: Situation | str = ""
    """The plan with its model and GPUs, or why its memory and speed are not predicted; "" without a model."""

    def count(self, severity: Severity) -> int:
        return sum(finding.severity == severity for finding in self.findings)

    @property
    def reader(self) -> str:
        """What reads the file, in words."""
        return "the Trainer or accelerate" if self.framework == "hf" else "plain DeepSpeed"

    @property
    def shown(self) -> tuple[LintFinding, ...]:
        """The findings that are listed."""
        return self.findings[:MAX_FINDINGS]

    @property
    def more(self) -> int:
        """Number of findings that are not listed."""
        return len(self.findings) - len(self.shown)

    @property
    def fixable(self) -> int:
        """Number of findings that `--fix` corrects."""
        return sum(bool(finding.edits) for finding in self.shown)

    @property
    def edits(self) -> tuple[Edit, ...]:
        return tuple(edit for finding in self.shown for edit in finding.edits)


def lint(
    document: Document,
    *,
    facts: DeepSpeedFacts,
    framework: Framework | None = None,
    framework_is_assumed: bool | None = None,
    cluster: Cluster | None = None,
    model: ModelShape | None = None,
    workload: Workload | None = None,
    fill: Fill = nothing_filled,
    what_fits: Callable[[], str] = lambda: OTHER_PLAN,
    ignored: Collection[str] = (),
) -> LintReport:
    """Check a configuration.

    framework: the reader of the file. None: the Trainer or accelerate if the file has an `auto` that only they fill,
               else plain DeepSpeed.
    framework_is_assumed: whether a given framework is such an assumption. None: it is if no framework is given.
    cluster:   batch sizes are checked against its ranks, precision against its GPUs; with a model, memory and speed.
    fill:      fills `auto` for memory and speed.
    what_fits: what to do if the configuration does not fit this model and these GPUs.
    ignored:   codes of rules whose findings are left out.
    """
    is_assumed = framework is None if framework_is_assumed is None else framework_is_assumed
    written = LintedConfig(
        document=document,
        values={},
        facts=facts,
        framework=reader_of(framework, document.value, facts),
        cluster=cluster,
        model=model,
        workload=workload,
        fill=fill,
        what_fits=what_fits,
        framework_is_assumed=is_assumed,
    )
    config, found = _judged(written, document)
    found = [each for each in found if each.code not in ignored]
    shown = [_with_possible_edits(document, each) for each in found[:MAX_FINDINGS]]
    return LintReport(
        document=document,
        findings=(*_with_effect_of_edits(written, shown, found), *found[MAX_FINDINGS:]),
        facts=facts,
        framework=written.framework,
        framework_is_assumed=is_assumed,
        batch=config.batch,
        prediction=config.prediction,
    )


def _judged(context: LintedConfig, document: Document) -> tuple[LintedConfig, list[LintFinding]]:
    """(the configuration that is judged, its findings in order) of a document in the context of another."""
    values = _first_candidates(_as_parsed(without_record(document.value), context.framework))
    written = replace(context, document=document, values=values)
    config = with_right_names(written)
    found = [
        _finding(document, config, rule, violation)
        for rule in RULES
        if rule.holds_for(config.facts)
        for violation in rule.check(config)
    ]
    found = _without_contradictions(found, config)
    blocks = {path for path, *_ in config.misspelled if isinstance(written.get(".".join(path)), dict)}
    blocks &= {each.path for each in found if each.severity == "error"}
    found.sort(key=lambda each: (each.path not in blocks, _ORDER[each.severity], each.line, each.column, each.code))
    return config, found


def _with_possible_edits(document: Document, finding: LintFinding) -> LintFinding:
    """The finding, without edits that cannot be made."""
    fix, edits = finding.fix, finding.edits
    if comment := comment_in_the_way(document, edits):
        fix += "; --fix does not, because of the comment at line {}, column {}".format(*document.place(comment.start))
    return replace(finding, fix=fix, edits=edits if can_be_made(document, edits) else ())


def _with_effect_of_edits(
    written: LintedConfig, shown: Sequence[LintFinding], found: Sequence[LintFinding]
) -> list[LintFinding]:
    """The findings, without advice that does not hold after the new values of the others, and without new values after
    which the file has more errors than before. Renamed and removed keys are judged so already."""

    def after(*edits: Edit) -> list[LintFinding]:
        corrected = read_document(apply(written.document, edits)[0].encode(), name="the corrected file", as_meant=True)
        return _judged(written, corrected)[1]

    before = _errors(found)
    values = [each for each in shown if any(isinstance(edit, Replace) for edit in each.edits)]
    if not values:
        return [*shown]
    left = after(*(edit for each in values for edit in each.edits))
    if not _errors(left) - before:
        still = {(each.code, each.path) for each in left}
        return [each for each in shown if each.edits or each.severity != "advice" or (each.code, each.path) in still]
    harmful = (each in values and _errors(after(*each.edits)).total() > before.total() for each in shown)
    return [replace(each, edits=()) if is_harmful else each for each, is_harmful in zip(shown, harmful, strict=True)]


def _errors(found: Sequence[LintFinding]) -> Counter[tuple[str, KeyPath]]:
    return Counter((each.code, each.path) for each in found if each.severity == "error")


def _without_contradictions(found: Sequence[LintFinding], config: LintedConfig) -> list[LintFinding]:
    """The findings that can be followed together: without advice on a key that has a more serious finding or that a
    more serious one proposes, and without advice that the proposed stage and offload make needless."""
    found = _with_missing_names([*_with_one_rename(found)])
    serious = {path for each in found if each.severity != "advice" for path in (each.path, each.meant) if path}
    kept = [each for each in found if each.severity != "advice" or each.path not in serious]
    advised = {each.code for each in kept if each.severity == "advice"} - {*PROPOSALS}
    if config.faster is None or not advised:
        return kept
    rules = [rule for rule in RULES if rule.code in advised]
    still = {(rule.code, each.path) for rule in rules for each in rule.check(config.faster.config)}
    return [each for each in kept if each.code not in advised or (each.code, each.path) in still]


def _with_one_rename(found: Sequence[LintFinding]) -> Iterator[LintFinding]:
    """The findings, of which only the first in the file renames a key to a given name."""
    first: dict[KeyPath, LintFinding] = {}
    for each in sorted(found, key=lambda each: (each.line, each.column)):
        if each.meant and first.setdefault(each.meant, each) is not each:
            fix = f"remove it: {first[each.meant].path[-1]} stands for {each.meant[-1]} too"
            each = replace(each, fix=fix, edits=(), meant=())
        yield each


def _with_missing_names(found: Sequence[LintFinding]) -> list[LintFinding]:
    """The findings, of which those on a missing key and on the unknown one that stands for it are one, at the place of
    the unknown one."""
    missing = {path: each for each in found for path in each.missing}
    stands_for = {each.meant: each for each in found if each.meant in missing}
    joined = []
    for path, each in stands_for.items():
        whole = missing[path]
        if _ORDER[each.severity] < _ORDER[whole.severity]:
            joined.append(each)
            continue
        # Without the key that is meant there is no training.
        place = replace(whole, path=each.path, line=each.line, column=each.column, length=each.length)
        what = f"{whole.what}: {each.what}"
        joined.append(replace(place, what=what, fix=each.fix, edits=each.edits, meant=path))
    gone = {id(one) for path, each in stands_for.items() for one in (each, missing[path])}
    return [*(each for each in found if id(each) not in gone), *joined]


def _finding(written: Document, config: LintedConfig, rule: Rule, violation: Violation) -> LintFinding:
    """The finding of a violation. written: the document without the right names of misspelled keys."""
    start, end = written.start, written.start + 1
    for depth in range(1, len(violation.path) + 1):  # the key, or the innermost of its blocks that exists
        path = violation.path[:depth]
        if member := config.document.member(path):
            start, end = member.start, member.end
    start, end = violation.span or (start, end)
    line, column = written.place(start)
    what, fix = violation.what, violation.fix or rule.fix
    if violation.path and is_secret(violation.path[-1]):
        value = json_text(config.get(".".join(violation.path)))
        what, fix = what.replace(value, "a secret"), fix.replace(value, "it as text")
    return LintFinding(
        code=rule.code,
        severity=violation.severity or rule.severity,
        title=rule.title,
        path=violation.path,
        line=line,
        column=column,
        length=end - start,
        what=what,
        why=violation.why or rule.why,
        fix=fix,
        versions=rule.versions,
        source=rule.source,
        edits=violation.edits or ((Remove(violation.path),) if fix in REMOVAL else ()),
        meant=violation.meant,
        missing=violation.missing,
        judged=violation.judged,
    )


def _as_parsed(value: Any, framework: Framework) -> Any:
    """The value that the file's reader produces: hjson converts whole floats below 1e10 to integers."""
    if isinstance(value, dict):
        return {key: _as_parsed(each, framework) for key, each in value.items()}
    if isinstance(value, list):
        return [_as_parsed(each, framework) for each in value]
    if framework == "deepspeed" and isinstance(value, float) and abs(value) < 1e10 and value == int(value):
        return int(value)
    return value


def _first_candidates(values: dict[str, Any]) -> dict[str, Any]:
    """The values with the first item of each list in zero_optimization if `autotuning` is on: such a list holds
    candidates, which the autotuner tries in turn (DeepSpeed 0.19.8, autotuning/utils.py get_all_configs)."""
    tuned, zero = values.get("autotuning"), values.get("zero_optimization")
    if not (isinstance(tuned, dict) and tuned.get("enabled") is True and isinstance(zero, dict)):
        return values
    first = {name: value[0] if isinstance(value, list) and value else value for name, value in zero.items()}
    return {**values, "zero_optimization": first}
