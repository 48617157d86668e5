"""Dry runs of one base configuration, each with some keys changed, and the closed form beside them."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ds_advise.advisor.question.workload import configured_workload
from ds_advise.ds_configs.config_keys import CONFIG_KEYS, acts_at
from ds_advise.ds_configs.emit import ds_config
from ds_advise.estimators.errors import DsAdviseError
from ds_advise.estimators.schedule.recorded import Code
from ds_advise.estimators.unsupported import unsupported
from ds_advise.probes.dry_run.run import dry_run, simulated_step
from ds_advise.probes.recording.result import DryRunResult
from ds_advise.probes.run import Run
from ds_advise.probes.run_errors import DryRunError
from ds_advise.validate.lint import DeepSpeedFacts
from ds_advise.validate.lint.facts import ConfigField

from ..dry_run.cases import DATA, FAMILIES, Case
from ..dry_run.compare import ITERATIONS, ITERATIONS_ZERO3, Measured, Setting, tensor_bytes
from ..dry_run.forked_dry_runs import answers

VALUES: dict[str, list[Any]] = json.loads((DATA / "engine_key_values.json").read_text(encoding="utf-8"))
"""Key -> values where neither its default nor its type determines some; those of a key that another one needs are
objects."""

MODEL, SEQUENCE, BUCKET = "llama", 256, 20_000_000
"""The bucket is small, so that it does not hide what else changes."""

_FIELDS: dict[str, dict[str, Any]] = {
    "stage 0": {"strategy": "ddp"},
    "stage 1": {"strategy": "zero1"},
    "stage 1, cpu": {"strategy": "zero1", "changes": (("offload_optimizer", "cpu"),)},
    "stage 1, AutoTP": {"strategy": "zero1", "changes": (("autotp_size", 2),)},
    "stage 2": {"strategy": "zero2"},
    "stage 2, cpu": {"strategy": "zero2-offload"},
    "stage 2, cpu, fp16": {"strategy": "zero2-offload", "precision": "fp16"},
    "stage 3": {"strategy": "zero3"},
    "stage 3, fp16": {"strategy": "zero3", "precision": "fp16"},
    "stage 3, cpu": {"strategy": "zero3-offload"},
    "stage 3, nvme": {"strategy": "zero3-nvme"},
}

BASES: dict[str, Case] = {
    name: Case(model=MODEL, world_size=2, seq_len=SEQUENCE, gradient_accumulation_steps=2, **fields)
    for name, fields in _FIELDS.items()
}

BYTES, TIME = (-0.02, 0.04), (-0.15, 0.15)
"""Limits of a verdict's errors: for bytes those of the closed form in its grid of cases (docs/closed-form.md), for the
time of a step those of the simulation, which the host bounds for a model this small."""

GROUP = 48
"""Settings of a first group."""


class Change(NamedTuple):
    path: str
    text: str
    """The value as JSON."""

    def __str__(self) -> str:
        return f"{self.path}={self.text}"


def changed(config: Mapping[str, Any], changes: Iterable[Change]) -> dict[str, Any]:
    found = deepcopy(dict(config))
    for change in changes:
        node = found
        *owners, name = change.path.split(".")
        for owner in owners:
            node = node.setdefault(owner, {})
        node[name] = json.loads(change.text)
    return found


def all_changes(facts: DeepSpeedFacts) -> Iterator[Change]:
    """Other values of every key, and of the arguments of Adam in VALUES."""
    paths = dict[str, list[Any]]()
    for block in facts.blocks:
        if block.path == "bfloat16":  # the old name of bf16
            continue
        for field in block.fields:
            if not field.block and not field.deprecated:
                paths[block.qualified_path(field.usual_name)] = values_of(field)
        for key in block.keys:
            if facts.block(path := block.qualified_path(key)) is None:
                paths[path] = other_values(block.defaults.get(key))
    whole = tuple(f"{path}." for path in VALUES if facts.block(path) is not None)
    paths = {path: values for path, values in paths.items() if not path.startswith(whole)}
    for path, values in (paths | VALUES).items():
        yield from (Change(path, json.dumps(value)) for value in values)


def values_of(field: ConfigField) -> list[Any]:
    if field.type.name in ("choice", "literal"):
        return [choice for choice in field.type.choices if choice != field.default]
    return ["x"] if field.type.name in ("str", "path") else other_values(field.default)


def other_values(default: Any) -> list[Any]:
    if isinstance(default, bool):
        return [not default]
    if isinstance(default, int):
        return [value for value in (max(1, default // 4), max(1, 2 * default)) if value != default]
    return [default / 2] if isinstance(default, float) else []


@cache
def setting_of(base: str) -> Setting:
    setting = Setting.of(BASES[base])
    return replace(setting, plan=setting.plan.replace_fields(reduce_bucket_size=BUCKET))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A dry run with some changes. kind: "same" as the base, in bytes and operations; "differs"; "refused" by the
    engine, or by the dry run."""

    kind: Literal["same", "differs", "refused"]
    why: str = ""
    measured: Measured | None = None
    backward_bytes: int = 0
    """Allocated bytes of one GPU at the peaks of the backward passes and of the step."""
    optimizer_bytes: int = 0
    step_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """By figure, by how much the closed form changes more against the base than the dry run does, as a share of the
    dry run's figure, or of its peak."""

    base: str
    changes: tuple[Change, ...]
    outcome: Outcome
    errors: Mapping[str, float]
    unsupported: str = ""
    """Why the closed form refuses it."""

    @property
    def follows(self) -> bool:
        limits = ((TIME if name == "time" else BYTES, error) for name, error in self.errors.items())
        return not self.unsupported and all(least <= error <= most for (least, most), error in limits)


