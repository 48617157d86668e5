"""Commands whose ranks are watched, here stand-ins that load no library: their environment, reported failures, and
Ctrl-C at any moment, which leaves nothing."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ds_advise.advisor.question.this_machine import cpu_cluster
from ds_advise.advisor.text.view import View
from ds_advise.advisor.verification.run_view import RunView
from ds_advise.estimators.errors import DsAdviseError
from ds_advise.probes.machine import search_path
from ds_advise.probes.real_run.environment import Settings, observed_environment
from ds_advise.probes.real_run.events import EventLogReader, description
from ds_advise.probes.real_run.ranks import Rank, Ranks
from ds_advise.probes.real_run.result import RankFailure
from ds_advise.probes.real_run.sampling import MemorySampler
from ds_advise.probes.real_run.torchrun import with_launcher
from ds_advise.probes.real_run.watch import watch

from tests.helpers import left_lock, processes_of

LAUNCHER = """
import os, subprocess, sys, time
ranks = []
for rank in range(int(sys.argv[1])):
    time.sleep(rank * float(os.environ.get("SECONDS_BETWEEN", 0)))
    ranks.append(subprocess.Popen([sys.executable, *sys.argv[2:]], env={**os.environ, "RANK": str(rank)}))
while not any(rank.poll() for rank in ranks) and any(rank.poll() is None for rank in ranks):
    time.sleep(0.05)
sys.exit(max(abs(rank.poll() or 0) for rank in ranks))
"""
RANK = """
import json, os, subprocess, sys, time
from ds_advise.probes.real_run.environment import own_settings
folder, rank = own_settings().folder, os.environ["RANK"]
log = open(f"{folder}/rank{rank}.jsonl", "a", buffering=1)
def note(**values):
    log.write(json.dumps({"time": time.monotonic(), **values}) + "\\n")
"""
PHASES = ("load", "initialize", "step 1")
SLOW = f"""
compiler = subprocess.Popen(["sh", "-c", f"sleep 3600; : {{folder}}"], process_group=0)  # as ninja starts it
for phase in {PHASES!r}:
    note(phase=phase)
    time.sleep(0.15)
time.sleep(3600)
"""
PROBE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job begins with it ignored
from pathlib import Path
from ds_advise.probes.real_run import run
from ds_advise.estimators.hardware import Cluster
from ds_advise.estimators.gpu_catalogue import gpu_of_memory
from ds_advise.probes.run import Run
run.write_folder = lambda *_, **__: None
run.command_words = lambda *_, **__: (sys.executable, sys.argv[2], "2", sys.argv[3], "launcher")
config = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": sys.argv[1]}}}
cluster = Cluster(nodes=1, gpus_per_node=2, gpu=gpu_of_memory(24))
print("ready", flush=True)
from ds_advise.probes.real_run import command
command.with_launcher = lambda words, *_, **__: list(words)
run.probe(Run(config=config, model={}, cluster=cluster), device="cpu")
"""


def watched(tmp_path: Path, body: str, ranks: int = 1, **limits: Any) -> tuple[list[Rank], RankFailure | None]:
    """Ranks that run the code, started by a launcher."""
    (tmp_path / "launcher.py").write_text(LAUNCHER)
    (tmp_path / "rank.py").write_text(RANK + body)
    folder = tmp_path / "records"
    folder.mkdir()
    found, failure, _ = watch(
        [sys.executable, "launcher.py", str(ranks), "rank.py"],
        folder,
        environment=observed_environment(Settings(str(folder)), {**os.environ, "PATH": search_path()}),
        working_folder=tmp_path,
        **{"stall_s": 3600, "timeout_s": 3600} | limits,
    )
    return found, failure


def test_reports_of_all_ranks_end_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the ranks. They find the ninja of this environment, as a training in the activated one does: by
    two versions of ninja the extensions would be compiled in turns."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    ranks, failure = watched(
        tmp_path, 'note(report=os.environ["PATH"], processes=2)\ntime.sleep(3600)  # as in a collective', ranks=2
    )
    assert failure is None
    assert [rank.number for rank in ranks] == [0, 1] and ranks[0].report is not None
    assert ranks[0].report["report"].split(os.pathsep) == [str(Path(sys.executable).parent), "/usr/bin", "/bin"]
    assert not processes_of(tmp_path)


