"""Writing the configuration, and the arguments and commands that go with it."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from ds_advise.ds_configs.files import write_config
from ds_advise.ds_configs.launch_commands import Launcher, launch_commands, threads_setting, unset_threads
from ds_advise.ds_configs.training_script import training_arguments, training_arguments_snippet
from ds_advise.estimators.errors import ConfigFileError
from ds_advise.estimators.gpu_catalogue import gpu_of_memory
from ds_advise.estimators.hardware import Cluster
from ds_advise.estimators.plan import Plan
from ds_advise.estimators.workload import Workload
from ds_advise.probes.machine import search_path
from ds_advise.probes.real_run.torchrun import free_port

ONE_NODE = Cluster(nodes=1, gpus_per_node=2, gpu=gpu_of_memory(24))
FOUR_NODES = replace(ONE_NODE, nodes=4, gpus_per_node=8)


def test_force_replaces_the_file_and_keeps_its_permissions(tmp_path: Path) -> None:
    """A private file stays private."""
    path = tmp_path / "ds_config.json"
    path.write_text('{"mine": 1}')
    path.chmod(0o600)
    write_config({"train_batch_size": 1}, path, force=True)
    assert json.loads(path.read_text()) == {"train_batch_size": 1}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["missing/ds_config.json", "file/ds_config.json", "."])
def test_a_path_that_cannot_be_written_is_one_clear_error(tmp_path: Path, name: str) -> None:
    """No folder, a file instead of a folder, a folder instead of a file: nothing is created."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigFileError, match="-o"):
        write_config({}, tmp_path / name, force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk shows at the latest when the new file takes the old one's place; the old one is whole, no rest
    stays."""
    path = tmp_path / "ds_config.json"
    path.write_text("{}")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(ConfigFileError, match="No space left on device"):
        write_config({"train_batch_size": 1}, path, force=True)
    assert path.read_text() == "{}"
    assert list(tmp_path.iterdir()) == [path]


def test_commands_on_several_nodes() -> None:
    """deepspeed gets a hostfile, the others the node's rank and the first node's address."""
    commands = launch_commands(FOUR_NODES, framework="hf")
    assert commands["deepspeed"] == [
        "# hostfile names the nodes, one a line: node-0 slots=8",
        "echo PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True >> .deepspeed_env",
        "deepspeed --hostfile hostfile train.py --deepspeed ds_config.json",
    ]
    assert commands["torchrun"] == [
        "torchrun --nnodes 4 --nproc_per_node 8 --node_rank $NODE_RANK --master_addr $MASTER_ADDR --master_port 29500 "
        "train.py --deepspeed ds_config.json"
    ]
    assert "--num_machines 4 --num_processes 32 --machine_rank $NODE_RANK" in commands["accelerate"][0]
    assert commands["srun"] == [
        "srun --nodes 4 --ntasks-per-node 1 --kill-on-bad-exit torchrun --nnodes 4 --nproc_per_node 8 "
        '--rdzv_backend c10d --rdzv_id $SLURM_JOB_ID --rdzv_endpoint $(scontrol show hostnames "$SLURM_JOB_NODELIST" '
        "| head -n 1):$((10000 + SLURM_JOB_ID % 20000)) train.py --deepspeed ds_config.json"
    ]


def test_threads_are_set_where_the_optimizer_steps_on_the_host() -> None:
    """Known cores are divided here, others by the shell; ssh passes no variables on, and binding needs one machine."""
    known = replace(ONE_NODE, cpu_cores_per_node=9)
    assert threads_setting(known) == "OMP_NUM_THREADS=4"
    assert threads_setting(replace(known, threads_per_rank=3)) == "OMP_NUM_THREADS=3"
    setting = threads_setting(FOUR_NODES)
    lines = launch_commands(FOUR_NODES, framework="hf", sets_threads=True, bind_cores=True)["deepspeed"]
    assert f"echo {setting} >> .deepspeed_env" in lines
    assert "--bind_cores_to_rank" not in lines[-1]
    bound = launch_commands(ONE_NODE, framework="hf", bind_cores=True)
    assert ["--bind_cores_to_rank" in lines[0] for lines in bound.values()] == [True, False, False]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["deepspeed", "torchrun", "accelerate"])
def test_launchers_give_each_rank_the_threads_that_are_expected(launcher: Launcher, tmp_path: Path) -> None:
    """The printed command, run with two ranks and no OMP_NUM_THREADS: as many as the step time assumes."""
    cores = len(os.sched_getaffinity(0))
    cluster = replace(ONE_NODE, cpu_cores_per_node=cores)
    script, config = tmp_path / "train.py", tmp_path / "ds_config.json"
    script.write_text(
        "import os\n"
        "number = os.environ.get('OMP_NUM_THREADS') or __import__('torch').get_num_threads()\n"
        "print(f'threads {number}', flush=True)\n"
    )
    config.write_text('{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}')
    command = launch_commands(cluster, script=str(script), config_path=str(config), framework="hf")[launcher][0]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    port = str(free_port())  # PET_MASTER_PORT: torchrun's
    environment |= {"DS_ACCELERATOR": "cpu", "PATH": search_path(), "MASTER_PORT": port, "PET_MASTER_PORT": port}
    done = subprocess.run(
        shlex.split(command), env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=900
    )
    # Both ranks write to one pipe: a line may begin before the other's has ended.
    assert re.findall(r"threads (\d+)", done.stdout) == [str(unset_threads(launcher, cluster))] * 2, done


@pytest.mark.parametrize("path", ["my runs/ds config.json", "it's.json", "$HOME/`x`.json"])
def test_paths_are_quoted_for_the_shell(path: str) -> None:
    """A shell splits every command into the same words, whatever the path holds."""
    for cluster in (ONE_NODE, FOUR_NODES):
        for lines in launch_commands(cluster, script="my train.py", config_path=path, framework="hf").values():
            words = shlex.split(lines[-1])
            assert path in words
            assert "my train.py" in words


def test_the_snippet_is_python() -> None:
    """What is printed evaluates to the arguments, with any path."""
    arguments = training_arguments(
        Plan(zero_stage=3, micro_batch_size=1), Workload(), ONE_NODE, config_path='it\'s "mine".json'
    )
    call = ast.parse(training_arguments_snippet(arguments), mode="eval").body
    assert isinstance(call, ast.Call)
    assert {word.arg: ast.literal_eval(word.value) for word in call.keywords} == arguments
