"""The command line as a user meets it: streams, exit codes, files, terminals, errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ds_advise.advisor.cli import main as cli
from ds_advise.estimators.models import catalogue

FAST = ["--no-deepspeed-estimate", "--offline"]


def run(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`ds-advise` in a process of its own, its output read as a pipe."""
    clean = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    return subprocess.run(
        [sys.executable, "-m", "ds_advise", *arguments],
        cwd=cwd,
        capture_output=True,
        encoding=environment.get("PYTHONIOENCODING"),
        text=True,
        timeout=900,
        env={**clean, **environment},
    )


def test_the_main_command_answers_and_writes_the_configuration(tmp_path: Path) -> None:
    """The verdict comes first, the file is written where the user stands, and the commands name it."""
    done = run("Qwen2.5-14B", "--gpus", "2x32GB", *FAST, cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == ""
    assert "fits" in done.stdout.splitlines()[0]
    config = json.loads((tmp_path / "ds_config.json").read_text())
    assert config["zero_optimization"]["stage"] in (2, 3)
    assert "Wrote ds_config.json." in done.stdout
    assert "deepspeed --num_gpus 2 train.py --deepspeed ds_config.json" in done.stdout


def test_sentences_and_the_table_fit_80_columns(tmp_path: Path) -> None:
    """Only what is meant to be copied may be longer."""
    done = run("Qwen2.5-14B", "--gpus", "2x32GB", "--no-write", *FAST, cwd=tmp_path)
    assert [line for line in done.stdout.splitlines() if len(line) > 80 and not line.startswith("   ")] == []


def test_piped_output_has_no_escape_codes_and_no_color_is_obeyed(tmp_path: Path) -> None:
    assert "\x1b" not in run("gpt2", "--gpus", "T4", "--no-write", *FAST, cwd=tmp_path).stdout
    forced = run("gpt2", "--gpus", "T4", "--no-write", *FAST, cwd=tmp_path, FORCE_COLOR="1", TERM="xterm-256color")
    assert "\x1b[" in forced.stdout
    plain = run(
        "gpt2", "--gpus", "T4", "--no-write", *FAST, cwd=tmp_path, FORCE_COLOR="1", NO_COLOR="1", TERM="xterm-256color"
    )
    assert "\x1b[3" not in plain.stdout


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_terminal_of_any_encoding_shows_the_answer(tmp_path: Path, encoding: str) -> None:
    """What the encoding lacks is replaced; nothing is lost and nothing fails."""
    done = run("gpt2", "--gpus", "T4", "--no-write", *FAST, cwd=tmp_path, PYTHONIOENCODING=encoding)
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert "zero3-offload" in done.stdout


def test_a_narrow_terminal_wraps_sentences_and_tables(tmp_path: Path) -> None:
    """Only the commands, which are to be copied, may be wider."""
    done = run("gpt2", "--gpus", "T4", "--no-write", *FAST, cwd=tmp_path, COLUMNS="40")
    assert done.returncode == 0 and "> ddp, batch" in done.stdout
    answer = done.stdout.partition(" Evidence")[0]
    assert max(map(len, answer.splitlines())) <= 40


def test_json_is_one_object_with_the_documented_fields(tmp_path: Path) -> None:
    """stdout carries the object and nothing else; a file is still written."""
    done = run("Qwen2.5-14B", "--gpus", "2x32GB", "--json", *FAST, cwd=tmp_path)
    assert done.stderr == ""
    answer = json.loads(done.stdout)
    assert {
        "schema_version",
        "model",
        "workload",
        "cluster",
        "candidates",
        "ladder",
        "recommended",
        "deepspeed_estimate",
        "files",
    } <= answer.keys()
    assert answer["schema_version"] == 2
    assert answer["model"] == {
        "name": "Qwen/Qwen2.5-14B",
        "parameters": 14770033664,
        "trainable_parameters": 14770033664,
    }
    assert {"nodes", "gpus_per_node", "gpu", "gpu_memory_bytes", "host_memory_bytes_per_node", "measured"} == answer[
        "cluster"
    ].keys()
    said = {
        "method",
        "quantization",
        "modules_to_save",
        "seq_len",
        "precision",
        "optimizer",
        "global_batch_size",
        "attention",
        "loss",
    }
    assert answer["workload"].keys() == said | {"kernels", "mlp", "document_len", "framework", "software"}
    documented = {
        "rung",
        "zero_stage",
        "offload_optimizer",
        "offload_param",
        "gradient_checkpointing",
        "micro_batch_size",
        "gradient_accumulation_steps",
        "allocated_bytes_per_gpu",
        "reserved_bytes_per_gpu",
        "device_bytes_per_gpu",
        "host_bytes_per_node",
        "host_pinned_bytes_per_node",
        "nvme_bytes_per_node",
        "components",
        "step_seconds",
        "tokens_per_second",
        "bottleneck",
        "fits",
        "reason",
        "evidence",
    }
    assert all(documented <= candidate.keys() for candidate in answer["candidates"])
    assert [step["rung"] for step in answer["ladder"]] == [
        "ddp",
        "zero1",
        "zero2",
        "zero2-offload",
        "zero3",
        "zero3-offload-param",
        "zero3-offload",
        "zero3-nvme",
    ]
    assert answer["files"] == ["ds_config.json"]
    everything = json.loads(run("Qwen2.5-14B", "--gpus", "2x32GB", "--json", "--all", *FAST, cwd=tmp_path).stdout)
    assert len(everything["candidates"]) > len(answer["candidates"])


def test_an_existing_file_is_kept_unless_forced(tmp_path: Path) -> None:
    """The answer is printed all the same; an identical file is no obstacle."""
    target = tmp_path / "ds_config.json"
    target.write_text("{}")
    kept = run("gpt2", "--gpus", "T4", *FAST, cwd=tmp_path)
    assert kept.returncode == 2 and target.read_text() == "{}"
    assert "fits" in kept.stdout and "--force" in kept.stderr and len(kept.stderr.splitlines()) == 1
    assert run("gpt2", "--gpus", "T4", "--force", *FAST, cwd=tmp_path).returncode == 0
    assert target.read_text() != "{}"
    assert run("gpt2", "--gpus", "T4", *FAST, cwd=tmp_path).returncode == 0


def test_a_file_and_no_file_contradict_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["gpt2", "--gpus", "T4", "--no-write", "-o", str(tmp_path / "a.json"), *FAST]) == 2
    assert "--output and --no-write contradict each other" in capsys.readouterr().err


