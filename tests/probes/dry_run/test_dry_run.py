"""What a dry run answers."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ds_advise.estimators.estimate import Phase
from ds_advise.estimators.gpu_catalogue import find_gpu
from ds_advise.estimators.hardware import Cluster
from ds_advise.estimators.memory.plan_memory import estimate_memory
from ds_advise.estimators.models.families import shape_from_config
from ds_advise.estimators.plan import Plan
from ds_advise.estimators.workload import OptimizerStep, Software, Workload
from ds_advise.probes.dry_run.run import dry_run
from ds_advise.probes.recording.result import DryRunResult
from ds_advise.probes.run import Run

from tests.helpers import WIDE_LLAMA, dry_runs_in_forks, fork_outcomes, h100s, imports_of, zero_config

MODEL = WIDE_LLAMA
PARAMETERS = 2 * 4000 * 512 + 3 * (512 * (512 + 256 + 256 + 512) + 3 * 512 * 1024 + 2 * 512) + 512


AUTO = dict.fromkeys(
    ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"), "auto"
)


def config(stage: int, **zero: Any) -> dict[str, Any]:
    """The Trainer's configuration, with `auto` values."""
    return zero_config(stage, **AUTO, **zero) | {
        "bf16": {"enabled": "auto"},
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
    }


@pytest.fixture(scope="module")
def offloaded() -> DryRunResult:
    """ZeRO-3 with the optimizer in host memory, the last rank of two nodes with four GPUs each."""
    cluster = Cluster(nodes=2, gpus_per_node=4, gpu=find_gpu("A100-80GB-SXM"))
    run = Run(
        config=config(3, offload_optimizer={"device": "cpu", "pin_memory": True}),
        model=MODEL,
        cluster=cluster,
        workload=Workload(seq_len=256),
        micro_batch_size=2,
        gradient_accumulation_steps=2,
    )
    with dry_runs_in_forks():
        return dry_run(run, rank=7)


def test_every_phase_of_every_iteration_is_reported(offloaded: DryRunResult) -> None:
    """load and initialize once, then forward, backward and step three times, micro batches taken together: the third
    repeats the second to the byte, and the fourth, which was asked for too, would as well."""
    expected = [(0, "load"), (0, "initialize")] + [
        (iteration, phase) for iteration in range(1, 4) for phase in ("forward", "backward", "step")
    ]
    assert [(phase.iteration, phase.phase) for phase in offloaded.phases] == expected and offloaded.iterations == 4
    first, second, third = (
        [asdict(phase) | {"iteration": 0} for phase in offloaded.phases[at : at + 3]] for at in (2, 5, 8)
    )
    assert first != second == third
    assert offloaded.parameters == offloaded.trainable_parameters == PARAMETERS
    assert {"torch", "deepspeed", "transformers"} <= set(offloaded.versions)
    assert repr(offloaded).startswith("<DryRunResult of rank 7 of 8: ") and len(repr(offloaded)) < 200


def test_the_parts_of_the_peak_add_up(offloaded: DryRunResult) -> None:
    """By category and by module; allocated <= reserved < device; the timeline reaches it."""
    peak = offloaded.peak
    assert sum(peak.by_category.values()) == sum(peak.by_module.values()) == peak.allocated_bytes_per_gpu
    assert peak.device_bytes_per_gpu is not None
    assert peak.allocated_bytes_per_gpu <= peak.reserved_bytes_per_gpu < peak.device_bytes_per_gpu
    assert peak.by_category["library workspace"] > 0
    assert peak.by_category["logits"] >= 2 * 256 * 4000 * 4
    tensors = peak.allocated_bytes_per_gpu - peak.by_category["library workspace"]
    assert max(point.gpu_bytes for point in offloaded.timeline if point.iteration) == tensors


def test_the_callers_process_imports_no_torch() -> None:
    """torch and DeepSpeed are imported in the subprocess only."""
    assert imports_of("import ds_advise.probes.dry_run.run", ("torch", "deepspeed")) == []


CONVNET = f"{Path(__file__).with_name('convnet.py')}:ConvNet"
OWN = Workload(precision="fp16", framework="deepspeed")
TUTORIAL = {
    "train_batch_size": 32,
    "gradient_accumulation_steps": 1,
    "fp16": {"enabled": True, "loss_scale": 0},
    "optimizer": {"type": "Adam", "params": {"lr": 0.001, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7}},
    "zero_optimization": {"stage": 2, "overlap_comm": True}
    | dict.fromkeys(("allgather_bucket_size", "reduce_bucket_size"), 200_000_000),
}
"""The configuration of DeepSpeed's CIFAR-10 tutorial."""
MUON = {
    **config(2, reduce_scatter=False),
    "optimizer": {"type": "Muon", "params": {"lr": 1e-4}},
    "zero_allow_untested_optimizer": True,  # needed before 0.19
}
LOOP = {"reduce_bucket_size": 1_000_000, "overlap_comm": False}
LOOPED = Workload(seq_len=1024, framework="deepspeed")


