"""`ds-advise dry-run`: the documented JSON, the timeline, and what the terminal shows."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ds_advise.advisor.answer.dry_run_answer import DryRunAnswer
from ds_advise.advisor.cli.main import run
from ds_advise.advisor.cli.schema import command_schema
from ds_advise.advisor.document.blocks import Figure, Table
from ds_advise.advisor.document.charts import Lines, Panel
from ds_advise.advisor.document.terminal_charts import _names_below, draw
from ds_advise.advisor.render.dry_run import _by_layer, _phases, _timeline
from ds_advise.advisor.search.candidate import Fit
from ds_advise.advisor.text.labels import MEMORY_FAMILIES, global_batch_label, memory_by_family, memory_family
from ds_advise.estimators.memory.host_memory import PROCESS_BYTES
from ds_advise.probes.command.request import CommandRequest
from ds_advise.probes.recording.allocation_classifier import _BIRTHPLACES, _OWNED
from ds_advise.probes.recording.result import PhaseMemory
from ds_advise.probes.run_errors import NeedsValuesError
from rich.console import Console

from tests.advisor.html_report.report_page import MOST_BYTES, Page
from tests.helpers import SMALL_LLAMA, dry_runs_in_forks, ran, schema_errors

CONFIG = {
    "bf16": {"enabled": "auto"},
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
    "zero_optimization": {"stage": 2},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with its files: `answer.json`, `trace.json`, and `printed.txt` as a terminal without Unicode shows it."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "config.json").write_text(json.dumps(SMALL_LLAMA))
    (folder / "ds_config.json").write_text(json.dumps(CONFIG))
    words = "dry-run ds_config.json --model config.json --gpus 2x24GB --seq-len 128 --iterations 2"
    arguments = words.split()
    from benchmarks.dry_run.forked_dry_runs import run_in_fork

    started: list[CommandRequest] = []

    def start_fork(request: CommandRequest, scratch: Path, working_folder: Path, *rest: Any) -> dict[str, Any]:
        rest[-1]("load")
        started.append(request)
        return run_in_fork(request, scratch, working_folder)

    answer, printed, meanwhile = io.StringIO(), io.TextIOWrapper(io.BytesIO(), encoding="ascii"), io.StringIO()
    with dry_runs_in_forks(), pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("DS_ADVISE_CACHE", str(folder / "store"))
        patch.setattr("ds_advise.probes.command.run.start", start_fork)
        patch.setattr(sys, "stderr", meanwhile)
        patch.setattr(sys, "stdout", answer)
        assert run([*arguments, "--json"]) == 0
        patch.setattr(sys, "stdout", printed)
        assert run([*arguments, "--timeline", "trace.json", "--html", "report.html", "--plot", "memory.svg"]) == 0
    assert len(started) == 1, "both commands make the same run, which is done once"
    assert re.search(r"^ds-advise: dry run, \d+ s: load$", meanwhile.getvalue(), re.MULTILINE)
    assert re.search(
        r"predicted without the run: [\d.]+ of 23.5 GiB per GPU; it fits\n.*: load\n", meanwhile.getvalue(), re.S
    )
    (folder / "answer.json").write_text(answer.getvalue())
    printed.flush()
    (folder / "printed.txt").write_bytes(printed.buffer.getvalue())  # type: ignore[attr-defined]
    return folder


def test_a_plan_that_does_not_fit_names_the_command_for_one_that_does(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a file's plan. What a model alone gets is the closest one already."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DS_ADVISE_CACHE", str(folder / "store"))
    monkeypatch.setattr(DryRunAnswer, "fit", Fit(0.0, 0.0, "needs 2 x VRAM", 2.0, "gpu"))
    words = "dry-run ds_config.json --model config.json --gpus 2x24GB --seq-len 128 --iterations 2"
    assert run(words.split()) == 1
    asked = "Find the fastest plan that fits:\n   ds-advise config.json --seq-len 128 --gpus 2x24GB\n"
    assert asked in capsys.readouterr().out
    # The batch that the file or an option sets is that of the training.
    assert run([*words.split(), "--micro-batch", "3", "--accumulation", "2"]) == 1
    asked = "ds-advise config.json --seq-len 128 --gpus 2x24GB --global-batch 12\n"
    assert asked in capsys.readouterr().out


def test_a_command_that_does_not_fit_keeps_its_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose batch is that of the training."""
    monkeypatch.chdir(tmp_path)
    Path("ds_config.json").write_text(json.dumps(CONFIG))
    Path("train.py").touch()
    shown = list[Any]()

    def document(_answer: Any, *, following: list[Any], **_rest: Any) -> None:
        shown.extend(following)

    answer = SimpleNamespace(fit=Fit(0.0, 0.0, "needs 2 x VRAM", 2.0, "gpu"))
    monkeypatch.setattr("ds_advise.advisor.cli.runs._command_answer", lambda *_rest, **_more: (answer, document))
    monkeypatch.setattr("ds_advise.advisor.render.deliver.show_document", lambda made, *_rest, **_more: made())
    assert run(["dry-run", "ds_config.json", "--gpus", "2x24GB", "--", "accelerate", "launch", "train.py"]) == 1
    assert "ds-advise ds_config.json --gpus 2x24GB -- accelerate launch train.py" in repr(shown)


