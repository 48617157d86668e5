"""Probes of a user's command: two real ranks of three kinds of scripts on the CPU, their phases, and struck faults."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ds_advise.advisor.cli.main import run
from ds_advise.advisor.cli.schema import command_schema
from ds_advise.advisor.question.this_machine import cpu_cluster
from ds_advise.ds_configs.emit import ds_config
from ds_advise.estimators.models.families import shape_from_config
from ds_advise.estimators.workload import Workload
from ds_advise.probes.real_run.command import CommandProbe, probe_command
from ds_advise.probes.real_run.result import ProbeResult
from ds_advise.probes.real_run.torchrun import free_port
from ds_advise.probes.store import Store

from tests.helpers import TINY, preset, processes_of, schema_errors

CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 10**6, "allgather_bucket_size": 10**6},
    "zero_allow_untested_optimizer": True,
    "bf16": {"enabled": True},
}
MODEL = """
import os, sys, torch
os.environ["TOKENIZERS_PARALLELISM"] = "false"
from transformers import AutoModelForCausalLM
def rows():
    return [{"input_ids": torch.arange(16), "labels": torch.arange(16)} for _ in range(64)]
"""
PLAIN = """
import json, os, sys, time, torch, deepspeed
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
rows = torch.utils.data.TensorDataset(torch.randn(64, 64))
engine, _, loader, _ = deepspeed.initialize(
    model=model, optimizer=torch.optim.AdamW(model.parameters()), training_data=rows, config="ds_config.json"
)
for step, (x,) in enumerate(loader):
    if step == 4 and engine.global_rank == 1:
        FAULT
    loss = engine(x.to(engine.device, torch.bfloat16)).pow(2).mean()
    engine.backward(loss)
    engine.step()
open("trained", "a").write("trained")
"""
TRAINER = (
    MODEL
    + """
from transformers import Trainer, TrainingArguments
arguments = TrainingArguments(
    "out", per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=9, bf16=True, report_to=[],
    deepspeed="ds_config.json", save_strategy="no",
)
Trainer(model=AutoModelForCausalLM.from_pretrained("model"), args=arguments, train_dataset=rows()).train()
"""
)
ACCELERATE = (
    MODEL
    + """
from accelerate import Accelerator
from accelerate.utils import DummyOptim
accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
model = AutoModelForCausalLM.from_pretrained("model").train()
loader = torch.utils.data.DataLoader(rows(), batch_size=2)
model, optimizer, loader = accelerator.prepare(model, DummyOptim(model.parameters(), lr=1e-3), loader)
for batch in loader:
    with accelerator.accumulate(model):
        accelerator.backward(model(**batch).loss)
        optimizer.step()
        optimizer.zero_grad()
