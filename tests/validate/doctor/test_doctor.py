"""`ds-advise doctor` as it is really run: here, without torch, by a user without rights, and against DeepSpeed's and
torch's own code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import ds_advise
import pytest
from ds_advise.advisor.cli.main import run as run_here
from ds_advise.validate.doctor import STATUSES
from ds_advise.validate.doctor.building import find_cuda_home, links_libaio
from ds_advise.validate.doctor.machine import ExaminedMachine

PACKAGE = Path(ds_advise.__file__).parent


def command(
    *arguments: str, prefix: tuple[str, ...] = (), program: tuple[str, ...] = ("-m", "ds_advise"), **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*prefix, sys.executable, *program, "doctor", *arguments],
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, **environment},
        cwd="/",
    )


def test_the_doctor_looks_at_this_machine(tmp_path: Path) -> None:
    """One real run: every area that exists here has its lines, and the exit code says whether there is a problem."""
    done = command("--json", "--nvme", str(tmp_path))
    answer = json.loads(done.stdout)
    assert done.returncode == (1 if answer["counts"]["problem"] else 0) and done.stderr == ""
    assert {"versions", "building ops", "memory", "processor", "swap folder", "environment"} <= {
        finding["area"] for finding in answer["findings"]
    }
    keys = {"area", "check", "status", "what", "why", "fix", "effect"}
    assert all(keys == finding.keys() for finding in answer["findings"])
    assert sum(answer["counts"].values()) == len(answer["findings"]) and answer["worst"] in STATUSES
    found = {finding["check"]: finding for finding in answer["findings"]}
    assert found["torch"]["status"] == "ok" and found["deepspeed"]["status"] == "ok"
    unknown = {finding["area"] for finding in answer["findings"] if finding["status"] == "unknown"}
    assert unknown <= {"building ops", "versions"}  # a machine that is busy compiles and imports too slowly
    assert list(tmp_path.iterdir()) == []


def test_it_works_without_torch_and_imports_nothing_slow() -> None:
    """A Python without torch and DeepSpeed gets its findings, and two problems for the missing packages."""
    program = (
        "import sys, importlib.metadata as metadata\n"
        "whole = metadata.Distribution.from_name\n"
        "def without(name):\n"
        "    if name in ('torch', 'deepspeed', 'transformers'):\n"
        "        raise metadata.PackageNotFoundError(name)\n"
        "    return whole(name)\n"
        "metadata.Distribution.from_name = without\n"
        "for name in ('torch', 'deepspeed', 'transformers', 'numpy', 'pydantic'):\n"
        "    sys.modules[name] = None\n"
        "from ds_advise.advisor.cli.main import run\n"
        "sys.exit(run(sys.argv[1:]))\n"
    )
    done = command("--json", program=("-c", program))
    assert done.returncode == 1, done.stderr
    found = {finding["check"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert (found["torch"]["status"], found["deepspeed"]["status"]) == ("problem", "problem")
    assert "pip install torch" in found["torch"]["fix"] and found["ram"]["status"] in ("ok", "warning")


def test_it_fails_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A hostfile that cannot be read, or with an option for ssh in it: exit code 2."""
    (tmp_path / "hosts").write_text("-oProxyCommand=touch${IFS}/tmp/x slots=8\n")
    for arguments in (
        ["--hostfile", str(tmp_path / "none")],
        ["--hostfile", str(tmp_path / "hosts")],
    ):
        assert run_here(["doctor", *arguments]) == 2
        out, err = capsys.readouterr()
        assert out == "" and len(err.splitlines()) == 1 and err.startswith("ds-advise: "), err


ASK = """
import json, os
from deepspeed.ops.op_builder.cpu import AsyncIOBuilder, CPUAdamBuilder
from torch.utils import cpp_extension
def linked(flags):
    os.environ["LDFLAGS"] = flags
    return AsyncIOBuilder().is_compatible()
compilers = {"LDFLAGS": linked(""), "broken": linked("-Wl,--no-such-option")}
os.environ.pop("CUDA_HOME", None), os.environ.pop("CUDA_PATH", None)
homes = [cpp_extension._find_cuda_home() or ""]
os.environ["CUDA_PATH"] = "/some/cuda"
homes.append(cpp_extension._find_cuda_home())
builder = CPUAdamBuilder()
print("ANSWER" + json.dumps({"aio": compilers, "homes": homes, "arguments": builder.cxx_args()}))
"""


@pytest.mark.slow
def test_the_doctor_and_deepspeed_agree() -> None:
    """On whether libaio can be linked (also with impossible flags), on compiler flags, and on the CUDA folder."""
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, "DS_ACCELERATOR": "cpu"},
    )
    line = next((line for line in done.stdout.splitlines() if line.startswith("ANSWER")), None)
    assert line is not None, done.stderr
    theirs = json.loads(line.removeprefix("ANSWER"))
    environment = {
        name: value for name, value in os.environ.items() if name not in ("CUDA_HOME", "CUDA_PATH", "LDFLAGS")
    }
    for flags, compatible in (("", theirs["aio"]["LDFLAGS"]), ("-Wl,--no-such-option", theirs["aio"]["broken"])):
        assert links_libaio(ExaminedMachine(environment={**environment, "LDFLAGS": flags})) == compatible
    assert not theirs["aio"]["broken"]
    assert {"-fopenmp", "-march=native"} <= set(theirs["arguments"])
    assert [find_cuda_home(environment), find_cuda_home({**environment, "CUDA_PATH": "/some/cuda"})] == theirs["homes"]
