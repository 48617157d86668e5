"""Titles of plans, components and resources, and the families of components, shared by every output format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ...estimators.hardware import Cluster
from ...estimators.phrase import Phrase, listed, named, phrase
from ...estimators.plan import Plan
from ...estimators.workload import Workload


def checkpointing_label(plan: Plan) -> Phrase:
    """Return `on`, `off`, or `host` if checkpointed layer inputs are held in host RAM."""
    if plan.cpu_checkpointing:
        return phrase("host")
    return phrase("on") if plan.gradient_checkpointing else phrase("off")


def checkpointing_title(plan: Plan) -> Phrase:
    """Return `gradient checkpointing on`, and where the layers' inputs are held if not on the GPU."""
    if plan.cpu_checkpointing:
        return phrase("gradient checkpointing on, its layers' inputs in host RAM")
    return phrase("gradient checkpointing on") if plan.gradient_checkpointing else phrase("gradient checkpointing off")


def batch_label(plan: Plan) -> str:
    """Return `4`, `2x8` with accumulation, or `1/4` if four GPUs compute each sample together."""
    steps, shared = plan.gradient_accumulation_steps, plan.ranks_per_sample
    return f"{plan.micro_batch_size}" + (f"/{shared}" if shared > 1 else "") + (f"x{steps}" if steps > 1 else "")


def plan_title(plan: Plan) -> str:
    """Return `ZeRO-3 with optimizer and parameters in host RAM` or `ZeRO-2 (states in bf16)`."""
    title: str = f"ZeRO-{plan.zero_stage}" if plan.zero_stage else phrase("Plain data parallelism (ZeRO-0)")
    if plan.sharding != "zero":
        titles = {"fsdp": phrase("PyTorch's FSDP"), "fsdp2": phrase("PyTorch's FSDP2"), "none": phrase("Plain PyTorch")}
        title = titles[plan.sharding]
    further = [phrase("layers split by {ranks}", ranks=plan.autotp_size)] * (plan.autotp_size > 1)
    further += [phrase("experts spread over {ranks}", ranks=plan.autoep_size)] * (plan.autoep_size > 1)
    further += [phrase("states in bf16")] * plan.bf16_optimizer_states
    further += [named("hpZ")] * (plan.zero_hpz_partition_size > 1)
    further += [phrase("quantized collectives")] * plan.quantizes_collectives
    if further:
        title = phrase("{title} ({further})", title=title, further=listed(further))
    optimizer, param = plan.offload_optimizer, plan.offload_param
    if optimizer == param == "none":
        return title
    if optimizer == param:
        what = phrase("optimizer and parameters {place}", place=_place(optimizer))
    elif param == "none":
        what = phrase("optimizer {place}", place=_place(optimizer))
    elif optimizer == "none":
        what = phrase("parameters {place}", place=_place(param))
    else:
        what = phrase(
            "optimizer {place} and parameters {other_place}", place=_place(optimizer), other_place=_place(param)
        )
    return phrase("{title} with {what}", title=title, what=what)


def _place(where: str) -> Phrase:
    return phrase("in host RAM") if where == "cpu" else phrase("on NVMe")


def method_title(workload: Workload) -> Phrase:
    """Return `full fine-tuning`, `LoRA r=8 on all linear layers`, or `full fine-tuning, vision-tower frozen`."""
    title = _method_title(workload)
    return (
        phrase("{title}, {parts} frozen", title=title, parts=", ".join(workload.freeze)) if workload.freeze else title
    )


def _method_title(workload: Workload) -> Phrase:
    if workload.method == "full":
        return phrase("full fine-tuning")
    targets = ", ".join(workload.lora_targets) if workload.lora_targets else phrase("all linear layers")
    kind = "LoRA" if workload.method == "lora" else f"QLoRA ({workload.quantization.upper()})"
    adapters = phrase("{kind} r={rank} on {targets}", kind=kind, rank=workload.lora_rank, targets=targets)
    if workload.modules_to_save:
        copied = ", ".join(workload.modules_to_save)
        adapters = phrase("{adapters}, and {modules} trained in full", adapters=adapters, modules=copied)
    if not workload.lora_dropout:
        return adapters
    return phrase("{adapters}, dropout {share}", adapters=adapters, share=f"{workload.lora_dropout:g}")


def device_label(cluster: Cluster) -> Phrase:
    """Return the device of a rank, after "per" and "the": a GPU, or on the CPU the rank's share of the machine, called
    the rank."""
    return phrase("rank") if cluster.gpu.is_cpu else phrase("GPU")


