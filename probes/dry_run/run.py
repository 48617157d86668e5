"""`dry_run`: ask a subprocess of its own, and report its answer or its true error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...estimators.errors import DsAdviseError
from ...estimators.workload import Workload
from .request import Request
from .result import DryRunResult, from_json


class DryRunError(DsAdviseError):
    """A dry run that ended without an answer; `phase` says where, `details` holds the traceback."""

    def __init__(self, what: str, *, phase: str, details: str = "", why: str = "", fix: str = "") -> None:
        super().__init__(what, why=why, fix=fix)
        self.phase, self.details = phase, details


def dry_run(config: Mapping[str, Any] | str | Path, model: Mapping[str, Any] | str | Path, *,
            world_size: int, gpus_per_node: int | None = None, rank: int = 0, workload: Workload | None = None,
            micro_batch_size: int = 1, gradient_accumulation_steps: int = 1, gradient_checkpointing: bool = True,
            compute_capability: float = 9.0, gpu_memory_bytes: int = 80 << 30, iterations: int = 4,
            input_shape: Sequence[int] | None = None, expandable_segments: bool = False, trace: bool = False,
            timeout_s: float = 1800.0) -> DryRunResult:
    """Memory of one rank under the installed DeepSpeed's real engine, on a simulated GPU.

    config:  a ds_config as a dict or a file; `auto` is filled as the Trainer fills it.
    model:   a transformers config as a dict, a `config.json` or its folder, or "FILE.py:FUNCTION" that returns a module.
    gpus_per_node: ranks that share a host, all of them by default.
    micro_batch_size, gradient_accumulation_steps: used where the configuration says `auto` or nothing.
    compute_capability: decides which attention kernels the GPU has.
    iterations: optimizer steps; Adam's states appear in the first, ZeRO-3 prefetches from the third.

    Raises DryRunError: DeepSpeed rejected the configuration, the model could not be built, or an operation needs real
    values; with the original message and the phase.
    """
    workload = workload or Workload()
    description, factory = _model(model)
    request = Request(
        config=_config(config), model=description, factory=factory,
        input_shape=tuple(input_shape) if input_shape is not None else None,
        world_size=world_size, gpus_per_node=gpus_per_node or world_size, rank=rank,
        method=workload.method, lora_rank=workload.lora_rank, lora_targets=workload.lora_targets,
        seq_len=workload.seq_len, precision=workload.precision, optimizer=workload.optimizer,
        attention=workload.attention, framework=workload.framework, micro_batch_size=micro_batch_size,
        gradient_accumulation_steps=gradient_accumulation_steps, gradient_checkpointing=gradient_checkpointing,
        compute_capability=round(compute_capability * 10), gpu_memory_bytes=gpu_memory_bytes, iterations=iterations,
        expandable_segments=expandable_segments, trace=trace)
    return from_json(_ask(request, timeout_s))


def _config(config: Mapping[str, Any] | str | Path) -> dict[str, Any]:
    if isinstance(config, Mapping):
        return dict(config)
    return dict(json.loads(Path(config).read_text()))


def _model(model: Mapping[str, Any] | str | Path) -> tuple[dict[str, Any] | None, str | None]:
    if isinstance(model, Mapping):
        return dict(model), None
    text = str(model)
    if ".py:" in text:
        return None, text
    path = Path(model)
    return dict(json.loads((path / "config.json" if path.is_dir() else path).read_text())), None


def _ask(request: Request, timeout_s: float) -> dict[str, Any]:
    package = __package__ or ""
    with tempfile.TemporaryDirectory(prefix="ds-advise-") as folder:
        answer_file = Path(folder) / "answer.json"
        try:
            done = subprocess.run(
                [sys.executable, "-m", f"{package}.worker", str(answer_file)], input=json.dumps(asdict(request)),
                capture_output=True, text=True, timeout=timeout_s, cwd=folder,
                env={**os.environ, "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"})
        except subprocess.TimeoutExpired:
            raise DryRunError(f"the dry run did not end within {timeout_s:.0f} s", phase="unknown") from None
        if not answer_file.exists():
            last = (done.stderr or done.stdout).strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
            raise DryRunError(f"the dry run died: {last[0]}", phase="unknown", details=done.stderr)
        answer = json.loads(answer_file.read_text())
    if "error" in answer:
        raise DryRunError(f"{answer['kind']} during {answer['phase']}: {answer['error']}", phase=answer["phase"],
                          details=answer["traceback"])
    return dict(answer["result"])
