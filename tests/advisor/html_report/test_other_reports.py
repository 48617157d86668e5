"""Reports of comparisons, probes and launches: whole pages, with the figures of `--json`."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ds_advise.advisor.cli.main import run
from ds_advise.advisor.cli.schema import command_schema
from ds_advise.advisor.cli.typed_line import line
from ds_advise.advisor.html_report.report import render_html
from ds_advise.advisor.launch.check import Objection
from ds_advise.advisor.launch.request import Attempt, Peaks, TrainingFailure
from ds_advise.advisor.launch.session import Session
from ds_advise.advisor.question.cluster import parse_cluster
from ds_advise.advisor.question.run import read_run
from ds_advise.advisor.question.this_machine import cpu_cluster
from ds_advise.advisor.render.launch import launch_report, session_document
from ds_advise.advisor.render.runs import probe_document
from ds_advise.advisor.verification.prediction import PhaseFigures, by_estimate
from ds_advise.advisor.verification.probe import ProbeAnswer
from ds_advise.estimators.json_form import to_json
from ds_advise.probes.real_run.result import RankFailure
from ds_advise.probes.run import Run

from tests.advisor.html_report.report_page import MOST_BYTES, Page
from tests.helpers import launch_request, outcome_of, printed_document, ran, schema_errors


@pytest.fixture
def run_of_gpt2(tmp_path: Path) -> Run:
    config = tmp_path / "ds_config.json"
    config.write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    return read_run(config, "gpt2", cpu_cluster(2), seq_len=32, micro_batch=4, offline=True)


def exact(page: Page, section: str) -> list[float]:
    return [value for row in page.sections[section] for _, value in row if value is not None]


def test_a_comparison_has_both_sides_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Side by side, part by part, and the keys that differ."""
    asked = ["compare", "zero2", "zero3", "--model", "Qwen2.5-7B", "--gpus", "4x80GB", "--offline"]
    path, picture = tmp_path / "report.html", tmp_path / "memory.svg"
    assert run([*asked, "--json", "--html", str(path), "--plot", str(picture)]) == 0
    form = json.loads(capsys.readouterr().out)
    page = Page(path.read_text())
    assert page.data == form and path.stat().st_size < MOST_BYTES
    plans = [side["plan"] for side in form["sides"]]
    assert exact(page, "figures")[:4] == [
        plan[name] for name in ("tokens_per_second", "device_bytes_per_gpu") for plan in plans
    ]
    for found in form["differences"]:
        assert found["key"] in page.text
    assert "A: zero2" in picture.read_text()
    assert path.read_text().count("Qwen/Qwen2.5-7B · full fine-tuning") == 2, "the titles of the tab and of the report"
    assert " · full fine-tuning · bf16 · " in page.text
    assert ">Differences</h2>" in path.read_text() and ">Differences</th>" not in path.read_text()
    assert f"<time>{date.today().isoformat()}</time>" in path.read_text()
    assert f"<code>{line([*asked, '--json', '--html', str(path), '--plot', str(picture)])}</code>" in path.read_text()
    # The bars of the time are as long as their columns of the table add up to.
    times = path.read_text().partition('<section id="time">')[2]
    assert "per step of 65,536 tokens" in times
    last = re.findall(r">([\d,.]+) ms</text>", times)[0]
    slowest = max(plan["step_seconds"] for plan in plans) * 1e3
    assert slowest / 2 < float(last.replace(",", "")) <= slowest * 1.1


def test_a_probe_is_compared_with_its_predictions_or_has_the_reason_of_its_failure(run_of_gpt2: Run) -> None:
    result = ran(7.0, world_size=2, device="cpu", tokens_per_step=64, host_peak_bytes=10**9)
    answer = ProbeAnswer(run=run_of_gpt2, result=result, estimate=run_of_gpt2.estimate(), dry_run=None)
    page = Page(render_html(probe_document(answer)))
    assert page.data == json.loads(json.dumps(answer.to_json()))
    assert schema_errors(page.data, command_schema("probe")) == []
    known = [value for found in answer.figures for value in (found.measured, found.analytic) if value is not None]
    assert exact(page, "figures")[: len(known)] == known
    assert "It runs: " in page.text
    dry: Any = SimpleNamespace(cpu_rank_bytes=lambda *, loading: 20 * 10**9 if not loading else 0)
    page = Page(render_html(probe_document(replace(answer, dry_run=dry))))
    assert "+1900 %" in page.text, "all errors of a column in one unit"
    failure = RankFailure(kind="crash", rank=1, phase="step", message="it broke", details="")
    failed = ProbeAnswer(run=run_of_gpt2, result=replace(result, failure=failure), estimate=None, dry_run=None)
    page = Page(render_html(probe_document(failed)))
    assert "It failed." in page.text and "it broke" in page.text
    assert "figures" not in page.sections and "Fix:" not in page.text
    known_one = replace(failure, details="ImportError: x.so: undefined symbol: _ZN3c10", message="undefined symbol")
    page = Page(render_html(probe_document(replace(failed, result=replace(result, failure=known_one)))))
    assert "An extension was built for another version of torch" in page.text and "Fix: Reinstall" in page.text


