"""Comparison of two configurations: their differences, and the effect on memory and speed."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ...ds_configs.emit import ds_config
from ...ds_configs.read import UnmodeledFeature
from ...estimators.errors import ConfigFileError, DsAdviseError, UnsupportedPlanError, WorkloadError
from ...estimators.json_form import SCHEMA_VERSION, from_attributes
from ...estimators.optimizers import OPTIMIZERS
from ...estimators.plan import PLANS, PlainPyTorch, Plan, Strategy
from ...estimators.unsupported import unsupported
from ...estimators.workload import Workload
from ...probes.run import Run
from ...validate.lint import LintFinding, LintReport, load_facts
from ...validate.lint.facts import DeepSpeedFacts
from ...validate.lint.key_effects import unpredicted
from ..question.file_question import FILLED, FileQuestion, read_file_question, split_batch
from ..question.options import OPTIONS, CheckpointingChoice
from ..question.question import Question
from ..question.run import build_run
from ..question.workload import assumes_half_precision, configured_workload
from ..search.candidate import LEAST, Candidate, candidate_duration, predict
from ..search.choice import best_of_strategy
from ..search.open_batch import filled_batch
from ..search.search import strategy_candidates
from ..text.labels import checkpointing_label, method_title
from .advice import PlanFigures, job_figures, plan_figures
from .config_settings import ConfigSettings
from .differences import Difference, differences
from .dry_run_answer import DryRunAnswer
from .lint_file import lint_question


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonContext:
    """The conditions under which the two configurations are compared."""

    question: Question
    """Model and machines of both sides, and the workload of a strategy."""
    options: Mapping[str, Any]
    """The question's options, and `accumulation`, for a file without a record. The micro batch fills `auto`; without
    one, the advice's does (for a strategy, the fastest)."""
    given: frozenset[str] = frozenset()
    """Names of the options that somebody gave."""
    dry_run: Callable[[Callable[[], Run]], DryRunAnswer | None] = lambda _run: None
    """Dry runs a file with keys that are not predicted; None if it cannot be run here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two configurations. name: the file or the strategy. candidate: its figures; None if model or GPUs are
    unknown."""

    name: str
    settings: ConfigSettings
    candidate: Candidate | None = None
    filled: str = ""
    """The values for `auto` of the other file and of the advice (`FilledBatch.words`), and an assumed precision."""
    assumed: str = ""
    """What the figures assume of the training, because neither the file nor the question has it: with its options."""
    given: frozenset[str] = frozenset()
    """Names of the options that the user gave or the file records."""
    unpredicted: tuple[UnmodeledFeature, ...] = ()
    """Features and keys whose effect the figures do not have."""
    dry_run: DryRunAnswer | None = None
    """The dry run of a side with such features."""
    refused: str = ""
    """Why DeepSpeed or the Trainer refuses a file of which only the keys are compared; "" if they do not."""

    @property
    def all_assumed(self) -> str:
        """The values for `auto`, and what else the figures assume; "" if nothing."""
        return "; ".join(filter(None, (self.filled, self.assumed)))


@dataclass(frozen=True, kw_only=True)
class SideFigures:
    """Figures of side A or B."""

    name: str
    plan: PlanFigures | None
    """Null without --model."""
    refused: str
    """The first error of lint in a file that is compared without --model; "" without one."""


