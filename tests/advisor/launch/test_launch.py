"""What a launch decides before it starts and after it failed: commands, environment, what a script needs, checks,
fallback."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from ds_advise import advise
from ds_advise.advisor.answer.command_answer import Change
from ds_advise.advisor.cli.main import run
from ds_advise.advisor.importers.script_arguments import ScriptArguments
from ds_advise.advisor.launch.check import Check, check, check_config, memory_objections, predict_run
from ds_advise.advisor.launch.command import (
    config_words,
    dry_lines,
    kept_settings,
    launch_environment,
    launch_job,
    lost_config,
)
from ds_advise.advisor.launch.failures import classify_failure
from ds_advise.advisor.launch.oversized import judge_allocation
from ds_advise.advisor.launch.place import first_host, static_rendezvous
from ds_advise.advisor.launch.request import Attempt, FailureKind, Peaks, TrainingFailure
from ds_advise.advisor.launch.run import _stop, new_folder
from ds_advise.advisor.launch.session import Session, keep_training, next_launch, reduce_memory, tensor_bytes
from ds_advise.advisor.question.run import read_run
from ds_advise.advisor.question.this_machine import cpu_cluster
from ds_advise.advisor.render.launch import render_failure, render_figures, session_document
from ds_advise.advisor.search.candidate import Fit
from ds_advise.advisor.text.output import Output
from ds_advise.advisor.train.settings import TrainingSettings
from ds_advise.advisor.train.train import verify_answer
from ds_advise.advisor.verification.past_results import keep_probe
from ds_advise.advisor.verification.prediction import by_estimate
from ds_advise.advisor.verification.probe_order import measured_estimate
from ds_advise.estimators.errors import ConfigFileError
from ds_advise.estimators.gpu_catalogue import gpu_of_memory
from ds_advise.estimators.hardware import Cluster
from ds_advise.estimators.models.catalogue import find
from ds_advise.estimators.time.job import checkpoint_bytes
from ds_advise.probes.command.observed import ObservedArguments, ObservedOption
from ds_advise.probes.command.training_command import read_command
from ds_advise.probes.machine import cpu_cores
from ds_advise.probes.real_run.result import ProbeResult
from ds_advise.probes.run import Run
from ds_advise.probes.run_errors import DryRunError, NoEngineError, ScriptExitError, command_error, way_to_deepspeed
from ds_advise.probes.store import Store
from rich.console import Console

from tests.advisor.launch.requests import cpu_run, monitor_of, step_event, write_events
from tests.helpers import TINY, failed_probe, launch_request, outcome_of, printed_document, ran, write_checkpoint

AUTO = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 2},
}
SCHEDULER = {"type": "WarmupLR", "params": {"warmup_num_steps": 100}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a configuration, a script and a model."""
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "OMP_NUM_THREADS", "RANK"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "ds_config.json").write_text(json.dumps(AUTO))
    (tmp_path / "train.py").write_text("from transformers import Trainer\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(TINY))
    return tmp_path


def dry(capsys: pytest.CaptureFixture[str], options: str, *command: str) -> list[tuple[str, str]]:
    """(where, command) pairs of --dry, with `python` for this python."""
    words = ["--dry", "--no-check", "--log-dir", "log", "--json", *options.split(), "--", *command]
    assert run(["launch", *words]) == 0
    out = capsys.readouterr().out
    return [(line["where"], line["command"].replace(sys.executable, "python")) for line in json.loads(out)]


ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


def test_a_script_gets_a_launcher(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In front of the program, behind what stands in front of it; its own options are left alone."""
    assert dry(capsys, "ds_config.json --gpus 2x24GB", "train.py", "--output_dir", "my out") == [
        (
            "on this node",
            f"{ALLOCATOR} python -m torch.distributed.run --nproc_per_node 2 train.py --output_dir 'my out'",
        )
    ]
    assert dry(capsys, "ds_config.json --gpus 2x24GB --launcher accelerate", "python", "train.py")[0][1].endswith(
        "accelerate.commands.launch --use_deepspeed --deepspeed_config_file ds_config.json --num_processes 2 train.py"
    )
    assert dry(capsys, "--gpus 2x24GB --launcher deepspeed", *["A=1", "nohup", "python", "-m", "package.train"])[0][
        1
    ].endswith("env A=1 nohup python -m deepspeed.launcher.runner --num_gpus 2 --module package.train")
    own = ("--help", "--version", "-h", "--debug", "--lang", "zh", "--json", "--dry")
    assert dry(capsys, "--gpus 2x24GB", "train.py", *own)[0][1].endswith(f"train.py {' '.join(own)}")
    assert not (folder / "log").exists()


@pytest.mark.parametrize(
    ("command", "place"),
    [
        ("torchrun --nproc_per_node 2 train.py --steps 3", "--gpus 24GB"),
        ("deepspeed --num_gpus 2 train.py", "--gpus 2x24GB"),
        ("accelerate launch --num_processes 2 train.py", "--gpus 2x24GB"),
        ("bash run.sh", "--gpus 2x24GB"),
        ("llamafactory-cli train x.yaml", "--gpus 2x24GB"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_command_that_starts_its_ranks_is_started_word_for_word(
    capsys: pytest.CaptureFixture[str], command: str, place: str
) -> None:
    """A launcher in front, a shell script, the command of a tool."""
    assert dry(capsys, place, *command.split()) == [("on this node", f"{ALLOCATOR} {command}")]


def test_dry_on_two_nodes(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for each node with its own rank; one line where ssh or srun reaches the others."""
    assert dry(capsys, "--gpus 8xH100 --nodes 2 --master node-0:29511", "train.py") == [
        (
            f"on node {node}",
            f"{ALLOCATOR} python -m torch.distributed.run --nnodes 2 --nproc_per_node 8 --node_rank {node} "
            "--master_addr node-0 --master_port 29511 train.py",
        )
        for node in range(2)
    ]
    (folder / "hosts").write_text("n0 slots=8\nn1 slots=8  # the other\n")
    assert dry(capsys, "--gpus 8xH100 --hostfile hosts", "train.py") == [
        (
            "on this node, which reaches the others by ssh",
            f"{ALLOCATOR} python -m deepspeed.launcher.runner --hostfile {folder}/hosts train.py",
        )
    ]
    for name, value in (("ID", "77"), ("NUM_NODES", "2"), ("NODELIST", "gpu[003-004]")):
        monkeypatch.setenv(f"SLURM_JOB_{name}", value)
    assert dry(capsys, "--gpus 8xH100 --slurm", "train.py") == [
        (
            "in the allocation",
            f"{ALLOCATOR} srun --nodes 2 --ntasks-per-node 1 --kill-on-bad-exit python -m torch.distributed.run "
            "--nnodes 2 --nproc_per_node 8 --rdzv_backend c10d --rdzv_id 77 --rdzv_endpoint gpu003:10077 train.py",
        )
    ]
    monkeypatch.delenv("SLURM_JOB_ID")
    anywhere = dry(capsys, "--gpus 2x8xH100 --slurm", "train.py")
    assert anywhere == dry(capsys, "--gpus 8xH100 --nodes 2 --slurm", "train.py")
    assert '--rdzv_id $SLURM_JOB_ID --rdzv_endpoint $(scontrol show hostnames "$SLURM_JOB_NODELIST"' in anywhere[0][1]
    offload = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    Path("ds_config.json").write_text(json.dumps(AUTO | {"zero_optimization": offload}))
    (line,) = dry(capsys, "ds_config.json --gpus 2x8xH100 --slurm", "train.py")
    assert "OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(($(nproc) / 8))} srun" in line[1]  # not of this machine's cores


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--gpus 2x8xH100 -- train.py", "no rendezvous given"),
        ("--gpus 8xH100 --slurm -- train.py", "not a Slurm allocation"),
        ("--gpus 8xH100 --master a:b --nodes 2 -- train.py", "is not an address"),
        ("--gpus 8xH100 --master a --nodes 2 --node-rank 2 -- train.py", "node rank 2 does not exist"),
        ("--gpus 8xH100 --hostfile hosts --launcher torchrun -- train.py", "pass --launcher deepspeed"),
        ("--gpus 8xH100 --hostfile unequal -- train.py", "nodes with different numbers of GPUs"),
        ("--gpus 8xH100 --hostfile empty -- train.py", "nodes without GPUs"),
        ("--gpus 8xH100 train.py --steps 3", "--gpus 8xH100 -- train.py --steps 3"),
        ("--gpus 8xH100", "write ds-advise launch ds_config.json --log-dir log --gpus 8xH100 -- train.py"),
        ("--gpus 8xH100 --master a --nodes 2 --fallback -- train.py", "--fallback and --master contradict each other"),
        ("--gpus 8xH100 --check quick -- train.py", "--check quick needs a model"),
        ("--gpus 8xH100 --seq-len 32 -- train.py", "--seq-len has no effect on a command"),
        ("--gpus 8xH100 --launcher torchrun -- torchrun train.py", "--launcher has no effect on this command"),
        ("--gpus 8xH100 -- torchrun --nproc_per_node 2 train.py", "torchrun starts 2 GPUs a node, the options have 8"),
        (
            "--device cpu --ranks 2 -- torchrun --nproc_per_node 1 train.py",
            "starts 1 rank, the options have 2: the plan",
        ),
        ("--device cpu --ranks 2 -- torchrun --nproc_per_node 1 train.py", "pass --ranks 1"),
        ("--device cpu --ranks 77 -- deepspeed train.py", "write deepspeed --num_accelerators 77, or pass --ranks "),
        ("--device cpu -- accelerate launch --num_processes 2 train.py", "one plain process where there is no GPU"),
        ("--gpus H100 -- torchrun --nproc_per_node 2 --no train.py", "torchrun refuses its options"),
        ("--gpus H100 -- torchrun no.py", "there is no file no.py"),
        ("--gpus 8xH100 --hostfile four -- train.py", "--gpus has 8 GPUs a node, hostfile four 4"),
        ("--gpus H100 --nodes 4 --hostfile four -- train.py", "--nodes has 4 nodes, hostfile four 2"),
        ("--gpus 4x8xH100 --nodes 2 --master n0 -- train.py", "--gpus has 4 nodes, --nodes 2"),
        ("--gpus 8xH100 --master n0 --nodes 999999999 -- train.py", "999999999 nodes of 8 ranks are too many"),
        ("--gpus H100 --hostfile absurd -- train.py", "1 nodes of 999999999 ranks are too many"),
    ],
)
def test_errors_name_the_fix(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: str, message: str
) -> None:
    """One line; nothing is started."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr("ds_advise.probes.machine.query_nvml", lambda *_: 8)
    for name, text in (
        ("hosts", "n0 slots=8\nn1 slots=8"),
        ("unequal", "a slots=8\nb slots=4"),
        ("empty", "a slots=0"),
        ("four", "n0 slots=4\nn1 slots=4"),
        ("absurd", "n0 slots=999999999"),
    ):
        (folder / name).write_text(f"{text}\n")
    assert run(["launch", "ds_config.json", "--log-dir", "log", *arguments.split()]) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "log").exists()


def test_addresses() -> None:
    """The first host of Slurm's list, and an IPv6 address with its port."""
    assert [first_host(text) for text in ("n1,n2", "gpu[003-007,9],x", "a-b[1,3]", "host")] == [
        "n1",
        "gpu003",
        "a-b1",
        "host",
    ]
    addresses = [static_rendezvous(text, 0).address for text in ("n:1", "10.0.0.1", "[fe80::1]:29500")]
    assert addresses == ["n", "10.0.0.1", "fe80::1"]


