"""What a probe costs in addition to the job that it runs: a small model on the CPU, two ranks, four optimizer steps.

    python -m benchmarks.probes.overhead [REPEATS]

The plain job is a script that trains the same model with the same configuration and prints nothing. Both run in turn,
REPEATS times (3), after one of each that compiles what DeepSpeed compiles. Wall time, and the processor time of all
processes together, which other programs on the machine hardly change; medians. Exit 1 when a probe takes more than 60
s, or 10 s more than the job.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from ds_advise.estimators.hardware import Cluster, gpu_of_memory
from ds_advise.estimators.workload import Workload
from ds_advise.probes.machine import rank_threads
from ds_advise.probes.real_run.run import probe
from ds_advise.probes.run import Run

from .cpu_probes import MODELS

RANKS, STEPS, SEQ_LEN = 2, 4, 128
MODEL = MODELS["balanced"][0]
CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 1,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
}
PROBE_S, OVERHEAD_S = 60.0, 10.0

PLAIN_JOB = f"""
import json, sys
import torch, deepspeed
from transformers import AutoConfig, AutoModelForCausalLM
deepspeed.init_distributed("gloo")
model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**json.loads(sys.argv[1])), dtype=torch.bfloat16)
model.gradient_checkpointing_enable()
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=json.loads(sys.argv[2]))
for _ in range({STEPS}):
    tokens = torch.randint({MODEL["vocab_size"]}, (1, {SEQ_LEN}))
    engine.backward(engine(input_ids=tokens, labels=tokens).loss)
    engine.step()
"""


def run_plainly() -> None:
    """The ranks as a launcher starts them."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(PLAIN_JOB, encoding="utf-8")
        environment = {
            **os.environ,
            "DS_ACCELERATOR": "cpu",
            "OMP_NUM_THREADS": str(rank_threads(RANKS)),
            "WORLD_SIZE": str(RANKS),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29533",
        }
        command = [sys.executable, str(script), json.dumps(MODEL), json.dumps(CONFIG)]
        ranks = [
            subprocess.Popen(
                command,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(RANKS)
        ]
        codes = [rank.wait() for rank in ranks]
        if any(codes):
            sys.exit("the plain job failed")


def run_probe() -> None:
    failure = probe(
        Run(
            config=CONFIG,
            model=MODEL,
            cluster=Cluster(nodes=1, gpus_per_node=RANKS, gpu=gpu_of_memory(24)),
            workload=Workload(seq_len=SEQ_LEN, framework="deepspeed"),
        ),
        device="cpu",
        steps=STEPS,
    ).failure
    if failure is not None:
        sys.exit(f"the probe failed: {failure.message}")


def timed(action: Callable[[], None]) -> tuple[float, float]:
    """(wall, processor) seconds."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    action()
    wall, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(arguments: Sequence[str]) -> int:
    repeats = int(next((text for text in arguments if text.isdigit()), "3"))
    run_plainly()
    run_probe()
    load = os.getloadavg()[0]
    pairs = [(timed(run_plainly), timed(run_probe)) for _ in range(repeats)]
    job, probed = (
        (median(pair[which][0] for pair in pairs), median(pair[which][1] for pair in pairs)) for which in (0, 1)
    )
    text = (
        "| | wall | processor |\n|---|---|---|\n"
        f"| plain job | {job[0]:.1f} s | {job[1]:.1f} s |\n| probe | {probed[0]:.1f} s | {probed[1]:.1f} s |\n\n"
        f"Two ranks, {STEPS} steps, {repeats} times in turn; load {load:.0f} on {os.cpu_count()} cores before.\n"
    )
    print(text, end="")
    return int(probed[0] > PROBE_S or probed[0] > job[0] + OVERHEAD_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
