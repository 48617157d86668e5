"""Scripts that do what no training should: the command ends in time and says what happened, and nothing is left."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.probes.command.trees import tree_state

TRAINING = """
import os, sys, time
import torch, deepspeed
from torch import nn
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
config = {"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
          "zero_optimization": {"stage": 1}, "bf16": {"enabled": True}}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
def step():
    loss = engine(torch.randn(4, 64, device=engine.device, dtype=torch.bfloat16)).mean()
    engine.backward(loss)
    engine.step()
def train(steps=5):
    for _ in range(steps):
        step()
"""
PLAIN = """
import torch
from torch import nn
torch.distributed.init_process_group("nccl")
model = nn.Linear(64, 64).cuda()
"""
TRAINED = "It fits"


@dataclass(frozen=True)
class Hostile:
    """script: its first line is line 1. said: a pattern of what the command prints at its end. timeout_s: much more
    than a script takes, on a busy machine too, unless it does not end."""

    script: str
    said: str
    code: int = 1
    timeout_s: int = 150
    fast: bool = False


def line_of(script: str, text: str) -> int:
    return next(number for number, line in enumerate(script.splitlines(), 1) if text in line)


SLEEPS = "sleep", "86413"
CASES = {
    # ------------------------------------------------------------------ ends
    "endless loop": Hostile("while True:\n    pass\n", r"did not end within 15 s .*at \S+script.py:[12]\b", 2, 15),
    "endless loop after": Hostile(f"{TRAINING}train()\nwhile True: pass", "did not end; it was ended", 0, 40),
    "catches everything": Hostile(
        f"{TRAINING}while True:\n    try:\n        step()\n    except BaseException:\n        pass",
        TRAINED,
        0,
        fast=True,
    ),
    "os._exit(3)": Hostile(
        "import os\nos._exit(3)", r"exited with code 3 \(during load\)[:;] at \S+script.py:2\b", fast=True
    ),
    "sys.exit(words)": Hostile("import sys\nsys.exit('no data here')", r"no data here.*at \S+script.py:2\b"),
    "SIGKILL": Hostile(
        "import os\nos.kill(os.getpid(), 9)", r"killed .SIGKILL, during load.*free memory", 2, fast=True
    ),
    "SIGTERM to the parent": Hostile(
        "import os, time\nos.kill(os.getppid(), 15)\ntime.sleep(1000)",
        "interrupted|Operation not permitted|not end",
        None,
        15,
    ),
    "SIGTERM to the group": Hostile("import os\nos.killpg(0, 15)\nimport time; time.sleep(100)", r"ended by SIGTERM"),
    "segmentation fault": Hostile(
        "import ctypes\nctypes.string_at(0)", r"ended by SIGSEGV .during load.[:;] at \S+script.py:2\b", fast=True
    ),
    "ignores signals": Hostile(
        "import signal\nfor each in (1, 2, 3, 14, 15):\n    signal.signal(each, signal.SIG_IGN)\nwhile True: pass",
        r"did not end within 15 s .*script.py:4\b",
        2,
        15,
    ),
    # ------------------------------------------------------------------ processes and threads
    "daemon": Hostile(
        """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(1000)
    os._exit(0)
