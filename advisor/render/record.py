"""A stored record: its row in the list, and its page with everything that is stored."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

from ...ds_configs.files import config_text
from ...ds_configs.read import offload_device_in, zero_stage_in
from ...estimators.json_form import from_json, to_json
from ...estimators.plan import Plan
from ...estimators.workload import Workload
from ...probes.command.words import script_in
from ...probes.machine import Machine
from ...probes.real_run.result import ProbeResult
from ...probes.store import Record
from ..document import blocks as doc
from ..document.blocks import Fact, Row, Table
from ..document.charts import memory_unit
from ..question.options import OPTIONS
from ..text.labels import global_batch_label, method_title, plan_title, versions_label
from ..text.units import age, capitalised, counted_noun, ended, gib, loss_figure, printable, rate, seconds, shown_path
from ..verification.contribution import machine_spec
from .phase_memory import host_sentence, phase_table

_KINDS = {"probe": "Probe", "bench": "Benchmark", "training": "Training", "dry-run": "Dry run"}

MICRO_BATCH, ACCUMULATION = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The figures of a record, measured or of a dry run or a prediction; None if unknown."""

    tokens_per_s: float | None = None
    samples_per_s: float | None = None
    """Of a network without tokens."""
    step_s: float | None = None
    needed_bytes: int | None = None
    """What a dry run needs of each GPU, without cached blocks that the allocator can return."""
    device_bytes: int | None = None
    """Device memory of the fullest GPU."""
    reserved_bytes: int | None = None
    allocated_bytes: int | None = None
    host_bytes: int | None = None
    """RAM of all ranks of a node."""


_RATES: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "tokens_per_s": ("tokens/s", rate),
    "samples_per_s": ("samples/s", rate),
    "step_s": ("step", seconds),
}
_SIZES = {
    "needed_bytes": "GPU {unit}, needed",
    "device_bytes": "GPU {unit}, device",
    "reserved_bytes": "GPU {unit}, reserved",
    "allocated_bytes": "GPU {unit}, allocated",
    "host_bytes": "RAM {unit}, all ranks",
}

_TITLES = {
    **{name: option.flag for name, option in OPTIONS.items() if name not in ("seq_len", "method", "software")},
    "rollouts": "rollouts",
}
"""Titles of conditions that are options, without those in the lines of the training and of the batch."""


def figures_of(record: Record) -> Figures:
    """Return the figures of a probe, a training or a dry run."""
    result = record.result
    if "peaks" in result:  # of a training
        return _read(result | result["peaks"])
    if "peak" in result:  # of a dry run
        has_gpu = result.get("device") != "cpu"
        peak = result["peak"] if has_gpu else {}
        needed = result.get("required_device_bytes_per_gpu", peak.get("device_bytes_per_gpu"))
        return Figures(
            **_rate_of(result, result.get("tokens_per_s")),
            step_s=result.get("step_s"),
            needed_bytes=needed if has_gpu else None,
            allocated_bytes=peak.get("allocated_bytes_per_gpu"),
            host_bytes=result.get("required_host_bytes_per_node"),
        )
    try:
        probe = from_json(ProbeResult, result)
    except (TypeError, ValueError, AttributeError):  # of another version
        return Figures()
    ran = bool(probe.ranks) and all(rank.steps for rank in probe.ranks)
    return Figures(
        **_rate_of(result, probe.tokens_per_s if ran else None),
        step_s=probe.step_s if ran else None,
        host_bytes=probe.host_peak_bytes or sum(rank.host_peak_bytes for rank in probe.ranks) or None,
        **{name: probe.highest(name) for name in ("device_bytes", "reserved_bytes", "allocated_bytes")},
    )


def _rate_of(result: Mapping[str, Any], per_s: float | None) -> dict[str, Any]:
    return {"samples_per_s" if result.get("unit") == "samples" else "tokens_per_s": per_s}


def _read(values: Mapping[str, Any]) -> Figures:
    return Figures(**{each.name: values.get(each.name) for each in fields(Figures)})


def gpus_of(record: Record) -> str:
    """Return the GPUs of the figures: `2x24GB`, `8xH100-SXM5`, `2 CPU ranks`."""
    result = record.result
    ranks = int(result.get("world_size") or (result.get("ranks") if record.kind == "bench" else 0) or 1)
    spec = str(record.workload.get("gpus", ""))
    if record.kind == "dry-run":
        return spec or counted_noun(ranks, "GPU")
    if not spec:  # of a benchmark, or stored by an earlier version
        spec = machine_spec(record.machine, ranks) if record.ran_on_gpus else counted_noun(ranks, "CPU rank")
    return f"one rank of {spec}" if result.get("solo") else spec


