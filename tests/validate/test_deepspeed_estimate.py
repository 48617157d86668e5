"""DeepSpeed's own estimators, called and not copied."""

from __future__ import annotations

import importlib
import logging
import subprocess
import sys

import pytest
from ds_advise.advisor.answer.evidence import deepspeed_sentence
from ds_advise.estimators.gpu_catalogue import gpu_of_memory
from ds_advise.estimators.hardware import Cluster
from ds_advise.estimators.models.catalogue import find
from ds_advise.estimators.models.families import shape_from_config
from ds_advise.estimators.plan import Offload, Plan
from ds_advise.estimators.workload import Workload
from ds_advise.validate.deepspeed_estimate import deepspeed_estimate, largest_module_parameters

from tests.helpers import sizes

MODEL = find("Qwen2.5-7B")
P, LARGEST = MODEL.parameters, 152064 * 3584
CLUSTER = Cluster(nodes=2, gpus_per_node=4, gpu=gpu_of_memory(24))


@pytest.mark.parametrize(
    ("stage", "optimizer", "param", "gpu_bytes", "host_bytes"),
    [
        (2, "none", "none", 2 * P + 18 * P // 8, 4 * P * 4 * 1.5),
        (2, "cpu", "none", 2 * P, P * 32 * 1.5),
        (3, "none", "none", 4 * LARGEST + 18 * P // 8, 4 * LARGEST * 4 * 1.5),
        (3, "cpu", "none", 4 * LARGEST + 2 * P // 8, 16 * P / 2 * 1.5),
        (3, "nvme", "nvme", 4 * LARGEST, 18 * P / 2 * 1.5),
    ],
)
def test_the_function_gets_the_plans_arguments(
    stage: int, optimizer: Offload, param: Offload, gpu_bytes: int, host_bytes: float
) -> None:
    """The figures are those of DeepSpeed 0.19.8's formulas for 8 GPUs on 2 nodes, models built in shards."""
    plan = Plan(
        zero_stage=stage,
        micro_batch_size=1,
        offload_optimizer=optimizer,  # type: ignore[arg-type]
        offload_param=param,
    )
    estimate = deepspeed_estimate(MODEL, Workload(), CLUSTER, plan)
    assert (estimate.gpu_bytes, estimate.host_bytes) == (gpu_bytes, int(host_bytes))
    assert f"zero{stage}" in estimate.function


@pytest.mark.parametrize("stage", [0, 1])
def test_a_stage_without_an_estimator_has_a_reason(stage: int) -> None:
    """ZeRO-2's figure is shown instead, with the reason why it is too low."""
    plan = Plan(zero_stage=stage, micro_batch_size=1)  # type: ignore[arg-type]
    assert f"ZeRO-{stage} shards less" in deepspeed_sentence(
        deepspeed_estimate(MODEL, Workload(), CLUSTER, plan), 2**30
    )


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        (Workload(method="lora"), "counts every weight as trained (0.27 % of them are); gradients"),
        (Workload(method="qlora"), "; 16-bit weights in place of NF4; "),
        (Workload(optimizer="adamw_8bit"), "counts 8 bytes of optimizer states per trained weight in place of 2"),
        (Workload(), "It counts gradients in 16 bits and in fp32 at once. It leaves out activations"),
    ],
)
def test_what_it_counts_too_much_is_named(workload: Workload, reason: str) -> None:
    """What a figure leaves out cannot make it larger than ours."""
    estimate = deepspeed_estimate(MODEL, workload, CLUSTER, Plan(zero_stage=2, micro_batch_size=1))
    assert reason in deepspeed_sentence(estimate, 2**30)


def test_the_largest_module_is_deepspeeds_largest_layer() -> None:
    """The same figure as DeepSpeed finds in the real model."""
    from deepspeed.runtime.zero.stage3 import model_to_params
    from transformers import AutoModelForCausalLM, Qwen2Config

    for vocab_size in (16, 512):
        config = sizes(64, 96, 1, 4, 2, vocab_size)
        shape = shape_from_config({"model_type": "qwen2", **config}, name="small")
        model = AutoModelForCausalLM.from_config(Qwen2Config(**config))
        assert (shape.parameters, largest_module_parameters(shape)) == model_to_params(model)


def test_stdout_stays_clean_and_logging_as_it_was() -> None:
    """DeepSpeed warns on stdout while it is imported without a GPU; an answer in JSON must not begin with that."""
    code = f"""
import logging, sys
from ds_advise.advisor.answer.evidence import deepspeed_sentence
from ds_advise.validate.deepspeed_estimate import deepspeed_estimate
from ds_advise.estimators.models.catalogue import find
from ds_advise.estimators.hardware import Cluster
from ds_advise.estimators.gpu_catalogue import gpu_of_memory
from ds_advise.estimators.plan import Plan
from ds_advise.estimators.workload import Workload
cluster = Cluster(nodes=1, gpus_per_node=2, gpu=gpu_of_memory(24))
estimate = deepspeed_estimate(find("Qwen2.5-7B"), Workload(), cluster, Plan(zero_stage=2, micro_batch_size=1))
assert logging.root.manager.disable == {logging.NOTSET}
assert logging.getLogger("DeepSpeed").handlers[0].stream is sys.stdout
print(estimate.gpu_bytes)
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == f"{2 * P + 9 * P}\n"


@pytest.mark.parametrize(
    "error", [ModuleNotFoundError("No module named 'deepspeed'"), OSError("libtorch.so: cannot open")]
)
def test_an_installation_that_does_not_import_is_a_reason(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """The answer goes on without the comparison."""

    def fail(_: str) -> None:
        raise error

    monkeypatch.setattr(importlib, "import_module", fail)
    estimate = deepspeed_estimate(MODEL, Workload(), CLUSTER, Plan(zero_stage=3, micro_batch_size=1))
    assert estimate.gpu_bytes is None
    assert str(error) in deepspeed_sentence(estimate, 2**30)
