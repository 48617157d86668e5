"""What else is asked before a run: DeepSpeed's own estimators, and the rule of four times the weights.

DeepSpeed's formulas are written out here so that the table needs no torch; a test compares them with the installed
functions. P counts every parameter as trained in 16 bits, L is the largest module's:

    ZeRO-2:  2 P + 18 P / N;  offloaded 2 P
    ZeRO-3:  4 L + 18 P / N;  optimizer offloaded 4 L + 2 P / N;  parameters too 4 L

Source: deepspeed 0.19.8 runtime/zero/stage_1_and_2.py `estimate_zero2_model_states_mem_needs`, runtime/zero/stage3.py
`estimate_zero3_model_states_mem_needs`. Stages 0 and 1 and runs without DeepSpeed get ZeRO-2's, FSDP ZeRO-3's.
"""

from __future__ import annotations

from ds_advise.estimators.hardware.cluster import Cluster
from ds_advise.estimators.models.model_shape import ModelShape
from ds_advise.estimators.plan import Plan
from ds_advise.estimators.workload import Workload
from ds_advise.validate.deepspeed_estimate import largest_module_parameters

RULE = 4
"""Weights, gradients and Adam's two states: "a training takes four times the model"."""


def deepspeed_bytes(model: ModelShape, cluster: Cluster, plan: Plan, *, stage3: bool) -> int:
    """GPU bytes of the model states as DeepSpeed's estimator prints them."""
    parameters, ranks = model.parameters, cluster.world_size
    largest = largest_module_parameters(model)
    if not stage3:
        return 2 * parameters if plan.offload_optimizer != "none" else int(2 * parameters + 18 * parameters / ranks)
    if plan.offload_optimizer == "none":
        return int(4 * largest + 18 * parameters / ranks)
    return 4 * largest if plan.offload_param != "none" else int(4 * largest + 2 * parameters / ranks)


def rule_bytes(model: ModelShape, workload: Workload, cluster: Cluster, *, sharded: bool) -> int:
    """Four times the weights as they are stored (half a byte each for QLoRA), divided where parameters are sharded."""
    width = 0.5 if workload.method == "qlora" else workload.weight_bytes
    return int(RULE * width * model.parameters / (cluster.world_size if sharded else 1))