class Study:
    """The dry runs of one base."""

    def __init__(self, base: str, known: Path | None, workers: int, *, offline: bool) -> None:
        self.base, self.setting = base, setting_of(base)
        plan, model, workload, cluster = (
            self.setting.plan,
            self.setting.model,
            self.setting.workload,
            self.setting.cluster,
        )
        self.config = ds_config(plan, model, workload, cluster, flavor="deepspeed")
        self.kept, self.workers, self.offline = known, workers, offline
        self.outcomes: dict[tuple[Change, ...], Outcome] = _read(known, base)
        self.reference: tuple[Any, ...] | None = None

    def run_of(self, changes: Iterable[Change]) -> Run:
        setting, config = self.setting, changed(self.config, changes)
        options = {"framework": "deepspeed", "seq_len": SEQUENCE}
        return Run(
            config=config,
            model=FAMILIES[MODEL],
            cluster=setting.cluster,
            workload=configured_workload(config, options, setting.model, setting.cluster.gpu),
            shape=setting.model,
            micro_batch_size=1,
            gradient_accumulation_steps=2,
        )

    def call(self, changes: tuple[Change, ...]) -> Callable[[], DryRunResult]:
        def called() -> DryRunResult:
            try:
                return dry_run(
                    self.run_of(changes),
                    rank=self.setting.fullest_rank(),
                    iterations=ITERATIONS_ZERO3 if self.setting.plan.zero_stage == 3 else ITERATIONS,
                    expandable_segments=True,
                )
            except DryRunError:
                raise
            except Exception as error:  # a value that not even the configuration's reader expects
                raise DryRunError(f"{type(error).__name__}: {error}", phase="load") from error

        return called

    def ask(self, groups: Sequence[tuple[Change, ...]]) -> None:
        """Fill `outcomes` of the groups; those of several changes that differ are halved, if they are groups of
        `singles`."""
        for group, answer in zip(
            groups, answers([self.call(group) for group in groups], workers=self.workers), strict=True
        ):
            if isinstance(answer, DryRunError):
                outcome = Outcome(kind="refused", why=" ".join(str(answer).split())[:200])
            else:
                kind: Literal["same", "differs"] = "differs"
                if not group:
                    self.reference = signature(answer)
                elif signature(answer) == self.reference:
                    kind = "same"
                step = simulated_step(answer, self.setting.cluster, seq_len=SEQUENCE)
                assert step is not None
                peaks = {name: answer.phase(name).gpu_peak_bytes for name in ("backward", "step")}
                outcome = Outcome(
                    kind=kind,
                    measured=Measured.of(answer),
                    backward_bytes=peaks["backward"],
                    optimizer_bytes=peaks["step"],
                    step_s=step.time.step_s,
                )
            self.keep(group, outcome)

    def keep(self, group: tuple[Change, ...], outcome: Outcome) -> None:
        self.outcomes[group] = outcome
        if outcome.kind == "same":
            self.outcomes |= {(change,): outcome for change in group}
        if self.kept is not None:
            entry = {"base": self.base, "changes": group, "outcome": asdict(outcome)}
            with self.kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")

    def singles(self, changes: Sequence[Change], alone: Collection[Change]) -> None:
        """Ask for every change by itself: those in `alone`, which are likely to have an effect, at once, others in
        groups as long as they have none."""
        missing = [change for change in changes if (change,) not in self.outcomes]
        if self.offline or not missing:
            return
        self.ask([()])
        if self.outcomes[()].kind == "refused":
            raise RuntimeError(self.outcomes[()].why)
        seen, rounds = Counter[str](), dict[int, list[Change]]()
        alone = {change for change in alone if self.may_act(change.path)}
        for change in (each for each in missing if each not in alone):  # a group has one value of each key
            rounds.setdefault(seen[change.path], []).append(change)
            seen[change.path] += 1
        groups = [tuple(each[i : i + GROUP]) for each in rounds.values() for i in range(0, len(each), GROUP)]
        groups += [(change,) for change in missing if change in alone]
        while groups:
            self.ask(groups)
            larger = [group for group in groups if len(group) > 1 and self.outcomes[group].kind != "same"]
            groups = [half for group in larger for half in (group[: len(group) // 2], group[len(group) // 2 :])]

    def may_act(self, path: str) -> bool:
        """Whether a key is known to be used at this base's stage and offload, or nothing is known of it."""
        known, plan = CONFIG_KEYS.get(path), self.setting.plan
        devices = {"offload_optimizer": plan.offload_optimizer, "offload_param": plan.offload_param}
        block = path.rpartition(".")[0].rpartition(".")[2]
        on_nvme = known is None or not known.nvme_only or "nvme" in devices.values()
        return acts_at(path, plan.zero_stage) and on_nvme and devices.get(block) != "none"

    def kind_of(self, change: Change) -> str:
        return self.outcomes[(change,)].kind if (change,) in self.outcomes else "same"

    def pairs(self, changes: Sequence[Change], count: int, rng: random.Random) -> list[tuple[Change, ...]]:
        """Ask for random pairs of different keys that have an effect alone."""
        acting = [change for change in changes if self.kind_of(change) == "differs"]
        drawn = [rng.sample(acting, 2) for _ in range(count * (len(acting) > 1))]
        found = [(min(pair), max(pair)) for pair in drawn if pair[0].path != pair[1].path]
        missing = [pair for pair in dict.fromkeys(found) if pair not in self.outcomes]
        if missing and not self.offline:
            self.ask([(), *missing])
        return [pair for pair in dict.fromkeys(found) if pair in self.outcomes]

    def verdict(self, changes: tuple[Change, ...]) -> Verdict:
        outcome = self.outcomes[changes]
        if outcome.kind != "differs":
            return Verdict(base=self.base, changes=changes, outcome=outcome, errors={})
        before, after = self._figures(()), self._figures(changes)
        if isinstance(after, str) or isinstance(before, str):
            return Verdict(base=self.base, changes=changes, outcome=outcome, errors={}, unsupported=str(after))
        peak = max(after["backward"][1], after["step"][1])
        errors = {
            name: ((ours - before[name][0]) - (run - before[name][1]))
            / (run if name not in ("backward", "step") else peak)
            for name, (ours, run) in after.items()
            if run or before[name][1]
        }
        return Verdict(base=self.base, changes=changes, outcome=outcome, errors=errors)

    def _figures(self, changes: tuple[Change, ...]) -> dict[str, tuple[float, float]] | str:
        """(closed form, dry run) by figure; the reason if the closed form refuses the plan."""
        outcome, run = self.outcomes[changes], self.run_of(changes)
        assert outcome.measured is not None
        try:
            plan = run.plan()
            estimate = run.estimate()
        except DsAdviseError as error:
            return str(error)
        assert plan is not None
        setting = replace(self.setting, plan=plan, workload=run.workload)
        if estimate is None:
            return "refused"
        if obstacle := unsupported(setting.model, run.workload, plan, setting.cluster):
            return obstacle
        both = setting.compare(outcome.measured)
        phases = {phase.name: tensor_bytes(phase) for phase in estimate.memory.phases}
        backward = max(size for name, size in phases.items() if name not in _NOT_BACKWARD)
        return {
            "backward": (backward, outcome.backward_bytes),
            "step": (phases["step"], outcome.optimizer_bytes),
            "host": both.host,
            "nvme": both.nvme,
            "time": (estimate.time.step_s, outcome.step_s),
        }


_NOT_BACKWARD = ("load", "initialize", "first_layer_forward", "last_layer_forward", "step")


def signature(result: DryRunResult) -> tuple[Any, ...]:
    """What is equal for two runs with the same bytes and operations: bytes of every phase, of the allocator and of
    NVMe, and how often a step issues every operation and every call of the host."""
    schedule, peak = result.schedule, result.peak
    assert schedule is not None
    issued = Counter[Any]()
    for code, first, second in schedule.entries:
        if code == Code.RUN:
            issued[schedule.operations[first]] += 1
        elif code == Code.CALL:
            issued[schedule.calls[first]] += second
    held = (peak.allocated_bytes_per_gpu, peak.reserved_bytes_per_gpu, peak.required_bytes_per_gpu)
    return result.phases, held, peak.host_bytes_per_node, result.nvme_bytes_per_rank, frozenset(issued.items())


def _read(kept: Path | None, base: str) -> dict[tuple[Change, ...], Outcome]:
    found: dict[tuple[Change, ...], Outcome] = {}
    for line in kept.read_text(encoding="utf-8").splitlines() if kept is not None and kept.exists() else ():
        entry = json.loads(line)
        if entry["base"] == base:
            outcome, group = entry["outcome"], tuple(Change(*each) for each in entry["changes"])
            measured = outcome.pop("measured")
            found[group] = Outcome(**outcome, measured=measured and Measured(**measured))
            if outcome["kind"] == "same":
                found |= {(change,): found[group] for change in group}
    return found
