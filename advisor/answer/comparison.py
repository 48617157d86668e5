"""Two configurations side by side: what differs between them, and what that does to memory and speed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Unpack, cast

from ...ds_configs.config_keys import meaning, rank
from ...ds_configs.emit import ds_config
from ...estimators.errors import ConfigFileError, WorkloadError
from ...estimators.hardware import Cluster
from ...estimators.json_form import SCHEMA_VERSION, from_attributes
from ...estimators.models.model_shape import ModelShape
from ...estimators.optimizers import OPTIMIZERS
from ...estimators.phrase import phrase
from ...estimators.plan import PLANS, PlainPyTorch, Plan, Rung
from ...estimators.time.job import Job, JobDuration, Price, job_duration
from ...estimators.unsupported import unsupported
from ...estimators.workload import Workload
from ...validate.lint import load_facts
from ...validate.lint.facts import DeepSpeedFacts
from ..question.cluster import cluster_of
from ..question.job import job_of, parse_price
from ..question.model_source import load_model
from ..question.options import CheckpointingChoice, QuestionOptions, with_defaults
from ..question.question import Question
from ..question.run import read_ds_config
from ..question.workload import as_asked, configured_workload, workload_of
from ..search.candidate import LEAST, Candidate, predict
from ..search.choice import best_of_rung
from ..search.open_batch import filled_batch
from ..search.search import candidates_of
from .advice import PlanFigures, job_figures, plan_figures
from .config_settings import ConfigSettings, Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonContext:
    """What the two configurations are to be run with."""

    model: ModelShape
    cluster: Cluster
    options: QuestionOptions
    """Precision and optimizer count where a file leaves them open."""
    micro_batch_size: int | None = None
    """TrainingArguments' value, which fills `auto`; None: the advice's, which for a rung is the fastest."""
    gradient_accumulation_steps: int | None = None
    gradient_checkpointing: bool | None = None
    """None: on, or the advice's where the batch is."""
    job: Job | None = None
    """The amount of training; None if unknown."""
    price: Price | None = None
    job_basis: tuple[str, ...] = ()
    """As in `Question`."""

    def duration(self, candidate: Candidate) -> JobDuration | None:
        """How long the job takes under a plan."""
        if self.job is None:
            return None
        return job_duration(self.model, self.workload, self.cluster, candidate.plan, candidate.time, self.job)

    @property
    def workload(self) -> Workload:
        """The workload of rungs, and of a file that leaves everything open."""
        return workload_of(self.options, self.model, self.cluster.gpu)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two. name: the file or the rung. candidate: its figures, None where model or GPUs are not known."""

    name: str
    settings: ConfigSettings
    candidate: Candidate | None = None
    filled: str = ""
    """The values for `auto` that are the advice's (`FilledBatch.words`)."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A setting that is not the same."""

    key: str
    first: Setting
    second: Setting
    meaning: str
    acts: bool
    """It has an effect in at least one of the two."""


@dataclass(frozen=True, kw_only=True)
class SideFigures:
    """A or B."""

    name: str
    plan: PlanFigures | None
    """Null without --model."""


@dataclass(frozen=True, kw_only=True)
class ComparisonFigures:
    """Two configurations side by side."""

    schema_version: int
    deepspeed: str
    """The version of the defaults."""
    sides: tuple[SideFigures, ...]
    differences: tuple[Difference, ...]
    """Those with the largest effect first."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two sides and their differences. context: None where only the files are known."""

    first: Side
    second: Side
    differences: tuple[Difference, ...]
    context: ComparisonContext | None
    deepspeed: str

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.first, self.second

    @property
    def candidates(self) -> list[Candidate]:
        """Both sides' figures, none where they are not known."""
        return [side.candidate for side in self.sides if side.candidate is not None]

    def figures(self) -> ComparisonFigures:
        """The comparison as data."""
        sides = tuple(SideFigures(name=side.name, plan=self._plan(side.candidate)) for side in self.sides)
        return from_attributes(ComparisonFigures, self, schema_version=SCHEMA_VERSION, sides=sides)

    def _plan(self, candidate: Candidate | None) -> PlanFigures | None:
        known = self.context
        if candidate is None or known is None:
            return None
        duration = known.duration(candidate)
        return plan_figures(candidate, job=None if duration is None else job_figures(duration, known.price))


