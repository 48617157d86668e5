"""Measurements as documents: the speeds of a benchmark, and the list of stored records."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from ...estimators.json_form import SCHEMA_VERSION, from_json
from ...probes.benchmark_result import BENCH_VERSION, COLLECTIVES, MOST_SPREAD, BenchFigure, BenchResult, Unit
from ...probes.machine import this_machine
from ...probes.store import Record
from ..document import blocks as doc
from ..document.blocks import HIDDEN, Cell, Figure, Row, Table, make_figure
from ..document.charts import GIB
from ..question.this_machine import measured_hardware
from ..text.units import age, amount, amounts, count, counted_noun, rate, size, times
from ..text.units import seconds as duration
from .record import (
    MICRO_BATCH,
    config_of,
    does_not_fit,
    failure_of,
    figures_of,
    gpus_of,
    length_of,
    machine_title,
    made,
    message_of,
    plan_of,
    record_document,
    repeat,
    subject_of,
)
from .runs import next_command

_BENCH_TITLES = {
    "elementwise_sum": "sum in device memory",
    "memory_copy": "copy in device memory",
    "new_memory": "new memory, page by page",
    "host_memory": "sum in host memory",
    "host_score": "a core, small operations",
    "cpu_adam": "DeepSpeedCPUAdam",
    "nvme_read": "NVMe read",
    "nvme_write": "NVMe write",
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
}
"""Titles of benchmarks; other benchmarks are shown by their kind."""

_CPU_TITLES = {
    "elementwise_sum": "sum in RAM, each rank",
    "memory_copy": "copy in RAM, each rank",
    "host_memory": "sum in RAM, all cores",
}
"""Titles that differ on the CPU, whose memory is the host's."""


@dataclass(frozen=True, kw_only=True)
class History:
    """All stored records, or those with the given numbers."""

    schema_version: int
    records: tuple[Record, ...]


def build_history(records: Sequence[Record]) -> History:
    """Return the records in the order of the store."""
    return History(schema_version=SCHEMA_VERSION, records=tuple(records))


def history_document(
    records: Sequence[Record], *, path: Path, older: int = 0, words: Sequence[str] = ()
) -> doc.Document:
    """Return one line per record, with the machine of measurements elsewhere above them. older: number of older records
    that are not listed. words: by which the records were chosen; a model that has one stands in place of its script."""
    data = build_history(records)
    if not records:
        verdict = (
            f"Nothing was measured yet ({path}). ds-advise bench measures this machine, ds-advise probe a "
            "configuration; ds-advise dry-run, launch and train are recorded, too."
        )
        return _document([doc.Sentence(verdict)], data)
    rows, here = list[Row](), this_machine().key
    machine = here
    for record in records:
        if record.kind != "dry-run" and record.machine.key != machine:  # a dry run is of no machine
            machine = record.machine.key
            where = "on this machine:" if machine == here else f"on {machine_title(record.machine)}:"
            rows.append(Row([where], "faded"))
        number, when = Figure(str(record.id)), age(record.age_s).removesuffix(" ago")
        rows.append(Row([number, when, record.kind, gpus_of(record), *_figures(record, words)]))
    titles = ["id", "when", "kind", "GPUs", "training", "length", "plan", "tokens/s", "GPU GiB", "RAM GiB"]
    length, plan, gpu, ram = map(titles.index, ("length", "plan", "GPU GiB", "RAM GiB"))
    has_gpu, has_ram = _has_figure(rows, gpu), _has_figure(rows, ram)
    is_cpu = has_ram and not has_gpu  # no record has GPU memory, and none has other memory than RAM
    # RAM is the only memory of a run on the CPU, and a length that all runs have tells none apart.
    has_cpu = any(_has_figure([row], ram) and not _has_figure([row], gpu) for row in rows)
    is_ram_first = has_cpu and (is_cpu or len({length_of(record) for record in records if record.kind != "bench"}) == 1)
    simulated = any(record.kind == "dry-run" for record in records)
    trained = any(record.kind != "bench" for record in records)
    meanings = {
        "kind": "a dry run simulates its GPUs, the others are measured" * simulated,
        "training": "the script of a command, or the model" * trained,
        "length": "tokens per sample" * trained,
        "plan": "the strategy, and micro batch x accumulation steps" * trained,
        "GPU GiB": f"device memory of the fullest GPU{', or what a dry run needs of each' * simulated}" * has_gpu,
        "RAM GiB": f"host memory of all ranks{', or what a dry run needs of a machine' * simulated}" * has_ram,
    }
    notes = [(title, f"{title}: {text}") for title, text in meanings.items() if text]
    # What tells runs apart stays longest: when it was, and its GPUs.
    optional = (*((length, ram) if is_ram_first else (ram, length)), gpu, plan, titles.index("when"))
    table = Table(titles, rows, gap=1, optional=optional, notes=notes, hidden=HIDDEN)
    blocks: list[doc.Block] = [
        table.without({gpu} if is_cpu else ()),
        *([doc.Sentence(f"Older ones: {older:,} (--limit {len(records) + older}).", "dim")] if older else []),
        *next_command("Everything about one of them:", f"ds-advise history {records[0].id}"),
    ]
    return _document(blocks, data)


