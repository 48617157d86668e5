"""What holds the ranks, what their records contain, and how a failure is named; launches without DeepSpeed."""

from __future__ import annotations

import json
import math
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from io import StringIO
from pathlib import Path
from typing import Any, TextIO

import psutil
import pytest
from ds_advise.advisor.launch.failures import classify_failure
from ds_advise.advisor.launch.monitor import Monitor
from ds_advise.advisor.launch.records import Records
from ds_advise.advisor.launch.request import LaunchOutcome, LaunchRequest
from ds_advise.advisor.launch.run import launch
from ds_advise.advisor.question.run import read_run
from ds_advise.advisor.question.this_machine import cpu_cluster
from ds_advise.advisor.text.display import Display
from ds_advise.estimators.errors import ConfigFileError
from ds_advise.probes.real_run.sampling import MemorySampler
from ds_advise.probes.real_run.stacks import Position, _frames, missing_in_collective
from ds_advise.probes.real_run.supervisor import free_abandoned_buffers
from ds_advise.probes.real_run.trainer import STOP_FILE
from ds_advise.probes.run import Run
from ds_advise.probes.scratch import signals_collected
from ds_advise.validate.checkpoint import CHECKSUMS
from rich.console import Console

from tests.helpers import launch_request


def test_the_supervisor_ends_as_its_command_does(tmp_path: Path) -> None:
    """The exit code, or the same signal, and nothing of the command stays."""

    def code(*command: str) -> int:
        return subprocess.run(
            [sys.executable, "-m", "ds_advise.probes.real_run.supervisor", str(os.getpid()), *command],
            cwd=tmp_path,
            timeout=900,
            capture_output=True,
        ).returncode

    assert [code("sh", "-c", "exit 3"), code("sh", "-c", "kill -9 $$"), code("true")] == [3, -9, 0]
    seconds = str(100_000 + os.getpid())  # of no other process
    assert code("sh", "-c", f"setsid sleep {seconds} & exit 0") == 0
    assert not any(seconds in (process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))


def _notes(tmp_path: Path, *ranks: list[dict[str, Any]]) -> Records:
    for number, lines in enumerate(ranks):
        start = {"rank": number, "pid": 0, "host": "elsewhere"}
        text = [json.dumps({"time": 0.0, **line}) for line in (start, *lines)]
        (tmp_path / f"rank{number}.jsonl").write_text("\n".join(text) + "\n")
    records = Records(tmp_path)
    records.read()
    return records


def _step(number: int, time_s: float, loss: float = 1.0) -> dict[str, Any]:
    return {"step": number, "tokens": 100, "time": time_s, "loss": loss}


def test_records_are_read_as_they_grow(tmp_path: Path) -> None:
    """Steps that all ranks completed, mean losses, tokens of the whole job, the slowest rank's step; a half line
    waits."""
    records = _notes(tmp_path, [_step(1, 10.0), _step(2, 11.0, 0.5), _step(3, 12.0)], [_step(1, 10.0), _step(2, 12.0)])
    assert (records.step, records.losses) == (2, [(1, 1.0), (2, 0.75)])
    assert records.speed(8) == records.speed(8, last=20) == (800, 2.0)
    with (tmp_path / "rank1.jsonl").open("a") as stream:
        stream.write('{"time": 13.0, "step": 3, "tok')
        stream.flush()
        records.read()
        assert records.step == 2
        stream.write('ens": 100}\n{"time": 14.0, "st{"time": 15.0, "step": 4, "tokens": 100}\n')
    records.read()
    assert records.step == 3  # a line that a full disk cut off is skipped


