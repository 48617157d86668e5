"""Predictions compared with a GPU: a benchmark of the machine, then probes of every strategy, within a given time.

    python -m benchmarks.gpu --minutes 20 --out DIR
    python -m benchmarks.gpu --minutes 5 --out DIR --device cpu    # the same commands at toy sizes
    python -m benchmarks.gpu --minutes 0 --out DIR                 # only the tables

Run it from the root of a checkout, whose folder may have any name. Each measurement is a command of ds-advise (`bench`,
`probe`) in a process of its own, with random weights and without a network, the most valuable first. Its answer is a
file of DIR, and what has a file is not measured again, so several short calls do what a long one does. The results are
also records for `ds-advise history`, in DS_ADVISE_CACHE or else DIR/store.

Finally the predicted and the measured figures of all answers are written as probes.md and probes.csv into
benchmarks/data/gpu, with --device cpu into DIR.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from ds_advise.estimators.hardware import Cluster
    from ds_advise.estimators.plan import Strategy
    from ds_advise.estimators.workload import Method

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "benchmarks" / "data" / "gpu"
LIMIT_S = 420.0
"""For one command; the first ones also compile DeepSpeed's extensions."""
LEAST_S = 45.0
"""Time that must be left to start a command."""
ENDING_S = 15.0
"""For a command to end its ranks after SIGTERM."""
RANKS_PER_NODE = 8


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A training of a few steps under a strategy's preset; with `world_size` above the machine's GPUs, one rank runs
    alone."""

    model: str
    strategy: Strategy
    world_size: int = 1
    micro_batch: int = 1
    seq_len: int = 2048
    checkpointing: Literal["on", "off"] = "on"
    method: Method = "full"

    @property
    def name(self) -> str:
        parts = [
            self.model,
            self.strategy,
            self.method,
            f"N{self.world_size}",
            f"B{self.micro_batch}",
            f"S{self.seq_len}",
        ]
        return "-".join([*parts, *["no-ckpt"] * (self.checkpointing == "off")])


PROBES = (
    Probe(model="Qwen2.5-0.5B", strategy="ddp", micro_batch=4),
    Probe(model="Qwen2.5-7B", strategy="zero3", world_size=8, micro_batch=2, seq_len=4096),
    Probe(model="Llama-3.2-1B", strategy="zero2", micro_batch=4, checkpointing="off"),
    Probe(model="Qwen2.5-1.5B", strategy="zero3-offload", micro_batch=2),
    Probe(model="Llama-3.1-8B", strategy="ddp", micro_batch=2, seq_len=4096, method="lora"),
    Probe(model="Qwen2.5-7B", strategy="zero2", world_size=8, micro_batch=2),
    Probe(model="gemma-2-2b", strategy="zero2-offload", micro_batch=2, seq_len=1024),
    Probe(model="Qwen2.5-14B", strategy="zero3", world_size=64, seq_len=8192),
    Probe(model="Qwen2.5-3B", strategy="zero1", micro_batch=2),
    Probe(model="Llama-3.1-8B", strategy="zero3-offload-param", world_size=8),
    Probe(model="Qwen2.5-1.5B", strategy="zero3", micro_batch=16, seq_len=512, checkpointing="off"),
    Probe(model="Qwen2.5-14B", strategy="zero3", world_size=2, micro_batch=2, method="lora"),
    Probe(model="Qwen2.5-0.5B", strategy="zero3-nvme", micro_batch=2),
    Probe(model="Qwen2.5-7B", strategy="ddp"),  # 16 bytes per parameter: 122 GB
)
TOY = (Probe(model="toy", strategy="zero2", world_size=2, seq_len=64),)
"""All that is probed on a CPU."""
TOY_MODEL = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}


def make_importable(links: Path) -> None:
    """Put the checkout on the search path as `ds_advise`, here and in subprocesses, through a link in the folder
    `links` if its own folder has another name."""
    folders = [ROOT]
    found = find_spec("ds_advise")
    if found is None or found.origin is None or Path(found.origin).resolve() != ROOT / "__init__.py":
        links.mkdir(parents=True, exist_ok=True)
        (links / "ds_advise").unlink(missing_ok=True)
        (links / "ds_advise").symlink_to(ROOT, target_is_directory=True)
        folders.append(links)
    sys.path[:0] = map(str, folders)
    inherited = filter(None, [os.environ.get("PYTHONPATH")])
    os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, folders), *inherited])


def main() -> int:
    started = time.monotonic()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, required=True, help="time limit of the whole call")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the answers")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: toy sizes")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # so that the running command is ended too
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    make_importable(out / "import")
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    os.environ.setdefault("DS_ADVISE_CACHE", str(out / "store"))
    probes = TOY if options.device == "cpu" else PROBES
    measure(probes, out, options.device, deadline=started + 60 * options.minutes)
    write_tables(probes, out, out if options.device == "cpu" else DATA)
    return 0


def measure(probes: Sequence[Probe], out: Path, device: str, *, deadline: float) -> None:
    """Run the commands whose answers are missing, until the time is over. A command that the deadline ends has no
    answer."""
    for name, words in commands(probes, out, device):
        left_s = deadline - time.monotonic()
        if left_s < LEAST_S:
            print(f"{name}: no time is left", flush=True)
            return
        print(f"{name}: ds-advise {shlex.join(words)}", flush=True)
        began = time.monotonic()
        code, printed, error = run([sys.executable, "-m", "ds_advise", *words], min(LIMIT_S, left_s))
        if code is None and left_s < LIMIT_S:
            print("    the time is over", flush=True)
            return
        seconds = time.monotonic() - began
        answer = {
            "command": f"ds-advise {shlex.join(words)}",
            "exit_code": code,
            "seconds": seconds,
            "error": error[-2000:],
            "answer": json.loads(printed) if code in (0, 1) and printed.startswith("{") else None,
        }
        part = out / f"{name}.part"
        part.write_text(json.dumps(answer, indent=1), encoding="utf-8")
        part.replace(answer_file(out, name))
        print(f"    exit code {code} after {seconds:.0f} s", flush=True)


def answer_file(out: Path, name: str) -> Path:
    return out / f"{name}.json"


def commands(probes: Sequence[Probe], out: Path, device: str) -> Iterator[tuple[str, list[str]]]:
    """(name, arguments of ds-advise) of each measurement without an answer."""
    if not answer_file(out, "bench").exists():
        drive = ["--nvme", str(out)] if device == "cuda" else []
        yield "bench", ["bench", "--json", "--device", device, "--ranks", "1", *drive]
    for probe in probes:
        if not answer_file(out, probe.name).exists():
            yield probe.name, probe_words(probe, out, device)


def probe_words(probe: Probe, out: Path, device: str) -> list[str]:
    """The arguments of `probe`, whose configuration is written into a folder of `out`."""
    from ds_advise.advisor.question.model_source import load_config, model_shape
    from ds_advise.ds_configs.presets import plan_for
    from ds_advise.estimators.workload import Workload
    from ds_advise.probes.dry_run.run import dry_run
    from ds_advise.probes.run import Run

    model = probe.model
    if device == "cpu":
        model = str(out / model)
        Path(model).mkdir(exist_ok=True)
        Path(model, "config.json").write_text(json.dumps(TOY_MODEL), encoding="utf-8")
    description = load_config(model, offline=True)
    shape, workload = model_shape(description, name=model), Workload(method=probe.method, seq_len=probe.seq_len)
    cluster, machine = job(probe.world_size, out, device)
    plan = plan_for(
        probe.strategy,
        shape,
        workload,
        cluster,
        micro_batch_size=probe.micro_batch,
        gradient_accumulation_steps=1,
        gradient_checkpointing=probe.checkpointing == "on",
    )
    run = Run.from_plan(plan, shape, workload, cluster, description=description)
    if "--solo" in machine and plan.zero_stage in (1, 2):
        machine += ["--rank", str(dry_run(run, iterations=1).rank)]  # the fullest, which is predicted
    config = out / "configs" / f"{probe.name}.json"
    config.parent.mkdir(exist_ok=True)
    config.write_text(json.dumps(run.config, indent=1), encoding="utf-8")
    return [
        *("probe", str(config), "--model", model, *machine, "--micro-batch", str(probe.micro_batch)),
        *("--method", probe.method, "--seq-len", str(probe.seq_len), "--gradient-checkpointing", probe.checkpointing),
        # PyTorch's default: the probe and its dry run leave the allocator's setting as it is.
        *("--software", "expandable-segments=no", "--offline", "--json"),
    ]


def job(world_size: int, out: Path, device: str) -> tuple[Cluster, list[str]]:
    """Devices like this machine's, and the options that describe them."""
    from ds_advise.advisor.question.this_machine import cpu_cluster
    from ds_advise.estimators.hardware import Cluster
    from ds_advise.probes.machine import host_memory_bytes, visible_gpus

    if device == "cpu":
        return cpu_cluster(world_size), ["--device", "cpu", "--ranks", str(world_size)]
    gpus = visible_gpus()
    nodes = -(-world_size // RANKS_PER_NODE)
    cluster = Cluster(
        nodes=nodes,
        gpus_per_node=world_size // nodes,
        gpu=gpus[0],
        host_memory_bytes_per_node=host_memory_bytes(),
        nvme_path=str(out),
    )
    alone = ["--solo"] * (world_size > len(gpus))
    return cluster, ["--gpus", f"{nodes}x{cluster.gpus_per_node}x{gpus[0].name}", *alone]


def run(command: Sequence[str], limit_s: float) -> tuple[int | None, str, str]:
    """(exit code or None if the limit ended it, stdout, stderr)."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        printed, error = process.communicate(timeout=limit_s)
        return process.returncode, printed, error
    except subprocess.TimeoutExpired:
        return None, "", f"ended after {limit_s:.0f} s"
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.communicate(timeout=ENDING_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


COLUMNS = ("probe", "figure", "unit", "measured", "closed form", "error", "dry run", "dry run's error")
PREDICTED = (("analytic", "analytic_error"), ("dry_run", "dry_run_error"))


def write_tables(probes: Sequence[Probe], out: Path, into: Path) -> None:
    """Write probes.csv and probes.md; nothing without an answer to a probe."""
    files = [(probe, answer_file(out, probe.name)) for probe in probes]
    answers = [(probe, json.loads(file.read_text(encoding="utf-8"))) for probe, file in files if file.exists()]
    if not answers:
        return
    rows = [row for probe, answer in answers for row in figures(probe, answer)]
    into.mkdir(parents=True, exist_ok=True)
    with (into / "probes.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(["" if cell is None else cell for cell in row] for row in rows)
    failed = [f"- {probe.name}: {failure(answer)}" for probe, answer in answers if failure(answer)]
    text = "\n".join([*summary(rows), "", *table(rows), *([""] * bool(failed)), *failed])
    (into / "probes.md").write_text(f"# Predicted and measured: {machine(out)}\n\n{text}\n", encoding="utf-8")
    print(text)


def figures(probe: Probe, answer: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """The rows of a probe's answer. The steps of a rank alone lack communication, so they are left out."""
    result = answer["answer"] or {"figures": [], "solo": False}
    for each in result["figures"]:
        if each["unit"] == "tokens/s" or (result["solo"] and each["unit"] == "s"):
            continue
        predicted = [each[key] for pair in PREDICTED for key in pair]
        yield probe.name, each["name"], each["unit"], each["measured"], *predicted


def failure(answer: dict[str, Any]) -> str:
    """Why a probe has no figures; "" if it has."""
    if answer["answer"] is None:
        lines: list[str] = answer["error"].strip().splitlines()
        return lines[-1] if lines else f"exit code {answer['exit_code']}"
    failed: dict[str, str] | None = answer["answer"]["failure"]
    return f"{failed['kind'].replace('_', ' ')}: {failed['message']}" if failed else ""


def summary(rows: Sequence[tuple[Any, ...]]) -> Iterator[str]:
    """Errors, predicted over measured minus 1, by figure."""
    yield "| figure | predicted by | n | median error | worst |"
    yield "|---|---|---:|---:|---:|"
    for name in dict.fromkeys(row[1] for row in rows):
        for title, column in (("closed form", 5), ("dry run", 7)):
            errors = [row[column] for row in rows if row[1] == name and row[column] is not None]
            if errors:
                worst = max(errors, key=abs)
                yield f"| {name} | {title} | {len(errors)} | {median(map(abs, errors)):.1%} | {worst:+.1%} |"


def table(rows: Sequence[tuple[Any, ...]]) -> Iterator[str]:
    yield "| probe | figure | measured | closed form | error | dry run | error |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for name, figure, unit, measured, closed, error, dry, dry_error in rows:
        sizes = [_amount(size, unit) for size in (measured, closed, dry)]
        shares = ["" if share is None else f"{share:+.1%}" for share in (error, dry_error)]
        yield f"| {name} | {figure} | {sizes[0]} | {sizes[1]} | {shares[0]} | {sizes[2]} | {shares[1]} |"


def _amount(size: float | None, unit: str) -> str:
    if size is None:
        return ""
    return f"{size / 2**30:.3f} GiB" if unit == "bytes" else f"{1000 * size:.1f} ms"


def machine(out: Path) -> str:
    """The benchmark's machine and versions; "" without a benchmark."""
    file = answer_file(out, "bench")
    record = json.loads(file.read_text(encoding="utf-8"))["answer"] if file.exists() else None
    if record is None:
        return "unknown machine"
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    return f"{', '.join(record['machine']['gpus']) or record['machine']['cpu']} ({versions})"


if __name__ == "__main__":
    sys.exit(main())