def cluster_title(cluster: Cluster, *, speed: bool = True) -> Phrase:
    """Return a title of the machines. speed: name the GPU from which an assumed speed is taken.

    `2 GPUs of 32 GB (speed of the RTX 4080 SUPER assumed)`, `4 nodes of 8 x H100-SXM5`, `2 ranks on the CPU (AMD EPYC
    7742)`.
    """
    gpu, count = cluster.gpu, cluster.gpus_per_node
    if gpu.is_cpu:
        return (
            phrase("{count} ranks on the {cpu}", count=count, cpu=gpu.name)
            if count > 1
            else phrase("{count} rank on the {cpu}", count=count, cpu=gpu.name)
        )
    if gpu.assumed:
        gpus = (
            phrase("{count} GPUs of {size} GB", count=count, size=gpu.nominal_gb)
            if count > 1
            else phrase("{count} GPU of {size} GB", count=count, size=gpu.nominal_gb)
        )
        gpus = phrase("{gpus} (speed of the {gpu} assumed)", gpus=gpus, gpu=gpu.name) if speed else gpus
    else:
        gpus = phrase("{count} x {gpu}", count=count, gpu=gpu.name)
    return gpus if cluster.nodes == 1 else phrase("{nodes} nodes of {gpus}", nodes=cluster.nodes, gpus=gpus)


_MOMENTS = {
    "initialize": phrase("DeepSpeed's start"),
    "forward_backward_top": phrase("the loss"),
    "last_layer_forward": phrase("the last layer's forward pass"),
    "head_backward": phrase("the head's backward pass"),
    "head_reduction": phrase("reduction of the head's gradient"),
    "layer_backward": phrase("a layer's backward pass"),
    "later_layer_backward": phrase("a layer's backward pass"),
    "layer_recomputation": phrase("a layer's recomputation"),
    "weight_gradient": phrase("a weight's gradient"),
    "gradient_reduction": phrase("gradient reduction"),
    "later_gradient_reduction": phrase("gradient reduction"),
    "first_layer_backward": phrase("the first layer's backward pass"),
    "backward_end": phrase("the end of the backward pass"),
    "reference_forward": phrase("the reference model's forward pass"),
    "step": phrase("the optimizer step"),
    "evaluation": phrase("evaluation"),
    "rollout_prefill": phrase("the prompts' forward pass"),
    "rollout": phrase("the rollout"),
    "weight_synchronization": phrase("weight synchronization"),
    "scoring": phrase("scoring"),
    "rewards": phrase("the reward model's forward pass"),
}


def phase_title(name: str) -> str:
    """Return the moment of the GPU's memory peak: `the loss`, `the optimizer step`."""
    return _MOMENTS.get(name, name.replace("_", " "))


def component_title(name: str) -> Phrase:
    """Return `master_weights` as `master weights`."""
    phase, _, part = name.partition(": ")
    if part:  # a part of a recorded step
        return phrase("{phase}: {part}", phase=named(phase), part=component_title(part))
    return named({"cuda_context": "CUDA context", "nccl_buffers": "NCCL"}.get(name, name.replace("_", " ")))


def component_key(name: str) -> str:
    """Return a component's name as a JSON key: `gradient of logits` -> `gradient_of_logits`."""
    return name.lower().replace(" ", "_").replace("-", "_")


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


MEMORY_FAMILIES: Final[Mapping[str, Phrase]] = {
    "weights": phrase("weights"),
    "gradients": phrase("gradients"),
    "optimizer": phrase("optimizer states"),
    "loss": phrase("logits and loss"),
    "activations": phrase("activations"),
    "generation": phrase("generation"),
    "buffers": phrase("buffers"),
    "runtime": phrase("runtime, allocator"),
    "other": phrase("other"),
}
"""Titles of the memory families, in the order of a bar's parts."""

TIME_FAMILIES: Final[Mapping[str, Phrase]] = {
    "compute": phrase("matrix products and attention"),
    "memory": phrase("memory-bound work on the GPU"),
    "links": phrase("communication between GPUs"),
    "pcie": phrase("copies to and from the host"),
    "host": phrase("optimizer on the host"),
    "nvme": named("NVMe"),
    "launch": phrase("launches"),
    "other": phrase("other"),
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
    buffers="temporaries reduce_buckets offload_staging communication_buffers pinned_cache optimizer_swap_buffers "
    "parameter_swap_buffers",
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
    host="optimizer_on_the_host tensor_operations_on_the_host",
    launch="launch_overhead launches_of_the_step launches hooks deepspeed's_python_code",
)
"""Family of a time component; components that are not listed are memory-bound work, or NVMe by their name."""


def memory_family(name: str) -> str:
    """Return the key in `MEMORY_FAMILIES` of a memory component."""
    return _MEMORY.get(component_key(name), "activations")


def time_family(name: str) -> str:
    """Return the key in `TIME_FAMILIES` of a time component."""
    return "nvme" if "nvme" in component_key(name) else _TIME.get(component_key(name), "memory")


def memory_by_family(components: Mapping[str, int]) -> dict[str, int]:
    """Return bytes by family, in the order of `MEMORY_FAMILIES`, from bytes by component."""
    sizes = dict.fromkeys(MEMORY_FAMILIES, 0)
    for name, size in components.items():
        sizes[memory_family(name)] += size
    return {family: size for family, size in sizes.items() if size}