@pytest.mark.parametrize(("name", "counts"), [("cc1plus", False), ("python", True)])
def test_compilers_do_not_count_as_the_training(name: str, counts: bool) -> None:
    """What builds an extension at its first use may take gigabytes, once."""
    program = (
        f"import ctypes, time; ctypes.CDLL(None).prctl(15, {name.encode()!r}); held = b'x' * (100 << 20)\n"
        "print(flush=True); time.sleep(600)"
    )

    def sampled() -> MemorySampler:
        sampler = MemorySampler(os.getpid(), gpus=False)
        sampler.sample()
        return sampler

    before_bytes = sampled().host_bytes
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        sample = sampled()
        process.kill()
    assert (sample.host_bytes - before_bytes > 50 << 20) == counts
    assert sample.compiles != counts


def _error(at: float, kind: str, message: str, number: int | None = None) -> dict[str, Any]:
    return {"time": at, "error": {"type": kind, "message": message, "errno": number, "details": ""}}


def _exit(at: float, code: int) -> dict[str, Any]:
    return {"time": at, "exit": code}


KILLED = _exit(2.0, -9)
LOST = _error(1.0, "RuntimeError", "Connection closed by peer [127.0.0.1]:1234")
OUT_OF_MEMORY = _error(2.0, "OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB")
ALLOCATOR = _error(1.0, "RuntimeError", "DefaultCPUAllocator: can't allocate memory: you tried")
COMPILER = _error(1.0, "RuntimeError", "Error building extension 'fused_adam': cc1plus: Cannot allocate memory")
ARCHIVE = _error(1.0, "RuntimeError", "basic_ios::clear: iostream error")
SEMAPHORE = _error(1.0, "OSError", "[Errno 28] No space left on device", 28)
SEMAPHORE["error"]["details"] = "sl = self._semlock = _multiprocessing.SemLock("
WATCHDOG = _error(1.0, "DistBackendError", "Watchdog caught collective operation timeout: WorkNCCL")
BOTH = {"engine_ranks": 2}
TRAINER = {"trainer": {"output_dir": "/"}}
OOM_KILLER = "the kernel's OOM killer"

FAILURES: dict[str, tuple[list[list[dict[str, Any]]], str, int, str]] = {
    "a peer fails earlier": ([[LOST], [OUT_OF_MEMORY]], "gpu_out_of_memory", 1, "OutOfMemoryError on rank 1"),
    OOM_KILLER: ([[LOST], [KILLED]], "host_out_of_memory", 1, "memory.events: oom_kill rose by 1"),
    "killed by another process": ([[LOST], [KILLED]], "lost_rank", 1, "exit signal 9 of rank 1"),
    "killed after another": ([[_exit(5.0, -9)], [KILLED]], "lost_rank", 1, "exit signal 9 of rank 1"),
    "ended by the launcher": ([[_exit(0.5, -15)], [KILLED]], "lost_rank", 1, "exit signal 9 of rank 1"),
    "torch's allocator on the CPU": ([[], [ALLOCATOR]], "host_out_of_memory", 1, "RuntimeError on rank 1"),
    "a compiler's memory": ([[], [COMPILER]], "crash", 1, "the compiler of a DeepSpeed extension failed"),
    "disk": ([[TRAINER, _error(1.0, "OSError", "No space left", 28)], []], "disk_full", 0, "errno 28 (ENOSPC)"),
    "free space": ([[TRAINER, _error(1.0, "OSError", "No space left", 28)], []], "disk_full", 0, "GiB free in /"),
    "torch's archive on a full disk": ([[], [ARCHIVE]], "disk_full", 1, "RuntimeError on rank 1"),
    "a full /dev/shm": ([[], [SEMAPHORE]], "crash", 1, "/dev/shm is full, not the disk"),
    "NCCL": ([[WATCHDOG], []], "communication_timeout", 0, "DistBackendError on rank 0"),
    "the script's own error": (
        [[_error(1.0, "ValueError", "no such column")], [LOST]],
        *("crash", 0, "ValueError on rank 0"),
    ),
    "exit code": ([[{"end": 0}, _exit(1.0, 3)], []], "crash", 0, "exit code 3 of rank 0"),
    # The others are ended only after a rank has ended: the first end is the cause.
    "SIGTERM to a rank": (
        [[BOTH, LOST, _exit(3.0, 1)], [BOTH, _exit(2.0, -15)]],
        "lost_rank",
        1,
        "15 (SIGTERM) of rank 1",
    ),
    "a rank leaves": ([[BOTH, LOST, _exit(3.0, 1)], [BOTH, _exit(2.0, 3)]], "crash", 1, "exit code 3 of rank 1"),
    "a rank is done early": ([[BOTH, LOST, _exit(3.0, 1)], [BOTH, _exit(2.0, 0)]], "crash", 1, "exit code 0 of rank 1"),
    "another node's rank": ([[LOST, _exit(3.0, 1)], [_exit(2.0, -15)]], "crash", 0, "RuntimeError on rank 0"),
}
"""Name -> events of the ranks, kind, rank, evidence."""


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_named_with_its_evidence(tmp_path: Path, name: str) -> None:
    """The error of the rank that failed first, and its evidence."""
    ranks, kind, number, evidence = FAILURES[name]
    records = _notes(tmp_path, *ranks)
    failure = classify_failure(records, tmp_path, 1, {"memory.events": int(name == OOM_KILLER)})
    assert (failure.kind, failure.rank, failure.step) == (kind, number, records.step)
    assert any(evidence in each for each in (*failure.evidence, failure.cause))


