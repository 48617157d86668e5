"""What the monitor warns of, and when it ends a training."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import socket
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ds_advise.advisor.launch.request import Attempt
from ds_advise.advisor.launch.run import launch
from ds_advise.advisor.launch.session import Session
from ds_advise.advisor.question.run import read_run
from ds_advise.advisor.question.this_machine import cpu_cluster
from ds_advise.advisor.render.launch import session_document
from ds_advise.probes.real_run.stacks import Position, _frames, missing_in_collective, stall_fix
from ds_advise.validate.checkpoint import CHECKSUMS

from tests.advisor.launch.requests import monitor_of, request_of, step_event, write_events
from tests.helpers import launch_request, left_lock, printed_document


def test_a_script_that_trains_by_another_plan_is_reported(tmp_path: Path) -> None:
    """The engine's settings at its first step are compared with the plan that was checked, once."""
    config = {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 4}
    (tmp_path / "ds_config.json").write_text(json.dumps(config))
    gpt2 = read_run(tmp_path / "ds_config.json", "gpt2", cpu_cluster(2), seq_len=32, micro_batch=4, offline=True)
    folder = tmp_path / "log"
    folder.mkdir()
    request = launch_request(gpt2, tmp_path, estimate=gpt2.estimate())
    seen = {"zero_stage": 0, "micro_batch_size": 4, "gradient_accumulation_steps": 2}
    (folder / "rank0.jsonl").write_text(json.dumps({"time": 1.0, "engine": seen}) + "\n")
    with (tmp_path / "shown").open("w") as page:
        monitor = monitor_of(request, page)
        for _ in range(2):
            monitor.look()
            monitor._memory._sample_at = 0.0
    outcome = monitor.outcome(0, None, stopped=False)
    assert outcome.differences == ("ZeRO 0 instead of 2", "accumulation 2 instead of 1")
    assert (tmp_path / "shown").read_text().count("a different plan than the one that was checked") == 1


@pytest.mark.parametrize(
    ("notes", "kind", "message"),
    [
        ([{"engine_ranks": 2}, *(step_event(number, 1.0) for number in range(5, 11))], None, ""),
        ([{"engine_ranks": 1}], "fewer_ranks", "2 ranks were started, but the engine has 1"),
        ([step_event(number, 1.0, math.nan) for number in range(5, 10)], "nan_loss", "the loss is NaN"),
        ([step_event(1, 1.0)], "not_resumed", "started from the beginning instead of resuming after step 4"),
    ],
)
def test_a_useless_training_is_ended(
    tmp_path: Path, notes: list[dict[str, Any]], kind: str | None, message: str
) -> None:
    """A script that joins no group trains copies of the model, another starts over instead of resuming."""
    request = request_of(tmp_path, "", resumes_after=4)
    request.folder.mkdir()
    monitor = monitor_of(request)
    monitor.records = write_events(request.folder, notes, notes)
    for step in (4, 8, 9):
        (tmp_path / f"checkpoint-{step}").mkdir()
        for rank in monitor.records.ranks:
            rank.checkpoints.append(str(tmp_path / f"checkpoint-{step}"))
    failure = monitor.abort_reason()
    checkpoint = monitor.outcome(0, failure, stopped=False).checkpoint
    # Losses that begin with NaN come from the checkpoint of the step before.
    assert checkpoint == (None if kind == "nan_loss" else tmp_path / "checkpoint-9")
    assert (failure.kind if failure else None) == kind and message in (failure.message if failure else "")


@pytest.mark.parametrize(("dtype", "names_fp16"), [("", True), ("float16", True), ("bfloat16", False)])
def test_a_loss_that_is_nan_has_the_causes_of_its_type_and_its_line(
    tmp_path: Path, dtype: str, names_fp16: bool
) -> None:
    """Nothing overflows in bf16. The log has the first step in the script's own count."""
    request = request_of(tmp_path, "")
    request.folder.mkdir()
    (request.folder / "rank0.log").write_text("".join(f"step {n} loss {'nan' if n > 5 else 2}\n" for n in range(11)))
    monitor = monitor_of(request)
    steps = [step_event(number, 1.0, math.nan if number > 6 else 2.0) for number in range(1, 12)]
    notes = [{"engine_ranks": 2, "dtype": dtype}, *steps]
    monitor.records = write_events(request.folder, notes, notes)
    failure = monitor.abort_reason()
    outcome = monitor.outcome(0, failure, stopped=False)
    printed = printed_document(session_document(Session(attempts=(Attempt(request=request, outcome=outcome),))))
    assert ("fp16" in printed) is names_fp16 and "learning rate" in printed
    assert "since step 7, so the training was ended after step 11" in " ".join(printed.split())
    assert re.search(r"rank0\.log:7\n +7 > step 6 loss nan", printed), printed
    assert printed.count("step 11") == 1
    assert printed.count("NaN") == 1 and "not a number" not in printed