def subject_of(record: Record) -> str:
    """Return the script of a command, else the model."""
    script = script_in(shlex.split(str(record.workload.get("command", ""))))
    return Path(script).name or record.model_name.rpartition("/")[2] or "a module"


def length_of(record: Record) -> int | None:
    """Return the tokens per sample; None if they are not known, and for a network without tokens."""
    is_command = "command" in record.workload
    length: int = record.workload.get("observed_seq_len" if is_command else "seq_len") or 0
    return None if record.result.get("unit") == "samples" else length or None


def config_of(record: Record) -> Mapping[str, Any]:
    """Return DeepSpeed's configuration: as the engine filled it, else the given one; {} if neither is known."""
    return record.result.get("config") or record.plan


def plan_of(record: Record) -> Plan:
    """Return the ZeRO stage, the offload and the batch of a record's configuration."""
    config, blocks = config_of(record), ("offload_optimizer", "offload_param")
    devices: dict[str, Any] = {block: offload_device_in(config, block) for block in blocks}
    micro, steps = (config.get(key, "auto") for key in (MICRO_BATCH, ACCUMULATION))
    return Plan(
        zero_stage=zero_stage_in(config),  # type: ignore[arg-type]  # 0 to 3
        micro_batch_size=1 if micro == "auto" else micro,
        gradient_accumulation_steps=1 if steps == "auto" else steps,
        **devices,
    )


def failure_of(record: Record) -> str:
    """Return how a run failed, "" if it did not."""
    failure = record.result.get("failure")
    return str(failure.get("kind", "failed")).replace("_", " ") if failure else ""


def does_not_fit(record: Record) -> bool:
    """Return whether a dry run needs more memory than its GPUs have."""
    need, have = figures_of(record).needed_bytes, record.result.get("gpu_memory_bytes")
    return record.kind == "dry-run" and bool(need and have and need > have)


def record_document(record: Record, data: Any) -> doc.Document:
    """Return everything that is stored about a run, and the command that repeats it. data: for --json."""
    failure, figures = record.result.get("failure") or {}, figures_of(record)
    tone: doc.Tone = "bad" if failure else "good"
    if failure:
        rank = "" if failure.get("rank") is None else f" on rank {failure['rank']}"
        verdict = ended(f"It failed{rank}: {message_of(failure) or failure_of(record)}")
    elif record.kind == "dry-run":
        need, have = figures.needed_bytes, record.result.get("gpu_memory_bytes")
        tone = "bad" if does_not_fit(record) else "good"
        unit, of = memory_unit(need or 0), f" of {gib(have)} GiB" if have else ""
        ram = f", and {gib(figures.host_bytes)} GiB of RAM per node" if figures.host_bytes else ""
        verdict = (
            f"The dry run needs {unit.figure(need)} {unit.title}{of} per GPU{ram}." if need else "The script runs."
        )
    else:
        speed = [f"{rate(figures.tokens_per_s)} tokens/s"] if figures.tokens_per_s else []
        speed += [f"{rate(figures.samples_per_s)} samples/s"] if figures.samples_per_s else []
        speed += [f"{seconds(figures.step_s)} a step"] if figures.step_s else []
        how = "Stopped on request" if record.result.get("status") == "stopped" else "It ran"
        verdict = f"{how}: {', '.join(speed)}." if speed else f"{how}."
    title = f"{_KINDS[record.kind]} {record.id} of {subject_of(record)} on {gpus_of(record)}"
    title += ", simulated" if record.kind == "dry-run" else ""
    blocks: list[doc.Block] = [
        doc.Sentence(title, "bold"),
        *_failure(failure),
        *(doc.Sentence(ended(capitalised(printable(warning)))) for warning in record.result.get("warnings") or ()),
        doc.Facts([Fact(name, "", printable(words)) for name, words in _facts(record) if words]),
        *_figures(record, figures),
    ]
    if config := config_of(record):
        text = config_text(to_json(config))  # JSON has no infinity
        blocks += [doc.Heading("Its configuration", "configuration"), doc.Code(text.splitlines())]
    if failure and (log := _log_of(record)):
        words = shlex.join(["ds-advise", "why", shown_path(log)])
        blocks += [doc.Heading("More about its failure", "why"), doc.Commands([words])]
    blocks += repeat(record)
    return doc.Document(subject=title, verdict=verdict, tone=tone, blocks=blocks, data=data)


