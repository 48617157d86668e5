"""The store of measurements in SQLite: probes, benchmarks, trainings and dry runs with their conditions.

One file, `results.sqlite` in the user's cache folder. Each operation opens and closes its own connection, and every
change is one transaction, so several processes may use the file. Only `forget` removes records; an unreadable file is
named in the error and not changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from ..estimators.errors import DsAdviseError
from ..estimators.json_form import from_json
from ..estimators.models.model_shape import ModelShape
from .command_line import command_line
from .machine import Machine, this_machine
from .store_path import store_path

if TYPE_CHECKING:
    from .run import Run

RecordKind = Literal["probe", "bench", "training", "dry-run"]
T = TypeVar("T")

LIBRARIES = ("torch", "deepspeed", "transformers")
"""Libraries whose versions affect a run."""

SCHEMA_VERSION = 1
"""PRAGMA user_version of the file; increases when an older ds-advise cannot read the new form."""

_APPLICATION_ID = 0x64736164
"""PRAGMA application_id ("dsad"), which identifies the file."""

_BUSY_S = 2.0
"""Time after which a file in use by another process counts as locked."""

_ELSEWHERE = "set DS_ADVISE_CACHE to another folder"

_SCHEMA = (
    # AUTOINCREMENT: the number of a removed record is never reused.
    "CREATE TABLE records (id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, made_at TEXT NOT NULL, "
    "machine_key TEXT NOT NULL, model TEXT NOT NULL, body TEXT NOT NULL)",
    "CREATE INDEX records_by_subject ON records (kind, machine_key, model)",
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)


class StoreError(DsAdviseError):
    """The file of stored results cannot be used."""


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def model_key(model: ModelShape) -> str:
    """Twelve hexadecimal digits, equal for models of the same class and tensors, regardless of name and path."""
    lines = [model.model_type, model.architecture, str(model.num_labels), str(model.encoder_len_fixed)]
    lines += [f"{tensor.name} {tensor.shape} {count}" for tensor, count in model.tensor_counts]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One measurement; also the JSON form of `bench` and `history`."""

    id: int | None = None
    """Its number in the store; null if it could not be stored."""
    kind: RecordKind
    made_at: str = field(default_factory=now)
    """UTC, ISO 8601."""
    machine: Machine
    machine_key: str = ""
    """Equal for machines of the same kind; computed from the machine."""
    model: str = ""
    """Identifier of the model (`model_key`); empty for a benchmark."""
    model_name: str = ""
    """Name of the model."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """The whole ds_config of the run."""
    workload: Mapping[str, Any] = field(default_factory=dict)
    """The workload, and other conditions of the run."""
    result: Mapping[str, Any] = field(default_factory=dict)
    """The result, in a form specific to the kind."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of torch, DeepSpeed and transformers."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "machine_key", self.machine.key)

    @property
    def age_s(self) -> float:
        """Age in seconds; never negative, even if the clock was set back."""
        return max(0.0, (datetime.now(UTC) - datetime.fromisoformat(self.made_at)).total_seconds())

    @property
    def ran_on_gpus(self) -> bool:
        return self.result.get("device") == "cuda" and bool(self.machine.gpus)

    @property
    def body(self) -> dict[str, Any]:
        """The fields that have no column."""
        names = ("model_name", "plan", "workload", "result", "versions")
        return {"machine": asdict(self.machine), **{name: getattr(self, name) for name in names}}


def build_record(
    run: Run,
    kind: RecordKind,
    result: Mapping[str, Any],
    *,
    config: Mapping[str, Any] | None = None,
    **conditions: Any,
) -> Record:
    """A record of a run's measurement on this machine, made now. config: the run's configuration if more of it is known
    than the given one with its batch sizes. conditions: stored with the workload."""
    name = run.model_name or (run.shape.name if run.shape is not None else "")
    return Record(
        kind=kind,
        machine=this_machine(),
        model="" if run.shape is None else model_key(run.shape),
        # The last part of a path is a name; the rest is a private folder.
        model_name=Path(name).name if ".py:" in name or Path(name).exists() else name,
        plan=dict(run.config_with_batch if config is None else config),
        workload={**stored_workload(run), "command_line": command_line(), **conditions},
        result=result,
        versions={library: version(library) for library in LIBRARIES},
    )


