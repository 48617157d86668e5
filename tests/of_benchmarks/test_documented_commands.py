"""Every command that README.md, CONTRIBUTING.md and docs/ show runs as it stands there, and shows what stands there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pytest
from ds_advise.advisor.cli.main import run

from benchmarks.shown_output import (
    DOCUMENTS,
    PICTURES,
    ROOT,
    Block,
    blocks,
    lacks,
    make_files,
    option_table,
    picture,
    printed,
)


class How(NamedTuple):
    """How a command is proven."""

    says: str
    """What stands in the answer: on a machine without a GPU, and with the files of `folder`."""
    code: int = 0
    slow: bool = False
    as_if: str = ""
    """The command that is run, where the one that is shown takes minutes or names what only its reader has."""


NO_GPU = How("--device cpu", code=2)
RECORDED = "test_file_question.py, in a folder with a recorded file"
SYNOPSIS = "test_cli.py compares the options with the help"
GRID = "python -m benchmarks.dry_run.analytic_vs_dry_run"
COMMANDS = {
    "ds-advise Llama-3.1-8B --gpus 8xH100 --objective dpo --seq-len 2048": How("pairs/s"),
    "ds-advise roberta-large --gpus 1x24GB --objective classification --seq-len 512": How("objective classification"),
    "ds-advise Qwen2.5-7B --gpus 8xH100 --objective grpo": How("rollouts  colocated vLLM"),
    "ds-advise Qwen2.5-14B --gpus 2x8xH100 --emit slurm,kubernetes": How("job.sbatch"),
    "ds-advise Qwen2.5-7B --gpus 4xA100-80GB --sharding fsdp --emit accelerate": How("accelerate_fsdp2.yaml"),
    "ds-advise net.py:Net --gpus 2xRTX3090 --ram 64GB --global-batch 512 --no-write": How("samples/s", slow=True),
    "ds-advise dry-run cifar.json --model net.py:Net --gpus 2xRTX3090 --micro-batch 256": How("GiB", slow=True),
    "ds-advise Qwen2.5-14B --gpus auto": How("GPU", code=2),
    "ds-advise Qwen2.5-14B --gpus auto --probe --budget 10m": How("GPU", code=2, slow=True),
    "ds-advise dry-run ds_config.json --model Qwen2.5-14B --gpus 2x32GB --micro-batch 4 --explain": How(
        "GiB", slow=True, as_if="ds-advise dry-run ds_config.json --model ./tiny --gpus 2x32GB --explain"
    ),
    "ds-advise probe ds_config.json --model Qwen2.5-1.5B": NO_GPU,
    "ds-advise train --model ./Qwen2.5-1.5B --data chats.jsonl --method lora": NO_GPU,
    "ds-advise dry-run ds_config.json -- train.py": How(
        "It does not fit", code=1, slow=True, as_if="ds-advise dry-run ds_config.json --gpus 2x32GB -- train.py"
    ),
    "ds-advise train --resume --output-dir output": How("output", code=2),
    "ds-advise launch ds_config.json -- train.py --model_name_or_path ./model --output_dir out": NO_GPU,
    "ds-advise lint ds_config.json": How("ds_config.json"),
    "ds-advise lint ds_config.json --model Qwen2.5-14B --gpus 8xA100-80GB": How("ds_config.json"),
    "ds-advise lint ds_config.json --fix": How("ds_config.json"),
    "python make_config.py | ds-advise lint -": How("standard input"),
    "ds-advise Qwen2.5-14B --gpus 8xA100-80GB --software transformers=4.45,deepspeed=0.18,reentrant": How("fits"),
    f"{GRID} --answers FILE --offline": How("", slow=True, as_if=f"{GRID} --answers answers.jsonl --offline"),
}
ELSEWHERE = {
    "ds-advise Qwen2.5-14B --gpus 2x32GB --html report.html": "test_advice_report.py",
    "ds-advise Qwen2.5-14B --gpus 2x32GB --plot memory.svg": "test_advice_report.py",
    "ds-advise Qwen2.5-14B --gpus 2x32GB --markdown": "test_markdown.py",
    "ds-advise launch ds_config.json -- train.py": "test_launch.py launches such scripts",
    "ds-advise check ds_config.json": RECORDED,
    "ds-advise explain ds_config.json": RECORDED,
    "ds-advise compare ds_config.json zero2-offload": RECORDED,
    "ds-advise dry-run": RECORDED,
    "ds-advise probe": RECORDED,
    "ds-advise launch -- train.py": RECORDED,
    "ds-advise train ds_config.json --data chats.jsonl": "test_train_command.py",
    "ds-advise train --data chats.jsonl": RECORDED,
    "ds-advise Qwen2.5-7B --gpus 8xH100 --objective ppo": "test_rollouts.py asks it",
    "ds-advise launch ds_config.json --gpus 2x8xH100 --emit slurm -- train.py --model_name_or_path ./model --output_dir out": "test_job_files_run.py",  # noqa: E501
    "python3 -m venv .venv": "test_packaging.py installs the wheel",
    "bash tests/run": "runs these tests",
    "bash tests/run --slow": "runs these tests",
    "ds-advise MODEL --gpus SPEC [options]": SYNOPSIS,
    "ds-advise dry-run [DS_CONFIG] --gpus SPEC -- COMMAND": SYNOPSIS,
    "ds-advise [DS_CONFIG] --gpus SPEC -- COMMAND": SYNOPSIS,
    "ds-advise compare A B [--model MODEL --gpus SPEC ...] [--json]": SYNOPSIS,
    "ds-advise rent MODEL [options] [--deadline TIME] [--budget AMOUNT] [--prices FILE] [--html FILE] [--plot FILE] [--json]": SYNOPSIS,  # noqa: E501
    "ds-advise from FILE [--gpus SPEC] [--model MODEL] [-o FILE] [options]": SYNOPSIS,
    "ds-advise checkpoint DIR [--to-hf OUT] [--dtype auto|bf16|fp16|fp32] [--force] [--json]": SYNOPSIS,
    "ds-advise why LOG... [--config FILE] [--model MODEL --gpus SPEC] [--json] [-- COMMAND]": SYNOPSIS,
    "ds-advise why train.log --gpus 4x48GB -- torchrun --nproc_per_node 4 train.py ...": "test_command_advice.py",
    "ds-advise doctor [--nvme PATH] [--hostfile FILE] [--json]": SYNOPSIS,
    "ds-advise lint configs/*.json": "test_lint_command.py runs it on several files",
    "ds-advise check configs/ds_config*.json": "a step of somebody's workflow; test_check.py runs the like",
    "ds-advise mcp": "test_mcp.py",
    "ds-advise mcp --skill > ~/.claude/skills/ds-advise/SKILL.md": "test_mcp.py",
    "ds-advise page": "test_page_server.py",
    "ds-advise page --build site": "needs a network; test_page_build.py builds from a file",
    "python3 -m http.server --directory site 8000": "serves until it is stopped",
    "ds-advise page --build site --pyodide pyodide-314.0.7.tgz": "test_page_browser.py",
    "ds-advise net.py:Net --gpus 2xRTX3090 --ram 64GB --global-batch 512 --verify": "test_user_module.py",
    "ds-advise train.py:build_model --input-shape 3,32,32 --gpus 2x24GB": "test_user_module.py",
    "ds-advise bench": "test_bench.py",
    "ds-advise Qwen2.5-14B --gpus 2x32GB --verify": "test_verify.py, with a smaller model",
    "ds-advise dry-run ds_config.json --model Qwen2.5-32B --gpus 8xA100-80GB --software transformers=4.45": "test_script_optimizer.py",  # noqa: E501
    "ds-advise ./my-model --gpus 8xH100": "test_model_recorder.py records such folders",
    "ds-advise launch -- torchrun --nproc_per_node 8 train.py --deepspeed ds_config.json --output_dir out": "test_launch_trainings.py, on two CPU ranks",  # noqa: E501
    "ds-advise probe -- torchrun --nproc_per_node 8 train.py --deepspeed ds_config.json": "test_probe_command.py, on two CPU ranks",  # noqa: E501
    "ds-advise probe --device cpu --ranks 2 -- train.py": "test_probe_command.py",
    "ds-advise --gpus 8xH100 -- torchrun --nproc_per_node 8 train.py ...": "its output stands above it",
    "ds-advise dry-run --gpus 8xH100 -- torchrun --nproc_per_node 8 train.py ...": "docs/own-script.md has its output",
    "ds-advise probe -- torchrun --nproc_per_node 8 train.py ...": "test_probe_command.py, on two CPU ranks",
    "ds-advise launch -- torchrun --nproc_per_node 8 train.py ...": "test_launch_trainings.py, on two CPU ranks",
    GRID: "test_analytic_vs_dry_run.py runs its parts",
    f"{GRID} llama zero3 --sample 10": "test_analytic_vs_dry_run.py runs its parts",
    "python -m benchmarks.search.question_grid --write": "takes minutes",
    "python -m benchmarks.gpu --minutes 20 --out DIR": "test_gpu.py, on the CPU",
    "python -m benchmarks.shown_output --write": "its parts are tested below",
    "python -m benchmarks.struck_faults --write": "takes half an hour; test_struck_faults.py strikes some",
    "python -m benchmarks.accuracy --add row.json --by issue-12": "test_contributed.py",
    "python -m benchmarks.accuracy --fit --write": "takes minutes",
    "python -m benchmarks.accuracy --write": "test_accuracy_memory.py compares what it writes",
}
"""The test that runs a command, or why none does."""


ALL = [block for document in DOCUMENTS for block in blocks(document)]
SHOWN = list(
    dict.fromkeys(command for block in ALL if not block.lines[0].startswith("$ ") for command in block.commands)
)
"""Without those whose output stands below them, which is compared."""
PYTHON = [block for block in ALL if block.is_python]
DRY_RUNS = [block for block in ALL if block.asked.startswith("ds-advise dry-run ") or " -- " in block.asked]


def test_every_command_that_is_shown_is_run_by_a_test() -> None:
    """A new one needs a line in this file, and a line that no document shows any more is gone."""
    assert {*SHOWN} == COMMANDS.keys() | ELSEWHERE.keys()
    assert len(PYTHON) == 3


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the documents speak of, on a machine without a GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("COLUMNS", "80")
    make_files(tmp_path)
    return tmp_path


def _proven(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """ds-advise in this process, anything else in a shell, the benchmarks from the root of the checkout."""
    how = COMMANDS[command]
    command = how.as_if or command
    if "ds_config.json" not in command:
        (folder / "ds_config.json").unlink()  # the answer writes its own
    if command.startswith("ds-advise "):
        code = run(shlex.split(command)[1:])
        message = "".join(capsys.readouterr())
    else:
        shell = f'ds-advise() {{ {sys.executable} -m ds_advise "$@"; }}; python() {{ {sys.executable} "$@"; }}; '
        where = ROOT if "benchmarks" in command else folder
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", shell + command], cwd=where, capture_output=True, text=True
        )
        code, message = done.returncode, done.stdout + done.stderr
    assert (code, how.says in message) == (how.code, True), message
    assert "Traceback" not in message


@pytest.mark.parametrize("command", [name for name, how in COMMANDS.items() if not how.slow])
def test_a_command_does_what_its_document_says(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that need a GPU say so in one line, and what to do without one."""
    _proven(command, folder, capsys)


