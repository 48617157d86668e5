"""The store of results: kept, found, forgotten; shared by processes; and never in the way when its file cannot be
used."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from ds_advise.estimators.json_form import from_json
from ds_advise.probes.machine import Machine, this_machine
from ds_advise.probes.store import Record, Store, StoreError
from ds_advise.probes.store_path import store_path

from tests.helpers import MACHINE

NOBODY = 65534


def _probe(**changes: Any) -> Record:
    return replace(
        Record(
            kind="probe",
            machine=MACHINE,
            model="abc",
            model_name="a-model",
            plan={"zero_optimization": {"stage": 2}},
            workload={"seq_len": 128},
            result={"step_s": 1.5, "losses": [1.0, None]},
            versions={"torch": "2.13"},
        ),
        **changes,
    )


def test_a_record_comes_back_whole(own_store: Path) -> None:
    """Kind, time, machine, model, plan, workload, result and versions."""
    number = Store().add(_probe())
    assert Store().find() == [replace(_probe(), made_at=Store().find()[0].made_at, id=number)]
    assert own_store.exists()
    assert from_json(Machine, json.loads(json.dumps(asdict(MACHINE)))) == MACHINE


def test_records_are_found_by_what_they_are_of_newest_first() -> None:
    """kind, machine, model and number narrow it down; limit cuts off what was added first, whatever the clock."""
    store, other = Store(), replace(MACHINE, cpu_cores=4)
    old = store.add(_probe(made_at="2026-01-01T00:00:00+00:00"))
    new = store.add(_probe(made_at="2026-03-01T00:00:00+00:00"))
    elsewhere = store.add(_probe(made_at="2026-02-01T00:00:00+00:00", machine=other, model="other"))
    bench = store.add(_probe(made_at="2025-01-01T00:00:00+00:00", kind="bench"))  # the clock has been set back

    def ids(**wanted: Any) -> list[int | None]:
        return [record.id for record in store.find(**wanted)]

    assert ids() == [bench, elsewhere, new, old]
    assert ids(kind="bench") == [bench]
    assert ids(machine=MACHINE) == [bench, new, old]
    assert ids(machine=other.key, model="other") == [elsewhere]
    assert ids(model="nothing") == ids(ids=[]) == []
    assert ids(ids=[old, bench]) == [bench, old]
    assert ids(limit=1) == [bench]


def test_forgotten_records_are_gone_and_their_numbers_are_not_used_again() -> None:
    """The removed numbers are returned; unknown numbers are no error."""
    store = Store()
    assert store.newest_number() == 0
    first, second, third = (store.add(_probe()) for _ in range(3))
    assert store.forget([third, 999]) == [third]
    assert store.newest_number() == third
    assert store.add(_probe()) == third + 1
    assert store.forget("all") == [first, second, third + 1]
    assert store.find() == []


def test_forgotten_records_take_no_space() -> None:
    """Their numbers stay known."""
    store = Store()
    for _ in range(3):
        store.add(_probe(result={"log": "x" * 2**20}))
    assert store.forget([1]) == [1] and 2 * 2**20 < store.path.stat().st_size < 3 * 2**20
    assert store.forget("all") == [2, 3] and store.path.stat().st_size < 2**16
    assert store.newest_number() == 3 and store.add(_probe()) == 4


def test_only_the_user_may_read_it(own_store: Path) -> None:
    """Folder 0700, file 0600, whatever the umask."""
    old = os.umask(0)
    try:
        Store().add(_probe())
    finally:
        os.umask(old)
    assert own_store.parent.stat().st_mode & 0o777 == 0o700
    assert own_store.stat().st_mode & 0o777 == 0o600


def test_the_folder_is_ds_advise_cache_or_the_platforms(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """DS_ADVISE_CACHE, then XDG_CACHE_HOME (on Linux)."""
    monkeypatch.setenv("DS_ADVISE_CACHE", "~/here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert store_path() == tmp_path / "here/results.sqlite"
    monkeypatch.setenv("DS_ADVISE_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert store_path() == tmp_path / "xdg/ds-advise/results.sqlite"


def test_processes_write_at_once(own_store: Path) -> None:
    """Four processes that all begin without a file lose no record."""
    program = (
        "import sys\n"
        "from ds_advise.probes.machine import Machine\n"
        "from ds_advise.probes.store import Record, Store\n"
        f"machine = Machine(**{asdict(MACHINE)!r})\n"
        "sys.stdin.readline()\n"
        "for step in range(5):\n"
        "    Store().add(Record(kind='probe', machine=machine, result={'writer': sys.argv[1], 'step': step}))\n"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", program, str(number)], stdin=subprocess.PIPE) for number in range(4)
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.close()  # all of them begin
    assert [writer.wait() for writer in writers] == [0] * 4
    written = {(record.result["writer"], record.result["step"]) for record in Store(own_store).find()}
    assert written == {(str(number), step) for number in range(4) for step in range(5)}


def _all_operations_fail(store: Store, *, but: str = "") -> list[StoreError]:
    errors = []
    for name, arguments in (("add", [_probe()]), ("find", []), ("forget", ["all"])):
        if name != but:
            with pytest.raises(StoreError) as error:
                getattr(store, name)(*arguments)
            assert str(store.path) in error.value.what and error.value.fix
            errors.append(error.value)
    return errors


def _execute(path: Path, *statement: Any) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(*statement)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (b"this is no database" * 100, "damaged"),
        (b"SQLite format 3\0" + b"\xff" * 5000, "damaged"),
        ("PRAGMA user_version = 99", "newer ds-advise"),
        ("CREATE TABLE theirs (value)", "another program"),
    ],
)
def test_an_unusable_file_is_named_and_not_changed(own_store: Path, written: bytes | str, words: str) -> None:
    """Every operation fails with the reason and a fix that names the file."""
    own_store.parent.mkdir()
    if isinstance(written, bytes):
        own_store.write_bytes(written)
    else:
        if "user_version" in written:
            Store().add(_probe())
        _execute(own_store, written)
    content = own_store.read_bytes()
    for error in _all_operations_fail(Store()):
        assert words in error.what
        assert words == "another program" or f"rm {own_store}" in error.fix
    assert own_store.read_bytes() == content


def test_a_record_that_cannot_be_read_is_damage(own_store: Path) -> None:
    """Its body is not JSON, or fields are missing."""
    store = Store()
    store.add(_probe())
    for body in ("{", "[]", "{}", '{"machine": {}}'):
        _execute(own_store, "UPDATE records SET body = ?", (body,))
        with pytest.raises(StoreError, match="damaged"):
            store.find()


def test_a_folder_or_a_pipe_in_its_place(own_store: Path) -> None:
    """It is not waited for and not removed."""
    own_store.mkdir(parents=True)
    _all_operations_fail(Store())
    own_store.rmdir()
    os.mkfifo(own_store)
    with pytest.raises(StoreError):
        Store().add(_probe())
    assert own_store.is_fifo()


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder of this test, which then runs as a user whom permissions bind (root is not)."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    was_root = os.geteuid() == 0
    if was_root:
        os.chown(folder, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    try:
        yield folder
    finally:
        if was_root:
            os.seteuid(0)
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_a_read_only_folder(unprivileged: Path) -> None:
    """Nothing can be kept there, and nothing was; a closed one cannot even be asked."""
    store = Store(unprivileged / "cache/results.sqlite")
    unprivileged.chmod(0o555)
    assert store.find() == []
    with pytest.raises(StoreError, match="cannot be stored"):
        store.add(_probe())
    unprivileged.chmod(0)
    _all_operations_fail(store)


@pytest.mark.parametrize(
    ("error", "what"),
    [
        ("database is locked", "is locked by another process"),
        ("attempt to write a readonly database", "cannot be used"),
        ("unable to open database file", "cannot be used"),
        ("database or disk is full", "cannot be written"),
        ("disk I/O error", "cannot be written"),
    ],
)
def test_a_sound_file_is_not_called_damaged(monkeypatch: pytest.MonkeyPatch, error: str, what: str) -> None:
    """Nobody is advised to remove it."""
    Store().add(_probe())

    def fail(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError(error)

    monkeypatch.setattr("ds_advise.probes.store.sqlite3.connect", fail)
    for refused in _all_operations_fail(Store()):
        assert what in refused.what and "rm " not in refused.fix


def test_a_machine_is_identified_by_its_parts_and_not_by_its_name() -> None:
    """The key follows hardware; driver and a few MiB of RAM do not matter; no host name is in it."""
    machine = this_machine()
    assert machine.key == this_machine().key
    assert machine.cpu_cores >= 1
    assert machine.ram_bytes > 2**28
    node = os.uname().nodename
    assert len(node) < 3 or node not in json.dumps(asdict(machine))
    assert replace(MACHINE, driver="580.2", ram_bytes=MACHINE.ram_bytes - 5 * 2**20).key == MACHINE.key
    changes = {"gpus": ("L4", "T4"), "cpu": "another", "cpu_cores": 4, "ram_bytes": 1, "gpu_memory_bytes": (2**34,) * 2}
    assert len({MACHINE.key, *(replace(MACHINE, **{name: value}).key for name, value in changes.items())}) == 6