def test_the_configuration_goes_where_it_is_told(tmp_path: Path) -> None:
    """-o FILE, -o - (the configuration alone on stdout), --no-write."""
    assert run("gpt2", "--gpus", "T4", "-o", "zero.json", *FAST, cwd=tmp_path).returncode == 0
    written = json.loads((tmp_path / "zero.json").read_text())
    piped = run("gpt2", "--gpus", "T4", "-o", "-", *FAST, cwd=tmp_path)
    assert json.loads(piped.stdout) == written and "fits" in piped.stderr
    empty = tmp_path / "empty"
    empty.mkdir()
    assert run("gpt2", "--gpus", "T4", "--no-write", *FAST, cwd=empty).returncode == 0
    assert list(empty.iterdir()) == []


def test_nothing_fits_exits_1_and_writes_nothing(tmp_path: Path) -> None:
    done = run("llama-3.1-405b", "--gpus", "RTX4090", "--ram", "64GB", *FAST, cwd=tmp_path)
    assert done.returncode == 1 and done.stderr == ""
    assert done.stdout.startswith(" Nothing fits.") and "GiB of RAM" in done.stdout.split("\n\n")[0]
    assert "What would make it fit" in done.stdout
    assert list(tmp_path.iterdir()) == []


BROKEN_CONFIGS = {
    "not-json": "{",
    "empty": "",
    "list": "[]",
    "no-type": "{}",
    "lacks-field": json.dumps({"model_type": "llama", "hidden_size": 64}),
    "zero": json.dumps(
        {
            "model_type": "llama",
            "hidden_size": 0,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 8,
            "vocab_size": 10,
        }
    ),
    "text": json.dumps({"model_type": "llama", "hidden_size": "many", "num_hidden_layers": 2}),
    "unknown": json.dumps({"model_type": "quantum", "auto_map": {"AutoModelForCausalLM": "evil.Model"}}),
    "huge": " " * 20_000_000,
    "binary": "\x00\x01\x02",
}


