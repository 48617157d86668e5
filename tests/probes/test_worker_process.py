"""A worker ends in time, with all that it started, and the end of what it printed is kept."""

from __future__ import annotations

import os
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest
from ds_advise.probes.worker_process import WorkerTimeoutError, run_worker


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / f"worker-{uuid.uuid4()}"
    folder.mkdir()
    return folder


def run(folder: Path, code: str, *, request: bytes = b"", timeout_s: float = 60) -> tuple[int, str, list[str]]:
    """Exit status, what was printed, and the phases that were reported. `folder` is a new one, with a name of its own:
    what stands in it or knows its name is killed."""
    phases: list[str] = []
    status, printed = run_worker(
        [sys.executable, "-c", code, str(folder)],
        request=request,
        folder=folder,
        environment=os.environ | {"SCRATCH": str(folder)},
        working_folder=folder,
        timeout_s=timeout_s,
        on_progress=phases.append,
    )
    return status, printed, phases


def below(folder: Path) -> list[psutil.Process]:
    """Processes whose current folder is the worker's."""
    found = []
    for process in psutil.process_iter(["cwd"]):
        if process.info["cwd"] and Path(process.info["cwd"]).is_relative_to(folder):
            found.append(process)
    return found


def test_the_request_is_read_and_both_streams_are_kept(folder: Path) -> None:
    code = "import sys; print(len(sys.stdin.buffer.read())); print('to stderr', file=sys.stderr); sys.exit(3)"
    status, printed, phases = run(folder, code, request=b"x" * 300_000)
    assert (status, sorted(printed.split("\n"))) == (3, ["", "300000", "to stderr"])
    assert phases[0] == "start"


def test_a_worker_that_reads_no_request_shows_its_own_status(folder: Path) -> None:
    assert run(folder, "import os; os.close(0); os._exit(5)", request=b"x" * 3_000_000)[0] == 5


def test_a_phase_that_is_being_written_is_not_reported(folder: Path) -> None:
    (folder / "phase").touch()
    assert run(folder, "import time; time.sleep(0.5)")[2] == ["start"]


def test_a_signal_is_a_negative_status(folder: Path) -> None:
    assert run(folder, "import os; os.kill(os.getpid(), 11)")[0] == -11


def test_the_end_of_a_long_output_is_kept(folder: Path) -> None:
    code = "for number in range(200_000): print(number, 'x' * 90)\nprint('the error')"
    _, printed, _ = run(folder, code)
    assert printed.endswith("the error\n") and "199999 x" in printed
    assert len(printed) <= 100_000 and "\n100 x" not in printed


def test_phases_are_reported(folder: Path) -> None:
    code = "import sys, time; open(sys.argv[1] + '/phase', 'w').write('backward'); time.sleep(1)"
    assert run(folder, code)[2][-1] == "backward"


def test_a_worker_is_ended_after_its_time(folder: Path) -> None:
    code = """
import pathlib, sys, time
pathlib.Path(sys.argv[1], 'phase').write_text('forward')
print('begun', flush=True)
time.sleep(1000)
"""
    started = time.monotonic()
    with pytest.raises(WorkerTimeoutError) as caught:
        run(folder, code, timeout_s=3)
    assert 3 <= time.monotonic() - started < 20
    assert (caught.value.phase, caught.value.printed) == ("forward", "begun\n")
    assert not below(folder)


@pytest.mark.parametrize("status", [0, None], ids=["after its end", "after its time"])
def test_no_child_outlives_the_worker(folder: Path, status: int | None) -> None:
    """They ignore signals; some have a session of their own, left the folder, or have an empty environment."""
    code = f"""
import subprocess, sys, time
sleep = 'import signal, time; signal.signal(15, signal.SIG_IGN); print("ready", flush=True); time.sleep(1000)'
for options in ({{}}, {{'start_new_session': True, 'cwd': '/'}}, {{'start_new_session': True, 'env': {{}}}}):
    child = subprocess.Popen([sys.executable, '-c', sleep], stdout=subprocess.PIPE, **options)
    child.stdout.readline()
    print(child.pid, flush=True)
if {status is None}:
    time.sleep(1000)
"""
    if status is None:
        with pytest.raises(WorkerTimeoutError) as caught:
            run(folder, code, timeout_s=6)
        printed = caught.value.printed
    else:
        ended, printed, _ = run(folder, code)
        assert ended == status
    children = [int(line) for line in printed.split()]
    assert len(children) == 3
    assert not [pid for pid in children if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]
    assert not [each for each in below(folder) if each.status() != "zombie"]