def test_the_chart_is_as_high_as_what_is_allocated(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the workspaces of cuBLAS, which no phase has; none are there while the model loads."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DS_ADVISE_CACHE", str(folder / "store"))
    drawn = list[Lines]()

    def kept(answer: DryRunAnswer) -> Lines:
        drawn.append(_timeline(answer))
        return drawn[-1]

    monkeypatch.setattr("ds_advise.advisor.render.dry_run._timeline", kept)
    words = "dry-run ds_config.json --model config.json --gpus 2x24GB --seq-len 128 --iterations 2"
    assert run(words.split()) == 0
    (panel,) = drawn[0].panels
    heights = [sum(sizes) for sizes in zip(*panel.layers.values(), strict=True)]
    assert panel.limit is None and "limit above: " in panel.title and panel.title.endswith(" GiB per GPU)")
    answer = json.loads((folder / "answer.json").read_text())
    assert max(heights) == answer["peak"]["allocated_bytes_per_gpu"]
    assert heights[0] < answer["library_workspace_bytes"]


def test_the_json_has_the_documented_form(folder: Path) -> None:
    answer = json.loads((folder / "answer.json").read_text())
    assert [(phase["iteration"], phase["phase"]) for phase in answer["phases"]] == [
        (0, "load"),
        (0, "initialize"),
        *((i, phase) for i in (1, 2) for phase in ("forward", "backward", "step")),
    ]
    assert all(size >= 0 for phase in answer["phases"] for name, size in phase.items() if name != "phase")
    peak = answer["peak"]
    assert sum(peak["by_category"].values()) == peak["allocated_bytes_per_gpu"]
    assert answer["parameters"] > 0 and answer["world_size"] == 2 and {"torch", "deepspeed"} <= set(answer["versions"])
    assert answer["required_host_bytes_per_node"] == peak["host_bytes_per_node"] + 2 * PROCESS_BYTES
    assert "timeline" not in answer  # it has a file of its own
    form = command_schema("dry-run")
    assert schema_errors(answer, form) == []


def test_both_settings_of_the_allocator_are_answered(folder: Path) -> None:
    peak = json.loads((folder / "answer.json").read_text())["peak"]
    chosen, other = peak["with_expandable_segments"], peak["without_expandable_segments"]
    assert chosen == {name: peak[name] for name in ("reserved_bytes_per_gpu", "required_bytes_per_gpu")}
    for held in (chosen, other):
        assert peak["allocated_bytes_per_gpu"] <= held["required_bytes_per_gpu"] <= held["reserved_bytes_per_gpu"]


def test_the_report_has_the_figures_of_json(folder: Path) -> None:
    text, answer = (folder / "report.html").read_text(), json.loads((folder / "answer.json").read_text())
    page = Page(text)
    assert len(text) <= MOST_BYTES
    assert page.data | {name: answer[name] for name in OF_EACH_RUN} == answer
    assert {"figures", "memory", "peak", "phases", "evidence"} == set(page.sections)
    shown = [values for row in page.sections["phases"] if len(values := [value for _, value in row]) > 2]
    peaks = [phase["gpu_peak_bytes"] for phase in answer["phases"]]
    assert [values[2] for values in shown] == peaks[: len(shown)] and len(shown) > 5
    taken = [row[1][1] or 0 for row in page.sections["phases"] if len(row) == 2 and row[1][1] is not None]
    assert sorted(taken) == pytest.approx(sorted(answer["step_s_by_component"].values()))
    categories = [row for row in page.sections["peak"] if len(row) == 4]
    backward = sum(row[2][1] or 0 for row in categories)
    assert backward == sum(answer["peak_by_phase"]["backward"].values())
    assert backward + answer["library_workspace_bytes"] == answer["peak"]["allocated_bytes_per_gpu"]
    assert "<svg" in (folder / "memory.svg").read_text()


