"""vLLM's own memory profiles, as its users print them, and what is counted: `python -m benchmarks.vllm_memory`.

Every row of data/vllm_memory.csv.
"""

from __future__ import annotations

import csv
from pathlib import Path

from ds_advise.estimators.memory.rollout_memory import (
    VLLM_ASLEEP_BYTES,
    VLLM_GRAPHS_BYTES,
    VLLM_NON_TORCH_BYTES,
    VLLM_TOKENS,
    profiled_bytes,
)
from ds_advise.estimators.models.catalogue import find
from ds_advise.estimators.workload import Workload

ROWS = Path(__file__).parent / "data" / "vllm_memory.csv"
_GIB = 2**30


def predicted(row: dict[str, str]) -> dict[str, float]:
    """GiB of each figure that the row prints."""
    found = {"non_torch_gib": VLLM_NON_TORCH_BYTES, "graphs_gib": VLLM_GRAPHS_BYTES, "asleep_gib": VLLM_ASLEEP_BYTES}
    if row["model"]:
        model = find(row["model"])
        found["weights_gib"] = 2 * model.parameters // int(row["ranks"])
        profiled = profiled_bytes(model, Workload(), int(row["tokens"] or VLLM_TOKENS))
        found["activations_gib"] = profiled - VLLM_NON_TORCH_BYTES
    return {name: size / _GIB for name, size in found.items() if row[name]}


def main() -> None:
    with ROWS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    print(f"{'source':<38} {'model':<16} {'GPUs':>4} {'figure':<16} {'published':>9} {'counted':>8}")
    for row in rows:
        name = f"{row['source']:<38} {row['model'].rpartition('/')[2]:<16} {row['ranks']:>4}"
        for figure, size in predicted(row).items():
            print(f"{name} {figure.removesuffix('_gib'):<16} {float(row[figure]):>9.2f} {size:>8.2f}")


if __name__ == "__main__":
    main()
