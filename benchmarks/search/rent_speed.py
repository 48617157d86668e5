"""How long `ds-advise rent` takes for 200 machines: `python -m benchmarks.search.rent_speed`.

The table is made of 25 kinds of GPUs that are rented, in machines of 1, 2, 4 and 8, each from two providers; eights of
cards with NVLink are joined by twos and fours besides. Processor time of one process, imports included, and the core's
single-thread score.
"""

from __future__ import annotations

import csv
import io
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from ds_advise.probes.benchmark_rank import HostScore

GPUS = re.split(
    r"\s+",
    "T4 V100-SXM2-16GB V100-SXM2-32GB RTX-3090 RTX-4090 RTX-5090 RTX-A4000 RTX-A5000 RTX-A6000 RTX-6000-Ada A10 A10G "
    "L4 A40 L40 L40S A100-PCIe-40GB A100-PCIe-80GB A100-SXM4-40GB A100-SXM4-80GB H100-PCIe H100-SXM5 H100-NVL H200-SXM "
    "B200",
)
JOINED = ("A100-SXM4-40GB", "A100-SXM4-80GB", "H100-SXM5", "H200-SXM", "B200")
QUESTIONS = (
    ("Qwen2.5-7B", "--method", "full"),
    ("Qwen2.5-7B", "--method", "lora"),
    ("Llama-3.1-8B", "--method", "full", "--samples", "20000"),
    ("Qwen2.5-32B", "--method", "qlora"),
    ("Llama-3.1-70B", "--method", "lora", "--seq-len", "8192"),
    ("gpt2", "--method", "full"),
)

_TIMED = """
import resource, sys
from ds_advise.advisor.cli.main import run
code = run(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, file=sys.stderr)
sys.exit(code)
"""


def table() -> str:
    """200 machines; prices only need to differ."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["provider", "gpus", "price_per_gpu", "nodes"])
    for number, gpu in enumerate(GPUS):
        for provider in (1, 2):
            for count in (1, 2, 4, 8):
                nodes = 4 if count == 8 and gpu in JOINED and provider == 1 else 1
                writer.writerow([f"provider {provider}", f"{count}x{gpu}", 0.1 * (number + provider), nodes])
    return out.getvalue()


def seconds_of(question: tuple[str, ...], prices: Path) -> float:
    """Processor time of one answer in a fresh process."""
    words = ["rent", *question, "--prices", str(prices), "--quiet"]
    ran = subprocess.run([sys.executable, "-c", _TIMED, *words], capture_output=True, text=True, check=False)
    if ran.returncode == 2:
        raise RuntimeError(ran.stderr)
    return float(ran.stderr.split()[-1])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        prices = Path(folder) / "prices.csv"
        prices.write_text(table(), encoding="utf-8")
        print(f"{len(table().splitlines()) - 1} machines")
        for question in QUESTIONS:
            print(f"{min(seconds_of(question, prices) for _ in range(3)):5.2f} s  {' '.join(question)}", flush=True)
        score = HostScore()
        measured = sorted(1000 * score.measure() for _ in range(5))
        print(f"single-thread score of this core {measured[0]:.0f} to {measured[-1]:.0f} ms (less is faster)")


if __name__ == "__main__":
    main()