EVALUATION = """  File "transformers/trainer.py", line 2863, in evaluate
    output = eval_loop(
  File "transformers/trainer.py", line 3015, in evaluation_loop
    all_preds.add(logits)
"""
SAVING = """  File "transformers/trainer.py", line 3369, in _save_checkpoint
    self.save_model(output_dir, _internal_call=True)
  File "deepspeed/runtime/engine.py", line 4507, in _zero3_consolidated_16bit_state_dict
    get_layer_state_dict(self.module, prefix="")
"""

STEP = """  File "deepspeed/runtime/engine.py", line 2341, in step
    self._take_model_step(lr_kwargs)
"""


@pytest.mark.parametrize(
    ("details", "moment", "fix"),
    [
        (EVALUATION, "it was raised in an evaluation", "per_device_eval_batch_size"),
        (SAVING, "it was raised while a checkpoint was saved", "stage3_gather_16bit_weights_on_model_save"),
        (STEP, "it was raised in the optimizer's step", ""),
    ],
)
def test_memory_that_ran_out_in_an_evaluation_or_at_a_checkpoint_has_its_own_fix(
    tmp_path: Path, details: str, moment: str, fix: str
) -> None:
    """The frames of the traceback decide; in a step, another plan is the fix."""
    event = _error(2.0, "OutOfMemoryError", "CUDA out of memory. Tried to allocate 18.55 GiB.")
    event["error"]["details"] = details
    failure = classify_failure(_notes(tmp_path, [_step(500, 1.0), event], []), tmp_path, 1, {})
    assert failure.kind == "gpu_out_of_memory"
    assert [each for each in failure.evidence if "raised" in each] == ([moment] if moment else [])
    assert fix in failure.fix if fix else not failure.fix


WATCHDOG_LOG = (
    "[rank0]:[E1012 10:33:15.204112031 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=1845, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600017 "
    "milliseconds before timing out.\nterminate called after throwing an instance of 'c10::DistBackendError'\n"
)


def test_a_collective_that_timed_out_is_named_with_its_wait_and_the_ranks_steps(tmp_path: Path) -> None:
    """NCCL's watchdog aborts the process, which reports nothing itself."""
    records = _notes(tmp_path, [_step(14, 1.0), _exit(2.0, -6)], [_step(13, 1.0)])
    (tmp_path / "rank0.log").write_text(WATCHDOG_LOG)
    failure = classify_failure(records, tmp_path, 1, {})
    assert failure.kind == "communication_timeout"
    assert "ALLREDUCE had waited for 10 minutes" in failure.evidence
    assert "rank 1 had completed step 13" in failure.evidence
    assert "ddp_timeout" in failure.fix and "DEEPSPEED_TIMEOUT" in failure.fix


