"""Colours of pictures by what is drawn, for light paper and for dark, and the words for a legend.

A colour stands in the markup as a plain attribute, so that every program that knows SVG draws it; the style sheet
replaces it where the reader's screen is dark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from ..text.labels import component_key


class Ink(NamedTuple):
    """What is drawn in one colour."""

    title: str
    light: str
    dark: str


INKS: Final[Mapping[str, Ink]] = {
    "weights": Ink("weights", "#3f74b5", "#6ea3e0"),
    "gradients": Ink("gradients", "#5a9a52", "#7fbf77"),
    "optimizer": Ink("optimizer states", "#d98c3a", "#e0a45e"),
    "activations": Ink("activations", "#8a6fb0", "#ab93d0"),
    "loss": Ink("logits and loss", "#c4607f", "#dd87a2"),
    "buffers": Ink("buffers", "#3f9c9c", "#63bcbc"),
    "runtime": Ink("CUDA, NCCL, allocator", "#8b929c", "#858d99"),
    "compute": Ink("matrix products and attention", "#3f74b5", "#6ea3e0"),
    "memory": Ink("memory-bound work on the GPU", "#5a9a52", "#7fbf77"),
    "links": Ink("communication between GPUs", "#c4607f", "#dd87a2"),
    "pcie": Ink("copies to and from the host", "#8a6fb0", "#ab93d0"),
    "host": Ink("optimizer on the host", "#d98c3a", "#e0a45e"),
    "nvme": Ink("NVMe", "#3f9c9c", "#63bcbc"),
    "launch": Ink("launches", "#8b929c", "#858d99"),
    "other": Ink("other", "#b3b8bf", "#6a717b"),
    "text": Ink("", "#1f2328", "#e6e9ed"),
    "soft": Ink("", "#5f6873", "#9aa4b0"),
    "grid": Ink("", "#e3e6ea", "#31363e"),
    "band": Ink("", "#f0f4fa", "#1f2733"),
    "paper": Ink("", "#ffffff", "#15181d"),
    "good": Ink("", "#1f7a3d", "#5cc27e"),
    "limit": Ink("", "#b3261e", "#ff8a80"),
}
"""Colour by name. The components of a plan share seven hues, one for each family."""


def _by_name(**families: str) -> dict[str, str]:
    return {name: family for family, names in families.items() for name in names.split()}


_MEMORY: Final[Mapping[str, str]] = _by_name(
    weights="parameters gathered_parameters persistent_parameters updated_weights",
    gradients="gradients gradient_of_the_head's_weight",
    optimizer="optimizer_states master_weights step_temporaries",
    loss="logits_and_loss logits log_softmax gradient_of_log_softmax gradient_of_logits soft_cap_of_logits "
    "logits_of_one_chunk",
    buffers="temporaries reduce_buckets offload_staging communication_buffers",
    runtime="cuda_context nccl_buffers allocator_overhead library_workspace",
    other="other",
)
"""Family of a component of memory; every other component is an activation."""

_TIME: Final[Mapping[str, str]] = _by_name(
    compute="matrix_products attention recomputation",
    links="gradient_reduction weight_gathering updated_weights_gathered all_reduces_of_a_number all_to_all_of_heads "
    "all_reduce all_gather reduce_scatter all_to_all reduce broadcast",
    pcie="gradients_to_host weights_from_host updated_weights_to_host updated_weights_to_gpu copies_to_host "
    "copies_to_device",
    host="optimizer_on_the_host",
    launch="launch_overhead launches_of_the_step launches hooks bookkeeping",
)
"""Family of a component of time; every other component is memory-bound work, or NVMe by its name."""


def memory_family(name: str) -> str:
    """The ink of a component of memory."""
    return _MEMORY.get(component_key(name), "activations")


def time_family(name: str) -> str:
    """The ink of a component of time."""
    return "nvme" if "nvme" in component_key(name) else _TIME.get(component_key(name), "memory")


def dark_rules() -> str:
    """Rules that replace each light colour by its dark one."""
    return "\n".join(
        f".f-{name}{{fill:{ink.dark}}} .s-{name}{{stroke:{ink.dark}}} .b-{name}{{background:{ink.dark}}}"
        for name, ink in INKS.items()
    )


def dark_style(condition: str) -> str:
    """The style sheet under a condition of a media query."""
    return f"@media {condition} {{\n{dark_rules()}\n}}"
