"""What the real engine does with a configuration: `deepspeed.initialize` and one optimizer step on the simulated GPU.

One process imports torch and DeepSpeed, and a fork of it answers for each configuration, so that none sees another's
state.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WORLD_SIZE = 2
MODEL = """
import torch

def tiny():
    return torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 16))
"""
LIMIT_S = 60
"""For one configuration; a tenth of a second is usual."""


def outcomes(configs: Sequence[dict[str, Any]], *, world_size: int = WORLD_SIZE) -> list[str]:
    """For each configuration "" if it runs, else what was raised and in which phase."""
    with tempfile.TemporaryDirectory(prefix="ds-advise-") as name:
        folder = Path(name)
        (folder / "tiny.py").write_text(MODEL)
        (folder / "configs.json").write_text(json.dumps([world_size, list(configs)]))
        subprocess.run(
            [sys.executable, __file__, str(folder)],
            check=True,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=60 + LIMIT_S * len(configs),
        )
        return list(json.loads((folder / "outcomes.json").read_text()))


def _main(folder: Path) -> None:
    import gc
    import os
    import signal

    os.environ["DS_ACCELERATOR"] = "cpu"
    gc.disable()
    import logging

    from ds_advise.estimators.hardware.cluster import Cluster
    from ds_advise.estimators.hardware.gpus import find_gpu
    from ds_advise.estimators.workload import Workload
    from ds_advise.probes.dry_run import worker
    from ds_advise.probes.dry_run.run import request_for
    from ds_advise.probes.run import Run

    world_size, configs = json.loads((folder / "configs.json").read_text())
    workload = Workload(precision="fp32", framework="deepspeed")
    cluster = Cluster(nodes=1, gpus_per_node=world_size, gpu=find_gpu("H100-80GB-SXM"))
    requests = [
        request_for(
            Run(
                config=config,
                model=f"{folder / 'tiny.py'}:tiny",
                cluster=cluster,
                workload=workload,
                gradient_checkpointing=False,
                input_shape=(16,),
            ),
            iterations=1,
        )
        for config in configs
    ]
    worker._import_all(requests[0])
    import deepspeed.runtime.superoffload.superoffload_stage3
    import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: F401  imported by each initialization, which takes seconds

    logging.disable(logging.CRITICAL)  # DeepSpeed's log of every start takes longer than the start
    outcomes = []
    for request in requests:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            signal.alarm(LIMIT_S)
            answer = worker.answer_to(request)
            os.write(
                writing,
                json.dumps(
                    f"{answer['phase']}: {answer['kind']}: {answer['error'][:500]}" if "error" in answer else ""
                ).encode(),
            )
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            outcome = pipe.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        outcomes.append(json.loads(outcome) if outcome else f"it ended with status {status}")
    (folder / "outcomes.json").write_text(json.dumps(outcomes))


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