@pytest.mark.parametrize(
    "arguments",
    [
        ["Qwen2.5-15B", "--gpus", "2x32GB"],
        ["", "--gpus", "2x32GB"],
        ["gpt2", "--gpus", "2xB9000"],
        ["gpt2", "--gpus", "0x32GB"],
        ["gpt2", "--gpus", "-1xA100-80GB"],
        ["gpt2", "--gpus", "2x"],
        ["gpt2", "--gpus", "2x32GB", "--ram", "much"],
        ["gpt2", "--gpus", "2x32GB", "--ram", "-5GB"],
        ["gpt2", "--gpus", "2x32GB", "--nvme", "/x"],
        ["gpt2", "--gpus", "2x32GB", "--interconnect", "fast"],
        ["gpt2", "--gpus", "2x32GB", "--seq-len", "0"],
        ["gpt2", "--gpus", "2x32GB", "--seq-len", "1e3"],
        ["gpt2", "--gpus", "2x32GB", "--seq-len", "4096"],
        ["gpt2", "--gpus", "2x32GB", "--micro-batch", "-2"],
        ["gpt2", "--gpus", "2x32GB", "--global-batch", "7"],
        ["gpt2", "--gpus", "2x32GB", "--method", "magic"],
        ["gpt2", "--gpus", "2x32GB", "--optimizer", "adamz"],
        ["gpt2", "--gpus", "2x32GB", "--no-such-flag"],
        ["gpt2", "--gpus", "T4", "--precision", "bf16"],
        ["gpt2", "--gpus", "T4", "--json", "-o", "-"],
        ["gpt2", "--gpus", "T4", "-o", ""],
        ["gpt2", "--gpus", "T4", "--method", "lora", "--lora-targets", ","],
        ["gpt2", "--gpus", "T4", "--loss", "fused"],
        ["vit-base", "--gpus", "T4", "--seq-len", "100"],
        ["a" * 5000, "--gpus", "T4"],
        ["~no-such-user/model", "--gpus", "T4"],
        ["gpt2", "--gpus", "T4", "-o", "no/such/folder/ds_config.json"],
        ["no/such/folder", "--gpus", "T4"],
        ["gpt2", "gpt2", "--gpus", "T4"],
        *[[f"{name}.json", "--gpus", "T4"] for name in BROKEN_CONFIGS],
    ],
    ids=lambda arguments: " ".join(arguments)[:60],
)
def test_bad_input_gets_one_line_and_exit_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    """What, why, fix on stderr; no traceback; nothing written. (An unwritable target still prints the answer.)"""
    for name, text in BROKEN_CONFIGS.items():
        (tmp_path / f"{name}.json").write_text(text)
    before = sorted(tmp_path.iterdir())
    monkeypatch.chdir(tmp_path)
    assert cli.run([*arguments, *FAST]) == 2
    out, err = capsys.readouterr()
    assert len(err.splitlines()) == 1 and err.startswith("ds-advise: "), err
    assert "error of ds-advise itself" not in err and len(err) < 500
    assert sorted(tmp_path.iterdir()) == before
    if "-o" not in arguments:
        assert out == ""


def test_an_error_is_one_line_and_debug_adds_the_traceback(tmp_path: Path) -> None:
    """The same through a real process: exit code 2, nothing on stdout."""
    done = run("gpt2", "--gpus", "2xB9000", *FAST, cwd=tmp_path)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    debugged = run("gpt2", "--gpus", "2xB9000", "--debug", *FAST, cwd=tmp_path)
    assert debugged.returncode == 2 and "Traceback" in debugged.stderr
    assert debugged.stderr.endswith(done.stderr)


def test_a_fault_of_the_program_is_one_line_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ds_advise.advisor.advise.predict_all", lambda _question: 1 // 0)
    assert cli.run(["gpt2", "--gpus", "T4", *FAST]) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1
    assert "ZeroDivisionError" in err and "--debug" in err


