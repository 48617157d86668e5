"""A command is read to its target by the launchers' own parsers."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from ds_advise.ds_configs.launch_commands import shell_line
from ds_advise.estimators.errors import DsAdviseError
from ds_advise.estimators.gpu_catalogue import find_gpu
from ds_advise.estimators.hardware import Cluster
from ds_advise.probes.command.launchers import Launch, contradictions, read_launch, run_target
from ds_advise.probes.command.training_command import read_command
from ds_advise.probes.command.words import check_script, interpreter_of, tools_file

ACCELERATE = """
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
deepspeed_config: {deepspeed_config_file: ds.json, zero3_init_flag: true}
num_machines: 2
num_processes: 16
machine_rank: 0
main_process_ip: 10.0.0.1
main_process_port: 29500
mixed_precision: bf16
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text("import sys; sys.modules['seen'] = (sys.argv, __name__, sys.path[0])\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text("")
    (tmp_path / "acc.yaml").write_text(ACCELERATE)
    (tmp_path / "hosts").write_text("node-0 slots=4\nnode-1 slots=4\n")
    executable(tmp_path / "bin" / "mytrainer", f"#!{sys.executable}\n")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "VIRTUAL_ENV"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def read(line: str, folder: Path) -> Launch:
    return read_launch(shlex.split(line), folder=folder)


@pytest.mark.parametrize(
    ("line", "target", "arguments", "launchers", "gpus", "nodes"),
    [
        ("train.py --lr 1", "train.py", "--lr 1", "", None, None),
        ("python -u -X importtime -Wd train.py -m x", "train.py", "-m x", "", None, None),
        ("/usr/bin/env A=1 nohup python3.11 -um package.train --lr 1", "package.train", "--lr 1", "", None, None),
        ("mytrainer sft", "BIN/mytrainer", "sft", "", None, None),
        ("./bin/mytrainer sft", "./bin/mytrainer", "sft", "", None, None),
        ("python package", "package", "", "", None, None),
        ("uv run --with rich -m package", "package", "", "", None, None),
        ("uv run torchrun --nproc-per-node 4 train.py", "train.py", "", "torchrun", 4, 1),
        ("poetry run python train.py", "train.py", "", "", None, None),
        ("time python -m torch.distributed.run --nproc_per_node=8 -m package a", "package", "a", "torchrun", 8, 1),
        ("torchrun --standalone --nnodes 1:2 --nproc_per_node 8 train.py", "train.py", "", "torchrun", 8, 2),
        (
            "python -m torch.distributed.launch --nproc_per_node 2 train.py a",
            "train.py",
            "--local-rank=3 a",
            "torch.distributed.launch",
            2,
            1,
        ),
        ("torchrun --no-python mytrainer sft", "BIN/mytrainer", "sft", "torchrun", 1, 1),
        (
            "deepspeed --num_gpus 4 train.py --deepspeed a",
            "train.py",
            "--local_rank=3 --deepspeed a",
            "deepspeed",
            4,
            None,
        ),
        ("deepspeed --no_local_rank --module package a", "package", "a", "deepspeed", None, None),
        ("deepspeed -H hosts -i node-1:0,2 train.py", "train.py", "--local_rank=3", "deepspeed", 2, 1),
        ("deepspeed -H hosts --num_gpus 3 train.py", "train.py", "--local_rank=3", "deepspeed", 3, 2),
        ("accelerate launch --num_processes 8 train.py --x", "train.py", "--x", "accelerate launch", 8, 1),
        ("accelerate launch --multi_gpu --num_processes 2 -m package", "package", "", "accelerate launch", 2, 1),
        ("accelerate launch --config_file acc.yaml train.py --x", "train.py", "--x", "accelerate launch", 8, 2),
        (
            "accelerate-launch --config_file acc.yaml --deepspeed_multinode_launcher standard train.py",
            *("train.py", "", "accelerate launch", 8, 2),
        ),
        ("srun -N2 -n 16 --gpus-per-node=8 -u python train.py", "train.py", "", "srun", 8, 2),
        (
            "srun --nodes 2 --ntasks-per-node 1 --kill-on-bad-exit=1 torchrun --nnodes 2 --nproc_per_node 8 train.py",
            *("train.py", "", "srun,torchrun", 8, 2),
        ),
        ("bash -c 'A=1 torchrun --nproc_per_node 2 train.py --x > log 2>&1'", "train.py", "--x", "torchrun", 2, 1),
    ],
)
def test_target(
    line: str,
    target: str,
    arguments: str,
    launchers: str,
    gpus: int | None,
    nodes: int | None,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    before, files = dict(os.environ), set(folder.rglob("*"))
    launch = read(line, folder)
    assert (launch.target, " ".join(launch.arguments)) == (target.replace("BIN", str(folder / "bin")), arguments)
    assert launch.is_module == (target.startswith("package") and line != "python package")
    assert ",".join(start.launcher for start in launch.starts) == launchers
    assert (launch.gpus_per_node, launch.nodes) == (gpus, nodes)
    assert dict(os.environ) == before
    assert set(folder.rglob("*")) == files, "a launcher left a file behind"


def test_environment_is_that_of_the_launchers_without_the_ranks_place(folder: Path) -> None:
    launch = read("A=b RANK=7 MASTER_PORT=1 accelerate launch --config_file acc.yaml train.py", folder)
    settings = launch.environment
    assert settings["A"] == "b"
    assert settings["ACCELERATE_USE_DEEPSPEED"] == "true"
    assert settings["ACCELERATE_DEEPSPEED_CONFIG_FILE"] == "ds.json"
    assert settings["ACCELERATE_DEEPSPEED_ZERO3_INIT"] == "true"
    assert settings["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} & settings.keys()
    assert read("torchrun --nproc_per_node 8 train.py", folder).environment["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in read("torchrun train.py", folder).environment
    assert "TORCHELASTIC_RUN_ID" in read("torchrun train.py", folder).environment


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("deepspeed --hostfile hosts train.py", ("2", "1")),
        ("deepspeed --no_ssh --node_rank 1 --hostfile hosts --master_addr node-0 train.py", ("2", "1")),
        ("deepspeed --hostfile hosts --launcher openmpi train.py", (None, None)),
        ("torchrun --nproc_per_node 8 train.py", (None, None)),
        ("CROSS_SIZE=1 CROSS_RANK=0 torchrun --nproc_per_node 8 train.py", ("1", "0")),
    ],
)
def test_checkpoint_writers_get_the_nodes_that_deepspeeds_launcher_sets(
    line: str, place: tuple[str | None, str | None], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """launcher/launch.py; a user may set them for others."""
    for name, value in {"RANK": 11, "LOCAL_RANK": 3, "WORLD_SIZE": 16, "LOCAL_WORLD_SIZE": 8}.items():
        monkeypatch.setenv(name, str(value))
    variables = read(line, folder).environment
    assert (variables.get("CROSS_SIZE"), variables.get("CROSS_RANK")) == place


def test_srun_gives_the_simulated_place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": 11, "LOCAL_RANK": 3, "WORLD_SIZE": 16, "LOCAL_WORLD_SIZE": 8}.items():
        monkeypatch.setenv(name, str(value))
    variables = read("srun -n 4 python train.py", folder).environment
    names = ("PROCID", "LOCALID", "NODEID", "NTASKS", "NNODES")
    assert [variables[f"SLURM_{name}"] for name in names] == ["11", "3", "1", "16", "2"]


@pytest.mark.parametrize(
    ("line", "sentences"),
    [
        (
            "torchrun --nproc_per_node 4 train.py",
            ["torchrun starts 4 ranks, and --gpus has 8: the answer is for 8, whose step has 2 x the samples"],
        ),
        (
            "torchrun --nproc_per_node 8 --nnodes 2 train.py",
            ["torchrun starts on 2 nodes; --gpus has 1: simulated with 1"],
        ),
        ("srun --ntasks-per-node 1 -N 1 torchrun --nproc_per_node 8 train.py", []),
        (
            "CUDA_VISIBLE_DEVICES=0,1 python train.py",
            ["CUDA_VISIBLE_DEVICES names 2 GPUs of a node; --gpus has 8: simulated with 8"],
        ),
        ("python train.py", []),
    ],
)
def test_contradictions(line: str, sentences: Sequence[str], folder: Path) -> None:
    assert contradictions(read(line, folder), 1, 8) == sentences


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "no program"),
        ("A=1", "no program"),
        ("python -c 'print(1)'", "names no script"),
        ("nothere.py", "there is no file nothere.py"),
        ("python -m nothere.train", "there is no module nothere"),
        ("nothere sft", "there is no nothere"),
        ("ls train.py", "ls is no Python program"),
        (
            "bash train.sh",
            "give line 3 instead, without shell variables: torchrun -h $X train.py --x",
        ),
        ("bash -c 'pip list; python a.py'", "several commands"),
        ("env -i python train.py", "env -i"),
        ("torchrun --nonsense train.py", "torchrun refuses its options: unrecognized arguments: --nonsense"),
        ("accelerate launch --nonsense train.py", "unrecognized arguments: --nonsense"),
        ("accelerate launch --multi_gpu --num_processes 1 train.py", "at least 2 processes"),
        ("deepspeed", "the following arguments are required: user_script"),
        ("deepspeed -H hosts -i node-9 train.py", "node-9"),
    ],
)
def test_refusals(line: str, message: str, folder: Path) -> None:
    (folder / "train.sh").write_text("#!/bin/bash\ncd /tmp && ls\ntorchrun -h $X \\\n train.py --x\n")
    before = dict(os.environ)
    with pytest.raises(DsAdviseError) as raised:
        read(line, folder)
    assert message in str(raised.value)
    assert dict(os.environ) == before