OF_EACH_RUN = ("seconds", "age_s")
"""What differs between the two commands."""


def test_the_timeline_opens_in_a_trace_viewer(folder: Path) -> None:
    trace = json.loads((folder / "trace.json").read_text())
    events: list[dict[str, Any]] = trace["traceEvents"]
    phases = [event for event in events if (event["ph"], event["pid"], event.get("tid")) == ("X", 1, 2)]
    names = [event["name"] for event in phases]
    assert [name for name in names if name != "between"][-6:] == ["forward", "backward", "step"] * 2
    for one, following in pairwise(phases):
        assert one["ts"] + one["dur"] == following["ts"] and one["dur"] > 0
    counters = {
        name: [event for event in events if event["ph"] == "C" and event["name"] == name]
        for name in ("GPU allocated", "GPU by purpose", "host")
    }
    for whole, parts in zip(counters["GPU allocated"], counters["GPU by purpose"], strict=True):
        assert whole["args"]["bytes"] == sum(parts["args"].values())
    workspace = json.loads((folder / "answer.json").read_text())["peak"]["by_category"]["library workspace"]
    highest = max(event["args"]["bytes"] for event in counters["GPU allocated"])
    assert highest == trace["otherData"]["peak allocated bytes"] - workspace
    assert "microsecond" in trace["otherData"]["time axis of memory"]


def test_a_terminal_without_unicode_gets_ascii(folder: Path) -> None:
    printed = (folder / "printed.txt").read_text()
    assert printed.isascii() and printed.startswith(" It fits: ")
    lines = printed.splitlines()
    chart = lines[next(at for at, line in enumerate(lines) if line.startswith(" Tensors over the run")) + 1 :]
    height = next(number for number, line in enumerate(chart) if "|" not in line)
    assert height >= 6 and "GiB |" in chart[0] and chart[height - 1].strip().startswith("0 |_")
    assert "iteration 1" in chart[height + 1] and "iteration 2" in chart[height + 1]
    assert "iteration 3" not in chart[height + 1]
    assert any("B buffers B" in line for line in chart[:height]), "an area has its name if there is room"


_ITERATIONS = "iteration 1{0:{1}}iteration 2{0:{1}}iteration 3"


@pytest.mark.parametrize(
    ("widths", "names", "words"),
    [
        (
            (2, 3, 9),
            ["f b  step     f b  step     f b  step", _ITERATIONS.format("", 3)],
            {"f": "forward", "b": "backward"},
        ),
        ((1, 1, 1), ["1  2  3"], {"1 2 3": "iterations"}),
        ((8, 9, 9), ["forward backward step     " * 3, _ITERATIONS.format("", 15)], {}),
    ],
)
def test_stretches_are_named_where_a_name_is_readable(
    widths: tuple[int, ...], names: list[str], words: dict[str, str]
) -> None:
    """In the same way in each iteration: whole, as initials, or not at all; below them the iterations."""
    spans, at = list[tuple[float, str]](), 0
    for number in (1, 2, 3):
        for width, word in zip(widths, ("forward", "backward", "step"), strict=True):
            spans.append((at, f"{word} {number}"))
            at += width
    chart = Lines(title="", x_title="", xs=[*range(at + 1)], panels=(), spans=spans)
    assert _names_below(chart, at) == ([name.rstrip() for name in names], words)


def test_words_with_the_same_initial_have_different_ones() -> None:
    spans = [(0, "step 1"), (3, "saving 1")]
    chart = Lines(title="", x_title="", xs=[*range(7)], panels=(), spans=spans)
    assert _names_below(chart, 6) == (["st sa", "1"], {"st": "step", "sa": "saving", "1": "iterations"})


def test_the_legend_has_every_family_of_the_areas_even_where_it_is_thin() -> None:
    """A thin layer has no whole cell of its own. An area with room has its name, too."""
    layers = {"weights": [8.0] * 20, "buffers": [0.0] * 20}
    layers |= {"optimizer": [0.5] * 10 + [0.0] * 10, "loss": [0.0] * 10 + [8.0] * 10}
    chart = Lines(
        title="",
        x_title="",
        xs=[*range(20)],
        panels=[Panel(title="GiB", layers=layers, areas=True)],
        spans=[(0, "forward 1")],
        families={ink: MEMORY_FAMILIES[ink] for ink in layers},
    )
    file = io.StringIO()
    console = Console(file=file, width=60, height=40, force_terminal=True, color_system="truecolor")
    draw(chart, console)
    shown = "".join(file.getvalue().split())
    counted = {ink: shown.count(MEMORY_FAMILIES[ink].replace(" ", "")) for ink in layers}
    assert counted == {"weights": 2, "buffers": 0, "optimizer": 1, "loss": 2}