def message_of(failure: Mapping[str, Any]) -> str:
    """Return the error of a run that failed, as one line; "" if it is not stored."""
    return printable(str(failure.get("message") or ""))


def _failure(failure: Mapping[str, Any]) -> Iterator[doc.Block]:
    """Yield the last lines, the cause and the fix of a run that failed, as far as they are stored."""
    if details := str(failure.get("details", "")).strip():
        yield doc.Verbatim(details.splitlines()[-12:])
    titles = {"cause": "Cause" if failure.get("is_cause_certain") else "Usual causes", "fix": "Fix"}
    told = {title: printable(str(failure.get(name) or "")) for name, title in titles.items()}
    for title, text in told.items():
        if text:
            yield doc.Sentence(f"{title}: {ended(text)}")
    if details or any(told.values()):
        yield doc.Gap()


def _log_of(record: Record) -> Path | None:
    """Return the log of the rank that failed first, or of the launcher if no rank did; None if it is not there."""
    folder, rank = record.result.get("log_folder"), record.result["failure"].get("rank")
    log = Path(folder or "", "launcher.log" if rank is None else f"rank{rank}.log")
    return log if folder and log.is_file() else None


_STARTERS = ("train", "launch")
"""Commands that start a training."""


def repeat(record: Record) -> list[doc.Block]:
    """Return the command that repeats a run, if it is stored; of a check before a training, the command of both. A
    training of `train` is repeated in another output folder, because it takes an empty one, and not at all if it was
    resumed."""
    words = shlex.split(record.workload.get("command_line", ""))
    if record.kind != "training" and words[1:2] and words[1] in _STARTERS:
        return [doc.Heading("It was a check of this training", "next"), doc.Commands([shlex.join(words)])]
    if record.kind == "dry-run" and (own := record.workload.get("command")) and words[1:2] not in ([], ["dry-run"]):
        words = _dry_run_of(record, own)  # one of several of that line
    if words[1:2] == ["train"]:
        if "--resume" in words:
            return []
        words = _in_another_folder(words, record.result.get("output_folder"))
    command = shlex.join(words)
    # The record of a folder would tell what is the user's own (`probes.store.build_record`).
    title = "Repeat it in the same folder" if any(map(_is_relative_file, words)) else "Repeat it"
    return [doc.Heading(title, "next"), doc.Commands([command])] if command else []


def _is_relative_file(word: str) -> bool:
    """Return whether a word names a file whose place depends on the folder of the start."""
    path = Path(word.partition("=")[2] or word)
    is_name = re.fullmatch(r"\.[A-Za-z]\w*", path.suffix) is not None  # and no number: Qwen2.5-7B, 1e-4.5
    return (is_name or word.startswith(("./", "../"))) and not path.is_absolute()


def _dry_run_of(record: Record, command: str) -> list[str]:
    """Return the words of the dry run of a command on the GPUs of a record."""
    gpus, file = gpus_of(record), record.workload.get("config_file")
    ranks = re.fullmatch(r"(\d+) CPU ranks?", gpus)
    where = ["--device", "cpu", "--ranks", ranks[1]] if ranks else ["--gpus", gpus]
    return ["ds-advise", "dry-run", *([file] if file else []), *where, "--", *shlex.split(command)]


def _in_another_folder(words: Sequence[str], used: str | None) -> list[str]:
    """Return the words of `train` with the next `--output-dir` that does not exist. used: the folder of the record."""
    own = [part for word in words for part in (word.split("=", 1) if word.startswith("--output-dir=") else [word])]
    at = own.index("--output-dir") if "--output-dir" in own else len(own)
    typed = (own[at + 1] if at < len(own) else "output").rstrip("/")
    place = Path(used or typed)
    number = next(each for each in count(2) if not place.with_name(f"{place.name}-{each}").exists())
    return [*own[:at], "--output-dir", f"{typed}-{number}", *own[at + 2 :]]


def made(record: Record) -> str:
    """Return when a record was made: `2026-11-29 21:15 UTC, 3 h ago`."""
    return f"{datetime.fromisoformat(record.made_at):%Y-%m-%d %H:%M} UTC, {age(record.age_s)}"


