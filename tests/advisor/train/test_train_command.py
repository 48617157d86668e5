"""`ds-advise train` before anything is started: what it chooses, what it refuses, what `--dry` shows."""

from __future__ import annotations

import io
import json
import math
import os
import re
import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ds_advise.advisor.cli.main import run
from ds_advise.advisor.cli.schema import command_schema
from ds_advise.advisor.data import counting as defaults
from ds_advise.advisor.launch.records import nan_from
from ds_advise.advisor.launch.request import Attempt, FailureKind, LaunchOutcome, LaunchRequest
from ds_advise.advisor.launch.session import Session
from ds_advise.advisor.question.this_machine import cpu_cluster
from ds_advise.advisor.train.folder import TrainingFolder
from ds_advise.advisor.train.proposal import check_packages, default_save_steps
from ds_advise.advisor.train.report import Trained, _is_timed, render_trained
from ds_advise.advisor.train.train import TrainingControls
from ds_advise.advisor.verification.prediction import PhaseFigures
from ds_advise.estimators.errors import ConfigFileError, WorkloadError
from ds_advise.estimators.models.families import shape_from_config
from ds_advise.estimators.workload import Workload
from ds_advise.probes.benchmark_result import figure
from ds_advise.probes.run import Run
from rich.console import Console

from tests.helpers import TINY, bench_result, launch_request, outcome_of, schema_errors, write_checkpoint

BERT = TINY | {"model_type": "bert", "architectures": ["BertForMaskedLM"]}
ROW = {"messages": [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}]}


