"""`ds-advise from FILE`: the file read, its run judged, and the better configuration in the file's own form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...ds_configs.write import config_text
from ...estimators.errors import ClusterError, ConfigFileError, DsAdviseError, WorkloadError
from ...estimators.hardware.cluster import Cluster
from ...validate.lint import LintReport, lint, load_facts
from ...validate.lint.config_file import read_config_file
from ...validate.lint.document import Document, read_document
from ..question.cluster import counts_in, parse_cluster
from ..question.model_source import load_model
from ..question.question import Risk
from .figures import ImportFigures, figures_of
from .formats import Format, launched, recognised
from .imported_run import DeepSpeedPart, ImportedRun
from .rewrite import ChangedFile, changed_files
from .source import Source

_OF_THE_FIGURES = ("DS901", "DS902", "DS903", "DS904", "DS905")
"""Rules on memory and speed: the figures know the batch that the configuration leaves to the tool."""


@dataclass(frozen=True, kw_only=True)
class ImportAnswer:
    """What is known of a file of another tool."""

    source: Source
    form: Format
    run: ImportedRun
    """With what the user says in the place of what the file leaves open."""
    figures: ImportFigures | None
    obstacle: DsAdviseError | None
    """Why there are no figures; None where there are."""
    report: LintReport | None
    """Of the DeepSpeed part, None where there is none."""
    files: tuple[ChangedFile, ...]
    """What would change, or has changed."""
    unwritable: DsAdviseError | None
    """Why a better plan cannot be written in the file's form; None where it can, or there is none."""
    written: tuple[Path, ...] = ()

    @property
    def is_fine(self) -> bool:
        """Whether the run fits as it is, and neither its tool nor DeepSpeed refuses it."""
        errors = self.report.count("error") if self.report is not None else 0
        fits = self.figures is None or (self.figures.as_is is not None and self.figures.as_is.fit.fits)
        return fits and not errors and not self.run.faults


def import_file(
    path: Path,
    *,
    format: str | None = None,
    model: str | None = None,
    gpus: str | None = None,
    ram: str | None = None,
    nvme: str | None = None,
    interconnect: str | None = None,
    ds_config: Path | None = None,
    destination: Path | None = None,
    risk: Risk = "safe",
    offline: bool = False,
    **said: Any,
) -> ImportAnswer:
    """Read a file of another tool and judge its run.

    format: by name; None recognises it. ds_config: in the place of the DeepSpeed configuration that the file
    names. destination: where the changed file will be written. said: what the user says of the training, in the place
    of what the file says: micro_batch, gradient_checkpointing, and arguments of `WorkloadOptions`; None leaves it.

    Raises DsAdviseError for a file that cannot be read and for options that cannot be.
    """
    source, known = recognised(path, format)
    if source.started_by is not None and destination is not None and destination.suffix != source.path.suffix:
        raise ConfigFileError(
            f"-o {destination} does not end in {source.path.suffix}",
            why=f"what changes is {source.path}, which {path} hands over",
            fix=f"pass -o with a name that ends in {source.path.suffix}",
        )
    run = known.read(source)
    if source.started_by is not None:
        run = launched(run, source.started_by)
    run = _with_options(run, ds_config, model, said)
    cluster, obstacle = _cluster(run, source, gpus, ram=ram, nvme=nvme, interconnect=interconnect)
    figures = None
    if run.obstacle:
        obstacle = WorkloadError(run.obstacle)
    elif run.model is None:
        obstacle = WorkloadError(f"{path} names no model", fix="pass --model")
    elif cluster is not None:
        try:
            shape = load_model(run.model, offline=offline)
            figures = figures_of(run, shape, cluster, risk=risk, offloads_checkpoints=known.offloads_checkpoints)
        except DsAdviseError as error:
            obstacle = error
    document = None if run.deepspeed is None else _document(run.deepspeed)
    report = None if document is None else _lint(document, run, figures)
    files: tuple[ChangedFile, ...] = ()
    unwritable: DsAdviseError | None = None
    if figures is not None:
        try:
            files = changed_files(source, known, run, figures, document, report, destination=destination)
        except DsAdviseError as error:
            unwritable = error
    return ImportAnswer(
        source=source,
        form=known,
        run=run,
        figures=figures,
        obstacle=obstacle,
        report=report,
        files=files,
        unwritable=unwritable,
    )


def _with_options(run: ImportedRun, ds_config: Path | None, model: str | None, said: Mapping[str, Any]) -> ImportedRun:
    """The run with what the user says, and sentences for what nobody says."""
    given = {name: value for name, value in said.items() if value is not None}
    micro, checkpointing = given.pop("micro_batch", None), given.pop("gradient_checkpointing", None)
    remarks = list(run.remarks)
    by_script = run.micro_batch_size is None and run.framework == "hf"
    if by_script and micro is None:
        remarks.append("the script decides the micro batch, which is counted as 1 (--micro-batch)")
    if run.training.get("seq_len") is None and "seq_len" not in given and run.tool != "ms-swift":
        remarks.append("it does not say how long samples are: they are counted as of 2,048 tokens (--seq-len)")
    if by_script and checkpointing is None:
        remarks.append("the script decides gradient checkpointing, which is counted as off (--gradient-checkpointing)")
    if not run.expandable_segments:
        remarks.append(
            "it does not set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, which wastes less: counted without"
        )
    part = run.deepspeed
    if ds_config is not None:
        config = read_config_file(ds_config).document.root.value
        part = DeepSpeedPart(name=part.name if part is not None else str(ds_config), config=config, path=ds_config)
    return replace(
        run,
        model=model or run.model,
        training={**run.training, **given},
        micro_batch_size=micro or run.micro_batch_size,
        gradient_checkpointing=run.gradient_checkpointing if checkpointing is None else checkpointing,
        deepspeed=part,
        sharding="zero" if part is not None else run.sharding,
        remarks=tuple(remarks),
    )


def _cluster(
    run: ImportedRun, source: Source, gpus: str | None, **machine: str | None
) -> tuple[Cluster | None, DsAdviseError | None]:
    """(the GPUs, why none are known). Counts that the user leaves open are the file's."""
    job = (source.started_by or source).job
    kind = gpus or (job.gpu if job is not None else None) or "auto"
    if kind != "auto" and counts_in(kind) == (None, None) and run.gpus_per_node is not None:
        kind = f"{run.nodes or 1}x{run.gpus_per_node}x{kind}"
    try:
        return parse_cluster(kind, **machine), None
    except ClusterError as error:
        if gpus is not None:
            raise
        return None, ClusterError(
            "which GPUs it runs on is not known", why=error.what, fix="describe them, such as --gpus 8xA100-80GB"
        )


def _document(part: DeepSpeedPart) -> Document | None:
    """The DeepSpeed part as a text with places; None where it is not there."""
    if part.config is None:
        return None
    if part.path is not None:
        return read_config_file(part.path).document
    return read_document(config_text(part.config).encode(), name=part.name)


def _lint(document: Document, run: ImportedRun, figures: ImportFigures | None) -> LintReport:
    facts = load_facts()
    if figures is None:
        return lint(document, facts=facts, framework=run.framework)
    report = lint(
        document,
        facts=facts,
        framework=run.framework,
        cluster=figures.cluster,
        model=figures.model,
        workload=figures.workload,
    )
    kept = tuple(finding for finding in report.findings if finding.code not in _OF_THE_FIGURES)
    return replace(report, findings=kept)