def _has_figure(rows: Sequence[Row], column: int) -> bool:
    cells = (row.cells[column] for row in rows if len(row.cells) > column)
    return any(isinstance(cell, Figure) and cell.value is not None for cell in cells)


def has_words(record: Record, words: Sequence[str]) -> bool:
    """Return whether every word is a part of a record's kind, model, script, GPUs or failure, in full or as the list
    shows it, in small or capital letters; `failed` is a part of every failure."""
    failure = failure_of(record)
    shown = [record.kind, record.kind.replace("-", " "), failure, _lack(record)]
    shown += [record.model_name, subject_of(record), gpus_of(record)]
    shown += [_FAILED] * bool(failure) + [_STOPPED] * _is_stopped(record)
    return all(_has(word, *shown) for word in words)


def _has(word: str, *texts: str) -> bool:
    return any(word.casefold() in each.casefold() for each in texts)


def page_document(record: Record, *, path: Path) -> doc.Document:
    """Return everything that is stored about one record."""
    data = build_history([record])
    if record.kind != "bench":
        return record_document(record, data)
    if record.result.get("version") != BENCH_VERSION:
        return history_document([record], path=path)
    page = bench_document(replace(record, id=None))  # its figures alone: later answers may use a newer one
    verdict = f"Benchmark {record.id}, {made(record)}: {page.subject}."
    return replace(page, verdict=verdict, blocks=[*page.blocks, *repeat(record)], data=data)


def forgotten_document(removed: Sequence[int]) -> doc.Document:
    """Return how many records were removed, and which."""
    line = f"Forgot {records_label(removed)}." if removed else "Forgot nothing."
    return _document([doc.Sentence(line)], {"forgotten": removed})


_MOST_RANGES = 8


def records_label(numbers: Sequence[int]) -> str:
    """Return records in words, `record 2` or `9 records (1-3, 5, 8-12)`; of many ranges only the first."""
    if len(numbers) == 1:
        return f"record {numbers[0]}"
    ranges = [[number for _, number in own] for _, own in groupby(enumerate(sorted(numbers)), lambda at: at[1] - at[0])]
    texts = [f"{own[0]}-{own[-1]}" if own[1:] else str(own[0]) for own in ranges]
    shown = [*texts[:_MOST_RANGES], *["..."] * (len(texts) > _MOST_RANGES)]
    return f"{counted_noun(len(numbers), 'record')} ({', '.join(shown)})"


def _document(blocks: Sequence[doc.Block], data: Any) -> doc.Document:
    return doc.Document(subject="Measurements", verdict="", tone=None, blocks=blocks, data=data)


_FAILED, _STOPPED = "failed", "stopped"
"""How a run ended otherwise than it should."""

_SHORT = {
    "gpu out of memory": "GPU OOM",
    "host out of memory": "RAM OOM",
    "out of memory": "OOM",
    "communication timeout": "timeout",
}
"""Failures as they stand in the column of speeds; others as their records have them."""


_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w{0,24}(?:Error|Exception|Interrupt))\b")


