"""Trainings started in other processes are raised as `Relaunch`; other subprocesses run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DRIVER = """
import json, os, runpy, sys
from ds_advise.probes.command import follow
os.environ.update(RANK="3", LOCAL_RANK="3", WORLD_SIZE="8")
follow.install()
answers = {}
for name in sys.argv[1:]:
    try:
        out = runpy.run_path(name, run_name="__main__").get("out")
        answers[name] = {"out": out}
    except follow.Relaunch as started:
        ours = {key: value for key, value in started.environment.items() if key in ("X", "RANK", "ACCELERATE_USE_CPU")}
        answers[name] = {"words": started.words, "environment": ours, "folder": str(started.folder)}
    except Exception as error:
        answers[name] = {"error": f"{type(error).__name__}: {error}"}
sys.__stdout__.write("ANSWERS" + json.dumps(answers))
"""


def run(scripts: dict[str, str], folder: Path) -> dict[str, dict[str, Any]]:
    """What each script's start of a process became: words, `out` of a script that ended, or an error."""
    (folder / "driver.py").write_text(DRIVER)
    for name, text in scripts.items():
        (folder / f"script_{name}.py").write_text("import os, subprocess, sys\n" + text)  # no name of a library
    names = [f"script_{name}.py" for name in scripts]
    done = subprocess.run(
        [sys.executable, "driver.py", *names],
        cwd=folder,
        env=os.environ | {"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert "ANSWERS" in done.stdout, done.stderr
    answers: dict[str, dict[str, Any]] = json.loads(done.stdout.rpartition("ANSWERS")[2])
    return {name[len("script_") : -len(".py")]: answer for name, answer in answers.items()}


FOLLOWED = {
    "run": "subprocess.run(['torchrun', '--nnodes', '1', 'train.py'], env={**os.environ, 'X': '1'}, check=True)",
    "same": "subprocess.check_call([sys.executable, 'train.py', '--x'])",
    "module": "from subprocess import Popen\nPopen(['python3', '-m', 'mine.train'], cwd='sub')",
    "shell": "subprocess.Popen('cd sub && X=1 accelerate launch train.py > log 2>&1', shell=True)",
    "system": "os.system('ls >/dev/null; deepspeed train.py')",
    "bash": "subprocess.run(['bash', '-c', 'torchrun train.py'])",
    "execvp": "os.execvp('accelerate', ['accelerate', 'launch', '-m', 'mine.train'])",
    "execve": "os.execve(sys.executable, ['python', 'train.py'], {'X': '2'})",
    "spawn": "os.posix_spawn(sys.executable, ['python', 'train.py'], os.environ)",
}
WORDS = {
    "run": ["torchrun", "--nnodes", "1", "train.py"],
    "same": [sys.executable, "train.py", "--x"],
    "module": ["python3", "-m", "mine.train"],
    "shell": ["X=1", "accelerate", "launch", "train.py"],
    "system": ["deepspeed", "train.py"],
    "bash": ["torchrun", "train.py"],
    "execvp": [str(Path(sys.executable).with_name("accelerate")), "launch", "-m", "mine.train"],
    "execve": [sys.executable, "train.py"],
    "spawn": [sys.executable, "train.py"],
}


def test_a_started_training_is_raised(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    answers = run(FOLLOWED, tmp_path)
    assert {name: answer.get("words", answer) for name, answer in answers.items()} == WORDS
    assert answers["run"]["environment"] == {"X": "1"}, "without the variables of the rank"
    assert answers["execve"]["environment"] == {"X": "2"}
    folders = {name: os.path.relpath(answer["folder"], tmp_path) for name, answer in answers.items()}
    assert {name for name, folder in folders.items() if folder == "sub"} == {"module", "shell"}


def test_other_subprocesses_run(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("cd /tmp\ntorchrun train.py\n")
    (tmp_path / "plain.sh").write_text("echo hello\n")
    answers = run(
        {
            "echo": "out = subprocess.check_output(['echo', 'a b'], text=True)",
            "shell": "out = subprocess.run('echo $((1+1)) | cat', shell=True, capture_output=True, text=True).stdout",
            "line": "out = subprocess.check_output([sys.executable, '-c', 'print(1)'], text=True)",
            "pip": "out = subprocess.run([sys.executable, '-m', 'pip', '--version'], capture_output=True).returncode",
            "system": "out = os.system('true')",
            "script": "out = subprocess.check_output(['bash', 'plain.sh'], text=True)",
            "missing": "subprocess.run(['nothere'])",
            "child": "pid = os.fork()\nif not pid: os.execvp('true', ['true'])\nout = os.waitpid(pid, 0)[1]",
            "training_script": "subprocess.run(['bash', 'train.sh'])",
            "replaced": "os.execvp('ls', ['ls'])",
        },
        tmp_path,
    )
    ended = {name: answer["out"] for name, answer in answers.items() if "out" in answer}
    texts = {"echo": "a b\n", "shell": "2\n", "line": "1\n", "script": "hello\n"}
    assert ended == texts | {"pip": 0, "system": 0, "child": 0}
    assert "FileNotFoundError" in answers["missing"]["error"]
    assert "its line 2 starts a training: torchrun train.py" in answers["training_script"]["error"]
    assert "replaces itself by" in answers["replaced"]["error"]


LAUNCH = """
from accelerate.commands.launch import launch_command, launch_command_parser
launch_command(launch_command_parser().parse_args({words}))
"""
IN_PROCESS = {
    "accelerate": LAUNCH.format(words=["--multi_gpu", "--num_processes", "4", "train.py"]),
    "one": LAUNCH.format(words=["--num_processes", "1", "train.py", "--x"]),
    "torchrun": "from torch.distributed.run import main\nmain(['--nproc_per_node', '4', 'train.py', '--x'])",
    "deepspeed": "from deepspeed.launcher.runner import main\nmain(['--num_gpus', '4', 'train.py'])",
}
RANK = "lambda *given: out.append([*given, os.environ['RANK'], os.environ['WORLD_SIZE']])"
FUNCTIONS = {
    "spawn": f"import torch\nout = []\ntorch.multiprocessing.spawn({RANK}, ('a',), nprocs=4)",
    "start": f"import torch.multiprocessing as mp\nout = []\nmp.start_processes({RANK}, nprocs=2, join=False).join()",
    "notebook": f"import accelerate\nout = []\naccelerate.notebook_launcher({RANK}, ('a',), num_processes=4)",
    "ends": "import torch\nout = 1\ntorch.multiprocessing.spawn(lambda _: sys.exit(), nprocs=4)",
    "datasets": "import datasets\nrows = datasets.Dataset.from_dict({'a': [1, 2]})\n"
    "out = rows.map(lambda row: {'a': os.getpid()}, num_proc=2)['a'][0] == os.getpid()",
}


@pytest.mark.timeout(300)
def test_launchers_and_functions_in_this_process(tmp_path: Path) -> None:
    answers = run(IN_PROCESS | FUNCTIONS, tmp_path)
    torchrun = ["torchrun", "--nproc-per-node=4", "--nnodes=1", "--no-python", sys.executable, "-u", "train.py"]
    assert answers["accelerate"]["words"] == torchrun
    assert answers["one"]["environment"] == {"ACCELERATE_USE_CPU": "False"}
    assert answers["one"]["words"] == [sys.executable, "train.py", "--x"]
    assert answers["torchrun"]["words"] == [*torchrun, "--x"]
    assert answers["deepspeed"]["words"] == ["deepspeed", "--num_gpus", "4", "train.py"]
    rank = ["3", "8"]
    assert {name: answers[name].get("out", answers[name]) for name in FUNCTIONS} == {
        "spawn": [[3, "a", *rank]],
        "start": [[3, *rank]],
        "notebook": [["a", *rank]],
        "ends": 1,
        "datasets": True,
    }