def test_a_phase_without_progress_is_a_hang(tmp_path: Path) -> None:
    """It is reported with the rank that is behind and its phase, after the time that was stated."""
    body = 'note(phase="step 1")\nif rank == "0": note(phase="step 2")\ntime.sleep(3600)'
    _, failure = watched(tmp_path, body, ranks=2, stall_s=4)
    assert failure is not None
    assert (failure.kind, failure.rank, failure.phase) == ("hang", 1, "step 1") and "4 s" in failure.message
    assert re.search(r"; rank 1 is in <module> \(\S+rank\.py, line \d+\)", failure.message)


def test_the_shown_loss_is_the_mean_of_the_ranks(tmp_path: Path) -> None:
    """Of the steps that every rank has reported, as the Trainer logs it."""
    # As ranks that have loaded a model: each is known long before its first step.
    body = "while sum(name.endswith('.jsonl') for name in os.listdir(folder)) < 2: time.sleep(0.05)\ntime.sleep(1)\n"
    body += "note(step=1, loss=6.2 + 0.2 * int(rank))\nnote(step=2, loss=5.0 + int(rank))\n"
    body += 'if rank == "0": note(step=3, loss=1.0)\ntime.sleep(2)'
    views, shown = RunView(cpu_cluster(2), None), list[View]()
    watched(tmp_path, body, ranks=2, on_progress=lambda ranks, memory: shown.append(views.view(ranks, memory)))
    assert shown[-1].first_loss == pytest.approx(6.3) and shown[-1].losses == pytest.approx((6.3, 5.5))
    assert shown[-1].loss == pytest.approx(5.5)


def test_a_rank_that_waits_for_a_foreign_build_is_named(tmp_path: Path) -> None:
    """By torch's own lock. The user sees it as it begins, before it counts as a hang."""
    lock = left_lock(tmp_path)
    body = f'from torch.utils.file_baton import FileBaton\nnote(phase="load")\nFileBaton({str(lock)!r}).wait()'
    shown: list[str] = []

    def show(ranks: Ranks, memory: MemorySampler) -> None:
        shown.append(RunView(cpu_cluster(1), None).view(ranks, memory).phase)

    _, failure = watched(tmp_path, body, stall_s=4, on_progress=show)
    assert failure is not None and failure.kind == "hang"
    assert failure.message == "rank 0 waits until cpu_adam is built, and no process of this machine builds it"
    assert failure.fix == f"`rm {lock}`, unless another machine builds it"
    assert failure.message in shown


def test_the_remedy_can_be_pasted_and_is_that_of_the_first_rank_with_one(tmp_path: Path) -> None:
    """A folder's name may have spaces."""
    lock = tmp_path / "my caches" / "cpu_adam" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    assert Ranks(tmp_path).left is None
    for number, waits_for in enumerate(("", str(lock), str(lock))):
        event = {"time": 0.0, "phase": "load", "waits_for": waits_for}
        (tmp_path / f"rank{number}.jsonl").write_text(json.dumps(event) + "\n")
    ranks = Ranks(tmp_path)
    ranks.read()
    assert ranks.left is not None and ranks.left.number == 1
    assert shlex.split(ranks.left.remedy.split("`")[1]) == ["rm", str(lock)]


