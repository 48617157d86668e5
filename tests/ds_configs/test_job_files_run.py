"""Job files, started or read by the programs that they are for, where these are installed.

apt-get install slurm-wlm munge openmpi-bin     # and start slurmctld and slurmd on one node
pip install "ray[train]" skypilot jsonschema     # rather each in an environment of its own
TRAINJOB_CRD=trainer.kubeflow.org_trainjobs.yaml pytest -m slow tests/ds_configs/test_job_files_run.py
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from ds_advise.advisor.cli.main import run
from ds_advise.ds_configs.job import JobKind

from tests.helpers import TINY

LIMIT_S, STEPS = 1200, 24
SCRIPT = Path(__file__).parents[1] / "training_scripts" / "train_with_arguments.py"
ARGUMENTS = (
    "--model_name_or_path model --output_dir out --per_device_train_batch_size 4 --gradient_accumulation_steps 1 "
    "--bf16 True --use_cpu True --ddp_backend gloo --report_to none --disable_tqdm True --save_steps 8 --max_steps"
)
CONFIG = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto", "torch_adam": True}},
    "zero_optimization": {"stage": 2},
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * LIMIT_S)]

Emit = Callable[..., Path]


def _runs(*words: str) -> bool:
    return (
        shutil.which(words[0]) is not None and subprocess.run(words, capture_output=True, check=False).returncode == 0
    )


@pytest.fixture
def emit(tmp_path: Path, extensions: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> Emit:
    """Write a job file for a training of a small model with two ranks on the CPU into the working folder."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    extensions("ShareMemCommBuilder")
    Path("model").mkdir()
    Path("model/config.json").write_text(json.dumps(TINY))
    Path("ds_config.json").write_text(json.dumps(CONFIG))
    source = SCRIPT.read_text().replace("os._exit(0)", "pass")  # Ray's workers go on
    Path("train.py").write_text(source.replace("torch.distributed.destroy_process_group()", "pass"))

    def emit(kind: JobKind, steps: int = STEPS) -> Path:
        launch = ["launch", "ds_config.json", "--device", "cpu", "--ranks", "2", "--emit", kind, "--quiet"]
        assert run([*launch, "--", "train.py", *ARGUMENTS.split(), str(steps)]) == 0
        return next(path for path in tmp_path.glob("*") if path.name in ("job.sbatch", "ray_train.py", "trainjob.yaml"))

    return emit


def _state(step: int) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(Path(f"out/checkpoint-{step}/trainer_state.json").read_text())
    return state


