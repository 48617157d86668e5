"""What the real engine does with a configuration: `deepspeed.initialize` and one optimizer step on the simulated GPU.

One process imports torch and DeepSpeed, and a fork of it answers for each configuration, so that none sees another's
state.
"""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ds_advise.estimators.workload import Framework

WORLD_SIZE = 2
MODEL = """
import torch

def tiny():
    return torch.nn.Sequential(torch.nn.Embedding(16, 16), torch.nn.Linear(16, 16))
"""
HIDDEN_SIZE = 16
"""The tiny model's, from which the Trainer computes bucket sizes."""
LIMIT_S = 60
"""For one configuration; a tenth of a second is usual."""


@dataclass(frozen=True, kw_only=True)
class EngineQuestion:
    """What the engine is asked to run."""

    config: Any
    """The settings, or a file's text where the text itself is what is asked about."""
    world_size: int = WORLD_SIZE
    framework: Framework = "deepspeed"
    """Who reads the file: "hf" has transformers' and accelerate's own code read it and fill `auto` first."""
    only_read: bool = False
    """Ask no more than whether the file is read."""


def outcomes(configs: Sequence[dict[str, Any]], *, world_size: int = WORLD_SIZE) -> list[str]:
    """For each configuration of plain DeepSpeed what `answers` says."""
    return answers([EngineQuestion(config=config, world_size=world_size) for config in configs])


def answers(questions: Sequence[EngineQuestion]) -> list[str]:
    """For each question "" if it runs, else what was raised and in which phase."""
    with tempfile.TemporaryDirectory(prefix="ds-advise-") as name:
        folder = Path(name)
        (folder / "tiny.py").write_text(MODEL)
        (folder / "questions.json").write_text(json.dumps([asdict(question) for question in questions]))
        _run(folder, limit_s=60 + LIMIT_S * len(questions))
        return list(json.loads((folder / "outcomes.json").read_text()))


def _run(folder: Path, *, limit_s: float) -> None:
    subprocess.run(
        [sys.executable, "-m", "benchmarks.lint.engine", str(folder)],
        check=True,
        cwd=Path(__file__).parents[2],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=limit_s,
    )


def _main(folder: Path) -> None:
    import gc
    import importlib
    import os

    os.environ["DS_ACCELERATOR"] = "cpu"
    gc.disable()
    import logging

    questions = [EngineQuestion(**fields) for fields in json.loads((folder / "questions.json").read_text())]
    os.chdir(folder)
    for name in (  # imported by each initialization, which takes seconds
        "deepspeed.runtime.engine",
        "deepspeed.runtime.superoffload.superoffload_stage3",
        "deepspeed.runtime.zero.muon.muon_optimizer",
        "transformers.integrations.deepspeed",
        "transformers.modeling_utils",
        "torch.testing._internal.distributed.fake_pg",
        "ds_advise.probes.command.worker",
    ):
        importlib.import_module(name)

    logging.disable(logging.CRITICAL)  # DeepSpeed's log of every start takes longer than the start
    (folder / "outcomes.json").write_text(json.dumps([_in_a_fork(folder, question) for question in questions]))


def _in_a_fork(folder: Path, question: EngineQuestion) -> str:
    import os
    import signal

    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(LIMIT_S)
        os.write(writing, json.dumps(_outcome(folder, question)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        outcome = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return str(json.loads(outcome)) if outcome else f"it ended with status {status}"


def _outcome(folder: Path, question: EngineQuestion) -> str:
    """Read, filled and run as its reader does."""
    import os
    from unittest.mock import patch

    from ds_advise.probes.dry_run.run import dry_run
    from ds_advise.probes.run_errors import DryRunError

    from benchmarks.dry_run.forked_dry_runs import run_session, written_answer
    from benchmarks.lint import readers

    def fork(request: Any, place: Path, working_folder: Path, *_: Any) -> Any:
        child = os.fork()
        if not child:
            run_session(request, place, working_folder)
        return written_answer(place, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    try:
        config = readers.first_tuned(readers.read(question.config, question.framework))
        if question.framework == "hf":
            config = readers.filled_by_trainer(config, question.world_size, HIDDEN_SIZE)
        readers.checked_by_deepspeed(copy.deepcopy(config), question.world_size)
    except Exception as error:
        return f"read: {type(error).__name__}: {str(error)[:500]}"
    if question.only_read:
        return ""
    try:
        with patch("ds_advise.probes.command.run.start", fork):
            dry_run(_tiny_run(folder, config, question.world_size), iterations=1)
    except DryRunError as error:
        raised = [line for line in error.details.splitlines() if re.match(r"[\w.]*(Error|Exception)\b", line)]
        return (
            f"{error.phase}: {raised[-1].rpartition(':')[0].rpartition('.')[2] if raised else ''}: {error.what[:500]}"
        )
    return ""


def _tiny_run(folder: Path, config: dict[str, Any], world_size: int) -> Any:
    from ds_advise.estimators.gpu_catalogue import find_gpu
    from ds_advise.estimators.hardware import Cluster
    from ds_advise.estimators.models.model_shape import Input
    from ds_advise.estimators.workload import Workload
    from ds_advise.probes.run import Run

    nodes = world_size // 8 if world_size % 8 == 0 else 1
    return Run(
        config=config,
        model=f"{folder / 'tiny.py'}:tiny",
        cluster=Cluster(nodes=nodes, gpus_per_node=world_size // nodes, gpu=find_gpu("H100-80GB-SXM")),
        workload=Workload(precision="fp32", framework="deepspeed"),
        gradient_checkpointing=False,
        inputs=(Input((4,), "int64"),),
    )


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