def test_environment(folder: Path) -> None:
    """What the plan needs, unless the user has set it; a CPU training never sees a GPU."""
    run = replace(_run(folder), cluster=Cluster(nodes=1, gpus_per_node=1, gpu=gpu_of_memory(24)))
    request = launch_request(run, folder)
    assert launch_environment(request, {}) == {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    offload = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    offloading = replace(request, run=replace(run, config=offload))
    assert launch_environment(offloading, {"PYTORCH_ALLOC_CONF": "x"}) == {"OMP_NUM_THREADS": str(cpu_cores())}
    given = {"OMP_NUM_THREADS": "3", "CUDA_VISIBLE_DEVICES": "0"}
    on_cpu = launch_environment(replace(request, device="cpu"), given)
    assert on_cpu == {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    few = str(cpu_cores() + 1)
    assert kept_settings(offloading, {"OMP_NUM_THREADS": few}) == [f"OMP_NUM_THREADS={few} (instead of {cpu_cores()})"]
    assert kept_settings(request, {"OMP_NUM_THREADS": few}) == []


def _run(folder: Path, seq_len: int = 32) -> Run:
    return read_run(
        folder / "ds_config.json",
        str(folder / "model"),
        cpu_cluster(2),
        seq_len=seq_len,
        micro_batch=2,
        accumulation=2,
        offline=True,
    )


def test_a_full_disk_and_a_small_host_are_seen_before(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Checkpoints that do not fit the disk, one to resume from that is damaged, and a model that does not fit the RAM
    are found without a run."""
    run = _run(folder)
    assert run.shape is not None
    one = checkpoint_bytes(run.shape, run.workload, 2)
    assert one == (2 + 2 + 4 + 8) * run.shape.parameters
    monkeypatch.setattr("ds_advise.advisor.launch.check.free_bytes", lambda _: one * 3 - 1)
    out = ("--output_dir", str(folder / "out"))

    def found(question: Run, *more: str) -> list[str]:
        request = launch_request(question, folder, *out, *more, device="cpu", estimate=predict_run(question))
        return [each.what for each in check(request, "quick", Output("human"))[1]]

    assert found(run, "--save_total_limit", "1") == []
    assert "3 checkpoints" in found(run, "--save_total_limit", "2")[0]
    assert found(run, "--save_strategy", "no") == []
    assert checkpoint_bytes(run.shape, run.workload, 2, only_model=True) == 2 * run.shape.parameters
    assert found(run, "--save_total_limit", "20", "--save_only_model", "True") == []
    assert "21 checkpoints" in found(run, "--save_total_limit", "20", "--save_only_model", "False")[0]
    assert found(run) == []
    assert "2 fit into" in capsys.readouterr().err
    checkpoint = write_checkpoint(folder / "out/checkpoint-4", ranks=2)
    resumed = ("--save_total_limit", "1", "--resume_from_checkpoint", str(checkpoint))
    assert found(run, *resumed) == []
    (checkpoint / "trainer_state.json").write_text("")
    assert found(run, *resumed) == [f"{checkpoint} is damaged: trainer_state.json is empty"]
    small = replace(run, cluster=replace(run.cluster, host_memory_bytes_per_node=10**6))
    assert "x RAM" in found(small, "--save_total_limit", "1")[0]


@pytest.mark.parametrize(("probability", "starts"), [(1.0, True), (0.8, True), (0.3, False)])
def test_a_plan_that_likely_fits_is_started(folder: Path, probability: float, starts: bool) -> None:
    """A message calls it likely; what is not likely to fit is refused with its probability."""
    fit = Fit(probability=probability, gpu_probability=probability, reason="", utilization=0.99, limit="")
    answer: Any = SimpleNamespace(
        fit=fit,
        run=_run(folder),
        required_device_bytes_per_gpu=1,
        required_host_bytes_per_node=0,
        best_change=Change("gradient checkpointing", 2**30),
    )
    printed = list[str]()
    found = [each.what for each in memory_objections(answer, printed.append)]
    assert (not found) == starts
    words = " ".join([*printed, *found])
    assert ("it fits with" in words) == (probability < 1) and ("the training starts" in words) == (probability == 0.8)


@pytest.mark.parametrize("has_gpu", [True, False])
def test_a_check_says_what_fits(
    folder: Path, has_gpu: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The memory that decides, of the memory that there is."""
    on_gpu = Cluster(nodes=1, gpus_per_node=1, gpu=gpu_of_memory(24))
    run = replace(_run(folder), cluster=on_gpu if has_gpu else cpu_cluster(2))
    fit = Fit(probability=1.0, gpu_probability=1.0, reason="", utilization=0.1, limit="")
    seen: Any = SimpleNamespace(
        fit=fit, run=run, required_device_bytes_per_gpu=2**31, required_host_bytes_per_node=2**30
    )
    request = launch_request(run, folder)
    monkeypatch.setattr("ds_advise.advisor.launch.check.observe", lambda *_: (replace(request, dry_run=seen), []))
    for other in ("disk_objections", "_resumption"):
        monkeypatch.setattr(f"ds_advise.advisor.launch.check.{other}", lambda *_: [])
    assert check(request, "dry-run", Output("human"))[1] == []
    said = " ".join(capsys.readouterr().err.split())
    assert "by the dry run it fits: " in said
    assert ("2.0 of " in said and "GiB per GPU" in said) == has_gpu
    assert ("1.0 of " in said and "GiB of host RAM per node" in said) != has_gpu


def test_a_past_probe_of_the_same_run_is_the_prediction(folder: Path) -> None:
    """Its speed is shown next to the training's, as evidence of a probe; a failed one and one of another batch do not
    count."""
    run = _run(folder)
    closed_form = predict_run(run)
    assert closed_form is not None and closed_form.evidence == "analytic"
    success = ran(2 * closed_form.time.step_s, world_size=2, device="cpu", tokens_per_step=1, host_peak_bytes=10**8)

    def keep(result: ProbeResult, micro_batch_size: int = 2) -> None:
        keep_probe(result, replace(run, micro_batch_size=micro_batch_size), memory_limit_bytes=None)

    keep(success, micro_batch_size=1)
    keep(failed_probe("out_of_memory"))
    assert predict_run(run) == closed_form
    keep(success)
    seen = predict_run(run)
    assert seen is not None and seen.evidence == "probe"
    assert seen.time.step_s == pytest.approx(2 * closed_form.time.step_s)
    on_two_nodes = predict_run(replace(run, cluster=replace(run.cluster, nodes=2, gpus_per_node=1)))
    assert on_two_nodes is None or on_two_nodes.evidence == "analytic"  # as many ranks, with a network between them


@pytest.mark.parametrize(
    ("arguments", "checkpoint", "expected"),
    [
        ("--output_dir out --max_steps 9 --save_steps 2", "out/checkpoint-4", "--resume_from_checkpoint"),
        ("--output_dir out --max_steps 9 --save_steps 2", None, "no checkpoint was saved"),
        ("--epochs 3", None, "these settings is not known"),
    ],
)
def test_how_to_go_on_after_memory_ran_out(folder: Path, arguments: str, checkpoint: str | None, expected: str) -> None:
    """The same global batch with less memory, from the last checkpoint that is whole; a script of unknown arguments is
    not started."""
    newest = None
    (folder / "model" / "config.json").write_text(json.dumps(TINY | {"vocab_size": 2**14}))
    if checkpoint:
        write_checkpoint(folder / checkpoint, ranks=2)
        newest = write_checkpoint(folder / "out/checkpoint-5", ranks=2)
        (newest / "trainer_state.json").write_text("")
    (folder / "ds_config.json").write_text(json.dumps(AUTO | {"scheduler": SCHEDULER}))
    run = _run(folder, seq_len=512)
    prediction = predict_run(run)
    assert prediction is not None
    outcome = outcome_of(folder / "log", "gpu_out_of_memory", last_step=5, checkpoint=newest)
    request = launch_request(run, folder, *arguments.split(), device="cpu", estimate=prediction)
    following = next_launch(request, outcome, folder / "next")
    assert expected in f"{following.description} {following.command}"
    if "these settings is not known" in expected:
        assert following.request is None
        return
    request = following.request
    assert request is not None and request.estimate is not None
    plan = request.estimate.plan
    assert plan.micro_batch_size * plan.gradient_accumulation_steps * 2 == 8
    assert request.estimate.memory.device_bytes_per_gpu < prediction.memory.device_bytes_per_gpu
    assert request.resumes_after == (4 if checkpoint else 0)
    if checkpoint:
        assert plan.zero_stage in (1, 2)  # what reads a checkpoint of ZeRO-2
    written = json.loads((folder / "next" / "ds_config.json").read_text())
    assert written == request.run.config
    assert written["scheduler"] == SCHEDULER
    attempt = Attempt(request=request, outcome=outcome)
    sentences = [Session(attempts=(attempt,) * made, following=following).following_sentence for made in (1, 4)]
    assert sentences[0].startswith(f"--fallback would continue with {following.description}")
    assert re.search(r"\(predicted tensors: [\d.]+ [GM]iB in place of [\d.]+ [GM]iB\)", sentences[0])
    assert sentences[1].startswith("Memory ran out under 4 plans, so --fallback ended; the next plan is ")


@pytest.mark.parametrize(("found", "is_named"), [("78.20 GiB", False), ("9.00 MiB", True)])
def test_no_plan_follows_from_a_prediction_that_the_message_contradicts(
    folder: Path, found: str, is_named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command of a plan that follows is wrapped, without the path of the working folder."""
    monkeypatch.chdir(folder)
    message = f"OutOfMemoryError: CUDA out of memory. Of the allocated memory {found} is allocated by PyTorch"
    run = _run(folder, seq_len=512)
    words = "--output_dir out --max_steps 9 --save_steps 2"
    request = launch_request(run, folder, *words.split(), device="cpu", estimate=predict_run(run))
    outcome = outcome_of(folder / "log", "gpu_out_of_memory")
    assert outcome.failure is not None
    outcome = replace(outcome, failure=replace(outcome.failure, message=message))
    following = next_launch(request, outcome, folder / "next")
    assert (following.request is not None) is is_named
    attempts = (Attempt(request=request, outcome=outcome),)
    printed = printed_document(session_document(Session(attempts=attempts, following=following)))
    assert ("The message has 78.2 GiB of tensors, and " in printed) is not is_named
    assert str(folder) not in printed.partition("To continue")[2] and max(map(len, printed.splitlines())) <= 80


HOST = "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate {} bytes. Error code 12"
GPU = "OutOfMemoryError: CUDA out of memory. Tried to allocate {}. GPU 0 has a total capacity of 23.50 GiB"


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        ("host_out_of_memory", HOST.format(10**13), "the whole host (8.0 GiB)"),
        ("gpu_out_of_memory", GPU.format("9313.00 GiB"), "the whole GPU (23.5 GiB)"),
        ("host_out_of_memory", HOST.format(2**30), ""),
        ("gpu_out_of_memory", GPU.format("20.00 GiB"), ""),
    ],
)
def test_an_allocation_larger_than_the_whole_memory_is_an_error_of_the_script(
    folder: Path, kind: FailureKind, message: str, expected: str
) -> None:
    """No plan makes it fit, unless the training is predicted to need as much."""
    run = _run(folder, seq_len=512)
    cluster = replace(run.cluster, host_memory_bytes_per_node=8 * 2**30)
    estimate = predict_run(run)
    assert estimate is not None
    prediction = by_estimate(estimate, cluster)
    failure = TrainingFailure(kind=kind, rank=1, step=13, message=message)
    judged = judge_allocation(failure, prediction, cluster)
    assert (judged.kind == "crash", expected in judged.cause) == (bool(expected), True)
    large = replace(prediction, host_bytes=2**44, device_bytes=2**44, allocated_bytes=2**44)
    assert judge_allocation(failure, large, cluster) == judge_allocation(failure, None, cluster) == failure


def test_a_rank_that_ends_early_is_the_verdict(folder: Path) -> None:
    """Its message has the rank and the step, and is not repeated."""
    records = write_events(
        folder,
        [{"engine_ranks": 2}, {"time": 3.0, "error": {"type": "RuntimeError", "message": "Connection closed by peer"}}],
        [{"engine_ranks": 2}, step_event(13, 1.0), {"time": 2.0, "exit": 0}],
    )
    records.ranks[0].latest["error"] |= {"errno": None, "details": ""}
    failure = classify_failure(records, folder, 1, {})
    session = Session(
        attempts=(
            Attempt(
                request=launch_request(_run(folder), folder),
                outcome=replace(outcome_of(folder, "crash"), failure=failure),
            ),
        )
    )
    printed = " ".join(printed_document(session_document(session)).split())
    assert printed.startswith("Rank 1 ended early, without an error, after step 13, while rank 0 went on, 1.0 s.")
    assert printed.count("ended early") == 1 and "Evidence" not in printed


@pytest.mark.parametrize("kind", ["host_out_of_memory", "gpu_out_of_memory"])
def test_plans_shrink_from_attempt_to_attempt(folder: Path, kind: FailureKind) -> None:
    """Also on the CPU, where the ranks' tensors are in the host's memory and the processes outweigh them. Each needs at
    least 5 %, then 25 %, then 50 % less than the one before, or the least of all."""
    config = folder / "model" / "config.json"
    config.write_text(json.dumps(TINY | {"vocab_size": 2**15}))
    run = read_run(
        *(folder / "ds_config.json", str(folder / "model"), cpu_cluster(2)), seq_len=256, micro_batch=16, offline=True
    )
    outcome = outcome_of(folder / "log", kind)
    request = launch_request(run, folder, device="cpu", estimate=predict_run(run))
    sizes, batches = list[int](), list[int]()
    while request is not None:
        prediction = request.estimate
        assert prediction is not None
        sizes.append(tensor_bytes(prediction, kind, run.cluster))
        batches.append(prediction.plan.micro_batch_size)
        assert run.samples_per_step == 32 == 2 * batches[-1] * prediction.plan.gradient_accumulation_steps
        following = reduce_memory(request, outcome, None, folder)
        request = following.request
    assert "at least 5 % less memory; try LoRA" in following.description
    shares = [after / before for before, after in pairwise(sizes)]
    assert all(share <= most for share, most in zip(shares[:-1], (0.95, 0.75, 0.5), strict=False)), shares
    assert shares[-1] <= 0.95 and len(shares) >= 3
    assert batches[0] == 16 and batches[-1] == 1


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_measured_and_predicted_are_of_as_many_tokens(folder: Path, share: float) -> None:
    """Steps of shorter batches are compared with shorter steps, so step and tokens/s have one ratio."""
    run = _run(folder)
    prediction = run.estimate()
    assert prediction is not None
    tokens, step_s = prediction.time.tokens_per_step * share, prediction.time.step_s * share
    speed = {"step_s": step_s, "tokens_per_step": tokens, "tokens_per_s": tokens / step_s}
    measured = replace(run.cluster, measured="matrix products")
    outcome = outcome_of(folder, None, last_step=9, predicted=by_estimate(prediction, measured), **speed)
    page = io.StringIO()
    request = launch_request(run, folder)
    render_figures(Attempt(request=request, outcome=outcome), Console(file=page, width=80))
    rows = {line.split()[0]: line.split()[1:] for line in page.getvalue().splitlines() if line}
    assert rows["tokens/s"][0] == rows["tokens/s"][1]
    half = len(rows["step"]) // 2
    assert rows["step"][:half] == rows["step"][half:]
    assert f"{tokens:.0f} tokens in a step, padding included; times are predicted for as many." in page.getvalue()


def test_a_cpu_has_predicted_times_only_if_its_speed_was_measured(folder: Path) -> None:
    """An assumed speed of a core may be wrong by two orders of magnitude."""
    run = replace(_run(folder), cluster=cpu_cluster(2))
    estimate = run.estimate()
    assert estimate is not None and run.cluster.assumptions
    assert by_estimate(estimate, run.cluster).step_s is None
    measured = replace(run.cluster, measured="matrix products")
    assert by_estimate(estimate, measured).step_s == estimate.time.step_s
    assert by_estimate(replace(estimate, evidence="probe"), run.cluster).step_s == estimate.time.step_s


def test_the_memory_of_a_probe_is_the_prediction(folder: Path) -> None:
    """In place of the closed form's; what the device has no counter of stays that of the closed form."""
    run = _run(folder)
    estimate = run.estimate()
    assert estimate is not None
    result = replace(ran(1.0, world_size=2, device="cpu", tokens_per_step=64), host_peak_bytes=123 << 20)
    predicted = by_estimate(measured_estimate(estimate, result), run.cluster)
    assert (predicted.evidence, predicted.host_bytes) == ("probe", 123 << 20)
    assert predicted.allocated_bytes == estimate.memory.allocated_bytes_per_gpu


def test_a_probe_is_the_prediction_of_the_training_it_proves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its measured speed is shown at the end, not the closed form's."""
    answer = advise("gpt2", gpus=cpu_cluster(2), seq_len=32, deepspeed_estimate=False, offline=True)
    probed = ran(7.0, world_size=2, device="cpu", tokens_per_step=64, host_peak_bytes=10**8)
    monkeypatch.setattr("ds_advise.advisor.train.train.probe_and_keep", lambda *_, **__: probed)
    settings = TrainingSettings(model="gpt2", data=tmp_path, device="cpu", offline=True)
    proven = verify_answer(answer, settings, memory_limit_bytes=None, output=Output("quiet")).recommended
    assert proven is not None
    assert (proven.estimate.evidence, proven.estimate.time.step_s) == ("probe", pytest.approx(7.0))


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ("", None),
        ("--max_steps 2000", 4),
        ("--max_steps 2100 --save_steps 100 --save_total_limit 2", 3),
        ("--max_steps 10 --save_steps 10 --save_total_limit 5", 1),
        ("--save_strategy no", 0),
        ("--save_strategy epoch", 3),
        ("--save_strategy epoch --num_train_epochs 1.5", 2),
        ("--save_strategy epoch --max_steps 100", None),
        ("--save_steps 0.1", 10),
        ("--save_strategy best", None),
    ],
)
def test_checkpoints_are_counted_as_the_trainer_keeps_them(words: str, count: int | None) -> None:
    """All of them without a limit; unknown where the length of the data decides."""
    assert ScriptArguments(words.split()).checkpoints == count


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"zero_optimization": {"stage": 3, "zero_quantized_weights": True}}, "do not run on the CPU"),
        ({"fp16": {"enabled": True}}, "fp16 does not run on this CPU"),
    ],
)
def test_what_no_cpu_runs_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, config: object, message: str
) -> None:
    """Before anything starts, also without a check."""
    monkeypatch.setattr("ds_advise.probes.run.cpu_has_fp16", lambda: False)
    (folder / "ds_config.json").write_text(json.dumps(config))
    assert run(["launch", "ds_config.json", "--device", "cpu", "--no-check", "--", "train.py"]) == 2
    assert message in capsys.readouterr().err


