"""`ds-advise lint` in CI: `--output-format`, `--ignore` and `--strict`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ds_advise.advisor.cli.main import run

WARNED = """{
  "train_batch_size": 8,
  "bf16": {"enabled": true},
  "gradient_cliping": 1.0,
  "zero_optimization": {"stage": 2, "reduce_bucket_size": 50000000}
}"""


@pytest.fixture(autouse=True)
def files() -> None:
    """A configuration with a warning, one with a correctable error, and one that cannot be read."""
    Path("a b,1%.json").write_text(WARNED)
    Path("error.json").write_text(
        WARNED.replace('"stage"', '"overlap_com": true, "stage"').replace("cliping", "clipping")
    )
    Path("open.json").write_text('{\n "bf16": {}')


def test_concise_is_one_line_per_finding(capsys: pytest.CaptureFixture[str]) -> None:
    """At any width, with its place as compilers write it, and a last line with the counts."""
    assert run(["lint", "error.json", "--output-format", "concise"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "error.json:5:25: DS010 error [*] zero_optimization has no key 'overlap_com'; rename it to overlap_comm",
        "1 file: 1 error.",
    ]
    assert run(["lint", "a b,1%.json", "open.json", "--output-format", "concise"]) == 2
    warned, unread, counts = capsys.readouterr().out.splitlines()
    assert warned.startswith("a b,1%.json:4:3: DS011 warning DeepSpeed has no key 'gradient_cliping'; rename it to ")
    assert unread.startswith("open.json:2:12: unreadable error not JSON: the closing } of the { on line 1 is missing ")
    assert counts == "2 files: 1 warning, 1 not read."
    assert run(["lint", "error.json", "--output-format", "concise", "--fix"]) == 0
    assert capsys.readouterr().out == "1 file: nothing found.\n"


def test_github_annotates_the_place(capsys: pytest.CaptureFixture[str]) -> None:
    """Properties and messages are escaped as GitHub's toolkit escapes them; a long place ends with its line."""
    assert run(["lint", "a b,1%.json", "open.json", "--output-format", "github"]) == 2
    warned, unread = capsys.readouterr().out.splitlines()
    place = "title=ds-advise (DS011),file=a b%2C1%25.json,line=4,col=3,endLine=4,endColumn=21"
    assert warned.startswith(f"::warning {place}::a b,1%25.json:4:3: DS011 warning DeepSpeed has no key")
    assert unread.startswith("::error title=ds-advise (unreadable),file=open.json,line=2,col=12,")


def test_sarif_has_rules_results_and_places(capsys: pytest.CaptureFixture[str]) -> None:
    names = [str(Path("a b,1%.json")), str(Path("error.json").resolve()), "open.json"]
    assert run(["lint", *names, "--output-format", "sarif"]) == 2
    log = json.loads(capsys.readouterr().out)
    (made,) = log["runs"]
    assert log["version"] == "2.1.0" and made["tool"]["driver"]["name"] == "ds-advise"
    assert {rule["id"] for rule in made["tool"]["driver"]["rules"]} == {each["ruleId"] for each in made["results"]}
    warned, error, unread = made["results"]
    assert [each["level"] for each in made["results"]] == ["warning", "error", "error"]
    physical = warned["locations"][0]["physicalLocation"]
    assert physical["artifactLocation"]["uri"] == "a%20b%2C1%25.json"
    assert physical["region"] == {"startLine": 4, "startColumn": 3, "endLine": 4, "endColumn": 21}
    assert error["locations"][0]["physicalLocation"]["artifactLocation"]["uri"].startswith("file:///")
    assert unread["ruleId"] == "unreadable" and unread["message"]["text"].startswith("not JSON: ")


def test_ignored_rules_are_neither_counted_nor_corrected(capsys: pytest.CaptureFixture[str]) -> None:
    """By their codes and by the beginnings of them."""
    text = Path("error.json").read_text()
    for codes in ("DS010", "ds01,DS9", " DS011, DS010 ,"):
        assert run(["lint", "error.json", "--ignore", codes, "--fix", "--quiet"]) == 0
        assert Path("error.json").read_text() == text
        assert run(["lint", "error.json", "--ignore", codes, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["errors"] == 0
    assert run(["lint", "error.json", "--ignore", "DS777"]) == 2
    assert "there is no rule 'DS777'" in capsys.readouterr().err


def test_the_rules_of_a_beginning_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """As --ignore takes them; a single one is explained."""
    assert run(["lint", "--explain", "ds9"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 1 and all(line.lstrip().startswith("DS9") for line in lines if "DS" in line[:5])
    assert run(["lint", "--explain", "ds501"]) == 0
    assert "Found in: " in capsys.readouterr().out
    assert run(["lint", "--explain", "DS777"]) == 2
    assert "there is no rule 'DS777'" in capsys.readouterr().err


def test_strict_fails_for_warnings_and_not_for_advice(capsys: pytest.CaptureFixture[str]) -> None:
    for options, code in (
        ([], 0),
        (["--strict"], 1),
        (["--strict", "--ignore", "DS011"], 0),
        (["--strict", "--json"], 1),
    ):
        assert run(["lint", "a b,1%.json", *options]) == code
    Path("fp32.json").write_text('{"train_batch_size": 8}')
    assert run(["lint", "fp32.json", "--strict"]) == 0
    assert "1 piece of advice" in capsys.readouterr().out


def test_formats_contradict_json_and_diff(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--json", "--diff"):
        assert run(["lint", "error.json", option, "--output-format", "github"]) == 2
        assert f"{option} has a format of its own" in capsys.readouterr().err
    assert run(["lint", "error.json", "--quiet", "--output-format", "github"]) == 1
    assert capsys.readouterr().out == ""


def test_a_line_names_the_whole_path_of_its_key(capsys: pytest.CaptureFixture[str]) -> None:
    """No line of the file shows which block it is."""
    zero = {"stage": 3, "reduce_bucket_size": "x", "offload_param": {"device": "tpu"}}
    config = {"train_batch_size": 8, "bf16": {"enabled": "what"}, "zero_optimization": zero}
    Path("paths.json").write_text(json.dumps(config))
    run(["lint", "paths.json", "--output-format", "concise"])
    shown = capsys.readouterr().out
    for path in ("bf16.enabled", "zero_optimization.reduce_bucket_size", "zero_optimization.offload_param.device"):
        assert f"DS020 error {path} is " in shown