@pytest.mark.parametrize(("ended", "rank", "who"), [(1, 0, "rank 0"), (0, None, "a rank")])
def test_a_rank_whose_end_nobody_reports_is_named_if_it_is_the_only_one(
    tmp_path: Path, ended: int, rank: int | None, who: str
) -> None:
    """A shell script that starts the ranks ends with 128 + the signal of one of them."""
    failure = classify_failure(_notes(tmp_path, [], [{"end": 0}] * ended), tmp_path, 128 + 9, {})
    assert (failure.kind, failure.rank, failure.evidence[0]) == ("lost_rank", rank, f"exit signal 9 of {who}")


def _run(ranks: int) -> Run:
    return Run(config={}, model={}, cluster=cpu_cluster(ranks))


def _monitor(request: LaunchRequest, page: TextIO | None = None) -> Monitor:
    display = Display(Console(file=page or StringIO()), "training")
    return Monitor(request, display, os.getpid())


def _request(tmp_path: Path, script: str, *arguments: str, ranks: int = 2, **changes: Any) -> LaunchRequest:
    (tmp_path / "train.py").write_text(script)
    return launch_request(_run(ranks), tmp_path, *arguments, device="cpu", **changes)


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
        monitor = _monitor(request, page)
        for _ in range(2):
            monitor.look()
            monitor._memory._sample_at = 0.0
    outcome = monitor.outcome(0, None, stopped=False)
    assert outcome.differences == ("ZeRO 0 instead of 2", "accumulation 2 instead of 1")
    assert (tmp_path / "shown").read_text().count("a different plan than the one that was checked") == 1


def test_a_memory_limit_is_named_as_such(tmp_path: Path) -> None:
    """A rank whose own limit (rlimit) is reached: host memory, and nobody waits for the other."""
    outcome = launch(
        _request(
            tmp_path,
            (
                "import os, resource, time\n"
                "if os.environ['RANK'] == '0': time.sleep(600)\n"
                "resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))\n"
                "bytearray(2**31)\n"
            ),
        )
    )
    assert outcome.status == "failed"
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.rank) == ("host_out_of_memory", 1)
    assert outcome.failure.evidence == ("MemoryError on rank 1",)
    with pytest.raises(ConfigFileError, match="records of another launch"):
        launch(_request(tmp_path, ""))


STEPPING = """
import json, os, sys, time
from pathlib import Path
notes = Path(sys.argv[1]) / f"rank{os.environ['RANK']}.jsonl"
for step in range(5, 45):
    with notes.open("a") as stream:
        stream.write(json.dumps({"time": time.monotonic(), "step": step, "tokens": 10, "loss": 1.0}) + "\\n")
    time.sleep(0.05)
time.sleep(10_000)
"""


def pid_in(record: Path) -> int:
    """The process whose record this is; it stands in the first line."""
    return int(json.loads(record.read_text().splitlines()[0])["pid"])


def _stopped(request: LaunchRequest) -> LaunchOutcome:
    """Launch it, and send this process SIGTERM twice once rank 0 has completed step 8."""
    record, ended = request.folder / "rank0.jsonl", threading.Event()

    def stop() -> None:
        while not (record.exists() and '"step": 8' in record.read_text()) and not ended.wait(0.1):
            pass
        for _ in range(2):
            if not ended.is_set():
                os.kill(os.getpid(), signal.SIGTERM)
            ended.wait(2)

    stopper = threading.Thread(target=stop)
    stopper.start()
    try:
        return launch(request)
    finally:
        ended.set()
        stopper.join()