def _lack(record: Record) -> str:
    """Return what stands in the column of speeds for a run that failed or a plan that does not fit; "" for others. Of a
    script that failed it is the type of the exception."""
    failure = failure_of(record)
    raised = _EXCEPTION.match(message_of(record.result["failure"])) if failure == "crash" else None
    if raised is not None:
        return raised[1]
    return _SHORT.get(failure, failure) or "too large" * does_not_fit(record)


def _is_stopped(record: Record) -> bool:
    return record.result.get("status") == _STOPPED


def _speed(record: Record) -> Figure:
    """Return the speed of a run that ended as it should, else how it ended."""
    if lack := _lack(record):
        return Figure(lack, style="bad", title=f"{_FAILED}:" if failure_of(record) else "")
    figures = figures_of(record)
    if figures.samples_per_s is not None:
        return make_figure(figures.samples_per_s, lambda per_s: f"{rate(per_s)} samples")
    if figures.tokens_per_s is not None:
        return make_figure(figures.tokens_per_s, rate)
    if _is_stopped(record):
        return Figure(_STOPPED, title="")
    return make_figure(figures.step_s, lambda step_s: f"{duration(step_s)}/step")


def _figures(record: Record, words: Sequence[str]) -> list[Cell]:
    """Return the cells after the GPUs: the speeds of a benchmark, or the training, its plan and its figures."""
    if record.kind == "bench":
        if record.result.get("version") != BENCH_VERSION:
            return ["of another version"]
        result = from_json(BenchResult, record.result)
        product, memory = result.best("matrix_product"), result.memory_bytes_per_s
        speeds = [f"products {amount(product, 'flop/s')}"] if product else []
        speeds += [f"memory {amount(memory, 'B/s')}"] if memory else []
        return [", ".join(speeds)]
    name, plan = subject_of(record), plan_of(record)
    if any(_has(word, record.model_name) and not _has(word, name) for word in words):
        name = record.model_name.rpartition("/")[2]
    config = config_of(record)
    batch = f"{plan.micro_batch_size}x{plan.gradient_accumulation_steps}"
    batch *= config.get(MICRO_BATCH, "auto") != "auto"
    strategy = plan.strategy if config else "-"
    length = make_figure(length_of(record), "{:,}".format)
    cells: list[Cell] = [name if len(name) <= 14 else name[:13] + "~", length, f"{strategy} {batch}".strip()]
    figures = figures_of(record)
    sizes = (make_figure(each, GIB.part) for each in (figures.device_bytes or figures.needed_bytes, figures.host_bytes))
    return [*cells, _speed(record), *sizes]


def bench_document(record: Record, *, warning: str = "") -> doc.Document:
    """Return a benchmark: the speeds that answers use, every speed with its spread, and what was not measured. warning:
    why the speeds may be too low."""
    result = from_json(BenchResult, record.result)
    versions = f"torch {result.versions['torch']}, DeepSpeed {result.versions['deepspeed']}"
    devices = "The CPU as 1 rank" if result.ranks == 1 else f"The CPU as {result.ranks} ranks that share the cores"
    if result.device == "cuda":
        devices = counted_noun(result.ranks, "GPU")
    rows = list[Row]()
    for title, figures in groupby(result.figures, key=lambda each: _bench_title(each, result.device)):
        rows += [Row(["" if number else title, *_bench_cells(each)]) for number, each in enumerate(figures)]
    remarks = list[str]()
    if any(figure.spread > MOST_SPREAD for figure in result.figures):
        remarks.append(f"The spread is shown above {MOST_SPREAD:g} x: these figures are uncertain.")
    table = Table(["", "size", "median", "lowest to highest", "spread"], rows)
    below: list[doc.Block] = [
        *(doc.Sentence(remark, "dim") for remark in remarks),
        *slow_bf16(result),
        *(doc.Sentence(f"Not measured: {skipped.what}: {skipped.reason}.") for skipped in result.skipped),
    ]
    if record.id is not None:
        kept = f"Kept as number {record.id} (ds-advise history)."
        below.append(doc.Sentence(f"{kept} {_use(record.id, result)}"))
    used = [*_used_speeds(result)]
    summary: list[doc.Block] = [doc.Gap(), doc.Facts(used)] if used else []
    if result.device == "cpu":  # next to the speeds, which seem to contradict each other without it
        how = "with one thread each in processor time, which other processes do not lengthen"
        summary.append(doc.Sentence(f"Each rank: all ranks at once, {how}; all cores: in elapsed time.", "dim"))
    blocks: list[doc.Block] = [
        *([doc.Sentence(warning, "yellow")] if warning else []),
        *([doc.Sentence(_DISTURBED, "yellow")] if result.is_noisy else []),
        doc.Sentence(f"{devices}; measured in {duration(result.seconds)} with {versions}."),
        *summary,
        doc.Gap(),
        table if remarks else table.without({4}),
        *([doc.Gap(), *below] if below else []),
    ]
    machine = machine_title(record.machine)
    return doc.Document(subject=machine, verdict=f"This machine: {machine}.", tone=None, blocks=blocks, data=record)