def read_context(
    model: str,
    *,
    accumulation: int | None = None,
    say: Callable[[str], None] = lambda _: None,
    **options: Unpack[QuestionOptions],
) -> ComparisonContext:
    """The context of a comparison. say: receives progress of counting data.

    Raises DsAdviseError for unknown, impossible or contradictory options.
    """
    given = with_defaults(options)
    cluster = cluster_of(given)
    shape = as_asked(load_model(model, offline=given["offline"]), given)
    seq_len = cast("int | None", given["seq_len"])
    asked = job_of(given, model, shape, seq_len=seq_len, say=say)
    if asked is not None:
        given = {**given, "seq_len": asked.seq_len or seq_len}
    context = ComparisonContext(
        model=shape,
        cluster=cluster,
        options=given,
        job=None if asked is None else asked.job,
        job_basis=() if asked is None else asked.basis,
        price=None if given["price"] is None else parse_price(given["price"]),
        micro_batch_size=cast("int | None", given["micro_batch"]),
        gradient_accumulation_steps=accumulation,
        gradient_checkpointing={"on": True, "off": False}.get(str(given["gradient_checkpointing"])),
    )
    _ = context.workload  # raises for impossible options before a file is read
    return context


def compare(first: str, second: str, context: ComparisonContext | None = None) -> Comparison:
    """Compare two files, two rungs, or one of each.

    Raises ConfigFileError for a file that cannot be read or holds what DeepSpeed refuses, WorkloadError for a rung
    without context and for what cannot be run at all, ClusterError for a rung that lacks a folder to swap to.
    """
    facts = load_facts()
    sides = [side_of(name, context, facts) for name in (first, second)]
    return Comparison(
        first=sides[0],
        second=sides[1],
        differences=differences(sides[0].settings, sides[1].settings) if _both_deepspeed(sides) else (),
        context=context,
        deepspeed=facts.version,
    )


def _both_deepspeed(sides: Iterable[Side]) -> bool:
    return all(side.candidate is None or side.candidate.plan.sharding == "zero" for side in sides)


def differences(first: ConfigSettings, second: ConfigSettings) -> tuple[Difference, ...]:
    """The keys of either file with different settings once `auto` and missing keys have their values."""
    found = []
    for path in sorted(first.paths() | second.paths(), key=rank):
        ours, theirs = first.get(path), second.get(path)
        if ours.same_as(theirs) or _only_repeats_the_default(path, first, second) or _follows(path, ours, theirs):
            continue
        found.append(
            Difference(
                key=path, first=ours, second=theirs, meaning=meaning(path), acts=first.acts(path) or second.acts(path)
            )
        )
    return tuple(found)


def _follows(path: str, ours: Setting, theirs: Setting) -> bool:
    """The whole batch, where one side leaves it to follow from the other two batch sizes and the number of GPUs."""
    return path == "train_batch_size" and (ours.value in (None, "auto") or theirs.value in (None, "auto"))


def _only_repeats_the_default(path: str, first: ConfigSettings, second: ConfigSettings) -> bool:
    """A key of a block that only one of the two switches on, with the value that it has there anyway."""
    for here, there in ((first, second), (second, first)):
        if here.active(path) and not there.active(path):
            return here.get(path).same_as(here.default(path))
    return False


