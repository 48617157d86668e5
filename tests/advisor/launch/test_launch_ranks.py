"""What holds the ranks, and what their records contain; launches without DeepSpeed."""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from ds_advise.advisor.launch.request import LaunchOutcome, LaunchRequest
from ds_advise.advisor.launch.run import launch
from ds_advise.estimators.errors import ConfigFileError
from ds_advise.probes.real_run.sampling import Extension, MemorySampler
from ds_advise.probes.real_run.supervisor import free_abandoned_buffers
from ds_advise.probes.real_run.trainer import STOP_FILE
from ds_advise.probes.scratch import signals_collected

from tests.advisor.launch.requests import request_of, step_event, write_events


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


def test_records_are_read_as_they_grow(tmp_path: Path) -> None:
    """Steps that all ranks completed, mean losses, tokens of the whole job, the slowest rank's step; a half line
    waits."""
    records = write_events(
        tmp_path,
        [step_event(1, 10.0), step_event(2, 11.0, 0.5), step_event(3, 12.0)],
        [step_event(1, 10.0), step_event(2, 12.0)],
    )
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


@pytest.mark.parametrize("is_rebuilt", [False, True])
@pytest.mark.parametrize(("name", "counts"), [("cc1plus", False), ("python", True)])
def test_compilers_do_not_count_as_the_training(name: str, counts: bool, is_rebuilt: bool, tmp_path: Path) -> None:
    """What builds an extension at its first use may take gigabytes, once."""
    program = (
        f"import ctypes, time; ctypes.CDLL(None).prctl(15, {name.encode()!r}); held = b'x' * (100 << 20)\n"
        "print(flush=True); time.sleep(600)"
    )

    def sampled() -> MemorySampler:
        sampler = MemorySampler(os.getpid(), gpus=False)
        sampler.sample()
        return sampler

    folder = tmp_path / "cpu_adam"
    folder.mkdir()
    (folder / "build.ninja").touch()
    if is_rebuilt:
        (folder / "cpu_adam.so").touch()
        log = "# ninja log v7\n0\t71000\t17\tcpu_adam.o\tad1f\n71000\t92788\t17\tcpu_adam.so\t5c09\n"
        (folder / ".ninja_log").write_text(log)
    before_bytes = sampled().host_bytes
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=folder) as process:
        assert process.stdout is not None
        process.stdout.readline()
        sample = sampled()
        (folder / "cpu_adam.so").unlink(missing_ok=True)  # as the linker does
        sample.extension and sample._read()
        process.kill()
    assert (sample.host_bytes - before_bytes > 50 << 20) == counts
    assert sample.compiles != counts
    assert sample.extension == (None if counts else Extension(folder, is_rebuilt, 92.788 if is_rebuilt else None))


def test_a_memory_limit_is_named_as_such(tmp_path: Path) -> None:
    """A rank whose own limit (rlimit) is reached: host memory, and nobody waits for the other."""
    outcome = launch(
        request_of(
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
        launch(request_of(tmp_path, ""))


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
    request = request_of(tmp_path, STEPPING, str(tmp_path / "log"), ranks=1)
    stop = request.folder / STOP_FILE

    def hang_up() -> None:
        while not (request.folder / "rank0.jsonl").exists():
            time.sleep(0.05)
        with (request.folder / "rank0.jsonl").open("a") as stream:
            stream.write(json.dumps({"time": 0.0, "trainer": {"total_steps": 10**6, "output_dir": "/"}}) + "\n")
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


def test_a_second_signal_ends_what_ignores_the_first(tmp_path: Path) -> None:
    """A resumed training goes on until it is stopped. A script that goes on after SIGTERM is ended by the next one,
    with all its processes."""
    asked = tmp_path / "asked to stop"
    script = f"import signal\nsignal.signal(signal.SIGTERM, lambda *_: open({str(asked)!r}, 'w'))\n" + STEPPING
    request = request_of(tmp_path, script, str(tmp_path / "log"), ranks=1, resumes_after=4)
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
    request = request_of(tmp_path, "import time\ntime.sleep(10_000)\n")
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
