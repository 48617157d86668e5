"""Titles of plans, components and resources, and the families of components, shared by every output format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ...estimators.hardware import Cluster
from ...estimators.plan import Plan
from ...estimators.workload import Workload
from .units import counted_noun


def checkpointing_label(plan: Plan) -> str:
    """Return `on`, `off`, or `host` if checkpointed layer inputs are held in host RAM."""
    if plan.cpu_checkpointing:
        return "host"
    return "on" if plan.gradient_checkpointing else "off"


def checkpointing_title(plan: Plan) -> str:
    """Return whether a plan has gradient checkpointing, and where the layers' inputs are held if not on the GPU."""
    if plan.cpu_checkpointing:
        return "gradient checkpointing to host RAM"
    return "gradient checkpointing" if plan.gradient_checkpointing else "no gradient checkpointing"


def batch_label(plan: Plan) -> str:
    """Return `4`, `2x8` with accumulation, or `1/4` if four GPUs compute each sample together."""
    steps, shared = plan.gradient_accumulation_steps, plan.ranks_per_sample
    return f"{plan.micro_batch_size}" + (f"/{shared}" if shared > 1 else "") + (f"x{steps}" if steps > 1 else "")


def batch_factors(plan: Plan) -> str:
    """Return `micro batch 4`, or `micro batch 2 x 8 accumulation steps`."""
    steps = plan.gradient_accumulation_steps
    return f"micro batch {plan.micro_batch_size}" + (f" x {steps} accumulation steps" if steps > 1 else "")


def shared_among(plan: Plan, device: str) -> list[str]:
    """Return how samples, layers and experts are shared: `each sample shared by 8 GPUs (Ulysses)`. device: what a rank
    runs on."""
    groups = (
        (plan.sequence_parallel_size, "each sample shared by {} (Ulysses)"),
        (plan.autotp_size, "each layer split by {} (AutoTP)"),
        (plan.autoep_size, "experts spread over {} (AutoEP)"),
    )
    return [words.format(f"{ranks} {device}s") for ranks, words in groups if ranks > 1]


def plan_title(plan: Plan) -> str:
    """Return `ZeRO-3 with optimizer and parameters in host RAM` or `ZeRO-2 (states in bf16)`."""
    title: str = f"ZeRO-{plan.zero_stage}" if plan.zero_stage else "DDP"
    if plan.sharding != "zero":
        titles = {"fsdp": "PyTorch's FSDP", "fsdp2": "PyTorch's FSDP2", "none": "Plain PyTorch"}
        title = titles[plan.sharding]
    further = [f"layers split by {plan.autotp_size}"] * (plan.autotp_size > 1)
    further += [f"sharded over {plan.hybrid_shard_size} GPUs"] * (plan.hybrid_shard_size > 0)
    further += [f"experts spread over {plan.autoep_size}"] * (plan.autoep_size > 1)
    further += ["states in bf16"] * plan.bf16_optimizer_states
    further += ["hpZ"] * (plan.zero_hpz_partition_size > 1)
    further += ["quantized collectives"] * plan.quantizes_collectives
    if further:
        title = f"{title} ({', '.join(further)})"
    optimizer, param = plan.offload_optimizer, plan.offload_param
    if optimizer == param == "none":
        return title
    if optimizer == param:
        what = f"optimizer and parameters {_place(optimizer)}"
    elif param == "none":
        what = f"optimizer {_place(optimizer)}"
    elif optimizer == "none":
        what = f"parameters {_place(param)}"
    else:
        what = f"optimizer {_place(optimizer)} and parameters {_place(param)}"
    return f"{title} with {what}"


def _place(where: str) -> str:
    return "in host RAM" if where == "cpu" else "on NVMe"


def method_title(workload: Workload) -> str:
    """Return `full fine-tuning`, `LoRA r=8 on all linear layers`, or `full fine-tuning, vision-tower frozen`."""
    title = _method_title(workload)
    return f"{title}, {', '.join(workload.freeze)} frozen" if workload.freeze else title


def _method_title(workload: Workload) -> str:
    if workload.method == "full":
        return "full fine-tuning"
    targets = ", ".join(workload.lora_targets) if workload.lora_targets else "all linear layers"
    kind = "LoRA" if workload.method == "lora" else f"QLoRA ({workload.quantization.upper()})"
    adapters = f"{kind} r={workload.lora_rank} on {targets}"
    if workload.modules_to_save:
        copied = ", ".join(workload.modules_to_save)
        adapters = f"{adapters}, and {copied} trained in full"
    if not workload.lora_dropout:
        return adapters
    return f"{adapters}, dropout {workload.lora_dropout:g}"


