"""Records of a GPU as tables: python -m benchmarks.gpu.tables DIR [DIR ...]

    --into FOLDER     where they are written; by default benchmarks/data/gpu
    --device cpu      tables of a run at toy sizes, which belong in no --into but one of your own
    --no-dry-run      leave the dry runs out; they take a minute each, and are kept in the first DIR

trainings.csv (measured and dry-run memory and time of every configuration), kernels.csv, context.csv, allocator.csv,
cpu_adam.csv, bench.json (the program's own benchmark of the machine), commands.md (what README's commands printed). Of
several records of one measurement the newest counts. Afterwards `python -m benchmarks.accuracy --write` puts the
chapter "On a GPU" into docs/accuracy.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .agenda.configurations import HOST_TIME, MEMORY
from .predicted import dry_runs
from .records import FILE, Record, read

DATA = Path(__file__).resolve().parents[1] / "data" / "gpu"

Row = dict[str, Any]


def main() -> int:
    asked = _arguments()
    every = [record for folder in asked.folders for record in read(folder / FILE)]
    records = list({record.name: record for record in every if record.device == asked.device}.values())
    if not records:
        print(f"no records of device {asked.device} in {', '.join(map(str, asked.folders))}", file=sys.stderr)
        return 1
    trained = [record for record in records if record.kind == "training" and record.value]
    dry = {} if asked.no_dry_run else dry_runs(_dry_runnable(trained), asked.folders[0], say=print)
    asked.into.mkdir(parents=True, exist_ok=True)
    write(asked.into / "trainings.csv", [training_row(record, dry.get(record.name, {})) for record in trained])
    for name, rows in (
        ("kernels.csv", _figures(records, "kernels")),
        ("cpu_adam.csv", _figures(records, "cpu_adam")),
        ("context.csv", _stages(records)),
        ("allocator.csv", _replays(records)),
    ):
        write(asked.into / name, list(rows))
    (asked.into / "commands.md").write_text(commands(records), encoding="utf-8")
    bench = bench_of(records)
    if bench is not None:
        (asked.into / "bench.json").write_text(json.dumps(bench, indent=1) + "\n", encoding="utf-8")
    unfinished = [record for record in records if record.outcome in ("failed", "timed out", "not possible")]
    for record in unfinished:
        print(f"{record.outcome}: {record.name}: {(record.reason.strip().splitlines() or [''])[-1][:200]}")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.tables", description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR")
    parser.add_argument("--into", type=Path, default=DATA, metavar="FOLDER")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--no-dry-run", action="store_true")
    asked = parser.parse_args()
    if asked.device == "cpu" and asked.into == DATA:
        parser.error("--device cpu needs --into: figures of a CPU are no figures of a GPU")
    return asked


def _dry_runnable(records: Iterable[Record]) -> list[Record]:
    """Those whose kernels a dry run knows; of the questions' strategies, which are about speed, none."""
    names = {configuration.name for configuration in MEMORY + HOST_TIME}
    return [
        record
        for record in records
        if (record.device == "cpu" or record.name in names)
        and record.arguments["method"] != "qlora"
        and record.arguments["loss"] == "standard"
        and record.outcome in ("measured", "out of memory")
    ]


def training_row(record: Record, dry: Mapping[str, Any]) -> Row:
    """Measured and dry-run figures of one configuration; empty where nothing is known."""
    result = record.value["result"]
    rank = (result["ranks"] or [{}])[0]
    steps = rank.get("steps") or []

    def middle(part: str) -> float | str:
        values = sorted(step[part] for step in steps)
        return values[len(values) // 2] if values else ""

    return {
        "name": record.name,
        "arguments": json.dumps(record.arguments),
        "gpu": (record.machine["gpus"] or [""])[0],
        "gpu_memory_bytes": (record.machine["gpu_memory_bytes"] or [""])[0],
        "outcome": record.outcome,
        "reason": " ".join(record.reason.split())[:200],
        **{f"{kind}_bytes": _filled(rank.get(f"{kind}_bytes")) for kind in ("allocated", "reserved", "device")},
        "host_bytes": rank["host_peak_bytes"] - rank["host_baseline_bytes"] if rank else "",
        **{part: middle(part) for part in ("total_s", "forward_s", "backward_s", "optimizer_s")},
        "tokens_per_step": result["tokens_per_step"] or "",
        **{f"dry_run_{name}": _filled(dry.get(name)) for name in ("allocated_bytes", "reserved_bytes", "device_bytes")},
        "dry_run_step_s": _filled(dry.get("step_s")),
        **{name: _filled(record.gpu.get(name)) for name in ("sm_mhz", "memory_mhz", "celsius", "watts")},
        "throttled_by": " ".join(record.gpu.get("throttled_by", ())),
        **{f"{name} version": record.versions[name] for name in ("driver", "torch", "deepspeed", "transformers")},
        "began": record.began,
        "seconds": f"{record.seconds:.1f}",
    }


def _filled(value: Any) -> Any:
    return "" if value is None else value


def _figures(records: Iterable[Record], kind: str) -> Iterator[Row]:
    for record in records:
        if record.kind == kind:
            for figure in record.value.get("figures", ()):
                shape = {"shape": "x".join(map(str, figure["shape"]))} if "shape" in figure else {}
                yield {"measurement": record.name, **figure, **shape, "sm_mhz": _filled(record.gpu.get("sm_mhz"))}


def _stages(records: Iterable[Record]) -> Iterator[Row]:
    for record in records:
        if record.kind == "context":
            for stage, held in record.value.get("stages", {}).items():
                yield {"after": stage, **held}


def _replays(records: Iterable[Record]) -> Iterator[Row]:
    for record in records:
        if record.kind == "allocator" and record.value:
            counts = {key: record.value[key] for key in ("requests_and_frees", "equal", "furthest_apart_bytes")}
            yield {"measurement": record.name, **record.value["peaks"], **counts}


def commands(records: Iterable[Record]) -> str:
    """What README's commands printed, as Markdown."""
    parts = ["# README's commands on this machine\n"]
    for record in records:
        if record.kind == "commands":
            for done in record.value.get("commands", ()):
                parts.append(
                    f"## `{done['command']}`\n\nExit code {done['exit_code']} after {done['seconds']:.0f} s.\n\n"
                    f"```\n{done['output'].rstrip()}\n```\n"
                )
    return "\n".join(parts)


def bench_of(records: Iterable[Record]) -> dict[str, Any] | None:
    """The result of `ds-advise bench`, as `ds-advise history --json` printed it afterwards; None without one."""
    for record in records:
        for done in record.value.get("commands", ()):
            if "history --json" in done["command"] and done["exit_code"] == 0:
                found = json.loads(done["output"][done["output"].index("{") :])["records"]
                return next((one["result"] for one in found if one["kind"] == "bench"), None)
    return None


def write(file: Path, rows: list[Row]) -> None:
    """Nothing where there are no rows."""
    if not rows:
        return
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    sys.exit(main())
