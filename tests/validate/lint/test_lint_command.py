"""`ds-advise lint`: exit codes, what is printed, `--fix`, and what a file cannot make it do."""

from __future__ import annotations

import io
import json
import os
import re
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ds_advise.advisor.cli.main import run
from ds_advise.advisor.document.excerpt import changed_excerpt

GOOD = {
    "train_batch_size": 8,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 50_000_000},
}
BAD = """{
    "train_batch_size": 8,
    "bf16": {"enabled": true, "loss_scale": 0},
    "zero_optimization": {
        "stage": "2",
        "cpu_offload": true,
        "overlap_com": true
    }
}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    """A folder with a good configuration and a bad one."""
    Path("good.json").write_text(json.dumps(GOOD))
    Path("bad.json").write_text(BAD)
    return tmp_path


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    """0 without errors, 1 with errors, 2 where nothing could be read: one line on stderr, which is no terminal, and
    nothing on stdout."""
    assert run(["lint", "good.json"]) == 0
    assert run(["lint", "bad.json"]) == 1
    capsys.readouterr()
    Path("no.json").write_text("{")
    os.mkfifo("pipe")
    for name in ("no.json", "absent.json", ".", "pipe", "/dev/null", "/dev/zero", "\0", "a" * 5000):
        assert run(["lint", name]) == 2
        out, err = capsys.readouterr()
        assert out == "" and len(err.splitlines()) == 1 and "error of ds-advise itself" not in err, name
    assert run(["lint"]) == 2
    assert run(["lint", "good.json", "--gpus", "2x"]) == 2


def test_for_a_folder_its_json_files_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    several = ", or write ds-advise lint *.json\n"
    assert run(["lint", "."]) == 2
    assert capsys.readouterr().err.endswith(f" .: a folder; name its file: bad.json or good.json{several}")
    for number in range(5):
        Path(f"c{number}.json").write_text("{}")
    assert run(["lint", "."]) == 2
    assert f" or c2.json or one of 3 more{several}" in capsys.readouterr().err
    Path("empty").mkdir()
    assert run(["lint", "empty"]) == 2
    assert "give the JSON file" in capsys.readouterr().err


def test_several_files_have_one_summary_and_the_worst_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    """All are judged, also after one that cannot be read, which has the place of its error."""
    Path("no.json").write_text('{"bf16": {"enabled" true}}')
    assert run(["lint", "good.json", "bad.json"]) == 1
    out = capsys.readouterr().out
    assert " good.json: nothing found." in out and " bad.json:7:9 " in out
    assert out.endswith("\n 2 files: 2 errors, 2 warnings, 1 piece of advice.\n")
    assert run(["lint", "no.json", "good.json"]) == 2
    out = capsys.readouterr().out
    assert "not JSON: a colon is missing after the key (line 1, column 21).\n   1 | {" in out and "Fix: write it" in out
    assert " good.json: nothing found." in out and out.endswith("\n 2 files: nothing found, 1 not read.\n")
    assert run(["lint", "bad.json", "no.json", "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert [each["file"] for each in found["files"]] == ["bad.json"] and found["errors"] == 2
    assert [each["file"] for each in found["unread"]] == ["no.json"]
    Path("other.json").write_text(BAD)
    assert run(["lint", "bad.json", "good.json", "other.json", "--diff"]) == 1
    assert "good.json: Nothing is found" in capsys.readouterr().out
    assert run(["lint", "bad.json", "good.json", "other.json", "--fix"]) == 0
    assert Path("other.json").read_text() == Path("bad.json").read_text() != BAD
    assert Path("other.json.bak").read_text() == BAD and not Path("good.json.bak").exists()


def test_a_finding_has_place_reason_and_remedy_in_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """Code, what, place, the lines around it, why, fix, and what `--fix` would change."""
    assert run(["lint", "bad.json"]) == 1
    out = capsys.readouterr().out
    assert " DS010 error [*] zero_optimization has no key 'overlap_com'.\n   --> bad.json:7:9  zero_" in out
    assert '   6 |         "cpu_offload": true,\n   7 |         "overlap_com": true\n' in out
    assert "     |         ^^^^^^^^^^^^^\n   8 |     }\n" in out and "   Why: the block " in out
    assert (
        '   Fix: rename it to overlap_comm.\n   7 -         "overlap_com": true\n   7 +         "overlap_comm": true\n'
        in out
    )
    assert out.endswith(" [*] 4 fixable with --fix.\n")
    assert max(len(line) for line in out.splitlines()) <= 80


def test_a_long_line_is_cut_around_the_place(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ellipsis stands on each cut side, at any width; wide characters keep the carets below the place."""
    Path("line.json").write_text(json.dumps({"\u4e2d": 1, **GOOD, "fp16": {"enabled": True}, "x" * 50: 1, "y": 2}))
    for columns in (40, 64, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        run(["lint", "line.json"])
        lines = capsys.readouterr().out.splitlines()
        at = next(number for number, line in enumerate(lines) if " DS201 " in line)
        shown, carets = next((lines[n], lines[n + 1]) for n in range(at, len(lines)) if lines[n].startswith("   1 | "))
        assert shown[carets.index("^") :].startswith('"enabled"') and carets.count("^") == len('"enabled"')
        assert "| ..." in shown and shown.endswith("...") and len(shown) <= columns


def test_fix_corrects_what_is_safe_and_keeps_the_old_file(capsys: pytest.CaptureFixture[str]) -> None:
    """The layout stays, the diff is shown, and a second run has nothing to do. `--diff` shows it and writes nothing."""
    assert run(["lint", "bad.json", "--diff"]) == 1
    out = capsys.readouterr().out
    assert '-        "stage": "2",' in out and '+        "stage": 2,' in out and "DS020" not in out
    assert Path("bad.json").read_text() == BAD and not Path("bad.json.bak").exists()
    assert run(["lint", "bad.json", "--fix"]) == 0
    assert '+        "stage": 2,' in capsys.readouterr().out
    assert Path("bad.json.bak").read_text() == BAD
    assert Path("bad.json").read_text() == BAD.replace(', "loss_scale": 0', "").replace('"2"', "2").replace(
        '"cpu_offload": true', '"offload_optimizer": {"device": "cpu"}'
    ).replace("overlap_com", "overlap_comm")
    assert run(["lint", "bad.json", "--fix"]) == run(["lint", "bad.json", "--diff"]) == 0
    assert not Path("bad.json.bak.1").exists()


def test_fix_corrects_what_another_correction_shows(capsys: pytest.CaptureFixture[str]) -> None:
    """A renamed key that has no effect at this stage, in one run; what is left keeps the assumption of the reader."""
    zero = {"stage": 2, "stage3_gather_fp16_weights_on_model_save": True, "offload_paramm": {"device": "cpu"}}
    Path("twice.json").write_text(json.dumps(GOOD | {"zero_optimization": zero}, indent=1)[:-2] + ",\n}")
    assert run(["lint", "twice.json", "--diff"]) == 1
    assert "--fix would correct 5 findings; none would be left." in capsys.readouterr().out
    assert run(["lint", "twice.json", "--fix"]) == 0
    assert "Corrected 5 findings;" in capsys.readouterr().out
    assert json.loads(Path("twice.json").read_text())["zero_optimization"] == {"stage": 2}
    Path("noted.json").write_text('{"train_batch_size": "8", "bf16": {"enabled": true}, # of all\n}')
    assert run(["lint", "noted.json", "--fix"]) == 0
    assert "DS001 advice" in capsys.readouterr().out


def test_many_findings_name_the_short_form(capsys: pytest.CaptureFixture[str]) -> None:
    Path("many.json").write_text(json.dumps(GOOD | {f"key_{number}": 1 for number in range(9)}))
    for name, is_named in (("many.json", True), ("bad.json", False)):
        run(["lint", name])
        assert ("--output-format concise" in capsys.readouterr().out) == is_named


def test_only_a_name_that_deepspeed_rejects_is_corrected() -> None:
    """A key that it ignores would act under its right name, and a value must suit the key."""
    zero = {"stage": 2, "overlap_com": "yes please", "contiguous_gradient": True, "reduce_scater": "auto"}
    Path("names.json").write_text(json.dumps(GOOD | {"gradient_cliping": 1.0, "zero_optimization": zero}))
    assert run(["lint", "names.json", "--fix"]) == 1
    found = json.loads(Path("names.json").read_text())
    assert found["gradient_cliping"] == 1.0
    assert found["zero_optimization"] == {
        **dict([*zero.items()][:2]),
        "contiguous_gradients": True,
        "reduce_scater": "auto",
    }


def test_a_dash_is_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It is judged like a file, and cannot be corrected in its place."""
    for options, code in (((), 1), (("--fix",), 2)):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(BAD.encode())))
        assert run(["lint", "-", *options]) == code
    printed = capsys.readouterr()
    assert "standard input: " in printed.out and "DS010 error [*]" in printed.out
    assert "cannot be corrected" in printed.err and not Path("-").exists()


def test_fix_never_overwrites_a_copy() -> None:
    """The next free name is taken; a link with the copy's name is not followed."""
    Path("bad.json.bak").write_text("mine")
    Path("victim").write_text("untouched")
    Path("bad.json.bak.1").symlink_to("victim")
    Path("bad.json.bak.2").symlink_to("nowhere")
    assert run(["lint", "bad.json", "--fix"]) == 0
    assert Path("bad.json.bak").read_text() == "mine"
    assert Path("victim").read_text() == "untouched" and not Path("nowhere").exists()
    assert Path("bad.json.bak.3").read_text() == BAD


def test_fix_writes_through_a_link_and_keeps_it(folder: Path) -> None:
    """The file behind the link is corrected, and its copy is in the same folder."""
    (folder / "elsewhere").mkdir()
    Path("bad.json").rename("elsewhere/real.json")
    Path("bad.json").symlink_to("elsewhere/real.json")
    assert run(["lint", "bad.json", "--fix"]) == 0
    assert Path("bad.json").is_symlink() and '"stage": 2' in Path("elsewhere/real.json").read_text()
    assert Path("elsewhere/real.json.bak").read_text() == BAD


HOSTILE = {
    "train_batch_size": 8,
    "$(touch pwned)": "`touch pwned`",
    "optimizer": {"type": "__import__('os').system('touch pwned')", "params": {"lr": "os.system('touch pwned')"}},
    "scheduler": {"type": "../../etc/passwd", "params": {"file": "/etc/passwd"}},
    "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "../../../../../etc"}},
    "tensorboard": {"enabled": True, "output_path": "/tmp/../pwned", "job_name": "; touch pwned"},
    "flops_profiler": {"enabled": True, "output_file": "pwned"},
}


def test_nothing_in_a_file_runs_writes_or_is_opened(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Names in it are data: no process, no connection, no file opened by a name that stands in the configuration."""
    Path("hostile.json").write_text(json.dumps(HOSTILE))
    Path("pwned_source").write_text("")
    run(["lint", "good.json"])  # what is imported and cached at the first call is not the file's doing
    opened: list[str] = []
    real = io.open  # by which `Path` opens

    def forbidden(*_arguments: object, **_options: object) -> None:
        raise AssertionError("lint must not do that")

    def watched(path: object, *arguments: Any, **options: Any) -> Any:
        opened.append(str(path))
        return real(path, *arguments, **options)  # type: ignore[call-overload]

    before = sorted(folder.rglob("*"))
    for owner, name in ((subprocess, "Popen"), (os, "system"), (os, "fork"), (socket, "socket")):
        monkeypatch.setattr(owner, name, forbidden)
    monkeypatch.setattr(io, "open", watched)
    assert run(["lint", "hostile.json"]) == 1
    assert run(["lint", "hostile.json", "--json", "--framework", "hf"]) == 1
    assert sorted(folder.rglob("*")) == before
    assert "hostile.json" in opened and not [path for path in opened if "pwned" in path or "etc" in path]


def test_control_characters_are_not_sent_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A key cannot clear the screen or fake a line."""
    Path("escape.json").write_text(
        json.dumps({"train_batch_size": 8, "\x1b[2J\nDS000": 1, "zero_optimization": {"a\x07": 1}})
    )
    assert run(["lint", "escape.json"]) == 1
    assert run(["lint", "escape.json", "--fix"]) == 1
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\x07" not in out


WRONG_TYPES = ('["%s"]', '["", "%s"]', '{"key": "%s"}', '{"keys": ["%s"]}')


@pytest.mark.parametrize("options", [[], ["--json"], ["--diff"], ["--fix"]])
@pytest.mark.parametrize("columns", ["60", "200"])
def test_a_secret_is_never_shown(
    options: list[str], columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither by its own finding nor as a line next to another, and not if the file cannot be read."""
    monkeypatch.setenv("COLUMNS", columns)
    secret = "abcdef0123456789abcdef0123456789abcdef01"
    text = BAD.replace(
        "{", '{"wandb": {"enabled": true, "api_key": "' + secret + '"}, "hf_token": \'' + secret + "',\n", 1
    )
    for content in (
        text,
        text.replace("true,", "True,"),
        text.replace("}\n}", "}"),
        text.replace(",\n", ",\n?,", 1),
        *(text.replace(f'"{secret}"', form % secret).replace("wandb", "comet") for form in WRONG_TYPES),
        text.replace(f'"{secret}"', secret),
    ):
        Path("secret.json").write_text(content)
        run(["lint", "secret.json", *options])
        printed = capsys.readouterr()
        assert "secret.json" in printed.out + printed.err and "abcdef" not in printed.out + printed.err
    Path("secret.json").write_text(text)
    run(["lint", "secret.json", "--json"])
    fixes = {each["path"]: each["fix"] for each in json.loads(capsys.readouterr().out)["findings"]}
    assert fixes["wandb.api_key"] == "remove it, and set WANDB_API_KEY in the environment"


@pytest.mark.parametrize(("micro_batch", "code"), [("1", 0), ('"auto"', 1)])
def test_fix_takes_the_byte_order_mark_away(micro_batch: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The Trainer cannot read a file with one. Without its values it is advice."""
    zero = '{"stage": 2, "reduce_bucket_size": 50000000}, "bf16": {"enabled": true}'
    text = f'{{"train_micro_batch_size_per_gpu": {micro_batch}, "zero_optimization": {zero}}}'.encode()
    Path("marked.json").write_bytes(b"\xef\xbb\xbf" + text)
    assert run(["lint", "marked.json"]) == code
    assert "[*] 1 fixable" in capsys.readouterr().out
    assert run(["lint", "marked.json", "--diff"]) == 1
    assert run(["lint", "marked.json", "--fix"]) == 0
    assert "Corrected 1 finding;" in capsys.readouterr().out
    assert Path("marked.json").read_bytes() == text


def test_all_changes_of_one_long_line_are_shown() -> None:
    old = '{"zero": true, ' + '"other": 1, ' * 20 + '"allgather_size": 9}'
    new = old.replace("true", '{"stage": 1}').replace(', "allgather_size": 9', "")
    rows = changed_excerpt(old, new).texts(60)
    assert [row[2] for row in rows] == ["-", "+", "-", "+"] and max(map(len, rows)) <= 60
    assert '"zero": true' in rows[0] and '"stage": 1' in rows[1] and '"allgather_size": 9' in rows[2]
    assert len(changed_excerpt(old, new).texts(600)) == 2, "both are seen at once"


def test_accelerates_file_with_a_named_file_and_its_own_stage_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """accelerate 1.15 utils/dataclasses.py raises a ValueError."""
    Path("both.yaml").write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 4\ndeepspeed_config:\n  deepspeed_config_file: good.json\n"
        "  zero_stage: 3\n"
    )
    assert run(["lint", "both.yaml"]) == 2
    assert "accelerate refuses zero_stage together with deepspeed_config_file" in capsys.readouterr().err


def test_for_a_file_of_another_tool_the_deepspeed_file_that_it_names_is_proposed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The number of GPUs is the file's, and a model is asked for if it has none; also as one of several files."""
    Path("named.yml").write_text("stage: sft\nmodel_name_or_path: gpt2\nfinetuning_type: full\ndeepspeed: good.json\n")
    of_own = "write ds-advise from own.yaml --model MODEL --gpus 4xSIZEGB"
    of_named = "write ds-advise lint good.json, or ds-advise from named.yml --gpus NxSIZEGB"
    Path("own.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nnum_machines: 1\nnum_processes: 4\n"
        "deepspeed_config:\n  zero_stage: 2\n"
    )
    for name, fix in (("own.yaml", of_own), ("named.yml", of_named)):
        assert run(["lint", name]) == 2
        assert capsys.readouterr().err.endswith(f"; {fix}\n")
        assert run(["lint", name, "good.json", "--json"]) == 2
        (unread,) = json.loads(capsys.readouterr().out)["unread"]
        assert unread["problem"].endswith(f"; {fix}") and "not JSON" not in unread["problem"]


def test_only_changed_lines_are_shown_with_their_keys(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line is cut on the right, and on the left up to its key if the change is too far to the right."""
    text = """{
  "train_batch_size": 8, # of all
  "zero_optimization": {
    "stage": 2,
    "allgather_bucket_size": "500000000",
  }
}"""
    Path("lines.json").write_text(text)
    monkeypatch.setenv("COLUMNS", "40")
    run(["lint", "lines.json", "--framework", "hf"])
    assert [line for line in capsys.readouterr().out.splitlines() if line[4:7] in (" - ", " + ")] == [
        '   2 -   "train_batch_size": 8, # of all',
        '   2 +   "train_batch_size": 8,',
        '   5 - ..."allgather_bucket_size": "5...',
        '   5 + ..."allgather_bucket_size": "5...',
        '   5 - ..."allgather_bucket_size": "5...',
        '   5 + ..."allgather_bucket_size": 50...',
    ]
    Path("line.json").write_text(json.dumps(json.loads(BAD)))
    run(["lint", "line.json"])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("   1 - ", "   1 + "))]
    assert all(any(key in row for row in rows) for key in ('"stage"', '"cpu_offload"', '"overlap_com"'))
    assert '   1 - ..."stage": "2", "cpu_offload"...' in rows


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            '{"train_batch_size": 8, // all\n "bf16": {"enabled": true}}',
            "--fix keeps the comments while plain DeepSpeed",
        ),
        (
            '{"train_batch_size": 8, "mine_too": 1}',
            "cannot correct any of the 2 findings without changing the training;",
        ),
        ('{"train_batch_size": 8, /* */ "mine_too": 1}', "changing the training or removing a comment;"),
    ],
)
def test_fix_says_why_it_corrects_nothing(text: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("ds.json").write_text(text, encoding="utf-8")
    run(["lint", "ds.json", "--fix"])
    assert why in " ".join(capsys.readouterr().out.split())


def test_the_first_line_says_which_ram_is_not_checked(capsys: pytest.CaptureFixture[str]) -> None:
    """Only a need above the usual RAM, as the advice's condition."""
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": zero}
    Path("ds.json").write_text(json.dumps(config), encoding="utf-8")
    asked = ["lint", "ds.json", "--gpus", "2xA100-80GB", "--offline", "--model"]
    for words, is_said in (
        (["Qwen2.5-72B"], True),
        (["Llama-3.1-405B"], True),  # more than any host is assumed to have
        (["Qwen2.5-72B", "--ram", "3TB"], False),
        (["Qwen2.5-0.5B"], False),
    ):
        run([*asked, *words])
        printed = " ".join(capsys.readouterr().out.split())
        first = printed.partition(" DeepSpeed ")[0]
        unchecked = "GiB of RAM per node with a margin for the error, which is not checked without --ram."
        assert (unchecked in first) == is_said
        if is_said:
            needed = re.search(r"needs ([\d,]+) GiB", first)
            predicted = re.search(r"per GPU, ([\d,.]+) GiB of RAM", printed)
            assert needed and predicted
            whole, exact = (float(each[1].replace(",", "")) for each in (needed, predicted))
            assert whole > 1.05 * exact


def test_curly_quotes_are_one_finding_and_are_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a word processor writes them: hjson reads them as part of the keys. The cause is named."""
    path = tmp_path / "pasted.json"
    good = '{"bf16": {"enabled": true},\n "zero_optimization": {"stage": 2}, "train_batch_size": 8}\n'
    path.write_text(re.sub('"(.*?)"', r"“\1”", good), encoding="utf-8")
    assert run(["lint", str(path)]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "pasted.json: 1 error. " in printed and "DS006 error [*] “ is no quote of JSON (the first of 5 " in printed
    assert "a word processor or a web page writes them" in printed
    assert run(["lint", str(path), "--fix"]) == 0
    assert path.read_text(encoding="utf-8") == good


def test_a_cut_line_has_no_context_at_the_same_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each block: what stands there in another block says nothing of the marked place."""
    zero = {"stage": 2, "contiguous_gradients": True, "reduce_scatter": True, "allgather_partitions": True, "oops": 1}
    blocks = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.999], "eps": 1e-8}}}
    blocks |= {"zero_optimization": zero, "bf16": {"enabled": True}, "train_batch_size": 8}
    path = tmp_path / "ds_config.json"
    path.write_text("{" + ",\n ".join(f'"{name}": {json.dumps(block)}' for name, block in blocks.items()) + "}")
    assert run(["lint", str(path)]) == 1
    rows = [line for line in capsys.readouterr().out.splitlines() if re.match(r" +\d+ \| ", line)]
    assert rows and all('"oops": 1' in row for row in rows)