def _seen(*flags: str, trainer: bool = False, ds_config: str = "", framework: str = "hf") -> Any:
    """A dry run of a script with these options."""
    options = tuple(ObservedOption(flags=(flag,), value=None, is_switch=False) for flag in flags)
    arguments = ObservedArguments(
        options=options,
        trainer={"output_dir": "seen", "save_total_limit": 1} if trainer else {},
        trainer_class="TrainingArguments" if trainer else "",
        fields={},
        calls={},
        ds_config=ds_config,
    )
    return SimpleNamespace(arguments=arguments, training=SimpleNamespace(framework=framework))


def test_what_the_dry_run_saw_decides(folder: Path) -> None:
    """The launcher of a script that takes --local_rank, the settings of its Trainer, the option for a configuration."""
    request = launch_request(_run(folder), folder, "--output_dir", "typed")
    assert (request.launcher, request.arguments.output_dir) == ("torchrun", Path("typed"))
    assert launch_job(request).variables["ACCELERATE_DEEPSPEED_CONFIG_FILE"] == str(folder / "ds_config.json")
    loop = replace(request, dry_run=_seen("--local_rank", "--deepspeed_config"))
    assert loop.launcher == "deepspeed"
    assert config_words(loop) == ("--deepspeed_config", str(folder / "ds_config.json"))
    assert replace(loop, requested_launcher="torchrun").launcher == "torchrun"
    trainer = replace(request, dry_run=_seen("--local_rank", "--deepspeed", trainer=True))
    assert (trainer.launcher, trainer.arguments.output_dir) == ("torchrun", Path("seen"))
    assert config_words(trainer) == ("--deepspeed", str(folder / "ds_config.json"))


