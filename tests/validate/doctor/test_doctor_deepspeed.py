"""What the doctor says of building ops, against the installed DeepSpeed's and torch's own code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ds_advise.validate.doctor.read_host import read_processor
from ds_advise.validate.doctor.toolchain import find_cuda_home, read_toolchain
from ds_advise.validate.doctor.tools import run_tool

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
simd, arguments = builder.simd_width(), builder.cxx_args()
print("ANSWER" + json.dumps({"aio": compilers, "homes": homes, "simd": simd, "arguments": arguments}))
"""
VECTORS = {
    "AVX-512": "-D__AVX512__",
    "AVX2": "-D__AVX256__",
    "SVE": "-D__SVE__",
    "NEON": "-D__NEON__",
    "": "-D__SCALAR__",
}


@pytest.mark.slow
def test_the_doctor_and_deepspeed_agree() -> None:
    """On whether libaio can be linked (and with flags with which nothing can), on the vectors that CPU Adam is compiled
    for, on its flags, and on where the CUDA toolkit is."""
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
        trial = read_toolchain(run_tool, {**environment, "LDFLAGS": flags}, "2.13").aio_trial
        assert trial is not None and trial.compiled == compatible
    assert not theirs["aio"]["broken"]
    assert VECTORS[read_processor(Path("/")).vectors] == theirs["simd"]
    assert {"-fopenmp", "-march=native"} <= set(theirs["arguments"])
    assert [find_cuda_home(environment), find_cuda_home({**environment, "CUDA_PATH": "/some/cuda"})] == theirs["homes"]