@pytest.mark.parametrize(
    ("redirection", "code", "told"),
    [(">/dev/full", 2, "the answer cannot be written: No space left on device"), (">&-", 0, ""), (">&- 2>&-", 0, "")],
)
def test_a_stdout_that_takes_nothing(tmp_path: Path, redirection: str, code: int, told: str) -> None:
    """A full disk is an error in one line; a closed stream is the caller's wish, and the file is whole all the same."""
    done = subprocess.run(
        f"{sys.executable} -m ds_advise gpt2 --gpus T4 {' '.join(FAST)} {redirection}",
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == code
    assert done.stderr == (f"ds-advise: {told}\n" if told else "")
    assert "zero_optimization" in json.loads((tmp_path / "ds_config.json").read_text())


def test_a_link_that_leads_nowhere_costs_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A link to another file is followed and stays; a loop of links is one line."""
    monkeypatch.chdir(tmp_path)
    link = tmp_path / "ds_config.json"
    link.symlink_to("real.json")
    assert cli.run(["gpt2", "--gpus", "T4", *FAST]) == 0
    assert link.is_symlink() and (tmp_path / "real.json").is_file()
    link.unlink()
    link.symlink_to(link.name)
    capsys.readouterr()
    assert cli.run(["gpt2", "--gpus", "T4", *FAST]) == 2
    out, err = capsys.readouterr()
    assert "fits" in out and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--lora-rank 4", "--lora-rank has no effect with --method full"),
        ("--quantization int8", "--quantization has no effect with --method full"),
        ("--method lora --quantization int8", "--quantization has no effect with --method lora"),
        ("--budget 5m", "--budget has no effect without --probe"),
    ],
)
def test_a_setting_without_effect_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    """LoRA's options with full fine-tuning, and others: told on stderr, and the answer stands."""
    monkeypatch.chdir(tmp_path)
    assert cli.run(["gpt2", "--gpus", "T4", *words.split(), "--json", *FAST]) == 0
    out, err = capsys.readouterr()
    assert err == f"ds-advise: {said}\n"
    assert json.loads(out)["workload"]["method"] == ("lora" if "--method lora" in words else "full")


def test_weights_that_are_quantized_are_not_counted_as_others_without_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Told on stderr and among the assumptions; with --method qlora quantized weights are what is asked for."""
    quantized = catalogue.config("Qwen/Qwen2.5-0.5B") | {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(quantized))
    asked = [str(tmp_path), "--gpus", "T4", "--no-write", "--json", *FAST]
    assert cli.run(asked) == 0
    out, err = capsys.readouterr()
    assert err.startswith(f"ds-advise: the weights of {tmp_path} are quantized (gptq)")
    assert any("not as the checkpoint's gptq" in assumed for assumed in json.loads(out)["assumptions"])
    assert cli.run([*asked, "--method", "qlora"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("typed", "meant"), [("--gpu", "--gpus"), ("--methd", "--method"), ("--seqlen", "--seq-len")])
def test_a_misspelled_option_names_the_one_that_was_meant(
    capsys: pytest.CaptureFixture[str], typed: str, meant: str
) -> None:
    assert cli.run(["gpt2", typed, "1"]) == 2
    assert (
        capsys.readouterr().err == f"ds-advise: no such option {typed}; did you mean {meant}?; see ds-advise --help\n"
    )


def test_the_script_is_told_what_the_answer_rests_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """4-bit weights, adapters, attention and loss are chosen in the training script, so they are shown for it."""
    monkeypatch.chdir(tmp_path)
    asked = [
        "llama3.1-8b",
        "--gpus",
        "2xA100-80GB",
        "--method",
        "qlora",
        "--attention",
        "flash",
        "--loss",
        "fused",
        "--lora-dropout",
        "0.05",
    ]
    assert cli.run([*asked, *FAST, "--details"]) == 0
    out = capsys.readouterr().out
    for line in (
        'attn_implementation="flash_attention_2"',
        "load_in_4bit=True",
        "use_liger_kernel=True",
        'LoraConfig(r=8, target_modules="all-linear", lora_dropout=0.05)',
    ):
        assert line in out
    assert cli.run(["llama3.1-8b", "--gpus", "2xA100-80GB", "--no-write", *FAST, "--details"]) == 0
    assert "LoraConfig" not in (plain := capsys.readouterr().out) and "from_pretrained" not in plain


def test_an_unknown_model_names_its_neighbours(tmp_path: Path) -> None:
    assert "Qwen2.5-14B" in run("Qwen2.5-15B", "--gpus", "2x32GB", *FAST, cwd=tmp_path).stderr


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    """`ds-advise ... | head -1` prints one line and no complaint."""
    done = subprocess.run(
        f"{sys.executable} -m ds_advise gpt2 --gpus T4 --no-write {' '.join(FAST)} | head -1",
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert len(done.stdout.splitlines()) == 1 and done.stderr == ""


def test_help_is_the_main_commands_help(tmp_path: Path) -> None:
    """Without arguments as with --help; each exits 0 and shows the options of the main job."""
    for arguments in ([], ["--help"], ["-h"], ["advise", "--help"]):
        done = run(*arguments, cwd=tmp_path)
        assert done.returncode == 0 and "--gpus SPEC" in done.stdout and done.stderr == ""
        assert done.stdout.startswith("Usage: ds-advise") and "  [OPTIONS]" not in done.stdout