@pytest.mark.parametrize(
    ("seen", "changes", "in_line"),
    [
        (_seen("--deepspeed", trainer=True), {}, " --output_dir out --deepspeed @"),
        (_seen("--deepspeed", "--deepspeed_config", framework="deepspeed"), {}, " --deepspeed --deepspeed_config @"),
        (_seen(), {}, " ACCELERATE_USE_DEEPSPEED=true ACCELERATE_DEEPSPEED_CONFIG_FILE=@ "),
        (_seen(), {"requested_launcher": "accelerate"}, " --deepspeed_config_file @ "),
        (_seen("--deepspeed"), {"words": ("torchrun", "train.py")}, "torchrun train.py --deepspeed @"),
        (_seen("--deepspeed"), {"words": ("bash", "run.sh")}, " ACCELERATE_DEEPSPEED_CONFIG_FILE=@ bash run.sh"),
        (None, {"words": ("train.py", "--deepspeed", "own.json")}, " train.py --deepspeed own.json"),
        (_seen(framework="deepspeed"), {}, None),
        (None, {}, None),
    ],
)
def test_the_printed_command_has_the_configuration(
    folder: Path, seen: Any, changes: dict[str, Any], in_line: str | None
) -> None:
    """Or a sentence says that only launch passes it."""
    request = launch_request(_run(folder), folder, "--output_dir", "out", dry_run=seen, **changes)
    ((_, line),), lost = dry_lines(request), lost_config(request, "the line itself")
    if in_line is None:
        assert lost.startswith("ds_config.json is passed to the script by ds-advise launch at run time; ")
        assert "ds_config.json" not in line
    else:
        assert in_line.replace("@", str(folder / "ds_config.json")) in line and not lost