def test_a_rank_that_hung_did_not_fail_and_its_fix_can_be_copied(run_of_gpt2: Run) -> None:
    """Nothing stands where there is no output to show."""
    result = ran(7.0, world_size=2, device="cpu", tokens_per_step=64)
    failure = RankFailure(
        kind="hang", rank=0, phase="load", message="it waits", fix="`rm /x/lock`, unless another machine builds it"
    )
    answer = ProbeAnswer(run=run_of_gpt2, result=replace(result, failure=failure), estimate=None, dry_run=None)
    text = render_html(probe_document(answer))
    assert "Rank 0 made no progress, during load: it waits" in Page(text).text and "failed first" not in text
    assert '<pre tabindex="0"></pre>' not in text
    assert '<code>rm /x/lock</code> <button type="button" data-copy=""></button>' in text


@pytest.mark.parametrize(
    ("command", "fix"),
    [
        ((), "more GPUs), or offload; `ds-advise gpt2 --gpus 2xL4` finds the fastest plan that fits."),
        (("python", "train.py"), "`ds-advise --gpus 2xL4 -- python train.py` finds the fastest plan that fits."),
        (None, "share the weights, too; more GPUs), or offload. Read in"),
    ],
    ids=["model", "command", "module"],
)
def test_the_fix_of_a_probe_has_no_placeholder(run_of_gpt2: Run, command: tuple[str, ...] | None, fix: str) -> None:
    """It asks about the probed model or command; a module has no such command."""
    run = replace(run_of_gpt2, cluster=parse_cluster("2xL4"), shape=run_of_gpt2.shape if command == () else None)
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.94 GiB."
    failure = RankFailure(kind="out_of_memory", rank=0, phase="step", message=text)
    result = replace(ran(7.0, world_size=2, device="cuda", tokens_per_step=64), failure=failure)
    answer = ProbeAnswer(run=run, result=result, estimate=None, dry_run=None, command=command or ())
    shown = " ".join(printed_document(probe_document(answer)).split())
    assert fix in shown and "SPEC" not in shown


def _session(run: Run, folder: Path, **outcome: Any) -> Session:
    request, estimate = launch_request(run, folder), run.estimate()
    assert estimate is not None
    known: dict[str, Any] = {
        "predicted": by_estimate(estimate, run.cluster),
        "phases": (PhaseFigures(name="forward", seconds=0.25, peak_bytes=3 * 2**30),),
        "last_step": 9,
        "peaks": Peaks(host_bytes=3 * 2**30),
        "step_s": 0.5,
        "tokens_per_step": 256.0,
        "tokens_per_s": 512.0,
        "losses": tuple((step, 10.0 / step) for step in range(1, 3000)),
    }
    return Session(attempts=(Attempt(request=request, outcome=outcome_of(folder, None, **known | outcome)),))


def test_the_report_of_a_launch_has_its_end_figures_and_losses(run_of_gpt2: Run, tmp_path: Path) -> None:
    session = _session(run_of_gpt2, tmp_path)
    text = render_html(session_document(session))
    page = Page(text)
    assert len(text) < MOST_BYTES
    assert page.data == to_json(launch_report(session))
    assert schema_errors(page.data, command_schema("launch")) == []
    assert "Finished after step 9, " in page.text
    assert exact(page, "figures")[0] == 512.0 and 0.25 in exact(page, "figures") and "loss" in page.sections
    saved = render_html(session_document(_session(run_of_gpt2, tmp_path, checkpoint=Path.cwd() / "out/checkpoint-9")))
    assert "ds-advise checkpoint out/checkpoint-9" in Page(saved).text and "ds-advise checkpoint" not in page.text
    assert ", predicted by the closed form." in page.text
    failure = TrainingFailure(kind="hang", rank=0, step=9, message="it broke")
    (tmp_path / "rank0.log").write_text("ValueError: no row\n")
    page = Page(render_html(session_document(_session(run_of_gpt2, tmp_path, failure=failure))))
    assert "The ranks made no progress, first on rank 0, after step 9, " in page.text and "it broke" in page.text
    assert "ValueError: no row" in page.text and "ds-advise why rank0.log" in page.text
    refused = Session(objections=(Objection(what="it does not fit", fix="take more GPUs"),))
    page = Page(render_html(session_document(refused)))
    assert "It was not started." in page.text and "Take more GPUs" in page.text
