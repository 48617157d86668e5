"""The wheel holds every module and data file of the repository, and the tests run against it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import ds_advise
import pytest

CHECKOUT = Path(__file__).resolve().parent.parent
NOT_PACKAGED = ("tests", "benchmarks", ".github")
PACKAGED = (
    *(".py", ".json", ".json.gz", ".jsonl", ".csv", ".po", "py.typed", ".md"),
    *(".css", ".html", ".js", ".mjs", ".svg"),
)


STRAY = ("ds_config.json", "train.py", "estimators/data/rows.csv", "validate/lint/ds_config.json")
"""What users leave in a clone; README's first command writes `ds_config.json`."""


def _tracked_files() -> set[str]:
    listing = subprocess.run(["git", "ls-files"], cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
    return {
        path
        for path in listing.splitlines()
        if path.split("/")[0] not in NOT_PACKAGED
        and path.endswith(PACKAGED)
        and path != "setup.py"
        and (not path.endswith(".md") or "/" in path)
        and not path.startswith(("docs/pictures", "docs/numbers.json"))
    }


def test_the_wheel_holds_the_tracked_files_and_no_other(tmp_path: Path) -> None:
    """No subpackage or data file is forgotten in pyproject.toml's lists, and a user's own files stay outside."""
    # A copy: setuptools packs what an earlier build has left in `build` as well.
    copy = shutil.copytree(CHECKOUT, tmp_path / "checkout", ignore=shutil.ignore_patterns("build", ".*", "__pycache__"))
    for path in STRAY:
        (copy / path).write_text("{}")
    # As a release does: the wheel comes from the source distribution, which must hold everything too.
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(copy)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packaged = {name.removeprefix("ds_advise/") for name in archive.namelist() if name.startswith("ds_advise/")}
    assert packaged == _tracked_files()


@pytest.mark.skipif("DS_ADVISE_TEST_WHEEL" not in os.environ, reason="only tests/run installs the wheel")
def test_the_tests_import_the_installed_wheel_not_the_checkout() -> None:
    """The suite proves what users install."""
    assert CHECKOUT not in Path(ds_advise.__file__).resolve().parents or "site-packages" in ds_advise.__file__


LIGHT = os.environ.get("DS_ADVISE_TEST_LIGHT", "")


@pytest.mark.skipif(not LIGHT, reason="only tests/run makes an environment of the base package alone")
@pytest.mark.parametrize(
    "arguments",
    [
        "Qwen2.5-14B --gpus 2x32GB --no-write",
        "Qwen2.5-14B --gpus 2x32GB --no-write --details --no-deepspeed-estimate",
        "explain Qwen2.5-7B --gpus 4x24GB",
        "opt-13b --gpus 4x24GB --no-write",  # recorded
        "lint config.json",
        "compare config.json config.json --model gpt2 --gpus 24GB",
        "rent Qwen2.5-7B --method lora --samples 20000",
    ],
)
def test_the_base_package_answers_without_the_engine(arguments: str, tmp_path: Path) -> None:
    """The answer of the base package is that of the full one."""
    (tmp_path / "config.json").write_text('{"train_batch_size": 4, "zero_optimization": {"stage": 2}}')
    answers = [
        subprocess.run([*command, *arguments.split()], cwd=tmp_path, capture_output=True, text=True, check=False)
        for command in ([LIGHT], [sys.executable, "-m", "ds_advise"])
    ]
    assert answers[0].returncode == answers[1].returncode == 0, answers[0].stderr
    if "lint" not in arguments:  # it looks at the installed DeepSpeed and transformers
        assert answers[0].stdout == answers[1].stdout


@pytest.mark.skipif(not LIGHT, reason="only tests/run makes an environment of the base package alone")
@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("dry-run config.json --model gpt2 --gpus 24GB", "engine"),
        ("probe config.json --model gpt2", "engine"),
        ("gpt2 --gpus 24GB --no-write --data rows.jsonl --offline", "data"),
        ("schema advise", "schema"),
        ("mcp", "mcp"),
    ],
)
def test_commands_that_need_more_than_the_base_name_the_extra(command: str, extra: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "some words to count"}\n')
    (tmp_path / "config.json").write_text('{"train_batch_size": 4, "zero_optimization": {"stage": 2}}')
    run = subprocess.run([LIGHT, *command.split()], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert f'it is not installed; pip install "ds-advise[{extra}]"' in run.stderr and "Traceback" not in run.stderr


def test_python_dash_m_runs_the_same_program() -> None:
    """`python -m ds_advise` and `ds-advise` are one program."""
    shown = subprocess.run([sys.executable, "-m", "ds_advise", "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == f"ds-advise, version {ds_advise.__version__}"


@pytest.mark.slow
def test_tests_run_in_a_clone_whose_name_cannot_be_imported(tmp_path: Path) -> None:
    """git names a clone after the repository, and pytest takes no folder with a dash for a package."""
    clone = tmp_path / "ds-advise"
    (clone / "tests").mkdir(parents=True)
    for name in ("__init__.py", "pyproject.toml", "tests/conftest.py", "tests/helpers.py"):
        shutil.copy(CHECKOUT / name, clone / name)
    (clone / "tests" / "test_one.py").write_text("def test_one() -> None: ...\n")
    pytest_alone = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist"]
    run = subprocess.run(pytest_alone, cwd=clone, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