@pytest.mark.parametrize(("host_gib", "is_named"), [(3, True), (1, False)])
def test_memory_above_a_probes_names_what_the_probe_lacks(folder: Path, host_gib: int, is_named: bool) -> None:
    """The probe ends before the training saves."""
    estimate = predict_run(_run(folder))
    assert estimate is not None
    measured = by_estimate(replace(estimate, evidence="probe"), cpu_cluster(2))
    outcome = outcome_of(
        folder,
        None,
        last_step=3,
        step_s=1.0,
        peaks=Peaks(host_bytes=host_gib * 2**30),
        predicted=replace(measured, host_bytes=2 * 2**30),
    )
    attempt = Attempt(request=launch_request(_run(folder), folder), outcome=outcome)
    shown = " ".join(printed_document(session_document(Session(attempts=(attempt,)))).split())
    assert ("saving, which comes later, is not in it" in shown) == is_named


def test_the_load_is_that_before_the_own_processes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[str]()

    def refuse(*_: Any, was_busy: str, **__: Any) -> NoReturn:
        told.append(was_busy)
        raise ConfigFileError("not started")

    monkeypatch.setattr("os.getloadavg", lambda: (cpu_cores() + 0.5, 0.0, 0.0))
    monkeypatch.setattr("ds_advise.advisor.launch.session.run_session", refuse)
    assert run(["launch", "--device", "cpu", "--ranks", "2", "--no-check", "--", str(folder / "train.py")]) == 2
    assert "Other processes use this machine" in told[0]