"""
)

ACCELERATE_CONFIG = """
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
deepspeed_config: {deepspeed_config_file: written.json, zero3_init_flag: false}
num_processes: 2
"""

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extensions: Callable[..., None]) -> Any:
    """A working folder with a configuration and a model without weights; nothing runs or is left after the test."""
    extensions("ShareMemCommBuilder", "CPUAdamBuilder")
    (tmp_path / "work" / "model").mkdir(parents=True)
    (tmp_path / "work" / "ds_config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "work" / "model" / "config.json").write_text(json.dumps(TINY))
    (tmp_path / "work" / "accelerate.yaml").write_text(ACCELERATE_CONFIG)
    with tempfile.TemporaryDirectory() as temporary:  # a short path: loaders' workers make sockets below it
        monkeypatch.setenv("TMPDIR", temporary)
        monkeypatch.setattr("tempfile.tempdir", None)
        yield tmp_path / "work"
        monkeypatch.setattr("tempfile.tempdir", None)
        assert not processes_of(tmp_path)
        assert not [path for path in Path(temporary).iterdir() if path.name.startswith("ds-advise")]


def probed(folder: Path, script: str, *words: str, **settings: Any) -> ProbeResult:
    (folder / "train.py").write_text(script)
    limits = {name: settings.pop(name) for name in ("stall_s", "timeout_s") if name in settings}
    command = CommandProbe(words=words or ("train.py",), folder=folder, ranks=2, device="cpu", **settings)
    return probe_command(command, **limits)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "tokens"),
    [(PLAIN.replace("FAULT", "pass"), 8), (TRAINER, 8 * 16), (ACCELERATE, 8 * 16)],
    ids=["deepspeed", "Trainer", "accelerate"],
)
def test_the_first_steps_of_a_script_are_measured(folder: Path, script: str, tokens: int) -> None:
    """Every rank's phases, and no more steps than were asked for. A model without weights is random. accelerate fills
    every `auto` of a written configuration from the script and from its own file."""
    shape, workload, cluster = shape_from_config(TINY, name="small"), Workload(seq_len=16), cpu_cluster(2)
    written = ds_config(preset("zero2-offload", shape, workload, cluster), shape, workload, cluster, flavor="hf")
    (folder / "written.json").write_text(json.dumps(written))
    by_accelerate = (
        "accelerate",
        "launch",
        "--main_process_port",
        str(free_port()),
        "--config_file",
        "accelerate.yaml",
    )
    result = probed(folder, script, *((*by_accelerate, "train.py") if script == ACCELERATE else ()), steps=3)
    assert result.failure is None, result.failure
    batch = (result.config["train_micro_batch_size_per_gpu"], result.config["gradient_accumulation_steps"])
    assert batch == (2, 2) and "auto" not in json.dumps(result.config)
    assert (result.world_size, result.tokens_per_step, len(result.ranks)) == (2, tokens, 2)
    assert result.config["zero_optimization"]["stage"] == 2 and not (folder / "trained").exists()
    for rank in result.ranks:
        assert len(rank.losses) == 3 and all(math.isfinite(loss) for loss in rank.losses) and len(rank.steps) == 2
        names = [(phase.iteration, phase.phase) for phase in rank.phases if phase.phase != "between"]
        step = ["forward", "backward", "step"]
        assert names == [(0, "load"), (0, "initialize"), *((number, name) for number in (1, 2, 3) for name in step)]
        assert all(phase.seconds > 0 and phase.host_bytes > 0 for phase in rank.phases)
        backward = rank.phases_named("backward")
        assert len(backward) == 2 and all(0 < phase.waiting_s < phase.seconds for phase in backward)


FAULTS = {
    "os.kill(os.getpid(), 9)": ("killed", "rank 1 was killed by SIGKILL"),
    "raise ValueError('no such row')": ("crash", "no such row"),
    "time.sleep(3600)": ("hang", "made no progress for 40 s"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_struck_rank_is_the_result(folder: Path, fault: str) -> None:
    """Of the second of the ranks, in the third step; the other one waits for it or fails because of it."""
    kind, message = FAULTS[fault]
    stall_s = 40.0 if kind == "hang" else 300.0
    failure = probed(folder, PLAIN.replace("FAULT", fault), stall_s=stall_s).failure
    assert failure is not None and failure.kind == kind and message in failure.message
    others = (0, "step 3") if kind == "hang" else (1, "")
    assert (failure.rank, failure.phase) in ((1, "after step 2"), (1, "step 3"), others)
    assert kind != "crash" or "train.py" in failure.details


@pytest.mark.slow
def test_a_script_of_fewer_steps_is_measured_to_its_end(folder: Path) -> None:
    """Its own output stays where it writes it."""
    result = probed(folder, PLAIN.replace("FAULT", "pass"), steps=100)
    assert result.failure is None, result.failure
    assert len(result.ranks[0].losses) == 8 and (folder / "trained").read_text() == "trained" * 2


@pytest.mark.slow
def test_the_command_line_compares_with_the_dry_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Of the same command; as JSON, by its schema, and in the store."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DS_ADVISE_CACHE", str(tmp_path / "cache"))
    (folder / "train.py").write_text(TRAINER)
    assert run(["probe", "--device", "cpu", "--ranks", "2", "--json", "--", "train.py"]) == 0
    form = json.loads(capsys.readouterr().out)
    assert schema_errors(form, command_schema("probe")) == []
    figures = {figure["name"]: figure for figure in form["figures"]}
    assert form["command"] == ["train.py"]
    assert {"memory per rank", "forward pass", "backward pass", "optimizer", "step", "tokens/s"} <= figures.keys()
    assert figures["memory per rank"]["dry_run"] > 0
    (record,) = Store(tmp_path / "cache/results.sqlite").find(kind="probe")
    assert record.workload["command"] == "train.py" and record.result["tokens_per_step"] == 8 * 16
    assert record.workload["gpus"] == "2 CPU ranks" and record.workload["predicted"]["evidence"] == "dry-run"
    (dry,) = Store(tmp_path / "cache/results.sqlite").find(kind="dry-run")
    assert dry.workload["command"] == "train.py", "the dry run of a command is listed too"
    assert {each.workload["command_line"] for each in (record, dry)} == {
        "ds-advise probe --device cpu --ranks 2 --json -- train.py"
    }


def test_options_of_a_model_are_refused_before_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    """The command itself decides them; without a command a configuration needs its model."""
    assert run(["probe", "--micro-batch", "2", "--device", "cpu", "--", "train.py"]) == 2
    assert "--micro-batch has no effect on a command" in capsys.readouterr().err
    assert run(["probe", "--device", "cpu", "--solo", "--", "torchrun", "train.py"]) == 2
    assert "torchrun starts the ranks, --solo only one" in capsys.readouterr().err
    Path("train.py").touch()
    assert run(["probe", "--device", "cpu", "--ranks", "3", "--", "torchrun", "--nproc_per_node", "2", "train.py"]) == 2
    assert "torchrun starts 2 ranks, the options have 3" in capsys.readouterr().err
    assert run(["probe", "--device", "cpu"]) == 2
    assert "name a model or a DS_CONFIG, or write -- and then your training command" in capsys.readouterr().err
    assert os.environ.get("RANK") is None
