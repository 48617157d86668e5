"""Launches that really train: a Trainer under torchrun, a stop, a fallback, two nodes. `test_seed_workflows` uses the
other launchers.

Two ranks on the CPU over gloo, a model of 100 thousand parameters.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ds_advise.advisor.question.this_machine import cpu_cluster
from ds_advise.estimators.models.families import shape_from_config
from ds_advise.estimators.plan import Plan, Strategy
from ds_advise.estimators.workload import Framework, Workload
from ds_advise.probes.store import Store
from ds_advise.validate.checkpoint import read_checkpoint

from tests.helpers import TINY, preset, processes_of, write_training

SCRIPTS = Path(__file__).parents[2] / "training_scripts"
LIMIT_S, BUILD_LIMIT_S = 900, 1800
STEPS = 5
SCRIPT = "train_with_arguments.py"

ARGUMENTS = (
    "--model_name_or_path model --output_dir out --per_device_train_batch_size 4 --gradient_accumulation_steps 1 "
    "--bf16 True --use_cpu True --ddp_backend gloo --report_to none --disable_tqdm True"
)

pytestmark = pytest.mark.timeout(BUILD_LIMIT_S + 2 * LIMIT_S)  # the first test compiles DeepSpeed's extensions

Prepare = Callable[..., Plan]


@pytest.fixture
def prepare(tmp_path: Path, extensions: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> Prepare:
    """Write the model, the configuration of a strategy and the job of the scripts into the working folder."""

    def prepare(strategy: Strategy, framework: Framework, *, file: str = "ds_config.json") -> Plan:
        shape, workload, cluster = shape_from_config(TINY, name="small"), Workload(seq_len=32), cpu_cluster(2)
        plan = preset(strategy, shape, workload, cluster)
        write_training(tmp_path, plan, workload, cluster, framework, steps=STEPS, file=file)
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "config.json").write_text(json.dumps(TINY))
        monkeypatch.setenv("TRAINING_JOB", str(tmp_path / "job.json"))
        extensions("ShareMemCommBuilder", "FusedAdamBuilder", "CPUAdamBuilder")
        return plan

    return prepare


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `ds-advise launch` in the working folder; afterwards nothing that it started may be left."""
    started = []

    def start(
        options: str,
        script: str,
        arguments: str = "",
        *,
        config: str = "ds_config.json",
        before: str = "",
        log: str = "log",
        **variables: str,
    ) -> subprocess.Popen[str]:
        launch = ["launch", config, "--device", "cpu", "--log-dir", log, "--json", *options.split()]
        process = subprocess.Popen(
            [
                *before.split(),
                *(sys.executable, "-m", "ds_advise", *launch),
                *("--", str(SCRIPTS / script), *arguments.split()),
            ],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | variables,
        )
        started.append(process)
        return process

    try:
        yield start
    finally:
        for process in started:
            process.kill()
            process.wait()
        deadline = time.monotonic() + 900
        while processes_of(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.1)  # the supervisor ends them, which takes a moment
        assert not processes_of(tmp_path)


def ended(process: subprocess.Popen[str]) -> tuple[dict[str, Any], str]:
    """(what it printed as JSON, what it printed besides)."""
    out, err = process.communicate(timeout=LIMIT_S)
    assert out, err
    return json.loads(out), err