def test_figures_of_a_busy_machine_say_so(folder: Path) -> None:
    request, outcome = launch_request(_run(folder), folder), outcome_of(folder, None, last_step=3, step_s=1.0)
    attempt = Attempt(request=request, outcome=outcome, was_busy="Other processes use this machine.")
    assert "Other processes use this machine." in printed_document(session_document(Session(attempts=(attempt,))))


def test_the_file_in_front_is_the_one_that_trains(folder: Path) -> None:
    """Otherwise the launch is refused; a file with the same content is the same."""
    (folder / "same.json").write_text(json.dumps(AUTO, indent=4))
    (folder / "other.json").write_text(json.dumps(AUTO | {"zero_optimization": {"stage": 3}}))
    given = Path("ds_config.json")
    for own in (given, Path("same.json")):
        check_config(given, _seen(ds_config=str(own.absolute())).arguments)
    for name in ("", "other.json"):
        with pytest.raises(ConfigFileError, match=f"trains with .*{name or 'its own'}.*, not with ds_config.json"):
            check_config(given, _seen(ds_config=str(folder / name) if name else "").arguments)


@pytest.mark.parametrize(
    ("flags", "trainer", "checkpoint", "expected"),
    [
        (["--resume_from_checkpoint"], True, "out/checkpoint-3", "; --resume_from_checkpoint, if the script passes it"),
        ([], True, "out/checkpoint-3", "; trainer.train(resume_from_checkpoint=True) continues from it."),
        ([], True, None, "The Trainer saved no checkpoint."),
        ([], False, None, "What the script itself saved is not known here."),
    ],
)
def test_a_stopped_training_names_what_resumes_it(
    folder: Path, flags: list[str], trainer: bool, checkpoint: str | None, expected: str
) -> None:
    request = launch_request(_run(folder), folder, dry_run=_seen(*flags, trainer=trainer))
    saved = None if checkpoint is None else Path.cwd() / checkpoint
    outcome = outcome_of(folder, None, status="stopped", checkpoint=saved, last_step=3)
    shown = printed_document(session_document(Session(attempts=(Attempt(request=request, outcome=outcome),))))
    assert expected in " ".join(shown.split())
    if saved is None:  # nothing to save before the first step
        outcome = replace(outcome, last_step=0)
        shown = printed_document(session_document(Session(attempts=(Attempt(request=request, outcome=outcome),))))
        assert "saved" not in " ".join(shown.split())


