"""The benchmark: really run on the CPU; what cannot be measured has a reason; nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from ds_advise.advisor.cli.main import run
from ds_advise.estimators.errors import ClusterError
from ds_advise.estimators.hardware import Gpu
from ds_advise.estimators.json_form import from_json, to_json
from ds_advise.probes import benchmark as bench_run
from ds_advise.probes.benchmark import Task, run_benchmark
from ds_advise.probes.benchmark_rank import MAX_SAMPLES, MIN_SAMPLES, Stopwatch, measure_collectives
from ds_advise.probes.benchmark_result import BENCH_VERSION, COLLECTIVES, BenchFigure, BenchResult, figure, merge_ranks
from ds_advise.probes.machine import mount_point, rank_threads
from ds_advise.probes.store import Store

from tests.helpers import bench_result, left_lock


@pytest.mark.slow
def test_the_cpus_speeds_are_measured_and_stored(tmp_path: Path, extensions: Callable[..., None]) -> None:
    """By two ranks, in a process of its own: products by size and type, memory, launches, collectives of every kind,
    each with its spread, or a reason. No process and no file is left, and the process has not imported torch."""
    extensions("ShareMemCommBuilder", "CPUAdamBuilder")
    (tmp_path / "tmp").mkdir()
    program = (
        "import json, sys, psutil\n"
        "from ds_advise.probes.benchmark import run_benchmark\n"
        "from ds_advise.estimators.json_form import to_json\n"
        "record = run_benchmark(device='cpu', ranks=2, nvme=None, total_s=5, on_task=id, on_progress=id)\n"
        "loaded = [name for name in ('torch', 'deepspeed', 'transformers') if name in sys.modules]\n"
        "print(json.dumps({'record': to_json(record), 'loaded': loaded,\n"
        "                   'children': len(psutil.Process().children(recursive=True))}))\n"
    )
    environment = {**os.environ, "DS_ADVISE_CACHE": str(tmp_path / "cache"), "TMPDIR": str(tmp_path / "tmp")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert (list((tmp_path / "tmp").iterdir()), measured["children"], measured["loaded"]) == ([], 0, [])
    (record,) = Store(tmp_path / "cache/results.sqlite").find(kind="bench")
    assert json.loads(json.dumps(to_json(record))) == measured["record"] and record.versions["torch"]

    result = from_json(BenchResult, record.result)
    assert json.loads(json.dumps(to_json(result))) == record.result
    assert (result.version, result.device, result.ranks) == (BENCH_VERSION, "cpu", 2)
    found = {(figure.kind, figure.how, figure.unit) for figure in result.figures}
    computing = ("matrix_product", "attention_forward", "attention_backward")
    assert found >= {
        *((kind, how, "flop/s") for kind in computing for how in ("bf16", "fp32")),
        *((kind, "fp32", "B/s") for kind in ("elementwise_sum", "memory_copy")),
        *((kind, "", "B/s") for kind in ("new_memory", "host_memory")),
        *((kind, "gloo", unit) for kind in COLLECTIVES for unit in ("s", "B/s")),
    }
    for each in result.figures:
        assert 0 < each.lowest <= each.median <= each.highest, each
        assert MIN_SAMPLES <= each.repeats <= MAX_SAMPLES
    skipped = {each.what: each.reason for each in result.skipped}
    assert "--nvme" in skipped["NVMe"]
    assert (result.best("cpu_adam") is not None) != ("DeepSpeedCPUAdam" in skipped)


def test_every_collective_has_a_rate_however_late_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the first measurement alone takes longer than all of them should."""
    monkeypatch.setattr("ds_advise.probes.benchmark_rank._call", lambda *_: lambda: None)
    task = Task(group="collectives", device="cpu", ranks=2, threads=1, budget_s=0.0, buffer_bytes=2**28)
    figures = measure_collectives(task, "cpu", Stopwatch(synchronize=lambda: None, broadcast=lambda number: number))
    measured = {(each.kind, each.unit) for each in figures}
    assert measured == {(kind, unit) for kind in COLLECTIVES for unit in ("s", "B/s")}


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    """Ctrl-C while it measures: one line, no process, no file, also none on the drive."""
    (tmp_path / "drive").mkdir()
    program = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from ds_advise.advisor.cli.main import run\n"
        f"sys.exit(run(['bench', '--device', 'cpu', '--nvme', {str(tmp_path / 'drive')!r}]))\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        while len(list((tmp_path / "tmp").glob("*/rank?.jsonl"))) < 2:
            assert process.poll() is None
            time.sleep(0.05)
        workers = psutil.Process(process.pid).children(recursive=True)
        assert len(workers) >= 4  # two ranks, each with its supervisor, and what these start
        process.send_signal(signal.SIGINT)
        _, error = process.communicate()
    assert process.returncode == 130
    assert "interrupted" in error
    assert not any(worker.is_running() for worker in workers)
    assert list((tmp_path / "tmp").iterdir()) == list((tmp_path / "drive").iterdir()) == []