def test_modules_of_all_layers_are_one() -> None:
    sizes = {"model.layers.0.mlp": 3, "model.layers.11.mlp": 4, "model.norm2": 2, "": 9, "h.1": 1, "h.2": 1}
    expected = [("", 9), ("model.layers.*.mlp", 7), ("model.norm2", 2), ("h.*", 2)]
    assert _by_layer(sizes) == expected


@pytest.mark.parametrize(("peak_bytes", "unit"), [(2**30, "GiB"), (2**20, "MiB")])
def test_phases_have_a_readable_unit_and_repeated_steps_one_row(peak_bytes: int, unit: str) -> None:
    sizes = {field.name: peak_bytes for field in fields(PhaseMemory) if field.name not in ("iteration", "phase")}
    phases = [PhaseMemory(iteration=step, phase=name, **sizes) for step in (1, 2, 3, 4) for name in ("forward", "step")]
    answer: Any = SimpleNamespace(result=SimpleNamespace(phases=phases, iterations=4), step=None)
    (table,) = _phases(answer)
    assert isinstance(table, Table) and table.head[1] == f"phase ({unit})"
    *others, last = ([cell.text if isinstance(cell, Figure) else cell for cell in row.cells] for row in table.rows)
    assert last == ["2-4", "same as 1"] and len(others) == 2 and {*others[0][2:]} == {"1.0"}


def test_equal_phases_in_a_row_have_one_row() -> None:
    """A Trainer saves the model, and then the engine's states."""
    sizes = {field.name: 2**30 for field in fields(PhaseMemory) if field.name not in ("iteration", "phase")}
    phases = [PhaseMemory(iteration=1, phase=name, **sizes) for name in ("step", "saving", "saving")]
    answer: Any = SimpleNamespace(result=SimpleNamespace(phases=phases, iterations=1), step=None)
    (table,) = _phases(answer)
    assert isinstance(table, Table) and [row.cells[1] for row in table.rows] == ["step", "saving"]


@pytest.mark.parametrize(
    ("ranks", "whole", "words"),
    [
        (8, 64, "micro batch 2 x 4 accumulation steps x 8 GPUs = global batch 64"),
        (8, 16, "micro batch 2 x 4 accumulation steps x 2 groups of 4 GPUs = global batch 16"),
        (1, "auto", "micro batch 2 x 4 accumulation steps x 1 GPU = global batch 8"),
    ],
)
def test_the_global_batch_is_stated_with_its_factors(ranks: int, whole: Any, words: str) -> None:
    """Ranks that share a sample by sequence parallelism are a group."""
    config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "train_batch_size": whole}
    assert global_batch_label(config, ranks) == words


def test_the_buckets_of_the_engine_are_buffers(folder: Path) -> None:
    """Whoever sees its 1 GiB as activations would look for it in the batch."""
    peak = json.loads((folder / "answer.json").read_text())["peak"]["by_category"]
    assert peak["buckets"] >= 2 * 500_000_000, "reduce_bucket_size elements of 16 bits"
    assert memory_by_family(peak)["buffers"] == peak["buckets"] + peak["temporaries"]
    legend = (folder / "printed.txt").read_text().split(" at the peak (", 1)[1]
    shown = re.search(r"B buffers ([\d.]+)", legend)
    assert shown and float(shown[1]) == pytest.approx(memory_by_family(peak)["buffers"] / 2**30, abs=0.05)
    recorded = {category for *_, category in _BIRTHPLACES} | set(_OWNED)
    assert "activations" not in map(memory_family, recorded), "the family of whatever has no other"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--timeline", "trace.json"], "trace.json exists"),
        (["--timeline", "nowhere/trace.json"], "there is no folder nowhere"),
        (["--rank", "2"], "rank 2 does not exist"),
    ],
)
def test_impossible_options_are_refused_before_anything_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr("ds_advise.probes.command.run.start", None)
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    before = (folder / "trace.json").read_bytes()
    assert run(["dry-run", "ds_config.json", "--model", "config.json", "--gpus", "2x24GB", *arguments]) == 2
    assert words in stderr.getvalue().splitlines()[-1]
    assert (folder / "trace.json").read_bytes() == before


