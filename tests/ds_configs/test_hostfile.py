"""The reader of hostfiles against DeepSpeed's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ds_advise.ds_configs.launch_commands import read_hostfile
from ds_advise.estimators.errors import ConfigFileError

TAKEN = (
    "# two\n\nworker-0 slots=8\nuser@10.0.0.2 slots=4 # half\n",
    "worker-0 slots=8,max_slots=8\r\n  worker-1\tslots=8x",
    "worker-0 slots=0",
    "worker-0 slots=16384",
)
REFUSED = ("", "# none\n", "worker-0\n", "worker-0 slots=many\n", "a slots=1\na slots=2\n", "a slots = 1", "\x00\x01")


def test_hostfiles_are_read_as_deepspeeds_launcher_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Comments, text after the number of slots, and everything that it refuses."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    from deepspeed.launcher.runner import fetch_hostfile

    file = tmp_path / "hosts"
    for text in TAKEN:
        file.write_bytes(text.encode())
        assert read_hostfile(file) == fetch_hostfile(str(file)), text
    for text in REFUSED:
        file.write_bytes(text.encode())
        with pytest.raises(ValueError):
            fetch_hostfile(str(file))
        with pytest.raises(ConfigFileError):
            read_hostfile(file)


@pytest.mark.parametrize("text", ["-oProxyCommand=sh slots=1\n", "a;b slots=1\n", "x slots=1\n" + "y" * 2_000_000])
def test_names_that_ssh_could_misread_are_refused(tmp_path: Path, text: str) -> None:
    """And so is a file that is no hostfile at all."""
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(ConfigFileError):
        read_hostfile(tmp_path / "hosts")


def test_a_hostfile_that_cannot_be_read_is_one_error(tmp_path: Path) -> None:
    """Missing, a folder, a name that no file has, a pipe (which is not waited for), a device."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "none", tmp_path, Path("a\0b"), tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ConfigFileError):
            read_hostfile(path)