@pytest.mark.parametrize("removed", [False, True])
def test_a_closed_terminal_stops_the_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, removed: bool) -> None:
    """SIGHUP asks for a checkpoint as SIGTERM does, but not under nohup; also where the records were removed."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may run under nohup
    request = _request(tmp_path, STEPPING, str(tmp_path / "log"), ranks=1)
    stop = request.folder / STOP_FILE

    def hang_up() -> None:
        while not (request.folder / "rank0.jsonl").exists():
            time.sleep(0.05)
        with (request.folder / "rank0.jsonl").open("a") as stream:
            stream.write(json.dumps({"time": 0.0, "trainer": {"total_steps": 9, "output_dir": "/"}}) + "\n")
        time.sleep(1.0)  # it is read
        if removed:
            request.folder.rename(tmp_path / "elsewhere")
        os.kill(os.getpid(), signal.SIGHUP)
        while not stop.exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=hang_up)
    thread.start()
    outcome = launch(request)
    thread.join()
    signal.signal(signal.SIGHUP, before)
    assert outcome.status == "stopped" and stop.exists()
    assert any("was moved or removed" in each for each in outcome.warnings) <= removed
    monkeypatch.setattr(signal, "getsignal", lambda _number: signal.SIG_IGN)
    with signals_collected(signal.SIGHUP) as received:
        assert signal.signal(signal.SIGHUP, before) == before and received == []


def test_a_moved_folder_is_the_cause(tmp_path: Path) -> None:
    """The ranks fail because they cannot write there, and their records are elsewhere."""
    records = _notes(tmp_path, [_step(4, 1.0)], [_step(5, 1.0)])
    failure = classify_failure(records, tmp_path / "gone", 1, {})
    assert (failure.kind, failure.rank, failure.step) == ("crash", None, 4)
    assert "gone was moved or removed" in failure.message and "move it back" in failure.fix


@pytest.mark.parametrize("ranks", [[[], []], [[LOST, _exit(3.0, 1)], [_exit(3.0, -15)]]])
def test_a_launcher_that_is_killed_is_named(tmp_path: Path, ranks: list[list[dict[str, Any]]]) -> None:
    """Not a rank, which at most lost its connection to it."""
    failure = classify_failure(_notes(tmp_path, *ranks), tmp_path, -9, {})
    assert (failure.kind, failure.rank) == ("lost_rank", None)
    assert failure.message == "the launcher was killed by SIGKILL"


@pytest.mark.parametrize(
    ("status", "message", "evidence"),
    [
        (-11, "rank 1 died of SIGSEGV", "last line of rank 1: a warning"),
        (-6, "a warning", "exit signal 6 (SIGABRT) of rank 1"),  # what aborts says why
        (3, "rank 1 ended with exit code 3", "last line of rank 1: a warning"),
        (2, "a warning", "exit code 2 of rank 1"),
    ],
)
def test_the_last_line_of_a_log_is_no_cause_by_itself(tmp_path: Path, status: int, message: str, evidence: str) -> None:
    (tmp_path / "rank1.log").write_text("a warning\n")
    failure = classify_failure(_notes(tmp_path, [], [_exit(2.0, status)]), tmp_path, 1, {})
    assert failure.message == message and evidence in failure.evidence


def test_a_limit_of_file_sizes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _limit: (300 << 10, -1))
    failure = classify_failure(_notes(tmp_path, [], [ARCHIVE]), tmp_path, 1, {})
    assert "every file is limited to 0.3 MiB (ulimit -f)" in failure.evidence


def test_a_second_signal_ends_what_ignores_the_first(tmp_path: Path) -> None:
    """A resumed training goes on until it is stopped. A script that goes on after SIGTERM is ended by the next one,
    with all its processes."""
    asked = tmp_path / "asked to stop"
    script = f"import signal\nsignal.signal(signal.SIGTERM, lambda *_: open({str(asked)!r}, 'w'))\n" + STEPPING
    request = _request(tmp_path, script, str(tmp_path / "log"), ranks=1, resumes_after=4)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    outcome = _stopped(request)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert (outcome.status, outcome.failure) == ("stopped", None)
    assert outcome.last_step >= 8 and asked.exists()
    assert not psutil.pid_exists(pid_in(request.folder / "rank0.jsonl"))


def test_shared_memory_goes_with_the_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process has open or mapped stays, and so does another user's."""
    monkeypatch.setattr("ds_advise.probes.real_run.supervisor.SHARED_MEMORY", tmp_path)
    prefix = tmp_path / f"deepspeed_allreduce_buffer_{os.getuid()}_127.0.0.1"
    abandoned, opened, mapped = (Path(f"{prefix}_4711_{rank}") for rank in range(3))
    foreign = tmp_path / f"deepspeed_allreduce_buffer_{os.getuid() + 1}_127.0.0.1_4711_0"
    for path in (abandoned, opened, mapped, foreign):
        path.write_bytes(b"buffer")
    with opened.open(), mapped.open("r+b") as stream:
        memory = mmap.mmap(stream.fileno(), 0)
        stream.close()
        free_abandoned_buffers()
    assert {*tmp_path.iterdir()} == {opened, mapped, foreign}
    memory.close()
    free_abandoned_buffers()
    assert {*tmp_path.iterdir()} == {foreign}