def test_a_rank_that_waits_for_nobodys_build_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long before it counts as a hang. A lock that is newer than the wait is that of another machine's build."""
    monkeypatch.setattr("ds_advise.probes.real_run.ranks._STUCK_S", 2.0)
    lock = left_lock(tmp_path)
    wait = f'from torch.utils.file_baton import FileBaton\nnote(phase="load")\nFileBaton({str(lock)!r}).wait()'
    _, failure = watched(tmp_path, wait, stall_s=300)
    assert failure is not None and (failure.kind, failure.fix) == (
        "hang",
        f"`rm {lock}`, unless another machine builds it",
    )
    (tmp_path / "newer").mkdir()
    rank = Rank(EventLogReader(tmp_path / "newer"), 0, waits_at=time.monotonic() - 60.0)
    rank.latest["waits_for"] = str(lock)
    assert not rank.is_stuck and rank.remedy
    os.utime(lock, (time.time() - 90.0, time.time() - 90.0))
    assert rank.is_stuck


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        ("os.kill(os.getpid(), 9)", "killed", "rank 1 was killed by SIGKILL"),
        ("os.kill(os.getpid(), 15)", "killed", "rank 1 was killed by SIGTERM"),
        ("os.kill(os.getpid(), 19)", "stopped", "rank 1 was suspended"),
        ("time.sleep(3600)", "timeout", "not done within "),
        ("raise MemoryError", "out_of_memory", "MemoryError"),
        ("raise SystemExit(3)", "crash", "rank 1 ended with exit code 3"),
    ],
)
def test_a_lost_rank_and_a_spent_budget_end_the_job(tmp_path: Path, body: str, kind: str, message: str) -> None:
    """The other rank would wait forever. The time limit holds whatever the ranks do."""
    code = f'note(phase="step 2")\nif rank == "1": {body}\ntime.sleep(3600)'
    _, failure = watched(tmp_path, code, ranks=2, timeout_s=6 if kind == "timeout" else 3600)
    assert failure is not None and (failure.kind, failure.phase) == (kind, "step 2") and message in failure.message
    assert not processes_of(tmp_path)


@pytest.mark.parametrize(
    ("events", "message", "fix"),
    [
        ('phase="load"', "it made no DeepSpeed engine, and nothing in it takes", "deepspeed.initialize"),
        ("plain='fully_shard', takes_config=True", "it trains by torch's fully_shard, without", "name a configuration"),
        ("initialized=True", "its DeepSpeed engine was not trained", ""),
    ],
)
def test_a_command_that_ends_without_a_report_did_not_fail(tmp_path: Path, events: str, message: str, fix: str) -> None:
    """It may have trained without DeepSpeed, or have trained nothing, or not have started; what it printed is kept."""
    _, failure = watched(tmp_path, f'note({events})\nprint("so long", flush=True)')
    assert failure is not None and failure.message.startswith(message)
    assert fix in failure.fix if fix else not failure.fix
    assert (failure.kind, failure.details.strip()) == ("no_step", "so long")


def test_a_command_that_does_not_start_is_a_crash(tmp_path: Path) -> None:
    folder = tmp_path / "none"
    folder.mkdir()
    environment = observed_environment(Settings(str(folder)))
    missing = watch(
        ["no-such-launcher"], folder, environment=environment, working_folder=folder, stall_s=60, timeout_s=60
    )
    assert missing[1] is not None and "no-such-launcher: No such file" in missing[1].message


