"""What people and GitHub read beside the code: the files, commands and actions that it names exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
MANUAL = sorted((ROOT / "docs").glob("*.md"))
FOLDERS = ("estimators", "ds_configs", "probes", "validate", "advisor", "benchmarks", "tests", "docs")
MADE = ("dist/", "site", ".venv/")
"""Paths that a workflow makes."""


def _read(path: Path) -> Any:
    # All values are texts: the safe loader reads the key `on` as True, and 3.10 as 3.1.
    return yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)


def _jobs(workflow: Path) -> list[dict[str, Any]]:
    return list(_read(workflow)["jobs"].values())


def _commands(workflow: Path) -> list[str]:
    return [step["run"] for job in _jobs(workflow) for step in job["steps"] if "run" in step]


def _missing(paths: list[str]) -> list[str]:
    return [path for path in paths if not any(ROOT.glob(path.removesuffix("/")))]


@pytest.mark.parametrize("document", ["CONTRIBUTING.md", "SECURITY.md", ".github/PULL_REQUEST_TEMPLATE.md"])
def test_every_path_that_a_document_names_exists(document: str) -> None:
    """Paths of the checkout, with `*` for several; DIR/records.jsonl is a file of the reader's."""
    text = (ROOT / document).read_text(encoding="utf-8")
    paths = re.findall(r"(?<![\w/.:~-])[a-z.][\w.*-]*/[\w.*/-]*\w/?|(?<=`)[\w-]+\.(?:md|txt|toml|yml)(?=`)", text)
    assert len(paths) > 20 or document != "CONTRIBUTING.md"
    assert _missing(paths) == []


@pytest.mark.parametrize("page", [ROOT / "README.md", *MANUAL], ids=lambda path: path.name)
def test_every_file_and_script_that_the_manual_names_exists(page: Path) -> None:
    """In backticks and in commands: files of the repository's folders, and modules of `benchmarks`."""
    text = page.read_text(encoding="utf-8")
    modules = re.findall(r"python -m (benchmarks[\w.]*\w)", text)
    assert _missing(re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w./*-]+)`", text)) == []
    assert _missing([module.replace(".", "/") + "*" for module in modules]) == []


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_names_files_that_exist_and_actions_by_version_and_may_only_read(workflow: Path) -> None:
    """A job that may do more says so itself, and checks nothing out."""
    assert _read(workflow)["permissions"] == {"contents": "read"}
    for job in _jobs(workflow):
        used = [step["uses"] for step in job["steps"] if "uses" in step]
        assert all(re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)", action) for action in used), used
        assert "permissions" not in job or not any(action.startswith("actions/checkout@") for action in used)
        assert int(job["timeout-minutes"]) > 0
    words = [word for command in _commands(workflow) for word in shlex.split(command)]
    named = [word for word in words if re.fullmatch(r"[\w.-]+(/[\w.*-]+)+|[\w-]+\.txt", word)]
    assert _missing([path for path in named if not path.startswith(MADE)]) == []


def test_the_continuous_integration_runs_all_tests_and_readmes_first_commands() -> None:
    """On every Python that pyproject.toml names."""
    workflow = ROOT / ".github" / "workflows" / "ci.yml"
    commands = _commands(workflow)
    block = re.search(r"(?:^    .*\n)+", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    assert block is not None
    first = [line.strip() for line in block[0].splitlines()]
    assert first[0].startswith("python3 -m venv")
    assert max(map(len, first)) <= 70, "a page shows it without scrolling"
    assert "bash .ci/run" in commands and "\n".join(first) in map(str.strip, commands)
    supported = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text("utf-8"))
    assert _read(workflow)["jobs"]["light"]["strategy"]["matrix"]["python"] == supported


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.name)
def test_an_issue_form_is_one(form: Path) -> None:
    """As GitHub reads it: a name, a description, and fields with a label and an id of their own."""
    content = _read(form)
    assert content["name"] and content["description"]
    fields = content["body"]
    assert {field["type"] for field in fields} <= {"textarea", "dropdown", "input"}
    assert all(field["attributes"]["label"] for field in fields)
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["options"] for field in fields if field["type"] == "dropdown")


def test_there_are_a_form_for_wrong_numbers_and_three_more() -> None:
    """The first asks for the explanation, which holds every term of the number."""
    assert len(WORKFLOWS) == 3 and len(FORMS) == 4
    first = _read(ROOT / ".github" / "ISSUE_TEMPLATE" / "wrong-number.yml")["body"][0]
    assert re.search(r"ds-advise explain .* --json", first["attributes"]["placeholder"])
