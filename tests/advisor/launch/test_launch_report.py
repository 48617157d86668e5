"""What stands at the end of a training: measured beside predicted, by one measure."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from ds_advise.advisor.advise import advise
from ds_advise.advisor.launch.request import LaunchOutcome, LaunchRequest, Peaks, Script
from ds_advise.advisor.question.run import read_run
from ds_advise.advisor.question.this_machine import cpu_cluster
from ds_advise.advisor.render.launch import render_figures
from ds_advise.advisor.text.output import Output
from ds_advise.advisor.train.settings import TrainingSettings
from ds_advise.advisor.train.train import prove
from ds_advise.probes.real_run.result import StepTime
from rich.console import Console

from tests.probe_results import ran


@pytest.fixture
def request_of_gpt2(tmp_path: Path) -> LaunchRequest:
    """Two ranks, 4 samples of 32 tokens each: 256 tokens in a full step."""
    config = tmp_path / "ds_config.json"
    config.write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    run = read_run(config, "gpt2", cpu_cluster(2), seq_len=32, micro_batch=4, offline=True)
    return LaunchRequest(
        script=Script(target="train.py"),
        run=run,
        config_path=config,
        launcher="torchrun",
        folder=tmp_path,
        prediction=run.estimate(),
    )


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_measured_and_predicted_are_of_as_many_tokens(request_of_gpt2: LaunchRequest, share: float) -> None:
    """Steps of shorter batches are held against shorter steps, so step and tokens/s say the same."""
    prediction = request_of_gpt2.prediction
    assert prediction is not None
    tokens, step_s = 256 * share, prediction.time.step_s * share
    outcome = LaunchOutcome(
        status="finished",
        failure=None,
        last_step=9,
        peaks=Peaks(host_bytes=1),
        seconds=9.0,
        folder=request_of_gpt2.folder,
        step_s=step_s,
        tokens_per_step=tokens,
        tokens_per_s=tokens / step_s,
    )
    page = io.StringIO()
    render_figures(request_of_gpt2, outcome, Console(file=page, width=80))
    rows = {line.split()[0]: line.split()[1:] for line in page.getvalue().splitlines()}
    assert rows["tokens/s"][0] == rows["tokens/s"][1]
    half = len(rows["step"]) // 2
    assert rows["step"][:half] == rows["step"][half:]
    assert f"Padding counts as tokens: {tokens:.0f} in a step. Predicted by the closed form" in page.getvalue()


def test_a_probe_is_the_prediction_of_the_training_it_proves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its measured speed stands at the end, not the closed form's."""
    answer = advise("gpt2", gpus=cpu_cluster(2), seq_len=32, deepspeed_estimate=False, offline=True)
    step = StepTime(total_s=7.0, forward_s=1, backward_s=1, optimizer_s=1, waiting_s=None)
    probed = ran(step, world_size=2, device="cpu", tokens_per_step=64, host_peak_bytes=10**8)
    monkeypatch.setattr("ds_advise.advisor.train.train.probe_and_keep", lambda *_, **__: probed)
    settings = TrainingSettings(model="gpt2", data=tmp_path, device="cpu", offline=True)
    proven = prove(answer, settings, memory_limit_bytes=None, output=Output("quiet")).recommended
    assert proven is not None
    assert (proven.estimate.evidence, proven.estimate.time.step_s) == ("probe", pytest.approx(7.0))
