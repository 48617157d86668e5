"""Job files: their structure, and that the launchers' own readers take them. `test_job_files_run.py` starts them."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ds_advise.advisor.cli.main import run
from ds_advise.ds_configs.job import Job, JobKind, Offer
from ds_advise.ds_configs.job_files import job_files
from ds_advise.ds_configs.launch_commands import read_hostfile
from ds_advise.estimators.gpu_catalogue import find_gpu
from ds_advise.estimators.hardware import Cluster

CPU = replace(find_gpu("H100"), architecture="cpu")
TWO_NODES = Cluster(nodes=2, gpus_per_node=8, gpu=find_gpu("H100"))
CONFIG = {"zero_optimization": {"stage": 3}}


def job(**changes: Any) -> Job:
    given: dict[str, Any] = {
        "cluster": TWO_NODES,
        "arguments": ("--output_dir", "my out"),
        "config": CONFIG,
        "config_path": "ds_config.json",
        "config_words": ("--deepspeed", "ds_config.json"),
        "variables": {"NCCL_DEBUG": "WARN"},
        "host_bytes_per_node": 300 * 2**30 + 1,
        "output_dir": "my out",
    }
    return Job(**given | changes)


def job_text(kind: JobKind, **changes: Any) -> str:
    return job_files(job(**changes), (kind,), Path())[0].text


@pytest.mark.parametrize(("nodes", "price"), [(1, "$20.00 (Lambda, x) to $30.00 (AWS, x)"), (2, "$60.00 (AWS, x);")])
def test_a_skypilot_task_states_the_price_of_clouds_that_rent_such_machines(nodes: int, price: str) -> None:
    one = replace(TWO_NODES, nodes=1)
    offers = (
        Offer("AWS", one, 8, 30, "x"),
        Offer("Lambda", one, 1, 20, "x"),
        Offer("Akash", one, 8, 1, "x"),
        Offer("RunPod", replace(one, gpu=find_gpu("A10")), 8, 2, "x"),
    )
    assert price in job_text("skypilot", cluster=replace(one, nodes=nodes), offers=lambda: offers)
    assert "has no price" in job_text("skypilot")


def directives(script: str) -> dict[str, str]:
    return dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", script, flags=re.MULTILINE))


def test_a_slurm_script_asks_for_what_the_plan_needs_and_resumes() -> None:
    """Bash reads it; nodes, GPUs, cores and RAM are the plan's; a restarted job passes the newest checkpoint that is
    complete, by the Trainer's own order of writing."""
    script = job_text("slurm")
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    asked = directives(script)
    assert {name: asked[name] for name in ("nodes", "ntasks-per-node", "gpus-per-node", "cpus-per-task", "mem")} == {
        "nodes": "2",
        "ntasks-per-node": "1",
        "gpus-per-node": "8",
        "cpus-per-task": "112",
        "mem": "335G",
    }
    assert (
        "requeue" in asked and "export NCCL_DEBUG=WARN\nexport OMP_NUM_THREADS=$((SLURM_CPUS_PER_TASK / 8))" in script
    )
    assert "train.py --output_dir 'my out' --deepspeed ds_config.json \"${resume[@]}\" &\n" in script
    by_itself = job_text("slurm", output_dir=None, cluster=Cluster(nodes=1, gpus_per_node=2, gpu=CPU))
    assert "--resume_from_checkpoint" not in by_itself and "gpus-per-node" not in directives(by_itself)


def test_a_slurm_job_that_has_saved_nothing_trains_on_after_the_signal_before_its_time_limit(tmp_path: Path) -> None:
    """The signal ends bash's `wait`; the training's own exit code is the job's."""
    script = "srun() { kill -USR1 $$; sleep 0.3; return 3; }; scontrol() { echo node-0; }\n" + job_text("slurm")
    variables = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node-[0-1]", "SLURM_CPUS_PER_TASK": "112"}
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=variables | {"PATH": "/usr/bin:/bin"}, check=False)
    assert done.returncode == 3


def test_what_the_training_imports_is_installed(tmp_path: Path) -> None:
    """By SkyPilot's setup, and in Kubeflow's image, which has no accelerate (kubeflow/trainer
    cmd/runtimes/deepspeed/requirements.txt): once in each pod, before the ranks start."""
    asked = ["Qwen2.5-7B", "--gpus", "2x8xH100", "--offline", "--method", "qlora", "--objective", "dpo", "--quiet"]
    asked += ["--kernels", "liger", "--emit", "skypilot,kubernetes", "-o", str(tmp_path / "ds_config.json")]
    assert run(asked) == 0
    needed = "trl peft bitsandbytes liger-kernel"
    assert (
        f"pip install torch deepspeed transformers accelerate datasets {needed}\n"
        in (tmp_path / "sky.yaml").read_text()
    )
    pods = (tmp_path / "trainjob.yaml").read_text()
    assert f"mpirun -np 2 --map-by ppr:1:node python3 -m pip install -q accelerate {needed}\n" in pods


def test_a_training_that_waits_for_a_vllm_server_gets_no_job_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["Qwen2.5-7B", "--gpus", "8xH100", "--offline", "--objective", "grpo", "--rollout", "vllm-server"]
    assert run([*asked, "--emit", "slurm", "-o", str(tmp_path / "ds_config.json")]) == 2
    assert "job files do not start a vLLM server" in capsys.readouterr().err and not (tmp_path / "job.sbatch").exists()


