"""The monitor of a launch as a terminal, a pipe and a broken stream show it, with ranks that report as trainings do."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest
from ds_advise.advisor.launch.monitor import Monitor
from ds_advise.advisor.question.this_machine import cpu_cluster
from ds_advise.advisor.text.display import Display
from ds_advise.advisor.text.lines import SPARKS
from ds_advise.advisor.text.view import MemoryUse, View, line, rows
from ds_advise.advisor.verification.prediction import Prediction
from ds_advise.advisor.verification.run_view import RunView
from ds_advise.estimators.gpu_catalogue import gpu_of_memory
from ds_advise.estimators.hardware import Cluster
from ds_advise.probes.real_run.events import EventLogReader
from ds_advise.probes.real_run.ranks import Rank, Ranks
from ds_advise.probes.real_run.sampling import Extension, MemorySampler
from ds_advise.probes.run import Run
from rich.console import Console

from tests.advisor.launch.requests import step_event, write_events
from tests.helpers import launch_request
from tests.terminal import Screen, Terminal

GIB = 2**30
LIMIT_S = 120

RANK = """
import json, os, socket, time
from pathlib import Path
from ds_advise.probes.real_run.environment import own_settings
rank = int(os.environ["LOCAL_NUMBER"])
log = open(f"{own_settings().folder}/rank{rank}.jsonl", "a", buffering=1)
held = b"x" * (100 << 20)
def note(**values):
    log.write(json.dumps({"time": time.monotonic(), **values}) + "\\n")
def wait_for(name):
    while not Path(name).exists():
        time.sleep(0.05)
note(rank=rank, pid=os.getpid(), host=socket.gethostname())
note(phase="load")
wait_for("go")
note(trainer={"total_steps": 40, "output_dir": "out"})
for step in range(1, 41):
    note(phase=f"step {step}")
    time.sleep(0.01)
    note(step=step, tokens=100, loss=8.0 / step)
    if step == 30:
        wait_for("end")