def _used_speeds(result: BenchResult) -> Iterator[doc.Fact]:
    """Yield the speeds that answers use, as `question.this_machine` takes them from the figures."""
    each = "of each GPU" if result.device == "cuda" else "of each rank"
    products = ((how, result.best("matrix_product", how=how)) for how in ("bf16", "fp16", "fp32"))
    tensors = [figure.size for figure in result.figures if figure.kind in COLLECTIVES and figure.unit != "s"]
    largest = f" of up to {size(max(tensors))}" if tensors else ""
    speeds: list[tuple[str, float | None, Unit, str]] = [
        *((f"matrix products in {how}", rate, "flop/s", each) for how, rate in products),
        ("memory", result.memory_bytes_per_s, "B/s", each),
        ("memory of the host", result.best("host_memory"), "B/s", "by all cores"),
        ("PCIe", result.pcie_bytes_per_s, "B/s", "the slower direction"),
        ("links", result.links_bytes_per_s, "B/s", f"all-gather and reduce-scatter{largest}, bus bandwidth"),
        ("CPU Adam", result.best("cpu_adam"), "parameters/s", "by all cores"),
        ("NVMe read", result.best("nvme_read"), "B/s", ""),
        ("NVMe write", result.best("nvme_write"), "B/s", ""),
    ]
    for title, speed, unit, words in speeds:
        if speed:
            yield doc.Fact(title, amount(speed, unit), words)


_DISTURBED = f"Something disturbed it: many figures vary by more than {MOST_SPREAD:g} x."


def _use(number: int, result: BenchResult) -> str:
    """Return which answers use a benchmark that was stored."""
    option = "--gpus auto" if result.device == "cuda" else f"--device cpu --ranks {result.ranks}"
    used = measured_hardware(result.device, result.ranks)
    if used is None or used.number == number:
        uses = f"Answers to {option} on this machine use these speeds"
        if not result.is_noisy:
            return f"{uses} from now on."
        return (
            f"{uses} until there is a less disturbed result. Repeat it when the machine is idle, or forget it: "
            f"ds-advise history --forget {number}"
        )
    return (
        f"Answers to {option} still use number {used.number}, which is less disturbed. Repeat it when the machine is "
        "idle."
    )


def slow_bf16(result: BenchResult, *, style: doc.Style = "") -> Iterator[doc.Block]:
    """Yield the remark that a device without instructions for bf16 trains faster in fp32."""
    if (ratio := result.fp32_to_bf16) is not None and ratio > 1:
        yield doc.Sentence(f"Products in fp32 are {times(ratio)} as fast as in bf16: pass --precision fp32.", style)


def _bench_title(figure: BenchFigure, device: str) -> str:
    titles = _BENCH_TITLES | (_CPU_TITLES if device == "cpu" else {})
    title = titles.get(figure.kind, figure.kind.replace("_", " "))
    return title + (f", {figure.how}" if figure.how and not figure.kind.startswith("nvme") else "")


def _bench_cells(figure: BenchFigure) -> list[Cell]:
    write: Mapping[str, str] = {
        **dict.fromkeys(("matrix_product", "attention_forward", "attention_backward"), f"{figure.size}"),
        "host_score": "",
        "cpu_adam": count(figure.size),
    }
    large = write.get(figure.kind, size(figure.size))
    between = amounts((figure.lowest, figure.highest), figure.median)
    spread = times(figure.spread) if figure.spread > MOST_SPREAD else ""
    return [Figure(large), Figure(amount(figure.median, figure.unit)), between, spread]