def test_run_target(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["worker"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "seen", raising=False)
    for name in ("ADDED", "PYTHONPATH"):  # restored afterwards
        monkeypatch.setenv(name, "")
    run_target(read("ADDED=yes PYTHONPATH=elsewhere python train.py --lr 1", folder))
    assert sys.modules.pop("seen") == (["train.py", "--lr", "1"], "__main__", str(folder))  # type: ignore[comparison-overlap]
    assert os.environ["ADDED"] == "yes"
    assert sys.path[1] == "elsewhere"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("torchrun trian.py", "there is no file trian.py; write train.py"),
        ("torchrun train.py --deepspeed z2auto.jsn", "there is no file z2auto.jsn; write z2_auto.json"),
        ("python -m package --deepspeed=sub/dss.json", "there is no file sub/dss.json; write sub/ds.json"),
        ("deepspeed train.py --deepspeed --deepspeed_config no.json", "there is no file no.json; give its path from"),
        ("accelerate launch --deepspeed-config-file no.json train.py", "there is no file no.json; give its path from"),
    ],
)
def test_a_missing_file_is_named_with_the_nearest_one(line: str, message: str, folder: Path) -> None:
    """The script, and the configuration that a library reads."""
    (folder / "sub").mkdir()
    for name in ("z2_auto.json", "sub/ds.json"):
        (folder / name).write_text("{}")
    with pytest.raises(DsAdviseError) as raised:
        check_script(shlex.split(line), folder)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    "line",
    [
        'torchrun train.py --deepspeed \'{"fp16": {"init.x": 1}}\'',
        "torchrun train.py --deepspeed eyJmcDE2Ijoge319",
        "deepspeed train.py --deepspeed --lr 1.5",
        "deepspeed train.py --deepspeed",
        "swift sft --deepspeed zero2",
        "torchrun train.py --ds_config of_the_script.json",
    ],
)
def test_what_may_be_no_file_is_not_missing(line: str, folder: Path) -> None:
    """JSON, its base64, a name, a switch, and an option of the script's own."""
    check_script(shlex.split(line), folder)


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("axolotl train c.yml", "c.yml"),
        ("axolotl train --config=c.yml", "c.yml"),
        ("axolotl train --debug --config=c.yml", "c.yml"),
        ("nohup trl sft --output_dir o --config c.yaml", "c.yaml"),
        ("trl sft --output_dir=o.yaml", ""),
        ("trl env c.yaml", ""),
        ("nohup", ""),
        ("A=1", ""),
    ],
)
def test_the_file_with_which_a_tool_trains(line: str, file: str) -> None:
    """A prefix alone has none."""
    assert tools_file(shlex.split(line)) == file


