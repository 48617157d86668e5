"""Probes of names: real DeepSpeed jobs of the default scripts on the CPU over gloo, and what is refused before."""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ds_advise.ds_configs.emit import ds_config
from ds_advise.estimators.errors import ConfigFileError, WorkloadError
from ds_advise.estimators.gpu_catalogue import gpu_of_memory
from ds_advise.estimators.hardware import Cluster
from ds_advise.estimators.json_form import from_json
from ds_advise.estimators.models.families import shape_from_config
from ds_advise.estimators.models.model_shape import Input
from ds_advise.estimators.plan import Strategy
from ds_advise.estimators.workload import Workload
from ds_advise.probes.real_run.result import ProbeResult
from ds_advise.probes.real_run.run import probe
from ds_advise.probes.run import Run

from tests.helpers import TINY, preset, processes_of

WIDE = {"hidden_size": 256, "intermediate_size": 512}
WORKLOAD = Workload(seq_len=32, framework="hf")
PLAIN = {
    "train_micro_batch_size_per_gpu": 1,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 1},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
}

pytestmark = pytest.mark.timeout(1200)  # the first real run compiles DeepSpeed's extensions


def cluster(ranks: int = 2, nvme_path: str = "") -> Cluster:
    return Cluster(nodes=1, gpus_per_node=ranks, gpu=gpu_of_memory(24), nvme_path=nvme_path)


def run(strategy: Strategy, *, ranks: int = 2, nvme_path: str = "", **settings: Any) -> ProbeResult:
    """A probe of a strategy's preset with two micro batches of two samples."""
    machine = cluster(ranks, nvme_path)
    shape = shape_from_config(TINY, name="small")
    config = ds_config(preset(strategy, shape, WORKLOAD, machine), shape, WORKLOAD, machine, flavor="hf")
    return probe(
        Run(
            config=config,
            model=TINY,
            cluster=machine,
            workload=WORKLOAD,
            micro_batch_size=2,
            gradient_accumulation_steps=2,
        ),
        device="cpu",
        **settings,
    )


@pytest.fixture(scope="module")
def compiled(extensions: Callable[..., None]) -> None:
    extensions("ShareMemCommBuilder", "FusedAdamBuilder")


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """After every test no rank is alive and no file is left in the folder for temporary ones."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", None)
    yield
    monkeypatch.setattr("tempfile.tempdir", None)
    assert not processes_of(os.environ["TMPDIR"])
    assert not [path for path in temporary.iterdir() if path.name.startswith("ds-advise")]


@pytest.mark.slow
@pytest.mark.usefixtures("compiled")
def test_two_ranks_train_and_report() -> None:
    """Memory, time and the loss of every rank; the result survives JSON."""
    phases: list[str] = []
    result = run("zero2", on_progress=lambda ranks, _: phases.append(ranks.phase))
    assert result.failure is None, result.failure
    assert [report.rank for report in result.ranks] == [0, 1]
    assert result.tokens_per_step == 2 * 2 * 2 * 32
    for report in result.ranks:
        assert len(report.losses) == 4 and all(math.isfinite(loss) for loss in report.losses)
        assert len(report.steps) == 3, "the first step creates the states and is not timed"
        for step in report.steps:
            parts = step.forward_s + step.backward_s + step.optimizer_s
            assert 0 < step.waiting_s < step.total_s and parts == pytest.approx(step.total_s, rel=0.5)  # type: ignore[operator]
        assert report.host_peak_bytes > report.host_baseline_bytes > 0
    steps = [phase for phase in phases if phase.startswith("step")]  # not each: a short one is over before it is seen
    assert steps and steps == sorted(steps) and phases.index("load") < phases.index(steps[0])
    assert result.config["train_micro_batch_size_per_gpu"] == 2 and result.versions["deepspeed"]
    assert from_json(ProbeResult, json.loads(json.dumps(result.to_json()))) == result


@pytest.mark.slow
@pytest.mark.usefixtures("compiled")
def test_one_rank_of_many_runs_alone() -> None:
    """With torch's fake process group one process is rank 3 of 16, steps are taken although the values are junk."""
    result = run("zero3", ranks=16, solo=True, rank=3)
    assert result.failure is None, result.failure
    assert [report.rank for report in result.ranks] == [3]
    assert result.tokens_per_step == 16 * 2 * 2 * 32 and result.ranks[0].steps[0].waiting_s is None


@pytest.mark.slow
@pytest.mark.usefixtures("compiled")
def test_a_rank_beyond_its_memory_limit_is_out_of_memory(tmp_path: Path) -> None:
    """On the CPU the limit stands for a GPU's memory."""
    (tmp_path / "own.py").write_text("""
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x):
        keep = torch.ones(100_000_000)  # 400 MB
        return self.layer(x)
""")
    own = Run(
        config=PLAIN, model=f"{tmp_path}/own.py:Model", cluster=cluster(1), workload=WORKLOAD, inputs=(Input((8,)),)
    )
    failure = probe(own, device="cpu", memory_limit_bytes=3 * 10**8).failure
    assert failure is not None and failure.kind == "out_of_memory" and failure.phase == "step 1"
    assert "own.py" in failure.details


@pytest.mark.slow
@pytest.mark.usefixtures("compiled")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small drive")
def test_a_full_drive_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extensions: Callable[..., None]
) -> None:
    """DeepSpeed itself only says that a file is too short."""
    extensions("CPUAdamBuilder", "AsyncIOBuilder")
    drive = tmp_path / "drive"
    drive.mkdir()
    for name, value in WIDE.items():
        monkeypatch.setitem(TINY, name, value)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(drive)], check=True)
    try:
        failure = run("zero3-nvme", nvme_path=str(drive)).failure
        assert failure is not None and failure.kind == "disk_full" and "SIGABRT" in failure.details
        assert not list(drive.iterdir())
    finally:
        subprocess.run(["umount", str(drive)], check=True)


def test_a_swap_folder_that_cannot_be_made_is_refused() -> None:
    """The error comes before a job is started."""
    with pytest.raises(ConfigFileError, match="nvme_path"):
        run("zero3-nvme", nvme_path="/proc/nowhere")


def test_quantized_collectives_are_refused_on_the_cpu_before_a_rank_starts() -> None:
    """DeepSpeed's op builder would raise in every rank."""
    zero = {"stage": 3, "zero_quantized_gradients": True}
    quantized = Run(config={"zero_optimization": zero}, model=TINY, cluster=cluster(), workload=WORKLOAD)
    with pytest.raises(WorkloadError, match="do not run on the CPU"):
        probe(quantized, device="cpu")
