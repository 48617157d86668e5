"""The lock on an extension that is compiled: it lives as long as its owner, in whatever container that is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ds_advise.probes.real_run import extension_lock

OWNER = """
import importlib.util, os, sys, time, types
torch = importlib.util.find_spec("torch").submodule_search_locations[0]
spec = importlib.util.spec_from_file_location("torch.utils.file_baton", torch + "/utils/file_baton.py")
baton = importlib.util.module_from_spec(spec)
spec.loader.exec_module(baton)
sys.modules |= {"torch": types.ModuleType("torch"), "torch.utils": types.ModuleType("torch.utils")}
sys.modules["torch.utils"].file_baton = baton  # torch's own lock, without the rest of torch
from ds_advise.probes.real_run import extension_lock
os.getpid = lambda: int(sys.argv[2])
extension_lock.install(lambda event: None)
lock = baton.FileBaton(sys.argv[1])
print(lock.try_acquire(), flush=True)
sys.stdin.readline()
lock.release()
"""


@contextmanager
def owner(lock: Path, number: int = 1) -> Iterator[tuple[subprocess.Popen[str], bool]]:
    """A process that tries to take the lock, and whose number is `number`, as in a container of its own; and whether it
    has it."""
    command = [sys.executable, "-c", OWNER, str(lock), str(number)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline() == "True\n"
        finally:
            process.kill()


def number_of_no_process() -> int:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


@pytest.mark.parametrize("number", [os.getpid(), number_of_no_process()], ids=["a living one", "none"])
def test_a_lock_lives_as_long_as_its_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Whichever process here has its owner's number; another program's lock is left alone."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    lock, foreign = (tmp_path / name / "lock" for name in ("ours", "foreign"))
    lock.parent.mkdir()
    foreign.parent.mkdir()
    foreign.touch()
    with owner(lock, number) as (process, has_it):
        assert has_it
        extension_lock.remove_abandoned()
        assert lock.exists()
        with owner(lock) as (_, another_has_it):
            assert not another_has_it
        process.kill()
        process.wait()
        assert lock.exists()
        with owner(lock) as (another, another_has_it):
            assert another_has_it
            another.communicate("\n")
            assert not lock.exists(), "released"
    assert foreign.exists() and [path.name for path in lock.parent.iterdir()] == []


def test_abandoned_locks_are_found_in_torchs_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no other is named it is below the user's cache, one folder for each Python and device."""
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    lock = tmp_path / "torch_extensions/py311_cpu/ours/lock"
    lock.parent.mkdir(parents=True)
    with owner(lock):
        extension_lock.remove_abandoned()
        assert lock.exists()
    extension_lock.remove_abandoned()
    assert not lock.exists()