@pytest.mark.slow
@pytest.mark.usefixtures("in_forks")
@pytest.mark.parametrize("command", [name for name, how in COMMANDS.items() if how.slow])
def test_a_long_command_does_what_its_document_says(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Dry runs, probes, benchmarks."""
    _proven(command, folder, capsys)


@pytest.mark.parametrize(
    "block", [block for block in ALL if block.asked and block not in DRY_RUNS], ids=lambda block: block.document
)
def test_documented_output_is_current(
    block: Block, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every line but the dots, in the same order; `python -m benchmarks.shown_output --write` brings it up to date."""
    (folder / "ds_config.json").unlink()
    words = shlex.split(block.asked)
    while "=" in words[0]:
        monkeypatch.setenv(*words.pop(0).split("=", 1))
    run(words[1:])
    _compare(block, tuple(line.rstrip() for line in capsys.readouterr().out.strip("\n").splitlines()))


@pytest.mark.slow
@pytest.mark.parametrize("block", DRY_RUNS, ids=lambda block: f"{block.document}:{block.first}")
def test_the_documented_dry_run_of_a_script_is_current(block: Block) -> None:
    """The scripts stand in the documents, too."""
    if missing := lacks(block.asked):
        pytest.skip(f"{missing} is not installed")
    _compare(block, printed(block.asked))


def _compare(block: Block, message: tuple[str, ...]) -> None:
    if block.is_whole:
        assert block.lines[1:] == message
    for _, part in block.parts:
        assert part[0] in message
        begin = message.index(part[0])
        assert message[begin : begin + len(part)] == part
        message = message[begin + len(part) :]


@pytest.mark.slow
@pytest.mark.usefixtures("in_forks", "folder")
@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.document)
def test_python_that_a_document_shows_runs(block: Block) -> None:
    """In the folder where the configuration lies, for a small model."""
    with redirect_stdout(StringIO()):
        exec("\n".join(block.lines).replace("Qwen2.5-14B", "./tiny"), {})


def test_the_document_has_the_table_of_options() -> None:
    """`python -m benchmarks.shown_output --write` brings it up to date."""
    assert option_table() in (ROOT / "docs" / "asking.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("language", PICTURES)
def test_the_picture_of_the_readme_is_drawn_by_the_program(language: str) -> None:
    """The same command writes it; sums of floats differ between versions of Python in their last digit."""
    kept, drawn = PICTURES[language].read_text(encoding="utf-8"), picture(language)
    number = re.compile(r"\d+\.\d+")
    assert number.sub("#", kept) == number.sub("#", drawn)
    assert [*map(float, number.findall(kept))] == pytest.approx([*map(float, number.findall(drawn))], abs=0.011)