@dataclass(frozen=True, kw_only=True)
class ComparisonFigures:
    """Comparison of two configurations as data."""

    schema_version: int
    deepspeed: str
    """DeepSpeed version whose defaults apply."""
    sides: tuple[SideFigures, ...]
    differences: tuple[Difference, ...]
    """Differences, ordered by falling effect."""
    recomputing_tokens_per_second: tuple[float, ...]
    """Predicted speeds of A and B with checkpointing on in both, if only one side has it; else empty."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two sides and their differences. question: None if only the files are known."""

    sides: tuple[Side, Side]
    differences: tuple[Difference, ...]
    question: Question | None
    deepspeed: str
    is_identical: bool = False
    """Whether both sides are files of the same text."""
    recomputing: tuple[Candidate, ...] = ()
    """Both candidates with checkpointing on, if only one side has it and these can run: the speed without checkpointing
    is not the configuration's."""

    @property
    def candidates(self) -> list[Candidate]:
        """Candidates of both sides; empty if they are unknown."""
        return [side.candidate for side in self.sides if side.candidate is not None]

    def figures(self) -> ComparisonFigures:
        """Return the comparison as data."""
        sides = tuple(
            SideFigures(name=side.name, plan=self._plan(side.candidate), refused=side.refused) for side in self.sides
        )
        return from_attributes(
            ComparisonFigures,
            self,
            schema_version=SCHEMA_VERSION,
            sides=sides,
            recomputing_tokens_per_second=tuple(plan.tokens_per_s for plan in self.recomputing),
        )

    def _plan(self, candidate: Candidate | None) -> PlanFigures | None:
        if candidate is None or self.question is None:
            return None
        duration = candidate_duration(self.question, candidate)
        return plan_figures(candidate, job=None if duration is None else job_figures(duration, self.question.price))


def compare(
    first: str | FileQuestion, second: str | FileQuestion, context: ComparisonContext | None = None
) -> Comparison:
    """Compare two files, two strategies, or a file and a strategy. A text is the path of a file, or a strategy.

    Raises ConfigFileError for a file that cannot be read or, with a context, that DeepSpeed refuses, WorkloadError for
    a strategy without context and for an unsupported combination, ClusterError for a strategy that needs a swap folder
    and has none.
    """
    facts = load_facts()
    side, is_identical = build_side(first, context, facts, script=_script_of(second)), False
    if isinstance(first, FileQuestion) and isinstance(second, FileQuestion):
        is_identical = first.document.text == second.document.text
    # One file under two names is predicted once.
    if is_identical:
        sides = side, replace(side, name=_name(second))
    else:
        sides = side, build_side(second, context, facts, script=_script_of(first))
    has_keys = all(side.candidate is None or side.candidate.plan.sharding == "zero" for side in sides)
    return Comparison(
        sides=sides,
        differences=differences(sides[0].settings, sides[1].settings) if has_keys else (),
        question=None if context is None else context.question,
        deepspeed=facts.version,
        is_identical=is_identical,
        recomputing=() if context is None else _recomputing(first, second, sides, context),
    )


def _recomputing(
    first: str | FileQuestion, second: str | FileQuestion, sides: tuple[Side, Side], context: ComparisonContext
) -> tuple[Candidate, ...]:
    """Return `Comparison.recomputing`."""
    if len({side.candidate.plan.gradient_checkpointing for side in sides if side.candidate is not None}) < 2:
        return ()
    on = {"gradient_checkpointing": "on"}
    without_dry_run = ComparisonContext(
        question=context.question, options={**context.options, **on}, given=context.given
    )
    files = [each if isinstance(each, str) else replace(each, batch=each.batch | on) for each in (first, second)]
    with suppress(DsAdviseError):
        built = [
            build_side(file, without_dry_run, script=_script_of(other))
            for file, other in zip(files, reversed(files), strict=True)
        ]
        found = tuple(side.candidate for side in built if side.candidate is not None)
        return found if all(plan.fit.gpu_likely_suffices for plan in found) else ()
    return ()


def is_strategy(name: str) -> bool:
    """Whether a side is the name of a strategy, and not the path of a file."""
    return name in PLANS and not Path(name).exists()


def _name(side: str | FileQuestion) -> str:
    return side if isinstance(side, str) else side.name


def _script_of(side: str | FileQuestion) -> dict[str, Any]:
    """The options in `BATCH_OPTIONS` that a file's script has, as far as the file or its record has them; empty for a
    strategy, whose batch is chosen."""
    if isinstance(side, str):
        return {}
    written = {name: side.config.get(key) for name, key in FILLED.items()}
    return side.batch | {name: value for name, value in written.items() if type(value) is int and value > 0}