def test_a_stop_after_the_last_step_does_not_make_a_training_unfinished(tmp_path: Path) -> None:
    """Unless it ends the script while it saves."""
    request = launch_request(cpu_run(1), tmp_path)
    request.folder.mkdir()
    monitor = monitor_of(request)
    events = [{"trainer": {"total_steps": 3, "output_dir": "out"}}, *(step_event(step, 1.0 * step) for step in (1, 2))]

    def shown(exit_code: int) -> tuple[str, str]:
        outcome = monitor.outcome(exit_code, None, stopped=True)
        printed = printed_document(session_document(Session(attempts=(Attempt(request=request, outcome=outcome),))))
        return outcome.status, " ".join(printed.split())

    monitor.records = write_events(request.folder, events)
    assert shown(0)[0] == "stopped"
    monitor.records = write_events(request.folder, [*events, step_event(3, 3.0)])
    status, text = shown(0)
    assert status == "finished" and "Finished after step 3" in text
    assert "The stop came after the last step: the script saved and ended by itself." in text
    assert "all 3 steps are made" in _stop(monitor.records)
    status, text = shown(-15)
    assert status == "stopped" and "All 3 steps were trained; the stop came while the script saved." in text


def test_options_are_replaced_behind_the_script() -> None:
    """Those of a launcher in front may have the same names."""
    words = "accelerate launch --gradient_accumulation_steps 4 train.py --gradient_accumulation_steps 4 --x 1"
    command = read_command(words.split())
    arguments = ScriptArguments(command.arguments).replace_values({"gradient_accumulation_steps": "8"})
    changed = command.replace_arguments(arguments)
    assert " ".join(changed) == (
        "accelerate launch --gradient_accumulation_steps 4 train.py --x 1 --gradient_accumulation_steps 8"
    )
    assert read_command(["A=1", "python", "-u", "-m", "package.train", "--x", "1"]).arguments == ("--x", "1")


def test_a_training_whose_steps_are_not_seen_has_no_last_step(tmp_path: Path) -> None:
    """By torch's own data parallelism; it did not end before its first step."""
    request = launch_request(Run(config={}, model={}, cluster=cpu_cluster(2)), tmp_path)
    outcome = outcome_of(tmp_path, None, plain="DistributedDataParallel")
    printed = printed_document(session_document(Session(attempts=(Attempt(request=request, outcome=outcome),))))
    assert "Finished, 1.0 s." in printed and "before the first step" not in printed
    assert "it trains by torch's DistributedDataParallel." in " ".join(printed.split())


def test_a_batch_without_tokens_has_samples(tmp_path: Path) -> None:
    """As of images: the engine knows their number."""
    events = [{"engine": {"micro_batch_size": 3, "gradient_accumulation_steps": 4}, "data_parallel_size": 2}]
    events += [step_event(step, 0.5 * step) | {"tokens": 0} for step in (1, 2, 3)]
    request = launch_request(cpu_run(2), tmp_path)
    request.folder.mkdir()
    monitor = monitor_of(request)
    monitor.records = write_events(request.folder, events, events)
    outcome = monitor.outcome(0, None, stopped=False)
    assert (outcome.samples_per_step, outcome.tokens_per_s) == (24, None)
    printed = printed_document(session_document(Session(attempts=(Attempt(request=request, outcome=outcome),))))
    assert re.search(r"samples/s +48", printed)


@pytest.mark.parametrize(
    ("measured", "predicted"),
    [("samples", "samples"), ("samples", "tokens"), ("tokens", "tokens"), ("tokens", "samples")],
)
def test_a_rate_is_compared_with_one_of_its_unit(folder: Path, measured: str, predicted: str) -> None:
    """The dry run and the engine may see tokens in different batches; the step is then compared as it is."""
    estimate = _run(folder).estimate()
    assert estimate is not None
    cluster = replace(cpu_cluster(2), measured="matrix products")
    prediction = replace(by_estimate(estimate, cluster), evidence="dry-run", tokens_per_step=96.0, step_s=2.0)
    rates = {"tokens_per_step": 192.0, "tokens_per_s": 48.0} if measured == "tokens" else {"samples_per_step": 192}
    outcome = outcome_of(folder, None, last_step=9, predicted=prediction, step_s=4.0, **rates)
    seen: Any = SimpleNamespace(unit=predicted, training=SimpleNamespace(has_padding_mask=False))
    page = io.StringIO()
    attempt = Attempt(request=launch_request(_run(folder), folder, dry_run=seen), outcome=outcome)
    render_figures(attempt, Console(file=page, width=80))
    rows = {line.split()[0]: line.split()[1:] for line in page.getvalue().splitlines() if line}
    assert rows[f"{measured}/s"] == ["48", "48" if measured == predicted else "-"]
    is_scaled = (measured, predicted) == ("tokens", "tokens")
    assert rows["step"] == ["4.0", "s", "4.0" if is_scaled else "2.0", "s"]
    assert ("times are predicted for as many" in page.getvalue()) == is_scaled


def test_two_launches_of_the_same_second_have_their_own_folders(tmp_path: Path) -> None:
    """The folder is named by the time; the second one has a number."""
    made = [new_folder(tmp_path / "launches" / "2026-11-30T01-17-26").name for _ in range(3)]
    assert made == ["2026-11-30T01-17-26", "2026-11-30T01-17-26-2", "2026-11-30T01-17-26-3"]


@pytest.mark.parametrize("kind", [None, "crash"])
def test_every_training_is_kept(tmp_path: Path, kind: FailureKind | None) -> None:
    """Also of an unknown model, and one that failed, with the stage that the engine had."""
    engine = {"zero_stage": 2, "micro_batch_size": 3, "gradient_accumulation_steps": 1}
    request = launch_request(Run(config={}, model={}, cluster=cpu_cluster(2)), tmp_path, "--lr", "1")
    keep_training(Attempt(request=request, outcome=outcome_of(tmp_path, kind, engine=engine)))
    (record,) = Store().find(kind="training")
    assert (record.model_name, record.plan["zero_optimization"]["stage"]) == ("train.py", 2)
    assert record.workload["command"].endswith("train.py --lr 1")
    assert bool(record.result["failure"]) == (kind is not None)
    assert record.result["log_folder"] == str(tmp_path) and "last_loss" not in record.result