def wait_for_step(folder: Path, step: int) -> None:
    """Until rank 0 has completed a step."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        file = folder / "rank0.jsonl"
        if file.exists() and f'"step": {step},' in file.read_text():
            return
        time.sleep(0.1)
    raise AssertionError("\n".join(path.read_text()[-3000:] for path in folder.glob("*.log")))


def test_a_training_is_launched_and_observed(
    prepare: Prepare, start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    """Every step of every rank is observed with its loss, the figures go into the store beside those of the dry run,
    and the script is not disturbed."""
    prepare("zero2", "hf", file="my ds_config.json")
    session, printed = ended(start("", "train_with_trainer.py", config="my ds_config.json"))
    (attempt,) = session["attempts"]
    assert attempt["status"] == "finished", printed
    assert attempt["last_step"] == STEPS
    losses = [loss for _, loss in attempt["losses"]]
    reports = [json.loads(path.read_text()) for path in sorted((tmp_path / "reports").iterdir())]
    assert len(reports) == 2
    own = [sum(step) / 2 for step in zip(*(report["losses"] for report in reports), strict=True)]
    assert losses == pytest.approx(own, rel=0.01)  # the Trainer logs rounded ones
    assert losses[-1] < losses[0]
    assert attempt["peaks"]["host_bytes"] > 10**8
    (record,) = Store().find(kind="training")
    assert record.result["steps"] == STEPS
    assert record.result["tokens_per_s"] == pytest.approx(attempt["tokens_per_s"])
    assert record.result["predicted"]["evidence"] == "dry-run"
    assert record.result["predicted"]["allocated_bytes"] > 10**6
    assert record.result["predicted"]["step_s"] is None  # the speed of this CPU was not measured


@pytest.mark.slow
def test_a_stop_leaves_a_whole_checkpoint(prepare: Prepare, start: Callable[..., Any], tmp_path: Path) -> None:
    """SIGTERM: all ranks save and stop after the same step and end well."""
    prepare("zero2", "hf")
    process = start("", SCRIPT, f"{ARGUMENTS} --max_steps 100000 --save_strategy no")
    wait_for_step(tmp_path / "log", 5)
    process.send_signal(signal.SIGTERM)
    session, printed = ended(process)
    (attempt,) = session["attempts"]
    assert (attempt["status"], attempt["failure"]) == ("stopped", None), printed
    assert process.returncode == 1
    assert Path(attempt["checkpoint"]) == tmp_path / "out" / f"checkpoint-{attempt['last_step']}"
    assert read_checkpoint(Path(attempt["checkpoint"])).is_whole


@pytest.mark.slow
def test_fallback_goes_on_with_less_memory(prepare: Prepare, start: Callable[..., Any], tmp_path: Path) -> None:
    """Out of GPU memory at step 5: the next plan reads the checkpoint of step 4 and trains the steps that are left."""
    prepare("zero2", "hf")
    saving = f"{ARGUMENTS} --max_steps 8 --save_strategy steps --save_steps 2"
    session, printed = ended(start("--fallback", SCRIPT, saving, RUN_OUT_AT_STEP="5"))
    assert len(session["attempts"]) == 2, printed
    first, second = session["attempts"]
    assert (first["failure"]["kind"], first["failure"]["step"]) == ("gpu_out_of_memory", 5), printed
    assert second["status"] == "finished", printed
    assert [step for step, _ in second["losses"]] == [5, 6, 7, 8]
    config = json.loads(Path(second["config"]).read_text())
    assert config["zero_optimization"]["stage"] in (1, 2)  # the stages that read the checkpoint
    state = json.loads((tmp_path / "out" / "checkpoint-8" / "trainer_state.json").read_text())
    assert state["global_step"] == 8


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="network namespaces take root and iproute2")
def test_two_network_namespaces_train_as_two_nodes(
    prepare: Prepare, start: Callable[..., Any], tmp_path: Path, two_networks: tuple[tuple[str, str], ...]
) -> None:
    """One rank in each of two networks that only a cable joins; both see all steps, with the same loss."""
    prepare("zero2", "hf")
    address = two_networks[0][1]
    processes = [
        start(
            f"--no-check --ranks 1 --nodes 2 --node-rank {node} --master {address}:29511",
            "train_with_trainer.py",
            before=f"ip netns exec {network}",
            log=f"log{node}",
            GLOO_SOCKET_IFNAME="cable",
        )
        for node, (network, _) in enumerate(two_networks)
    ]
    sessions = [ended(process) for process in processes]
    for session, printed in sessions:
        assert session["attempts"][0]["status"] == "finished", printed
        assert session["attempts"][0]["last_step"] == STEPS
    first, second = (json.loads((tmp_path / "reports" / f"rank{rank}.json").read_text()) for rank in range(2))
    assert first["losses"] == second["losses"]  # the Trainer's own, averaged over both


@pytest.fixture
def two_networks() -> Iterator[tuple[tuple[str, str], ...]]:
    """Two namespaces joined by a veth pair: (name, address) of each."""
    networks = tuple((f"dsadvise{os.getpid()}-{node}", f"10.213.7.{node + 1}") for node in range(2))

    def ip(*words: str) -> None:
        done = subprocess.run(["ip", *words], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"ip {' '.join(words)}: {done.stderr.strip()}")

    try:
        for name, _ in networks:
            ip("netns", "add", name)
        ends = [name for name, _ in networks]
        ip(*f"link add cable netns {ends[0]} type veth peer name cable netns {ends[1]}".split())
        for name, address in networks:
            ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield networks
    finally:
        for name, _ in networks:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)