def _filled_from(script: Mapping[str, Any], side: FileQuestion, options: Mapping[str, Any]) -> dict[str, Any]:
    """The part of another file's script that fills `auto` of a file: one script runs both. Empty for a file that has or
    is asked for its own global batch, which may contradict the other's."""
    config = side.config
    own_total = type(config.get("train_batch_size")) is int or type(options.get("global_batch")) is int
    if own_total or side.recorded is not None:
        return {}
    is_open = {name for name, key in FILLED.items() if config.get(key) == "auto"}
    return {
        name: value
        for name, value in script.items()
        if options.get(name) is None and (name in is_open or name not in FILLED)
    }


def _problem(error: LintFinding) -> str:
    return f"line {error.line}: {error.what} ({error.code})"


def _refuse(side: FileQuestion, errors: Sequence[LintFinding]) -> None:
    """Raise ConfigFileError for the errors of a file, with the fix of one, or the command that has the fix of each."""
    if not errors:
        return
    known = {"--model": side.model, "--gpus": side.asked.get("gpus")}
    options = [str(word) for pair in known.items() if pair[1] is not None for word in pair]
    command = shlex.join(["ds-advise", "lint", side.name, *options])
    problems = f"{side.name}, {'; '.join(map(_problem, errors))}"
    if len(errors) > 1:
        raise ConfigFileError(problems, fix=f"`{command}` has the fix of each")
    raise ConfigFileError(problems, why=errors[0].why, fix=errors[0].fix)


def _errors_of(report: LintReport) -> list[LintFinding]:
    return [each for each in report.findings if each.severity == "error"]


def build_side(
    side: str | FileQuestion,
    context: ComparisonContext | None,
    facts: DeepSpeedFacts | None = None,
    *,
    script: Mapping[str, Any] = MappingProxyType({}),
) -> Side:
    """Return a file or a strategy as one side. script: the batch of the file that it is compared with, which fills
    `auto`. Raises the errors of `compare`."""
    facts = facts or load_facts()
    if isinstance(side, str):
        if not is_strategy(side):
            side = read_file_question(Path(side), {})
        elif context is not None:
            return _strategy_side(side, context, facts)  # type: ignore[arg-type]  # one of PLANS
        else:
            raise WorkloadError(
                f"{side} is a strategy: its settings are computed from the model and the GPUs",
                fix="pass --model and --gpus, or a ds_config.json instead",
            )
    name, config = side.name, side.config
    errors = _errors_of(lint_question(side, facts))
    if context is None:
        return Side(name=name, settings=ConfigSettings(config, facts), refused="; ".join(map(_problem, errors)))
    _refuse(side, errors)
    model, cluster = context.question.model, context.question.cluster
    is_recorded = side.recorded is not None
    options, batch = split_batch(side.options if is_recorded else context.options)
    given = frozenset(side.options) if is_recorded else context.given
    from_other = _filled_from(script, side, options | batch)
    batch |= from_other
    wanted = options.get("global_batch")
    options["global_batch"] = wanted = wanted if type(wanted) is int else None  # else the file's or the default
    workload = configured_workload(config, options, model, cluster.gpu)
    assumed = f"{workload.precision} assumed (--precision)" if assumes_half_precision(config, options) else ""
    if workload.optimizer not in OPTIMIZERS:
        known = workload.optimizer[:40]
        raise WorkloadError(
            f"{name}: the memory of the optimizer {known!r} is not known",
            why="the memory depends on its states per parameter",
            fix="compare the files without --model, or name one of " + ", ".join(sorted(OPTIMIZERS)),
        )
    try:
        filled = filled_batch(config, model, workload, cluster, **batch)
        plan = filled.plan(config, model, cluster, workload.software)
    except ConfigFileError as error:
        what = f"{name}: {error.what}"
        raise ConfigFileError(what, why=error.why, fix=error.fix) from error
    samples = plan.samples_per_step(cluster.world_size)
    if wanted not in (None, samples):
        raise WorkloadError(
            f"--global-batch {wanted} and {name} contradict each other",
            why=f"its micro batch and accumulation make {samples} samples per step",
            fix='leave --global-batch out, or write "auto" for the accumulation',
        )
    obstacle = unsupported(model, workload, plan, cluster)
    if obstacle is not None:
        _refuse(side, _errors_of(lint_question(side, facts, model)))  # an error that depends on the model has its fix
        raise UnsupportedPlanError(f"{name} cannot run", why=obstacle)
    is_chosen = bool(filled.words) or "gradient_checkpointing" in from_other
    features, candidate, ran = (
        tuple(unpredicted(config, facts, plan, model)),
        predict(model, workload, cluster, plan),
        None,
    )
    if features and not any(feature.not_dry_run for feature in features):
        question = replace(context.question, workload=workload)
        ran = context.dry_run(
            lambda: replace(build_run(question, plan, offline=bool(options.get("offline"))), config=config)
        )
    if ran is not None:
        candidate = replace(candidate, fit=ran.fit, measured_bytes=ran.required_device_bytes_per_gpu)
    return Side(
        name=name,
        settings=ConfigSettings(config, facts, plan, workload, cluster),
        candidate=candidate,
        filled="; ".join(filter(None, (_other_words(from_other), filled.words, assumed))),
        assumed="" if is_recorded else _assumed(workload, candidate.plan, given, is_chosen=is_chosen),
        given=given,
        unpredicted=features,
        dry_run=ran,
    )