def _facts(record: Record) -> Iterator[tuple[str, str]]:
    """Yield the conditions of a run under their titles."""
    conditions, result, config = record.workload, record.result, config_of(record)
    yield "date", made(record)
    yield "simulated on" if record.kind == "dry-run" else "machine", machine_title(record.machine)
    yield "command", str(conditions.get("command", ""))
    if "command" in conditions and (length := length_of(record)):
        yield "sequence", f"{length:,} tokens"
    if record.model_name != subject_of(record):
        yield "model", record.model_name
    workload = Workload()
    names = {each.name for each in fields(Workload)}
    workload = from_json(Workload, {name: value for name, value in conditions.items() if name in names})
    if "command" not in conditions:  # what a command trains is its script's
        checkpointing = "on" if conditions.get("gradient_checkpointing") else "off"
        checkpointing += " (inputs in host RAM)" if conditions.get("cpu_checkpointing") else ""
        yield "training", f"{method_title(workload)}, {workload.seq_len:,} tokens, checkpointing {checkpointing}"
        usual = Workload()
        others = [name for name in sorted(names & {*_TITLES}) if getattr(workload, name) != getattr(usual, name)]
        yield "settings", ", ".join(f"{_TITLES[name]} {conditions[name]}" for name in others)
    yield "plan", plan_title(plan_of(record)) if config else ""
    yield "batch", global_batch_label(config, int(result.get("world_size") or 1), "rank")
    limit = conditions.get("memory_limit_bytes")
    yield "limit", f"{gib(limit)} GiB per rank" if limit else ""
    yield "versions", versions_label(record.versions) if record.versions else ""
    losses = [loss_figure(result[name]) for name in ("first_loss", "last_loss") if result.get(name) is not None]
    yield "loss", " to ".join(losses)
    yield "logs", f"{result['log_folder']}/rank*.log" if result.get("log_folder") else ""
    yield "output", str(result.get("output_folder") or "")
    yield "took", seconds(result["seconds"]) if result.get("seconds") else ""
    simulated = max((phase["iteration"] for phase in result.get("phases") or ()), default=0)
    yield "steps", str(result.get("steps") or simulated or "")


def _figures(record: Record, figures: Figures) -> Iterator[doc.Block]:
    """Yield the figures, beside the predicted ones if they are stored, and the phases of a dry run."""
    stored = record.result.get("predicted") or record.workload.get("predicted")
    predicted, tokens = _read(stored) if stored else Figures(), record.result.get("tokens_per_step")
    if predicted.tokens_per_s and tokens:  # a step of as many tokens
        predicted = replace(predicted, step_s=tokens / predicted.tokens_per_s)
    phases = record.result.get("phases") or ()
    unit = memory_unit(max(getattr(each, name) or 0 for each in (figures, predicted) for name in _SIZES))
    titles = {name: (title.format(unit=unit.title), unit.figure) for name, title in _SIZES.items()}
    rows = []
    for name, (title, write) in {**_RATES, **titles}.items():
        pair = [getattr(each, name) for each in (figures, predicted)]
        if pair[0] is not None:
            rows.append(Row([title, *(doc.make_figure(value, write) for value in pair)]))
    if not rows:
        return
    first = "simulated" if record.kind == "dry-run" else "measured"
    table = Table(["", first, "predicted"], rows)
    yield doc.Heading("Figures", "figures")
    yield table if any(getattr(predicted, name) is not None for name in (*_RATES, *_SIZES)) else table.without({2})
    result = record.result
    if not phases:
        return
    device = "CPU" if result.get("device") == "cpu" else "GPU"
    yield doc.Gap()
    yield phase_table(phases, result.get("iterations") or 0, device=device)
    tensors = result["peak"].get("host_bytes_per_node")
    if device == "GPU" and figures.host_bytes and tensors:
        yield doc.Gap()
        yield doc.Sentence(host_sentence(result, figures.host_bytes - tensors, tensors))


def machine_title(machine: Machine) -> str:
    """Return `2 x L4, AMD EPYC 7742, 8 cores, 64.0 GiB of RAM`."""
    kinds = [f"{machine.gpus.count(name)} x {name}" for name in dict.fromkeys(machine.gpus)]
    cores = counted_noun(machine.cpu_cores, "core")
    return ", ".join((*kinds, machine.cpu, cores, f"{gib(machine.ram_bytes)} GiB of RAM"))
