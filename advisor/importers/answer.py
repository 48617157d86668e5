"""`ds-advise from FILE`: recognises a tool's file, predicts its run, and proposes a better configuration in the file's
format."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...ds_configs.files import config_text
from ...ds_configs.launch_commands import ALLOCATOR_SETTING
from ...ds_configs.read import batch_numbers_in
from ...estimators.errors import ClusterError, ConfigFileError, DsAdviseError, WorkloadError
from ...estimators.hardware import Cluster
from ...validate.lint import LintReport
from ...validate.lint.config_file import read_config_file
from ...validate.lint.document import Document
from ...validate.lint.document_reader import read_document
from ..question.cluster import parse_cluster
from ..question.file_question import option_words
from ..question.gpu_text import counts_in
from ..question.model_source import load_model
from ..question.options import Risk
from ..question.run import read_ds_config
from ..text.units import counted_noun
from .accelerate import ACCELERATE
from .figures import ImportFigures, import_figures
from .imported_run import DeepSpeedPart, ImportedRun
from .rewrite import ChangedFile, changed_files, lint_part
from .script_arguments import ACCUMULATION
from .source import Source, read_source
from .tool_format import Format
from .tool_tables import AXOLOTL, LLAMA_FACTORY, MS_SWIFT
from .torchtune import is_torchtune, torchtune_question
from .trainer_tables import TRAINING_ARGUMENTS, TRL

FORMATS: tuple[Format, ...] = (ACCELERATE, AXOLOTL, LLAMA_FACTORY, MS_SWIFT, TRL, TRAINING_ARGUMENTS)
"""The formats in the order in which they are tried."""

NAMES = tuple(form.name for form in FORMATS)


DEEPSPEED_KEYS = frozenset(("zero_optimization", "train_micro_batch_size_per_gpu"))
"""Keys that a DeepSpeed configuration has and no tool's file."""


class YamlConfigError(ConfigFileError):
    """A DeepSpeed configuration in YAML, which no command reads."""


def detect_format(
    path: Path, name: str | None = None, gpus: str | None = None, *, further: Sequence[str] = ()
) -> tuple[Source, Format]:
    """The file and its format, which is the named one or is recognised by content. gpus, further: see `read_source`.

    Raises ConfigFileError for a file that cannot be read or has none of the formats, YamlConfigError for a DeepSpeed
    configuration in YAML.
    """
    source = read_source(path, gpus, further=further)
    if is_torchtune(source.values):
        what = f"{path} is a configuration of torchtune, which is not read"
        raise ConfigFileError(what, fix=f"ask about its model: {torchtune_question(source.values, gpus, further)}")
    form = next((form for form in FORMATS if (form.matches(source) if name is None else form.name == name)), None)
    if form is not None:
        return source, form
    if DEEPSPEED_KEYS & source.values.keys():
        if source.kind == "yaml":
            code = "import json, sys, yaml; print(json.dumps(yaml.safe_load(sys.stdin), indent=2))"
            written = shlex.quote(str(path.with_suffix(".json")))
            raise YamlConfigError(
                f"{path} is a DeepSpeed configuration in YAML, and DeepSpeed reads JSON",
                fix=f"convert it: python -c '{code}' < {shlex.quote(str(path))} > {written}",
            )
        raise ConfigFileError(
            f"{path} is a DeepSpeed configuration, not a file of a tool that names a model",
            fix="pass it to ds-advise check, lint, compare or dry-run, the figures with --model",
        )
    keys = ", ".join(list(source.values)[:4])
    raise ConfigFileError(
        f"{path}: no known tool has its keys ({keys})", fix=f"pass --format, one of {', '.join(NAMES)}"
    )