def test_options_that_the_file_leaves_no_room_for_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("set.json").write_text(json.dumps(CONFIG | {"train_micro_batch_size_per_gpu": 8}))
    words = "dry-run set.json --model gpt2 --gpus 2x24GB --micro-batch 256 --accumulation 2 --rank 2"
    assert run(words.split()) == 2
    (ignored, _) = capsys.readouterr().err.splitlines()
    assert ignored == "ds-advise: --micro-batch has no effect where the file has train_micro_batch_size_per_gpu 8"
    Path("open.json").write_text(json.dumps(CONFIG))
    assert (
        run(["probe", "open.json", "--model", "gpt2", "--device", "cpu", "--ranks", "2", "--rank", "2", "--solo"]) == 2
    )
    assert "`auto` filled with micro batch 1" in capsys.readouterr().err


def test_a_model_that_needs_values_is_probed_without_a_dry_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def needs_values(*_: object) -> None:
        raise NeedsValuesError("its shapes depend on values", phase="forward", fix="run ds-advise probe")

    Path("ds.json").write_text(json.dumps({"train_micro_batch_size_per_gpu": 2}))
    monkeypatch.setattr("ds_advise.probes.command.run.start", needs_values)
    probed = ran(1.0, world_size=2, device="cpu", tokens_per_step=64, host_peak_bytes=10**9)
    monkeypatch.setattr("ds_advise.advisor.verification.probe.probe_and_keep", lambda *_, **__: probed)
    assert run(["dry-run", "ds.json", "--model", "gpt2", "--gpus", "2x24GB"]) == 2
    assert "ds-advise probe" in capsys.readouterr().err
    assert run(["probe", "ds.json", "--model", "gpt2", "--device", "cpu", "--ranks", "2"]) == 0
    printed = capsys.readouterr()
    assert "no dry run for comparison" in printed.err and "memory per rank" in printed.out


def test_a_rejected_setting_is_named_as_lint_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its line, where DeepSpeed's exception names a Python attribute alone."""
    rejected = {"stage": 2, "offload_optimizer": "cpu"}
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(json.dumps(SMALL_LLAMA))
    Path("bad.json").write_text(json.dumps({"train_micro_batch_size_per_gpu": 1, "zero_optimization": rejected}))
    asked = ["dry-run", "bad.json", "--model", "config.json", "--gpus", "2x24GB", "--seq-len", "128"]
    with dry_runs_in_forks():
        assert run(asked) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        'ds-advise: bad.json:1: offload_optimizer is "cpu", which is not an object or null: DeepSpeed rejects this '
        'configuration (DS020); write {"device": "cpu"}'
    )


def test_a_micro_batch_that_is_written_as_a_fraction_runs_as_a_whole_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`1.0`, which lint and the engine accept."""
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(json.dumps(SMALL_LLAMA))
    Path("float.json").write_text(json.dumps(CONFIG | {"train_micro_batch_size_per_gpu": 1.0}))
    with dry_runs_in_forks():
        asked = ["dry-run", "float.json", "--model", "config.json", "--gpus", "2x24GB", "--seq-len", "128", "--json"]
        assert run(asked) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fits"] and found["tokens_per_s"] * found["step_s"] == pytest.approx(2 * 1 * 128)


def test_checkpoint_writers_run_as_under_deepspeeds_launcher_or_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A configuration without a command can be started by it. Torchrun sets no CROSS_SIZE, and the training stops."""
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(json.dumps(SMALL_LLAMA))
    writer = {"type": "fast", "data_parallel": "replica"}
    config = CONFIG | {"bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 1, "checkpoint": {"writer": writer}}
    config |= {"gradient_accumulation_steps": 1, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}
    Path("writer.json").write_text(json.dumps(config))
    Path("train.py").write_text(
        "import deepspeed, torch\n"
        "model = torch.nn.Linear(8, 8)\n"
        "deepspeed.initialize(model=model, model_parameters=model.parameters(), config='writer.json')\n"
    )
    with dry_runs_in_forks():
        described = ["dry-run", "writer.json", "--model", "config.json", "--gpus", "2x24GB", "--seq-len", "128"]
        assert run([*described, "--framework", "deepspeed"]) == 0
        capsys.readouterr()
        assert run(["dry-run", "--gpus", "2x24GB", "--", "torchrun", "--nproc_per_node", "2", "train.py"]) != 0
    said = capsys.readouterr().err.splitlines()[-1]
    assert "train.py:3 (during initialize): KeyError: 'CROSS_SIZE'; start it by deepspeed, or set CROSS_SIZE" in said
