"""Families of the components of memory and time, which every drawing shows in one colour each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ...estimators.phrase import Phrase, named, phrase
from .labels import component_key

MEMORY_FAMILIES: Final[Mapping[str, Phrase]] = {
    "weights": phrase("weights"),
    "gradients": phrase("gradients"),
    "optimizer": phrase("optimizer states"),
    "loss": phrase("logits and loss"),
    "activations": phrase("activations"),
    "generation": phrase("generation"),
    "buffers": phrase("buffers"),
    "runtime": phrase("CUDA, NCCL, allocator"),
    "other": phrase("other"),
}
"""Titles, in the order in which a bar shows them."""

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
"""Family of a component of memory; every other component is an activation."""

_TIME: Final[Mapping[str, str]] = _by_name(
    compute="matrix_products attention recomputation reference_model reward_model passes_without_gradients",
    links="gradient_reduction weight_gathering weight_synchronization updated_weights_gathered "
    "all_reduces_of_a_number all_to_all_of_heads all_reduce all_gather reduce_scatter all_to_all reduce broadcast",
    pcie="gradients_to_host weights_from_host updated_weights_to_host updated_weights_to_gpu copies_to_host "
    "copies_to_device",
    host="optimizer_on_the_host tensor_operations_on_the_host",
    launch="launch_overhead launches_of_the_step launches hooks deepspeed's_python_code",
)
"""Family of a component of time; every other component is memory-bound work, or NVMe by its name."""


def memory_family(name: str) -> str:
    """The key in `MEMORY_FAMILIES` of a component of memory."""
    return _MEMORY.get(component_key(name), "activations")


def time_family(name: str) -> str:
    """The key in `TIME_FAMILIES` of a component of time."""
    return "nvme" if "nvme" in component_key(name) else _TIME.get(component_key(name), "memory")


def memory_by_family(components: Mapping[str, int]) -> dict[str, int]:
    """Bytes by family, in the order of `MEMORY_FAMILIES`, from bytes by component."""
    sizes = dict.fromkeys(MEMORY_FAMILIES, 0)
    for name, size in components.items():
        sizes[memory_family(name)] += size
    return {family: size for family, size in sizes.items() if size}