def test_a_kept_training_has_its_command_its_losses_and_its_folders(tmp_path: Path) -> None:
    """A model that a check has seen changes nothing; the script of `train` is no command of the user's."""
    losses = ((1, 6.27), (2, None), (3, 2.31))
    (tmp_path / "out").mkdir()
    for is_users in (True, False):
        run = Run(config={}, model={}, cluster=cpu_cluster(2), shape=find("gpt2"), model_name="GPT2LMHeadModel")
        request = launch_request(run, tmp_path, "--output_dir", str(tmp_path / "out"), is_users=is_users)
        keep_training(Attempt(request=request, outcome=outcome_of(tmp_path, None, losses=losses)))
    own, users = Store().find(kind="training")
    assert "train.py --output_dir" in users.workload["command"] and "command" not in own.workload
    kept = {"first_loss": 6.27, "last_loss": 2.31, "output_folder": str(tmp_path / "out"), "log_folder": str(tmp_path)}
    assert kept.items() <= users.result.items()


def test_a_failure_shows_the_users_line(tmp_path: Path) -> None:
    """The error of the rank's log is shown as `why` shows it: the last frames with their code, and the message."""
    log = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 8, in rows\n    raise ValueError(row)\n'
    (tmp_path / "rank0.log").write_text(f"[rank0]: {log}".replace("\n", "\n[rank0]: ") + "ValueError: 306\n")
    failure = outcome_of(tmp_path, "crash").failure
    assert failure is not None
    page = io.StringIO()
    render_failure(replace(failure, message="ValueError: 306"), tmp_path, Console(file=page, width=200))
    shown = " ".join(page.getvalue().split())
    assert (
        "rank0.log:4, rank 0" in shown and "/home/me/train.py:8, in rows" in shown and "raise ValueError(row)" in shown
    )
    assert "[rank0]" not in shown


def test_the_step_of_a_failure_is_counted_once(tmp_path: Path) -> None:
    """By the engine; the script's own line counts from 0."""
    log = 'step 2 loss 1.0\nTraceback (most recent call last):\n  File "t.py", line 8, in f\n    f()\nValueError: 306\n'
    (tmp_path / "rank0.log").write_text(log)
    outcome = outcome_of(tmp_path, "crash", last_step=3)
    assert outcome.failure is not None
    outcome = replace(outcome, failure=replace(outcome.failure, step=3, message="ValueError: 306"))
    request = launch_request(Run(config={}, model={}, cluster=cpu_cluster(2)), tmp_path)
    printed = printed_document(session_document(Session(attempts=(Attempt(request=request, outcome=outcome),))))
    assert "first on rank 0, after step 3" in printed and "rank0.log:5\n" in printed
    assert "after step 2" not in printed and "\n\n\n" not in printed


def test_a_script_that_refuses_its_arguments_names_the_argument() -> None:
    """Its last line says why. --no-check would not help."""
    printed = "usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --nope\n"
    error = command_error(
        {"kind": "SystemExit", "phase": "load", "error": "2", "where": "train.py:4", "printed": printed}
    )
    assert isinstance(error, ScriptExitError)
    assert "unrecognized arguments: --nope, at train.py:4" in error.why and error.fix


@pytest.mark.parametrize("by", ["launch", "probe"])
@pytest.mark.usefixtures("folder")
def test_no_rank_is_started_for_a_misspelt_option(
    by: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The dry run knows what to write, and the ranks' parsers would refuse it too."""
    answer = {"kind": "SystemExit", "phase": "load", "error": "2", "misspelt": "write --steps for --stepz"}

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise command_error(answer)

    monkeypatch.setattr("ds_advise.advisor.launch.check.command_answer", refuse)
    monkeypatch.setattr("ds_advise.advisor.verification.probe.command_answer", refuse)
    monkeypatch.setattr("ds_advise.advisor.verification.probe.probe_command", lambda *_, **__: pytest.fail("started"))
    checked = ["--check", "probe"] if by == "launch" else []
    assert run([by, "--device", "cpu", "--ranks", "2", *checked, "--", "train.py", "--stepz", "2"]) == 1
    assert "write --steps for --stepz" in capsys.readouterr().err


@pytest.mark.parametrize("takes_config", [True, False])
@pytest.mark.parametrize("how", ["dry-run", "probe"])
def test_a_training_without_deepspeed_is_started_or_offered_a_launch(
    takes_config: bool, how: Check, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is started if no configuration of DeepSpeed can have been forgotten. Else what starts it comes first, and no
    other command than launch is named."""
    answer = {"kind": "NoEngine", "phase": "load", "error": "", "trained": True, "takes_config": takes_config}

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise command_error(answer)

    monkeypatch.setattr("ds_advise.advisor.launch.check.command_answer", refuse)
    request = launch_request(Run(config={}, model={}, cluster=cpu_cluster(2)), folder)
    if not takes_config:
        request = replace(request, config_path=None)
        assert check(request, how, Output("human")) == (request, [])
        assert "trained without DeepSpeed: it is not checked" in capsys.readouterr().err
        request = replace(request, config_path=folder / "ds_config.json")
    with pytest.raises(NoEngineError) as raised:
        check(request, how, Output("quiet"))
    fix = raised.value.fix
    assert fix.startswith("--no-check starts it without DeepSpeed; ") and "dry-run" not in fix
    assert ("ds-advise launch ds_config.json -- COMMAND" in fix) == takes_config


def test_a_probe_without_a_step_names_the_launch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no dry run could see that it trains without DeepSpeed."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise DryRunError("it needs values", phase="load")

    result = failed_probe("no_step")
    assert result.failure is not None
    fix = way_to_deepspeed(takes_config=True)[1]
    probed = SimpleNamespace(result=replace(result, failure=replace(result.failure, fix=fix)))
    monkeypatch.setattr("ds_advise.advisor.launch.check.command_answer", refuse)
    monkeypatch.setattr("ds_advise.advisor.launch.check.compared_command_probe", lambda *_, **__: probed)
    request = launch_request(Run(config={}, model={}, cluster=cpu_cluster(2)), folder, config_path=None)
    (objection,) = check(request, "probe", Output("quiet"))[1]
    assert objection.fix.endswith("ds-advise launch ds_config.json -- COMMAND") and "dry-run" not in objection.fix
