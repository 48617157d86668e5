"""`ds-advise history`: the list, the export, forgetting."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from ds_advise.advisor.cli.main import run
from ds_advise.advisor.render.history import bench_document
from ds_advise.probes.benchmark_result import BENCH_VERSION, figure
from ds_advise.probes.machine import busy, cpu_cores, this_machine
from ds_advise.probes.real_run.result import StepTime
from ds_advise.probes.store import Record, Store

from tests.helpers import MACHINE, bench_result, failed_probe, printed_document, ran

STEP = StepTime(total_s=2.0, forward_s=0.5, backward_s=1.0, optimizer_s=0.5, waiting_s=None)
ON_GPU = ran(
    STEP,
    world_size=2,
    device="cuda",
    tokens_per_step=1000,
    device_bytes=5 * 2**30,
    reserved_bytes=4 * 2**30,
    host_peak_bytes=3 * 2**30,
)
RANK = replace(ON_GPU.ranks[0], steps=(STEP, replace(STEP, total_s=4.0), STEP), losses=(1.0, float("nan")))
PROBE = Record(
    kind="probe",
    machine=MACHINE,
    model="abc",
    model_name="some/a-model-with-a-long-name",
    made_at="2026-01-01T00:00:00+00:00",
    workload={"seq_len": 128},
    plan={
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    },
    result=replace(ON_GPU, ranks=(RANK, RANK)).to_json(),
)
BENCH = Record(
    kind="bench",
    machine=MACHINE,
    result=asdict(bench_result(figure("matrix_product", "bf16", 4096, 1e14, [1.0], "flop/s"))),
)


def _lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines), lines
    assert all(first.strip() or second.strip() for first, second in pairwise(lines)), "two empty lines"
    return lines


def _bench(bf16_flops_per_s: float, warning: str = "") -> str:
    speeds = {"bf16": bf16_flops_per_s, "fp32": 8e10}
    figures = [
        figure("matrix_product", how, size, speed, [1.0], "flop/s")
        for how, speed in speeds.items()
        for size in (256, 512)
    ]
    result = bench_result(*figures, versions={"torch": "2", "deepspeed": "0"})
    record = Record(kind="bench", machine=MACHINE, result=asdict(result))
    return " ".join(printed_document(bench_document(record, warning=warning)).split())


def test_a_benchmark_says_what_makes_this_machine_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes, and products in bf16 by a device without instructions for it."""
    monkeypatch.setattr("os.getloadavg", lambda: (cpu_cores() + 0.5, 0.0, 0.0))
    shown = _bench(1e9, busy())
    assert f"load {cpu_cores() + 0.5:.1f} on {cpu_cores()} cores" in shown
    assert "Products in fp32 are 80 x as fast as in bf16: pass --precision fp32." in shown
    assert shown.count("matrix product, bf16") == 1, "a kind is named once for all its sizes"
    summary, _, table = shown.partition(" size median")
    assert "matrix products in bf16 1 Gflop/s of each GPU" in summary and "fp32 80" in summary and "256" in table
    monkeypatch.setattr("os.getloadavg", lambda: (0.5, 0.0, 0.0))
    assert busy() == "" and "--precision" not in _bench(1e11)


def test_a_disturbed_benchmark_does_not_replace_a_better_one() -> None:
    """Its uncertain figures are marked. On the CPU the memory of the device is that of the host."""
    versions = {"torch": "2.13.0", "deepspeed": "0.19.8"}
    figures = (figure("memory_copy", "fp32", 2**20, 1e9, seconds) for seconds in ([1.0, 1.1], [1.0, 5.0]))
    results = (asdict(bench_result(each, device="cpu", versions=versions)) for each in figures)
    steady, disturbed = (replace(BENCH, machine=this_machine(), result=each) for each in results)
    shown = [
        " ".join(printed_document(bench_document(replace(each, id=Store().add(each)))).split())
        for each in (steady, disturbed)
    ]
    assert "Answers to --device cpu --ranks 2 on this machine use these speeds from now on." in shown[0]
    assert "copy in RAM, each rank, fp32" in shown[0] and "uncertain" not in shown[0]
    assert (
        " 5.0 x The spread is shown above 2 x" in shown[1] and "still use number 1, which is less disturbed" in shown[1]
    )
    assert shown[0].index("Each rank: all ranks at once") < shown[0].index(" size median "), "what the summary compares"
    note = "Something disturbed it: many figures vary by more than 2 x."
    assert note not in shown[0] and shown[1].index(note) < shown[1].index("copy in RAM")