def by_script(step: OptimizerStep) -> Run:
    """Under ZeRO-3 with an optimizer that the training script makes."""
    return Run(
        config={name: value for name, value in config(3).items() if name != "optimizer"},
        model=MODEL,
        shape=shape_from_config(MODEL, name="llama"),
        cluster=h100s(1),
        # The Trainer cannot choose the loop.
        workload=Workload(
            seq_len=32,
            software=Software(optimizer_step=step),
            framework="deepspeed" if step == "loop" else "hf",
        ),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for NVMe, where another training keeps a file."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "nvme" / "zero_stage_3").mkdir(parents=True)
    (folder / "nvme" / "zero_stage_3" / "of-another-training").touch()
    return folder


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, Any]:
    """Result or error of each run."""
    nvme = config(3, offload_optimizer={"device": "nvme", "nvme_path": str(folder / "nvme")})
    large = {**MODEL, "hidden_size": 2048, "intermediate_size": 4096, "num_hidden_layers": 2}
    jobs = {
        "nvme": Run(config=nvme, model=large, workload=Workload(seq_len=64), cluster=h100s(2)),
        "own": Run(config=TUTORIAL, model=CONVNET, workload=OWN, gradient_checkpointing=False, cluster=h100s(1)),
        "loop": Run(config=zero_config(1, 4, **LOOP), model=MODEL, workload=LOOPED, cluster=h100s(2)),
        "foreach of the script": by_script("foreach"),
        "loop of the script": by_script("loop"),
        "sdpa": Run(config=config(2), model=MODEL, workload=Workload(seq_len=64), cluster=h100s(1)),
        "flash": Run(config=config(2), model=MODEL, workload=Workload(seq_len=64, attention="flash"), cluster=h100s(1)),
    }
    dry_runs = [partial(dry_run, job, iterations=2) for job in jobs.values()]
    return dict(zip(jobs, fork_outcomes(dry_runs), strict=True))


def test_nvme_bytes_are_counted_and_the_named_folder_is_left_alone(runs: dict[str, Any], folder: Path) -> None:
    """Sixteen bytes per parameter on NVMe (master, two states, gradient), none of them really written."""
    result = runs["nvme"]
    assert [path.name for path in (folder / "nvme" / "zero_stage_3").iterdir()] == ["of-another-training"]
    assert 12 <= result.nvme_bytes_per_rank / (result.parameters / 2) <= 16.2
    step = result.phase("step", 2)
    assert step.nvme_read_bytes > 0 and step.nvme_written_bytes > 0


def test_a_module_of_the_users_own(runs: dict[str, Any]) -> None:
    """CIFAR-10's network of a tutorial under plain DeepSpeed and its configuration: nearly all of the peak is two
    buckets.

    `overlap_comm` takes a second bucket, each of 2e8 elements whatever the network's size; float32 masters and Adam's
    two states are whole on the one GPU.
    """
    result = runs["own"]
    assert result.parameters == 315_722
    assert result.config["train_micro_batch_size_per_gpu"] == 32
    parts = result.peak.by_category
    assert parts["buckets"] == 2 * 200_000_000 * 2
    assert parts["activations"] > 32 * (32 * 30 * 30 + 64 * 13 * 13) * 2
    assert parts["master weights"] == pytest.approx(4 * 315_722, abs=512)
    assert parts["optimizer states"] == pytest.approx(8 * 315_722, abs=2048)


def test_a_loop_of_ones_own_holds_the_models_output(runs: dict[str, Any]) -> None:
    """Its logits are alive after the step, and the closed form counts them in every phase as the dry run does."""
    result, logits = runs["loop"], 4 * 1024 * 4000 * 2
    weights_and_states = PARAMETERS * 2 + PARAMETERS * 12 / 2
    assert result.phase("step").gpu_live_bytes - weights_and_states == pytest.approx(logits, rel=0.02)
    assert result.peak.by_category["logits"] >= logits
    shape = shape_from_config(MODEL, name="tiny")
    plan = Plan(zero_stage=1, micro_batch_size=4, **LOOP)
    closed = estimate_memory(shape, LOOPED, h100s(2), plan).peak
    tensors = closed.allocated_bytes - workspace_bytes(closed)
    assert max(phase.gpu_peak_bytes for phase in result.phases) == pytest.approx(tensors, rel=0.001)


def workspace_bytes(phase: Phase) -> int:
    return next(term.size_bytes for term in phase.terms if term.name == "library_workspace")


@pytest.mark.slow
def test_muon_runs_without_compilation() -> None:
    """Its functions are decorated for torch's compiler, which knows no simulated GPU; only a process that disables the
    compiler before it imports DeepSpeed runs them. The momentum of all matrices has the gradients' type."""
    muon = Run(config=MUON, model=MODEL, cluster=h100s(1), workload=Workload(seq_len=64))
    matrices = PARAMETERS - (2 * 4000 * 512 + (2 * 3 + 1) * 512)
    result = dry_run(muon, iterations=2)
    assert result.peak_by_phase["step"]["optimizer states"] >= 2 * matrices


@pytest.mark.parametrize("step", ["foreach", "loop"])
def test_an_optimizer_of_the_script_steps_as_the_closed_form_says(runs: dict[str, Any], step: OptimizerStep) -> None:
    """Without an optimizer block: torch's AdamW, whose foreach step holds one fp32 copy of a sub-group and its loop
    two."""
    result = runs[f"{step} of the script"]
    estimate = by_script(step).estimate(result.config)
    assert estimate is not None
    held = max(phase.gpu_peak_bytes for phase in result.phases if phase.phase == "step")
    (predicted,) = (phase for phase in estimate.memory.phases if phase.name == "step")
    assert held == pytest.approx(predicted.allocated_bytes - workspace_bytes(predicted), rel=0.01)
    assert held > (2 + 2 + 12 + (8 if step == "foreach" else 12)) * PARAMETERS


def test_flash_attention_needs_no_package_and_keeps_what_sdpas_flash_kernel_keeps(runs: dict[str, Any]) -> None:
    assert runs["flash"].peak.allocated_bytes_per_gpu == runs["sdpa"].peak.allocated_bytes_per_gpu
