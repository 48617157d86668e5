"""A script that runs in the view of the file system changes no file of the user's, and reads back what it wrote."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest
from ds_advise.probes.command.files import View, environment
from ds_advise.probes.command.landlock import restrict_writes

from tests.probes.command.trees import run_in_view, tree_state

WRITES = {
    "relative": """
        open("data.txt", "w").write("new")
        assert open("data.txt").read() == "new"
    """,
    "absolute": """
        with open(here / "data.txt", "a") as file:
            file.write(" more")
        assert Path("data.txt").read_text() == "old more"
        (here / "new.txt").write_text("new")
        assert os.path.exists("new.txt") and "new.txt" in os.listdir(here)
    """,
    "in place": """
        with open("data.txt", "r+b") as file:
            file.write(b"O")
        os.truncate(here / "data.txt", 2)
        assert (here / "data.txt").read_text() == "Ol"
    """,
    "descriptors": """
        os.close(os.open(here / "data.txt", os.O_WRONLY | os.O_TRUNC))
        assert os.stat("data.txt").st_size == 0
        folder = os.open(here, os.O_RDONLY)
        os.close(os.open("by_folder", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
        assert (here / "by_folder").exists() and os.stat("by_folder", dir_fd=folder)
        try:
            os.open("data.txt", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            raise AssertionError
        except FileExistsError as error:
            assert error.filename == "data.txt"
    """,
    "folders": """
        (here / "out/deep/deeper").mkdir(parents=True)
        os.makedirs("out/deep", exist_ok=True)
        Path("out/deep/file").touch()
        os.rename(here / "out", here / "moved")
        assert sorted(str(path.relative_to(here)) for path in here.glob("moved/**/*")) == [
            "moved/deep", "moved/deep/deeper", "moved/deep/file"]
        os.rename("below", "renamed")
        assert (here / "renamed/inner/file").read_text() == "inner" and not (here / "below").exists()
        (here / "renamed/inner/file").write_text("changed")
    """,
    "removal": """
        import shutil
        shutil.rmtree(here / "below")
        assert not os.path.exists("below") and "below" not in [entry.name for entry in os.scandir(here)]
        Path("data.txt").unlink()
        assert not (here / "data.txt").exists()
        try:
            open(here / "data.txt")
            raise AssertionError
        except FileNotFoundError as error:
            assert str(error) == f"[Errno 2] No such file or directory: {here / 'data.txt'!r}"
    """,
    "shutil": """
        import shutil
        shutil.copytree(here / "below", here / "copy")
        shutil.copy2("data.txt", here / "copy/inner")
        shutil.move(here / "below", here / "copy/below")
        assert (here / "copy/inner/data.txt").read_text() == "old" and not Path("below").exists()
        shutil.copyfile(here / "large.bin", "large_copy.bin")
        assert os.path.getsize("large_copy.bin") == 3 << 20 and os.lstat("large_copy.bin").st_size == 3 << 20
        shutil.copyfile(here.parent / "other/large.bin", "another_copy.bin")
        assert os.path.getsize("another_copy.bin") == 3 << 20
        with open("large_copy.bin", "r+b") as file:
            file.write(b"1")
        assert open("large.bin", "rb").read(1) == b"0"
        shutil.make_archive(here / "archive", "zip", here / "copy")
    """,
    "os.replace": """
        Path("temporary").write_text("new")
        os.replace("temporary", here / "data.txt")
        assert (here / "data.txt").read_text() == "new" and not Path("temporary").exists()
    """,
    "symlinks": """
        assert os.path.islink("link") and os.readlink(here / "link") == "below/inner" and not os.path.islink("data.txt")
        (here / "link/file").write_text("through a link")
        assert Path("below/inner/file").read_text() == "through a link"
        os.symlink(here / "data.txt", "mine")
        open("mine", "w").write("new")
        assert (here / "data.txt").read_text() == "new" and os.readlink("mine") == str(here / "data.txt")
        assert os.readlink(here.parent / "other/absolute") == str(here.parent / "elsewhere.txt")
        assert os.path.islink("../other/absolute") and not os.path.islink(here.parent / "other")
        assert Path("outside").read_text() == "elsewhere"
        Path("outside").write_text("new")
        assert (here.parent / "elsewhere.txt").read_text() == "new"
    """,
    "elsewhere": """
        (here.parent / "elsewhere.txt").write_text("changed")
        assert Path("../elsewhere.txt").read_text() == "changed"
        Path("/a-new-root").mkdir()
        Path("/a-new-root/file").write_text("1")
        assert Path("/a-new-root/file").read_text() == "1"
        home = Path.home() / ".cache/a-new-tool"
        home.mkdir(parents=True)
        os.chdir(here.parent)
        Path("from_parent.txt").write_text("1")
        assert (here.parent / "from_parent.txt").exists()
    """,
    "walks": """
        import glob
        files = [os.path.relpath(f"{folder}/{name}", here) for folder, _, names in os.walk(here) for name in names]
        assert "below/inner/file" in files, files
        assert os.path.relpath(Path("below/inner/file").resolve()) == "below/inner/file"
        Path("below/inner/new").touch()
        found = glob.glob(str(here / "**/*"), recursive=True)
        assert str(here / "below/inner/new") in found and str(here / "below/inner/file") in found
        assert {path.name for path in here.rglob("*") if path.is_file() and not path.is_symlink()} == {
            "data.txt", "large.bin", "db.sqlite", "file", "new"}
    """,
    "attributes": """
        os.chmod("data.txt", 0)
        os.utime(here / "data.txt", (0, 0))
        Path("data.txt").touch()
        Path("mine").touch()
        os.chmod(here / "mine", 0o600)
        assert os.stat("mine").st_mode & 0o777 == 0o600
    """,
    "sqlite": """
        import sqlite3
        with sqlite3.connect(here / "db.sqlite") as connection:
            connection.execute("insert into words values ('new')")
        with sqlite3.connect("db.sqlite") as connection:
            assert connection.execute("select * from words").fetchall() == [("old",), ("new",)]
    """,
    "logging": """
        import logging, json, pickle, csv, gzip, zipfile, tarfile
        logging.basicConfig(handlers=[logging.FileHandler(here / "train.log")], level=logging.INFO)
        logging.info("started")
        json.dump({}, open(here / "state.json", "w"))
        gzip.open("data.gz", "wb").write(b"1")
        with zipfile.ZipFile(here / "a.zip", "w") as archive, tarfile.open("a.tar", "w") as tar:
            archive.write("data.txt")
            tar.add(here / "below", "below")
        assert "started" in Path("train.log").read_text() and zipfile.ZipFile("a.zip").read("data.txt") == b"old"
    """,
    "tempfile": """
        import tempfile
        with tempfile.TemporaryFile() as file, tempfile.NamedTemporaryFile(dir=here) as named:
            file.write(b"1")
            assert Path(named.name).exists()
        assert not Path(named.name).exists()
        kept = tempfile.mkdtemp()
        assert Path(kept).is_dir()
    """,
    "numpy": """
        import numpy
        numpy.save(here / "array.npy", numpy.arange(4))
        assert numpy.load("array.npy", mmap_mode="r")[3] == 3
        mapped = numpy.lib.format.open_memmap(here / "map.npy", mode="w+", dtype="int8", shape=(8,))
        mapped[:] = 1
    """,
    "modules": """
        import importlib
        (here / "written_module.py").write_text("value = 7")
        sys.path.insert(0, str(here))
        importlib.invalidate_caches()
        import written_module
        assert written_module.value == 7
    """,
    "fork": """
        import multiprocessing
        def write(name):
            (here / name).write_text(name)
        child = multiprocessing.get_context("fork").Process(target=write, args=("from_child",))
        child.start()
        child.join()
        assert child.exitcode == 0 and Path("from_child").read_text() == "from_child"
    """,
    "programs": """
        import subprocess
        subprocess.run(["touch", "native.txt", here / "absolute.txt"], check=True)
        subprocess.run(["sh", "-c", "echo 1 > below/inner/native; rm data.txt"], check=True)
        subprocess.run(["mkdir", "out"], cwd=here / "below", check=True)
        os.system("mv below/inner moved")
        assert (here / "native.txt").exists() and (here / "absolute.txt").exists() and (here / "below/out").is_dir()
        assert (here / "moved/native").exists() and not (here / "data.txt").exists()
    """,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's working folder, and a file beside it."""
    folder = tmp_path / "user/work"
    (folder / "below/inner").mkdir(parents=True)
    (folder / "data.txt").write_text("old")
    (folder / "below/inner/file").write_text("inner")
    (folder / "large.bin").write_bytes(b"0" * (3 << 20))
    (folder / "link").symlink_to("below/inner")
    (tmp_path / "user/elsewhere.txt").write_text("elsewhere")
    (tmp_path / "user/other").mkdir()
    (tmp_path / "user/other/absolute").symlink_to(tmp_path / "user/elsewhere.txt")
    (tmp_path / "user/other/large.bin").write_bytes(b"0" * (3 << 20))
    (folder / "outside").symlink_to(tmp_path / "user/elsewhere.txt")
    with sqlite3.connect(folder / "db.sqlite") as connection:
        connection.execute("create table words (word)")
        connection.execute("insert into words values ('old')")
    return folder


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    made = tmp_path / "scratch"
    made.mkdir()
    return made


def dedented(text: str) -> str:
    return "\n".join(line[8:] for line in text.splitlines())


@pytest.mark.parametrize("wall", [True, False], ids=["landlock", "python"])
@pytest.mark.parametrize("kind", WRITES)
def test_every_kind_of_write_is_seen_by_the_script_only(folder: Path, scratch: Path, kind: str, wall: bool) -> None:
    """Also without the kernel's refusal: Python's functions alone keep the files."""
    before = tree_state(folder.parent)
    done = run_in_view(dedented(WRITES[kind]), folder, scratch, wall=wall)
    assert done.returncode == 0, done.stderr
    assert tree_state(folder.parent) == before
    assert not Path("/a-new-root").exists() and not (Path.home() / ".cache/a-new-tool").exists()


def test_what_no_function_redirects_is_refused_by_the_kernel(folder: Path, scratch: Path) -> None:
    """A shell with an absolute path in a string, and a file class below `open`."""
    if not _has_landlock():
        pytest.skip("the kernel has no Landlock")
    before = tree_state(folder.parent)
    script = f"""
import io, subprocess
shell = subprocess.run("echo 1 > {folder}/shell.txt; rm -r {folder}/below", shell=True, capture_output=True, text=True)
assert "Permission denied" in shell.stderr, shell
try:
    io.FileIO("{folder}/data.txt", "w")
except PermissionError:
    sys.exit(3)
"""
    done = run_in_view(script, folder, scratch)
    assert done.returncode == 3, done.stderr
    assert tree_state(folder.parent) == before


def test_large_folders_get_links_for_the_names_that_are_used(folder: Path, scratch: Path) -> None:
    """Reading, removing and listing do not show the difference."""
    many = folder.parent / "many"
    many.mkdir()
    for number in range(1200):
        (many / f"{number}").write_text(f"{number}")
    before = tree_state(many)
    script = """
many = here.parent / "many"
(many / "new").write_text("new")
(many / "5").unlink()
assert (many / "7").read_text() == "7" and Path("../many/8").read_text() == "8" and not (many / "5").exists()
assert len(os.popen("ls ../many").read().split()) < 10
assert set(os.listdir(many)) == {str(n) for n in range(1200)} - {"5"} | {"new"}
assert (many / "9").read_text() == "9" and not (many / "5").exists()
"""
    done = run_in_view(script, folder, scratch)
    assert done.returncode == 0, done.stderr
    assert tree_state(many) == before


def test_a_mirror_is_bounded_and_outer_folders_come_first(tmp_path: Path, scratch: Path) -> None:
    user = tmp_path / "user"
    for name in ("large", "small/inner"):
        (user / name).mkdir(parents=True)
    for number in range(50):
        (user / f"large/{number}").touch()
    view = View(scratch)
    mirror = view.mirror(user, most_entries=20)
    assert (mirror / "large").is_symlink() and not (mirror / "small/inner").is_symlink()
    assert sorted(path.name for path in mirror.iterdir()) == ["large", "small"]


def test_a_script_that_writes_without_end_meets_an_end(folder: Path, scratch: Path) -> None:
    """In many files, or in one."""
    many = """
import time
for number in range(2_000):
    time.sleep(0.01)
    Path(f"file{number}").write_bytes(bytes(1 << 20))
"""
    done = run_in_view(many, folder, scratch, limit_bytes=20 << 20)
    assert "the script wrote more than the 0.0195 GiB that a dry run keeps in scratch" in done.stderr
    one = "file = open('file', 'wb')\nfor _ in range(1000):\n    file.write(bytes(1 << 20))"
    assert "File too large" in run_in_view(one, folder, scratch, limit_bytes=20 << 20).stderr
    assert sum(path.lstat().st_size for path in scratch.rglob("*")) < 100 << 20


def test_caches_and_trackers_are_told_to_leave_nothing(scratch: Path) -> None:
    told = environment(scratch)
    assert Path(told["TMPDIR"]).is_dir() and "HF_HUB_OFFLINE" not in told
    assert environment(scratch, offline=True)["HF_HUB_OFFLINE"] == "1"


def _has_landlock() -> bool:
    child = os.fork()
    if child == 0:
        os._exit(0 if restrict_writes(["/dev"]) else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
