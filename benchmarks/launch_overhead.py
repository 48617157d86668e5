"""Seconds that `ds-advise launch --no-check` adds before the first step, over the plain launcher.

    python -m benchmarks.launch_overhead [--runs 5] [--script step|torch]

Each run starts two ranks with torchrun, once by itself and once by `ds-advise launch`, in turns, and measures from the
start of the command to the moment at which rank 0's script writes the time. The script either does nothing else
("step"), or imports torch first ("torch"), as every training does. The target is for the difference of the medians.

Then what a rank pays while it trains: the time that noting adds to a micro batch of an engine that does nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

TARGET_S = 5.0
BODIES = {"step": "", "torch": "import torch\n"}
SCRIPT = (
    "import os, time\n{body}if os.environ['RANK'] == '0':\n"
    "    open(os.environ['FIRST_STEP'], 'w').write(str(time.time()))\n"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--script", choices=BODIES, default="torch")
    given = parser.parse_args()
    plain, ours = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT.format(body=BODIES[given.script]))
        (folder / "ds_config.json").write_text('{"train_batch_size": "auto"}')
        for run in range(given.runs + 1):
            # A port of the system's choice, as `launch` takes one: two runs close to each other do not meet.
            first = _seconds(folder, ["torch.distributed.run", "--standalone", "--nproc_per_node", "2", "train.py"])
            second = _seconds(
                folder,
                [
                    "ds_advise",
                    "launch",
                    "ds_config.json",
                    "--no-check",
                    "--device",
                    "cpu",
                    "--launcher",
                    "torchrun",
                    "--no-pass-config",
                    "--log-dir",
                    f"log{run}",
                    "--",
                    "train.py",
                ],
            )
            if run:  # the first fills the file cache
                plain.append(first)
                ours.append(second)
    for what, seconds in (("torchrun", plain), ("ds-advise launch", ours)):
        print(f"{what:<18} median {statistics.median(seconds):6.2f} s   {min(seconds):.2f} to {max(seconds):.2f}")
    more = statistics.median(ours) - statistics.median(plain)
    print(f"{'overhead':<18}        {more:6.2f} s   target {TARGET_S:g}: {'met' if more <= TARGET_S else 'MISSED'}")
    print(f"{'a micro batch':<18}        {_noting_s() * 1e6:6.0f} us")


def _seconds(folder: Path, words: list[str]) -> float:
    """From the start of `python -m ...` to the time that the script prints."""
    first_step = folder / "first_step"
    began = time.time()
    subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"FIRST_STEP": str(first_step), "OMP_NUM_THREADS": "1"},
    )
    return float(first_step.read_text()) - began


def _noting_s(micro_batches: int = 4000, accumulation: int = 4) -> float:
    """Seconds per micro batch, on the CPU."""
    import torch
    from ds_advise.advisor.launch.rank import observe
    from ds_advise.probes.real_run.rank import EventLog

    class Engine:
        def __init__(self) -> None:
            self.module, self.device = SimpleNamespace(training=True), torch.device("cpu")
            self.global_steps, self.micro_steps = 0, 0

        def zero_optimization_stage(self) -> int:
            return 2

        def forward(self, **_: object) -> None: ...

        def backward(self, _loss: object) -> None: ...

        def step(self) -> None:
            self.micro_steps += 1
            self.global_steps += self.micro_steps % accumulation == 0

    inputs, loss = torch.zeros(4, 32, dtype=torch.long), torch.tensor(1.0)

    def seconds() -> float:
        engine, began = Engine(), time.perf_counter()
        for _ in range(micro_batches):
            engine.forward(input_ids=inputs)
            engine.backward(loss)
            engine.step()
        return time.perf_counter() - began

    alone = seconds()
    with tempfile.TemporaryDirectory() as folder:
        observe(SimpleNamespace(DeepSpeedEngine=Engine), EventLog(Path(folder, "rank0.jsonl")))
        return (seconds() - alone) / micro_batches


if __name__ == "__main__":
    main()
