"""Seconds of a whole `ds-advise doctor` process, and of each of its readers alone.

    python -m benchmarks.doctor_speed [--runs 5]

The target is 5 s for the process, whatever hangs: every tool that is asked has a limit of its own below it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ds_advise.validate.doctor.building import read_ops_folder, read_toolchain
from ds_advise.validate.doctor.findings import run_program
from ds_advise.validate.doctor.gpus import read_graphics
from ds_advise.validate.doctor.host import read_folder, read_memory, read_processor
from ds_advise.validate.doctor.software import read_software

TARGET_S = 5.0
ROOT = Path("/")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    print(f"{'what':<38}{'min':>8}{'median':>8}{'max':>8}   seconds, {runs} runs")
    report(f"ds-advise doctor (target {TARGET_S:g} s)", doctor, runs)
    for name, reader in (
        ("software", read_software),
        ("graphics", lambda: read_graphics(ROOT)),
        ("memory", lambda: read_memory(ROOT)),
        ("processor", lambda: read_processor(ROOT)),
        ("ops folder", lambda: read_ops_folder(os.environ)),
        ("swap folder", lambda: read_folder("/tmp")),
        ("toolchain", lambda: read_toolchain(run_program, os.environ, "2.13")),
    ):
        report(f"  {name}", reader, runs)


def doctor() -> None:
    subprocess.run([sys.executable, "-m", "ds_advise", "doctor", "--nvme", "/tmp"], check=False, capture_output=True)


def report(name: str, action: Callable[[], object], runs: int) -> None:
    measured = []
    for _ in range(runs):
        start = time.perf_counter()
        action()
        measured.append(time.perf_counter() - start)
    print(f"{name:<38}{min(measured):>8.3f}{statistics.median(measured):>8.3f}{max(measured):>8.3f}")


if __name__ == "__main__":
    main()
