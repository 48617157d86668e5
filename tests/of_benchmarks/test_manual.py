"""The manual as a site, and that the ways to read an answer agree."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from ds_advise.advisor.cli.commands import GROUPS
from ds_advise.advisor.cli.main import program
from ds_advise.advisor.cli.schema import NAMES, Schema, command_schema
from ds_advise.advisor.text.units import gib

ROOT = Path(__file__).parents[2]


def test_the_manual_is_built_and_every_link_in_it_leads_somewhere(tmp_path: Path) -> None:
    """Strictly: a page that the navigation lacks or a link to nothing fails. Every page is named in the navigation."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    named = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert f": {page.name}\n" in named, page.name
        assert (tmp_path / "site" / page.stem / "index.html").exists() or page.stem == "index"
    assert "manual of ds-advise" not in (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    shown = (tmp_path / "site" / "own-script" / "index.html").read_text(encoding="utf-8")
    assert re.search(r'<span class="term-bold term-\d">[^<]* fits', shown), "output has its colours"
    accuracy = (tmp_path / "site" / "how-true" / "index.html").read_text(encoding="utf-8")
    assert re.search("mean error 0.5\N{NO-BREAK SPACE}%", accuracy), "a number is not divided from its unit"


def test_the_menu_of_commands_is_that_of_the_help() -> None:
    """The same groups in the same order. The answer itself is in the guides."""
    nav = {
        title: pages
        for part in yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
        for title, pages in part.items()
    }
    menu = {
        title: [name for page in pages for name in page] for part in nav["Commands"] for title, pages in part.items()
    }
    menu["Try and run a training"].remove("job files")  # of `--emit`
    helped = {title: [name for name in names if name != "advise"] for title, names in GROUPS.items()}
    assert [*menu.items()] == [*helped.items()]


def keys(schema: Schema, part: Schema) -> Iterator[str]:
    """Names of the fields of a part of a schema, and of the objects in it."""
    for name, each in part.get("properties", {}).items():
        yield name
        yield from keys(schema, each)
    if "$ref" in part:
        yield from keys(schema, schema["$defs"][part["$ref"].removeprefix("#/$defs/")])
    for each in (part.get("items"), part.get("additionalProperties"), *part.get("anyOf", ())):
        if isinstance(each, dict):
            yield from keys(schema, each)


def described_fields() -> Iterator[tuple[str, str]]:
    """The command of each section of docs/json.md, and the names in the first column of its tables of fields."""
    page = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    names = {"ds-advise --gpus SPEC -- COMMAND": "ds-advise advise-command", "ds-advise MODEL": "ds-advise advise"}
    names |= {"explain KEY": "explain-key", "-run -- COMMAND": "-run-command", "lint FILE FILE": "lint-files"}
    for typed, name in names.items():
        page = page.replace(typed, name)
    for section in page.split("\n## ")[1:]:
        command = re.findall(r"ds-advise ([\w-]+)", section.partition("\n")[0])[-1]
        for rows in re.findall(r"\| field \| meaning \|\n\|---\|---\|\n((?:\|.*\n)+)", section):
            for row in rows.splitlines():
                yield from ((command, name) for name in re.findall(r"`(\w+)`", row.split("|")[1]))


@pytest.mark.parametrize("command", NAMES)
def test_the_manual_names_every_key_of_the_json(command: str) -> None:
    """In backticks, anywhere on the page: several commands have the fields of a candidate."""
    schema = command_schema(command)
    page = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    known = {*keys(schema, schema)}
    assert len(known) > 2
    assert known - {*re.findall(r"`(\w+)`", page)} == set()


def test_the_manual_names_no_key_that_the_json_lacks() -> None:
    found = {*described_fields()}
    assert {command for command, _ in found} == {*NAMES} - {"bench"}  # `history` has the same records
    for command, name in found:
        schema = command_schema(command)
        assert name in {*keys(schema, schema)}, (command, name)


def printed(*words: str) -> str:
    done = CliRunner().invoke(program, words, env={"COLUMNS": "200"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


@pytest.mark.parametrize(
    "question",
    [
        "Qwen2.5-1.5B --gpus 1x24GB --method full --seq-len 4096 --software expandable-segments=no",
        "Qwen2.5-1.5B --gpus 8x40GB --method lora --seq-len 512 --software expandable-segments=yes",
        "llama3.1-8b --gpus 2x32GB --method full --seq-len 512 --software expandable-segments=no",
        "llama3.1-8b --gpus 8xA100-80GB --method qlora --seq-len 4096 --software expandable-segments=yes",
        "Qwen2.5-32B --gpus 8x40GB --method full --seq-len 4096 --software expandable-segments=yes",
    ],
)
def test_no_answer_contradicts_itself(question: str, tmp_path: Path) -> None:
    """Screen, Markdown, HTML, JSON and `explain` state the same need, which is at most the GPU's memory where the plan
    may fit."""
    words = [*question.split(), "--offline"]
    advise = ("advise", *words, "--no-write")
    answer = json.loads(printed(*advise, "--all", "--json"))
    offer = answer["cluster"]["gpu_memory_bytes"]
    assert len(answer["candidates"]) > 10
    for plan in answer["candidates"]:
        assert plan["device_bytes_per_gpu"] <= offer or plan["verdict"] not in ("fits", "likely fits"), plan["strategy"]
    shown = answer["recommended"] or answer["try_first"]
    assert shown is not None
    page = tmp_path / "report.html"
    texts = [printed(*advise, "--html", str(page)), printed(*advise, "--lang", "zh"), printed(*advise, "--markdown")]
    need, have = gib(shown["device_bytes_per_gpu"]), gib(offer)
    for text in (*texts, page.read_text(encoding="utf-8")):
        assert re.search(rf"(?<![\d.]){re.escape(need)}(?![\d.])", text), text[:2000]
        verdict = " ".join(line for line in text.splitlines() if " needs " in line or "probably fits" in line)
        needs = re.findall(rf"([\d.]+) of {re.escape(have)} GiB", verdict)
        assert all(float(each) <= float(have) for each in needs), verdict
    if answer["recommended"]:
        explained = json.loads(printed("explain", *words, "--json"))
        assert explained["device_bytes_per_gpu"] == shown["device_bytes_per_gpu"]


def test_links_within_the_manual_lead_somewhere() -> None:
    """On GitHub and on the manual's site, which make the anchors of headings differently: MkDocs joins hyphens."""

    def anchors(page: Path) -> set[str]:
        titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        github = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
        return {name for name in github if "--" not in name}

    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    for page in pages:
        for target, anchor in re.findall(r"\]\(((?:docs/)?[\w-]+\.md)?#([\w-]+)\)", page.read_text(encoding="utf-8")):
            assert anchor in anchors(page.parent / target if target else page), f"{page.name}: {target}#{anchor}"


@pytest.mark.parametrize(
    ("title", "strategy", "sentence", "figure"),
    [
        (
            "A small model on two GPUs",
            "zero2-offload",
            r"an optimizer in RAM costs (\d+) %",
            lambda ratio: 100 - 100 / ratio,
        ),
        (
            "Adapters for a model that fills the cards",
            "zero3",
            r"makes a step ([\d.]+) times as long",
            lambda ratio: ratio,
        ),
    ],
)
def test_a_sentence_of_an_example_follows_from_its_output(
    title: str, strategy: str, sentence: str, figure: Callable[[float], float]
) -> None:
    """The output is written anew, and the sentence is not."""
    text = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    section = text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    speeds = [re.search(pattern, section) for pattern in (r"speed +([\d,]+)", rf"  {strategy} .* ([\d,]+)  fits")]
    chosen, other = (float(found[1].replace(",", "")) for found in speeds if found is not None)
    stated = re.search(sentence, " ".join(section.split()))
    assert stated is not None and float(stated[1]) == pytest.approx(figure(chosen / other), rel=0.02)
