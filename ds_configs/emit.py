"""DeepSpeed configurations of plans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..estimators.errors import ClusterError, WorkloadError
from ..estimators.hardware import Cluster
from ..estimators.models.families import find_family, leaf_classes_to_write
from ..estimators.models.model_shape import ModelShape
from ..estimators.objectives import OBJECTIVES
from ..estimators.optimizers import OPTIMIZERS
from ..estimators.parameter_groups import emits_optimizer_block
from ..estimators.plan import PLAN_FIELDS, Plan
from ..estimators.workload import Framework, Workload

GRADIENT_CLIPPING = 1.0
"""The default of both TrainingArguments (max_grad_norm) and DeepSpeed."""

AIO = {
    "block_size": 1_048_576,
    "queue_depth": 32,
    "intra_op_parallelism": 8,
    "single_submit": False,
    "overlap_events": True,
}
"""Requests of 1 MiB, 32 in flight, 8 threads, which saturate a modern drive. `ds_nvme_tune` finds the best values for a
drive."""

OPTIMIZER_PARAMS: dict[str, Any] = {"lr": 5e-5, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}
"""TrainingArguments' defaults, so that both flavors train alike."""

NOT_FILLED_PARAMS = {name: OPTIMIZER_PARAMS[name] for name in ("betas", "eps")}
"""Parameters for which accelerate refuses `auto`, and the Trainer reports differences from its own numbers."""

_PLAN_KEYS = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "zero_optimization",
)


def ds_config(
    plan: Plan, model: ModelShape, workload: Workload, cluster: Cluster, *, flavor: Framework
) -> dict[str, Any]:
    """The JSON-ready configuration of a plan. It contains only keys with an effect at the plan's stage.

    flavor "hf" or "trl": `auto` for what both the Trainer and accelerate fill in (batch sizes, clipping, precision,
    learning rate, weight decay), so that file and arguments cannot conflict. Buckets and thresholds are numbers: the
    Trainer's values for `auto` differ from those of the memory estimate. The configuration has no scheduler, so the
    Trainer uses its own.

    flavor "deepspeed": every value explicit, for `deepspeed.initialize(config=...)`.

    Gradient checkpointing is a setting of the script (see `training_arguments`).

    Raises ClusterError if the plan swaps to NVMe and the cluster has no folder for it, and WorkloadError if the
    optimizer cannot be offloaded.
    """
    by_accelerate = OBJECTIVES[workload.objective].value_model  # its arguments fill in nothing
    auto = flavor != "deepspeed" and not by_accelerate
    micro, accumulation = plan.micro_batch_size, plan.gradient_accumulation_steps
    config: dict[str, Any] = {
        "train_batch_size": micro * accumulation * cluster.world_size // plan.sequence_parallel_size,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": GRADIENT_CLIPPING,
    }
    if by_accelerate:
        del config["train_batch_size"]  # zero.Init reads it before the process group exists, and counts one rank
    if auto:
        config = dict.fromkeys(config, "auto")
        if plan.sequence_parallel_size > 1:
            # The Trainer would count every GPU's samples; accelerate sets the key later and knows the groups.
            del config["train_batch_size"]
    if workload.precision != "fp32":
        config[workload.precision] = {"enabled": "auto" if auto else True} | _block_keys(workload.precision, plan)
    if plan.sequence_parallel_size > 1:
        config["sequence_parallel_size"] = plan.sequence_parallel_size
        # The type of the gradients without sequence parallelism; the default is fp32, twice the bytes.
        config["seq_parallel_communication_data_type"] = workload.precision
    if plan.communication_data_type:
        config["communication_data_type"] = plan.communication_data_type
    if plan.grad_accum_dtype:
        config["data_types"] = {"grad_accum_dtype": plan.grad_accum_dtype}
    if plan.zero_quantized_gradients and workload.precision == "bf16":
        # DeepSpeed's kernel reads any 16-bit type as fp16 (csrc/quantization/pt_binding.cpp).
        config["communication_data_type"] = "fp16"
    if plan.autotp_size > 1:
        config.pop("train_batch_size", None)  # DeepSpeed counts ranks or groups, depending on the stage
        config["tensor_parallel"] = {"autotp_size": plan.autotp_size}
        if model.tied:
            # Without it DeepSpeed splits the embedding and the head by their tokens, with a loss of its own.
            config["tensor_parallel"]["vocab_parallel_lm_head"] = False
    if plan.autoep_size > 1:
        preset = find_family(model).autoep_preset
        config["expert_parallel"] = {"enabled": True, "autoep_size": plan.autoep_size, "preset_model": preset}
    config |= optimizer_block(workload, plan, auto=auto)
    config["zero_optimization"] = _zero_optimization(plan, model, workload, cluster)
    if plan.swaps:
        config["aio"] = dict(AIO)
    return config


