"""A script that starts a training: plain shell, or Slurm."""

from __future__ import annotations

import re
from dataclasses import replace

from ...estimators.errors import ConfigFileError
from . import accelerate, training_arguments
from .hf_arguments import found, named_part
from .imported_run import ImportedRun, Improvement, KeyPath, Value
from .source import Source, read_source

_UNKNOWN = re.compile(r"\$(\w+|\{[^}]*\}|\(\S*\)|[@*#?!$-])")


def matches(source: Source) -> bool:
    """A script whose training command no tool's reader knows better."""
    return source.line is not None and source.line.program == "script"


def read(source: Source) -> ImportedRun:
    """The training of its first training command."""
    line = source.line
    assert line is not None
    run = training_arguments.read_arguments(source.arguments, source, tool=line.launcher or "python")
    return launched(run, source)


def changes(source: Source, run: ImportedRun, better: Improvement) -> dict[KeyPath, Value]:
    """The options that make it the better run. Raises ConfigFileError where the launcher's own options hold the
    DeepSpeed configuration, which stand before the script."""
    line = source.line
    assert line is not None
    options = line.launcher_options
    if line.launcher == "accelerate" and (options.text("config_file") or options.flag("use_deepspeed")):
        raise ConfigFileError(
            "the DeepSpeed configuration is in the options of accelerate launch, or in its --config_file",
            fix="ask about that file: ds-advise from CONFIG_FILE --model MODEL",
        )
    return training_arguments.changes(source, run, better)


def launched(run: ImportedRun, source: Source) -> ImportedRun:
    """The run with what the script's launcher is told: DeepSpeed or FSDP by accelerate, and the processes."""
    return with_counts(_with_launcher_part(run, source), source)


def with_counts(run: ImportedRun, source: Source) -> ImportedRun:
    """The run with the processes that its command and Slurm start, its environment, and what only the shell knows."""
    line, job = source.line, source.job
    assert line is not None
    nodes, per_node = line.counts()
    nodes, per_node = nodes or run.nodes, per_node or run.gpus_per_node
    if job is not None:
        nodes, per_node = nodes or job.nodes, per_node or job.gpus_per_node
    remarks = list(run.remarks)
    if source.further_lines:
        more = source.further_lines
        remarks.append(
            f"{more} more command{'s' * (more > 1)} of the script train{'s' * (more == 1)}; the first is read"
        )
    unknown = dict.fromkeys(match[0] for text in line.texts for match in _UNKNOWN.finditer(text))
    if unknown:
        remarks.append(f"only the shell knows {', '.join(name[:30] for name in unknown)}")
    environment = line.environment
    threads = environment.get("OMP_NUM_THREADS", "")
    allocator = environment.get("PYTORCH_CUDA_ALLOC_CONF", "") + environment.get("PYTORCH_ALLOC_CONF", "")
    return replace(
        run,
        nodes=nodes,
        gpus_per_node=per_node,
        launcher=line.launcher or run.launcher,
        threads_per_rank=int(threads) if re.fullmatch(r"[1-9]\d{0,3}", threads) else None,
        expandable_segments=run.expandable_segments or "expandable_segments:True" in allocator,
        remarks=tuple(remarks),
    )


def _with_launcher_part(run: ImportedRun, source: Source) -> ImportedRun:
    """What `accelerate launch` is told beside the script's own arguments, by options or in its own file."""
    line = source.line
    assert line is not None
    if line.launcher != "accelerate" or run.deepspeed is not None:
        return run
    options = line.launcher_options
    if name := options.text("config_file"):
        run = _with_configuration(run, name, source)
    precision = options.text("mixed_precision")
    if precision in ("bf16", "fp16") and run.training.get("precision") == "fp32":
        run = replace(run, training={**run.training, "precision": precision})
    if name := options.text("deepspeed_config_file"):
        return replace(run, sharding="zero", deepspeed=named_part(name, source.path.parent))
    return replace(run, sharding="fsdp") if options.flag("use_fsdp") else run


def _with_configuration(run: ImportedRun, name: str, source: Source) -> ImportedRun:
    path = found(name, source.path.parent)
    if path is None:
        return replace(run, remarks=(*run.remarks, f"accelerate's configuration {name} is not here, so it is not read"))
    launch = accelerate.read(read_source(path))
    precision = launch.training if run.training.get("precision") == "fp32" else {}
    return replace(
        run,
        training={**run.training, **precision},
        sharding=launch.sharding,
        deepspeed=launch.deepspeed,
        nodes=launch.nodes,
        gpus_per_node=launch.gpus_per_node,
        faults=(*run.faults, *launch.faults),
        obstacle=run.obstacle or launch.obstacle,
        uncounted=(*run.uncounted, *launch.uncounted),
        unknown=(*run.unknown, *launch.unknown),
    )
