"""`ds-advise why` on logs: what it prints, its exit codes, and the change that fits a configuration."""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from ds_advise.advisor.answer.memory_change import _best_first, _Fitting
from ds_advise.advisor.cli.main import run
from ds_advise.advisor.command.failed_training import logged_length
from ds_advise.advisor.text.units import gib
from ds_advise.probes.failures.diagnosis import diagnose_text

from tests.probes.failures.test_diagnosis import FRAMES, FULL, WATCHDOG

CONFIG = {
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
}
QUESTION = ["--model", "Qwen2.5-7B", "--gpus", "8x48GB", "--seq-len", "2048", "--offline"]


@pytest.fixture(autouse=True)
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A training of 8 ranks that ran out of memory in the backward pass."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    lines = [f"[rank5]: {line}\n" for line in (FRAMES + FULL).splitlines()]
    path = tmp_path / "train.log"
    path.write_text("{'loss': 1.25, 'epoch': 0.1}\n" + "".join(lines))
    Path("ds.json").write_text(json.dumps(CONFIG))
    return path


def _why(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = run(["why", *words])
    out, error = capsys.readouterr()
    return code, out if code < 2 else error


def test_the_answer_names_cause_fix_rank_and_figures(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = _why(capsys, "train.log")
    words = " ".join(text.split())
    assert code == 0 and max(map(len, text.splitlines())) <= 80
    assert "CUDA out of memory, in the backward pass." in words
    assert re.search(r"--> train\.log:\d+, rank 5, after 1 logged step ", words)
    assert "/data/train.py:88, in <module> | trainer.train()" in words  # the user's own frame, then the library's
    assert words.index("train.py:88") < words.index("torch/autograd/__init__.py:347, in backward")
    assert "9 > torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. | GPU 1 has" in words
    assert "ds-advise why train.log --gpus Nx80GB -- COMMAND" in text and "Confirmed by" not in text
    assert "It asked for 3.00 GiB; 1.20 GiB were free." in words
    assert "tensors 75.0 \u2584 allocator's free blocks 1.9 \u2550 runtime 1.0 \u2592 asked 3.0" in words
    bar, below = (line for line in text.splitlines() if "\u2502" in line)  # one mark, with its label below
    assert bar.index("\u2502") == below.index("\u2502") and below.strip() == "79.2 GiB \u2502"
    assert bar[bar.index("\u2502") :] == "\u2502" + 2 * "\u2592"  # 75 + 1.9 + 1.0 + 3.0 - 79.15 of 80.9 GiB
    assert "Fix: A smaller micro batch" in words and "hold the request together, in pieces" in words


@pytest.mark.parametrize(
    ("line", "headline"),
    [
        (
            "AssertionError: The parameter 31 has already been reduced. Gradient computed twice for this partition.",
            "The parameter 31 has already been reduced.",
        ),
        (
            "ERROR:api:failed (exitcode: -7) local_rank: 2 (pid: 94)",
            "Local rank 2 was killed by SIGBUS (exit code -7).",
        ),
        (
            WATCHDOG.replace("8841", "2").removeprefix("[rank0]:"),
            "Watchdog caught collective operation timeout (SeqNum=2).",
        ),
        (
            "ERROR:api:failed (exitcode: -6) local_rank: 2 (pid: 94)",
            "Local rank 2 aborted with SIGABRT (exit code -6): its error is not in the log.",
        ),
        (
            "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update it.",
            "The NVIDIA driver is too old: it is for CUDA 11.4.",
        ),
        (
            "RuntimeError: CUDA driver version is insufficient for CUDA runtime version",
            "RuntimeError: CUDA driver version is insufficient for CUDA runtime version.",
        ),
        ("[rank3]: ERROR:api:failed (exitcode: -9)", "Rank 3 was killed by SIGKILL (exit code -9)."),
        (
            "[ERROR] [launch.py:321] ['/bin/python', '-u', 'a.py', '--local_rank=3', '-x'] exits with return code = -9",
            "A rank was killed by SIGKILL (exit code -9); DeepSpeed's launcher does not say",  # the command of the last
        ),
        (
            "[ERROR] [launch.py:321] ['/bin/python', '-u', 'a.py', '--local_rank=0', '-x'] exits with return code = -9",
            "Local rank 0 was killed by SIGKILL (exit code -9).",  # there is one
        ),
        ("Traceback (most recent call last):\nMemoryError", "MemoryError."),
        ("train.py: error: unrecognized arguments: --local_rank=0", "Unrecognized arguments: --local_rank=0."),
        ("run.py: error: the following arguments are required: --out", "The following arguments are required: --out."),
        (
            "deepspeed: error: unrecognized arguments: --nnodes=2 --foo",
            "Arguments that the launcher deepspeed does not have: --nnodes=2 --foo.",
        ),
        ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB.", "HIP out of memory."),
        ("RuntimeError: host=worker-2 was not reachable via ssh.", "Host worker-2 was not reachable via ssh."),
        (
            "ValueError: Expected a string path to an existing deepspeed config, or a dictionary. Received: z.json",
            "There is no DeepSpeed configuration z.json.",
        ),
        (
            "huggingface_hub.errors.GatedRepoError: 403 Client Error.\n\nCannot access gated repo for url "
            "https://huggingface.co/meta-llama/Llama-3.1-8B/resolve/main/config.json.",
            "meta-llama/Llama-3.1-8B is gated, and the Hub refused the account.",
        ),
        (
            "TypeError: initialize() got an unexpected keyword argument 'config_param'",
            "initialize() has no argument 'config_param'.",
        ),
        (
            "RuntimeError: expected mat1 and mat2 to have the same dtype, but got: float != c10::Half",
            "Two tensors of an operation have different types, float and Half.",
        ),
        (
            "ValueError: The global train batch size (3 x 4) must be evenly divisible by the number of generations per "
            "prompt (8).",
            "The global train batch size (3 x 4) is no multiple of 8 generations.",
        ),
        (
            "ValueError: The global batch size (4) must be divisible by the number of generations per prompt (8).",
            "The global batch size (4) is no multiple of 8 generations.",
        ),
        ("ModuleNotFoundError: No module named 'trl'", "No module named 'trl'."),
        ("ModuleNotFoundError: No module named 'transformers.deepspeed'", "No module named 'transformers.deepspeed'."),
        ("ValueError: No valid checkpoint found in output directory (out)", "There is no checkpoint-N in out."),
        (
            "slurmstepd: error: execve(): deepspeed: No such file or directory",
            "The shell found no deepspeed.",
        ),
        (
            "worker-2: ssh: connect to host worker-2 port 22: Connection refused\npdsh@worker-1: worker-2: ssh exited "
            "with exit code 255",
            "No ssh server was reached on worker-2, port 22: Connection refused.",
        ),
        (
            "srun: error: n01: task 3: Exited with exit code 1\nsrun: error: n02: tasks 4-7: Terminated",
            "Task 3 on n01 ended with exit code 1: its error is not in the log.",
        ),
        (
            "srun: error: n01: tasks 0-3: Exited with exit code 1",
            "Tasks 0-3 on n01 each ended with exit code 1: its error is not in the log.",
        ),
        (
            "E0304 03:55:25.10 4411 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) "
            "local_rank: 2 (pid: 4504) of binary: /opt/conda/bin/python\nRoot Cause (first observed failure):\n[0]:\n"
            "  host      : node1\n  rank      : 10 (local_rank: 2)\n  exitcode  : -9 (pid: 4504)",
            "Rank 10 on node1 was killed by SIGKILL (exit code -9).",
        ),
        (
            "terminate called after throwing an instance of 'gloo::IoException'\n  what():  [/opt/gloo/transport/tcp/"
            "pair.cc:724] connect [127.0.1.1]:4127: Connection refused",
            "Gloo found no address of this host that others can reach.",
        ),
        (
            "ImportError: cannot import name 'Llama' from 'transformers' (/opt/transformers/__init__.py)",
            "Cannot import name 'Llama' from 'transformers'.",
        ),
        (
            "TypeError: LoraConfig.__init__() got an unexpected keyword argument 'lora_rank'",
            "LoraConfig() has no argument 'lora_rank'.",
        ),
        (
            "DataLoader worker (pid 325) is killed by signal: Bus error.",
            "DataLoader worker is killed by signal: Bus error.",
        ),
    ],
)
def test_the_headline_quotes_only_the_log(
    line: str, headline: str, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the words of the message's title, it is the signal or the log's own words."""
    log.write_text(f"{line}\n")
    assert _why(capsys, "train.log")[1].splitlines()[0].strip() == headline


NCCL = """[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/me/train.py", line 13, in <module>
[rank1]:     dist.broadcast(flag, src=0)
[rank1]:   File "/opt/conda/lib/python3.10/site-packages/torch/distributed/distributed_c10d.py", line 27, in broadcast
[rank1]:     work = group.broadcast([tensor], opts)
[rank1]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3384, unhandled cuda error
[rank1]: ncclUnhandledCudaError: Call to CUDA function failed.
[rank1]: Last error:
[rank1]: Cuda failure 2 'out of memory'
"""


def test_the_lines_of_a_message_are_lines_and_the_deciding_one_is_whole(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At any width. NCCL's name of the error is no second exception, which would have no traceback."""
    log.write_text(NCCL)
    lines = [line.strip() for line in _why(capsys, "train.log")[1].splitlines()]
    assert lines[lines.index("--> train.log:9, rank 1") + 1 :][:2] == [
        "2 | /home/me/train.py:13, in <module>",
        "|     dist.broadcast(flag, src=0)",
    ]
    place = lines.index("9 > Cuda failure 2 'out of memory'")
    assert lines[place - 2 : place] == ["7 | ncclUnhandledCudaError: Call to CUDA function failed.", "8 | Last error:"]
    log.write_text(WATCHDOG)
    text = _why(capsys, "train.log")[1]
    message = " ".join(line.partition("| ")[2] or line.partition("> ")[2] for line in text.splitlines())
    assert "(SeqNum=8841, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800029 mill" in message


def test_the_rank_that_failed_first_is_shown_and_the_others_are_named(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the line, or by the time that the ranks print."""
    ranks = ["".join(f"[rank{rank}]: {line}\n" for line in (FRAMES + FULL).splitlines()) for rank in (3, 0, 2)]
    log.write_text("".join(ranks))
    text = _why(capsys, "train.log")[1]
    assert "--> train.log:8, rank 3" in text and "Its error is the first in the log; ranks 0, 2 followed." in text
    later = WATCHDOG.replace("ank0", "ank4").replace("Rank 0", "Rank 4").replace("10:11:12.131415", "10:11:12.131400")
    log.write_text(WATCHDOG + later)
    text = _why(capsys, "train.log")[1]
    assert "--> train.log:2, rank 4" in text and "Ranks 0, 4 wait in ALLREDUCE 8841." in text


def _runner(gpus: int) -> str:
    world = base64.urlsafe_b64encode(json.dumps({"localhost": [*range(gpus)]}).encode()).decode()
    return (
        "[2025-11-29 10:00:00,000] [INFO] [runner.py:605:main] cmd = /opt/bin/python -u -m deepspeed.launcher.launch "
        f"--world_info={world} --master_addr=127.0.0.1 --enable_each_rank_log=None train.py --model Qwen2.5-7B"
    )


COMMANDS = {
    "deepspeed": (_runner(4), "4x80GB -- deepspeed --num_gpus 4 train.py --model Qwen2.5-7B"),
    "a rank": (
        "[INFO] [launch.py:256:main] process 7 spawned with command: "
        "['/bin/python3', '-u', 'train.py', '--local_rank=0', '--bf16']",
        "Nx80GB -- deepspeed train.py --bf16",
    ),
    "set -x": (
        "+ torchrun --nproc-per-node=2 train.py --bf16",
        "2x80GB -- torchrun --nproc-per-node=2 train.py --bf16",
    ),
    "accelerate": (
        "$ accelerate launch --num_processes 16 --num_machines 2 train.py",
        "2x8x80GB -- accelerate launch --num_processes 16 --num_machines 2 train.py",
    ),
    "srun": (
        "+ NCCL_DEBUG=INFO srun --nodes 2 torchrun --nnodes 2 --nproc_per_node 8 train.py --bf16",
        "2x8x80GB -- torchrun --nnodes 2 --nproc_per_node 8 train.py --bf16",
    ),
    "in a function": ("++ srun torchrun --nproc_per_node 4 train.py", "4x80GB -- torchrun --nproc_per_node 4 train.py"),
    "cut": ("+ torchrun --nproc_per_node 2 train.py \\", "Nx80GB -- COMMAND"),
    "prose": ("please start deepspeed --help or torchrun with your train.py", "Nx80GB -- COMMAND"),
}


@pytest.mark.parametrize("form", COMMANDS)
def test_the_next_command_has_what_the_log_shows(form: str, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line, command = COMMANDS[form]
    log.write_text(f"{line}\n{FRAMES}{FULL}")
    words = " ".join(_why(capsys, "train.log")[1].replace("\\\n", "").split())
    assert words.endswith(f"ds-advise why train.log --gpus {command}")
    assert ("COMMAND is the one that started the training" in words) == command.endswith("COMMAND")


def test_locked_memory_is_no_lack_of_ram(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for line in (
        "n1:12:13 [0] misc/ibvwrap.cc:113 NCCL WARN Call to ibv_create_cq failed with error Cannot allocate memory",
        "torch.distributed.DistBackendError: NCCL error: unhandled system error\nLast error:\n"
        "Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
    ):
        log.write_text(f"{line}\n")
        text = _why(capsys, "train.log")[1]
        assert "memlock=-1" in text and "Find what fits" not in text and "Offload" not in text


def test_no_other_plan_is_looked_for_where_none_would_help(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another process holds the memory."""
    log.write_text(FRAMES + FULL.replace("77.90", "40.00").replace("75.00", "38.00"))
    assert "ds-advise why" not in _why(capsys, "train.log")[1]


def test_the_ram_of_a_node_is_asked_for_where_it_ran_out(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.write_text("+ srun torchrun --nproc_per_node 8 train.py\nsrun: error: node1: task 3: Out Of Memory\n")
    words = " ".join(_why(capsys, "train.log")[1].replace("\\\n", "").split())
    assert "(SIZE the memory of a GPU in GB, RAM that of a node):" in words
    assert words.endswith("--gpus 8xSIZEGB --ram RAMGB -- torchrun --nproc_per_node 8 train.py")


def test_no_prediction_is_missed_where_none_would_help(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "No configuration is predicted" in _why(capsys, "train.log", "--gpus", "8x80GB")[1]
    for text in (
        FRAMES + FULL.replace("77.90", "40.00").replace("75.00", "38.00"),  # another process
        f"{FRAMES}{FULL}".replace("75.00", "55.00").replace("1.90", "21.90"),  # fragmentation
    ):
        log.write_text(text)
        shown = _why(capsys, "train.log", "--gpus", "8x80GB")[1]
        assert "No configuration is predicted" not in shown and "has no effect" not in shown


@pytest.mark.parametrize("error", ["torch.AcceleratorError", "RuntimeError"])
def test_a_gpu_that_was_full_before_the_training_is_no_lack_of_it(
    error: str, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log.write_text(
        'Traceback (most recent call last):\n  File "/w/train.py", line 12, in main\n    torch.cuda.set_device(rank)\n'
        '  File "/opt/lib/python3.11/site-packages/torch/cuda/__init__.py", line 584, in set_device\n'
        f"    torch._C._cuda_setDevice(device)\n{error}: CUDA error: out of memory\n"
    )
    shown = " ".join(_why(capsys, "train.log", "--gpus", "8x80GB")[1].split())
    assert shown.startswith("The GPU was full before this process held anything on it.")
    assert "CUDA_VISIBLE_DEVICES" in shown and "micro batch" not in shown and "Find what fits" not in shown
    assert "No configuration is predicted" not in shown


def test_an_assertion_of_a_kernel_has_the_traceback_of_the_rank_that_raised_it(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kernel's line names neither."""
    kernel = "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1284: indexSelectLargeIndex: block: [1,0,0]"
    frames = '  File "/w/train.py", line 40, in main\n    loss = model(batch).loss\n'
    raised = f"Traceback (most recent call last):\n{frames}RuntimeError: CUDA error: device-side assert triggered\n"
    ranked = "".join(f"[rank1]: {line}\n" for line in raised.splitlines())
    log.write_text(f"{kernel} Assertion `srcIndex < srcSelectDimSize` failed.\n" * 150 + ranked)
    shown = " ".join(_why(capsys, "train.log")[1].split())
    assert "--> train.log:1, rank 1" in shown and "/w/train.py:40, in main" in shown
    assert "had an error, too" not in shown and "followed" not in shown


@pytest.mark.parametrize(
    ("text", "headline"),
    [
        ("slurm_script: line 14: torchrun: command not found", "The shell found no torchrun."),
        ("bash: line 1: deepspeed: command not found", "The shell found no deepspeed."),
        ("/bin/sh: 1: accelerate: not found", "The shell found no accelerate."),
        ("Using /root/ext/py310 as PyTorch extensions root...", "The log stops while an extension is built."),
        (
            "RuntimeError: [enforce fail at inline_container.cc:626] . unexpected pos 14893254976 vs 14893254872",
            "The checkpoint could not be written. Usual causes: ",
        ),
        ("wandb: ERROR api_key not configured (no-tty)", "Weights & Biases has no API key."),
        ("ModuleNotFoundError: No module named 'flash_attn'", "The package flash-attn is not installed."),
    ],
)
def test_the_headline_is_a_sentence(text: str, headline: str, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a message that is none."""
    log.write_text(f"{text}\n")
    assert " ".join(_why(capsys, "train.log")[1].split()).startswith(headline)


def test_an_exit_code_alone_has_usual_causes(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.write_text("ERROR:api:failed (exitcode: -7) local_rank: 2 (pid: 94)\n")
    words = " ".join(_why(capsys, "train.log")[1].split())
    assert "Usual causes:" in words and "Most often /dev/shm is full" in words and " Cause:" not in words


def test_a_request_in_bytes_is_also_in_gib_and_a_url_is_whole(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.write_text(
        FRAMES + "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 25769803776 bytes.\n"
    )
    assert "It asked for 24.00 GiB." in _why(capsys, "train.log")[1]
    log.write_text(FULL)
    assert (
        "/c10/cuda/CUDACachingAllocator.cpp\n"
        in _why(capsys, "train.log")[1].partition("https://")[2].partition("\n")[0] + "\n"
    )


def test_an_unknown_error_is_shown_and_not_explained(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first exception with its frames; nothing that could be taken for its cause."""
    log.write_text(FRAMES + "my_project.BadSample: row 7\n" + FRAMES + "my_project.Other: row 8\n")
    code, text = _why(capsys, "train.log")
    assert code == 1 and "its cause and its fix are not known" in " ".join(text.split())
    assert text.startswith(" my_project.BadSample: row 7.\n") and "8 > my_project.BadSample: row 7" in text
    assert "/data/train.py:88, in <module>" in text and "Also in the log: my_project.Other: row 8." in text
    assert not re.search(r"Cause:|causes:|Fix:|code:|answered in:|Documented", text)
    for empty in ("", "{'loss': 1.25}\n", "usage: train.py [--ddp_timeout N]\n"):
        log.write_text(empty)
        code, text = _why(capsys, "train.log")
        assert code == 1 and ("No error was found" if empty else "The log is empty.") in text
        assert not empty or text.rstrip().endswith(empty.strip())


class _Interrupted(io.BytesIO):
    """`tail -f` that somebody ends by Ctrl-C."""

    def read1(self, size: int | None = -1, /) -> bytes:
        if part := super().read1(size):
            return part
        raise KeyboardInterrupt


def test_a_log_is_read_from_a_pipe_compressed_and_as_windows_writes_it(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its content, not by its name."""
    data, text = log.read_bytes(), log.read_text()
    lines = data.splitlines(keepends=True)
    forms = {
        "train.log.gz": gzip.compress(data),
        "compressed.log": gzip.compress(data),
        "plain.gz": data,
        "emptied.log": bytes(9000) + data + bytes(300),
        "windows.log": text.replace("\n", "\r\n").encode("utf-16"),
        "unmarked.log": text.encode("utf-16-le"),
        "docker.log": b"".join(b'{"log":%s}\n' % json.dumps(line.decode()).encode() for line in lines),
        "journal.log": b"".join(b"Nov 29 17:53:01 node-3 train[42]: %s" % line for line in lines),
    }
    for name, content in forms.items():
        Path(name).write_bytes(content)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(_Interrupted(data)))
    answers = [_why(capsys, name) for name in ("train.log", *forms, "-")]
    assert [code for code, _ in answers] == [0] * len(answers)
    assert (
        len({text.partition(", rank 5")[2].partition("Find what fits")[0] for _, text in answers}) == 1
        and ", rank 5" in answers[0][1]
    )


def test_the_outputs_of_a_notebook_are_its_log(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whichever key stands first."""
    traceback = [
        "\x1b[0;31mOutOfMemoryError\x1b[0m                  Traceback (most recent call last)",
        "\x1b[0;32m/opt/dist-packages/torch/_tensor.py\x1b[0m in \x1b[0;36mbackward\x1b[0;34m(self)\n--> 522 run()",
        "\x1b[0;31mOutOfMemoryError\x1b[0m: CUDA out of memory. Tried to allocate 1.94 GiB",
    ]
    outputs = [
        {"output_type": "stream", "text": ["step 1\n", "step 2\n"]},
        {"output_type": "error", "traceback": traceback},
    ]
    cells = {"cells": [{"cell_type": "markdown"}, {"cell_type": "code", "outputs": outputs}]}
    for notebook in (cells | {"nbformat": 4}, {"nbformat": 4, **cells}):
        log.write_text(json.dumps(notebook, indent=1))
        assert _why(capsys, "train.log")[1].strip().startswith("CUDA out of memory, in the backward pass.")
    log.write_text(json.dumps({"cells": [1]}))
    assert "No error was found" in _why(capsys, "train.log")[1]


def test_what_cannot_be_read_is_one_sentence(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2."""
    Path("a.bin").write_bytes(bytes(range(256)) * 40)
    Path("elf.bin").write_bytes(b"\x7fELF" + b"".join(number.to_bytes(8, "little") for number in range(2000)))
    Path("zeros.bin").write_bytes(bytes(9000))
    Path("cut.gz").write_bytes(gzip.compress(log.read_bytes() * 50)[:-20])
    for words in (["missing.log"], ["."], ["a.bin"], ["elf.bin"], ["zeros.bin"], ["cut.gz"], []):
        code, text = _why(capsys, *words)
        assert code == 2 and text and "Traceback" not in text, words
    assert "name a file in it, such as cut.gz" in _why(capsys, ".")[1]


def _rank_logs(folder: Path, form: str) -> None:
    """Rank 0 waits; rank 1 ran out of memory in a step that rank 0 logged."""
    text = {0: 4 * "{'loss': 1.25, 'epoch': 0.1}\n" + WATCHDOG.removeprefix("[rank0]:"), 1: FRAMES + FULL}
    for rank in text:
        path = folder / form.format(rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text[rank])


@pytest.mark.parametrize(
    ("form", "rank"),
    [
        ("none_abc/attempt_0/{}/stderr.log", ", rank 1"),
        ("20250101120000_rank{}.log", ", rank 1"),
        ("{}.log", ""),
    ],
)
def test_several_logs_are_one_training_s(form: str, rank: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each with its own lines and steps. A folder is read where the paths tell the ranks."""
    _rank_logs(Path("logs"), form)
    files = [f"logs/{form.format(rank)}" for rank in (0, 1)]
    code, text = _why(capsys, *files)
    words = " ".join(text.split())
    assert code == 0 and f"--> {files[1]}:8{rank} " in words and "Rank 0 waited in ALLREDUCE 8841" in words
    assert f"ds-advise why {' '.join(files)} --gpus" in words.replace(" \\ ", " ")
    assert json.loads(_why(capsys, *files, "--json")[1])["error"]["log"] == files[1]
    code, of_folder = _why(capsys, "logs")
    if rank:
        assert code == 0 and f"--> {files[1]}:8{rank} " in " ".join(of_folder.split())
    else:
        assert code == 2 and "no name in it is of a rank" in of_folder


def test_a_folder_s_older_logs_of_a_rank_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    for attempt in (0, 1):
        _rank_logs(Path("logs"), f"none_abc/attempt_{attempt}/{{}}/stderr.log")
    for path in Path("logs").glob("none_abc/attempt_0/*/*"):
        os.utime(path, (1, 1))
    text = _why(capsys, "logs")[1]
    assert "--> logs/none_abc/attempt_1/1/stderr.log:8, rank 1" in text and "attempt_0" not in text


def test_the_log_of_several_that_cannot_be_read_is_named(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("cut.log.gz").write_bytes(gzip.compress(log.read_bytes())[:40])
    code, error = _why(capsys, "train.log", "cut.log.gz")
    assert code == 2 and "cut.log.gz cannot be read" in error


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (["--model", "Qwen2.5-7B"], "No configuration is predicted: pass --config FILE, or the training command"),
        (["--config", "ds.json"], "ds.json is not predicted: pass its --model and --gpus."),
    ],
)
def test_the_cause_is_shown_although_a_prediction_lacks_something(
    words: list[str], note: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = _why(capsys, "train.log", *words, "--offline")
    assert code == 0 and "CUDA out of memory, in the backward pass." in text and note in " ".join(text.split())


def test_an_error_of_the_prediction_comes_after_the_cause(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.json").write_text("{")
    assert run(["why", "train.log", "--config", "bad.json", "--model", "Qwen2.5-7B", "--gpus", "8x48GB"]) == 2
    out, error = capsys.readouterr()
    assert "CUDA out of memory, in the backward pass." in out and "bad.json" in error


def test_options_that_memory_has_nothing_to_do_with_are_named(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.write_text(WATCHDOG)
    code, text = _why(capsys, "train.log", "--gpus", "4x48GB")
    assert code == 0 and "--gpus has no effect: memory did not run out." in text
    log.write_text("my_project.BadError: 1\n")
    code, text = _why(capsys, "train.log", "--config", "ds.json", "--gpus", "4x48GB", "--", "python", "train.py")
    note = "--config and --gpus and the command behind -- have no effect: memory did not run out."
    assert code == 1 and note in " ".join(text.split())


def test_a_command_that_fails_is_not_asked_for_again(capsys: pytest.CaptureFixture[str]) -> None:
    """The cause comes first, then the error of the script, as that of any prediction: exit code 2."""
    Path("train.py").write_text("raise RuntimeError('no model')\n")
    assert run(["why", "train.log", "--gpus", "4x48GB", "--", sys.executable, "train.py"]) == 2
    out, error = capsys.readouterr()
    assert "CUDA out of memory, in the backward pass." in out and "COMMAND" not in out
    assert "RuntimeError: no model" in error


@pytest.mark.parametrize("lines", [FRAMES + FULL, "my_project.BadError: 1\n"])
def test_a_missing_configuration_is_refused_before_the_log(
    lines: str, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also with a log that needs none; a file of nearly its name is proposed."""
    log.write_text(lines)
    Path("ds_config.json").write_text(json.dumps(CONFIG))
    assert run(["why", "train.log", "--config", "ds_confg.json"]) == 2
    out, error = capsys.readouterr()
    assert not out and "ds_confg.json cannot be read: there is no such file; write --config ds_config.json\n" in error


def test_the_evidence_has_the_frame_of_the_engine_and_no_general_advice(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file of DeepSpeed names the ZeRO stage; torch's advice against fragmentation stands in every message."""
    site = "/opt/venv/lib/python3.11/site-packages"
    frames = [
        ("/data/train.py", "trainer.train()"),
        (f"{site}/deepspeed/runtime/zero/stage_1_and_2.py", "self.optimizer.step()"),
        (f"{site}/torch/optim/optimizer.py", "out = func(*args, **kwargs)"),
        (f"{site}/torch/optim/adamw.py", "has_complex = self._init_group("),
        (f"{site}/torch/optim/adamw.py", "state['exp_avg_sq'] = torch.zeros_like(p)"),
    ]
    shown = "".join(f'  File "{file}", line 7, in f\n    {code}\n' for file, code in frames)
    log.write_text(f"Traceback (most recent call last):\n{shown}{FULL}")
    text = _why(capsys, "train.log")[1]
    assert "stage_1_and_2.py:7" in text and "but unallocated." in " ".join(text.split()).replace("| ", "")
    assert "to avoid" not in text


def test_a_configuration_gets_the_changes_that_fit(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each fits with a margin, the first one, which is printed to paste, saves the most for the speed that it costs. It
    stays one page."""
    log.write_text(FRAMES + FULL.replace("79.15", "55.00").replace("77.90", "54.00").replace("75.00", "50.00"))
    code, text = _why(capsys, "train.log", "--config", "ds.json", *QUESTION)
    assert code == 0 and len(text.splitlines()) <= 48 and max(map(len, text.splitlines())) <= 80
    assert "To paste, for a loss that does not store the logits:\n   use_liger_kernel=True\n" in text
    last = "ds-advise why train.log --config ds.json --gpus 8x48GB --offline -- COMMAND"  # the user's options
    assert text.rstrip().endswith(last)
    assert "The GPU of the log has 55.0 GiB, and the one that was asked about" in " ".join(text.split())
    _, printed = _why(capsys, "train.log", "--config", "ds.json", *QUESTION, "--json")
    report: dict[str, Any] = json.loads(printed)
    forecast = report["forecast"]
    assert report["found"] and report["message"]["id"] == "gpu-memory" and report["phase"]["name"] == "backward"
    assert (forecast["plan"], forecast["peak"], forecast["fits"]) == ("zero2", "loss_peak", False)
    needed = [change["device_bytes_per_gpu"] for change in forecast["changes"]]
    assert forecast["gpu_memory_bytes"] < forecast["device_bytes_per_gpu"]
    assert needed and max(needed) < min(forecast["gpu_memory_bytes"], 0.95 * forecast["device_bytes_per_gpu"])
    speeds = [change["tokens_per_second"] for change in forecast["changes"]]
    assert speeds == sorted(speeds, reverse=True)
    assert all(change["file"] or change["arguments"] for change in forecast["changes"])
    Path("bare.log").write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    _, text = _why(capsys, "bare.log", "--config", "ds.json", *QUESTION)
    assert "`ds-advise Qwen2.5-7B --gpus 8x48GB --offline --seq-len 2048` finds" in " ".join(text.split())


@pytest.mark.parametrize(
    ("size", "length"),
    [("490.00 MiB", 1000), ("1002.00 MiB", 2048), ("1004.00 MiB", 2052), ("2.02 GiB", 4224)],
)
def test_the_length_is_of_a_request_that_torch_rounds_up_to_2_mib(size: str, length: int) -> None:
    """1000, 2048 and 2052 tokens of 128,256 words are 489.26, 1,002.0 and 1,003.96 MiB."""
    frame = '  File "/opt/transformers/loss/loss_utils.py", line 52, in ForCausalLMLoss\n    logits = logits.float()\n'
    error = FULL.replace("3.00 GiB", size)
    found = diagnose_text(f"Traceback (most recent call last):\n{frame}{error}")
    assert logged_length(found, vocabulary=128_256, micro_batch=1) == length


def test_the_length_is_that_of_the_logits_that_did_not_fit(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """9.28 GiB are 16,384 tokens of fp32 logits of 152,064 words: 4 samples. The fix is the change that fits."""
    Path("ds.json").write_text(json.dumps(CONFIG | {"train_micro_batch_size_per_gpu": 4}))
    frame = '  File "/opt/transformers/loss/loss_utils.py", line 52, in ForCausalLMLoss\n    logits = logits.float()\n'
    full = FULL.replace("3.00 GiB", "9.28 GiB").replace("79.15", "47.40").replace("77.90", "46.20")
    log.write_text(f"Traceback (most recent call last):\n{frame}{full.replace('75.00', '43.00')}")
    given = ["why", "train.log", "--config", "ds.json", "--model", "Qwen2.5-7B", "--offline"]
    assert run([*given, "--gpus", "8x48GB"]) == 0
    out, error = capsys.readouterr()
    said = "--seq-len 4096, by the log: the request that did not fit is 16,384 tokens of fp32 logits"
    assert said in " ".join(error.split()) and "sequence length 2048" not in out
    words = " ".join(out.split())
    assert "Fix: A loss that does not store the logits, which is predicted to fit (below)." in words
    assert "To paste, for a loss that does not store the logits" in words
    assert run([*given, "--gpus", "1x24GB"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "Fix: No single change is predicted to fit; `ds-advise Qwen2.5-7B --gpus 1x24GB" in words
    assert run([*given, "--gpus", "8x48GB", "--seq-len", "2048"]) == 0
    assert "by the log" not in capsys.readouterr().err


def test_a_pasted_change_is_predicted_as_it_was_promised(capsys: pytest.CaptureFixture[str]) -> None:
    """The file with the change merged into it needs what the list said, and is predicted to fit."""
    _, printed = _why(capsys, "train.log", "--config", "ds.json", *QUESTION, "--json")
    change = next(each for each in json.loads(printed)["forecast"]["changes"] if each["file"])
    merged = CONFIG | {name: {**CONFIG.get(name, {}), **part} for name, part in change["file"].items()}
    Path("ds.json").write_text(json.dumps(merged))
    _, printed = _why(capsys, "train.log", "--config", "ds.json", *QUESTION, "--json")
    forecast = json.loads(printed)["forecast"]
    assert forecast["fits"] and forecast["device_bytes_per_gpu"] == change["device_bytes_per_gpu"]


def test_what_is_pasted_replaces_whole_keys_and_keeps_what_they_had(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And names no key that the file does not have."""
    own = {"stage": 2, "overlap_comm": True, "reduce_bucket_size": "auto"}
    Path("ds.json").write_text(json.dumps(CONFIG | {"zero_optimization": own}))
    step = '  File "/opt/torch/optim/adamw.py", line 243, in step\n    adamw('
    log.write_text(f"Traceback (most recent call last):\n{step}\n{FULL}")
    given = ["--config", "ds.json", "--model", "Qwen2.5-7B", "--gpus", "8x80GB", "--seq-len", "3328", "--offline"]
    text = _why(capsys, "train.log", *given)[1]
    pasted = text.partition("(in place of the same keys of ds.json):\n")[2].partition("\n\n")[0]
    keys = json.loads(f"{{{pasted}}}")
    assert keys["zero_optimization"].items() >= (own | {"stage": 3}).items() and "null" not in pasted
    changes = json.loads(_why(capsys, "train.log", *given, "--json")[1])["forecast"]["changes"]
    assert all(change["removed"] == [] and None not in change["file"].values() for change in changes)


@pytest.mark.parametrize(
    ("frames", "phase"),
    [
        (
            '  File "/opt/deepspeed/runtime/zero/stage_1_and_2.py", line 900, in initialize_optimizer_states',
            "first_step",
        ),
        ('  File "/opt/torch/nn/functional.py", line 3494, in cross_entropy', "loss"),
    ],
)
def test_the_prediction_is_that_of_the_phase_of_the_failure(
    frames: str, phase: str, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside the peak, which this training has at the loss."""
    log.write_text(f"Traceback (most recent call last):\n{frames}\n    call()\n{FULL}")
    given = ["--config", "ds.json", "--model", "Qwen2.5-7B", "--gpus", "8x80GB", "--seq-len", "4096", "--offline"]
    report = json.loads(_why(capsys, "train.log", *given, "--json")[1])
    forecast = report["forecast"]
    there, most = (forecast[f"{name}_allocated_bytes_per_gpu"] for name in ("phase", "peak"))
    assert report["phase"]["name"] == phase and forecast["peak"] == "loss_peak"
    assert there == most if phase == "loss" else 0 < there < most
    words = " ".join(_why(capsys, "train.log", *given)[1].split())
    title = report["phase"]["title"]
    predicted = f"Predicted for tensors {title}: {gib(there)} GiB; at the peak: {gib(most)} GiB."
    assert (predicted in words) == (phase != "loss")


def test_a_prediction_that_the_log_contradicts_is_not_used(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After a step; before it, the optimizer's step may be what does not fit."""
    given = ["--config", "ds.json", "--model", "Qwen2.5-7B", "--gpus", "2x24GB", "--offline"]
    full = FULL.replace("79.15", "23.64").replace("77.90", "22.42").replace("75.00", "20.50")
    log.write_text(f"  6%|6         | 6/100 [00:06<01:40,  1.02s/it]\n{FRAMES}{full}")
    words = " ".join(_why(capsys, "train.log", *given)[1].split())
    assert "That is not the training of the log: it did 6 steps on a GPU of 23.6 GiB, and the optimizer's step" in words
    assert "Single changes" not in words and "To paste" not in words
    log.write_text(FRAMES + full)
    assert "That is not the training" not in _why(capsys, "train.log", *given)[1]


@pytest.mark.parametrize(
    ("frame", "options"),
    [
        ("", "--seq-len, --micro-batch, --model, --gpus"),
        ('torch/optim/adamw.py", line 243, in step', "--model, --gpus"),
    ],
)
def test_a_prediction_that_is_far_below_the_log_is_not_used(
    frame: str, options: str, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The option to correct is named; samples do not matter to the optimizer's states."""
    log.write_text(FRAMES + (f'  File "/opt/{frame}\n' if frame else "") + FULL)
    given = ["--config", "ds.json", "--model", "Qwen2.5-0.5B", "--gpus", "2x80GB", "--offline"]
    words = " ".join(_why(capsys, "train.log", *given)[1].split())
    assert f"the training of the log, which needed at least 80.9 GiB. Correct {options} or ds.json." in words
    assert not any(text in words for text in ("It fits the GPU", "Single changes", "To paste"))


def test_a_configuration_without_a_model_is_not_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    """The options that were given are not asked for."""
    for given, lacking in (([], "--model and --gpus"), (["--gpus", "2x80GB"], "--model")):
        text = _why(capsys, "train.log", "--config", "ds.json", "--offline", *given)[1]
        assert f"ds.json is not predicted: pass its {lacking}.\n" in text


def test_the_gpus_of_the_log_are_predicted(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unless the user names others."""
    log.write_text(f"{_runner(2)}\n{log.read_text()}".replace("79.15", "47.40"))
    given = ["train.log", "--config", "ds.json", "--model", "Qwen2.5-7B", "--offline"]
    code, text = _why(capsys, *given)
    assert code == 0 and "of 47.0 GiB per GPU" in " ".join(text.split())
    assert "The GPU of the log has 47.4 GiB, and" in " ".join(_why(capsys, *given, "--gpus", "2x80GB")[1].split())


def test_a_lack_of_ram_is_compared_with_the_ram(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The need and what there is; the changes need less RAM, and the next commands keep the user's options."""
    offloaded = {"stage": 3, "offload_optimizer": {"device": "cpu"}}
    Path("ds.json").write_text(
        json.dumps(CONFIG | {"zero_optimization": offloaded, "train_micro_batch_size_per_gpu": 1})
    )
    log.write_text("Loading checkpoint shards:  40%|####      | 2/5\nERROR:api:failed (exitcode: -9) local_rank: 1\n")
    given = ["--model", "Qwen2.5-7B", "--gpus", "8x80GB", "--ram", "64GB", "--offline"]
    _, printed = _why(capsys, "train.log", "--config", "ds.json", *given, "--json")
    report = json.loads(printed)
    forecast = report["forecast"]
    assert report["phase"]["name"] == "load" and forecast["lacks"] == "host"
    assert forecast["host_bytes_per_node"] > forecast["ram_bytes_per_node"] > 0
    assert forecast["whole_load_bytes_per_node"] > 8 * 14 * 2**30  # 8 ranks x 7.6e9 weights x 2 bytes
    assert [change["what"] for change in forecast["changes"]] == ["the optimizer on the GPUs"]
    assert all(change["host_bytes_per_node"] < forecast["ram_bytes_per_node"] for change in forecast["changes"])
    words = " ".join(_why(capsys, "train.log", "--config", "ds.json", *given)[1].replace("\\\n", "").split())
    assert re.search(r"ds\.json is predicted to need [\d. of]+ GiB per GPU .*? and [\d.]+ of [\d.]+ GiB of RAM", words)
    assert "It fits the GPU, but not the RAM. With the error of the prediction, " in words
    assert words.endswith("--gpus 8x80GB --offline --ram 64GB -- COMMAND")


def test_what_fits_the_ram_and_not_the_gpu_is_not_called_fitting(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a killed process; no change is proposed that fits one of the two alone."""
    log.write_text("Loading checkpoint shards:  40%|####      | 2/5\nERROR:api:failed (exitcode: -9) local_rank: 1\n")
    Path("ds.json").write_text(
        json.dumps(CONFIG | {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}})
    )
    given = ["--config", "ds.json", "--model", "Qwen2.5-7B", "--gpus", "4x24GB", "--offline"]
    for ram, text in (("512GB", "It fits the RAM, but not the GPU. "), ("64GB", "It fits neither. ")):
        words = " ".join(_why(capsys, "train.log", *given, "--ram", ram)[1].split())
        assert text in words and "More RAM alone does not help" in words and "Single changes" not in words


def test_the_change_follows_the_phase_of_the_log(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also of a plan that was predicted to fit: first the one that saves the most there for the speed that it costs."""
    loss = (
        '  File "/opt/torch/nn/functional.py", line 3494, in cross_entropy\n    return torch._C._nn.cross_entropy_loss('
    )
    step = '  File "/opt/torch/optim/adamw.py", line 243, in step\n    adamw('
    found = {}
    for name, frame in (("loss", loss), ("optimizer_step", step)):
        log.write_text(f"Traceback (most recent call last):\n{frame}\n{FULL}")
        words = ["--config", "ds.json", "--model", "Qwen2.5-7B", "--gpus", "8x80GB", "--offline", "--json"]
        report = json.loads(_why(capsys, "train.log", *words)[1])
        assert report["phase"]["name"] == name and report["forecast"]["fits"]
        found[name] = [change["what"] for change in report["forecast"]["changes"]]
    assert found["loss"][0] == "a loss that does not store the logits"
    assert found["optimizer_step"][0] == "ZeRO stage 3"
    assert not any("loss" in what or "micro batch" in what for what in found["optimizer_step"])
    smaller = [
        "--config",
        "ds.json",
        "--model",
        "Qwen2.5-3B",
        "--gpus",
        "4x48GB",
        "--ram",
        "1TB",
        "--offline",
        "--json",
    ]
    changes = json.loads(_why(capsys, "train.log", *smaller)[1])["forecast"]["changes"]
    names = [each["what"] for each in changes]
    assert names == ["the optimizer in host RAM", "ZeRO stage 3 with the optimizer in host RAM"]
    assert changes[0]["device_bytes_per_gpu"] > changes[1]["device_bytes_per_gpu"], "the second one contains the first"


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("  25%|##5       | 1250/5000 [1:02:03<3:06:09,  2.98s/it]", "after step 1250"),
        ("[INFO] [logging.py:107:log_dist] [Rank 0] step=1250, skipped=3, lr=[1e-05]", "after step 1250"),
        ("steps: 1250 loss: 2.3012 iter time (s): 1.2", "after step 1250"),
        (" iteration     1250/    5000 | lm loss: 2.1E+00", "after step 1250"),
        ("  Total optimization steps = 5,000", ""),
        ("Map:  25%|##5       | 1250/5000 [00:03<00:06, 298 examples/s]", ""),
        ("{'loss': '1.2', 'epoch': '0.1'}", "after 1 logged step"),
    ],
)
def test_the_step_is_the_one_that_the_log_names(
    line: str, place: str, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log.write_text(f"{line}\n{FRAMES}{FULL}")
    where = next(each for each in _why(capsys, "train.log")[1].splitlines() if "--> train.log:" in each)
    assert where.partition(", ")[2] == place


@pytest.mark.parametrize(
    ("line", "gpus"),
    [
        ("[INFO] [launch.py:168:main] nnodes=1, num_local_procs=4, node_rank=0", "4x80GB"),
        ("[INFO] [launch.py:173:main] dist_world_size=4", "4x80GB"),
        ("Num processes: 2", "2x80GB"),
        ("Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/8", "8x80GB"),
        ("[rank7]: Some line with an Error", "8x80GB"),
        ("[rank5]: Some line with an Error", "Nx80GB"),
        ("WORLD_SIZE=32\nLOCAL_WORLD_SIZE=8", "4x8x80GB"),
        ("WORLD_SIZE=32", "Nx80GB"),
        ("nproc_per_node: 4\n+ torchrun --nproc_per_node 2 train.py --bf16", "2x80GB"),
    ],
)
def test_the_gpus_are_those_that_the_log_shows(
    line: str, gpus: str, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command, else by what launchers and libraries print, else by the ranks in front of the lines."""
    log.write_text(f"{line}\n{FRAMES}{FULL}")
    assert f"ds-advise why train.log --gpus {gpus} -- " in _why(capsys, "train.log")[1]


WORKER = """[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/ann/a-long-folder-of-experiments/instruction-tuning-2026/sft/train.py", line 88, in <module>
[rank0]:     trainer.train()
[rank0]:   File "/opt/lib/python3.11/site-packages/torch/_utils.py", line 733, in reraise
[rank0]:     raise exception
[rank0]: TYPE: Caught TYPE in DataLoader worker process 0.
[rank0]: Original Traceback (most recent call last):
[rank0]:   File "/opt/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py", line 55, in fetch
[rank0]:     return self.collate_fn(data)
[rank0]:   File "/home/ann/a-long-folder-of-experiments/instruction-tuning-2026/sft/collate.py", line 17, in __call__
[rank0]:     labels = stack(features)
[rank0]: TYPE: MESSAGE
"""


@pytest.mark.parametrize(
    ("error", "message", "verdict"),
    [
        ("KeyError", "'labels'", "A sample has no column 'labels'."),
        (
            "RuntimeError",
            "stack expects each tensor to be equal size, but got [512] at entry 0 and [498] at entry 1",
            "The samples of a batch have unequal lengths: [512] and [498].",
        ),
        (
            "ValueError",
            "expected sequence of length 75 at dim 1 (got 81)",
            "The samples of a batch have unequal lengths: 75 and 81.",
        ),
    ],
)
def test_an_error_of_a_loader_worker_names_its_column_or_lengths(
    error: str, message: str, verdict: str, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it was raised in the worker. Of a long path the end stays, with line and function."""
    log.write_text(WORKER.replace("TYPE", error).replace("MESSAGE", message))
    text = _why(capsys, "train.log")[1]
    assert text.splitlines()[0] == f" {verdict}" and "Also in the log" not in text
    assert re.search(r"^   10 \| \.\.\..*/sft/collate\.py:17, in __call__$", text, re.MULTILINE)


def test_a_rank_that_reports_no_timeout_is_in_the_verdict(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The watchdog's further lines are no other errors."""
    waiting = "".join(WATCHDOG.replace("ank0", f"ank{rank}").replace("Rank 0", f"Rank {rank}") for rank in (0, 1))
    further = "[rank0]:[E123 ProcessGroupNCCL.cpp:744] [Rank 0] Some NCCL operations have failed or timed out.\n"
    log.write_text(f"[rank2]: Error: a line of rank 2\n{waiting}{further}")
    words = " ".join(_why(capsys, "train.log")[1].split())
    assert words.startswith("Ranks 0, 1 waited 30 minutes in ALLREDUCE 8841; rank 2 reported no timeout.")
    assert "Find what rank 2 did" in words and "Some NCCL operations" not in words


def test_the_agent_s_summary_alone_names_the_rank(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.write_text("E1129 api.py:882] failed (exitcode: 1) local_rank: 3 (pid: 4714) of binary: /bin/python\n")
    code, text = _why(capsys, "train.log")
    assert code == 1 and text.startswith(" Local rank 3 ended with exit code 1: its error is not in the log.\n Next:")


def test_no_higher_stage_is_advised_under_zero_3(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = '  File "/opt/deepspeed/runtime/zero/FILE.py", line 2380, in step\n    self._optimizer_step(sub_group_id)\n'
    for file, advised in (("stage_1_and_2", True), ("stage3", False)):
        log.write_text(f"Traceback (most recent call last):\n{frame.replace('FILE', file)}{FULL}")
        assert ("A higher ZeRO stage" in _why(capsys, "train.log")[1]) == advised


def test_the_fix_follows_the_given_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    """It shows the engine where the log does not."""
    texts = []
    for stage in (2, 3):
        Path("ds.json").write_text(json.dumps({"zero_optimization": {"stage": stage}}))
        texts.append(" ".join(_why(capsys, "train.log", "--config", "ds.json")[1].split()))
    without = " ".join(_why(capsys, "train.log")[1].split())
    assert ["higher ZeRO stage" in text for text in texts] == [True, False] and "or more GPUs" in texts[1]
    assert "(ZeRO, FSDP)" in without and "higher ZeRO stage" not in without


def test_the_help_has_the_texts_of_this_command(capsys: pytest.CaptureFixture[str]) -> None:
    run(["why", "--help"])
    words = " ".join(capsys.readouterr().out.split())
    assert "lint" not in words and "strategies" not in words and "or auto. [default: auto]" in words
    assert "the configuration that fits is written" in words and "--force Overwrite existing files." in words
    assert run(["why", "train.log", "--force"]) == 0
    assert "--force has no effect without the training command behind --" in capsys.readouterr().err
    run(["lint", "--help"])
    assert "or auto. [default: none]" in " ".join(capsys.readouterr().out.split())


def test_a_training_that_ended_is_no_failure(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.write_text("{'loss': 2.1, 'epoch': 1.0}\n{'train_runtime': 121.2, 'train_loss': 2.2, 'epoch': 1.0}\n")
    code, text = _why(capsys, "train.log")
    assert code == 0 and text.startswith(" The training ended normally.") and "cut off" not in text
    log.write_text(f"{FRAMES}{FULL}{log.read_text()}")
    code, text = _why(capsys, "train.log")
    assert code == 0 and "ended normally.\n Survived: CUDA out of memory (line" in text
    (survived,) = json.loads(_why(capsys, "train.log", "--json")[1])["survived"]
    assert (
        survived["text"] == "CUDA out of memory"
        and "CUDA out of memory" in log.read_text().splitlines()[survived["line"] - 1]
    )


def test_a_misspelled_key_is_named_with_its_right_name(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the file that the user or the log names."""
    log.write_text(
        'Traceback (most recent call last):\n  File "/home/u/train.py", line 30, in <module>\n'
        '    engine, *_ = deepspeed.initialize(model=model, config="their.json")\n'
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for DeepSpeedZeroConfig\noffload_optimiser\n"
        "  Extra inputs are not permitted [type=extra_forbidden, input_value={'device': 'cpu'}, input_type=dict]\n"
    )
    for given, file in (([], "their.json"), (["--config", "ds.json"], "ds.json")):
        words = " ".join(_why(capsys, "train.log", *given)[1].split())
        assert words.startswith("DeepSpeedZeroConfig has no key 'offload_optimiser'.")
        assert f"Fix: Rename offload_optimiser to offload_optimizer in {file}; `ds-advise lint {file}`" in words


def test_no_deprecated_key_is_advised(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The unknown name is most like a deprecated key, whose successor is named."""
    log.write_text(
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for DeepSpeedZeroConfig\n"
        "stage3_gather_fp16_weights\n  Extra inputs are not permitted [type=extra_forbidden, input_value=True, "
        "input_type=bool]\n"
    )
    words = " ".join(_why(capsys, "train.log")[1].split())
    assert "Rename stage3_gather_fp16_weights to stage3_gather_16bit_weights_on_model_save" in words


SLURM = """Loading checkpoint shards:  40%|####      | 12/30 [01:10<01:46,  5.95s/it]
slurmstepd: error: Detected 1 oom_kill event in StepId=441.0. Some of the step tasks have been OOM Killed.
srun: error: gpu-node-12: task 0: Out Of Memory
srun: Terminating StepId=441.0
slurmstepd: error: *** STEP 441.0 ON gpu-node-12 CANCELLED AT 2025-06-01T12:22:01 ***
"""


def test_what_filled_the_ram_is_not_stated_as_certain(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither all ranks' models nor the limit of the job; that Slurm cancelled the step is an effect."""
    log.write_text(SLURM)
    words = " ".join(_why(capsys, "train.log")[1].split())
    assert "Usual causes: Every rank of the node loads the whole model" in words and "--mem=0" in words
    assert "cancelled" not in words


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (
            "TypeError: DPOConfig.__init__() got an unexpected keyword argument 'max_prompt_length'",
            "DPOConfig and RLOOConfig since 0.29. Fix: Remove it, and shorten or filter long prompts",
        ),
        (
            "TypeError: SFTConfig.__init__() got an unexpected keyword argument 'max_seq_length'",
            "Fix: Write SFTConfig(max_length=...)",
        ),
        (
            "TypeError: GRPOTrainer.__init__() got an unexpected keyword argument 'max_seq_length'",
            "Fix: Remove it, and write GRPOConfig(max_completion_length=...)",
        ),
        (
            "TypeError: DPOTrainer.__init__() got an unexpected keyword argument 'beta'",
            "Fix: Pass beta to DPOConfig, and that to the trainer as args.",
        ),
        (
            "TypeError: TrainingArguments.__init__() got an unexpected keyword argument 'overwrite_output_dir'",
            "Cause: transformers 5 removed overwrite_output_dir from TrainingArguments",
        ),
        (
            "TypeError: SFTConfig.__init__() got an unexpected keyword argument 'group_by_length'",
            'Fix: Use train_sampling_strategy="group_by_length", or install transformers<5.',
        ),
        (
            "TypeError: TrainingArguments.__init__() got an unexpected keyword argument 'learing_rate'",
            "Fix: Rename learing_rate to learning_rate, if that is meant; else install the transformers for",
        ),
        (
            "TypeError: LoraConfig.__init__() got an unexpected keyword argument 'lora_rank'",
            "Fix: Install the peft for which the script was written",
        ),
        (
            "TypeError: SFTConfig.__init__() got an unexpected keyword argument 'beta'",
            "Fix: Install the trl for which the script was written",  # DPOConfig has it
        ),
        (
            "TypeError: SFTConfig.__init__() got an unexpected keyword argument 'model_name_or_path'",
            "Fix: Install the trl for which the script was written",  # an option of TRL's scripts
        ),
        (
            "TypeError: DPOConfig.__init__() got an unexpected keyword argument 'padding_free'",
            "Fix: pip install -U trl: a newer trl takes padding_free",
        ),
        (
            "TypeError: SFTConfig.__init__() got an unexpected keyword argument 'warmup_steps'",
            "Fix: pip install -U trl: a newer trl takes warmup_steps",  # of TrainingArguments
        ),
        (
            "TypeError: Seq2SeqTrainingArguments.__init__() got an unexpected keyword argument 'warmup_steps'",
            "Fix: pip install -U transformers: transformers",  # of the base class
        ),
        (
            "TypeError: TrainingArguments.__init__() got an unexpected keyword argument 'predict_with_generate'",
            "Fix: Install the transformers for which the script was written",  # of the derived class
        ),
        (
            "TypeError: LoraConfig.__init__() got an unexpected keyword argument 'task_type'",
            "Fix: pip install -U peft: peft",  # of the base class
        ),
        (
            "TypeError: Accelerator.unwrap_model() got an unexpected keyword argument 'keep_fp32_wrapper'",
            "Fix: pip install -U accelerate: accelerate",  # the installed one has it
        ),
        (
            'Traceback (most recent call last):\n  File "/w/train.py", line 3, in <module>\n    with deepspeed.zero.'
            "Init(sequence_data_parallel_group=mpu.group(),\n"
            "TypeError: __init__() got an unexpected keyword argument 'sequence_data_parallel_group'",
            "Fix: pip install -U deepspeed: deepspeed",
        ),
        (
            "TypeError: Accelerator.__init__() got an unexpected keyword argument 'dispatch_batches'",
            "DataLoaderConfiguration(dispatch_batches=...)",
        ),
        (
            'Traceback (most recent call last):\n  File "/opt/site-packages/datasets/arrow_writer.py", line 5, in '
            "write\n    self.stream.write(x)\nOSError: [Errno 28] No space left on device",
            "Fix: Free space, or move the cache of `datasets` to another disk by HF_DATASETS_CACHE (or HF_HOME).",
        ),
        (
            "OSError: [Errno 28] No space left on device: '/root/.cache/huggingface/hub/x'",
            "Fix: Free space, or move the cache of the Hub to another disk by HF_HOME. It was writing /root",
        ),
        (
            "ValueError: Some specified arguments are not used by the HfArgumentParser: ['--gradient_checkpoint', "
            "'True', '--no_cuda=1']",
            "Fix: --gradient_checkpoint may be --gradient_checkpointing, an argument of TrainingArguments; --no_cuda: "
            "transformers 5 replaced no_cuda of TrainingArguments by use_cpu. Compare",
        ),
        (
            "ValueError: You cannot specify an optimizer in the config file and in the code at the same time. Please "
            "remove the optimizer from the config file or create `accelerate.utils.DummyOptim` in the code.",
            "Fix: Remove `optimizer` (and `scheduler` if the script makes one) from ds_config.json, or use",
        ),
        (
            "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
            "gradient_acc_step * world_size 32 != 4 * 2 * 8",
            "Fix: Set train_batch_size to 64, or keep 32 with gradient_accumulation_steps 1;",
        ),
        (
            "ValueError: Please correct the following DeepSpeed config values that mismatch TrainingArguments values:\n"
            "- ds train_batch_size=32 vs hf train_batch_size (calculated)=64\n- ds optimizer.params.lr=3e-05 vs hf "
            "learning_rate=5e-05\nThe easiest method is to set these DeepSpeed config values to 'auto'.",
            "values: train_batch_size (32, but train_batch_size (calculated) is 64), optimizer.params.lr (3e-05, but "
            "learning_rate is 5e-05).",
        ),
        (
            "pydantic_core._pydantic_core.ValidationError: 2 validation errors for DeepSpeedZeroConfig\n"
            "stage3_prefetch_bucket_size\n  Input should be a valid integer, got a number with a fractional part "
            "[type=int_from_float, input_value=15099494.4, input_type=float]\n    For further information visit "
            "https://errors.pydantic.dev/2.9/v/int_from_float\noffload_optimizer.device\n  Input should be 'none', "
            "'cpu' or 'nvme' [type=enum, input_value='gpu', input_type=str]",
            "write an integer for stage3_prefetch_bucket_size, such as 15099494; correct "
            "offload_optimizer.device, which is 'gpu': input should be 'none', 'cpu' or 'nvme'; ",
        ),
        ("OSError: [Errno 28] No space left on device: '/scratch/out/a.pt'", "It was writing /scratch/out/a.pt."),
        (
            "OSError: [Errno 122] Disk quota exceeded: '/home/a.pt'",
            "Cause: The quota of the user or the project is used",
        ),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: '/d/a.jsonl'",
            "Fix: Run `ls /d/a.jsonl` on the node",
        ),
        (
            "datasets.exceptions.DatasetGenerationCastError: An error occurred while generating the dataset\n\nAll the "
            "data files must have the same columns, but at some point there are 1 new columns ({'source'}) and 1 "
            "missing columns ({'id'}).\n\nThis happened while\n\na.jsonl",
            "columns: there are 1 new columns ({'source'}) and 1 missing columns ({'id'}).",
        ),
        (
            "ValueError: Unrecognized configuration class <class 'transformers.models.qwen2_vl.configuration_qwen2_vl."
            "Qwen2VLConfig'> for this kind of AutoModel: AutoModelForCausalLM.",
            "Fix: Load it by AutoModelForImageTextToText in place of AutoModelForCausalLM.",
        ),
        (
            "ValueError: Unrecognized configuration class <class 'transformers_modules.x.configuration_x.XConfig'> for "
            "this kind of AutoModel: AutoModelForCausalLM.",
            "Fix: Load it by the class that the model's card names in place of AutoModelForCausalLM",
        ),
        ("ImportError: --deepspeed requires deepspeed: `pip install deepspeed`", "DeepSpeed is not installed in the"),
    ],
)
def test_the_fix_has_the_names_and_numbers_of_the_log(
    error: str, advice: str, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also as data."""
    log.write_text(f"{error}\n")
    words = " ".join(_why(capsys, "train.log")[1].split())
    assert advice in words and "archive writer" not in words
    fix = json.loads(_why(capsys, "train.log", "--json")[1])["message"]["fix"]
    assert fix in words


HOLDS = """Traceback (most recent call last):
  File "/w/neus.py", line 29, in backward
    return grad * scaling
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked} GiB. GPU 0 has a total capacity of {total} GiB \
of which 0.50 GiB is free. Of the allocated memory {held} GiB is allocated by PyTorch, and {unused} GiB is reserved \
by PyTorch but unallocated. Try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.
"""


@pytest.mark.parametrize(
    ("asked", "total", "held", "unused", "words"),
    [
        ("13.58", "23.70", "12.30", "10.40", "That one request is larger than all tensors that the process held: comp"),
        ("13.58", "23.70", "12.30", "10.40", "compare the shapes in /w/neus.py:29."),
        ("0.80", "31.73", "28.49", "2.68", "expandable_segments:True. If it runs out again: a smaller micro batch"),
        ("0.02", "8.00", "14.21", "0.46", "torch holds more than the GPU has: the driver keeps the rest in RAM"),
    ],
)
def test_the_figures_of_a_full_gpu_are_compared(
    asked: str, total: str, held: str, unused: str, words: str, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log.write_text(HOLDS.format(asked=asked, total=total, held=held, unused=unused))
    printed = " ".join(_why(capsys, "train.log")[1].split())
    assert words in printed


def test_an_optimizer_of_8_bits_is_not_advised_where_it_ran(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.write_text(
        'Traceback (most recent call last):\n  File "/w/bitsandbytes/optim/optimizer.py", line 474, in init_state\n'
        '    state["state2"] = self.get_state_buffer(p, dtype=torch.uint8)\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.00 MiB.\n"
    )
    assert 'Fix: A paged optimizer (optim="paged_adamw_8bit"), LoRA' in " ".join(_why(capsys, "train.log")[1].split())


def test_a_first_operation_in_which_all_ranks_wait_is_a_matter_of_the_link(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wait = "[Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=BROADCAST, Timeout(ms)="
    lines = [f"[rank{rank}]:[E1218 20:27:21.42 x.cpp:629] {wait.format(rank)}600000)\n" for rank in (0, 1)]
    log.write_text("".join(lines))
    assert "Fix: Test the link: NCCL_P2P_DISABLE=1" in _why(capsys, "train.log")[1]
    log.write_text("[rank1]: loading\n[rank1]: error: none\n" + lines[0])
    assert "Fix: Find" in _why(capsys, "train.log")[1]


def test_a_rank_without_a_line_is_missed(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Between those that wait, or up to the number that the launcher reports; not a whole node's ranks."""

    def waiting(*ranks: int) -> str:
        return "".join(WATCHDOG.replace("ank0", f"ank{rank}").replace("Rank 0", f"Rank {rank}") for rank in ranks)

    for text, missed in (
        (waiting(0, 1, 3), "rank 2 reported no timeout"),
        ("[INFO] [launch.py:180:main] dist_world_size=4\n" + waiting(0, 1, 2), "rank 3 reported no timeout"),
        ("[INFO] [launch.py:180:main] dist_world_size=8\n" + waiting(0, 1, 2, 3), ""),
        (waiting(3), ""),
    ):
        log.write_text(text)
        words = " ".join(_why(capsys, "train.log")[1].split())
        assert missed in words if missed else "reported no timeout" not in words


def test_the_ranks_without_a_timeout_are_data(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.write_text("".join(WATCHDOG.replace("ank0", f"ank{rank}").replace("Rank 0", f"Rank {rank}") for rank in (1, 2)))
    data = json.loads(_why(capsys, "train.log", "--json")[1])
    assert data["silent"] == [0] and data["message"]["fix"].startswith("Find what rank 0 did")


def test_earlier_trainings_of_a_log_are_told(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = "[2025-01-01 00:00:12,345] [WARNING] [runner.py:191:fetch_hostfile] Unable to find hostfile\n"
    log.write_text(start + log.read_text() + start + "{'train_runtime': '6', 'epoch': '1.0'}\n")
    code, text = _why(capsys, "train.log")
    assert code == 0 and "The training ended normally." in text and "Survived" not in text
    assert "the last run of the file, from line 11" in text and "failed at line 10: CUDA out of memory." in text
    (run,) = json.loads(_why(capsys, "train.log", "--json")[1])["earlier"]
    assert run == {"begin": 1, "line": 10, "text": "failed at line 10: CUDA out of memory"}


def test_the_command_of_a_training_is_no_training_before_it(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = "".join(f"{{'loss': {2 - number / 10:.1f}, 'epoch': 0.{number}}}\n" for number in range(5))
    log.write_text("$ deepspeed train.py --deepspeed c.json\n" + steps + "ValueError: bad rows\n")
    text = _why(capsys, "train.log")[1]
    assert "earlier run" not in text and "after 5 logged steps" in text


def test_a_pod_s_limits_are_in_the_next_command(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.write_text(
        "    State:  Terminated\n      Reason:       OOMKilled\n      Exit Code:    137\n    Limits:\n"
        "      memory:          64Gi\n      nvidia.com/gpu:  8\n"
    )
    words = " ".join(_why(capsys, "train.log")[1].split())
    assert "It was 64 GiB." in words and "--gpus 8xSIZEGB --ram 64GiB -- COMMAND" in words


def test_a_rank_that_waits_elsewhere_is_the_verdict(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def waiting(rank: int, operation: str, number: int) -> str:
        line = WATCHDOG.replace("ank0", f"ank{rank}").replace("Rank 0", f"Rank {rank}")
        return line.replace("SeqNum=8841, OpType=ALLREDUCE", f"SeqNum={number}, OpType={operation}")

    others = "".join(waiting(rank, "_ALLGATHER_BASE", 48211) for rank in range(3))
    for operation, number, state in (
        ("ALLREDUCE", 48209, "took another path"),
        ("_ALLGATHER_BASE", 48209, "is behind"),
    ):
        log.write_text(others + waiting(3, operation, number))
        words = " ".join(_why(capsys, "train.log")[1].split())
        verdict = f"Rank 3 waits in {operation} {number}, the others in _ALLGATHER_BASE 48211: rank 3 {state}."
        assert words.startswith(verdict) and "--> train.log:4, rank 3" in words and "Fix: Find what rank 3 did" in words
        assert "failed first" not in words
    for numbers, operation, state in (
        ((501, 502), "ALLREDUCE", "they took different paths, and the log does not tell which one is wrong"),
        ((501, 502), "_ALLGATHER_BASE", "rank 0 is behind"),
        ((502, 501), "_ALLGATHER_BASE", "rank 1 is behind"),
    ):
        log.write_text(waiting(0, "_ALLGATHER_BASE", numbers[0]) + waiting(1, operation, numbers[1]))
        words = " ".join(_why(capsys, "train.log")[1].split())
        assert f"{numbers[0]}: {state}. " in words and "Fix: Find what ranks 0, 1 did" in words


def test_a_spike_before_a_loss_that_is_not_a_number_is_shown(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = [("2.103", "4.1"), ("2.08", "3.9"), ("9.41", "911.2"), ("nan", "nan"), *[("0.0", "nan")] * 9]
    log.write_text("".join(f"{{'loss': '{loss}', 'grad_norm': '{norm}'}}\n" for loss, norm in steps))
    words = " ".join(_why(capsys, "train.log")[1].split())
    assert words.startswith("The loss became nan.") and "--> train.log:4, after 3 logged steps" in words
    assert "The last finite step had loss 9.41 and grad_norm 911.2; the median before it was loss 2.0915" in words


def test_another_failure_has_no_forecast(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.write_text("OSError: [Errno 28] No space left on device\n")
    code, printed = _why(capsys, "train.log", "--config", "ds.json", *QUESTION, "--json")
    report = json.loads(printed)
    assert code == 0 and report["message"]["id"] == "disk-full" and report["forecast"] is None


def test_the_table_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = _why(capsys, "--list")
    assert code == 0 and text.count(" Fix: ") >= 80 and "Usual causes: " in text
    code, text = _why(capsys, "--list", "--json")
    listed = json.loads(text)
    assert code == 0 and len(listed) >= 80 and all(all(map(str, each.values())) for each in listed)
    assert {*listed[0]} == {"id", "area", "title", "kind", "certain", "cause", "fix", "source"}


def test_a_configuration_is_no_log(capsys: pytest.CaptureFixture[str]) -> None:
    """The command that checks it is named."""
    code, text = _why(capsys, "ds.json")
    assert code == 1 and text.rstrip().endswith("ds-advise lint ds.json") and "cut off" not in text


SHARED = FULL.replace("GiB is free. ", "GiB is free. Process 31337 has 70.10 GiB memory in use. ").replace(
    "77.90", "7.80"
)
OF_ACCELERATE = (
    'Traceback (most recent call last):\n  File "/opt/accelerate/utils/deepspeed.py", line 84, in __init__\n'
)


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        ("deepspeed: error: unrecognized arguments: --nproc-per-node 8", "has no --nproc-per-node: use --num_gpus"),
        ("torchrun: error: unrecognized arguments: --num_gpus=8", "torchrun has no --num_gpus: use --nproc_per_node"),
        (SHARED, "set_device(LOCAL_RANK), torch.load with map_location"),
        (SHARED, "The processes on it: 31337 (70.10 GiB)."),
        (
            f"{OF_ACCELERATE}    config = json.load(f)\njson.decoder.JSONDecodeError: Expecting ',' delimiter: line 14 "
            "column 3 (char 301)",
            "Correct line 14, or the one before it; `ds-advise lint",
        ),
        (
            'Traceback (most recent call last):\n  File "/opt/transformers/trainer_pt_utils.py", line 130, in '
            f"nested_concat\n    return torch_pad_and_concatenate(\n{FULL}",
            "Fix: Reduce the logits in preprocess_logits_for_metrics",
        ),
        (
            "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of "
            "191.98 GiB of which 1.10 GiB is free. Of the allocated memory 186.70 GiB is allocated by PyTorch, and "
            "300.00 MiB is reserved by PyTorch but unallocated.",
            "or choose other GPUs by HIP_VISIBLE_DEVICES.",
        ),
        (
            "RuntimeError: CUDA out of memory. Tried to allocate 1.50 GiB (GPU 0; 39.43 GiB total capacity; 25.12 GiB "
            "already allocated; 0.79 GiB free; 37.10 GiB reserved in total by PyTorch) If reserved memory is >> "
            "allocated memory try setting max_split_size_mb. See documentation for PYTORCH_CUDA_ALLOC_CONF",
            "Fix: Set PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128; or upgrade torch",
        ),
        (
            f"{FRAMES}{FULL}".replace("75.00", "55.00").replace("1.90", "21.90"),
            "Fix: Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
        ),
        (
            "RuntimeError: \nThe detected CUDA version (11.8) mismatches the version that was used to compile\n"
            "PyTorch (12.4). Please make sure to use the same CUDA versions.",
            "Fix: Install the CUDA 12.4 toolkit (CUDA_HOME names its folder), or a torch of CUDA 11.8. ",
        ),
        (
            "CUDAMismatchException: Installed CUDA version 12.9 does not match the version torch was compiled with "
            "12.4, unable to compile cuda/cpp extensions",
            "or a torch of CUDA 12.9; or build anyway by DS_SKIP_CUDA_CHECK=1.",
        ),
        (
            "RuntimeError: Some tensors share memory, this will lead to duplicate memory on disk",
            "Fix: Save by model.save_pretrained; if it refuses them, upgrade transformers",
        ),
        ("Using /root/ext/py310 as PyTorch extensions root...", "Fix: Delete /root/ext/py310 (or the lock"),
        (
            'Fatal Python error: Segmentation fault\n\nCurrent thread 0x7f (most recent call first):\n  File "a.py"',
            "Fix: The traceback below `Fatal Python error` shows the place; reinstall",
        ),
        ("Segmentation fault (core dumped)", "Fix: python -X faulthandler shows the place; reinstall"),
        (
            'Traceback (most recent call last):\n  File "/opt/transformers/loss/loss_utils.py", line 63, in '
            "ForCausalLMLoss\n    loss = fixed_cross_entropy(logits)\nRuntimeError: CUDA out of memory. Tried to "
            "allocate 2.00 GiB (GPU 0; 23.69 GiB total capacity; 21.20 GiB already allocated; 0.60 GiB free; 21.50 GiB "
            "reserved in total by PyTorch) See documentation for PYTORCH_CUDA_ALLOC_CONF",
            "Fix: A smaller micro batch, or shorter sequences. Liger's loss, which stores no logits, needs torch 2.1.2",
        ),
        ("RuntimeError: CUDA error: invalid device ordinal", "--nproc_per_node of torchrun, --num_gpus of deepspeed"),
        ("RuntimeError: expected scalar type BFloat16 but found Float", "train in it (bf16=True, --bf16), and call"),
        (
            "_pickle.UnpicklingError: Weights only load failed.\n\tWeightsUnpickler error: Unsupported global: GLOBAL "
            "argparse.Namespace was not an allowed global by default.",
            "Fix: For a file that you trust, torch.serialization.add_safe_globals([argparse.Namespace]) before",
        ),
        (
            "_pickle.UnpicklingError: Weights only load failed.\n\tWeightsUnpickler error: Unsupported global: GLOBAL "
            "deepspeed.runtime.fp16.loss_scaler.LossScaler was not an allowed global by default.",
            "Fix: Upgrade DeepSpeed; for a file that you trust, torch.serialization.add_safe_globals([deepspeed.",
        ),
        (
            "FAILED: adam.cuda.o\nnvcc fatal   : Value 'c++20' is not defined for option 'std'\n"
            "RuntimeError: Error building extension 'fused_adam'",
            "Fix: Install a CUDA toolkit of 12.0 or later, and point CUDA_HOME at it",
        ),
        (
            "ValueError: You can't train a model that has been loaded in 8-bit precision on multiple devices.",
            "Fix: pip install -U accelerate: this version refuses several GPUs even without a launcher",
        ),
        (
            'Traceback (most recent call last):\n  File "/opt/site-packages/trl/trainer/utils.py", line 3, in f\n'
            "    from peft import PeftConfig\nImportError: cannot import name 'PeftConfig' from 'peft' (/opt/"
            "site-packages/peft/__init__.py)",
            "Fix: If PeftConfig is new, upgrade peft or install an older trl; if peft removed it, upgrade trl or",
        ),
        (
            'Traceback (most recent call last):\n  File "/w/train.py", line 3, in <module>\n'
            "    from peft import PeftConfig\nImportError: cannot import name 'PeftConfig' from 'peft' (/opt/"
            "site-packages/peft/__init__.py)",
            "upgrade peft or install an older version of what imports it (the last frame); if peft removed it",
        ),
        (f"[INFO] [engine.py:12:init] DeepSpeed info: version=0.19.8\n{FULL}", "(stage 3 shards the weights, too)"),
    ],
)
def test_the_fix_follows_the_words_of_the_log(
    error: str, fix: str, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log.write_text(f"{error}\n")
    assert fix in " ".join(_why(capsys, "train.log")[1].split())


def test_a_path_that_is_no_configuration_is_not_called_broken(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """accelerate tries to read a path that does not exist as JSON."""
    log.write_text(
        f"{OF_ACCELERATE}    config = json.loads(config_file_or_dict)\njson.decoder.JSONDecodeError: Expecting value: "
        "line 1 column 1\n\n"
        "During handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n"
        '  File "/opt/accelerate/utils/deepspeed.py", line 95, in __init__\n    raise ValueError(\n'
        "ValueError: Expected a string path to an existing deepspeed config. Received: z.json\n"
    )
    assert "There is no DeepSpeed configuration z.json." in _why(capsys, "train.log")[1]


def test_a_log_without_an_error_says_where_it_stops(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also one whose first training failed, and whose second one was started at a prompt."""
    bar = " 44%|####      | 132/300 [04:30<05:44,  2.05s/it]\n"
    stops = "The log stops at step 132 of 300 without an error: still running, hung, or killed."
    failed = log.read_text()
    log.write_text("{'loss': 1.77, 'epoch': 0.02}\n" + bar)
    code, text = _why(capsys, "train.log")
    assert code == 1 and " ".join(text.split()).startswith(stops)
    for prompt in ("$ ", "(base) ann@node-1:/work$ ", "[ann@node-1 work]$ "):
        log.write_text(failed + prompt + "torchrun train.py --bf16\n{'loss': 1.77, 'epoch': 0.02}\n" + bar)
        words = " ".join(_why(capsys, "train.log")[1].split())
        assert words.startswith(stops) and "from line 1: failed at line 9: CUDA out of memory" in words


RUNNER = (
    "[2023-08-10 12:00:03,530] [INFO] [runner.py:555:main] cmd = /usr/bin/python3 -u -m deepspeed.launcher.launch "
    "--world_info=eyJsb2NhbGhvc3QiOiBbMCwgMSwgMiwgM119 --master_addr=127.0.0.1 train.py --model_name_or_path MODEL "
    "--use_peft True --lora_r 16 --max_seq_length 1024\n"
)


def test_the_model_and_its_adapters_are_those_of_the_command_in_the_log(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder of another machine is none."""
    failed = log.read_text()
    log.write_text(RUNNER.replace("MODEL", "Qwen2.5-7B") + failed)
    assert run(["why", "train.log", "--config", "ds.json", "--offline"]) == 0
    out, said = capsys.readouterr()
    assert "--model Qwen2.5-7B --seq-len 1024 --method lora --lora-rank 16, by the log" in said
    assert "--gpus 4x80GB, by the log" in said and "ds.json is predicted to need" in out
    log.write_text(RUNNER.replace("MODEL", "./models/ours") + failed)
    code, text = _why(capsys, "train.log", "--config", "ds.json", "--offline")
    assert code == 0 and "ds.json is not predicted: pass its --model." in text


def test_the_prediction_is_of_the_batch_of_the_log(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As if the user had typed it; what the user types stays, and so does the rest of the log's. Where the log has no
    batch, the assumed one is named, and so is a single change that does not suffice."""
    Path("ds.json").write_text('{"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}')
    failed, batch = log.read_text(), "--per_device_train_batch_size 2 --gradient_accumulation_steps 4"
    command = RUNNER.replace("MODEL", "Qwen2.5-7B").replace("--use_peft True --lora_r 16", "--bf16 True BATCH")
    asked = ["why", "train.log", "--config", "ds.json", "--gpus", "4x40GB", "--offline", "--json"]

    def forecast(*words: str) -> tuple[dict[str, Any], str]:
        assert run([*asked, *words]) == 0
        out, said = capsys.readouterr()
        return json.loads(out)["forecast"], said

    log.write_text(command.replace("BATCH", batch) + failed)
    found, said = forecast()
    assert "--seq-len 1024 --precision bf16 --micro-batch 2 --accumulation 4, by the log" in said
    assert "micro batch" not in found["assumed"] and "ZeRO stage 3" in found["insufficient"]
    named, said = forecast("--model", "Qwen2.5-7B")
    assert "--seq-len 1024 --precision bf16" in said and named == found
    larger, said = forecast("--micro-batch", "8")
    assert "--micro-batch" not in said and larger["device_bytes_per_gpu"] > found["device_bytes_per_gpu"]
    log.write_text(command.replace("BATCH", "") + failed)
    assert "`auto` filled with micro batch" in forecast()[0]["assumed"]


def test_a_script_that_may_have_ended_is_not_called_dead(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One of its own loop; the Trainer's bar tells how many steps are left. A file of blanks is empty."""
    log.write_text("Epoch 2 | step 300 | loss 1.034\nSaved model to out/\n")
    text = _why(capsys, "train.log")[1]
    assert "killed, or ended: its own loop prints no end that is known here." in " ".join(text.split())
    log.write_text("\n  \n\n")
    assert _why(capsys, "train.log") == (1, " The log is empty.\n")


def test_an_error_after_the_last_step_is_told_from_a_failed_training(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As an upload that the Hub refuses."""
    log.write_text(
        "{'loss': 0.8, 'epoch': 0.9}\n{'train_runtime': 3000.1, 'epoch': 1.0}\nTraceback (most recent call last):\n"
        '  File "/w/train.py", line 60, in <module>\n    trainer.push_to_hub()\nhuggingface_hub.errors.HfHubHTTPError: '
        '403 Forbidden: You don\'t have the rights to create a model under the namespace "bob".\n'
    )
    words = " ".join(_why(capsys, "train.log")[1].split())
    assert words.startswith("The Hub refused the upload (403).")
    assert "The training had done all its steps before (train_runtime, line 2)." in words
    assert "logged step" not in words


def test_the_checkpoint_of_the_trainer_is_told_from_deepspeeds(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each reads other files; without a traceback both are named."""
    what = "ValueError: Can't find a valid checkpoint at out/checkpoint-500\n"
    frame = (
        'Traceback (most recent call last):\n  File "/opt/transformers/{}", line 7, in {}\n    raise ValueError(a)\n'
    )
    for place, cause in (
        (("trainer.py", "_load_from_checkpoint"), "The checkpoint has neither weights nor an adapter."),
        (("integrations/deepspeed.py", "deepspeed_load_checkpoint"), "Cause: The folder is no DeepSpeed checkpoint"),
        ((), "Usual causes: The folder holds no model that the Trainer can load"),
    ):
        log.write_text((frame.format(*place) if place else "") + what)
        assert cause in " ".join(_why(capsys, "train.log")[1].split())


def test_files_in_the_place_of_others_are_named(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A configuration among the logs, a script as the configuration, and files of other commands as logs. The log tells
    what its training had: the configuration that its command names, and its GPUs."""
    asked = ["--model", "Qwen2.5-7B", "--offline"]
    command = "$ torchrun --nproc_per_node 4 train.py --deepspeed ds.json --bf16\n"
    log.write_text(command + log.read_text())
    Path("train.py").write_text("import torch\n")
    Path("run.yaml").write_text("distributed_type: DEEPSPEED\nnum_processes: 2\n")

    def told(*words: str) -> str:
        code, text = _why(capsys, *words)
        assert code
        return " ".join(text.split())

    assert "write ds-advise why train.log --config ds.json" in told("train.log", "ds.json")
    assert "train.py is not a DeepSpeed configuration" in (wrong := told("train.log", "--config", "train.py", *asked))
    Path("ds.json").rename("other.json")
    assert "write ds-advise --gpus 4x80GB -- torchrun --nproc_per_node 4 train.py" in told(
        "train.log", "--config", "train.py", *asked
    )
    Path("other.json").rename("ds.json")
    assert "write --config ds.json" in wrong and "--config ds.json" in told("train.log", "--config", "none.json")
    run(["why", "train.log", "--config", "train.py", *asked])
    assert "--config train.py" not in capsys.readouterr().out
    Path("ds.yaml").write_text("zero_optimization:\n  stage: 2\n")
    Path("ds.json").rename("other.json")
    assert run(["why", "train.log", "--config", "ds.yaml", *asked]) == 2
    said = capsys.readouterr()
    assert "CUDA out of memory" in said.out and "ds.yaml is a DeepSpeed configuration in YAML" in said.err
    Path("other.json").rename("ds.json")
    assert "leave --gpus out: the log shows 4x80GB" in told("train.log", "--gpus", "two")
    assert "It is not a log, and is read by: ds-advise --gpus 2x24GB -- torchrun --nproc_per_node 2 train.py" in told(
        "train.py"
    )
    assert "read by: ds-advise from run.yaml" in told("run.yaml")
    assert "read by: ds-advise lint ds.json" in told("ds.json")
    Path("quiet.log").write_text("loading\n")
    assert "read by" not in told("quiet.log")


def test_gpus_that_are_none_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """They would stand in the next command."""
    code, text = _why(capsys, "train.log", "--gpus", "4xA10O")
    assert code == 2 and "no GPU called 'A10O' is known" in text


def test_a_configuration_of_another_zero_stage_than_the_log_is_not_predicted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nor is it in the next command, which has the one that the log names."""
    frame = '  File "/opt/site-packages/deepspeed/runtime/zero/stage_1_and_2.py", line 9, in step\n    self._step()\n'
    command = "$ deepspeed --num_gpus 4 train.py --deepspeed ds.json\n"
    Path("train.log").write_text(command + "Traceback (most recent call last):\n" + frame + FULL)
    Path("z3.json").write_text(json.dumps(CONFIG | {"zero_optimization": {"stage": 3}}))
    code, text = _why(capsys, "train.log", "--config", "z3.json", *QUESTION)
    words = " ".join(text.split())
    assert (
        code == 0
        and "its ZeRO stage is 3, and the log shows 1 or 2. Pass the one of the training, such as ds.json" in words
    )
    assert "is predicted to need" not in words and "--config" not in words
    code, text = _why(capsys, "train.log", "--config", "ds.json", *QUESTION)
    assert code == 0 and "is predicted to need" in text and "ZeRO stage is" not in text


def test_a_second_log_as_the_configuration_is_refused_with_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    Path("other.log").write_text(FRAMES + FULL)
    code, error = _why(capsys, "train.log", "--config", "other.log", *QUESTION)
    assert code == 2 and "it is read as a log; name the training's JSON, such as ds_config.json" in error


def test_a_change_that_contains_another_one_comes_behind_it() -> None:
    """Whatever memory the rest saves, and however fast it is."""
    made = {
        name: _Fitting(name, frozenset(parts), worth)  # type: ignore[arg-type]  # only the order is tested
        for name, parts, worth in (
            ("both", {("offload_optimizer", "cpu"), ("offload_param", "cpu")}, 9.0),
            ("optimizer", {("offload_optimizer", "cpu")}, 5.0),
            ("batch", {("micro_batch_size", "1")}, 7.0),
        )
    }
    assert _best_first([*made.values()]) == ("batch", "optimizer", "both")


@pytest.mark.parametrize(
    ("file", "code", "proposed"),
    [
        ("site-packages/deepspeed/runtime/engine.py", "self.no_such_line_in_any_release(loss)", "deepspeed"),
        ("site-packages/deepspeed/runtime/no_such_file.py", "return loss", "deepspeed"),
        ("site-packages/deepspeed/runtime/engine.py", "def backward(self,", ""),  # the installed file has it
        ("site-packages/no_such_package/trainer.py", "self.no_such_line_in_any_release(loss)", ""),
        ("site-packages/torch/nn/modules/linear.py", "self.no_such_line_in_any_release(loss)", ""),
        ("train.py", "self.no_such_line_in_any_release(loss)", ""),
    ],
)
def test_code_that_the_installed_release_lacks_is_of_another_one(
    file: str, code: str, proposed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    frames = (
        f'  File "/opt/lib/python3.9/{file}", line 9, in backward\n    {code}\n',
        '  File "/opt/lib/python3.9/site-packages/torch/autograd/function.py", line 7, in apply\n    super().x()\n',
        '  File "/opt/lib/python3.9/abc.py", line 8, in register\n    x.y()\n',
    )
    Path("odd.log").write_text(f"Traceback (most recent call last):\n{''.join(frames)}ValueError: an odd value\n")
    exit_code, text = _why(capsys, "odd.log")
    assert exit_code == 1 and "its cause and its fix are not known" in " ".join(text.split())
    assert (f"Try: pip install -U {proposed} where the training ran." in " ".join(text.split())) is bool(proposed)
    other = json.loads(_why(capsys, "odd.log", "--json")[1])["other_release"]
    assert (other and (other["package"], other["code"])) == ((proposed, code) if proposed else None)


def test_an_asynchronous_function_also_raises_the_same_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("odd_served", "odd_served-1.0.dist-info"):
        (tmp_path / name).mkdir()
    (tmp_path / "odd_served-1.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: odd_served\nVersion: 1.0\n"
    )
    raising = "async def answer():\n    raise ValueError('the engine got an odd value of a size')\n"
    (tmp_path / "odd_served/__init__.py").write_text(raising)
    monkeypatch.syspath_prepend(tmp_path)
    frame = '  File "/opt/site-packages/odd_served/__init__.py", line 9, in answer\n    refuse(size)\n'
    for words, is_proposed in (("the engine got an odd value of a size", False), ("another thing", True)):
        Path("odd.log").write_text(f"Traceback (most recent call last):\n{frame}ValueError: {words}\n")
        assert ("pip install -U odd_served" in _why(capsys, "odd.log")[1]) is is_proposed


def test_a_command_that_is_cut_off_is_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    world = base64.urlsafe_b64encode(json.dumps({"localhost": [0, 1]}).encode()).decode()
    start = f"[INFO] [runner.py:568:main] cmd = /opt/python -u -m deepspeed.launcher.launch --world_info={world}"
    for line in (start, f"{start} --master_addr=127.0.0.1", start[:-3]):
        Path("cut.log").write_text(f"{line}\n{FULL}")
        code, text = _why(capsys, "cut.log", "--json")
        assert code == 0 and json.loads(text)["command"] == []


def test_an_error_before_timeouts_in_different_operations_is_the_headline(capsys: pytest.CaptureFixture[str]) -> None:
    other = WATCHDOG.replace("rank0", "rank1").replace("Rank 0", "Rank 1").replace("ALLREDUCE", "_ALLGATHER_BASE")
    waits = f"{WATCHDOG}{other}"
    Path("both.log").write_text("".join(f"[rank2]: {line}\n" for line in FULL.splitlines()) + waits)
    text = " ".join(_why(capsys, "both.log")[1].split())
    assert text.startswith("CUDA out of memory") and "took another path" not in text


def test_a_key_of_a_tool_is_not_one_of_deepspeed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = (
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for {}",
        "{}",
        "  Extra inputs are not permitted [type=extra_forbidden, input_value=2, input_type=int]",
    )
    for block, key, named in (
        ("AxolotlInputConfig", "micro_batch_sz", "in the tool's file"),
        ("DeepSpeedZeroConfig", "stag", "ds_config.json"),
    ):
        Path("key.log").write_text("\n".join(lines).format(block, key))
        text = " ".join(_why(capsys, "key.log")[1].split())
        assert f"{block} has no key '{key}'." in text and named in text


@pytest.mark.parametrize(
    ("message", "is_proposed"),
    [
        ("pre-scale gradients are not yet supported with {self.zero_stage_string} with reduce scatter enabled", False),
        ("an odd value", True),
    ],
)
def test_no_upgrade_is_proposed_where_the_installed_function_raises_the_same_words(
    message: str, is_proposed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message is no known one: its first words are others than in any release."""
    file = "/opt/lib/python3.9/site-packages/deepspeed/runtime/zero/stage_1_and_2.py"
    frame = f'  File "{file}", line 231, in __init__\n    assert self.postscale_gradients, "no such words"\n'
    Path("odd.log").write_text(f"Traceback (most recent call last):\n{frame}AssertionError: {message}\n")
    assert (json.loads(_why(capsys, "odd.log", "--json")[1])["other_release"] is not None) is is_proposed


@pytest.mark.parametrize(("pools", "is_named"), [("70.22 GiB", True), ("105.08 MiB", False)])
def test_cuda_graphs_are_named_where_their_pools_hold_the_memory(
    pools: str, is_named: bool, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private = f"by PyTorch, with {pools} allocated in private pools (e.g., CUDA Graphs), and"
    log.write_text(log.read_text().replace("by PyTorch, and", private))
    words = " ".join(_why(capsys, "train.log")[1].split())
    assert (f"Do without CUDA graphs, which hold {pools} in pools of their own" in words) is is_named


def test_a_module_that_is_missing_names_both_packages(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = '  File "/opt/lib/python3.10/site-packages/peft/utils/loftq_utils.py", line 26, in <module>\n    import x\n'
    error = "ModuleNotFoundError: No module named 'huggingface_hub.errors'\n"
    log.write_text(f"Traceback (most recent call last):\n{frame}{error}")
    words = " ".join(_why(capsys, "train.log")[1].split())
    assert "upgrade huggingface_hub or install an older peft; if huggingface_hub removed it, upgrade peft" in words
