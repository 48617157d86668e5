"""The static page: what goes into its folder, and what is refused."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from ds_advise.advisor.page.build import (
    FILES,
    TYPES,
    WORKER_FILES,
    build_page,
    package_archive,
    page_file,
    pyodide_files,
)
from ds_advise.estimators.errors import DsAdviseError

ASKED = """
import json, sys
sys.path.insert(0, sys.argv[1])
from ds_advise.advisor.page.answers import REQUESTS
state = {"model": "Qwen2.5-7B", "gpus": "2x24GB", "method": "lora"}
request = {"state": state}
last = [json.loads(part) for part in REQUESTS["answer"](json.dumps(request))][-1]
assert last["part"] == "whole", last
config = '{"bf16": {"enabled": "true"}, "train_micro_batch_size_per_gpu": "auto"}'
found = json.loads(next(REQUESTS["judge"](json.dumps({"config": config, "state": state}))))
assert found["part"] == "lint", found
"""


@pytest.fixture
def pyodide_folder(tmp_path: Path) -> Path:
    """A folder that has the names of Pyodide's files, which is all that a build looks at."""
    folder = tmp_path / "pyodide"
    folder.mkdir()
    for name in FILES:
        (folder / name).write_text('"314.0.7"')
    return folder


def test_the_packed_package_needs_the_standard_library_alone(tmp_path: Path) -> None:
    file = tmp_path / "package.bin"
    file.write_bytes(package_archive())
    with tarfile.open(file) as packed:
        packed.extractall(tmp_path / "packed", filter="data")
    # -I -S: no installed packages, no environment.
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", ASKED, str(tmp_path / "packed")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert package_archive() == file.read_bytes()


def test_a_build_holds_everything_and_can_be_built_again(tmp_path: Path, pyodide_folder: Path) -> None:
    folder = tmp_path / "site"
    written = build_page(folder, pyodide=pyodide_folder)
    assert {file.name for file in written} >= {*FILES, *TYPES, *WORKER_FILES, "ds_advise.bin"}
    before = {file.name: file.read_bytes() for file in written}
    build_page(folder, pyodide=pyodide_folder)
    assert before == {file.name: file.read_bytes() for file in folder.iterdir()}
    assert not any(b"{{" in before[name] for name in ("index.html", "service_worker.js"))


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path, pyodide_folder: Path) -> None:
    (tmp_path / "train.py").write_text("")
    with pytest.raises(DsAdviseError, match="other files"):
        build_page(tmp_path, pyodide=pyodide_folder)
    with pytest.raises(DsAdviseError, match="is a file"):
        build_page(tmp_path / "train.py", pyodide=pyodide_folder)


def test_another_pyodide_is_refused(tmp_path: Path, pyodide_folder: Path) -> None:
    (pyodide_folder / "pyodide.mjs").write_text('"0.27.0"')
    with pytest.raises(DsAdviseError, match="another version"):
        pyodide_files(pyodide_folder)
    package = tmp_path / "pyodide-314.0.7.tgz"
    package.write_bytes(b"something else")
    with pytest.raises(DsAdviseError, match="SHA-512"):
        pyodide_files(package)
    with pytest.raises(DsAdviseError, match="No such file"):
        pyodide_files(tmp_path / "missing.tgz")


def test_without_npm_the_error_names_the_source_of_pyodide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DsAdviseError, match=r"npm.*--pyodide pyodide-314"):
        pyodide_files(None)


def test_nothing_on_the_page_comes_from_another_host() -> None:
    for name in (*TYPES, *WORKER_FILES):
        text = page_file(name, answers="worker").decode()
        for scheme in ("https://", "//cdn"):
            assert scheme not in text, name