note(end=0)
"""
COMMAND = """
for number in 0 1; do LOCAL_NUMBER=$number {python} rank.py & done
wait
"""


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `ds-advise launch` of two ranks that wait for the files `go` and `end`."""
    (tmp_path / "rank.py").write_text(RANK)
    (tmp_path / "run.sh").write_text(COMMAND.format(python=sys.executable))
    started = []

    def start(stderr: int | IO[Any], **variables: str) -> subprocess.Popen[str]:
        words = "launch --no-check --device cpu --ranks 2 --log-dir log -- bash run.sh"
        plain = {
            name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "COLUMNS", "NO_COLOR")
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "ds_advise", *words.split()],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=plain | {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"} | variables,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_training_is_drawn_in_place_while_it_runs(start: Start, tmp_path: Path) -> None:
    """From the start of the ranks: phase and time; then steps, loss and memory as bars. A terminal that becomes
    narrower keeps one drawing, and nothing of it is left at the end."""
    terminal = Terminal(80)
    process = start(terminal.slave)
    terminal.wait(lambda text: re.search(r"training: loading libraries, data and model, \d+ s +0:\d\d", text))
    (tmp_path / "go").touch()
    shown = terminal.wait(lambda text: "step 30/40" in text)
    for row in (
        r" training: [\d,]+ tokens/s +0:\d\d",
        r" step 30/40 +━{20,}─+  0 s left",
        r" loss 0\.2667 +█+[▁-█]+▁ +from 8\.000",
        r" host 0\.2\d GiB +━*─+  peak 0\.2\d of [\d.]+ GiB",
    ):
        assert re.search(f"^{row}$", shown, re.MULTILINE), shown
    terminal.resize(40)
    narrow = terminal.wait(lambda text: re.search(r" host 0\.2\d GiB  peak 0\.2\d\n ━*─+  of [\d.]+", text))
    assert [narrow.count(each) for each in ("training:", "step 30/40", "loss 0.2667", "host 0.2")] == [1, 1, 1, 1]
    (tmp_path / "end").touch()
    out, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0 and "Finished after step 40" in out
    assert "training:" not in terminal.screen.text and "tokens/s" not in terminal.screen.text


@pytest.mark.parametrize("place", ["pipe", "dumb terminal"])
def test_without_a_terminal_to_redraw_there_are_lines(start: Start, tmp_path: Path, place: str) -> None:
    """The phases and the first steps at once, with the time; no step twice, no control codes, also where colours are
    forced."""
    (tmp_path / "go").touch()
    threading.Timer(5.0, (tmp_path / "end").touch).start()
    terminal = Terminal(80)
    process = start(subprocess.PIPE, FORCE_COLOR="1") if place == "pipe" else start(terminal.slave, TERM="dumb")
    _, printed = process.communicate(timeout=LIMIT_S)
    printed = printed or terminal.wait(lambda text: "step" in text)
    assert re.search(r"ds-advise: training, \d s: starting the ranks", printed)
    lines = [each for each in printed.splitlines() if "step" in each]
    assert len(lines) <= 3 and re.search(r"training, \d+ s: step \d+/40, loss [\d.]+", lines[0])
    assert "\x1b" not in (terminal.written or printed)


def test_an_echoed_key_leaves_no_line_behind() -> None:
    """A terminal writes typed keys, as `^C`, where the cursor is: behind a full line they would take a further row."""

    class Tty(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen, file = Screen(40), Tty()
    display = Display(Console(file=file, width=40, height=20, force_terminal=True, color_system=None), "training")
    with display:
        host = MemoryUse(title="host", now_bytes=2**30, peak_bytes=2**30, predicted_bytes=2**30)
        display.show(View(phase="first step", memory=(host,)))
        display.say("the lines are drawn below this one")
        file.write("x" * 38)
        display.say("stopping")
        screen.write(file.getvalue())
    assert "stopping" in screen.text and screen.text.count("training") == 1, screen.text


def test_a_stream_that_cannot_be_written_ends_no_training(start: Start, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    (tmp_path / "end").touch()
    with Path("/dev/full").open("w") as full:
        process = start(full)
        out, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0 and "Finished after step 40" in out


def test_an_error_of_the_monitor_is_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    request = launch_request(Run(config={}, model={}, cluster=cpu_cluster(2)), tmp_path, device="cpu")
    request.folder.mkdir()
    (request.folder / "rank0.jsonl").write_text(
        '{"time": 1.0, "step": 3, "tokens": 5, "trainer": "of another version"}\n'
    )
    monitor = Monitor(request, Display(Console(stderr=True), "training"), os.getpid())
    for _ in range(2):
        monitor._memory._sample_at = 0.0
        monitor.look()
    assert capsys.readouterr().err.count("the monitor has an error, the training goes on (TypeError") == 1


@pytest.mark.parametrize("columns", [40, 64, 80, 120])
def test_memory_above_its_prediction_has_a_sign_and_a_colour(columns: int) -> None:
    """Behind the mark at the prediction the bar is yellow; near the capacity all of it is red. Lines fit, also without
    block characters."""
    uses = [
        MemoryUse("GPU", 50 * GIB, 60 * GIB, 40 * GIB, 80 * GIB),
        MemoryUse("host", 8 * GIB, 9 * GIB, 10 * GIB, None),
    ]
    full = MemoryUse("GPU", 78 * GIB, 79 * GIB, 40 * GIB, 80 * GIB)
    view = View(step=123_456, total_steps=200_000, left_s=91_860.0, tokens_per_s=123_456.7, memory=uses)
    for blocks in (True, False):
        drawn = rows("training", view, (3_725.0, 5.0), columns, blocks=blocks)
        text = "\n".join(each.plain for each in drawn)
        assert max(each.cell_len for each in drawn) < columns and text.isascii() != blocks
        assert drawn[0].plain.endswith("  1:02:05") and "25 h 31 min left" in text
        assert "peak 60.0" in text and "predicted 40.0" in text and ("> predicted" in text) == (columns > 40)
        (over,) = (each for each in drawn if {span.style for span in each.spans} >= {"yellow", "green"})
        mark = over.plain.index("┃" if blocks else "|")
        assert all(
            (span.start > mark) == (span.style == "yellow") for span in over.spans if span.style in ("yellow", "green")
        )
    loading = View(memory=[use._replace(is_stepping=False) for use in uses])
    before = "\n".join(each.plain for each in rows("training", loading, (1.0, 1.0), columns, blocks=True))
    assert "peak 60.0" in before and ">" not in before, "no verdict before the first step"
    nearly = rows("training", View(step=1, memory=[full]), (1.0, 1.0), columns, blocks=True)
    assert {"red", "bold red"} <= {span.style for each in nearly for span in each.spans}
    said = line("training", view, 3_725.0)
    assert (
        "training, 62 min 5 s: step 123456/200000, 123,000 tokens/s, 25 h 31 min left; GPU 50.0 GiB, peak 60.0 >"
        in said
    )
    failed = View(phase="rank 1 failed: ValueError: got 0", step=4, loss=6.985)
    assert line("training", failed, 9.0) == "training, 9 s: rank 1 failed: ValueError: got 0; step 4, loss 6.985"


@pytest.mark.parametrize(
    ("cluster", "share"), [(cpu_cluster(2), 0.26), (Cluster(nodes=1, gpus_per_node=2, gpu=gpu_of_memory(24)), 0.115)]
)
def test_memory_within_the_error_of_its_prediction_has_no_sign(cluster: Cluster, share: float, tmp_path: Path) -> None:
    """The sign stands for a peak that the prediction did not allow for."""
    prediction = Prediction(
        evidence="dry-run",
        engine={},
        reserved_bytes=0,
        step_s=None,
        tokens_per_step=None,
        allocated_bytes=10 * GIB,
        device_bytes=11 * GIB,
        host_bytes=10 * GIB,
    )
    memory, records = MemorySampler(os.getpid(), gpus=False), write_events(tmp_path, [step_event(1, 1.0)])
    for peak_bytes, sign in ((10.4 * GIB, ","), (10 * (1 + share) * GIB, ","), (10 * (1.06 + share) * GIB, " >")):
        memory.host_bytes = memory.host_peak_bytes = int(peak_bytes)
        if not cluster.gpu.is_cpu:
            memory.device_bytes = memory.device_peak_bytes = int(peak_bytes + 2 * GIB * (sign == " >"))
        for use in RunView(cluster, prediction).view(records, memory).memory:
            assert use.notes[0].endswith(sign)


def test_a_long_training_is_shown_from_its_first_loss_and_counts_down(tmp_path: Path) -> None:
    """Losses are thinned out to means; the time left is that of the steps since the first, with what lies between."""
    prediction = Prediction(
        evidence="dry-run",
        engine={},
        allocated_bytes=1,
        reserved_bytes=1,
        device_bytes=1,
        host_bytes=10 * GIB,
        step_s=2.0,
        tokens_per_step=200.0,
    )
    views = RunView(cpu_cluster(1), prediction, total_steps=40_000)
    rank = Rank(EventLogReader(tmp_path), 0)
    now = time.monotonic()
    rank.steps = {step: (now + 0.5 * (step - 20_000), 100) for step in range(1, 20_001)}
    rank.losses = [(step, 4.0 - step / 10_000) for step in range(1, 20_001)]
    rank.phase = "step 20001"
    ranks = Ranks(tmp_path)
    ranks._by_file[tmp_path], ranks.losses = rank, rank.losses
    memory = MemorySampler(os.getpid(), gpus=False)
    view = views.view(ranks, memory)
    assert 128 <= len(view.losses) < 256 and (view.first_loss, view.loss) == (3.9999, 2.0)
    assert view.losses[0] == pytest.approx(4.0, abs=0.02) and view.losses[-1] == pytest.approx(2.0, abs=0.02)
    assert view.left_s == pytest.approx(10_000.0, abs=5.0)
    assert (view.tokens_per_s, view.predicted_tokens_per_s) == (200.0, 100.0)
    rank.steps[20_001] = now - 30.0, 100
    waiting = views.view(ranks, memory)
    assert (view.phase, waiting.phase) == ("", "waiting for step 20002")
    assert waiting.left_s is None, "nobody knows when the step ends"
    rank.latest["error"] = {"type": "ValueError", "message": "bad\nbatch"}
    assert views.view(ranks, memory).phase == "rank 0 failed: ValueError: bad"
    del rank.latest["error"]
    memory.compiles, memory.extension = True, Extension(Path("/cache/cpu_adam"), is_rebuilt=False)
    assert views.view(ranks, memory).phase == "building extension cpu_adam (first use; takes minutes)"
    memory.extension = Extension(Path("/cache/cpu_adam"), is_rebuilt=True, last_s=93.0)
    changed = "its sources or the Python environment changed; 1 min 33 s the last time"
    assert views.view(ranks, memory).phase == f"rebuilding extension cpu_adam ({changed})"


def test_a_long_step_does_not_shorten_those_after_it(tmp_path: Path) -> None:
    views = RunView(cpu_cluster(1), None, total_steps=12)
    rank, ranks, now = Rank(EventLogReader(tmp_path), 0), Ranks(tmp_path), time.monotonic()
    ranks._by_file[tmp_path] = rank
    rank.steps, rank.phase = {1: (now - 11.0, 100), 2: (now - 9.0, 100)}, "step 3"
    assert views.view(ranks, MemorySampler(os.getpid(), gpus=False)).left_s == pytest.approx(18.0)


def test_a_phase_takes_further_lines_on_a_narrow_terminal() -> None:
    """With its time behind it, which is shown even where the phase is too long for them."""
    view = View(phase="building extension deepspeed_shm_comm (first use; takes minutes)")
    drawn = [text.plain for text in rows("training", view, (95.0, 90.0), 40, blocks=True)]
    assert " ".join(" ".join(drawn).split()).replace(" 1:35", "") == f"training: {view.phase}, 1 min 30 s"
    assert drawn[0].endswith("  1:35") and all(len(line) < 40 for line in drawn)
    assert len(rows("training", view, (95.0, 90.0), 120, blocks=True)) == 1
    long = View(phase=f"rank 0 failed: {'word ' * 60}")
    drawn = [text.plain for text in rows("training", long, (95.0, 90.0), 40, blocks=True)]
    assert len(drawn) == 4 and drawn[-1].endswith("…, 1 min 30 s") and all(len(line) < 40 for line in drawn)


def test_a_bar_ends_at_the_mark_where_the_printed_figures_are_equal() -> None:
    use = MemoryUse("host", 1_100 * 2**20, 1_110 * 2**20, predicted_bytes=1_100 * 2**20)
    drawn = rows("training", View(step=1, memory=[use]), (9.0, 9.0), 120, blocks=True)[-1].plain
    assert "peak 1.1, predicted 1.1" in drawn and not re.search("┃[━╍]", drawn)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_title_of_a_further_task_is_a_line_only_where_nothing_is_redrawn() -> None:
    for stream, rows_left in ((_Terminal(), []), (io.StringIO(), ["ds-advise: dry run under ddp ..."])):
        console = Console(file=stream, force_terminal=stream.isatty(), width=80, color_system=None)
        with Display(console, "dry run") as display:
            display.begin("dry run under ddp")
            display.show(View(phase="backward"))
        screen = Screen(80)
        screen.write(stream.getvalue().replace("\n", "\r\n"))
        left = [row.strip() for row in screen.rows if row.strip()]
        assert ("under ddp" in stream.getvalue()) and left[: len(rows_left)] == rows_left
        assert len(left) == len(rows_left)  # the phase may follow after half a minute


def test_a_training_without_an_engine_shows_its_last_line(tmp_path: Path) -> None:
    """Its steps are not seen."""
    records = write_events(tmp_path, [{"phase": "load"}, {"plain": "DistributedDataParallel", "takes_config": False}])
    (tmp_path / "rank0.log").write_text("iter 7 loss 0.2\n")
    view = RunView(cpu_cluster(1), None).view(records, MemorySampler(os.getpid(), gpus=False))
    assert view.phase.endswith("DistributedDataParallel, whose steps are not seen; it printed: iter 7 loss 0.2")


def test_the_parts_of_a_step_are_those_of_one_rank(tmp_path: Path) -> None:
    """Each rank waits for the other in another part: the longest of each part would be more than the step."""

    def event(forward_s: float, backward_s: float, step: int) -> dict[str, Any]:
        parts = {"forward": forward_s, "backward": backward_s, "step": 0.1}
        return {"step": step, "phases": {name: {"seconds": taken_s} for name, taken_s in parts.items()}}

    records = write_events(
        tmp_path,
        [event(0.5, 0.3, step) for step in (1, 2, 3)],
        [event(0.2, 0.5, step) for step in (1, 2, 3)],
    )
    assert [(each.name, each.seconds) for each in records.phases] == [
        ("forward", 0.5),
        ("backward", 0.3),
        ("step", 0.1),
    ]


def test_bars_stay_where_they_are() -> None:
    """From the first step to the last, and from the memory before the first loss to that of the training."""
    begins = set()
    for step, loss, gibs in ((0, None, 0.35), (7, 11.25, 1.0), (40, 2.3, 9.1), (192, 0.381, 23.4)):
        use = MemoryUse("host", int(gibs * 2**30), int(gibs * 2**30), 25 * 2**30)
        losses = () if loss is None else (loss, loss)
        view = View(step=step, total_steps=192, loss=loss, losses=losses, memory=[use])
        drawn = [text.plain for text in rows("training", view, (9.0, 9.0), 80, blocks=True)]
        pictures = [re.search("[━╍┃─]", each) for each in drawn if each.startswith((" step", " host"))]
        begins |= {found.start() for found in pictures if found}
    assert len(begins) == 1


def test_losses_take_the_columns_of_their_steps() -> None:
    """As the bar of the steps above them; all columns where their number is not known. The step is then in the first
    line, with the time of a step."""
    losses = tuple(8.0 / step for step in range(1, 22))
    known = View(step=21, total_steps=42, step_s=0.367, losses=losses, first_loss=8.0, loss=losses[-1])
    head, step, loss = (each.plain for each in rows("training", known, (9.0, 9.0), 80, blocks=True))
    assert head.startswith(" training: 367 ms a step ") and len(step.partition("━")[1])
    assert abs(step.count("━") - sum(each in SPARKS for each in loss)) <= 1
    open_end = replace(known, total_steps=None)
    head, loss = (each.plain for each in rows("training", open_end, (9.0, 9.0), 80, blocks=True))
    assert head.startswith(" training: step 21, 367 ms a step ")
    assert re.fullmatch(rf" loss 0\.3810 {{2,}}[{SPARKS}]{{50,}}  from 8\.000", loss)


def test_a_view_without_a_phase_or_a_step_is_no_line() -> None:
    stream = io.StringIO()
    with Display(Console(file=stream, width=80), "dry run") as display:
        display.show(View())
        assert stream.getvalue() == ""
        display.show(View(phase="load"))
    assert stream.getvalue().endswith(": load\n")