def test_every_checkpoint_that_all_ranks_saved_gets_its_checksums(tmp_path: Path) -> None:
    """Also two within one look, as small models save them; not one that a rank has yet to save."""
    request = request_of(tmp_path, "")
    request.folder.mkdir()
    folders = [tmp_path / f"checkpoint-{step}" for step in (4, 8, 12)]
    for folder in folders:
        folder.mkdir()
        (folder / "trainer_state.json").write_text("{}")
    notes = [{"checkpoint": str(folder)} for folder in folders]
    monitor = monitor_of(request)
    monitor.records = write_events(request.folder, notes, notes[:2])
    monitor.outcome(0, None, stopped=True)
    assert [(folder / CHECKSUMS).exists() for folder in folders] == [True, True, False]


def test_silent_ranks_are_reported_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After ten minutes a warning has their last lines and process ids; after the time of `--stall` they are ended."""
    monkeypatch.setattr("ds_advise.probes.real_run.sampling._EVERY_S", 0.0)
    monkeypatch.setattr("ds_advise.probes.real_run.sampling._SHARE", 1.0)
    request = request_of(tmp_path, "", stall_s=700.0)
    request.folder.mkdir()
    begun = {"time": time.monotonic(), "rank": 1, "pid": os.getpid(), "host": socket.gethostname()}
    (request.folder / "rank1.jsonl").write_text(json.dumps(begun) + "\n")
    (request.folder / "rank1.log").write_text("loading\nwaiting for rank 0\n")
    monitor = monitor_of(request)
    monitor.look()
    monitor.records.heard_at -= 650.0
    assert monitor.abort_reason() is None
    monitor.look()
    (warning,) = (text for text in monitor.outcome(0, None, stopped=True).warnings if "10 min" in text)
    assert "last line of rank 1: waiting for rank 0" in warning
    assert str(os.getpid()) in warning
    monitor.records.heard_at -= 100.0
    failure = monitor.abort_reason()
    assert failure is not None
    assert (failure.kind, failure.evidence) == ("hang", ("last line of rank 1: waiting for rank 0",))


def test_a_line_of_a_warning_is_no_evidence(tmp_path: Path) -> None:
    request = request_of(tmp_path, "", stall_s=1.0)
    request.folder.mkdir()
    warned = "/x/torch/nn.py:12: FutureWarning: old\n  return func(*args, **kwargs)\n"
    for rank, text in enumerate((f"epoch 1\n{warned}", warned)):
        (request.folder / f"rank{rank}.log").write_text(text)
        (request.folder / f"rank{rank}.jsonl").write_text("")
    monitor = monitor_of(request)
    monitor.records.read()
    monitor.records.heard_at -= 10.0
    failure = monitor.abort_reason()
    assert failure is not None and failure.evidence == ("last line of rank 0: epoch 1",)


def test_an_extension_that_is_built_is_no_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = request_of(tmp_path, "", stall_s=1.0)
    request.folder.mkdir()
    monitor = monitor_of(request)
    monkeypatch.setattr(monitor._memory, "sample", lambda: True)
    monitor._memory.compiles = True
    monitor.records.heard_at -= 10.0
    monitor.look()
    assert monitor.abort_reason() is None
    monitor.records.heard_at -= 10.0
    assert monitor.abort_reason() is not None


def test_the_rank_that_is_missing_in_a_collective_is_named() -> None:
    """Frames of the interpreter are left out."""
    frozen, torchs = ("<frozen importlib._bootstrap>", "241", "_call"), "/v/lib/python3.11/site-packages/torch"
    calls = (f"{torchs}/distributed/distributed_c10d.py", "3252", "all_reduce"), ("/u/train.py", "27", "main")
    late = ("/u/train.py", "21", "load_batch"), ("/u/train.py", "26", "main")
    dumps = [
        "".join(f'  File "{path}", line {line} in {name}\n' for path, line, name in each)
        for each in (
            (frozen, *calls),
            (*late, frozen),
            calls,
        )
    ]
    found = [Position(rank, _frames(dump)) for rank, dump in enumerate(dumps)]
    assert missing_in_collective(found) == (
        "ranks 0, 2 wait in all_reduce for rank 1, which is in load_batch (/u/train.py, line 21)"
    )
    assert missing_in_collective(found[::2]) == missing_in_collective(found[1:2]) == ""
    assert str(found[0]) == (
        "rank 0 is in all_reduce (torch/distributed/distributed_c10d.py, line 3252), "
        "called by main (/u/train.py, line 27)"
    )


def test_a_rank_that_imports_does_not_hang() -> None:
    """A library's module that the user's code imports, in whatever call; not one that is run by its name."""
    libraries = "/v/lib/python3.11/site-packages"
    engine, init = (
        (f"{libraries}/deepspeed/runtime/engine.py", "89", "<module>"),
        (f"{libraries}/deepspeed/__init__.py", "9", "<module>"),
    )
    called, script = (f"{libraries}/torch/_ops.py", "3", "op"), ("/u/train.py", "1", "<module>")
    importing = [
        Position(0, (called, engine, init, script)),
        Position(1, (engine, init, (f"{libraries}/own/cli.py", "1", "<module>"))),
    ]
    assert [str(each) for each in importing] == [f"rank {rank} is still importing deepspeed" for rank in range(2)]
    assert "--stall" in stall_fix(importing)
    others = [Position(0, (called, script)), Position(1, (called, (f"{libraries}/own/cli.py", "1", "<module>")))]
    assert not any(each.imports for each in others) and not stall_fix([importing[0], others[0]]) and not stall_fix([])


@pytest.mark.slow
def test_a_rank_that_hangs_is_named_by_its_line(tmp_path: Path) -> None:
    """A call of C included. Both ranks have to start within `stall_s`, on a busy machine too."""
    script = "import time\ndef load_rows():\n    time.sleep(10_000)\nload_rows()\n"
    request = request_of(tmp_path, script, stall_s=20.0)
    failure = launch(request).failure
    assert failure is not None and failure.kind == "hang"
    assert [f"rank {rank} is in load_rows ({tmp_path}/train.py, line 3)" for rank in range(2)] == list(failure.evidence)


def test_a_build_of_another_command_is_no_hang(tmp_path: Path) -> None:
    """While its process lives, which has torch's lock open."""
    request = request_of(tmp_path, "", stall_s=1.0)
    request.folder.mkdir()
    lock = left_lock(tmp_path)
    monitor = monitor_of(request)
    with lock.open() as stream, subprocess.Popen(["sleep", "60"], stdin=stream) as builder:
        stream.close()
        monitor.records = write_events(request.folder, [{"waits_for": str(lock)}])
        monitor.records.heard_at -= 10.0
        monitor.look()
        assert monitor.abort_reason() is None
        assert monitor.records.ranks[0].obstacle == f"rank 0 waits until pid {builder.pid} has built cpu_adam ({lock})"
        builder.kill()


