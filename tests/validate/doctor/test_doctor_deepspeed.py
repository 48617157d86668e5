"""What the doctor says of building ops, against the installed DeepSpeed's and torch's own code."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from ds_advise.validate.doctor.building import find_cuda_home, read_toolchain
from ds_advise.validate.doctor.findings import run_program

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
        trial = read_toolchain(run_program, {**environment, "LDFLAGS": flags}, "2.13").aio_trial
        assert (trial == "") == compatible
    assert not theirs["aio"]["broken"]
    assert {"-fopenmp", "-march=native"} <= set(theirs["arguments"])
    assert [find_cuda_home(environment), find_cuda_home({**environment, "CUDA_PATH": "/some/cuda"})] == theirs["homes"]