def side_of(name: str, context: ComparisonContext | None, facts: DeepSpeedFacts | None = None) -> Side:
    """A file or a rung as one side. Raises as `compare`."""
    facts = facts or load_facts()
    if name in PLANS and not Path(name).exists():
        if context is None:
            raise WorkloadError(
                phrase("{name} is a strategy: its numbers follow from the model and the GPUs", name=name),
                fix="pass --model and --gpus, or a ds_config.json in its place",
            )
        return _rung_side(name, context, facts)
    config = read_ds_config(Path(name))
    if context is None:
        return Side(name=name, settings=ConfigSettings(config, facts))
    model, cluster = context.model, context.cluster
    workload = configured_workload(config, context.options, model, cluster.gpu)
    if workload.optimizer not in OPTIMIZERS:
        raise WorkloadError(
            phrase(
                "{name}: the memory of the optimizer {optimizer!r} is not known",
                name=name,
                optimizer=workload.optimizer[:40],
            ),
            why="its states per parameter decide the memory",
            fix="compare the files without --model, or name one of " + ", ".join(sorted(OPTIMIZERS)),
        )
    try:
        filled = filled_batch(
            config,
            model,
            workload,
            cluster,
            micro_batch_size=context.micro_batch_size,
            gradient_accumulation_steps=context.gradient_accumulation_steps,
            gradient_checkpointing=context.gradient_checkpointing,
        )
        plan = filled.plan(config, model, cluster)
    except ConfigFileError as error:
        raise ConfigFileError(
            phrase("{name}: {what}", name=name, what=error.what), why=error.why, fix=error.fix
        ) from error
    return Side(
        name=name,
        settings=ConfigSettings(config, facts, plan, workload, cluster),
        candidate=_candidate(name, plan, model, workload, cluster),
        filled=filled.words,
    )


def _candidate(name: str, plan: Plan, model: ModelShape, workload: Workload, cluster: Cluster) -> Candidate:
    obstacle = unsupported(model, workload, plan, cluster)
    if obstacle is not None:
        raise WorkloadError(
            phrase("{name} cannot run: {obstacle}", name=name, obstacle=obstacle), fix="compare it without --model"
        )
    return predict(model, workload, cluster, plan)


def _rung_side(rung: Rung | PlainPyTorch, context: ComparisonContext, facts: DeepSpeedFacts) -> Side:
    """The best plan of the rung, as the configuration that would be written for it; plain PyTorch has none."""
    model, cluster = context.model, context.cluster
    workload = context.workload
    checkpointing: CheckpointingChoice = "off" if context.gradient_checkpointing is False else "on"
    micro, accumulation = context.micro_batch_size, context.gradient_accumulation_steps
    if accumulation is not None:
        micro = micro or 1
        workload = replace(workload, global_batch_size=micro * accumulation * cluster.world_size)
    question = Question(
        model=model, workload=workload, cluster=cluster, micro_batch_size=micro, gradient_checkpointing=checkpointing
    )
    candidates, obstacle = candidates_of(rung, question)
    candidate = best_of_rung(candidates, LEAST[question.risk])
    if candidate is None:
        raise WorkloadError(
            phrase("{rung} cannot run here: {obstacle}", rung=rung, obstacle=obstacle), fix="compare another strategy"
        )
    is_deepspeed = candidate.plan.sharding == "zero"
    config = ds_config(candidate.plan, model, workload, cluster, flavor=workload.framework) if is_deepspeed else {}
    return Side(
        name=rung, candidate=candidate, settings=ConfigSettings(config, facts, candidate.plan, workload, cluster)
    )


class ComponentPair(NamedTuple):
    """A component of both sides: bytes or seconds, 0 where a side does not have it."""

    name: str
    first: float
    second: float


def parts(first: Mapping[str, float], second: Mapping[str, float], least: float) -> list[ComponentPair]:
    """The components of both, the largest first; those below the share `least` of both totals together as `other`."""
    every = [ComponentPair(name, first.get(name, 0), second.get(name, 0)) for name in dict.fromkeys([*first, *second])]
    ours, theirs = sum(first.values()), sum(second.values())
    large = [part for part in every if part.first >= least * ours or part.second >= least * theirs]
    small = [part for part in every if part not in large]
    ordered = sorted(large, key=lambda part: -max(part.first, part.second))
    rest = ComponentPair("other", sum(part.first for part in small), sum(part.second for part in small))
    return [*ordered, rest] if rest.first or rest.second else ordered