def test_each_group_says_when_it_ends_at_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below its title, which stays short. The limit is that of its processes."""
    titles, said, limits = list[str](), list[str](), list[float]()

    def watch(*_: Any, on_progress: Callable[[Any, Any], None], timeout_s: float, **_further: Any) -> Any:
        on_progress(SimpleNamespace(left=None), SimpleNamespace(compiles=False))
        limits.append(timeout_s)
        return [], None, None

    monkeypatch.setattr(bench_run, "watch", watch)
    run_benchmark(device="cpu", ranks=2, nvme=None, on_task=titles.append, on_progress=said.append)
    assert len(titles) == len(said) == 4 and titles[0].startswith("benchmark 1 of 4: matrix products")
    assert all(text.endswith(f", at most {limit / 60:.0f} min") for text, limit in zip(said, limits, strict=True))


def test_an_interrupt_shows_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A part of a benchmark is not stored: answers would use it in place of a complete one."""
    spread = {"median": 1e10, "lowest": 9e9, "highest": 1.1e10, "repeats": 3}
    measured_one = BenchFigure(kind="host_memory", how="", size=2**20, unit="B/s", **spread)

    def measured(task: Task, _: object) -> tuple[list[BenchFigure], None]:
        if task.group == "collectives":
            raise KeyboardInterrupt
        return [measured_one] * (task.group == "host_memory"), None

    monkeypatch.setattr(bench_run, "_run", measured)
    assert run(["bench", "--device", "cpu", "--ranks", "2"]) == 130
    out, error = capsys.readouterr()
    assert "10 GB/s" in out and "interrupted" in error
    assert "Not measured: collectives: interrupted." in out and "Not measured: DeepSpeedCPUAdam: interrupted." in out
    assert "Kept as number" not in out


def test_a_group_that_fails_has_a_reason() -> None:
    """The error of the process that measures becomes the reason, in one line; here it has no memory for a number at
    all."""
    heard: list[str] = []
    figures, reason = bench_run._run(
        Task(group="host_memory", device="cpu", ranks=1, threads=1, budget_s=1, buffer_bytes=2**60),
        heard.append,
    )
    assert figures == () and reason
    assert "memory" in reason and "\n" not in reason
    assert set(heard) <= {"about 6 s on an idle machine, at most 5 min", "compiling its extension"}


def test_a_group_that_is_late_has_its_limit_and_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_run, "_START_LIMIT_S", -3.0)
    _, reason = bench_run._run(
        Task(group="host_memory", device="cpu", ranks=1, threads=1, budget_s=1, buffer_bytes=2**20), print
    )
    assert reason and reason.startswith("not done within 0 s; rank 0 was in phase ")
    assert reason.endswith("; measure again when nothing else runs")


