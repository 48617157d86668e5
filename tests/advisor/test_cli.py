"""The command line: streams, exit codes, files, terminals, errors."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import resource
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from ds_advise.advisor.cli.commands import COMMANDS
from ds_advise.advisor.cli.main import program
from ds_advise.advisor.cli.main import run as run_here
from ds_advise.advisor.document import blocks as doc
from ds_advise.advisor.document.terminal import print_blocks
from ds_advise.advisor.question.options import GROUPS, OPTIONS
from ds_advise.advisor.text.lines import commands, sentence, wrapped
from ds_advise.advisor.text.units import rough_rates
from ds_advise.estimators.errors import error_line
from ds_advise.estimators.models import catalogue
from rich.cells import cell_len
from rich.console import Console

from tests.helpers import TINY

FAST = ["--no-deepspeed-estimate", "--offline"]


def run(*arguments: str, cwd: Path, shell: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """`ds-advise` in a process with pipes. shell: its redirections."""
    clean = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    words = [sys.executable, "-m", "ds_advise", *arguments]
    return subprocess.run(
        f"{' '.join(words)} {shell}" if shell else words,
        shell=bool(shell),
        cwd=cwd,
        capture_output=True,
        encoding=environment.get("PYTHONIOENCODING"),
        text=True,
        timeout=900,
        env={**clean, **environment},
    )


def test_the_main_command_answers_and_writes_the_configuration(tmp_path: Path) -> None:
    """The verdict comes first, the file is written into the working folder, and the commands name it. A pipe has no
    colors."""
    done = run("Qwen2.5-14B", "--gpus", "2x32GB", *FAST, cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == "" and "\x1b" not in done.stdout
    assert "fits" in done.stdout.splitlines()[0]
    config = json.loads((tmp_path / "ds_config.json").read_text())
    assert config["zero_optimization"]["stage"] in (2, 3)
    assert "Wrote ds_config.json." in done.stdout
    assert "deepspeed --num_gpus 2 train.py --deepspeed ds_config.json" in done.stdout
    # Only text to copy may be longer than 80 columns.
    assert [line for line in done.stdout.splitlines() if len(line) > 80 and not line.startswith("   ")] == []


def test_counts_have_units_and_lengths_are_powers_of_two(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "gpt2",
        "--gpus",
        "8xH100",
        "--seq-len",
        "1k",
        "--global-batch",
        "1k",
        "--samples",
        "1e6",
        "--no-write",
        "--json",
    ]
    assert run_here([*words, *FAST]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["workload"]["seq_len"], answer["workload"]["global_batch_size"]) == (1024, 1000)
    assert answer["recommended"]["job"]["steps"] == 3000  # three epochs


def test_colors_and_characters_are_those_of_the_terminal(tmp_path: Path) -> None:
    """NO_COLOR is obeyed, and a terminal without Unicode shows the answer."""
    asked = ("gpt2", "--gpus", "T4", "--no-write", *FAST)
    forced = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    assert "\x1b[" in run(*asked, cwd=tmp_path, **forced).stdout
    done = run(*asked, cwd=tmp_path, NO_COLOR="1", PYTHONIOENCODING="ascii", **forced)
    assert "\x1b[3" not in done.stdout and "zero3-offload" in done.stdout
    assert done.returncode == 0 and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words", [["gpt2", "--gpus", "24GB", "--no-write"], ["lint", "ds.json"], ["explain", "overlap_comm"]]
)
def test_a_terminal_of_no_columns_gets_the_answer_in_80(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """`COLUMNS=0`, which some schedulers and editors set."""
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text("{}")
    printed = []
    for columns in ("80", "0"):
        monkeypatch.setenv("COLUMNS", columns)
        run_here(words)
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != ""


def test_another_configuration_is_kept_and_a_numbered_file_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every printed command and job file names the written one; the same answer is written once; --force replaces."""
    kept, second = tmp_path / "ds_config.json", tmp_path / "ds_config-2.json"
    kept.write_text("{}")
    ask = ["gpt2", "--gpus", "T4", *FAST]
    assert run_here([*ask, "--emit", "slurm"]) == 0 and kept.read_text() == "{}"
    out = " ".join(capsys.readouterr().out.split())
    assert "Wrote ds_config-2.json, job.sbatch; ds_config.json is another configuration (--force replaces it)." in out
    assert out.count("ds_config.json") == 1 and "--deepspeed ds_config-2.json" in out
    job, written = (tmp_path / "job.sbatch").read_text(), second.read_text()
    assert "ds_config-2.json" in job and "ds_config.json" not in job
    assert run_here([*ask, "--quiet"]) == 0 and second.read_text() == written
    assert run_here([*ask, "--seq-len", "512", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == ["ds_config-3.json"]
    assert len(list(tmp_path.iterdir())) == 4
    assert run_here([*ask, "--force"]) == 0 and kept.read_text() == written
    assert "another configuration" not in capsys.readouterr().out


def test_a_named_file_with_other_content_is_kept_and_the_answer_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is written then, also if only a job file beside it is the user's."""
    target = tmp_path / "zero.json"
    target.write_text("{}")
    ask = ["gpt2", "--gpus", "T4", *FAST]
    assert run_here([*ask, "-o", "zero.json"]) == 2 and target.read_text() == "{}"
    out, err = capsys.readouterr()
    assert (
        out.startswith(" DDP fits.")
        and "zero.json is not written: it is another configuration" in out
        and "Wrote" not in out
    )
    assert "zero.json exists and differs" in err and "--force" in err and len(err.splitlines()) == 1
    (tmp_path / "job.sbatch").write_text("mine")
    assert run_here([*ask, "--emit", "slurm", "--json"]) == 2
    shown = json.loads(capsys.readouterr().out)
    assert shown["recommended"]["strategy"] == "ddp" and shown["files"] == []
    assert sorted(file.name for file in tmp_path.iterdir()) == ["job.sbatch", "zero.json"]
    assert run_here([*ask, "-o", "zero.json", "--force"]) == 0 and target.read_text() != "{}"
    assert run_here([*ask, "-o", "zero.json"]) == 0


@pytest.mark.parametrize("options", [("-o", "ds_config.json"), ()])
def test_the_answer_is_shown_beside_a_file_that_cannot_be_read(
    options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "ds_config.json"
    kept.write_text("{}")
    opened = Path.open

    def refuse(self: Path, *args: Any, **named: Any) -> Any:  # root may read everything
        if self.name == kept.name:
            raise PermissionError(13, "Permission denied")
        return opened(self, *args, **named)

    monkeypatch.setattr(Path, "open", refuse)
    assert run_here(["gpt2", "--gpus", "T4", *FAST, *options]) == 2
    out, error = capsys.readouterr()
    assert out.startswith(" DDP fits.") and "ds_config.json is not written. " in out
    assert "ds_config.json: cannot be read (Permission denied)" in error and len(error.splitlines()) == 1


def test_a_kept_configuration_to_try_first_is_not_called_the_recommended_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    question = "Qwen2.5-32B --gpus 8xA100-80GB --seq-len 8192 --global-batch no-accumulation --loss standard"
    ask = [*question.split(), "--sequence-parallel-size", "1", "--gradient-checkpointing", "on", *FAST]
    (tmp_path / "own_try_first.json").write_text("{}")
    assert run_here([*ask, "-o", "own.json", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["try_first"] is not None
    assert run_here([*ask, "-o", "own.json"]) == 2
    out, error = capsys.readouterr()
    assert "own_try_first.json exists and differs" in error and "is another configuration" not in out
    assert not (tmp_path / "own.json").exists()


def test_where_the_configuration_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """-o FILE, -o - (the configuration alone on stdout), --no-write."""
    assert run_here(["gpt2", "--gpus", "T4", "-o", "zero.json", *FAST]) == 0
    capsys.readouterr()
    assert run_here(["gpt2", "--gpus", "T4", "-o", "-", *FAST]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == json.loads((tmp_path / "zero.json").read_text()) and "fits" in err
    assert run_here(["gpt2", "--gpus", "T4", "--no-write", *FAST]) == 0
    assert [file.name for file in tmp_path.iterdir()] == ["zero.json"]
    assert run_here(["gpt2", "--gpus", "T4", "--no-write", "-o", "a.json", *FAST]) == 2
    assert "--output and --no-write contradict each other" in capsys.readouterr().err


def test_a_folder_is_refused_as_the_file_to_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also one that does not exist, of which `Path` drops the slash, by every option that writes a file."""
    question = ["gpt2", "--gpus", "T4", *FAST]
    for folder, file in ((".", "ds_config.json"), ("/", "/ds_config.json")):
        assert run_here([*question, "-o", folder]) == 2
        assert f"--output {folder} is a folder; write --output {file}\n" in capsys.readouterr().err
    for line in ([*question, "-o"], [*question, "--html"], ["contribute", "-o"], ["from", "no.yaml", "-o"]):
        assert run_here([*line, "new/"]) == 2
        assert " new/: there is no folder new; create it, and write --" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_nothing_fits_exits_1_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here(["llama-3.1-405b", "--gpus", "RTX4090", "--ram", "64GB", *FAST]) == 1
    out, err = capsys.readouterr()
    assert err == "" and out.startswith(" Nothing fits.") and "GiB of RAM" in out.split("\n\n")[0]
    assert "What would make it fit" in out
    assert list(tmp_path.iterdir()) == []


BAD_LINES = [
    "gpt2 --gpus 2x32GB --seq-len 0",
    "gpt2 --gpus 2x32GB --micro-batch -2",
    "gpt2 --gpus T4 --json -o -",
    "gpt2 --gpus T4 -o=",
    "gpt2 --gpus T4 -o no/such/folder/ds_config.json",
    "gpt2 gpt2 --gpus T4",
    f"{'a' * 5000} --gpus T4",
    "not-json.json --gpus T4",
]


@pytest.mark.parametrize("line", BAD_LINES, ids=lambda line: line[:60])
def test_bad_input_gets_one_line_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str) -> None:
    """What, why and fix on stderr; no traceback; nothing written. (An unwritable target still prints the answer.)"""
    (tmp_path / "not-json.json").write_text("{")
    before = sorted(tmp_path.iterdir())
    arguments = ["" if word == "-o=" else word for word in line.replace("-o=", "-o -o=").split()]
    assert run_here([*arguments, *FAST]) == 2
    out, err = capsys.readouterr()
    assert len(err.splitlines()) == 1 and err.startswith("ds-advise: "), err
    assert "error of ds-advise itself" not in err and len(err) < 500
    assert sorted(tmp_path.iterdir()) == before
    assert out == "" or "-o" in arguments


def test_a_message_on_a_terminal_is_wrapped_without_breaking_a_command_or_a_path() -> None:
    """To a file or a pipe it is one line, as the tests around this one show."""
    path = "/data/" + "experiment/" * 6 + "ds_config.json"
    message = f"ds-advise: {path}: no such file; pass --output FILE, or run ds-advise doctor --json first"
    lines = wrapped(message, 40).splitlines()
    assert " ".join(line.strip() for line in lines) == message
    assert lines[1].strip() == f"{path}:" and all(len(line) < 40 for line in lines if path not in line)
    assert any("--output FILE" in line for line in lines) and any("ds-advise doctor --json" in line for line in lines)
    chinese = "ds-advise: 没有叫 'GTX9999' 的显卡: 猜不出它的显存和速度; 相近的有 RTX 3090, 或只写显存"
    assert all(cell_len(line) < 40 for line in wrapped(chinese, 40).splitlines())


def test_a_marked_line_on_a_narrow_terminal_is_within_it_and_breaks_at_words(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=(printed := io.StringIO()), width=64)
    monkeypatch.setattr(printed, "isatty", lambda: True)
    text = "fits: 58.8 of 79.1 GiB per GPU (micro batch 1 x accumulation 4, with the checkpointing of activations off)"
    print_blocks([doc.Line(text, "", "ok    ")], console)
    lines = printed.getvalue().splitlines()
    assert max(map(len, lines)) < 64 and " ".join(" ".join(lines).split()) == f"ok {text}"
    assert all(line.startswith("        ") for line in lines[1:])


def test_the_name_of_a_module_is_continued_behind_a_dot() -> None:
    console = Console(file=(printed := io.StringIO()), width=40)
    command = "python -m deepspeed.checkpoint.ds_to_universal --input_folder saved/global_step4"
    commands(console, [command])
    assert max(map(len, printed.getvalue().splitlines())) <= 40
    assert " ".join(printed.getvalue().replace("\\\n", "").split()) == command


def test_narrow_lines_break_at_the_marks_of_paths_and_never_in_a_url_or_between_an_option_and_its_value() -> None:
    url = "https://example.org/organization/repository/blob/main/CamelCaseFile.cpp"
    console = Console(file=(printed := io.StringIO()), width=40)
    sentence(console, f"see {url} too")
    assert [line.strip() for line in printed.getvalue().splitlines()] == ["see", url, "too"]
    console = Console(file=(printed := io.StringIO()), width=40)
    sentence(console, "see /organization/repository/blob/main/long/some_folder/CamelCaseFile.cpp")
    commands(console, ["ds-advise launch ds_config.json --optimizer adamw_8bit --model Qwen/Qwen2.5-7B -- train.py"])
    lines = printed.getvalue().splitlines()
    assert all(len(line) <= 40 for line in lines)
    at = next(place for place, line in enumerate(lines) if "launch" in line)
    assert all(line.endswith("/") for line in lines[1 : at - 1]), lines
    assert any("--optimizer adamw_8bit" in line for line in lines) and any("--model Qwen" in line for line in lines)
    console = Console(file=io.StringIO(), width=40)
    rows = [
        doc.Row(["80 % of runs", "19,000-30,000", "28,000-44,000"]),
        doc.Row(["GPU", "19.9 of 79.1", "53.8 of 79.1"]),
    ]
    print_blocks([doc.Table(["", "as it is", "better"], rows)], console)
    head, *others = console.file.getvalue().splitlines()
    assert [head.index(title) for title in ("as it is", "better")] == [others[-1].index(f) for f in ("19.9", "53.8")]


@pytest.mark.parametrize("columns", [80, 64, 40])
def test_python_is_continued_inside_its_parentheses(columns: int) -> None:
    """It has the same meaning at any width, and no backslash where something is open and has a space."""
    source = [
        "model = get_peft_model(",
        "    model,",
        '    LoraConfig(r=8, target_modules="all-linear", modules_to_save=["embed_tokens", "lm_head"]),',
        "    autocast_adapter_dtype=False)",
        "engine, *_ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())",
        'batch["position_ids"] = torch.arange(batch["input_ids"].shape[1]).expand_as(batch["input_ids"])',
        "from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF, UlyssesSPDataLoaderAdapter",
    ]
    console = Console(file=(printed := io.StringIO()), width=columns)
    commands(console, source, is_python=True)
    lines = printed.getvalue().splitlines()
    assert max(map(len, lines)) <= max(columns, 64)
    assert ast.dump(ast.parse(textwrap.dedent(printed.getvalue()))) == ast.dump(ast.parse("\n".join(source)))
    assert columns < 64 or not any(line.endswith("\\") for line in lines if "from " not in line)


def test_an_error_is_one_line_and_debug_adds_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here(["gpt2", "--gpus", "2xB9000", *FAST]) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1
    assert run_here(["gpt2", "--gpus", "2xB9000", "--debug", *FAST]) == 2
    debugged = capsys.readouterr().err
    assert "Traceback" in debugged and debugged.endswith(err)
    assert run_here(["launch", "missing.json", "--", "train.py", "--debug"]) == 2
    assert capsys.readouterr().err.startswith("ds-advise: missing.json: no such file"), "the script's own option"
    assert run_here(["launch", "missing.json", "--debug", "--", "train.py"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_fault_of_the_program_is_one_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ds_advise.advisor.advise.predict_all", lambda *_: 1 // 0)
    assert run_here(["gpt2", "--gpus", "T4", *FAST]) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1
    assert "ZeroDivisionError" in err and "--debug" in err


@pytest.mark.parametrize(
    "error", [MemoryError(), ImportError("libtorch_cpu.so: failed to map segment from shared object")]
)
def test_a_limit_of_memory_is_no_error_of_the_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("ds_advise.advisor.advise.predict_all", fail)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (3 << 29, -1))
    assert run_here(["gpt2", "--gpus", "T4", *FAST]) == 2
    err = capsys.readouterr().err
    assert "ran out" in err and "ulimit -v limits to 1.5 GiB" in err and "itself" not in err


@pytest.mark.parametrize(
    ("redirection", "code", "message"),
    [(">/dev/full", 2, "the answer cannot be written: No space left on device"), (">&- 2>&-", 0, "")],
)
def test_a_stdout_that_takes_nothing(tmp_path: Path, redirection: str, code: int, message: str) -> None:
    """A full disk is an error in one line; a closed stream is not. The file is written in both cases."""
    done = run("gpt2", "--gpus", "T4", *FAST, cwd=tmp_path, shell=redirection)
    assert done.returncode == code
    assert done.stderr == (f"ds-advise: {message}\n" if message else "")
    assert "zero_optimization" in json.loads((tmp_path / "ds_config.json").read_text())


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_the_exit_code_is_that_of_the_answer_if_nobody_reads_it(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "bad.json").write_text('{"zero_optimization": {"stage": 9}}')
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "ds_advise", "lint", "bad.json", *options]
    done = subprocess.run(words, cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE, timeout=900)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def test_links_are_followed_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A loop of links is an error in one line."""
    link = tmp_path / "ds_config.json"
    link.symlink_to("real.json")
    assert run_here(["gpt2", "--gpus", "T4", *FAST]) == 0
    assert link.is_symlink() and (tmp_path / "real.json").is_file()
    link.unlink()
    link.symlink_to(link.name)
    capsys.readouterr()
    assert run_here(["gpt2", "--gpus", "T4", *FAST]) == 2
    out, err = capsys.readouterr()
    assert "Wrote" not in out and "is a broken link" in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "warning"),
    [
        ("--lora-rank 4", "--lora-rank has no effect with --method full"),
        ("--method lora --quantization int8", "--quantization has no effect with --method lora"),
        ("--budget 5m", "--budget has no effect without --probe"),
        ("--freeze vision-tower", "--freeze vision-tower has no effect: openai-community/gpt2 has no such part"),
        ("--input-shape 3,32,32", "--input-shape has no effect without a module of your own, FILE.py:FUNCTION"),
    ],
)
def test_an_option_without_effect_warns(capsys: pytest.CaptureFixture[str], words: str, warning: str) -> None:
    """On stderr, next to the answer."""
    assert run_here(["gpt2", "--gpus", "T4", *words.split(), "--json", *FAST]) == 0
    out, err = capsys.readouterr()
    assert err == f"ds-advise: {warning}\n"
    assert json.loads(out)["workload"]["method"] == ("lora" if "--method lora" in words else "full")


def test_quantized_weights_warn_unless_qlora_trains_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On stderr and among the assumptions."""
    quantized = catalogue.config("Qwen/Qwen2.5-0.5B") | {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(quantized))
    asked = [str(tmp_path), "--gpus", "T4", "--no-write", "--json", *FAST]
    assert run_here(asked) == 0
    out, err = capsys.readouterr()
    assert err.startswith(f"ds-advise: the weights of {tmp_path} are quantized (gptq)")
    assert any("not as the checkpoint's gptq" in assumption for assumption in json.loads(out)["assumptions"])
    assert run_here([*asked, "--method", "qlora"]) == 0
    assert "quantizes only unquantized ones: write --quantization gptq, or" in capsys.readouterr().err
    assert run_here([*asked, "--method", "qlora", "--quantization", "gptq"]) == 0
    assert capsys.readouterr().err == ""
    asked.remove("--json")
    assert run_here(asked) == 0
    assert "the prediction is for an unquantized checkpoint" in " ".join(capsys.readouterr().out.split())
    assert run_here([*asked, "--method", "qlora", "--quantization", "gptq"]) == 0
    assert "pip install gptqmodel optimum" in capsys.readouterr().out
    assert run_here(["gpt-oss-20b", "--gpus", "8xH100", "--method", "lora", "--no-write", *FAST]) == 0
    assert "Then load gpt-oss-20b-bf16 in the script, not openai/gpt-oss-20b." in capsys.readouterr().out


@pytest.mark.parametrize("method", ["full", "qlora"])
def test_a_quantized_checkpoint_of_the_catalogue_is_trained_as_a_copy(
    capsys: pytest.CaptureFixture[str], method: str
) -> None:
    """The answer has the lines that make the copy: transformers quantizes no quantized checkpoint, and trains MXFP4 not
    at all. Those of a base model in 16 bits have none."""
    assert run_here(["gpt-oss-20b", "--gpus", "8xH100", "--method", method, "--no-write", *FAST]) == 0
    out, err = capsys.readouterr()
    assert "openai/gpt-oss-20b are quantized (mxfp4)" in err
    assert "transformers.Mxfp4Config(dequantize=True)" in out
    assert 'save_pretrained("gpt-oss-20b-bf16")' in out
    assert run_here(["Ministral-3-3B-Base-2512", "--gpus", "8xH100", "--method", method, "--no-write", *FAST]) == 0
    out, err = capsys.readouterr()
    assert not err
    assert "dequantize" not in out


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--gpuss", "did you mean --gpus?"),
        ("--methd", "did you mean --method?"),
        ("--sqelen", "write --seq-len 1"),
    ],
)
def test_a_misspelled_option_is_corrected(capsys: pytest.CaptureFixture[str], typed: str, meant: str) -> None:
    assert run_here(["gpt2", typed, "1"]) == 2
    assert capsys.readouterr().err.startswith(f"ds-advise: no such option {typed}; {meant}")


@pytest.mark.parametrize("words", ["lnit ds_config.json", "lnit", "lnit --gpus 24GB"])
def test_a_misspelled_command_is_corrected(capsys: pytest.CaptureFixture[str], words: str) -> None:
    """A word that begins a model's name is not: `bert` is close to `rent`."""
    assert run_here(words.split()) == 2
    line = f"ds-advise {words.replace('lnit', 'lint')}"
    assert capsys.readouterr().err == f"ds-advise: no command or model 'lnit'; write {line}\n"
    assert run_here(["bert", "--gpus", "24GB"]) == 2
    assert "is ambiguous" in capsys.readouterr().err


def test_the_commands_with_a_language_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here(["lint", "ds_config.json", "--lang", "zh"]) == 2
    error = "no such option --lang: it is one of ds-advise advise, page; see ds-advise advise --help-all"
    assert capsys.readouterr().err == f"ds-advise: {error}\n"


@pytest.mark.parametrize("words", ["probe --foo", "train", "from acc.yaml --gpus 80GB --foo", "launch --foo"])
def test_a_wrong_option_points_to_its_commands_help(capsys: pytest.CaptureFixture[str], words: str) -> None:
    assert run_here(words.split()) == 2
    assert re.search(rf"(; s|\? S)ee ds-advise {words.split()[0]} --help-all\n$", capsys.readouterr().err)


@pytest.mark.parametrize("words", ["{} --gpus 80GB -o {}.json", "{}/x --gpus 80GB"])
def test_names_do_not_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str) -> None:
    """A folder's name with an escape sequence, in answers, in commands to copy and in errors."""
    name = "evil\x1b[31mred"
    (tmp_path / name).mkdir()
    (tmp_path / name / "config.json").write_text(json.dumps(TINY))
    run_here(words.format(*["./" + name] * 2).split(" "))
    printed = "".join(capsys.readouterr())
    assert "evil\N{REPLACEMENT CHARACTER}[31mred" in printed and "\x1b" not in printed


def test_ctrl_c_is_130_and_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Also during the imports, where there is none."""
    from ds_advise.__main__ import main

    class Interrupted:
        def __getattr__(self, _: str) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr("ds_advise.advisor.cli.main.program.main", lambda **_: Interrupted().main)
    assert run_here(["gpt2"]) == 130
    assert capsys.readouterr().err == "ds-advise: interrupted\n"
    monkeypatch.setitem(sys.modules, "ds_advise.advisor.cli.main", Interrupted())
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, capsys.readouterr().err) == (130, "")


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["advise", "--help"]])
def test_help_is_the_main_commands_help(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert run_here(arguments) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Usage: ds-advise") and "--gpus SPEC" in out and "  [OPTIONS]" not in out and err == ""


def test_the_short_help_has_the_commands_and_the_long_one_all_options(capsys: pytest.CaptureFixture[str]) -> None:
    """The short one takes two screens at most, and names the long one."""
    assert run_here(["--help"]) == 0
    short = capsys.readouterr().out
    assert len(short.splitlines()) <= 80 and "ds-advise --help-all" in short
    shared = ("--html", "--json", "--markdown", "--plot", "--emit", "--lang", "--script", "--no-write", "--force")
    assert all(f" {option}" in short for option in (*shared, "--objective", "--micro-batch"))
    assert [name for name in COMMANDS if f"\n  {name} " not in short] == []
    assert "why train.log" in short and "lint ds_config.json" in short
    assert run_here(["--help-all"]) == 0
    long = capsys.readouterr().out
    assert [option.flag for option in OPTIONS.values() if f"\n  {option.flag}" not in long] == []
    assert [line for line in long.splitlines() if len(line) > 80 and "  ds-advise " not in line] == []
    assert [title for title in GROUPS if f"\n{title}:\n" not in long] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_short_help_of_a_command_has_its_own_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of those that commands share, it has the machine and what its examples use; --help-all has the rest. Where the
    command has few options, there is no rest."""
    assert run_here([name, "--help"]) == 0
    short = capsys.readouterr().out
    assert run_here([name, "--help-all"]) == 0
    long = capsys.readouterr().out
    assert len(short.splitlines()) <= 64
    command = program.get_command(click.Context(program), name)
    assert command is not None
    options = [each for each in command.params if isinstance(each, click.Option)]
    lines = {max(each.opts, key=len): rf"\n  (-\w, )?{max(each.opts, key=len)}\b" for each in options}
    assert [flag for flag, line in lines.items() if not re.search(line, long)] == []
    lacking = [flag for flag, line in lines.items() if not re.search(line, short)]
    assert bool(lacking) == ("--help-all" in short)
    examples = (command.help or "").partition("\b\n")[2].partition("\n\n")[0]
    assert [flag for flag in lacking if re.search(rf"{flag}\b(?!-)", examples) or flag in ("--gpus", "--model")] == []
    assert {"--lora-rank", "--loss", "--software"} & lines.keys() <= {*lacking}
    assert "ds-advise why" not in long or name == "why"


def test_the_help_of_a_command_names_the_groups_that_only_the_whole_help_has(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A default of a special training is in the whole help too; of an option of the command it stays."""
    assert run_here(["--help-all", "why"]) == 0
    assert "\nSoftware:\n" in capsys.readouterr().out
    assert run_here(["why", "--help"]) == 0
    assert "--help-all Show all options and exit: also Method, Training, Software," in " ".join(
        capsys.readouterr().out.split()
    )
    assert run_here(["train", "--help"]) == 0
    assert "[default: 2e-5; 2e-4 with LoRA]" in " ".join(capsys.readouterr().out.split())
    assert run_here(["explain", "--help"]) == 0
    assert "[default: about 32]" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--help"], ["lint", "--help"], ["doctor", "--help"]])
def test_the_help_fits_a_narrow_terminal(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A longer command continues after a backslash, a list after a comma; only a word or quoted text that is longer
    than a line is longer."""
    monkeypatch.setenv("COLUMNS", "40")
    assert run_here(arguments) == 0
    out = capsys.readouterr().out
    assert " \\\n" in out and ", \\\n" not in out
    assert [line for line in out.splitlines() if len(line) > 40 and " " in line.strip() and '"' not in line] == []


def test_labels_of_the_help_stand_apart_where_commands_have_no_room(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "64")
    assert run_here(["--help"]) == 0
    out = capsys.readouterr().out
    assert "\n\n  With a script\n    ds-advise --gpus" in out and "\n\nFiles\n  --no-write" in out
    assert "--seq-len max" in out.partition("Ask:")[0]


def test_the_help_has_colours_on_a_terminal_only(tmp_path: Path) -> None:
    """Commands and options stand out there, unless NO_COLOR is set."""
    assert "\x1b" not in run("--help", cwd=tmp_path).stdout
    for environment in ({}, {"NO_COLOR": "1"}):
        clean: dict[str, str | None] = {"NO_COLOR": None, "TERM": "xterm", **environment}
        shown = CliRunner().invoke(program, ["--help"], color=True, env=clean).output
        for text in ("\x1b[36m\x1b[1mlint\x1b[0m", "\x1b[36m\x1b[1m--gpus\x1b[0m SPEC"):
            assert (text in shown) == (environment == {})


@pytest.mark.parametrize("value", ["x", "70000", "-1"])
def test_a_number_out_of_range_is_refused_with_the_range(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here(["page", "--port", value]) == 2
    assert f"'{value}' is not a whole number from 0 to 65535" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_of_sentences(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert "Exit code" in " ".join(out.split()) or name == "schema"
    assert not re.search(r"INTEGER|RANGE|<=x|x>=", out), "a number is N"
    assert not re.search(r"(?m)^ *ds-advise .*#", out), "a comment would be broken with its command"
    command = program.get_command(click.Context(program), name)
    assert command is not None
    helps = [option.help or "" for option in command.params if isinstance(option, click.Option) and not option.hidden]
    assert all(text[:1].isupper() and "." in text for text in helps), helps


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("gpt2 --gpus 24GB --no-write --data missing.jsonl", "missing.jsonl: cannot be read"),
        ("train", "--model is missing"),
        ("train --model gpt2 --data missing.jsonl", "missing.jsonl: cannot be read"),
        ("bench", "this needs torch"),
        ("schema advise", "this needs pydantic"),
        ("schema --help", ""),
        ("train --help", ""),
    ],
)
def test_a_package_that_is_missing_is_named_last(tmp_path: Path, words: str, message: str) -> None:
    """After the file and the option that are missing, and not by a help."""
    hide = """import importlib.metadata, sys
class Hidden:
    def find_spec(self, name, *_):
        if name.split(".")[0] in ("datasets", "pydantic", "torch", "deepspeed"):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Hidden())
found = importlib.metadata.version
def version(name):
    if name in ("torch", "deepspeed"):
        raise importlib.metadata.PackageNotFoundError(name)
    return found(name)
importlib.metadata.version = version
from ds_advise.advisor.cli.main import run
sys.exit(run(sys.argv[1:]))"""
    command = [sys.executable, "-c", hide, *words.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == (2 if message else 0), done.stderr
    if message:
        assert len(done.stderr.splitlines()) == 1 and message in done.stderr


def test_a_terminal_without_its_library_gets_one_line(tmp_path: Path) -> None:
    """The library that colours errors is named by an error without colours."""
    hide = """import sys
sys.modules["rich"] = None
sys.stderr.isatty = lambda: True
from ds_advise.advisor.cli.main import run
sys.exit(run(sys.argv[1:]))"""
    command = [sys.executable, "-c", hide, "gpt2", "--gpus", "1x24GB", "--no-write", "--offline"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "ds-advise: this needs rich: it is not installed; pip install rich\n"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("gpt2 --optimizer adaf", "plain,adafactor"),
        ("gpt2 --gpus 8xH100-S", "plain,8xH100-SXM5"),
        ("gpt2 --data rows", "file,rows"),
        ("lint ds_", "file,ds_"),
        ("why train", "file,train"),
        ("why --help-all --modu", "plain,--modules-to-save"),
    ],
)
def test_the_shell_completes_names_and_files(tmp_path: Path, words: str, found: str) -> None:
    typed = f"ds-advise {words}"
    asked = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" ")), "_DS_ADVISE_COMPLETE": "bash_complete"}
    assert run(cwd=tmp_path, **asked).stdout.splitlines() == [found]


@pytest.mark.parametrize(
    ("fix", "line"),
    [
        ("Compare it with --help", "it failed: why; compare it with --help"),
        ("CUDA is needed", "it failed: why; CUDA is needed"),
        ("DeepSpeed's is older", "it failed: why; DeepSpeed's is older"),
        ("", "it failed: why"),
    ],
)
def test_a_fix_goes_on_in_the_line_of_its_error(fix: str, line: str) -> None:
    assert error_line("it failed", "why", fix) == line


@pytest.mark.parametrize(
    ("interval", "shown"),
    [
        ((12_100, 13_400, 13_380), ("12,000", "14,000")),
        ((1_130, 1_764, 1_490), ("1,100", "1,800")),
        ((0.516, 0.6, 0.515), ("0.51", "0.6")),
        ((25.6, 31.0, 25.5), ("25", "31")),
    ],
)
def test_an_interval_has_its_estimate(interval: tuple[float, float, float], shown: tuple[str, str]) -> None:
    assert rough_rates(*interval) == shown


def test_the_word_help_shows_the_help() -> None:
    """As git and pip do; of a command, too."""
    for words in (["help"], ["help", "lint"]):
        shown = CliRunner().invoke(program, words)
        assert shown.exit_code == 0
        assert shown.output == CliRunner().invoke(program, [*words[1:], "--help"]).output