@pytest.fixture
def model(model: Path) -> Path:
    """A model whose weights are there, and empty."""
    (model / "model.safetensors").touch()
    return model


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "chats.jsonl"
    file.write_text("\n".join(json.dumps(ROW) for _ in range(40)))
    return file


Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ask(model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    """(exit code, stdout, stderr) of a training of the model on the data, the lines joined."""

    def ask(options: str = "", *, no_check: bool = True) -> tuple[int, str, str]:
        paths = ["--model", str(model), "--data", str(data), "--output-dir", str(tmp_path / "out")]
        fixed = ["--device", "cpu", "--ranks", "2", *["--no-check"] * no_check]
        code = run(["train", *paths, *fixed, *options.split()])
        printed = capsys.readouterr()
        return code, " ".join(printed.out.split()), printed.err

    return ask


Stub = Callable[..., None]


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> Stub:
    """Every launch fails after a checkpoint, and nothing is started."""

    def install(folder: TrainingFolder, kind: FailureKind = "lost_rank") -> None:
        def launch(request: LaunchRequest, **_: Any) -> LaunchOutcome:
            write_checkpoint(folder.path / "checkpoint-3", ranks=2)
            return outcome_of(request.folder, kind)

        monkeypatch.setattr("ds_advise.advisor.launch.session.launch", launch)

    return install


def test_dry_shows_data_plan_and_command_and_leaves_nothing(ask: Ask, tmp_path: Path) -> None:
    """What would be written and started, with the paths that it would have."""
    code, printed, _ = ask("--dry --eval-split 0.1 --epochs 2")
    assert code == 0
    assert "data 40 rows of chat messages in chats.jsonl: 36 samples for training, 4 for evaluation" in printed
    assert "no row is cut" in printed and printed.index("Full fine-tuning") < printed.index("data 40 rows")
    # A tenth of 36 samples, rounded up to the two ranks: 4; twice 36 samples in fours.
    assert "batch 4 samples" in printed
    assert "steps 18 (2 epochs) at a learning rate of 2e-05" in printed
    assert printed.count(" \\ ") > 5, "a long command goes on in the next line"
    started = printed.replace(" \\ ", " ")
    assert f"{tmp_path}/out/training/train.py --output_dir {tmp_path}/out" in started
    assert "--lr_scheduler_type cosine --weight_decay 0.0 --max_grad_norm 1.0" in started
    assert not (tmp_path / "out").exists()


def test_programs_get_the_proposal_as_one_object(ask: Ask) -> None:
    """The JSON of --dry: data, plan and steps; nothing was started."""
    code, printed, _ = ask("--dry --json --eval-split 0.1 --epochs 2")
    form, whole = json.loads(printed), command_schema("train")
    assert code == 0 and schema_errors(form, whole) == []
    proposal = form["proposal"]
    assert (proposal["data"]["rows"], proposal["data"]["train_samples"], proposal["steps"]) == (40, 36, 18)
    assert proposal["plan"]["fits"] and (form["launched"], form["finished"], form["model"]) == (None, False, None)


def test_options_take_precedence_over_defaults(ask: Ask) -> None:
    """Sequence length, batch, steps and rate; the rows that are cut are counted. LoRA has a rate of its own."""
    _, printed, _ = ask("--dry --seq-len 20 --global-batch 6 --max-steps 7 --learning-rate 0.5")
    assert "sequence 20 tokens (95th percentile" in printed and "; rows cut: 40" in printed
    assert "batch 6 samples" in printed
    assert "steps 7 (1 epoch) at a learning rate of 0.5" in printed
    assert "a learning rate of 0.0002" in ask("--dry --method lora")[1]
    # The Trainer's epoch of 36 samples has 5 steps of 8, of which the last has 4 samples.
    assert "steps 10 (2 epochs)" in ask("--dry --eval-split 0.1 --epochs 2 --global-batch 8")[1]


def test_a_recorded_file_is_trained_as_it_is(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Model, machine and plan are those of the file, and the figures those of its answer. A file for another kind of
    training, or a global batch that contradicts it, is refused."""
    monkeypatch.chdir(tmp_path)
    assert run([str(model), "--device", "cpu", "--ranks", "2", "--seq-len", "64", "--micro-batch", "4", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)["recommended"]
    train = ["train", "ds_config.json", "--data", str(data), "--no-check", "--dry"]
    assert run([*train, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)["proposal"]["plan"]
    same = answer.keys() - {"job", "model_flops_utilization"}
    assert plan["micro_batch_size"] == 4 and {name: plan[name] for name in same} == {
        name: answer[name] for name in same
    }
    assert run([*train, "--global-batch", "2"]) == 2
    assert "--global-batch and ds_config.json contradict each other" in capsys.readouterr().err
    assert run([str(model), "--device", "cpu", "--kernels", "liger", "--force", "--quiet"]) == 0
    assert run(train) == 2 and "for a training with --kernels liger" in capsys.readouterr().err


def test_a_folder_with_something_in_it_is_left_alone(ask: Ask, tmp_path: Path) -> None:
    """Without --force nothing is touched; --resume is proposed only where there is a training."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("x")
    code, _, error = ask()
    assert (code, (tmp_path / "out" / "thesis.txt").read_text()) == (2, "x")
    assert "is not empty" in error
    assert "--resume" not in error
    code, _, shown = ask("--dry")
    assert code == 0 and "it would not start without --dry: " in shown and "is not empty" in shown
    assert ask("--dry --force")[2] == ""
    assert list((tmp_path / "out").iterdir()) == [tmp_path / "out" / "thesis.txt"]


def test_the_load_before_the_probe_is_kept(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe's own ranks are no other processes."""
    told = list[str]()

    def train(*given: Any, **_: Any) -> int:
        told.extend(each.was_busy for each in given if isinstance(each, TrainingControls))
        return 0

    monkeypatch.setattr("os.getloadavg", lambda: (1e3, 0.0, 0.0))
    monkeypatch.setattr("ds_advise.advisor.train.train.train_anew", train)
    assert ask()[0] == 0 and "Other processes use this machine" in told[0]


def test_a_refused_training_does_not_block_the_next(ask: Ask, data: Path) -> None:
    """Once a broken row is repaired, the same command works."""
    whole = data.read_text()
    data.write_text("{")
    assert "chats.jsonl: line 1 cannot be read (Expecting property name" in ask()[2]
    data.write_text(whole)
    code, printed, error = ask("--memory 10MB")
    assert (code, error) == (1, "")
    assert "Nothing fits." in printed and "The closest plan, " in printed


def test_paths_are_kept_whole(model: Path, data: Path, tmp_path: Path) -> None:
    """--resume works from another folder."""
    options = "--model model --data chats.jsonl --output-dir out --device cpu --memory 10MB --no-check"
    assert run(["train", *options.split()]) == 1
    kept = json.loads((tmp_path / "out/training/asked.json").read_text())
    assert (kept["model"], kept["data"]) == (str(model), str(data))


def test_force_takes_an_earlier_trainings_checkpoints_away(tmp_path: Path) -> None:
    """None of them is resumed as the new training's; other files stay."""
    folder = TrainingFolder(tmp_path / "out")
    folder.claim(force=False)
    for name in ("checkpoint-5", "merged", "../elsewhere"):
        (folder.path / name).mkdir()
    (folder.path / "checkpoint-6").symlink_to(tmp_path / "elsewhere")
    (folder.path / "notes.txt").touch()
    (folder.job).touch()
    with pytest.raises(ConfigFileError, match=r"not empty.*--resume"):
        folder.claim(force=False)
    folder.claim(force=True)
    assert sorted(path.name for path in folder.path.iterdir()) == ["notes.txt", "training"]
    assert [path.name for path in folder.records.iterdir()] == ["train.py"]
    assert (tmp_path / "elsewhere").exists(), "what a link leads to"


@pytest.mark.parametrize(
    ("damage", "printed"),
    [
        ("training/train.arrow", "training/train.arrow is missing"),
        ("training/tokenizer", "training/tokenizer is missing"),
        ("ds_config.json", "ds_config.json is missing"),
        ("options", "asked.json: not a record of a training"),
        ("data", "training/train.arrow is cut off"),
        ("stage", "has ZeRO stage 3, the training to resume 2"),
    ],
)
def test_a_folder_copied_in_part_is_refused_before_the_start(
    ask: Ask, fails: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str, printed: str
) -> None:
    """The same command would fail again."""
    folder = TrainingFolder(tmp_path / "out")
    fails(folder)
    assert ask("--strategy zero2")[0] == 1
    if damage == "options":
        folder.options.write_text("{}")
    elif damage == "data":
        os.truncate(folder.records / "train.arrow", 100)
    elif damage == "stage":
        config = json.loads(folder.ds_config.read_text())
        config["zero_optimization"]["stage"] = 3
        folder.ds_config.write_text(json.dumps(config))
    elif (folder.path / damage).is_dir():
        shutil.rmtree(folder.path / damage)
    else:
        (folder.path / damage).unlink()
    assert run(["train", "--resume", "--output-dir", str(folder.path)]) == 2
    assert printed in capsys.readouterr().err


@pytest.mark.parametrize("inputs", ["--model {out}/checkpoint-5", "--data {out}/merged/chats.jsonl"])
def test_force_removes_no_file_that_the_training_reads(
    ask: Ask, model: Path, data: Path, tmp_path: Path, inputs: str
) -> None:
    """The model and the data of a training may be results of an earlier one."""
    out = tmp_path / "out"
    shutil.copytree(model, out / "checkpoint-5")
    (out / "merged").mkdir()
    shutil.copy(data, out / "merged")
    before = sorted(out.rglob("*"))
    code, _, error = ask(f"--force {inputs.format(out=out)}")
    assert (code, sorted(out.rglob("*"))) == (2, before)
    assert f"--force would remove {out}/" in error


def test_printed_commands_can_be_pasted(
    model: Path, data: Path, fails: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder with a space in its name. After memory ran out the command has --fallback."""
    folder = TrainingFolder(tmp_path / "my out")
    fails(folder, "gpu_out_of_memory")
    words = ["--model", str(model), "--data", str(data), "--output-dir", str(folder.path), "--no-check"]
    assert run(["train", "--device", "cpu", "--strategy", "zero2", *words]) == 1
    printed = " ".join(capsys.readouterr().out.replace("\\\n", "").split())
    assert (
        "memory ran out, first on rank 0, before the first step, " in printed and "Resume from checkpoint-" in printed
    )
    assert f"ds-advise train --resume --fallback --output-dir '{folder.path}'" in printed


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        ("--eval-split 1.5", "--eval-split is 1.5"),
        ("--eval-split 0.1 --eval-data x.jsonl", "both select the rows to evaluate"),
        ("--method qlora", "--method qlora needs a GPU"),
        ("--report-to swanlab", "--report-to swanlab needs swanlab"),
        ("--format text-label", "chats.jsonl, row 1: text is missing"),
        ("--gpus 2x24GB", "--gpus does not apply to --device cpu"),
        ("--experts autoep", "experts of rank 0 alone"),
        ("--output-dir /dev/null/out", "cannot be written to"),
        ("--resume", "holds no training to resume"),
    ],
)
def test_impossible_options_are_refused_at_once(ask: Ask, options: str, printed: str) -> None:
    """One line, exit code 2."""
    code, _, error = ask(options)
    assert (code, error.count("\n")) == (2, 1)
    assert printed in error


def test_a_folder_is_trained_in_by_one_process(ask: Ask, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second start or resumption is refused with the first one's process and host, and touches nothing."""
    assert ask("--memory 10MB")[0] == 1
    folder = TrainingFolder(tmp_path / "out")
    folder.job.write_text("{}")
    holder = f"is being trained in: process {os.getpid()} on {socket.gethostname()}, since "
    with folder.locked():
        before = sorted(folder.path.rglob("*"))
        code, _, error = ask("--force")
        assert (code, holder in error) == (2, True)
        assert run(["train", "--resume", "--output-dir", str(folder.path)]) == 2
        assert holder in capsys.readouterr().err
        assert sorted(folder.path.rglob("*")) == before
    with folder.locked():
        pass  # the lock was released


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", BERT, "is not a causal language model"),
        ("config.json", TINY | {"vocab_size": 100}, "but the model has 100 embeddings"),
        ("config.json", TINY | {"quantization_config": {"quant_method": "fp8"}}, "prediction is for a copy in bf16"),
        ("config.json", TINY | {"quantization_config": {"quant_method": "awq"}}, "pass an unquantized checkpoint"),
        ("pytorch_model.bin", None, "ds-advise: no safetensors in model: "),
    ],
)
def test_models_that_cannot_be_trained(ask: Ask, model: Path, file: str, content: object, message: str) -> None:
    """Other kinds of models, a tokenizer of another model, quantized weights that the Trainer refuses, and pickled
    ones, which can run code."""
    (model / file).write_text(json.dumps(content))
    if content is None:
        (model / "model.safetensors").unlink()
    for options in ("", "--dry"):
        code, printed, error = ask(options)
        assert (code, printed) == (2, "") and message in error, options


def test_a_model_without_a_tokenizer_is_refused(ask: Ask, model: Path) -> None:
    """transformers 5 makes an empty one from config.json."""
    for path in (*model.glob("tokenizer*"), *model.glob("chat_template*")):
        path.unlink()
    code, _, error = ask()
    assert code == 2 and "no tokenizer that can be read (its vocabulary is empty)" in error


def test_checkpoints_with_lost_weights_are_set_aside(tmp_path: Path) -> None:
    """They stay, but the next --resume takes the one before."""
    for step in (4, 8, 12):
        (tmp_path / f"checkpoint-{step}").mkdir()
    said: list[str] = []
    finite = [(step, 2.0) for step in range(5, 8)]
    TrainingFolder(tmp_path).set_aside(nan_from([*finite, *((step, None) for step in range(8, 13))]), said.append)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("checkpoint-4", "nan-checkpoint-12", "nan-checkpoint-8")
    ]
    assert "checkpoint-8 may hold weights that are NaN; it is now nan-checkpoint-8" in said


def test_losses_that_were_nan_are_counted(tmp_path: Path) -> None:
    """The Trainer's log holds nothing else after the first. A loss keeps its zeros, and a step its time outside the
    phases."""
    folder = TrainingFolder(tmp_path)
    log = [{"step": step, "loss": 6.26 if step < 3 else math.nan} for step in range(1, 6)]
    folder.state.write_text(json.dumps({"log_history": log}))
    request = launch_request(Run(config={}, model={}, cluster=cpu_cluster(2)), tmp_path)
    losses = ((1, 6.26), (2, 6.2), (3, None), (4, 6.0), (5, 5.9999))
    times = {"forward": 0.003, "backward": 0.020, "step": 0.002}
    phases = tuple(PhaseFigures(name=name, seconds=took_s, peak_bytes=None) for name, took_s in times.items())
    outcome = outcome_of(tmp_path, None, losses=losses, last_step=5, step_s=0.083, phases=phases)
    trained = Trained(session=Session(attempts=(Attempt(request=request, outcome=outcome),)), folder=folder)
    page = io.StringIO()
    render_trained(trained, Console(file=page, width=120))
    assert "Finished: 5 steps in 1.0 s, loss 6.260 to 6.000 (NaN in 1 step, first in step 3)." in page.getvalue()
    assert "between steps 58 ms " in " ".join(page.getvalue().split())


def test_the_rate_of_fp32_to_that_of_bf16() -> None:
    """That of the benchmark; none if one of them was not measured."""
    speeds = {"bf16": 1e9, "fp32": 67e9}
    figures = [figure("matrix_product", how, 512, speed, [1.0], "flop/s") for how, speed in speeds.items()]
    assert bench_result(*figures).fp32_to_bf16 == pytest.approx(67)
    assert bench_result(figures[0]).fp32_to_bf16 is None


def test_a_resumed_training_has_its_own_losses(tmp_path: Path) -> None:
    """Those of its steps, not of the steps before the checkpoint."""
    folder = TrainingFolder(tmp_path)
    log = [{"step": step, "loss": 7.0 - step / 10} for step in range(1, 7)]
    folder.state.write_text(json.dumps({"log_history": log}))
    request = launch_request(Run(config={}, model={}, cluster=cpu_cluster(2)), tmp_path, resumes_after=4)
    attempt = Attempt(request=request, outcome=outcome_of(tmp_path, None))
    page = io.StringIO()
    render_trained(Trained(session=Session(attempts=(attempt,)), folder=folder), Console(file=page, width=120))
    assert "Finished: steps 5 to 6 in 1.0 s, loss 6.500 to 6.400." in page.getvalue()


def test_code_in_the_models_folder_is_not_run(ask: Ask, model: Path, tmp_path: Path) -> None:
    """A tokenizer that needs its own code is refused, and the code has not run."""
    (model / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    (model / "tokenizer.json").unlink()
    settings = json.loads((model / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    code, _, error = ask()
    assert code == 2
    assert "no tokenizer that can be read" in error
    assert not (tmp_path / "ran").exists()


def test_rows_that_are_left_out_are_counted(ask: Ask, data: Path) -> None:
    rows = data.read_text().splitlines()
    data.write_text("\n".join([*rows, '{"messages": null}']))
    said = f"left out of chats.jsonl, empty or without answer: 1 (row {len(rows) + 1})"
    assert said in " ".join(ask("--dry")[1].split())
    data.write_text("\n".join([*rows, *['{"messages": null}'] * 7]))
    first = ", ".join(str(len(rows) + each) for each in range(1, 6))
    assert f"without answer: 7 (rows {first}, ...)" in " ".join(ask("--dry")[1].split())


def test_the_sequence_length_follows_the_data() -> None:
    """The longest row in eights, as far as the model goes; plain text is cut at 2048, packed samples are filled up to
    it."""
    shape = shape_from_config(TINY, name="small")

    def data(**changes: Any) -> Any:
        return SimpleNamespace(**{"divisible": False, "longest": 813, "tokens": 50_000} | changes)

    def length(of: Any, evaluation: Any = None, *, packing: bool = False) -> int:
        return defaults.sequence_length(of, evaluation, shape, packing=packing)

    assert length(data()) == 816
    assert length(data(), data(longest=900)) == 904
    assert length(data(longest=10_000)) == 4096
    assert length(data(longest=10_000, divisible=True)) == 2048
    assert length(data(), packing=True) == 2048
    assert length(data(tokens=1000), packing=True) == 1000


def test_checkpoints_are_a_tenth_of_the_steps_apart() -> None:
    """At most 500 steps."""
    assert [default_save_steps(steps) for steps in (3, 200, 100_000)] == [10, 20, 500]


def test_room_on_the_disk(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    code, _, error = ask("--no-probe", no_check=False)
    assert code == 2 and re.search(r"3 checkpoints of [\d.]+ MiB need more than the 0\.00 MiB free", error), error


def test_libraries_that_options_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first that is missing is named with its option."""
    monkeypatch.setattr("ds_advise.advisor.train.proposal.find_spec", lambda _: None)
    for workload, printed in (
        (Workload(method="lora"), "--method lora needs peft"),
        (Workload(attention="flash"), "--attention flash needs flash-attn"),
        (Workload(loss="fused"), "--loss fused needs liger-kernel"),
    ):
        with pytest.raises(WorkloadError, match=printed):
            check_packages(workload, report_to="auto", device="cuda")
    check_packages(Workload(), report_to="none", device="cuda")
    monkeypatch.setattr("ds_advise.advisor.train.proposal.installed_version", lambda _: "4.57.1")
    with pytest.raises(WorkloadError, match=r"train needs transformers 5 or newer: 4\.57\.1 is installed"):
        check_packages(Workload(), report_to="none", device="cuda")


def test_swanlab_has_a_run_before_the_trainer_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline where it cannot log in; its `get_run`, which transformers' callback calls, raises without a run."""
    modes: list[str | None] = []

    def init(*, mode: str | None = None, **_: object) -> None:
        modes.append(mode)
        if mode is None:
            raise RuntimeError("no TTY is available for interactive login")

    from ds_advise.probes.default_script.trainer import start_swanlab

    monkeypatch.setitem(sys.modules, "swanlab", SimpleNamespace(init=init))
    assert start_swanlab() is sys.modules["swanlab"]
    assert modes == [None, "offline"]


def test_a_job_of_another_version_is_refused(tmp_path: Path) -> None:
    folder = TrainingFolder(tmp_path)
    folder.records.mkdir()
    folder.job.write_text('{"model": 1}')
    with pytest.raises(ConfigFileError, match="not a record of a training"):
        folder.read_job()


def test_a_strategy_can_be_chosen(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """It replaces the fastest; an error names why one cannot run."""
    assert "ZeRO-3." in ask("--dry --strategy zero3")[1]
    monkeypatch.setattr("ds_advise.advisor.search.batch_sweep.unsupported", lambda *_: "no reason")
    assert "zero3 cannot run here: no reason" in ask("--dry --strategy zero3")[2]


@pytest.mark.parametrize(
    ("measured", "evidence", "is_timed"), [("", "analytic", False), ("bench", "analytic", True), ("", "probe", True)]
)
def test_the_duration_is_printed_where_the_speed_is_known(measured: str, evidence: str, is_timed: bool) -> None:
    """On the CPU after a benchmark, as in every other command, or after a probe."""
    question = SimpleNamespace(cluster=replace(cpu_cluster(2), measured=measured))
    chosen = SimpleNamespace(estimate=SimpleNamespace(evidence=evidence))
    proposed: Any = SimpleNamespace(answer=SimpleNamespace(question=question), chosen=chosen)
    assert _is_timed(proposed) is is_timed
