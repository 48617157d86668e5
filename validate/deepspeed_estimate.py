"""Memory of a plan according to DeepSpeed's own estimators."""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..estimators.hardware import Cluster
from ..estimators.memory.trainable import tensor_set
from ..estimators.models.model_shape import ModelShape
from ..estimators.optimizers import optimizer
from ..estimators.plan import Plan
from ..estimators.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeedEstimate:
    """The result of one of DeepSpeed's functions."""

    function: str
    """Name of the function."""
    gpu_bytes: int | None = None
    """This and the next: bytes per GPU and per node; None if the function could not be called."""
    host_bytes: int | None = None
    counts: tuple[str, ...] = ()
    """What the function counts that the plan has not, or has smaller."""
    leaves_out: tuple[str, ...] = ()
    """Parts of the plan that the function does not count."""
    problem: str = ""
    """Why the function could not be called; "" if it was."""


def deepspeed_estimate(model: ModelShape, workload: Workload, cluster: Cluster, plan: Plan) -> DeepSpeedEstimate:
    """Call the installed DeepSpeed's estimator for a plan's model states.

    DeepSpeed has one for ZeRO-2 and one for ZeRO-3; stages 0 and 1 use that of ZeRO-2, and `leaves_out` states it. Both
    assume that every parameter is trained in 16 bits with Adam; `counts` states where the training has less. ZeRO-3's
    model is built in shards (zero_init), as by the Trainer.

    Importing DeepSpeed imports torch, 1.5 s of a fresh process. DeepSpeed's log messages on stdout are suppressed. An
    installation that cannot be imported is a `problem`, not an error.
    """
    stage3 = plan.zero_stage == 3
    module = "stage3" if stage3 else "stage_1_and_2"
    function = f"estimate_zero{3 if stage3 else 2}_model_states_mem_needs"
    try:
        with _quiet():
            zero = importlib.import_module(f"deepspeed.runtime.zero.{module}")
        estimator: Callable[..., Any] = getattr(zero, function)
    except Exception as error:
        # A broken installation of torch or DeepSpeed raises different errors, depending on the extension that fails.
        return DeepSpeedEstimate(function=function, problem=f"{type(error).__name__}: {error}".splitlines()[0])
    sizes: dict[str, Any] = {
        "num_gpus_per_node": cluster.gpus_per_node,
        "num_nodes": cluster.nodes,
        "cpu_offload": plan.offload_optimizer != "none",
    }
    if stage3:
        sizes |= {
            "largest_layer_params": largest_module_parameters(model),
            "zero_init": True,
            "cpu_offload_params": plan.offload_param != "none",
        }
    host_bytes, gpu_bytes, *_ = estimator(total_params=model.parameters, **sizes)
    return DeepSpeedEstimate(
        function=function,
        gpu_bytes=gpu_bytes,
        host_bytes=host_bytes,
        counts=tuple(_counts(model, workload, plan)),
        leaves_out=_leaves_out(plan),
    )


def largest_module_parameters(model: ModelShape) -> int:
    """Parameters of the largest module that directly owns some (usually the embedding), DeepSpeed's "largest layer"."""
    largest = 0
    for tensors in (model.outside, *(block.tensors for block in model.blocks)):
        modules: Counter[str] = Counter()
        for tensor in tensors:
            modules[tensor.name.rpartition(".")[0]] += tensor.numel
        largest = max(largest, *modules.values(), 0)
    return largest


def _counts(model: ModelShape, workload: Workload, plan: Plan) -> Iterator[str]:
    """Yield what the functions count too much: per parameter 2 bytes of weight and 18 of training states, which are 2 +
    4 of gradients, 4 of master weight, and 8 of Adam's states (DeepSpeed 0.19.8 runtime/zero/stage_1_and_2.py
    `estimate_zero2_model_states_mem_needs`)."""
    trained = tensor_set(model, workload).trainable_numel
    spec = optimizer(workload.optimizer, bf16_states=plan.bf16_optimizer_states)
    state_bytes = spec.state_bytes if plan.offload_optimizer == "none" else spec.cpu_state_bytes
    if trained < model.parameters:
        yield f"every weight as trained ({100 * trained / model.parameters:.2g} % of them are)"
    if workload.method == "qlora":
        yield f"16-bit weights in place of {workload.quantization.upper()}"
    if plan.master_bytes < 4:
        yield "fp32 master weights in place of bf16"
    if state_bytes is not None and state_bytes < 8:
        yield f"8 bytes of optimizer states per trained weight in place of {state_bytes:.2g}"
    if plan.offload_optimizer == "none":
        yield "gradients in 16 bits and in fp32 at once"


def _leaves_out(plan: Plan) -> tuple[str, ...]:
    missing = ["activations", "logits", "communication buffers", "the CUDA context and NCCL"]
    if plan.zero_stage < 2:
        less = f"that ZeRO-{plan.zero_stage} shards less than ZeRO-2 (there is no estimator for it)"
        missing.insert(0, less)
    if plan.zero_stage == 3:
        missing.append("gathered and prefetched parameters")
        if plan.offload_param != "none" and plan.offload_optimizer == "none":
            missing.append("that the parameters alone are offloaded")
    if plan.swaps:
        missing.append("NVMe (it counts RAM)")
    return tuple(missing)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress stdout during an import: DeepSpeed's logger writes there."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        logging.disable(level)
        # The logger keeps the stream of its creation.
        for handler in logging.getLogger("DeepSpeed").handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stderr:
                handler.setStream(sys.stdout)