def test_interpreter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = executable(folder / "env" / "bin" / "python", "")
    project = executable(folder / ".venv" / "bin" / "python", "")
    executable(folder / "bin" / "other", f"#!{python}\n")
    executable(folder / "bin" / "long", f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n")
    for line, expected in {
        f"{python} train.py": python,
        "A=1 nohup env/bin/python -m package": python,
        f"{sys.executable} train.py": None,
        "other sft": python,
        "long sft": python,
        "mytrainer sft": None,
        "uv run torchrun train.py": project,
        "train.py": None,
    }.items():
        assert interpreter_of(shlex.split(line), folder=folder) == expected, line
    monkeypatch.setenv("VIRTUAL_ENV", str(folder / "env"))
    assert interpreter_of(["train.py"], folder=folder) == python
    assert interpreter_of(["python", "train.py"], folder=folder) == python
    assert interpreter_of(["torchrun", "train.py"], folder=folder, environment={"PATH": str(folder / "bin")}) is None
    executable(folder / "bin" / "torchrun", f"#!{python}\n")
    assert interpreter_of(["torchrun", "train.py"], folder=folder, environment={"PATH": str(folder / "bin")}) == python
    with pytest.raises(DsAdviseError, match="no interpreter"):
        interpreter_of(["missing/python", "train.py"], folder=folder)


@pytest.mark.parametrize(
    ("typed", "nodes", "gpus", "expected"),
    [
        ("torchrun --nproc_per_node 2 t.py --num_gpus 9", 1, 1, "torchrun --nproc_per_node 1 t.py --num_gpus 9"),
        ("torchrun --nproc-per-node=2 t.py", 1, 8, "torchrun --nproc-per-node=8 t.py"),
        ("deepspeed --num_gpus 2 t.py", 1, 4, "deepspeed --num_gpus 4 t.py"),
        ("accelerate launch --num_processes 16 t.py", 2, 4, "accelerate launch --num_processes 8 t.py"),
        ("torchrun --nnodes 2 --nproc_per_node 2 t.py", 1, 8, "torchrun --nnodes 2 --nproc_per_node 2 t.py"),
        ("torchrun --nproc_per_node gpu t.py", 1, 8, "torchrun --nproc_per_node gpu t.py"),
        ("A=1 nohup torchrun --nproc_per_node 2 t.py", 1, 4, "A=1 nohup torchrun --nproc_per_node 4 t.py"),
        ("python t.py --num_gpus 2", 1, 8, "python t.py --num_gpus 2"),
        ("torchrun t.py --nproc_per_node 2", 1, 8, "torchrun --nproc_per_node 8 t.py --nproc_per_node 2"),
        ("A=1 uv run torchrun --standalone t.py", 1, 8, "A=1 uv run torchrun --nproc_per_node 8 --standalone t.py"),
        ("python -m torch.distributed.run t.py", 1, 2, "python -m torch.distributed.run --nproc_per_node 2 t.py"),
        ("accelerate launch t.py", 1, 8, "accelerate launch --num_processes 8 t.py"),
        ("accelerate launch --config_file a t.py", 1, 8, "accelerate launch --num_processes 8 --config_file a t.py"),
        ("deepspeed --include localhost:0,1 t.py", 1, 8, "deepspeed --include localhost:0,1 t.py"),
        ("CUDA_VISIBLE_DEVICES=0,1 deepspeed t.py", 1, 2, "CUDA_VISIBLE_DEVICES=0,1 deepspeed t.py"),
        ("torchrun t.py", 2, 8, "torchrun t.py"),
        ("srun -n 8 python t.py", 1, 8, "srun -n 8 python t.py"),
        ("python -m torch.distributed.run --nproc_per_node=gpu t.py", 1, 8, None),
    ],
)
def test_the_launchers_number_of_ranks_is_that_of_the_gpus(
    typed: str, nodes: int, gpus: int, expected: str | None
) -> None:
    """torchrun without a number starts one rank, and accelerate as many as a file says. The script's own options stay,
    and so does a command for another number of nodes, or for all GPUs of the machine."""
    assert shlex.join(read_command(shlex.split(typed)).replace_counts(nodes, gpus)) == (expected or typed)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("torchrun t.py --deepspeed a", "torchrun --nnodes 2 --nproc_per_node 8 --node_rank $NODE_RANK"),
        ("deepspeed t.py", "deepspeed --hostfile hostfile t.py"),
        ("accelerate launch --use_deepspeed t.py", "accelerate launch --num_machines 2 --num_processes 16"),
        ("torchrun --nnodes 2 --nproc_per_node 8 t.py", "torchrun --nnodes 2 --nproc_per_node 8 t.py"),
        ("deepspeed --hostfile mine t.py", "deepspeed --hostfile mine t.py"),
        ("srun -N 2 python t.py", "srun -N 2 python t.py"),
    ],
)
def test_a_command_for_one_node_gets_a_rendezvous_for_several(typed: str, expected: str) -> None:
    cluster = Cluster(gpu=find_gpu("H100"), gpus_per_node=8, nodes=2)
    command = read_command(shlex.split(typed))
    joined = shell_line(command.join_nodes(cluster))
    assert joined.startswith(expected)
    assert joined.count("--use_deepspeed") == typed.count("--use_deepspeed")
    assert command.join_nodes(replace(cluster, nodes=1)) == tuple(typed.split())


def test_the_number_of_ranks_of_a_command_is_the_typed_one_or_its_launchers() -> None:
    """None if the machine or a file says it."""
    ranks = {
        "torchrun t.py": 1,
        "torchrun --nproc-per-node=4 t.py --nproc_per_node 2": 4,
        "torchrun --nproc_per_node gpu t.py": None,
        "accelerate launch --num_processes 16 t.py": 16,
        "accelerate launch t.py": None,
        "deepspeed t.py": None,
        "python t.py": None,
        "srun -n 4 python t.py": None,
    }
    assert {typed: read_command(typed.split()).ranks for typed in ranks} == ranks
