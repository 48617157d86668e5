"""Measurements as documents: the speeds of a benchmark, and the list of stored records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from ...ds_configs.read import offload_device_in
from ...estimators.json_form import SCHEMA_VERSION, from_json
from ...estimators.plan import Plan
from ...probes.benchmark_result import BENCH_VERSION, BenchFigure, BenchResult
from ...probes.machine import Machine, this_machine
from ...probes.store import Record
from ..document import blocks as doc
from ..document.blocks import Cell, Figure, Row, Table
from ..text.units import age, amount, amounts, count, counted_noun, gib, rate, size, times
from ..text.units import seconds as duration
from ..verification.past_results import REQUIRED

_BENCH_TITLES = {
    "elementwise_sum": "sum in device memory",
    "memory_copy": "copy in device memory",
    "new_memory": "new memory, page by page",
    "host_memory": "sum in host memory",
    "host_score": "a core, single-threaded",
    "cpu_adam": "DeepSpeedCPUAdam",
    "nvme_read": "NVMe read",
    "nvme_write": "NVMe write",
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
}
"""Titles of benchmarks; other benchmarks are shown by their kind."""


@dataclass(frozen=True, kw_only=True)
class History:
    """All stored records, or those with the given numbers."""

    schema_version: int
    records: tuple[Record, ...]


def build_history(records: Sequence[Record]) -> History:
    """Return the records in the order of the store."""
    return History(schema_version=SCHEMA_VERSION, records=tuple(records))


def history_document(records: Sequence[Record], *, path: Path, more: bool) -> doc.Document:
    """Return one line per record, below the machine on which it was measured. more: older records exist."""
    if not records:
        verdict = (
            f"Nothing was measured yet, or nothing with these numbers ({path}). ds-advise bench measures this machine, "
            "ds-advise probe a configuration."
        )
        return _document([doc.Sentence(verdict)], build_history(records))
    rows, machine, own_key = list[Row](), "", this_machine().key
    for record in records:
        if record.machine.key != machine:
            machine = record.machine.key
            here = " (this machine)" if machine == own_key else ""
            rows.append(Row([f"on {machine_title(record.machine)}{here}:"], "faded"))
        head: list[Cell] = [Figure(str(record.id)), age(record.age_s).removesuffix(" ago"), record.kind]
        rows.append(Row([*head, *_result(record)]))
    blocks: list[doc.Block] = [Table(["id", "when", "kind", "model", "plan", "tokens/s", "GiB"], rows)]
    if more:
        blocks.append(doc.Sentence("Older ones: --limit N.", "dim"))
    words = (
        "tokens/s and GiB are measured, those of a dry run on the simulated GPU. GiB: memory of the highest rank on "
        "the GPU, or its tensors in RAM on the CPU; for a training the fullest GPU, or the RAM of all ranks; for a dry "
        "run what a GPU needs."
    )
    return _document([*blocks, doc.Gap(), doc.Sentence(words, "dim")], build_history(records))


def forgotten_document(removed: Sequence[int], wanted: Sequence[int]) -> doc.Document:
    """Return which records were removed, and which of the wanted records do not exist."""
    missing = sorted(set(wanted) - set(removed))
    line = f"Forgot {', '.join(map(str, removed))}." if removed else "Forgot nothing."
    line += f" There is no {', '.join(map(str, missing))}." if missing else ""
    return _document([doc.Sentence(line)], {"forgotten": removed})


def _document(blocks: Sequence[doc.Block], data: Any) -> doc.Document:
    return doc.Document(subject="Measurements", verdict="", tone=None, blocks=blocks, data=data)


def _result(record: Record) -> list[Cell]:
    """Return the cells after the kind: the speeds of a benchmark, the reason of a failure, or the figures."""
    if record.kind == "bench":
        if record.result.get("version") != BENCH_VERSION:
            return ["of another version"]
        result = from_json(BenchResult, record.result)
        product, memory = result.best("matrix_product"), result.memory_bytes_per_s
        speeds = f"{result.device} x{result.ranks}"
        speeds += f", products {amount(product, 'flop/s')}" if product else ""
        return [speeds + (f", memory {amount(memory, 'B/s')}" if memory else "")]
    name = record.model_name.rpartition("/")[2]
    cells: list[Cell] = [name if len(name) <= 16 else name[:15] + "~", _plan(record)]
    failure = record.result.get("failure")
    if failure:
        return [*cells, str(failure.get("kind", "failed")).replace("_", " ")]
    return [*cells, *map(Figure, _speed_and_memory(record.result))]


def _plan(record: Record) -> str:
    """Return `zero2-offload 4x2`: strategy, micro batch and accumulation steps."""
    zero = record.plan.get("zero_optimization") or {}
    devices: dict[str, Any] = {
        block: offload_device_in(record.plan, block) for block in ("offload_optimizer", "offload_param")
    }
    plan = Plan(zero_stage=zero.get("stage", 0), micro_batch_size=1, **devices)
    micro = record.plan.get("train_micro_batch_size_per_gpu", "auto")
    steps = record.plan.get("gradient_accumulation_steps", 1)
    batch = f" {micro}" + (f"x{steps}" if steps not in (1, "auto") else "")
    return plan.strategy + (batch if micro != "auto" else "")


def _speed_and_memory(result: Mapping[str, Any]) -> tuple[str, str]:
    """Return tokens per second of the job and memory of its highest rank; "" if the result has none."""
    if "peaks" in result:  # the result of a training
        peaks, speed = result["peaks"], result.get("tokens_per_s")
        return rate(speed) if speed else "", gib(peaks["device_bytes"] or peaks["host_bytes"])
    if "peak" in result:  # the result of a dry run
        return "", gib(result.get(REQUIRED, result["peak"]["device_bytes_per_gpu"]))
    ranks = result.get("ranks") or []
    steps = [sorted(step["total_s"] for step in report["steps"]) for report in ranks if report.get("steps")]
    slowest = max((times[len(times) // 2] for times in steps), default=0.0)
    tokens = result.get("tokens_per_step") or 0
    memory = [
        report["device_bytes"] or report["reserved_bytes"] or report["host_peak_bytes"] - report["host_baseline_bytes"]
        for report in ranks
    ]
    return rate(tokens / slowest) if slowest and tokens else "", gib(max(memory)) if memory else ""


def bench_document(record: Record, *, warning: str = "") -> doc.Document:
    """Return a benchmark: every speed with its spread, and what was not measured. warning: why the speeds may be too
    low."""
    result = from_json(BenchResult, record.result)
    versions = f"torch {result.versions['torch']}, DeepSpeed {result.versions['deepspeed']}"
    devices = f"The CPU as {counted_noun(result.ranks, 'rank')} that share the cores"
    if result.device == "cuda":
        devices = counted_noun(result.ranks, "GPU")
    rows = list[Row]()
    for title, figures in groupby(result.figures, key=_bench_title):
        rows += [Row(["" if number else title, *_bench_cells(each)]) for number, each in enumerate(figures)]
    blocks: list[doc.Block] = [
        *([doc.Sentence(warning, "yellow")] if warning else []),
        doc.Sentence(f"{devices}; measured in {duration(result.seconds)} with {versions}."),
        doc.Gap(),
        Table(["", "size", "median", "lowest to highest"], rows),
        doc.Gap(),
        *_slow_bf16(result),
        *(doc.Sentence(f"Not measured: {skipped.what}: {skipped.reason}.") for skipped in result.skipped),
    ]
    if record.id is not None:
        option = "--gpus auto" if result.device == "cuda" else "--device cpu"
        kept = f"Kept as number {record.id} (ds-advise history)."
        blocks.append(doc.Sentence(f"{kept} Answers to {option} on this machine use these speeds from now on."))
    machine = machine_title(record.machine)
    return doc.Document(subject=machine, verdict=f"This machine: {machine}.", tone=None, blocks=blocks, data=record)


def _slow_bf16(result: BenchResult) -> Iterator[doc.Block]:
    """Yield the remark that a device without instructions for bf16 trains faster in fp32."""
    bf16, fp32 = (result.best("matrix_product", how=how) for how in ("bf16", "fp32"))
    if bf16 and fp32 and bf16 < fp32:
        yield doc.Sentence(f"Products in fp32 are {times(fp32 / bf16)} as fast as in bf16: pass --precision fp32.")


def machine_title(machine: Machine) -> str:
    """Return `2 x L4, AMD EPYC 7742, 8 cores, 64.0 GiB of RAM`."""
    kinds = [f"{machine.gpus.count(name)} x {name}" for name in dict.fromkeys(machine.gpus)]
    cores = counted_noun(machine.cpu_cores, "core")
    return ", ".join((*kinds, machine.cpu, cores, f"{gib(machine.ram_bytes)} GiB of RAM"))


def _bench_title(figure: BenchFigure) -> str:
    title = _BENCH_TITLES.get(figure.kind, figure.kind.replace("_", " "))
    return title + (f", {figure.how}" if figure.how and not figure.kind.startswith("nvme") else "")


def _bench_cells(figure: BenchFigure) -> list[Cell]:
    write: Mapping[str, str] = {
        **dict.fromkeys(("matrix_product", "attention_forward", "attention_backward"), f"{figure.size}"),
        "host_score": "",
        "cpu_adam": count(figure.size),
    }
    large = write.get(figure.kind, size(figure.size))
    spread = amounts((figure.lowest, figure.highest), figure.median)
    return [Figure(large), Figure(amount(figure.median, figure.unit)), spread]