def _wait(condition: Callable[[], bool], log: Callable[[], str]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, log()
        time.sleep(0.5)


def test_slurm_trains_and_goes_on_after_a_requeue(emit: Emit) -> None:
    """sbatch accepts the script; two ranks train; put back into the queue after its first checkpoint, the job goes on
    from its newest one to the end."""
    if not _runs("sinfo"):  # asked here: it waits nine seconds for a controller that is not there
        pytest.skip("no Slurm runs here")
    steps = 400
    script = emit("slurm", steps)
    subprocess.run(["sbatch", "--test-only", script], check=True)
    job = subprocess.run(["sbatch", "--parsable", script], check=True, capture_output=True, text=True).stdout.strip()

    def log() -> str:
        return "".join(path.read_text() for path in Path().glob(f"*-{job}.log"))

    def state() -> str:
        return subprocess.run(["scontrol", "show", "job", job], capture_output=True, text=True, check=True).stdout

    try:
        _wait(lambda: Path("out/checkpoint-8/trainer_state.json").exists(), log)
        subprocess.run(["scontrol", "requeue", job], check=True)
        time.sleep(2)
        subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], check=True)  # else in two minutes
        _wait(lambda: "JobState=COMPLETED" in state() or "JobState=FAILED" in state(), log)
    finally:
        subprocess.run(["scancel", job], check=False)
    assert "JobState=COMPLETED" in state() and "Restarts=1" in state(), log()
    assert _state(steps)["global_step"] == steps


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_ray_trains(emit: Emit) -> None:
    """Ray's own TorchTrainer runs the script as two ranks, and starts them again from the newest checkpoint."""
    script = emit("ray")
    broken = "    def on_step_end(self, args: Any, state: Any, _control: Any, **_: Any) -> None:\n"
    once = "        if state.global_step == 12 and not Path('failed').exists() and os.environ['RANK'] == '0':\n"
    once += "            Path('failed').touch()\n            raise RuntimeError('once')\n"
    Path("train.py").write_text(Path("train.py").read_text().replace(broken, broken + once))
    subprocess.run(
        [sys.executable, script], check=True, timeout=LIMIT_S, env=os.environ | {"RAY_AUTH_MODE": "disabled"}
    )
    assert Path("failed").exists()
    assert _state(STEPS)["global_step"] == STEPS


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="Open MPI is not installed")
def test_the_command_of_the_pods_trains(emit: Emit) -> None:
    """What the launcher pod runs, by mpirun on one node: the ranks have torchrun's variables and train."""
    from ds_advise.ds_configs.schedulers import _by_mpirun
    from ds_advise.estimators.hardware import Cluster

    from tests.ds_configs.test_job_files import CPU, job

    emit("kubernetes")
    Path("hostfile").write_text("localhost slots=2\n")
    made = job(
        cluster=Cluster(nodes=1, gpus_per_node=2, gpu=CPU),
        arguments=(*ARGUMENTS.split(), str(STEPS)),
        variables={"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""},
    )
    script = "\n".join(_by_mpirun(made)).replace("/job/", "").replace("python3", sys.executable)
    as_root = {f"OMPI_ALLOW_RUN_AS_ROOT{suffix}": "1" for suffix in ("", "_CONFIRM")}
    environment = os.environ | as_root | {"OMPI_MCA_orte_default_hostfile": str(Path("hostfile").absolute())}
    subprocess.run(["bash", "-c", script], check=True, timeout=LIMIT_S, env=environment)
    assert _state(STEPS)["global_step"] == STEPS


def _emitted(folder: Path, gpus: str, kind: JobKind, name: str) -> Path:
    assert (
        run(["gpt2", "--gpus", gpus, "-o", str(folder / "ds_config.json"), "--emit", kind, "--quiet", "--force"]) == 0
    )
    return folder / name


def test_skypilot_reads_its_task(tmp_path: Path) -> None:
    sky = pytest.importorskip("sky", reason="SkyPilot is not installed")
    for gpus, nodes in (("8xA100-80GB", 1), ("2x8xH100", 2)):
        task = sky.Task.from_yaml(str(_emitted(tmp_path, gpus, "skypilot", "sky.yaml")))
        assert task.num_nodes == nodes
        assert [each.accelerators for each in task.resources] == [{gpus.rpartition("x")[2]: 8}]


@pytest.mark.skipif("TRAINJOB_CRD" not in os.environ, reason="$TRAINJOB_CRD names no CustomResourceDefinition")
def test_a_train_job_is_valid_by_its_definition(tmp_path: Path) -> None:
    """Kubeflow Trainer's manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml, with unknown fields refused."""
    jsonschema = pytest.importorskip("jsonschema")
    definition = yaml.safe_load(Path(os.environ["TRAINJOB_CRD"]).read_text())
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    _refuse_unknown(schema)
    del schema["properties"]["metadata"]  # the API server's own
    for gpus in ("8xA100-80GB", "2x8xH100"):
        body = yaml.safe_load(_emitted(tmp_path, gpus, "kubernetes", "trainjob.yaml").read_text())
        del body["metadata"]
        jsonschema.validate(body, schema)


def _refuse_unknown(node: Any) -> None:
    if isinstance(node, dict):
        if "properties" in node and "additionalProperties" not in node:
            node["additionalProperties"] = False
        if node.get("x-kubernetes-int-or-string"):
            node.pop("anyOf", None)
        for value in list(node.values()):
            _refuse_unknown(value)
    elif isinstance(node, list):
        for value in node:
            _refuse_unknown(value)