def test_an_empty_history_creates_no_file(own_store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No table, no file; where it would be and what fills it."""
    assert run(["history"]) == 0
    shown = " ".join(" ".join(_lines(capsys)).split())
    assert "Nothing was measured yet" in shown
    assert "ds-advise bench" in shown and "dry-run, launch and train are recorded" in shown
    assert run(["history", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"schema_version": 2, "records": []}
    assert not own_store.parent.exists()


PEAKS = {"device_bytes": 3 * 2**30, "host_bytes": 2**33}
FAILED = failed_probe("out_of_memory").to_json()
ON_CPU = replace(
    ran(STEP, world_size=1, device="cpu", tokens_per_step=1000, host_peak_bytes=3 * 2**30), host_peak_bytes=3 * 2**30
)
CRASH = {"failure": {"kind": "crash", "rank": 0}}
NEED = {"required_device_bytes_per_gpu": 6 * 2**30, "required_host_bytes_per_node": 2**34, "tokens_per_s": 96_300.0}


@pytest.mark.parametrize(
    ("kind", "result", "gpus", "words"),
    [
        ("training", {"tokens_per_s": 1234.0, "peaks": PEAKS}, "8xH100-SXM5", ["1,230", "3.0", "8.0"]),
        ("probe", PROBE.result, "2xL4", ["a-model-with-~", "128", "zero2-offload", "4x2", "500", "5.0", "6.0"]),
        ("probe", FAILED, "2 CPU ranks", ["a-model-with-~", "128", "zero2-offload", "4x2", "OOM", "-", "-"]),
        (
            "training",
            {"tokens_per_s": 4450.0, "peaks": PEAKS, **CRASH},
            "2xL4",
            ["a-model-with-~", "128", "zero2-offload", "4x2", "crash", "3.0", "8.0"],
        ),
        (
            "training",
            {"failure": {"kind": "crash", "rank": 0, "message": "ValueError: no row"}, "peaks": PEAKS},
            "2xL4",
            ["a-model-with-~", "128", "zero2-offload", "4x2", "ValueError", "3.0", "8.0"],
        ),
        ("training", {"step_s": 0.011, "peaks": PEAKS}, "2xL4", ["11", "ms/step", "3.0", "8.0"]),
        (
            "training",
            {"status": "stopped", "peaks": PEAKS},
            "2xL4",
            ["a-model-with-~", "128", "zero2-offload", "4x2", "stopped", "3.0", "8.0"],
        ),
        (
            "dry-run",
            {"peak": {}, **NEED, "gpu_memory_bytes": 2**32},
            "2x24GB",
            ["a-model-with-~", "128", "zero2-offload", "4x2", "too", "large", "6.0", "16.0"],
        ),
        ("dry-run", {"peak": {}, **NEED}, "2x24GB", ["4x2", "96,300", "6.0", "16.0"]),
        ("dry-run", {"peak": {}, "unit": "samples", **NEED}, "2x24GB", ["4x2", "96,300", "samples", "6.0", "16.0"]),
        ("dry-run", {"peak": {"device_bytes_per_gpu": 2**32}}, "2x24GB", ["4x2", "-", "4.0", "-"]),
        ("probe", ON_CPU.to_json(), "", ["500", "3.0"]),
    ],
    ids=[
        "training",
        "probe",
        "failed",
        "failed after steps",
        "failed by an exception",
        "stopped",
        "too large",
        "only a step time",
        "dry run",
        "without tokens",
        "dry run of an earlier version",
        "on the CPU",
    ],
)
def test_a_record_is_one_line(
    kind: Any,
    result: dict[str, Any],
    gpus: str,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its kind, GPUs, model, strategy and batch, how it ended if it failed, else its speed: tokens per second of the
    slowest rank; memory of the fullest GPU (of a dry run that of its verdict), RAM of all ranks, each in its column."""
    Store().add(replace(PROBE, kind=kind, result=result, workload={"seq_len": 128, **({"gpus": gpus} if gpus else {})}))
    monkeypatch.setenv("COLUMNS", "110")
    run(["history"])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.split()[:1] == ["1"]]
    assert line.split()[-len(words) :] == words and f"{kind} " in line and (gpus or "1 CPU rank") in line


