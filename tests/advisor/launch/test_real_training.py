"""The emitted configurations train for real: two ranks, DeepSpeed's CPU accelerator over gloo, both flavours.

The files are those that a user gets, except for the learning rate: a small model on random tokens needs a larger one.
Training without a GPU also needs `NO_GPU` in train_with_trainer.py and `cpu_environment`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from ds_advise.estimators.gpu_catalogue import gpu_of_memory
from ds_advise.estimators.hardware import Cluster
from ds_advise.estimators.models.families import shape_from_config
from ds_advise.estimators.plan import Plan, Strategy
from ds_advise.estimators.workload import Framework, Workload

from tests.helpers import TINY_SIZES, preset, write_training
from tests.training_scripts.forked_ranks import LIMIT_S, run_ranks

SCRIPTS = Path(__file__).parents[2] / "training_scripts"
SCRIPT = {"hf": SCRIPTS / "train_with_trainer.py", "deepspeed": SCRIPTS / "train_with_deepspeed.py"}
RANKS, STEPS = 2, 5
BUILD_LIMIT_S = 1800

# Wide enough that half of a matrix exceeds the 1 MiB below which DeepSpeed leaves a tensor in RAM.
WIDE = TINY_SIZES | {"hidden_size": 1024, "intermediate_size": 1024, "vocab_size": 1024}

pytestmark = pytest.mark.timeout(BUILD_LIMIT_S + LIMIT_S)  # the first test compiles DeepSpeed's extensions


@dataclass(frozen=True, kw_only=True)
class Run:
    """A training that is ready to start: its files are in `folder`, the extensions are built."""

    folder: Path
    flavor: Framework
    plan: Plan
    cluster: Cluster

    @property
    def config(self) -> Path:
        return self.folder / "ds_config.json"

    def reports(self) -> list[dict[str, Any]]:
        """What the ranks left, in their order."""
        return [json.loads(path.read_text()) for path in sorted((self.folder / "reports").iterdir())]

    def losses(self) -> list[float]:
        """The loss of every optimizer step, over all ranks."""
        return [fmean(step) for step in zip(*(report["losses"] for report in self.reports()), strict=True)]


Prepare = Callable[..., Run]


@pytest.fixture
def prepare(tmp_path: Path, extensions: Callable[..., None]) -> Prepare:
    """Write a strategy's files in a folder of their own; changes to its plan are keywords."""

    def prepare(
        strategy: Strategy,
        flavor: Framework,
        *,
        model: dict[str, Any] = TINY_SIZES,
        workload: Workload | None = None,
        micro_batch_size: int = 2,
        gradient_accumulation_steps: int = 2,
        samples: int | None = None,
        seq_len: int = 32,
        tiles: int = 0,
        steps: int = STEPS,
        **changes: float | str,
    ) -> Run:
        workload = workload or Workload()
        folder = tmp_path / f"run{sum(1 for _ in tmp_path.iterdir())}"
        for name in ("", "nvme"):
            (folder / name).mkdir()
        shape = shape_from_config({"model_type": "qwen2", **model}, name="small")
        cluster = Cluster(nodes=1, gpus_per_node=RANKS, gpu=gpu_of_memory(24), nvme_path=str(folder / "nvme"))
        plan = preset(strategy, shape, workload, cluster, micro_batch_size, gradient_accumulation_steps)
        plan = replace(plan, **changes)  # type: ignore[arg-type]
        job: dict[str, Any] = {"model": model, "steps": steps, "samples": samples, "seq_len": seq_len, "tiles": tiles}
        write_training(folder, plan, workload, cluster, flavor, **job)
        run = Run(folder=folder, flavor=flavor, plan=plan, cluster=cluster)
        extensions(*_builders(plan))
        return run

    return prepare


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "flavor"),
    [
        ("ddp", "hf"),
        ("zero2-offload", "deepspeed"),
        ("zero3-offload", "hf"),
        ("zero3-nvme", "hf"),
    ],
)
def test_a_strategy_trains(prepare: Prepare, strategy: Strategy, flavor: Framework) -> None:
    """The loss falls, gradients accumulate, and the engine has the plan's numbers. `test_launch_trainings` has ZeRO-2,
    the pairs below ZeRO-3, and `test_seed_workflows` the other strategies."""
    special: dict[Strategy, dict[str, Any]] = {
        # Where the accelerator is the CPU both parts of a partly offloaded optimizer are on it.
        "zero3-offload": {"offload_optimizer_ratio": 0.5, "sub_group_size": 10_000},
        # Some parameters stay in RAM and others do not, in several sub-groups, as in a model of real size.
        "zero3-nvme": {"model": WIDE, "seq_len": 8, "param_max_in_cpu": 2_000_000, "sub_group_size": 2_000_000},
    }
    run = prepare(strategy, flavor, **special.get(strategy, {}))
    train(run)
    assert_trained(run)


