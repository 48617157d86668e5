"""Published speeds of generation against the predicted ones: `python -m benchmarks.rollout_speed`.

Every row of data/decoding_speed.csv. No constant of vLLM was fitted on them; the host's core was
(`estimators/hardware.py`).
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from statistics import median

from ds_advise.estimators.gpu_catalogue import find_gpu
from ds_advise.estimators.hardware import Cluster
from ds_advise.estimators.models.catalogue import find
from ds_advise.estimators.rollouts import Rollouts
from ds_advise.estimators.time.rollout_time import vllm_engine
from ds_advise.estimators.workload import Workload

ROWS = Path(__file__).parent / "data" / "decoding_speed.csv"


def predicted(row: dict[str, str]) -> float:
    """Tokens per second of all sequences of a row, prompts included in the time."""
    prompt, length, sequences = (int(row[name]) for name in ("prompt_tokens", "completion_tokens", "sequences"))
    rollouts = Rollouts(rollout=row["engine"], max_completion_length=length, server_gpus=1)  # type: ignore[arg-type]
    workload = Workload(objective="grpo", framework="trl", seq_len=prompt + length, rollouts=rollouts)
    if row["transformers"]:
        major, minor = map(int, row["transformers"].split("."))
        workload = replace(workload, software=replace(workload.software, transformers=(major, minor)))
    cluster = Cluster(nodes=1, gpus_per_node=1, gpu=find_gpu(row["gpu"]))
    engine = vllm_engine(find(row["model"]), workload, cluster, sequences)
    return sequences * length / engine.rollout_s(sequences, length)


def main() -> None:
    with ROWS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    errors: dict[str, list[float]] = {}
    print(f"{'engine':<12} {'model':<14} {'prompt':>6} {'published':>9} {'predicted':>9} {'error':>7}")
    for row in rows:
        published, ours = float(row["tokens_per_s"]), predicted(row)
        error = ours / published - 1
        errors.setdefault(row["engine"], []).append(abs(error))
        name = f"{row['engine']:<12} {row['model']:<14} {row['prompt_tokens']:>6}"
        print(f"{name} {published:>9.1f} {ours:>9.1f} {error:>+7.0%}")
    for engine, own in errors.items():
        print(f"{engine}: {len(own)} rows, median error {median(own):.0%}, largest {max(own):.0%}")


if __name__ == "__main__":
    main()