def device_label(cluster: Cluster) -> str:
    """Return the device of a rank, after "per" and "the": a GPU, or on the CPU the rank's share of the machine, called
    the rank."""
    return "rank" if cluster.gpu.is_cpu else "GPU"


def cluster_title(cluster: Cluster, *, speed: bool = True) -> str:
    """Return a title of the machines. speed: name the GPU from which an assumed speed is taken.

    `2 GPUs of 32 GB (speed of the RTX 5000 Ada assumed)`, `4 nodes of 8 x H100-SXM5`, `2 ranks on the CPU (AMD EPYC
    7742)`.
    """
    gpu, count = cluster.gpu, cluster.gpus_per_node
    if gpu.is_cpu:
        return f"{count} ranks on the {gpu.name}" if count > 1 else f"{count} rank on the {gpu.name}"
    if gpu.assumed:
        gpus = f"{count} GPUs of {gpu.nominal_gb} GB" if count > 1 else f"{count} GPU of {gpu.nominal_gb} GB"
        gpus = f"{gpus} (speed of the {gpu.name} assumed)" if speed else gpus
    else:
        gpus = f"{count} x {gpu.name}"
    return gpus if cluster.nodes == 1 else f"{cluster.nodes} nodes of {gpus}"


_MOMENTS = {
    "initialize": "DeepSpeed's start",
    "loss_peak": "the loss",
    "layer_forward": "a layer's forward pass",
    "last_layer_forward": "the last layer's forward pass",
    "head_backward": "the head's backward pass",
    "head_reduction": "reduction of the head's gradient",
    "layer_backward": "a layer's backward pass",
    "later_layer_backward": "a layer's backward pass",
    "layer_recomputation": "a layer's recomputation",
    "weight_gradient": "a weight's gradient",
    "gradient_reduction": "gradient reduction",
    "later_gradient_reduction": "gradient reduction",
    "first_layer_backward": "the first layer's backward pass",
    "backward_end": "the end of the backward pass",
    "reference_forward": "the reference model's forward pass",
    "step": "the optimizer step",
    "evaluation": "evaluation",
    "rollout_prefill": "the prompts' forward pass",
    "rollout": "the rollout",
    "weight_synchronization": "weight synchronization",
    "scoring": "scoring",
    "rewards": "the reward model's forward pass",
}


def phase_title(name: str) -> str:
    """Return the moment of the GPU's memory peak: `the loss`, `the optimizer step`."""
    return _MOMENTS.get(name, name.replace("_", " "))


def component_title(name: str) -> str:
    """Return `master_weights` as `master weights`."""
    phase, _, part = name.partition(": ")
    if part:  # a part of a recorded step
        return f"{phase}: {component_title(part)}"
    return {"cuda_context": "CUDA context", "nccl_buffers": "NCCL", "buckets": "reduction buckets"}.get(
        name, name.replace("_", " ")
    )


def resource_title(name: str) -> str:
    """Return the resource that a part of a step occupies: `gpu links` as `GPU links`."""
    words = {"gpu": "GPU", "cpu": "CPU", "pcie": "PCIe", "nvme": "NVMe", "nvlink": "NVLink"}
    return " ".join(words.get(word, word) for word in name.split(" "))


def component_key(name: str) -> str:
    """Return a component's name as a JSON key: `gradient of logits` -> `gradient_of_logits`."""
    return name.lower().replace(" ", "_").replace("-", "_")