@pytest.mark.parametrize("restarts", ["0", "1"])
def test_a_restarted_job_goes_on_from_the_newest_complete_checkpoint(tmp_path: Path, restarts: str) -> None:
    """checkpoint-100 is newer than checkpoint-20, and checkpoint-300 has no trainer_state.json yet."""
    for step, files in ((20, ["trainer_state.json"]), (100, ["trainer_state.json"]), (300, ["optimizer.pt"])):
        (tmp_path / "my out" / f"checkpoint-{step}").mkdir(parents=True)
        for name in files:
            (tmp_path / "my out" / f"checkpoint-{step}" / name).touch()
    script = 'srun() { for word; do echo "$word"; done; }; scontrol() { echo node-0; }\n' + job_text("slurm")
    variables = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node-[0-1]", "SLURM_CPUS_PER_TASK": "112"}
    variables |= {"SLURM_RESTART_COUNT": restarts, "PATH": "/usr/bin:/bin"}
    made = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=variables, capture_output=True, text=True, check=True
    )
    words = made.stdout.splitlines()
    assert words[words.index("--rdzv_endpoint") + 1] == "node-0:10007"
    resumed = ["--resume_from_checkpoint", "my out/checkpoint-100"] if restarts == "1" else []
    assert words[words.index("--deepspeed") + 2 :] == resumed


def _fsdp_settings(file: Path, *, ranks: int) -> dict[str, Any]:
    """The arguments of accelerate's FSDP plugin in a file that its launcher reads for `ranks` ranks in bf16."""
    from accelerate.commands.config.config_args import load_config_from_file

    read = load_config_from_file(str(file))
    assert (read.distributed_type, read.num_processes, read.mixed_precision) == ("FSDP", ranks, "bf16")
    settings = {name.removeprefix("fsdp_"): value for name, value in read.fsdp_config.items()}
    settings["fsdp_version"] = settings.pop("version")
    settings["auto_wrap_policy"] = settings["auto_wrap_policy"].lower()
    return settings


def test_accelerate_gets_fsdp2_where_the_answer_compares_it(tmp_path: Path) -> None:
    """Its plugin takes every key, and the comment names the arguments of the script."""
    from accelerate.utils import FullyShardedDataParallelPlugin

    asked = ["advise", "Qwen2.5-7B", "--gpus", "8xA100-80GB", "--offline", "--sharding", "fsdp", "--emit", "accelerate"]
    assert run([*asked, "--global-batch", "256", "-o", str(tmp_path / "ds_config.json")]) == 0
    file = tmp_path / "accelerate_fsdp2.yaml"
    settings = _fsdp_settings(file, ranks=8)
    plugin = FullyShardedDataParallelPlugin(**settings)
    assert plugin.fsdp_version == 2 and plugin.reshard_after_forward is True
    comment = file.read_text().splitlines()[1]
    assert comment.startswith("# TrainingArguments(") and "deepspeed" not in comment
    assert ("sync_each_batch" in comment) == ("gradient_accumulation_steps=1," not in comment)


def test_accelerate_gets_fsdp_where_it_alone_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """FSDP 1 with NF4 weights, as peft documents it; a job file of DeepSpeed is named as not written."""
    from accelerate.utils import FullyShardedDataParallelPlugin

    asked = ["Qwen2.5-72B", "--gpus", "4x4090", "--method", "qlora", "--offline", "--sharding", "fsdp"]
    assert run([*asked, "--emit", "accelerate,slurm", "-o", str(tmp_path / "ds_config.json")]) == 0
    assert [each.name for each in tmp_path.iterdir()] == ["accelerate_fsdp.yaml"]
    file = tmp_path / "accelerate_fsdp.yaml"
    settings = _fsdp_settings(file, ranks=4)
    assert settings.pop("sync_module_states") is True  # it needs a device
    plugin = FullyShardedDataParallelPlugin(**settings | {"cpu_ram_efficient_loading": False})
    assert plugin.fsdp_version == 1 and plugin.use_orig_params is False
    told = capsys.readouterr()
    assert "bnb_4bit_quant_storage=torch.bfloat16" in told.out and "accelerate launch --config_file" in told.out
    assert "--emit slurm writes nothing: no DeepSpeed plan fits" in told.err


def test_accelerate_reads_its_file(tmp_path: Path) -> None:
    """accelerate's own reader takes it, and has the processes of all nodes; no ssh."""
    from accelerate.commands.config.config_args import load_config_from_file

    file = tmp_path / "accelerate.yaml"
    file.write_text(job_text("accelerate"))
    read = load_config_from_file(str(file))
    assert (read.num_machines, read.num_processes, read.use_cpu) == (2, 16, False)
    assert read.deepspeed_config == {
        "deepspeed_config_file": "ds_config.json",
        "zero3_init_flag": True,
        "deepspeed_multinode_launcher": "standard",
    }


def test_the_hostfile_has_every_node(tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text(job_text("hostfile"))
    assert read_hostfile(tmp_path / "hostfile") == {"node-0": 8, "node-1": 8}


def test_the_answer_names_the_files_and_keeps_those_of_the_user(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are written next to the configuration; a user's file is replaced with --force only."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "hostfile").write_text("mine slots=8\n")
    ask = ["gpt2", "--gpus", "2x8xH100", "-o", "conf/ds.json", "--emit", "slurm,hostfile", "--no-deepspeed-estimate"]
    assert run([*ask, "--json"]) == 2
    assert (tmp_path / "conf" / "hostfile").read_text() == "mine slots=8\n"
    capsys.readouterr()
    assert run([*ask, "--force"]) == 0
    out = capsys.readouterr().out
    assert "conf/job.sbatch, conf/hostfile" in " ".join(out.split()) and "sbatch conf/job.sbatch" in out
    assert "--deepspeed conf/ds.json" in (tmp_path / "conf" / "job.sbatch").read_text()
    assert run([*ask[:3], "--no-write", "--emit", "slurm"]) == 2
    assert run([*ask[:3], "--emit", "pbs"]) == 2