def _other_words(from_other: Mapping[str, Any]) -> str:
    """What fills `auto` from the other file, in words."""
    words = [f"{name.replace('_', ' ')} {value}" for name, value in from_other.items()]
    return f"`auto` filled as in the other file, for one script: {', '.join(words)}" if words else ""


def _assumed(workload: Workload, plan: Plan, given: Collection[str], *, is_chosen: bool) -> str:
    """Return what no DeepSpeed configuration has and nobody named. is_chosen: whether the advice chose the
    checkpointing."""
    words = {
        "method": method_title(workload),
        "optimizer": "" if workload.optimizer_block else f"{workload.optimizer} as the optimizer",
        "seq_len": f"sequence {workload.seq_len}",
        "loss": f"{workload.loss} loss",
        "gradient_checkpointing": "" if is_chosen else f"checkpointing {checkpointing_label(plan)}",
    }
    unnamed = {name: text for name, text in words.items() if text and name not in given}
    flags = ", ".join(OPTIONS[name].flag for name in unnamed)
    return f"{', '.join(unnamed.values())} ({flags})" if unnamed else ""


def _strategy_side(strategy: Strategy | PlainPyTorch, context: ComparisonContext, facts: DeepSpeedFacts) -> Side:
    """Return the strategy's best plan as the configuration that would be written for it. Plain PyTorch has none."""
    # As a file with `auto`: what the batch leaves open is chosen. The batch size alone counts, not the job.
    is_given = context.question.micro_batch_size is not None
    checkpointing: CheckpointingChoice = context.options.get("gradient_checkpointing") or ("on" if is_given else "auto")
    question = replace(context.question, job=None).replace_options(gradient_checkpointing=checkpointing)
    model, workload, cluster = question.model, question.workload, question.cluster
    if (steps := context.options.get("accumulation")) is not None:
        micro = question.micro_batch_size or 1
        workload = replace(workload, global_batch_size=micro * steps * cluster.world_size)
        question = replace(question, workload=workload, micro_batch_size=micro)
    candidates, obstacle = strategy_candidates(strategy, question)
    candidate = best_of_strategy(candidates, LEAST[question.risk])
    if candidate is None:
        what = f"{strategy} cannot run here: {obstacle}"
        raise WorkloadError(what, fix="compare another strategy")
    is_deepspeed = candidate.plan.sharding == "zero"
    config = ds_config(candidate.plan, model, workload, cluster, flavor=workload.framework) if is_deepspeed else {}
    settings = ConfigSettings(config, facts, candidate.plan, workload, cluster)
    return Side(name=strategy, candidate=candidate, settings=settings)