FP32 = Workload(precision="fp32")
ONE_MICRO_BATCH = {"workload": FP32, "gradient_accumulation_steps": 1}


PAIRS: dict[str, tuple[Strategy, Framework, float, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "two ranks share two samples": (
        *("zero3", "deepspeed", 1e-4),
        {"micro_batch_size": 2, "sequence_parallel_size": 2},
        {"micro_batch_size": 1, "sequence_parallel_size": 1},
        {**ONE_MICRO_BATCH, "samples": RANKS * STEPS},
    ),
    "feed-forward and loss in four tiles": (
        *("zero2", "hf", 1e-5),
        {"tiles": 4},
        {"tiles": 0},
        {"workload": FP32},
    ),
    "hpZ, with copies that the backward pass gathers": (
        *("zero3", "hf", 0.0),
        {"zero_hpz_partition_size": 2},
        {"zero_hpz_partition_size": 1},
        {},
    ),
    "two ranks split the layers of two samples": (
        *("zero2", "hf", 1e-4),
        {"micro_batch_size": 2, "autotp_size": 2},
        {"micro_batch_size": 1, "autotp_size": 1},
        {**ONE_MICRO_BATCH, "samples": RANKS},
    ),
}
"""Two ways to train on the same samples: strategy, flavour, relative difference of the losses, one way, the other,
both."""


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_two_ways_to_train_have_the_same_losses(prepare: Prepare, name: str) -> None:
    """They agree to rounding in fp32, and exactly where only the place of the weights differs."""
    strategy, flavor, rel, *ways, both = PAIRS[name]
    one, other = (prepare(strategy, flavor, **both, **way) for way in ways)
    train(one)
    train(other)
    assert len(one.losses()) == STEPS
    assert one.losses() == pytest.approx(other.losses(), rel=rel, abs=0.0)


def train(run: Run) -> None:
    """Start the ranks as a launcher does, and wait for them."""
    config = str(run.config)
    arguments = ["--deepspeed", config] if run.flavor == "hf" else ["--deepspeed", "--deepspeed_config", config]
    run_ranks(SCRIPT[run.flavor], arguments, RANKS, run.folder, TRAINING_JOB=str(run.folder / "job.json"))


def assert_trained(run: Run) -> None:
    losses, plan = run.losses(), run.plan
    assert len(losses) == STEPS
    assert all(later < earlier for earlier, later in pairwise(losses)), losses
    expected: dict[str, Any] = {
        "zero_stage": plan.zero_stage,
        "offload_optimizer": plan.offload_optimizer,
        "offload_param": plan.offload_param,
        "offload_optimizer_ratio": plan.offload_optimizer_ratio,
        "optimizer": "FusedAdam" if plan.offload_optimizer == "none" else "DeepSpeedCPUAdam",
        "dtype": "bfloat16",
        "train_micro_batch_size_per_gpu": plan.micro_batch_size,
        "gradient_accumulation_steps": plan.gradient_accumulation_steps,
        "train_batch_size": plan.micro_batch_size * plan.gradient_accumulation_steps * RANKS,
        "optimizer_steps": STEPS,
        "forward_passes": STEPS * plan.gradient_accumulation_steps,
        "swapped": ["optimizer", "param"] if plan.offload_param == "nvme" else [],
    }
    if plan.zero_stage:
        expected["reduce_bucket_size"] = plan.reduce_bucket_size
    if plan.zero_stage == 3:
        expected |= {
            "sub_group_size": plan.sub_group_size,
            "stage3_prefetch_bucket_size": plan.stage3_prefetch_bucket_size,
        }
    assert len(run.reports()) == RANKS
    for report in run.reports():
        assert {name: report[name] for name in expected} == expected


def _builders(plan: Plan) -> list[str]:
    """What DeepSpeed compiles for a plan."""
    builders = ["ShareMemCommBuilder", "FusedAdamBuilder" if plan.offload_optimizer == "none" else "CPUAdamBuilder"]
    return builders + ["AsyncIOBuilder"] * plan.swaps
