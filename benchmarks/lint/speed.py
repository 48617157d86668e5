"""How long `ds-advise lint` takes, cold: a new process each time, with and without cached facts.

    python -m benchmarks.lint.speed [REPEATS]

Limits: 0.4 s with the facts cached, 2.5 s the first time. CPU seconds are shown, too, for a machine that does other
    work.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

CONFIG = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_cliping": 1.0,
    "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "reduce_bucket_size": "auto"},
}
RUNS = {"facts cached": [], "with a model and GPUs": ["--model", "Qwen2.5-14B", "--gpus", "8xA100-80GB", "--offline"]}


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "ds_config.json").write_text(json.dumps(CONFIG, indent=2))
        print(f"{'first time':<24}{_shown([_run(folder, f'first{index}', []) for index in range(repeats)])}")
        for what, options in RUNS.items():
            _run(folder, "kept", options)
            print(f"{what:<24}{_shown([_run(folder, 'kept', options) for _ in range(repeats)])}")


def _run(folder: Path, cache: str, options: list[str]) -> tuple[float, float]:
    """(seconds by the clock, seconds of CPU) of one process."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "ds_advise", "lint", "ds_config.json", *options],
        cwd=folder,
        check=False,
        env={**os.environ, "DS_ADVISE_CACHE": str(folder / cache)},
        stdout=subprocess.DEVNULL,
    )
    clock, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return clock, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _shown(runs: list[tuple[float, float]]) -> str:
    clock, cpu = zip(*runs, strict=True)
    return f"median {median(clock):.2f} s, best {min(clock):.2f} s; CPU median {median(cpu):.2f} s"


if __name__ == "__main__":
    main()
