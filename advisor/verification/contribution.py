"""Measured runs in the form of the published runs: all that a prediction of them needs, and nothing else of the user.

A row has the model, the machine's class, the libraries' versions, the DeepSpeed configuration, the workload, and the
measured next to the predicted figures. It has no path, no name of a host, user or model folder, and no text of a
script: strings of the configurations are kept only if they are single words, and a model that has no public name is
called by its type and shape.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from packaging.version import Version

from ... import __version__
from ...ds_configs.record import without_record
from ...estimators.errors import DsAdviseError, UnknownModelError
from ...estimators.gpu_catalogue import find_gpu
from ...estimators.hardware import Cluster
from ...estimators.json_form import from_json, to_json
from ...estimators.models import catalogue
from ...estimators.models.model_shape import ModelShape
from ...estimators.objectives import trained_model
from ...estimators.workload import Software, Workload
from ...probes.machine import Machine
from ...probes.real_run.result import ProbeResult
from ...probes.run import MONITORS, Run
from ...probes.store import Record, model_key
from ...validate.lint.facts import DeepSpeedFacts
from ..question.cluster import parse_cluster
from ..question.model_source import load_config, model_shape
from .prediction import by_estimate

FORMAT = 1
"""Version of the form; increases when a field changes its meaning or is removed."""

_WORD = re.compile(r"[A-Za-z0-9_.+-]{1,64}")
"""A string that is kept: the name of an optimizer, a type, a device. A path has a separator, a sentence a space."""


class ContributionError(DsAdviseError):
    """A record or a file holds no measured run that can be contributed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """Figures of one run; null if unknown. Bytes are the peaks of the GPU with the highest."""

    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    device_bytes: int | None = None
    host_bytes: int | None = None
    """Resident memory of the ranks of a node."""
    step_s: float | None = None
    """Of an optimizer step."""
    tokens_per_step: float | None = None
    """Of all GPUs, padding included."""


@dataclass(frozen=True, kw_only=True)
class ContributedRun:
    """One measured run."""

    kind: Literal["probe", "training"]
    date: str
    model: str
    """A name that ds-advise knows, or the type and the key of `model_config`."""
    model_config: Mapping[str, Any] | None = None
    """config.json of a model without such a name; null with one."""
    gpus: str
    """As `--gpus` takes it."""
    driver: str
    cpu: str
    cpu_cores: int
    ram_bytes: int
    versions: Mapping[str, str]
    """Versions of torch, DeepSpeed and transformers, and of the ds-advise that predicted."""
    ds_config: Mapping[str, Any]
    gradient_checkpointing: bool
    cpu_checkpointing: bool
    workload: Mapping[str, Any]
    """Fields of `Workload`."""
    out_of_memory: bool
    """Whether the run ended because GPU memory ran out."""
    measured: RunFigures
    predicted: RunFigures

    @property
    def shape(self) -> ModelShape:
        """The trained model. Raises UnknownModelError or ModelConfigError."""
        if self.model_config is None:
            return trained_model(catalogue.find(self.model), self.trained.objective)
        return trained_model(model_shape(dict(self.model_config), name=self.model), self.trained.objective)

    @property
    def trained(self) -> Workload:
        return from_json(Workload, self.workload)

    @property
    def run(self) -> Run:
        """The run as the closed forms take it. The network between nodes is the usual one."""
        return Run(
            config=self.ds_config,
            model={},
            shape=self.shape,
            model_name=self.model,
            cluster=self.cluster,
            workload=self.trained,
            gradient_checkpointing=self.gradient_checkpointing,
            cpu_checkpointing=self.cpu_checkpointing,
        )

    @property
    def cluster(self) -> Cluster:
        return parse_cluster(self.gpus, ram=f"{self.ram_bytes / 2**30:.6f}GiB", host=f"{self.cpu_cores}cores")


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """The file of `ds-advise contribute`."""

    format: int = FORMAT
    runs: tuple[ContributedRun, ...] = field(default=())


def read_contribution(value: Mapping[str, Any]) -> Contribution:
    """The contribution in a JSON object. Raises ContributionError for another form."""
    try:
        if value["format"] != FORMAT:
            raise ContributionError(f"the contribution has format {value['format']}", fix=f"use format {FORMAT}")
        found = from_json(Contribution, value)
        assert all(isinstance(run, ContributedRun) for run in found.runs)
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError) as error:
        raise ContributionError(
            f"this is no file of ds-advise contribute ({type(error).__name__}: {error})", fix="write it again"
        ) from error
    return found