raise ValueError("forked")
""",
        "ValueError: forked",
        fast=True,
    ),
    "both train": Hostile(f"import os\nos.fork()\n{TRAINING}train()", TRAINED, 0),
    "left program": Hostile(
        f"import subprocess\nsubprocess.Popen({SLEEPS}, start_new_session=True, env={{}}, cwd='/')\n1 / 0",
        r"at \S+script.py:3\b.*ZeroDivisionError: division by zero",
    ),
    "pool": Hostile(
        f"{TRAINING}import multiprocessing\npool = multiprocessing.Pool(2)\npool.apply_async(time.sleep, (1000,))\n"
        "train()",
        TRAINED,
        0,
    ),
    "mp.spawn": Hostile(
        f"{TRAINING}def main(rank): train()\nif __name__ == '__main__': torch.multiprocessing.spawn(main, nprocs=4)",
        TRAINED,
        0,
    ),
    "starts itself": Hostile(
        "import subprocess, sys\nsubprocess.run([sys.executable, *sys.argv])", "again and again", 2
    ),
    "exception in a thread": Hostile(
        f"{TRAINING}import threading\nthread = threading.Thread(target=lambda: 1 / 0)\nthread.start()\nthread.join()",
        r"at \S+script.py:\d+.*ZeroDivisionError: division by zero",
        fast=True,
    ),
    "trains in a thread": Hostile(
        f"{TRAINING}import threading\nthread = threading.Thread(target=train)\nthread.start()\nthread.join()",
        TRAINED,
        0,
    ),
    "thread without end": Hostile(
        f"{TRAINING}import threading\nthreading.Thread(target=time.sleep, args=(1000,)).start()\ntrain()", TRAINED, 0
    ),
    # ------------------------------------------------------------------ files and streams
    "writes outside": Hostile(
        f"{TRAINING}from pathlib import Path\nimport shutil\n"
        "for place in (Path.home(), Path('..').resolve(), Path('/tmp'), Path('/etc'), Path('.')):\n"
        "    (place / 'ds_advise_hostile').write_text('new')\n"
        "subprocess = __import__('subprocess')\n"
        "subprocess.run(['touch', str(Path.home() / 'ds_advise_hostile'), 'ds_advise_hostile'])\n"
        "subprocess.run('echo > $HOME/ds_advise_hostile', shell=True)\n"
        "shutil.rmtree('data')\nos.remove(__file__)\ntrain()",
        TRAINED,
        0,
        fast=True,
    ),
    "gigabyte": Hostile(
        f"{TRAINING}text = 'x' * (1 << 20)\nfor _ in range(1024): print(text)\ntrain()", TRAINED, 0, fast=True
    ),
    "binary": Hostile(
        "import os\nfor _ in range(100): os.write(1, os.urandom(1 << 20))\n"
        "raise ValueError('\\udce4\\x00\\x1b[31m\\n' * 9)",
        r"at \S+script.py:3\b.*ValueError: ",
    ),
    "fills the disk": Hostile(
        "for number in range(100):\n    with open(f'{number}.bin', 'wb') as file:\n        file.write(bytes(1 << 28))",
        r"script.py:2\b.*more than the 2 GiB ",
    ),
    "reads stdin": Hostile("print(input('continue? '))", r"at \S+script.py:1\b.*EOFError: "),
    "closed streams": Hostile(
        f"{TRAINING}os.close(0); os.close(1); os.close(2); sys.stdout = sys.stderr = None\ntrain()", TRAINED, 0
    ),
    "closes all": Hostile(f"{TRAINING}os.closerange(0, 100)\ntrain()", TRAINED, 0),
    # ------------------------------------------------------------------ memory
    "array": Hostile(
        "import numpy\nrows = []\nwhile True: rows.append(numpy.zeros(1 << 27))",
        r"at \S+script.py:3\b.*allocate 1.00 GiB ",
        fast=True,
    ),
    "bytes": Hostile("x = bytearray(1 << 37)", r"at \S+script.py:1\b.*MemoryError"),
    # ------------------------------------------------------------------ Python and torch
    "syntax error": Hostile("import os\nif True\n    pass", r"at \S+script.py:2\b.*expected ':'"),
    "no GPU 9": Hostile("import torch\ntorch.ones(2, device='cuda:9')", r"at \S+script.py:2\b.*invalid device ordinal"),
    "no such device": Hostile("import torch\ntorch.ones(2, device='gpu')", r"at \S+script.py:2\b.*device type .*gpu"),
    "patches": Hostile(
        f"{TRAINING}sys.exit = os.kill = print = None\ntorch.Tensor.__repr__ = None\nimport json\njson.dumps = None\n"
        "train()",
        TRAINED,
        0,
    ),
    "not a number": Hostile(
        f"{TRAINING.replace('bf16', 'fp16').replace('bfloat16', 'float16')}"
        "for _ in range(9):\n"
        "    loss = engine(torch.randn(4, 64, device='cuda').half()).mean()\n"
        "    if torch.isnan(loss) or not torch.isfinite(loss).all(): raise SystemExit('nan')\n"
        "    if loss.item() != loss.item(): raise SystemExit('nan')\n"
        "    engine.backward(loss)\n    engine.step()\n",
        TRAINED,
        0,
    ),
    "DDP": Hostile(
        f"{PLAIN}model = nn.parallel.DistributedDataParallel(model)\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "while True:\n    model(torch.ones(4, 64).cuda()).sum().backward()\n    optimizer.step()",
        "trains without DeepSpeed, by torch's DistributedDataParallel.*nothing in it takes a DeepSpeed configuration",
        fast=True,
    ),
    "plain torch": Hostile(
        f"{PLAIN}optimizer = torch.optim.AdamW(model.parameters())\n"
        "while True:\n    try:\n        model(torch.ones(4, 64).cuda()).sum().backward()\n        optimizer.step()\n"
        "    except BaseException: pass",
        "trained without DeepSpeed: deepspeed.initialize was never called, and nothing in it takes",
    ),
    "FSDP": Hostile(
        f"{PLAIN}from torch.distributed.fsdp import fully_shard\nfully_shard(model)\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "for _ in range(3):\n    model(torch.ones(4, 64).cuda()).sum().backward()\n    optimizer.step()",
        "trains without DeepSpeed, by torch's fully_shard",
    ),
    "no training": Hostile("print('hello')", "ended before it trained"),
    "never trained": Hostile(TRAINING, "ended before an optimizer step"),
}
COMMANDS = {
    "nothing": ([], "write -- and then your training command"),
    "python -c": (["python", "-c", "print(1)"], "only a script file or a module can be run"),
    "missing": (["nothere.py"], r"there is no file nothere.py; give its path from \S+/work\n"),
    "folder": (["data"], "there is no data"),
    "python": (["python"], "python names no script"),
    "no script": (["torchrun", "--nproc_per_node", "2"], "torchrun refuses its options"),
}
"""(words, what is said) of commands without a script."""


def dry_run(words: list[str], folder: Path, *, timeout_s: int = 150) -> tuple[int, str, float]:
    """Exit code, what was printed, and seconds. Checks that neither a process nor a file is left."""
    temporary = folder.parent / "temporary"
    temporary.mkdir()
    home = folder.parent / "home"
    before = tree_state(folder), tree_state(home)
    started = time.monotonic()
    environment = os.environ | {"TMPDIR": str(temporary), "HOSTILE_TEST": str(folder), "COLUMNS": "1000"}
    options = ["--gpus", "2xA100-40GB", "--timeout", str(timeout_s)]
    done = subprocess.run(
        [sys.executable, "-m", "ds_advise", "dry-run", *options, "--", *words],
        cwd=folder,
        env=environment | {"HOME": str(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=timeout_s + 60,
        check=False,
    )
    seconds = time.monotonic() - started
    assert not list(processes_with(str(folder))), "a process is left"
    assert not list(temporary.iterdir()), "scratch is left"
    assert (tree_state(folder), tree_state(home)) == before
    outside = (folder.parent, Path.home(), Path("/tmp"), Path("/etc"))
    assert not [place for place in outside if (place / "ds_advise_hostile").exists()]
    return done.returncode, (done.stdout + done.stderr).decode(errors="replace"), seconds


def processes_with(text: str) -> Iterator[str]:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (
                text.encode() in (entry / "environ").read_bytes()
                or "\0".join(SLEEPS).encode() in (entry / "cmdline").read_bytes()
            ):
                yield (entry / "cmdline").read_bytes().decode()
        except OSError:
            continue


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "rows.txt").write_text("one\ntwo\n")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "kept").write_text("kept")
    return folder


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=name, marks=[] if case.fast else pytest.mark.slow) for name, case in CASES.items()]
)
def test_script(case: Hostile, folder: Path) -> None:
    (folder / "script.py").write_text(case.script)
    code, printed, seconds = dry_run(["script.py"], folder, timeout_s=case.timeout_s)
    assert re.search(case.said, printed), printed[-3000:]
    assert code in ((0, 1, 2, 130) if case.code is None else (case.code,)), printed[-3000:]
    assert seconds < case.timeout_s + 15
    if code:
        last = printed.strip().splitlines()[-1]
        assert last.startswith("ds-advise: ") and "error of ds-advise" not in last, last
        assert "again with --debug" not in last, last


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "missing" else pytest.mark.slow) for name in COMMANDS]
)
def test_command_without_a_script(name: str, folder: Path) -> None:
    words, said = COMMANDS[name]
    code, printed, _ = dry_run(words, folder)
    assert (code, bool(re.search(said, printed))) == (2, True), printed
    assert "ds-advise-command" not in printed, "a path in scratch"
