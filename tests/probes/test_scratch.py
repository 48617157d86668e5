"""Folders for one run: gone at its end, and after a kill with the next run."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ds_advise.probes.scratch import scratch


def test_a_folder_lives_as_long_as_its_run(tmp_path: Path) -> None:
    """It is removed with all its content, however the run ends."""
    with pytest.raises(RuntimeError), scratch("probe", tmp_path) as folder:
        (folder / "below").mkdir()
        (folder / "below/file").touch()
        assert [path.name for path in tmp_path.iterdir()] == [folder.name] and folder.name.startswith(
            "ds-advise-probe-"
        )
        raise RuntimeError
    assert not list(tmp_path.iterdir())
    with pytest.raises(OSError, match="nowhere"), scratch("probe", tmp_path / "nowhere"):
        pass


def test_an_interrupt_while_the_folder_is_made_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while Python finds out whether it may write where temporary files go."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def once_interrupted(module: Any, name: str) -> Any:
        make = getattr(module, name)

        def call(*arguments: Any, **options: Any) -> Any:
            setattr(module, name, make)
            made = make(*arguments, **options)
            os.kill(os.getpid(), signal.SIGINT)
            return made

        return call

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    gc.disable()  # Python discards an interrupt in a callback of the collector, and hypothesis has one
    try:
        for module, name in ((tempfile, "mkdtemp"), (os, "open")):
            with monkeypatch.context() as patch:
                patch.setattr(module, name, once_interrupted(module, name))
                with pytest.raises(KeyboardInterrupt), scratch("probe"):
                    raise AssertionError("the folder is used")
            assert not list(tmp_path.iterdir())
            tempfile.tempdir = None
    finally:
        gc.enable()
        signal.signal(signal.SIGINT, before)
    assert signal.getsignal(signal.SIGINT) is before


@contextmanager
def another_run(where: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that has a folder, which is old enough to be judged."""
    script = (
        f"import pathlib, time\nfrom ds_advise.probes.scratch import scratch\n"
        f"with scratch('bench', {str(where)!r}) as folder:\n    print(folder, flush=True)\n    time.sleep(3600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            folder = Path(process.stdout.readline().strip())
            os.utime(folder / "owner", (0, 0))
            yield process, folder
        finally:
            process.kill()


def test_leftovers_of_a_killed_run_are_removed_and_live_folders_kept(tmp_path: Path) -> None:
    """Also a folder that is not ours stays, and one so new that its owner may not hold it yet."""
    foreign, new, future = (tmp_path / f"ds-advise-{name}" for name in ("foreign", "new", "future"))
    for folder in (foreign, new, future):
        folder.mkdir()
    (new / "owner").touch()
    (future / "owner").touch()
    os.utime(future / "owner", (4e9, 4e9))  # by a clock that has been set back since
    with another_run(tmp_path) as (process, theirs):
        with scratch("probe", tmp_path):
            assert theirs.exists() and not future.exists()
        process.send_signal(signal.SIGKILL)
        process.wait()
        with scratch("probe", tmp_path):
            assert not theirs.exists() and foreign.exists() and new.exists()