def stored_workload(run: Run) -> dict[str, Any]:
    """A run's workload for a record, including checkpointing, which a ds_config does not contain."""
    return {
        **asdict(run.workload),
        "gradient_checkpointing": run.gradient_checkpointing,
        "cpu_checkpointing": run.cpu_checkpointing,
    }


class Store:
    """The records in one file, which the first `add` creates.

    Every method raises StoreError if the file is locked for longer than 2 s, unreadable, unwritable, damaged, or of
    another program or a newer ds-advise.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path if path is not None else store_path()

    def add(self, record: Record) -> int:
        """Store a record; returns its number."""
        body = json.dumps(record.body)
        self._create()
        with self._open(writing=True) as connection:
            cursor = connection.execute(
                "INSERT INTO records (kind, made_at, machine_key, model, body) VALUES (?, ?, ?, ?, ?)",
                (record.kind, record.made_at, record.machine_key, record.model, body),
            )
            assert cursor.lastrowid is not None, "an INSERT has a row"
            return cursor.lastrowid

    def find(
        self,
        *,
        kind: RecordKind | None = None,
        machine: Machine | str | None = None,
        model: str | None = None,
        question: str | None = None,
        ids: Collection[int] | None = None,
        limit: int | None = None,
    ) -> list[Record]:
        """The matching records, the latest first. machine: a machine or its key. question: the condition "question" of
        a dry run (`build_record`)."""
        if not self._has_content():
            return []
        machine_key = machine.key if isinstance(machine, Machine) else machine
        columns = {"kind": kind, "machine_key": machine_key, "model": model}
        conditions = [f"{column} = :{column}" for column, value in columns.items() if value is not None]
        if question is not None:
            conditions.append("json_extract(body, '$.workload.question') = :question")
        if ids is not None:
            conditions.append(f"id IN ({', '.join(str(int(number)) for number in ids)})")
        where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
        with self._open() as connection:
            rows = connection.execute(
                f"SELECT id, kind, made_at, model, body FROM records {where}ORDER BY id DESC LIMIT :limit",
                {**columns, "question": question, "limit": -1 if limit is None else limit},
            ).fetchall()
            return [_record(*row) for row in rows]

    def forget(self, ids: Collection[int] | Literal["all"]) -> list[int]:
        """Remove records; returns the numbers of those that existed."""
        if not self._has_content():
            return []
        where = "" if ids == "all" else f" WHERE id IN ({', '.join(str(int(number)) for number in ids)})"
        with self._open(writing=True) as connection:
            found = [number for (number,) in connection.execute(f"SELECT id FROM records{where} ORDER BY id")]
            connection.execute(f"DELETE FROM records{where}")
        if found:
            self._shrink()
        return found

    def _shrink(self) -> None:
        """Return the space of removed records to the file system. A file that another process uses, or a full disk,
        keeps it for later records."""
        with (
            contextlib.suppress(sqlite3.Error),
            contextlib.closing(sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None)) as connection,
        ):
            connection.execute("VACUUM")

    def newest_number(self) -> int:
        """The largest number that a record was given, also of a removed one; 0 without any. All numbers up to it were
        given."""
        if not self._has_content():
            return 0
        with self._open() as connection:
            found = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'records'").fetchone()
            return int(found[0]) if found else 0

    def _has_content(self) -> bool:
        try:
            return self.path.stat().st_size > 0
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self._unusable(f"cannot be read ({error.strerror})", f"make it readable, or {_ELSEWHERE}") from None

    def _create(self) -> None:
        """Create the folder and an empty file, readable by the user only, if they do not exist."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # O_NONBLOCK: a pipe of this name must not block; `_open` refuses it.
            os.close(os.open(self.path, os.O_CREAT | os.O_RDONLY | os.O_NONBLOCK, 0o600))
        except OSError as error:
            raise StoreError(
                f"results cannot be stored in {self.path} ({error.strerror})",
                why="earlier measurements improve the answers",
                fix="make the folder writable, or set DS_ADVISE_CACHE to another one",
            ) from None

    @contextlib.contextmanager
    def _open(self, *, writing: bool = False) -> Iterator[sqlite3.Connection]:
        """A connection inside a transaction, which is rolled back on an error."""
        if not self.path.is_file():
            raise self._unusable("is not a file")
        try:
            with contextlib.closing(sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None)) as connection:
                # IMMEDIATE: SQLite refuses at once to upgrade a reader's lock while another process writes.
                connection.execute("BEGIN IMMEDIATE" if writing else "BEGIN")
                try:
                    self._check(connection)
                    yield connection
                except BaseException:
                    with contextlib.suppress(sqlite3.Error):  # a full disk has already ended the transaction
                        connection.execute("ROLLBACK")
                    raise
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._failed(error) from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:  # the body was not written by `add`
            raise self._damaged(f"{type(error).__name__}: {error}") from None

    def _check(self, connection: sqlite3.Connection) -> None:
        """Refuse a file of another program or a newer ds-advise; create the tables in a new file."""
        ((version,),) = connection.execute("PRAGMA user_version")
        ((application,),) = connection.execute("PRAGMA application_id")
        if application == _APPLICATION_ID:
            if version > SCHEMA_VERSION:
                raise self._unusable(
                    f"was written by a newer ds-advise (format {version})",
                    f"update ds-advise, or remove the file: rm {self.path}",
                    why=f"this one reads formats up to {SCHEMA_VERSION}",
                )
            return
        ((tables,),) = connection.execute("SELECT count(*) FROM sqlite_master")
        if tables or version:
            raise self._unusable("is another program's database")
        for statement in _SCHEMA:
            connection.execute(statement)

    def _failed(self, error: sqlite3.Error) -> StoreError:
        text = str(error)
        if "locked" in text:
            why = f"it was locked for {_BUSY_S:g} s"
            return self._unusable("is locked by another process", "end that process, or try again", why=why)
        if "readonly" in text or "unable to open" in text:
            return self._unusable(f"cannot be used: {text}", f"make the file and its folder writable, or {_ELSEWHERE}")
        if "full" in text or "I/O" in text:
            return self._unusable(f"cannot be written: {text}", f"free some space, or {_ELSEWHERE}")
        return self._damaged(text)

    def _damaged(self, text: str) -> StoreError:
        why = "earlier measurements cannot be read"
        return self._unusable(f"is damaged: {text}", f"remove it: rm {self.path}", why=why)

    def _unusable(
        self, what: str, fix: str = f"remove it, or {_ELSEWHERE}", *, why: str = "results are stored there"
    ) -> StoreError:
        return StoreError(f"{self.path} {what}", why=why, fix=fix)


def _record(number: int, kind: RecordKind, made_at: str, model: str, body: str) -> Record:
    values = json.loads(body)
    return Record(
        id=number, kind=kind, made_at=made_at, model=model, machine=from_json(Machine, values.pop("machine")), **values
    )


def try_store(action: Callable[[Store], T], otherwise: T) -> T:
    """The result of `action`; `otherwise`, after a warning, if the store cannot be used: measurements and advice do not
    depend on it."""
    try:
        return action(Store())
    except StoreError as error:
        line = f"ds-advise: {error.what}: {error.why}; {error.fix}; continuing without it"
        _print_once(line)
        return otherwise


@cache
def _print_once(line: str) -> None:
    print(line, file=sys.stderr)
