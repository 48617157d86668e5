"""Plain words for plans, components and resources, used by every rendering."""

from __future__ import annotations

from ...estimators.hardware.cluster import Cluster
from ...estimators.plan import Plan
from ...estimators.workload import Workload

_PLACE = {"cpu": "in host RAM", "nvme": "on NVMe"}


def checkpointing_word(plan: Plan) -> str:
    """`on`, `off`, or `host` where what checkpointing keeps waits there."""
    return "host" if plan.cpu_checkpointing else "on" if plan.gradient_checkpointing else "off"


def checkpointing_words(plan: Plan) -> str:
    """`gradient checkpointing on`, and where its layers' inputs are if not on the GPU."""
    where = ", its layers' inputs in host RAM" if plan.cpu_checkpointing else ""
    return f"gradient checkpointing {'on' if plan.gradient_checkpointing else 'off'}{where}"


def batch_words(plan: Plan) -> str:
    """`4`, `2x8` with accumulation, `1/4` where four GPUs compute each sample together."""
    steps, shared = plan.gradient_accumulation_steps, plan.ranks_per_sample
    return f"{plan.micro_batch_size}" + (f"/{shared}" if shared > 1 else "") + (f"x{steps}" if steps > 1 else "")


def plan_title(plan: Plan) -> str:
    """`ZeRO-3 with optimizer and parameters in host RAM`; `ZeRO-2 (states in bf16)`."""
    title = f"ZeRO-{plan.zero_stage}" if plan.zero_stage else "Plain data parallelism (ZeRO-0)"
    if plan.sharding != "zero":
        title = "PyTorch's FSDP" if plan.sharding == "fsdp" else "Plain PyTorch"
    further = [f"layers split by {plan.autotp_size}"] * (plan.autotp_size > 1)
    further += [f"experts spread over {plan.autoep_size}"] * (plan.autoep_size > 1)
    further += ["states in bf16"] * plan.bf16_optimizer_states + ["hpZ"] * (plan.zero_hpz_partition_size > 1)
    if further:
        title += f" ({', '.join(further)})"
    optimizer, param = plan.offload_optimizer, plan.offload_param
    if optimizer == param == "none":
        return title
    if optimizer == param:
        return f"{title} with optimizer and parameters {_PLACE[optimizer]}"
    parts = [
        f"{what} {_PLACE[where]}"
        for what, where in (("optimizer", optimizer), ("parameters", param))
        if where != "none"
    ]
    return f"{title} with {' and '.join(parts)}"


def method_title(workload: Workload) -> str:
    if workload.method == "full":
        return "full fine-tuning"
    targets = ", ".join(workload.lora_targets) if workload.lora_targets else "all linear layers"
    dropout = f", dropout {workload.lora_dropout:g}" if workload.lora_dropout else ""
    kind = "LoRA" if workload.method == "lora" else f"QLoRA ({workload.quantization.upper()})"
    return f"{kind} r={workload.lora_rank} on {targets}{dropout}"


def device_word(cluster: Cluster) -> str:
    """What a rank trains on, after "per" and "the": a GPU, or on the CPU its part of the machine, which is called the
    rank."""
    return "rank" if cluster.gpu.is_cpu else "GPU"


def cluster_title(cluster: Cluster, *, speed: bool = True) -> str:
    """What trains; with `speed`, whose speed is assumed where the GPU is not named.

    `2 GPUs of 32 GB (speed of the RTX 4080 SUPER assumed)`, `4 nodes of 8 x H100-SXM5`,
    `2 ranks on the CPU (AMD EPYC 7742)`."""
    gpu = cluster.gpu
    if gpu.is_cpu:
        return f"{cluster.gpus_per_node} rank{'s' * (cluster.gpus_per_node > 1)} on the {gpu.name}"
    if gpu.assumed:
        gpus = f"{cluster.gpus_per_node} GPU{'s' * (cluster.gpus_per_node > 1)} of {gpu.nominal_gb} GB"
        gpus += f" (speed of the {gpu.name} assumed)" if speed else ""
    else:
        gpus = f"{cluster.gpus_per_node} x {gpu.name}"
    return gpus if cluster.nodes == 1 else f"{cluster.nodes} nodes of {gpus}"


_MOMENTS = {
    "initialize": "DeepSpeed's start",
    "forward_backward_top": "the loss",
    "last_layer_forward": "the last layer's forward pass",
    "head_backward": "the head's backward pass",
    "head_reduction": "reduction of the head's gradient",
    "layer_backward": "a layer's backward pass",
    "gradient_reduction": "gradient reduction",
    "first_layer_backward": "the first layer's backward pass",
    "backward_end": "the end of the backward pass",
    "step": "the optimizer step",
}


def phase_title(name: str) -> str:
    """When the GPU's memory peaks: `the loss`, `the optimizer step`."""
    return _MOMENTS.get(name, name.replace("_", " "))


def component_title(name: str) -> str:
    """`master_weights` -> `master weights`."""
    return {"cuda_context": "CUDA context", "nccl_buffers": "NCCL"}.get(name, name.replace("_", " "))