def test_the_rank_that_failed_first_is_blamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 fails because its peer is gone, which is not what happened. On a busy machine its record is read before
    the peer has one."""
    monkeypatch.setenv("SECONDS_BETWEEN", "3")
    _, failure = watched(
        tmp_path,
        'note(phase="step 2")\n'
        'message = "a reactor leaks" if rank == "1" else "Connection closed by peer [127.0.0.1]:1234"\n'
        'note(error={"type": "RuntimeError", "message": message, "details": ""})\ntime.sleep(3600)',
        ranks=2,
    )
    assert failure is not None and (failure.kind, failure.rank, failure.phase) == ("crash", 1, "step 2")
    assert failure.message == "RuntimeError: a reactor leaks"


TORCHRUN = "-m torch.distributed.run --nproc_per_node=2 --master_port=7"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("train.py --lr 1", f"{sys.executable} {TORCHRUN} train.py --lr 1"),
        ("python -u train.py", f"python {TORCHRUN} --no-python python -u train.py"),
        ("A=1 nohup python3 -m train x", f"env A=1 nohup python3 {TORCHRUN} --no-python python3 -m train x"),
        ("A=1 srun -n 2 train.py", "env A=1 srun -n 2 train.py"),
    ],
)
def test_torchrun_starts_the_ranks_of_a_script(tmp_path: Path, words: str, expected: str) -> None:
    """Where no launcher stands in front, and the program does not start its ranks itself (also in `test_launch`)."""
    assert with_launcher(words.split(), 2, folder=tmp_path, port=7) == expected.split()
    with pytest.raises(DsAdviseError, match="names no script"):
        with_launcher(["python", "-c", "0"], 2, folder=tmp_path, port=7)


@pytest.mark.parametrize("moment", ["at once", "a rank starts", "load", "step 1"])
def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """From before the first rank starts to the middle of a step: no process, no file, no swap folder."""
    temporary, disk = tmp_path / "temporary", tmp_path / "disk"
    temporary.mkdir()
    disk.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    process = probing(moment, temporary, disk)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate()
    assert process.returncode == -signal.SIGINT and error.rstrip().endswith("KeyboardInterrupt")
    assert not processes_of(tmp_path) and not list(temporary.iterdir()) and not list(disk.iterdir())


@pytest.mark.parametrize("killed_by", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_a_killed_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_by: signal.Signals
) -> None:
    """Ranks and compilers in process groups of their own are ended."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    process = probing("load", temporary, tmp_path)
    process.send_signal(killed_by)
    process.communicate()
    deadline = time.monotonic() + 900
    while processes_of(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not processes_of(tmp_path)


def probing(moment: str, temporary: Path, disk: Path) -> subprocess.Popen[str]:
    """A probe that has come to a moment; its ranks are stand-ins."""
    launcher, rank = temporary.parent / "launcher.py", temporary.parent / "rank.py"
    launcher.write_text(LAUNCHER)
    rank.write_text(RANK + SLOW)
    process = subprocess.Popen(
        [sys.executable, "-c", PROBE, str(disk), str(launcher), str(rank)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    while not has_come(moment, temporary):
        assert process.poll() is None
        time.sleep(0.01)
    return process


def has_come(moment: str, temporary: Path) -> bool:
    if moment in PHASES:
        return any(f'"{moment}"' in log.read_text() for log in temporary.glob("*/rank*.jsonl"))
    return moment == "at once" or bool(list(temporary.glob("*/rank*.log")))


def test_a_failure_before_the_first_forward_pass_is_of_the_preparation() -> None:
    """DeepSpeed had initialized: the data are read then, not the engine made."""
    rank = Rank(EventLogReader(Path("none")), 0, phase="initialize")
    assert rank.place == "initialize"
    rank.latest["initialized"] = True
    assert rank.place == "preparation"
    rank.phase = "step 1"
    assert rank.place == "step 1"


def test_the_error_of_a_loaders_worker_is_named_in_one_line() -> None:
    """With its own type and message, and without its traceback."""
    caught = "Caught ValueError in DataLoader worker process 0."
    original = 'Original Traceback (most recent call last):\n  File "x"\nValueError: bad row 306\n'
    event = description(ValueError(f"{caught}\n{original}"))
    assert event["message"] == "Caught ValueError in DataLoader worker process 0: ValueError: bad row 306"


def test_a_failed_rank_is_named_in_a_clause(tmp_path: Path) -> None:
    """It stands in front of the figures of a step."""
    error = {"type": "OutOfMemoryError", "message": "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has"}
    rank = Rank(EventLogReader(tmp_path / "rank0.jsonl"), 0, latest={"error": error})
    assert rank.obstacle == "rank 0 failed: OutOfMemoryError: CUDA out of memory"
    error["message"] = "1.5 " * 100
    assert rank.obstacle.endswith(" ...") and len(rank.obstacle) < 130


def test_the_pages_of_a_fork_count_once() -> None:
    """As those of a data loader's workers. What they write is their own."""
    script = """
import os, time
held = bytearray(os.urandom(1 << 20)) * 100
for number in range(3):
    if os.fork() == 0:
        own = bytearray(os.urandom(1 << 20)) * 10
        time.sleep(60)
        os._exit(0)
print(flush=True)
time.sleep(60)
"""
    # The ranks are the descendants of a launcher.
    launcher = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {script!r}]))"
    process = subprocess.Popen([sys.executable, "-c", launcher], stdout=subprocess.PIPE, process_group=0)
    try:
        assert process.stdout is not None and process.stdout.readline()
        sampler, deadline = MemorySampler(process.pid, gpus=False), time.monotonic() + 30
        while sampler.host_bytes < 130 << 20 and time.monotonic() < deadline:
            sampler._search_at = sampler._forks_at = sampler._sample_at = 0.0
            sampler.sample()
        assert 130 << 20 <= sampler.host_bytes < 200 << 20
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