def _block_keys(block: str, plan: Plan, *, nvme: bool = False) -> dict[str, Any]:
    """The keys of a block that are fields of the plan and used at its stage. nvme: include keys for NVMe only."""
    keys = {}
    for name, known in PLAN_FIELDS.items():
        owner, _, key = known.path.rpartition(".")
        value = getattr(plan, name)
        unused = plan.zero_stage not in known.stages or (known.nvme_only and not nvme)
        if owner == block and not unused and not (known.only_if_set and value == known.default):
            keys[key] = value
    return keys


def _zero_optimization(plan: Plan, model: ModelShape, workload: Workload, cluster: Cluster) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": plan.zero_stage}
    for name in ("offload_optimizer", "offload_param") if plan.zero_stage else ():
        if getattr(plan, name) != "none":
            zero[name] = _offload(name, plan, cluster)
    zero |= _block_keys("zero_optimization", plan)
    if plan.zero_stage == 3:
        zero["stage3_gather_16bit_weights_on_model_save"] = _can_gather(plan, model, workload, cluster)
        if OPTIMIZERS[workload.optimizer].per_matrix:
            zero["reduce_scatter"] = False
        if classes := leaf_classes_to_write(model, workload.software):
            zero["leaf_module"] = {"classes": [*classes]}
    return zero


def _offload(name: str, plan: Plan, cluster: Cluster) -> dict[str, Any]:
    nvme = getattr(plan, name) == "nvme"
    if nvme and not cluster.nvme_path:
        raise ClusterError(
            "no folder for swapping to NVMe",
            why="the plan keeps states there between uses",
            fix="pass --nvme PATH:SIZE with a folder on the local NVMe drive",
        )
    block = _block_keys(f"zero_optimization.{name}", plan, nvme=nvme) | {"pin_memory": plan.pin_memory}
    return block | ({"nvme_path": cluster.nvme_path} if nvme else {})


def _can_gather(plan: Plan, model: ModelShape, workload: Workload, cluster: Cluster) -> bool:
    """Whether the first rank's host has the RAM for all weights, so that saving writes a model and not only shards."""
    if cluster.host_memory_bytes_per_node is None:
        return plan.offload_param != "nvme"  # weights are on NVMe because RAM cannot hold them
    return model.parameters * workload.weight_bytes < cluster.host_memory_bytes_per_node


def optimizer_block(workload: Workload, plan: Plan, *, auto: bool) -> dict[str, Any]:
    """The top-level keys that configure the optimizer: `optimizer` unless the training script makes it, and
    zero_allow_untested_optimizer if needed.

    auto: leave the learning rate and the weight decay to the Trainer or accelerate.
    With the states in RAM, DeepSpeed replaces AdamW and Adam by DeepSpeedCPUAdam, Adagrad and Lion by their CPU forms.

    Raises WorkloadError if the optimizer cannot run with its states in host RAM.
    """
    spec = OPTIMIZERS[workload.optimizer]
    if plan.offload_optimizer != "none" and spec.cpu_state_bytes is None:
        raise WorkloadError(
            f"{workload.optimizer} cannot run with its states in host RAM",
            why="DeepSpeed has no CPU version of it",
            fix="choose adamw, or a plan that does not offload the optimizer",
        )
    keys: dict[str, Any] = {}
    has_block = emits_optimizer_block(workload, plan)
    if has_block:
        params = {name: OPTIMIZER_PARAMS[name] for name in spec.block_params}
        if auto:
            params |= dict.fromkeys({*params} - {*NOT_FILLED_PARAMS}, "auto")
        keys["optimizer"] = {"type": spec.block_type, "params": params | dict(spec.extra_block_params)}
    if plan.zero_stage and not (has_block and spec.tested_with_zero):
        keys["zero_allow_untested_optimizer"] = True
    return keys


def merge_plan_into_config(own: Mapping[str, Any], written: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """A training's `own` configuration with the batch sizes and the ZeRO block of `written`, which was made for `plan`.

    Optimizer, scheduler, precision, logging and all other keys are those of `own`. The script still creates its
    optimizer, unless the plan offloads the states: then DeepSpeed must create it (0.19.8 runtime/engine.py
    `_configure_optimizer`, zero_force_ds_cpu_optimizer), and `torch_adam`, which would select torch's, is left out.
    Gradients are clipped only if `own` clips them.
    """
    kept = {name: value for name, value in own.items() if name not in _PLAN_KEYS}
    config = {**written, **kept}
    if own and "gradient_clipping" not in own:
        config.pop("gradient_clipping", None)
    if plan.offload_optimizer == "none":
        if "optimizer" not in own:
            config.pop("optimizer", None)
        return config
    block = config.get("optimizer")
    if isinstance(block, Mapping) and isinstance(block.get("params"), Mapping):
        params = {name: value for name, value in block["params"].items() if name != "torch_adam"}
        config["optimizer"] = {**block, "params": params}
    return config