@pytest.mark.slow
def test_ranks_die_where_their_supervisor_is_killed(tmp_path: Path) -> None:
    """The kernel may choose it when memory runs out; the ranks are then ended by the launch."""
    request = _request(tmp_path, "import time\ntime.sleep(10_000)\n")
    records = [request.folder / f"rank{rank}.jsonl" for rank in range(2)]

    def kill() -> None:
        while not all(record.exists() and record.read_text().endswith("\n") for record in records):
            time.sleep(0.1)
        above = psutil.Process(pid_in(records[0])).parents()
        (supervisor,) = (parent for parent in above if parent.ppid() == os.getpid())
        supervisor.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    outcome = launch(request)
    killer.join()
    assert outcome.status == "failed"
    assert not any(psutil.pid_exists(pid_in(record)) for record in records)


@pytest.mark.parametrize(
    ("notes", "kind", "message"),
    [
        ([{"engine_ranks": 2}, *(_step(number, 1.0) for number in range(5, 11))], None, ""),
        ([{"engine_ranks": 1}], "fewer_ranks", "2 ranks were started, but the engine has 1"),
        ([_step(number, 1.0, math.nan) for number in range(5, 10)], "nan_loss", "the loss is NaN"),
        ([_step(1, 1.0)], "not_resumed", "started from the beginning instead of resuming after step 4"),
    ],
)
def test_a_useless_training_is_ended(
    tmp_path: Path, notes: list[dict[str, Any]], kind: str | None, message: str
) -> None:
    """A script that joins no group trains copies of the model, another starts over instead of resuming."""
    request = _request(tmp_path, "", resumes_after=4)
    request.folder.mkdir()
    monitor = _monitor(request)
    monitor.records = _notes(request.folder, notes, notes)
    for step in (4, 8, 9):
        (tmp_path / f"checkpoint-{step}").mkdir()
        for rank in monitor.records.ranks:
            rank.checkpoints.append(str(tmp_path / f"checkpoint-{step}"))
    failure = monitor.abort_reason()
    checkpoint = monitor.outcome(0, failure, stopped=False).checkpoint
    # Losses that begin with NaN come from the checkpoint of the step before.
    assert checkpoint == (None if kind == "nan_loss" else tmp_path / "checkpoint-9")
    assert (failure.kind if failure else None) == kind and message in (failure.message if failure else "")


