"""What was measured, as a list for people: one line a record, under the machine that it was made on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from rich.console import Console

from ...estimators.json_form import SCHEMA_VERSION
from ...estimators.plan import Plan
from ...probes.benchmark_result import BENCH_VERSION, bench_from_json
from ...probes.store import Record, RecordJson
from ..text.lines import WIDTH, blank, cells, sentence
from ..text.units import age, amount, gib, rate
from .bench import machine_title

_COLUMNS = (("id", 4), ("when", -8), ("kind", -8), ("model", -16), ("plan", -23), ("tokens/s", 8), ("GiB", 5))

_FAILURES = {
    "out_of_memory": "out of memory",
    "crash": "failed",
    "hang": "hung",
    "stopped": "suspended",
    "killed": "killed",
    "timeout": "too slow",
    "disk_full": "disk full",
}


class HistoryJson(TypedDict):
    """Everything that was kept, or what was asked for by number."""

    schema_version: int
    records: list[RecordJson]


def json_form(records: Sequence[Record]) -> HistoryJson:
    """The records in the order of the store."""
    return {"schema_version": SCHEMA_VERSION, "records": [without_nan(record.to_json()) for record in records]}


def render_history(records: Sequence[Record], console: Console, *, path: Path, more: bool) -> None:
    """Print the records; more: there are older ones."""
    if not records:
        sentence(
            console,
            f"Nothing was measured yet, or nothing with these numbers ({path}). ds-advise bench measures this "
            "machine, ds-advise probe a configuration.",
        )
        return
    machine = ""
    cells(console, _cells([title for title, _ in _COLUMNS]), style="bold")
    for record in records:
        if record.machine.key != machine:
            machine = record.machine.key
            sentence(console, f"machine {machine}: {machine_title(record.machine)}", style="dim")
        cells(console, _line(record))
    if more:
        sentence(console, "Older ones: --limit N.", style="dim")
    blank(console)
    sentence(
        console,
        "tokens/s and GiB: as measured; GiB is the highest rank's memory on the GPU, or its tensors in RAM "
        "on the CPU; of a training, of the fullest GPU, or all ranks' RAM; of a dry run, as it says.",
        style="dim",
    )


def without_nan(value: Any) -> Any:
    """The same with null for what JSON has no number for: a loss may be NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: without_nan(each) for key, each in value.items()}
    return [without_nan(each) for each in value] if isinstance(value, list | tuple) else value


def _line(record: Record) -> str:
    head = [str(record.id), age(record.age_s).removesuffix(" ago"), record.kind]
    if record.kind == "bench":
        return (_cells(head) + " " + _bench(record))[:WIDTH]
    name = record.model_name.rpartition("/")[2]
    cells = [*head, name if len(name) <= 16 else name[:15] + "~", _plan(record)]
    failure = record.result.get("failure")
    if failure:
        return (_cells(cells) + " " + _FAILURES.get(str(failure.get("kind")), "failed"))[:WIDTH]
    return _cells([*cells, *_figures(record.result)])


def _cells(texts: Sequence[str]) -> str:
    return " " + " ".join(
        f"{text:<{-width}}" if width < 0 else f"{text:>{width}}"
        for text, (_, width) in zip(texts, _COLUMNS, strict=False)
    )


def _bench(record: Record) -> str:
    if record.result.get("version") != BENCH_VERSION:
        return "of another version"
    result = bench_from_json(record.result)
    parts = [f"{result.device} x{result.ranks}"]
    product, memory = result.best("matrix_product"), result.memory_bytes_per_s
    parts += [f"products {amount(product, 'flop/s')}"] if product else []
    return ", ".join(parts + ([f"memory {amount(memory, 'B/s')}"] if memory else []))


def _plan(record: Record) -> str:
    """`zero2-offload 4x2`: rung, micro batch and accumulation; the CPU as the device is said."""
    config = record.plan
    zero = config.get("zero_optimization") or {}

    def device(block: str) -> Any:
        return (zero.get(block) or {}).get("device", "none")

    plan = Plan(
        zero_stage=zero.get("stage", 0),
        micro_batch_size=1,
        offload_optimizer=device("offload_optimizer"),
        offload_param=device("offload_param"),
    )
    micro, steps = config.get("train_micro_batch_size_per_gpu", ""), config.get("gradient_accumulation_steps", 1)
    batch = f" {micro}" + (f"x{steps}" if steps not in (1, "auto") else "")
    return f"{plan.rung}{batch if micro not in ('', 'auto') else ''}"


def _figures(result: Mapping[str, Any]) -> tuple[str, str]:
    """Tokens per second of the job, memory of its highest rank; "-" where the result does not tell."""
    if "peaks" in result:  # of a whole training
        peaks, speed = result["peaks"], result.get("tokens_per_s")
        return rate(speed) if speed else "-", gib(peaks["device_bytes"] or peaks["host_bytes"])
    if "peak" in result:  # of a dry run
        return "-", gib(result["peak"]["device_bytes_per_gpu"])
    ranks = result.get("ranks") or []
    steps = [sorted(step["total_s"] for step in report["steps"]) for report in ranks if report.get("steps")]
    slowest = max((times[len(times) // 2] for times in steps), default=0.0)
    tokens = result.get("tokens_per_step") or 0
    memory = [
        report["device_bytes"] or report["reserved_bytes"] or report["host_peak_bytes"] - report["host_baseline_bytes"]
        for report in ranks
    ]
    return rate(tokens / slowest) if slowest and tokens else "-", gib(max(memory)) if memory else "-"


def render_forgotten(gone: Sequence[int], wanted: Sequence[int], console: Console) -> None:
    """Which records were removed, and which of those that were named do not exist."""
    missing = sorted(set(wanted) - set(gone))
    line = f"Forgot {', '.join(map(str, gone))}." if gone else "Forgot nothing."
    sentence(console, line + (f" There is no {', '.join(map(str, missing))}." if missing else ""))