@dataclass(frozen=True, kw_only=True)
class ImportAnswer:
    """Result of reading a file of another tool."""

    source: Source
    form: Format
    run: ImportedRun
    """The run, with the options of the command line."""
    figures: ImportFigures | None
    obstacle: DsAdviseError | None
    """Why there are no figures; None if there are."""
    report: LintReport | None = None
    """Lint result of the DeepSpeed configuration; None if there is no configuration."""
    files: tuple[ChangedFile, ...] = ()
    """The proposed or written changes."""
    unwritable: DsAdviseError | None = None
    """Why a better plan cannot be written in the file's format; None if it can be, or if there is no better plan."""
    document: Document | None = None
    """The DeepSpeed configuration."""
    gpus: str = ""
    """The machines, as `--gpus` takes them; "" if they are not known."""
    command: tuple[str, ...] = ()
    """The tool's command that trains with the file; () for a file that a script reads, and without machines."""
    written: tuple[Path, ...] = ()

    @property
    def remarks(self) -> tuple[str, ...]:
        part = self.run.deepspeed
        of_part = () if part is None or not part.remark else (part.remark,)
        return (*self.run.remarks, *of_part, *(self.figures.remarks if self.figures is not None else ()))

    @property
    def is_fine(self) -> bool:
        """Whether the run fits without changes, and neither its tool nor DeepSpeed refuses it."""
        fits = self.figures is None or (self.figures.as_is is not None and self.figures.as_is.fit.fits)
        return fits and not self.refused_by

    @property
    def refused_by(self) -> tuple[str, ...]:
        """What stops at the file or at its DeepSpeed configuration: the tool, DeepSpeed, both or none."""
        errors = self.report.count("error") if self.report is not None else 0
        return (self.run.tool or "the Trainer",) * bool(self.run.faults) + ("DeepSpeed",) * bool(errors)


def import_file(
    path: Path,
    *,
    format: str | None = None,
    model: str | None = None,
    gpus: str | None = None,
    ram: str | None = None,
    host: str | None = None,
    nvme: str | None = None,
    link: str | None = None,
    interconnect: str | None = None,
    ds_config: Path | None = None,
    destination: Path | None = None,
    risk: Risk = "safe",
    offline: bool = False,
    **overrides: Any,
) -> ImportAnswer:
    """Read a file of another tool and predict its run.

    format: name of the format; None recognises it.
    ds_config: DeepSpeed configuration in place of the one that the file names.
    destination: path of the changed file.
    overrides: values in place of the file's: micro_batch, gradient_checkpointing, and other `QuestionOptions`; None
        leaves the file's value.

    Raises DsAdviseError for a file that cannot be read and for impossible options.
    """
    machine = {"ram": ram, "host": host, "nvme": nvme, "link": link, "interconnect": interconnect}
    further = option_words(machine | {"risk": risk, "offline": offline})
    source, known = detect_format(path, format, gpus, further=further)
    run = known.read(source)
    _set_options(run, ds_config, model, overrides)
    kind = gpus or "auto"
    if kind != "auto" and counts_in(kind) == (None, None):
        if run.gpus_per_node is not None:
            kind = f"{run.nodes or 1}x{run.gpus_per_node}x{kind}"
        elif gpus is not None and not run.obstacle:
            run.remarks.append(f"the number of GPUs is not given: 1 is assumed (--gpus 8x{gpus})")
    figures: ImportFigures | None = None
    obstacle: DsAdviseError | None = None
    cluster: Cluster | None = None
    try:
        cluster = parse_cluster(kind, ram=ram, host=host, nvme=nvme, link=link, interconnect=interconnect)
    except ClusterError as error:
        if gpus is not None:
            raise
        fix = "pass them, such as --gpus 8xA100-80GB"
        obstacle = ClusterError("the GPUs of the run are not known", why=error.what, fix=fix)
    processes = run.processes
    if cluster is not None and processes is not None:
        run.nodes, run.gpus_per_node = cluster.nodes, cluster.gpus_per_node
    if run.obstacle:
        obstacle = WorkloadError(run.obstacle)
    elif run.model is None:
        obstacle = WorkloadError(f"{path} does not name a model", fix="pass --model")
    elif cluster is not None:
        try:
            shape = load_model(run.model, offline=offline)
            if "/" in run.model and not Path(run.model).exists() and shape.name.lower() != run.model.lower():
                run.remarks.append(f"{run.model} is counted as {shape.name}, which has the same configuration")
            figures = import_figures(
                run,
                shape,
                cluster,
                risk=risk,
                offloads_checkpoints=known.offload is not None or run.leaves_batch_to_script,
                micro_batch=overrides.get("micro_batch"),
                checkpointing=overrides.get("gradient_checkpointing") or "auto",
            )
        except DsAdviseError as error:
            obstacle = error
    if figures is not None and cluster is not None and processes not in (None, cluster.world_size):
        run.remarks.append(
            f"the file starts {processes} processes, but the figures are those of "
            f"{counted_noun(cluster.world_size, 'GPU')}"
        )
    document = None if run.deepspeed is None else _document(run.deepspeed)
    return complete_answer(
        ImportAnswer(
            source=source,
            form=known,
            run=run,
            figures=figures,
            obstacle=obstacle,
            document=document,
            gpus="" if cluster is None else kind,
            command=() if cluster is None else known.words(source, run, cluster.gpus_per_node),
        ),
        destination,
    )