def test_every_checkpoint_that_all_ranks_saved_gets_its_checksums(tmp_path: Path) -> None:
    """Also two within one look, as small models save them; not one that a rank has yet to save."""
    request = _request(tmp_path, "")
    request.folder.mkdir()
    folders = [tmp_path / f"checkpoint-{step}" for step in (4, 8, 12)]
    for folder in folders:
        folder.mkdir()
        (folder / "trainer_state.json").write_text("{}")
    notes = [{"checkpoint": str(folder)} for folder in folders]
    monitor = _monitor(request)
    monitor.records = _notes(request.folder, notes, notes[:2])
    monitor.outcome(0, None, stopped=True)
    assert [(folder / CHECKSUMS).exists() for folder in folders] == [True, True, False]


def test_silent_ranks_are_reported_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After ten minutes a warning has their last lines and process ids; after the time of `--stall` they are ended."""
    monkeypatch.setattr("ds_advise.probes.real_run.sampling._EVERY_S", 0.0)
    monkeypatch.setattr("ds_advise.probes.real_run.sampling._SHARE", 1.0)
    request = _request(tmp_path, "", stall_s=700.0)
    request.folder.mkdir()
    begun = {"time": time.monotonic(), "rank": 1, "pid": os.getpid(), "host": socket.gethostname()}
    (request.folder / "rank1.jsonl").write_text(json.dumps(begun) + "\n")
    (request.folder / "rank1.log").write_text("loading\nwaiting for rank 0\n")
    monitor = _monitor(request)
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
    request = _request(tmp_path, "", stall_s=1.0)
    request.folder.mkdir()
    warned = "/x/torch/nn.py:12: FutureWarning: old\n  return func(*args, **kwargs)\n"
    for rank, text in enumerate((f"epoch 1\n{warned}", warned)):
        (request.folder / f"rank{rank}.log").write_text(text)
        (request.folder / f"rank{rank}.jsonl").write_text("")
    monitor = _monitor(request)
    monitor.records.read()
    monitor.records.heard_at -= 10.0
    failure = monitor.abort_reason()
    assert failure is not None and failure.evidence == ("last line of rank 0: epoch 1",)


def test_an_extension_that_is_built_is_no_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = _request(tmp_path, "", stall_s=1.0)
    request.folder.mkdir()
    monitor = _monitor(request)
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


@pytest.mark.slow
def test_a_rank_that_hangs_is_named_by_its_line(tmp_path: Path) -> None:
    """A call of C included. Both ranks have to start within `stall_s`, on a busy machine too."""
    script = "import time\ndef load_rows():\n    time.sleep(10_000)\nload_rows()\n"
    request = _request(tmp_path, script, stall_s=20.0)
    failure = launch(request).failure
    assert failure is not None and failure.kind == "hang"
    assert [f"rank {rank} is in load_rows ({tmp_path}/train.py, line 3)" for rank in range(2)] == list(failure.evidence)


def test_a_suspended_rank_and_one_that_waits_for_a_build_are_named(tmp_path: Path) -> None:
    request = _request(tmp_path, "", stall_s=1.0)
    request.folder.mkdir()
    with subprocess.Popen(["sleep", "60"]) as suspended:
        suspended.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, suspended.pid, os.WSTOPPED)
        for rank, pid in ((0, suspended.pid), (1, os.getpid())):
            event = {"time": time.monotonic(), "rank": rank, "pid": pid, "host": socket.gethostname()}
            lock = {"waits_for": "/cache/cpu_adam/lock" if rank else ""}
            (request.folder / f"rank{rank}.jsonl").write_text(json.dumps(event | lock) + "\n")
        monitor = _monitor(request)
        monitor.look()
        monitor.records.heard_at -= 10.0
        failure = monitor.abort_reason()
        suspended.kill()
    assert monitor.outcome(0, None, stopped=True).warnings == ("rank 0 was suspended (SIGSTOP)",)  # at once
    assert failure is not None and failure.evidence == (
        "rank 0 was suspended (SIGSTOP)",
        "rank 1 waits until another process has built cpu_adam (/cache/cpu_adam/lock)",
    )