def global_batch_label(config: Mapping[str, Any], ranks: int, device: str = "GPU") -> str:
    """Return `micro batch 2 x 4 accumulation steps x 8 GPUs = global batch 64` of a filled configuration; "" without a
    micro batch. device: what a rank runs on."""
    micro, steps = config.get("train_micro_batch_size_per_gpu"), config.get("gradient_accumulation_steps", 1)
    if not isinstance(micro, int) or not isinstance(steps, int):
        return ""
    whole = config.get("train_batch_size")
    samples = whole if isinstance(whole, int) else micro * steps * ranks
    groups = max(1, samples // (micro * steps))  # of ranks that share their samples
    where = counted_noun(ranks, device)
    if groups < ranks:
        where = f"{counted_noun(groups, 'group')} of {counted_noun(ranks // groups, device)}"
    return f"micro batch {micro} x {counted_noun(steps, 'accumulation step')} x {where} = global batch {samples}"


def versions_label(versions: Mapping[str, str]) -> str:
    """Return `torch 2.8.0, deepspeed 0.19.8`."""
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def shape_label(plan: Any) -> str:
    """Return `micro batch 2 x 8, checkpointing on` for a `Plan` or an object with its fields."""
    steps = plan.gradient_accumulation_steps
    checkpointing = "to the host" if plan.cpu_checkpointing else "on" if plan.gradient_checkpointing else "off"
    parts = (
        f"micro batch {plan.micro_batch_size}" + (f" x {steps}" if steps > 1 else ""),
        f"samples shared by {plan.sequence_parallel_size}" if plan.sequence_parallel_size > 1 else "",
        f"layers split by {plan.autotp_size}" if plan.autotp_size > 1 else "",
        f"experts spread over {plan.autoep_size}" if plan.autoep_size > 1 else "",
        f"checkpointing {checkpointing}",
    )
    return ", ".join(filter(None, parts))


MEMORY_FAMILIES: Final[Mapping[str, str]] = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "loss": "logits and loss",
    "activations": "activations",
    "generation": "generation",
    "buffers": "buffers",
    "runtime": "runtime, allocator",
    "other": "other",
}
"""Titles of the memory families, in the order of a bar's parts."""

TIME_FAMILIES: Final[Mapping[str, str]] = {
    "compute": "matrix products, attention",
    "memory": "memory-bound kernels",
    "links": "communication",
    "pcie": "host copies",
    "host": "optimizer on the host",
    "nvme": "NVMe",
    "launch": "launches",
    "other": "other",
}


def _by_name(**families: str) -> dict[str, str]:
    return {name: family for family, names in families.items() for name in names.split()}


_MEMORY: Final[Mapping[str, str]] = _by_name(
    weights="parameters reference_model reward_model gathered_parameters persistent_parameters updated_weights",
    gradients="gradients gradient_of_the_head's_weight",
    optimizer="optimizer_states master_weights step_temporaries first_states",
    loss="logits_and_loss logits log_softmax gradient_of_log_softmax gradient_of_logits soft_cap_of_logits "
    "logits_of_one_chunk",
    generation="keys_and_values keys_and_values_of_a_layer logits_of_the_next_token vllm",
    buffers="temporaries buckets reduce_buckets offload_staging communication_buffers pinned_cache "
    "optimizer_swap_buffers parameter_swap_buffers",
    runtime="cuda_context nccl_buffers allocator_overhead library_workspace",
    other="other processes loading_the_model",
)
"""Family of a memory component; components that are not listed are activations."""

_TIME: Final[Mapping[str, str]] = _by_name(
    compute="matrix_products attention recomputation reference_model reward_model passes_without_gradients",
    links="gradient_reduction weight_gathering weight_synchronization updated_weights_gathered "
    "all_reduces_of_a_number all_to_all_of_heads all_reduce all_gather reduce_scatter all_to_all reduce broadcast",
    pcie="gradients_to_host weights_from_host updated_weights_to_host updated_weights_to_gpu copies_to_host "
    "copies_to_device",
    host="optimizer_on_the_host overflow_check_on_the_host tensor_operations_on_the_host",
    launch="launch_overhead launches_of_the_step launches hooks deepspeed's_python_code",
)
"""Family of a time component; components that are not listed are memory-bound work, or NVMe by their name."""


def memory_family(name: str) -> str:
    """Return the key in `MEMORY_FAMILIES` of a memory component."""
    return _MEMORY.get(component_key(name), "activations")


def time_family(name: str) -> str:
    """Return the key in `TIME_FAMILIES` of a time component."""
    return "nvme" if "nvme" in component_key(name) else _TIME.get(component_key(name), "memory")


def is_component(name: str) -> bool:
    """Return whether a name is listed as that of a component of memory or time, also with underscores."""
    return component_key(name) in _MEMORY or component_key(name) in _TIME


def memory_by_family(components: Mapping[str, int]) -> dict[str, int]:
    """Return bytes by family, in the order of `MEMORY_FAMILIES`, from bytes by component."""
    sizes = dict.fromkeys(MEMORY_FAMILIES, 0)
    for name, size in components.items():
        sizes[memory_family(name)] += size
    return {family: size for family, size in sizes.items() if size}
