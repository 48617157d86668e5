"""Processes of a command that are observed: the command runs as it would, and its ranks leave output and events."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ds_advise.probes.real_run.environment import Settings, observed_environment
from ds_advise.probes.real_run.trainer import date_back

PRINTS = """
import json, os, sys
sys.stderr.write("to stderr")
print(json.dumps([sys.argv, sys.path[0], __name__, __file__, os.environ.get("GIVEN")]))
"""


def observe(tmp_path: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The words, whose records go to the folder `log`. Variables for ranks on other nodes: GIVEN."""
    settings = Settings(folder=str(tmp_path / "log"), variables={"GIVEN": "a=b"})
    environment = observed_environment(settings, os.environ | variables)
    return subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900, check=False
    )


def as_rank(tmp_path: Path, *words: str, code: int = 0, **variables: str) -> tuple[str, list[dict[str, Any]]]:
    """(what rank 3 printed, its events)."""
    done = observe(tmp_path, sys.executable, *words, RANK="3", **variables)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    return (tmp_path / "log" / "rank3.log").read_text(), events(tmp_path, 3)


def events(tmp_path: Path, rank: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "log" / f"rank{rank}.jsonl").read_text().splitlines()]


def told(notes: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    """The beginning and the end of a rank."""
    return [(name, note[name]) for note in notes for name in ("rank", "end", "exit") if name in note]


def test_a_script_runs_as_without_observation(tmp_path: Path) -> None:
    """The same argv, sys.path[0] and __main__; `sitecustomize` of the user's own environment still runs."""
    (tmp_path / "below").mkdir()
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import os\nos.environ['GIVEN'] += ' and own'")
    (tmp_path / "below" / "train.py").write_text(PRINTS)
    printed, notes = as_rank(tmp_path, "below/train.py", "--", "--x", PYTHONPATH=str(tmp_path / "own"))
    assert "to stderr" in printed
    assert json.loads(printed[printed.index("[") :]) == [
        ["below/train.py", "--", "--x"],
        str(tmp_path / "below"),
        "__main__",
        str(tmp_path / "below" / "train.py"),
        "a=b and own",
    ]
    assert told(notes) == [("rank", 3), ("end", 0)]


def test_only_ranks_are_recorded(tmp_path: Path) -> None:
    """A launcher with RANK, the number of its node, is none, and neither are the processes that a rank starts."""
    (tmp_path / "train.py").write_text(
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'print(1)'])\nsys.exit(7)"
    )
    words = ["-m", "torch.distributed.run", "--nproc_per_node", "1", "--master_port", "0", "train.py"]
    done = observe(tmp_path, sys.executable, *words, RANK="5", WORLD_SIZE="1")
    assert done.returncode == 1 and "exitcode  : 7" in done.stderr
    assert {path.name for path in (tmp_path / "log").iterdir()} == {"rank0.jsonl", "rank0.log"}
    assert (tmp_path / "log" / "rank0.log").read_text() == "1\n"
    assert [event["exit"] for event in events(tmp_path, 0) if "exit" in event] == [7]


@pytest.mark.parametrize(
    ("body", "code", "last"),
    [
        ("raise SystemExit(7)", 7, {"end": 0}),
        ("open('/dev/full', 'w').write('x' * 10**6)", 1, {"errno": 28, "type": "OSError"}),
        ("raise ValueError('a\\n b')", 1, {"message": "a b", "type": "ValueError", "errno": None}),
        ("import sys\nsys.excepthook = lambda *_: None\nraise ValueError", 1, {"type": "ValueError"}),
    ],
)
def test_the_end_of_a_script_is_recorded(tmp_path: Path, body: str, code: int, last: dict[str, Any]) -> None:
    """Exit code and traceback are the script's own; the error is noted with its number."""
    (tmp_path / "train.py").write_text(body)
    printed, notes = as_rank(tmp_path, "train.py", code=code)
    assert last.items() <= (notes[-1].get("error") or notes[-1]).items()
    assert ("Traceback" in printed) is (code == 1 and "excepthook" not in body)


PLAIN = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo", init_method="file://" + __file__ + ".store", rank=0, world_size=1)
model = DistributedDataParallel(torch.nn.Linear(2, 2))
print(tuple(model(torch.zeros(1, 2)).shape))
"""


def test_torchs_own_data_parallelism_is_noted_and_trains_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PLAIN)
    printed, notes = as_rank(tmp_path, "train.py")
    assert "(1, 2)" in printed
    assert [(note["plain"], note["takes_config"]) for note in notes if "plain" in note] == [
        ("DistributedDataParallel", False)
    ]


def test_an_abort_after_the_end_of_the_script_is_ignored(tmp_path: Path) -> None:
    """Threads of gloo now and then abort the finalization of Python. One before the end is reported."""
    text = "import ctypes, os, sys\nlibc = ctypes.CDLL(None)\n"
    (tmp_path / "late.py").write_text(text + "libc.__cxa_atexit(libc.abort, None, None)")
    (tmp_path / "early.py").write_text(text + "libc.abort()")
    words = [sys.executable, "-m", "ds_advise.probes.real_run.supervisor", str(os.getpid()), sys.executable]
    assert observe(tmp_path, *words, "late.py", RANK="3").returncode == 0
    assert observe(tmp_path, *words, "early.py", RANK="4").returncode == -6
    assert told(events(tmp_path, 3)) == [("rank", 3), ("end", 0), ("exit", 0)]
    assert told(events(tmp_path, 4)) == [("rank", 4), ("exit", -6)]


@pytest.mark.parametrize("case", ["full disk", "no folder"])
def test_records_that_cannot_be_written_do_not_matter(tmp_path: Path, case: str) -> None:
    """The script runs to its end; without a folder its output goes where it would go without the observation."""
    (tmp_path / "train.py").write_text("print('done')")
    if case == "full disk":
        (tmp_path / "log").mkdir()
        (tmp_path / "log" / "rank3.jsonl").symlink_to("/dev/full")
    else:
        (tmp_path / "log").touch()
    done = observe(tmp_path, sys.executable, "train.py", RANK="3")
    output = done.stdout if case == "no folder" else (tmp_path / "log" / "rank3.log").read_text()
    assert (done.returncode, output) == (0, "done\n"), done.stderr


def test_the_trainer_keeps_new_checkpoints_where_earlier_ones_are_from_the_future(tmp_path: Path) -> None:
    """A clock that was set back, or a folder of another machine: the Trainer removes those with the oldest times."""
    from transformers.trainer_utils import rotate_checkpoints

    future = time.time() + 10_000
    for step in (4, 8):
        (tmp_path / f"checkpoint-{step}").mkdir()
        os.utime(tmp_path / f"checkpoint-{step}", (future + step, future + step))
    date_back(tmp_path)
    (tmp_path / "checkpoint-12").mkdir()
    rotate_checkpoints(output_dir=str(tmp_path), save_total_limit=2, use_mtime=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-12", "checkpoint-8"]