def complete_answer(answer: ImportAnswer, destination: Path | None) -> ImportAnswer:
    """The answer with the lint result and the changes, by its run and figures."""
    source, form, run, figures, document = answer.source, answer.form, answer.run, answer.figures, answer.document
    report = None
    if document is not None:
        question = None if figures is None else figures.question
        report = lint_part(document, question, in_accelerates_file=run.is_from_fields)
    files: tuple[ChangedFile, ...] = ()
    unwritable: DsAdviseError | None = None
    if figures is not None:
        try:
            files = changed_files(source, form, run, figures, document, report, destination=destination)
        except DsAdviseError as error:
            unwritable = error
    return replace(answer, report=report, files=files, unwritable=unwritable)


def _set_options(run: ImportedRun, ds_config: Path | None, model: str | None, overrides: Mapping[str, Any]) -> None:
    """Put the overrides into the run, with a remark for each assumed value."""
    values = {name: value for name, value in overrides.items() if value is not None}
    micro, checkpointing = values.pop("micro_batch", None), values.pop("gradient_checkpointing", None)
    if ds_config is not None:
        name = run.deepspeed.name if run.deepspeed is not None else str(ds_config)
        run.deepspeed = DeepSpeedPart(name=name, config=read_ds_config(ds_config), path=ds_config)
        run.sharding = "zero"
    has_batch = run.leaves_batch_to_script and _take_batch(run, micro)
    by_script = run.leaves_batch_to_script and not run.obstacle and (model or run.model) is not None
    assumed = []
    if by_script and micro is None and not has_batch:
        assumed.append("micro batch 1 (--micro-batch)")
    if by_script and checkpointing is None and not run.gradient_checkpointing:
        assumed.append("no checkpointing (--gradient-checkpointing)")
    if assumed:
        run.remarks.append(f"assumed of the script: {', '.join(assumed)}")
    variable, setting = ALLOCATOR_SETTING.split("=")
    run.expandable_segments = run.expandable_segments or setting in os.environ.get(variable, "")
    run.model = model or run.model
    run.training |= values
    run.micro_batch_size = micro or run.micro_batch_size
    if checkpointing is not None:
        run.gradient_checkpointing = "offload" if checkpointing == "offload" else checkpointing == "on"


def _take_batch(run: ImportedRun, micro_batch: int | None) -> bool:
    """Take the batch of a run that a script decides from the numbers of its DeepSpeed configuration, which accelerate
    uses in place of the script's (1.15 accelerator.py `_prepare_deepspeed`). Return whether they decide the micro
    batch. micro_batch: the user's, in their place; None for none."""
    part = run.deepspeed
    if part is None or part.config is None:
        return False
    numbers = batch_numbers_in(part.config)
    run.gradient_accumulation_steps = numbers.get(ACCUMULATION, run.gradient_accumulation_steps)
    if micro_batch is None:
        run.micro_batch_size = numbers.get("train_micro_batch_size_per_gpu")
    else:
        others = {name: "auto" for name in numbers if name != ACCUMULATION}
        run.deepspeed = replace(part, config={**part.config, **others})
    return bool({"train_batch_size", "train_micro_batch_size_per_gpu"} & numbers.keys())


def _document(part: DeepSpeedPart) -> Document | None:
    """The configuration as lint reads it: without keys that the user has not written."""
    if part.config is None:
        return None
    if part.path is not None:
        return read_config_file(part.path).document
    config = {
        block: {key: each for key, each in value.items() if (block, key) not in part.implied}
        if isinstance(value, Mapping)
        else value
        for block, value in part.config.items()
    }
    return read_document(config_text(config).encode(), name=part.name)