def test_a_suspended_rank_and_one_that_waits_for_a_build_are_named(tmp_path: Path) -> None:
    request = request_of(tmp_path, "", stall_s=1.0)
    request.folder.mkdir()
    left = left_lock(tmp_path)
    with subprocess.Popen(["sleep", "60"]) as suspended:
        suspended.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, suspended.pid, os.WSTOPPED)
        for rank, pid in ((0, suspended.pid), (1, os.getpid())):
            event = {"time": time.monotonic(), "rank": rank, "pid": pid, "host": socket.gethostname()}
            lock = {"waits_for": str(left) if rank else ""}
            (request.folder / f"rank{rank}.jsonl").write_text(json.dumps(event | lock) + "\n")
        monitor = monitor_of(request)
        monitor.look()
        monitor.records.heard_at -= 10.0
        failure = monitor.abort_reason()
        suspended.kill()
    nobody = "rank 1 waits until cpu_adam is built, and no process of this machine builds it"
    assert monitor.outcome(0, None, stopped=True).warnings == (  # at once
        "rank 0 was suspended (SIGSTOP)",
        f"{nobody} (`rm {left}`, unless another machine builds it)",
    )
    (request.folder / "rank0.jsonl").unlink()
    waits = monitor_of(request)
    waits.look()
    waits.warn_of_obstacle()  # when it is stopped, so that its record has it
    (warning,) = waits.outcome(0, None, stopped=True).warnings
    assert warning.startswith("rank 1 waits until")
    assert failure is not None and failure.evidence == (
        "rank 0 was suspended (SIGSTOP)",
        nobody,
    )


def test_a_lock_that_nobody_holds_ends_the_training(tmp_path: Path) -> None:
    """With the command that removes it; on several nodes another one may hold it."""
    request = request_of(tmp_path, "")
    request.folder.mkdir()
    left, waits_since = left_lock(tmp_path), time.time() - 60.0
    os.utime(left, (waits_since - 1.0, waits_since - 1.0))
    event = {"time": time.monotonic() - 60.0, "rank": 0, "pid": os.getpid(), "host": socket.gethostname()}
    (request.folder / "rank0.jsonl").write_text(json.dumps(event | {"waits_for": str(left)}) + "\n")
    monitor = monitor_of(request)
    monitor.look()
    failure = monitor.abort_reason()
    assert failure is not None and (failure.kind, failure.fix) == (
        "hang",
        f"`rm {left}`, unless another machine builds it",
    )
    assert monitor.outcome(1, failure, stopped=False).warnings == (), "the failure says it"
    nodes = replace(request.run.cluster, nodes=2)
    elsewhere = monitor_of(replace(request, run=replace(request.run, cluster=nodes)))
    elsewhere.look()
    assert elsewhere.abort_reason() is None