def test_a_lock_that_nobody_holds_is_named_at_once_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed build leaves it. The group ends long before its limit, and the others keep their figures."""
    monkeypatch.setattr("ds_advise.probes.real_run.ranks._STUCK_S", 5.0)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    lock = left_lock(tmp_path)
    heard: list[str] = []
    task = Task(group="cpu_adam", device="cpu", ranks=1, threads=1, budget_s=1, buffer_bytes=2**20)
    figures, reason = bench_run._run(task, heard.append)
    waits = "rank 0 waits until cpu_adam is built, and no process of this machine builds it"
    remedy = f"`rm {lock}`, unless another machine builds it"
    assert figures == () and reason == f"{waits}; {remedy}"
    assert f"{waits}: {remedy}" in heard


@pytest.mark.slow
def test_nvme_is_measured_through_deepspeeds_own_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extensions: Callable[..., None]
) -> None:
    """Written and read by its aio extension, where that can be built; the folder is empty afterwards."""
    extensions("AsyncIOBuilder")
    groups = {name: bench_run.GROUPS[name] for name in ("collectives", "nvme")}
    monkeypatch.setattr(bench_run, "GROUPS", groups)
    titles: list[str] = []
    (drive := tmp_path / "drive").mkdir()
    record = run_benchmark(device="cpu", ranks=1, nvme=str(drive), total_s=5, on_task=titles.append, on_progress=print)
    result = from_json(BenchResult, record.result)
    skipped = {each.what: each.reason for each in result.skipped}
    if "NVMe" in skipped:
        pytest.skip(skipped["NVMe"])
    assert {each.kind for each in result.figures} >= {"nvme_read", "nvme_write"}
    assert result.nvme_mount == mount_point(drive)
    assert list(drive.iterdir()) == []
    assert "one rank" in skipped["collectives"] and titles[0] == "benchmark 1 of 1: NVMe"


def _no_gpu() -> list[Gpu]:
    raise ClusterError("no GPU", fix="describe the machine instead, such as --gpus 2x24GB")


NEW_MEMORY = """
import ctypes, resource
from ds_advise.probes.benchmark_rank import Stopwatch, _new_memory
libc = ctypes.CDLL(None)
libc.mallopt(-3, 2**30), libc.mallopt(-1, 2**30)  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD: freed blocks are kept
_new_memory(2**24, Stopwatch(synchronize=lambda: None, broadcast=lambda number: number), 0.0)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
_new_memory(2**24, Stopwatch(synchronize=lambda: None, broadcast=lambda number: number), 0.0)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_new_memory_is_new() -> None:
    """Every call has page faults, also where the C library keeps freed blocks; a page has at most 2 MiB."""
    done = subprocess.run([sys.executable, "-c", NEW_MEMORY], capture_output=True, text=True)
    assert int(done.stdout) >= MIN_SAMPLES * 2**24 // 2**21, done.stderr


def test_impossible_options_are_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder that is not there; a GPU on a machine without one, or more than it has; more ranks than cores."""
    assert run(["bench", "--device", "cpu", "--ranks", "999"]) == 2
    assert "cores of this machine" in capsys.readouterr().err
    monkeypatch.setattr(bench_run, "visible_gpus", _no_gpu)
    assert run(["bench", "--device", "cuda"]) == 2
    assert capsys.readouterr().err.endswith("no GPU: --device cuda measures GPUs; --device cpu measures the CPU\n")
    assert run(["bench", "--device", "cpu", "--nvme", str(tmp_path / "none")]) == 2
    assert "cannot be written to" in capsys.readouterr().err
    with pytest.raises(ClusterError):
        run_benchmark(device="cuda", ranks=99, nvme=None, on_task=pytest.fail, on_progress=pytest.fail)


def test_ranks_on_the_cpu_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """An equal part of them each, or what the user says in OMP_NUM_THREADS."""
    monkeypatch.setattr("ds_advise.probes.machine.cpu_cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [rank_threads(ranks) for ranks in (1, 2, 3, 16)] == [8, 4, 2, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert rank_threads(2) == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert rank_threads(2) == 4


def test_the_ranks_figures_become_one() -> None:
    """The median rank, and the spread over all."""
    one, two = (figure("memory_copy", "fp32", 8, 16.0, [seconds, 2 * seconds, 4 * seconds]) for seconds in (1.0, 2.0))
    (both,) = merge_ranks([[one], [two]])
    assert (both.lowest, both.median, both.highest) == (2.0, 6.0, 16.0)
    assert one == BenchFigure(
        kind="memory_copy", how="fp32", size=8, unit="B/s", median=8.0, lowest=4.0, highest=16.0, repeats=3
    )


def test_the_best_rate_is_that_of_a_large_size() -> None:
    """Of the two largest sizes, so that the noise of a small one does not count; seconds are no rates."""
    rates = {256: 900.0, 1024: 500.0, 2048: 480.0}
    figures = [figure("matrix_product", "bf16", size, rate, [1.0], "flop/s") for size, rate in rates.items()]
    figures += [
        figure("all_reduce", "nccl", 8, 0.0, [1e-5], "s"),
        figure("all_reduce", "nccl", 10, 10.0, [1.0]),
        figure("all_gather", "nccl", 10, 20.0, [1.0]),
        figure("reduce_scatter", "nccl", 10, 1.0, [1.0]),
    ]
    result = bench_result(*figures)
    assert result.best("matrix_product", "bf16") == 500.0
    assert result.best("matrix_product", "fp32") is None
    assert result.best("all_reduce") == 10.0
    assert result.links_bytes_per_s == 10.5
    assert result.memory_bytes_per_s is None