def test_a_failure_is_red_in_the_list(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    Store().add(replace(PROBE, result=FAILED))
    run(["history"])
    assert re.search(r"\x1b\[1;31m +OOM\x1b\[0m", capsys.readouterr().out)


def test_the_training_of_a_command_has_the_name_of_its_script(capsys: pytest.CaptureFixture[str]) -> None:
    """In the list and on the page, which also has the model and the sequence that were observed."""
    command = {"command": "torchrun --nproc_per_node 2 src/train.py --bf16", "observed_seq_len": 4096}
    Store().add(replace(PROBE, workload={"gpus": "2xL4", **command}))
    run(["history"])
    assert " train.py " in capsys.readouterr().out
    run(["history", "1"])
    page = " ".join(capsys.readouterr().out.split())
    assert "Probe 1 of train.py on 2xL4" in page
    assert "sequence 4,096 tokens model some/a-model-with-a-long-name" in page


@pytest.mark.parametrize("width", ["80", "120"])
def test_the_list_says_which_figures_are_simulated(
    width: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the age of each record; its legend explains the columns that are shown. A plan without accumulation has its
    batch in the same form."""
    monkeypatch.setenv("COLUMNS", width)
    Store().add(replace(PROBE, plan={"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1}))
    Store().add(replace(PROBE, kind="dry-run", result={"peak": {}, **NEED}, workload={"gpus": "2x24GB"}))
    run(["history"])
    shown = capsys.readouterr().out
    rows = {line.split()[0]: line for line in shown.splitlines() if line.split()}
    assert " dry-run " in rows["2"] and " days" in rows["2"] and " ddp 8x1 " in rows["1"]
    legend = " ".join(shown.split())
    assert "kind: a dry run simulates its GPUs, the others are measured" in legend
    assert " result " not in shown, "every run ended as usual"
    assert ("length: tokens per sample" in legend) == (" length " in shown.splitlines()[0])


def test_a_record_has_a_page_with_everything_that_is_stored(capsys: pytest.CaptureFixture[str]) -> None:
    """Date, conditions, versions, measured beside predicted figures, the configuration, and the command."""
    workload = {
        "seq_len": 128,
        "method": "lora",
        "gpus": "2xL4",
        "command_line": "ds-advise probe ds_config.json --model ./tiny",
        "predicted": {"evidence": "analytic", "tokens_per_s": 400.0, "device_bytes": 6 * 2**30},
    }
    Store().add(replace(PROBE, workload=workload, versions={"torch": "2.13.0"}))
    assert run(["history", "1"]) == 0
    shown = " ".join(" ".join(_lines(capsys)).split())
    assert shown.startswith("It ran: 500 tokens/s, 2.0 s a step.") and "on 2xL4" in shown
    for fact in ("2026-01-01 00:00 UTC", "2 x L4, a CPU", "LoRA r=8", "128 tokens", "torch 2.13.0"):
        assert fact in shown
    assert "micro batch 4 x 2 accumulation steps x 2 ranks = global batch 16" in shown
    assert "tokens/s 500 400 step 2.0 s 2.5 s GPU GiB, device 5.0 6.0" in shown
    assert '"offload_optimizer": {' in shown and shown.endswith("ds-advise probe ds_config.json --model ./tiny")


TRAINING = replace(
    PROBE,
    kind="training",
    workload={"seq_len": 128, "gpus": "2xL4", "optimizer": "lion", "optimizer_block": True, "framework": "deepspeed"},
    result={"tokens_per_s": 500.0, "peaks": PEAKS, "first_loss": 6.27, "last_loss": 2.31, "log_folder": "/a/log"},
)


def test_the_page_of_a_training_says_how_good_it_was_and_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Its loss, its folders, and its settings under the names of options."""
    Store().add(replace(TRAINING, result={**TRAINING.result, "output_folder": "/a/out"}))
    assert run(["history", "1"]) == 0
    shown = " ".join(" ".join(_lines(capsys)).split())
    assert "loss 6.270 to 2.310 logs /a/log/rank*.log output /a/out" in shown
    assert "settings --framework deepspeed, --optimizer lion plan" in shown


@pytest.mark.parametrize(
    ("typed", "repeated"),
    [
        ("train --model m", "train --model m --output-dir output-3"),
        ("train --output-dir v1.5 --merge", "train --output-dir v1.5-2 --merge"),
        ("train --output-dir=v1.5/ --merge", "train --output-dir v1.5-2 --merge"),
        ("train --resume", ""),
        ("probe ds.json", "probe ds.json"),
        ("launch -- train.py --output-dir v1.5", "launch -- train.py --output-dir v1.5"),
    ],
)
def test_a_training_is_repeated_in_a_new_folder(
    typed: str, repeated: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`train` refuses one that is not empty. A resumed training has ended."""
    monkeypatch.chdir(tmp_path)
    for name in ("output", "output-2", "v1.5"):
        Path(name).mkdir()
    Store().add(replace(TRAINING, workload={**TRAINING.workload, "command_line": f"ds-advise {typed}"}))
    assert run(["history", "1"]) == 0
    shown = "\n".join(_lines(capsys))
    assert shown.endswith(f"ds-advise {repeated}") if repeated else "Repeat" not in shown


def test_a_benchmark_has_its_speeds_on_its_page(capsys: pytest.CaptureFixture[str]) -> None:
    result = {**BENCH.result, "versions": {"torch": "2.13.0", "deepspeed": "0.19.8"}}
    workload = {"command_line": "ds-advise bench"}
    Store().add(replace(BENCH, made_at="2026-01-01T00:00:00+00:00", workload=workload, result=result))
    assert run(["history", "1"]) == 0
    shown = " ".join(" ".join(_lines(capsys)).split())
    assert shown.startswith("Benchmark 1, 2026-01-01 00:00 UTC, ") and "100 Tflop/s" in shown
    assert shown.endswith("ds-advise bench") and "from now on" not in shown
    assert run(["history", "1", "--json"]) == 0
    assert [record["id"] for record in json.loads(capsys.readouterr().out)["records"]] == [1]


def test_a_check_before_a_training_is_not_repeated_by_it(capsys: pytest.CaptureFixture[str]) -> None:
    Store().add(replace(PROBE, workload={**PROBE.workload, "command_line": "ds-advise train --model m --data a.csv"}))
    assert run(["history", "1"]) == 0
    shown = "\n".join(_lines(capsys))
    assert "It was a check of this training" in shown and shown.endswith("ds-advise train --model m --data a.csv")
    assert "Repeat" not in shown


@pytest.mark.parametrize(
    ("gpus", "config_file", "repeated"),
    [
        ("2x24GB", None, "dry-run --gpus 2x24GB -- torchrun a.py"),
        ("2 CPU ranks", "ds_config-2.json", "dry-run ds_config-2.json --device cpu --ranks 2 -- torchrun a.py"),
    ],
)
def test_one_of_several_dry_runs_of_a_command_is_repeated_alone(
    gpus: str, config_file: str | None, repeated: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the record has it: the advised plan in a configuration of its own, not the line that looked for it."""
    workload = {"gpus": gpus, "command": "torchrun a.py", "command_line": "ds-advise why a.log -- torchrun b.py"}
    workload |= {"config_file": config_file} if config_file else {}
    Store().add(replace(PROBE, kind="dry-run", result={"peak": {}, **NEED}, workload=workload))
    assert run(["history", "1"]) == 0
    assert " ".join(capsys.readouterr().out.split()).replace(" \\", "").endswith(f"ds-advise {repeated}")


def test_the_page_of_a_small_run_is_in_mib_and_its_configuration_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON has no infinity, which accelerate writes as steps_per_print."""
    phase = {"iteration": 1, "phase": "step", "gpu_peak_bytes": 3 * 2**20, "gpu_live_bytes": 100, "host_live_bytes": 0}
    result = {"peak": {}, "required_device_bytes_per_gpu": 5 * 2**20, "phases": [phase], "device": "cuda"}
    plan = {**PROBE.plan, "steps_per_print": float("inf")}
    Store().add(replace(PROBE, kind="dry-run", result=result, plan=plan))
    assert run(["history", "1"]) == 0
    shown = "\n".join(_lines(capsys))
    assert shown.startswith(" The dry run needs 5.0 MiB per GPU.")
    assert '"steps_per_print": null' in shown and "Infinity" not in shown
    words = " ".join(shown.split())
    assert "GPU MiB, needed 5.0" in words and "phase (MiB)" in words and "step 3.0 <0.01" in words


def test_the_page_of_a_training_that_failed_begins_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its fix, and the command that says more of its log."""
    monkeypatch.chdir(tmp_path)
    failure = {"kind": "crash", "rank": 0, "message": "ValueError: no", "cause": "none is given", "fix": "give one"}
    Store().add(replace(TRAINING, result={**TRAINING.result, "log_folder": str(tmp_path), "failure": failure}))
    assert run(["history", "1"]) == 0
    shown = " ".join(" ".join(_lines(capsys)).split())
    assert shown.startswith("It failed on rank 0: ValueError: no.")
    assert "on 2xL4 Usual causes: none is given. Fix: give one. date" in shown and "ds-advise why" not in shown
    (tmp_path / "rank0.log").touch()
    run(["history", "1"])
    assert "ds-advise why rank0.log" in capsys.readouterr().out


def test_a_failed_run_has_its_error_on_its_page(capsys: pytest.CaptureFixture[str]) -> None:
    failure = {"kind": "crash", "rank": 1, "message": "ValueError: no", "details": "Traceback\nValueError: no"}
    Store().add(replace(PROBE, result=FAILED | {"failure": failure}))
    assert run(["history", "1"]) == 0
    shown = " ".join(" ".join(_lines(capsys)).split())
    assert shown.startswith("It failed on rank 1: ValueError: no.") and "on one rank" not in shown
    assert "Traceback ValueError: no" in shown


def test_incomplete_records_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """A record without plan and figures, a benchmark of another version."""
    Store().add(replace(PROBE, plan={}, result={}, model_name=""))
    Store().add(replace(BENCH, result={"version": BENCH_VERSION + 1}))
    assert run(["history"]) == 0
    assert any("another version" in line for line in _lines(capsys))


def test_the_newest_come_first_and_other_machines_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """--limit cuts the list and says that there is more; a machine is named once for the records in a row. A dry run is
    of no machine."""
    for month in range(1, 6):
        Store().add(replace(PROBE, made_at=f"2026-0{month}-01T00:00:00+00:00"))
    Store().add(BENCH)
    Store().add(replace(PROBE, kind="dry-run", result={"peak": {}, **NEED}, workload={"gpus": "2x24GB"}))
    run(["history", "--limit", "4"])
    lines = _lines(capsys)
    assert [line.split()[0] for line in lines if line.split()[:1] and line.split()[0].isdigit()] == ["7", "6", "5", "4"]
    assert sum("2 x L4, a CPU, 8 cores" in line for line in lines) == 1
    assert lines[1].split()[0] == "7" and " dry-run " in lines[1] and "2 x L4" in lines[2]
    assert any("100 Tflop/s" in line for line in lines)
    assert " Older ones: 3 (--limit 7)." in lines
    assert any("kind: a dry run simulates its GPUs" in line for line in lines)
    run(["history", "2", "3"])
    assert [line.split()[0] for line in _lines(capsys) if line.split()[:1] and line.split()[0].isdigit()] == ["3", "2"]


def test_json_has_every_record_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """Strict JSON: a loss that is NaN is null; --limit does not cut it."""
    for _ in range(2):
        Store().add(PROBE)
    assert run(["history", "--json", "--limit", "1"]) == 0

    def refuse(text: str) -> None:
        raise AssertionError(text)

    answer = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert [record["id"] for record in answer["records"]] == [2, 1]
    first = answer["records"][0]
    assert first["result"]["ranks"][0]["losses"] == [1.0, None]
    assert first["machine"]["gpus"] == ["L4", "L4"]
    assert (first["plan"], first["workload"]) == (PROBE.plan, PROBE.workload)


def test_forgetting_prints_what_was_removed(capsys: pytest.CaptureFixture[str]) -> None:
    """By number or all; with an unknown number nothing is removed."""
    for _ in range(4):
        Store().add(PROBE)
    assert run(["history", "--forget", "2", "99"]) == 2
    assert "there is no record 99: the records are 1 to 4" in capsys.readouterr().err
    assert run(["history", "--forget", "2"]) == 0
    assert capsys.readouterr().out == " Forgot record 2.\n"
    assert run(["history", "--forget", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"forgotten": [3]}
    assert run(["history", "--forget", "all", "--force"]) == 0
    assert capsys.readouterr().out == " Forgot 2 records (1, 4).\n"
    assert Store().find() == []


@pytest.mark.parametrize("words", ["all", "2-", "1-3 4"])
def test_off_a_terminal_several_records_are_removed_only_by_force(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody can be asked there. A word that stands for one record is removed."""
    for _ in range(4):
        Store().add(PROBE)
    assert run(["history", "--forget", *words.split()]) == 2
    assert len(Store().find()) == 4
    line = capsys.readouterr().err.strip().partition("; write ds-advise ")[2]
    assert run(line.split()) == 0 and len(Store().find()) < 2
    Store().add(PROBE)
    assert run(["history", "--forget", "5-9"]) == 0


@pytest.mark.parametrize(
    ("words", "answer", "asked", "forgot"),
    [
        ("all", "n\n", "Remove 20 records (1-3, 5-6, 8-9, 11-23)? [y/N]", "nothing"),
        ("all", "y\n", "Remove 20 records", "20 records (1-3, 5-6, 8-9, 11-23)"),
        ("2-5 8", "\n", "Remove 4 records (2-3, 5, 8)?", "nothing"),
        ("2-5 8", "y\n", "Remove 4 records", "4 records (2-3, 5, 8)"),
        ("2 5", "", "", "2 records (2, 5)"),
        ("all --force", "", "", "20 records (1-3, 5-6, 8-9, 11-23)"),
        ("1 3 5 8 11 13 15 17 19 last", "", "", "10 records (1, 3, 5, 8, 11, 13, 15, 17, ...)"),
    ],
)
def test_on_a_terminal_it_asks_before_a_word_removes_several_records(
    words: str,
    answer: str,
    asked: str,
    forgot: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Which a word stands for: numbers are removed at once, and so is everything with --force."""
    for number in range(1, 24):
        Store().add(PROBE)
        if number in (4, 7, 10):
            Store().forget([number])
    typed = io.StringIO(answer)
    for stream in (typed, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin", typed)
    assert run(["history", "--forget", *words.split()]) == 0
    out, err = capsys.readouterr()
    assert asked in err and bool(asked) == bool(err) and out == f" Forgot {forgot}.\n"


@pytest.mark.parametrize("arguments", [["--forget"], ["--forget", "x"], ["1", "all"], ["--limit", "0"], ["-3"]])
def test_nonsense_is_one_line_and_removes_nothing(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2."""
    Store().add(PROBE)
    assert run(["history", *arguments]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert len(Store().find()) == 1


def test_a_store_that_cannot_be_read_is_one_line(own_store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file is named, with what to do; exit code 2."""
    own_store.parent.mkdir()
    own_store.write_text("no database" * 500)
    assert run(["history"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"rm {own_store}" in line


@pytest.mark.parametrize("width", [80, 64])
def test_a_narrow_terminal_tells_runs_apart(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line for each, whatever the others are, with its age and its GPUs; the plan at 80 columns."""
    monkeypatch.setenv("COLUMNS", str(width))
    failure = {"failure": {"kind": "gpu_out_of_memory", "rank": 0}}
    gpus = ("4xRTX-4090", "2x24GB", "8xH100-SXM5")
    results: tuple[dict[str, Any], ...] = ({"step_s": 0.047, "peaks": PEAKS}, FAILED | failure, {"peaks": PEAKS})
    for each, result in zip(gpus, results, strict=True):
        Store().add(replace(PROBE, kind="training", result=result, workload={"gpus": each, "seq_len": 4096}))
    run(["history"])
    lines = [line for line in _lines(capsys) if line.split()[:1] in (["1"], ["2"], ["3"])]
    assert len(lines) == 3 and all(" days " in line and "a-model-with-~" in line for line in lines)
    assert all(each in line for each, line in zip(gpus, lines[::-1], strict=True))
    assert lines[2].endswith("47 ms/step") and lines[1].endswith("GPU OOM")
    assert ("zero2-offload" in lines[0]) == (width == 80)


def test_the_legend_explains_what_the_table_has_and_a_narrow_one_keeps_the_ram_of_the_cpu(
    capsys: pytest.CaptureFixture[str],
) -> None:
    on_cpu = replace(ON_GPU, device="cpu", ranks=(replace(RANK, device_bytes=None, reserved_bytes=None),) * 2)
    Store().add(replace(PROBE, result=on_cpu.to_json()))
    Store().add(replace(PROBE, result=on_cpu.to_json()))
    run(["history"])
    text = " ".join(capsys.readouterr().out.split())
    assert "RAM GiB: host memory of all ranks " in text and "GPU GiB" not in text and "simulates" not in text
    Store().add(PROBE)
    run(["history"])
    text = " ".join(capsys.readouterr().out.split())
    assert "GPU GiB: device memory of the fullest GPU" in text and "RAM GiB:" not in text
    assert "Not shown at this width: " in text


def test_words_choose_records(capsys: pytest.CaptureFixture[str]) -> None:
    """By a part of the model, the kind, the GPUs or the failure, all of them; what no record has is an error."""
    Store().add(replace(PROBE, model_name="Qwen/Qwen2.5-7B", workload={"gpus": "2x24GB"}))
    Store().add(replace(TRAINING, model_name="Qwen/Qwen2.5-7B", workload={"gpus": "8xH100-SXM5"}))
    Store().add(replace(PROBE, result=FAILED))
    for words, numbers in ((["qwen"], ["2", "1"]), (["qwen", "h100"], ["2"]), (["probe"], ["3", "1"])):
        assert run(["history", *words]) == 0
        assert [line.split()[0] for line in _lines(capsys) if line.split()[:1] and line.split()[0].isdigit()] == numbers
    assert run(["history", "memory", "--json"]) == 0
    assert [each["id"] for each in json.loads(capsys.readouterr().out)["records"]] == [3]
    assert run(["history", "qwen"]) == 0 and capsys.readouterr().out
    Store().add(replace(PROBE, model_name="a/Llama-3", workload={"command": "torchrun train.py"}))
    run(["history", "llama"])
    assert " Llama-3 " in capsys.readouterr().out, "what has the word is shown"
    run(["history", "train.py"])
    assert " train.py " in capsys.readouterr().out
    Store().forget("all")
    Store().add(PROBE)
    assert run(["history", "llama"]) == 2
    assert "no record has 'llama' in its model, script, kind, GPUs or failure" in capsys.readouterr().err


def test_a_failure_is_chosen_by_its_words_in_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    """They are shorter than those of the record, and a dry run that does not fit has none."""
    Store().add(replace(PROBE, result=FAILED | {"failure": {"kind": "gpu_out_of_memory", "rank": 0}}))
    Store().add(replace(PROBE, result={"peak": {}, **NEED, "gpu_memory_bytes": 2**32}, kind="dry-run"))
    Store().add(PROBE)
    Store().add(replace(PROBE, kind="training", result={"status": "stopped", "peaks": PEAKS}))
    for words, number in (
        *((["OOM"], 1), (["gpu", "out of memory"], 1), (["too", "large"], 2), (["failed"], 1)),
        *((["stopped"], 4), (["last"], 4), (["dry run"], 2), (["dry-run"], 2)),
    ):
        assert run(["history", *words, "--json"]) == 0
        assert [each["id"] for each in json.loads(capsys.readouterr().out)["records"]] == [number]


def test_numbers_are_forgotten_only_behind_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    """A line that shows a record must not remove it by a word at its end. A range has the numbers that exist."""
    for _ in range(5):
        Store().add(PROBE)
    assert run(["history", "2-3", "--forget"]) == 2
    assert "write ds-advise history --forget 2-3" in capsys.readouterr().err
    assert len(Store().find()) == 5
    assert run(["history", "--forget", "3"]) == 0 and run(["history", "--forget", "2-4", "--force", "--json"]) == 0
    assert capsys.readouterr().out.endswith('{"forgotten": [2, 4]}\n') or len(Store().find()) == 2
    assert run(["history", "--forget", "8-9"]) == 2
    assert "there is no record from 8 to 9" in capsys.readouterr().err
    assert run(["history", "5", "--forget"]) == 2 and len(Store().find()) == 2
    assert "write ds-advise history --forget 5" in capsys.readouterr().err
    assert run(["history", "--limit", "5", "--forget", "5"]) == 0
    assert capsys.readouterr().out == " Forgot record 5.\n"


def test_a_page_without_predicted_figures_has_no_column_for_them(capsys: pytest.CaptureFixture[str]) -> None:
    Store().add(replace(PROBE, workload=PROBE.workload | {"predicted": {"of_another_version": 1.0}}))
    run(["history", "1"])
    assert "predicted" not in capsys.readouterr().out


def test_runs_of_one_model_differ_by_their_length(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At 90 columns; a terminal too narrow for a table has everything that is known, and nothing that is not."""
    for length in (2048, 4096):
        Store().add(replace(TRAINING, workload={"seq_len": length, "gpus": "2xL4"}))
    without = {"gpus": "1 CPU rank", "command": "python train.py", "observed_seq_len": 0}
    Store().add(replace(PROBE, result=ON_CPU.to_json(), workload=without))
    monkeypatch.setenv("COLUMNS", "90")
    run(["history"])
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.split()}
    assert " 2,048 " in lines["1"] and " 4,096 " in lines["2"]
    monkeypatch.setenv("COLUMNS", "40")
    run(["history"])
    shown = " ".join(" ".join(_lines(capsys)).split())
    assert " days, training, 2xL4, a-model-with-~, length 4,096, zero2-offload 4x2," in shown
    assert "tokens/s 500, RAM GiB 3.0 2: " in shown and " -," not in shown
    for result in (FAILED, {"status": "stopped"}, {"peak": {}, **NEED, "gpu_memory_bytes": 2**32}):
        Store().add(replace(PROBE, kind="dry-run" if "peak" in result else "training", result=result))
    run(["history", "4-6"])
    shown = " ".join(" ".join(_lines(capsys)).split())
    assert "4x2, failed: OOM" in shown and "4x2, stopped" in shown and "4x2, too large," in shown
    assert "tokens/s" not in shown


def test_the_plan_is_that_of_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    """A script's own configuration is known from its engine; without one the plan is unknown, not DDP."""
    filled = {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 8}
    Store().add(replace(PROBE, plan={}, result=PROBE.result | {"config": filled}))
    Store().add(replace(PROBE, plan={}, result=FAILED))
    run(["history"])
    unknown, known = [line for line in _lines(capsys) if line.split()[:1] in (["1"], ["2"])]
    assert "zero2 2x8" in known and "ddp" not in unknown


def test_a_missing_record_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Its number, and those that exist."""
    for _ in range(5):
        Store().add(PROBE)
    Store().forget([3, 4, 5])
    for words, said in {
        "2 99": "there is no record 99: the records are 1 to 2",
        "3": "there is no record 3: it was removed",
        "--forget 3 5": "there is no record 3, 5: they were removed",
        "4 6": "there is no record 4, 6: 4 was removed, and the records are 1 to 2",
        "3-4": "there is no record from 3 to 4: they were removed",
        "5-9": "there is no record from 5 to 9; ",
    }.items():
        assert run(["history", *words.split()]) == 2
        assert said in " ".join(capsys.readouterr().err.split())
    Store().forget("all")
    for words, said in {"1": "it was removed", "--forget 1 9": "1 was removed, and no record is stored"}.items():
        assert run(["history", *words.split()]) == 2
        assert capsys.readouterr().err.endswith(f": {said}\n"), "whoever removed it needs no measurement"
    assert run(["history", "last"]) == 2
    assert "no record is stored; use ds-advise bench" in capsys.readouterr().err


def test_the_page_of_a_dry_run_has_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    """Figures of one kind, without cached blocks, and the steps that ran."""
    sizes = {"gpu_peak_bytes": 2**30, "gpu_live_bytes": 2**30, "host_live_bytes": 0}
    phases = [{"iteration": number, "phase": name, **sizes} for number, name in enumerate(("load", "step", "step"))]
    peak = {"reserved_bytes_per_gpu": 7 * 2**30, "allocated_bytes_per_gpu": 5 * 2**30}
    Store().add(replace(PROBE, kind="dry-run", result={"peak": peak, "phases": phases, "iterations": 4, **NEED}))
    run(["history", "1"])
    shown = " ".join(" ".join(_lines(capsys)).split())
    assert "GPU GiB, needed 6.0 GPU GiB, allocated 5.0 RAM" in shown and "steps 2" in shown and " load 1.0" in shown
    assert "0 load" not in shown


def test_the_page_of_a_dry_run_says_what_takes_the_ram(capsys: pytest.CaptureFixture[str]) -> None:
    """As the dry run did: in the verdict, in its phases, whose repetitions take one row, and by the rounding."""
    sizes = {"gpu_peak_bytes": 2**30, "gpu_live_bytes": 2**30, "host_live_bytes": 3 * 2**30, "host_peak_bytes": 2**32}
    sizes |= {"host_held_peak_bytes": 6 * 2**30}
    phases = [{"iteration": number, "phase": "step", **sizes} for number in (1, 2, 3)]
    result = {"peak": {"host_bytes_per_node": 12 * 2**30}, "phases": phases, "iterations": 3, **NEED}
    result |= {"gpus_per_node": 2, "peak_loading_host_bytes": 2**30}
    conditions = {**PROBE.workload, "gpus": "2x24GB"}
    Store().add(replace(PROBE, kind="dry-run", result=result, workload=conditions))
    run(["history", "1"])
    shown = " ".join(" ".join(_lines(capsys)).split())
    assert shown.startswith("The dry run needs 6.0 GiB per GPU, and 16.0 GiB of RAM per node.")
    assert "host peak host live 1 step 1.0 1.0 6.0 3.0 2-3 same as 1" in shown
    assert "4.0 GiB for the processes, and at most 12.0 GiB of tensors of 2 ranks; 4.0 of them are added" in shown
    assert " simulated on " in shown and " machine " not in shown


def test_a_stopped_training_keeps_what_it_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    waited = "rank 0 waits until deepspeed_shm_comm is built"
    Store().add(replace(PROBE, kind="training", result={"status": "stopped", "peaks": PEAKS, "warnings": [waited]}))
    run(["history", "1"])
    assert "Rank 0 waits until deepspeed_shm_comm is built." in capsys.readouterr().out


def test_numbers_and_words_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    """A range without an end goes to the newest."""
    for _ in range(3):
        Store().add(PROBE)
    assert run(["history", "2-"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.split()[:1] in (["2"], ["3"])] == [
        "3",
        "2",
    ]
    assert run(["history", "1", "qwen"]) == 2
    assert "write ds-advise history 1, or ds-advise history qwen" in " ".join(capsys.readouterr().err.split())
    for words, line in {
        "-1": "1",
        "1,2": "1 2",
        "1..2,#3": "1-2 3",
        "3-1 --limit 2": "1-3 --limit 2",
        "--forget ALL": "--forget all",
        "Last": "last",
        "last probe": "last, or ds-advise history probe --limit 1",
        "rm 2": "--forget 2",
        "remove 2 3": "--forget 2 3",
        "limit 2": "--limit 2",
        "clear": "--forget all",
        "delete all": "--forget all",
        "list": "",
        "--list": "",
        "ls 2": "2",
    }.items():
        assert run(["history", *words.split()]) == 2
        assert capsys.readouterr().err.endswith(f"; write {f'ds-advise history {line}'.strip()}\n"), words
    assert run(["history", "--forget", "2", "--limit", "3"]) == 0
    assert "--limit has no effect with --forget" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "title"),
    [
        ("dry-run Qwen2.5-7B --gpus 2x24GB", "Repeat it"),
        ("probe /work/ds.json --model=Qwen2.5-7B", "Repeat it"),
        ("probe ds.json", "Repeat it in the same folder"),
        ("dry-run --gpus 2x24GB -- torchrun train.py", "Repeat it in the same folder"),
        ("probe --config=configs/ds.json", "Repeat it in the same folder"),
    ],
)
def test_the_folder_matters_only_for_its_files(line: str, title: str, capsys: pytest.CaptureFixture[str]) -> None:
    Store().add(replace(PROBE, workload={**PROBE.workload, "command_line": f"ds-advise {line}"}))
    run(["history", "1"])
    assert f" {title}\n" in capsys.readouterr().out


def test_the_memory_of_a_run_on_the_cpu_stays_beside_runs_on_gpus(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the length, which is the same for all."""
    Store().add(TRAINING)
    Store().add(replace(PROBE, result=ON_CPU.to_json()))
    monkeypatch.setenv("COLUMNS", "90")
    run(["history"])
    shown = capsys.readouterr().out
    assert "RAM GiB" in shown.splitlines()[0] and "length" not in shown.splitlines()[0]


def test_a_store_of_one_record_is_named_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    Store().add(PROBE)
    assert run(["history", "99"]) == 2
    assert "there is no record 99: the only record is 1" in capsys.readouterr().err


def test_the_figures_of_a_benchmark_stand_in_one_column() -> None:
    """Also beside an uncertain one; the speed of the links is that of large tensors, whose size is named."""
    figures = [
        figure("all_gather", "gloo", 2**20, 1e9, [1.0, 2.4]),
        figure("all_gather", "gloo", 2**26, 1e9, [1.0, 1.1]),
        figure("reduce_scatter", "gloo", 2**26, 1e9, [1.0, 1.1]),
    ]
    result = bench_result(*figures, versions={"torch": "2", "deepspeed": "0"})
    printed = printed_document(bench_document(Record(kind="bench", machine=MACHINE, result=asdict(result))))
    assert "all-gather and reduce-scatter of up to 64 MiB, bus bandwidth" in " ".join(printed.split())
    rows = [line for line in printed.splitlines() if " to 1000" in line]
    assert len(rows) == 3 and len({line.index(" to 1000") for line in rows}) == 1, printed
    assert rows[0].rstrip().endswith("2.4 x")