def contributed_run(record: Record, facts: DeepSpeedFacts, model: str | None = None) -> ContributedRun:
    """A stored record as a row.

    facts: of a DeepSpeed version; keys of the configuration that it does not know are left out.
    model: source of the trained model's config.json, for a model without a public name.

    Raises ContributionError for a record that is no row: of a benchmark or dry run, of the CPU, of one rank alone, of a
    failure that is not a lack of memory, or of a model that is not found.
    """
    result, world_size = record.result, record.result.get("world_size")
    failure = result.get("failure") or {}
    if record.kind not in ("probe", "training"):
        raise _no_row(record, "it is neither a probe nor a training", "give the number of a probe or a training")
    if not record.ran_on_gpus:
        raise _no_row(record, "it ran on the CPU, and the published runs are of GPUs", "probe or train on a GPU")
    if result.get("solo"):
        raise _no_row(record, "one rank ran alone, without communication", "probe all ranks")
    if failure and failure.get("kind") != "out_of_memory":
        raise _no_row(record, "it failed, but not for lack of GPU memory", "ds-advise why LOG names the cause")
    conditions = dict(record.workload)
    checkpointing, on_host = conditions.get("gradient_checkpointing", True), conditions.get("cpu_checkpointing", False)
    known = {each.name for each in fields(Workload)}
    workload = from_json(Workload, {name: value for name, value in conditions.items() if name in known})
    workload = replace(workload, software=_as_ran(workload.software, record.versions))
    if record.plan.get("train_micro_batch_size_per_gpu", "auto") == "auto":
        raise _no_row(record, "its micro batch is not recorded", "measure again")
    name, config = _public_model(record, workload, model)
    found = ContributedRun(
        kind="probe" if record.kind == "probe" else "training",
        date=record.made_at[:10],
        model=name,
        model_config=config,
        gpus=machine_spec(record.machine, int(world_size or 1)),
        driver=record.machine.driver,
        cpu=record.machine.cpu,
        cpu_cores=record.machine.cpu_cores,
        ram_bytes=record.machine.ram_bytes,
        versions={**record.versions, "ds-advise": __version__},
        ds_config=_public_config(record.plan, facts),
        gradient_checkpointing=checkpointing,
        cpu_checkpointing=on_host,
        workload=to_json(workload),
        out_of_memory=bool(failure),
        measured=RunFigures() if failure else _measured(record),
        predicted=RunFigures(),
    )
    estimate = found.run.estimate()
    if estimate is None:
        raise _no_row(record, "the closed form does not predict its configuration", "a dry run does")
    predicted = by_estimate(estimate, found.run.cluster)
    names = [each.name for each in fields(RunFigures)]
    return replace(found, predicted=RunFigures(**{name: getattr(predicted, name) for name in names}))


def _no_row(record: Record, why: str, fix: str) -> ContributionError:
    return ContributionError(f"record {record.id} cannot be contributed", why=why, fix=fix)


def _public_model(record: Record, workload: Workload, source: str | None) -> tuple[str, dict[str, Any] | None]:
    """(public name, None), or (type and key, config.json without strings that are not single words)."""
    if source is None:
        try:
            shape = trained_model(catalogue.find(record.model_name), workload.objective)
        except UnknownModelError:
            shape = None
        if shape is not None and model_key(shape) == record.model:
            return shape.name, None
    try:
        config = load_config(source or record.model_name, offline=True)
        shape = trained_model(model_shape(config, name=""), workload.objective)
    except DsAdviseError as error:
        raise _no_row(
            record, f"its model has no public name, and no config.json was given ({error.what})", "pass --model FOLDER"
        ) from error
    if model_key(shape) != record.model:
        raise _no_row(record, f"{source or record.model_name} is another model", "pass the trained one to --model")
    return f"{shape.model_type}-{record.model}", _words(config)


def _as_ran(software: Software, versions: Mapping[str, str]) -> Software:
    """With the versions that ran, where they are older than those that the closed forms describe."""
    ran = {name: Version(versions[name]).release for name in ("transformers", "deepspeed") if name in versions}
    usual = {name: getattr(software, name) for name in ran}
    return replace(software, **{name: min(found[: len(usual[name])], usual[name]) for name, found in ran.items()})


def machine_spec(machine: Machine, world_size: int) -> str:
    """As `--gpus` takes it. All nodes are assumed to have the GPUs of this one."""
    name, memory = machine.gpus[0], machine.gpu_memory_bytes[0]
    try:
        kind = find_gpu(name).name.replace(" ", "-")
    except DsAdviseError:
        kind = f"{round(memory / 2**30)}GB"
    nodes, rest = divmod(world_size, len(machine.gpus))
    return f"{world_size}x{kind}" if rest or nodes <= 1 else f"{nodes}x{len(machine.gpus)}x{kind}"


def _measured(record: Record) -> RunFigures:
    result = record.result
    if record.kind == "probe":
        probe = from_json(ProbeResult, result)
        return RunFigures(
            allocated_bytes=probe.highest("allocated_bytes"),
            reserved_bytes=probe.highest("reserved_bytes"),
            device_bytes=probe.highest("device_bytes"),
            host_bytes=sum(rank.host_peak_bytes for rank in probe.ranks),
            step_s=probe.step_s,
            tokens_per_step=probe.tokens_per_step,
        )
    figures = {**result["peaks"], "step_s": result["step_s"], "tokens_per_step": result["tokens_per_step"]}
    return RunFigures(**{each.name: figures.get(each.name) for each in fields(RunFigures)})


def _public_config(config: Mapping[str, Any], facts: DeepSpeedFacts) -> dict[str, Any]:
    """The keys that DeepSpeed knows, without monitors, and with a plain path of the swap folder."""
    known = {key: value for key, value in without_record(config).items() if facts.knows(key)}
    return _words({key: value for key, value in known.items() if key not in MONITORS})


def _words(block: Mapping[str, Any]) -> dict[str, Any]:
    """A block without private keys (`_name_or_path`) and without strings that are not single words."""
    found: dict[str, Any] = {}
    for key, value in block.items():
        if key == "nvme_path":
            found[key] = "/nvme"
        elif not key.startswith("_") and (kept := _kept(value)) is not _DROPPED:
            found[key] = kept
    return found


_DROPPED = object()


def _kept(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _words(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [kept for each in value if (kept := _kept(each)) is not _DROPPED]
    return _DROPPED if isinstance(value, str) and not _WORD.fullmatch(value) else value
