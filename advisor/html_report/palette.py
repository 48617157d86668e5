"""Colours of pictures by what is drawn, for light paper and for dark, and the words for a legend.

A colour stands in the markup as a plain attribute, so that every program that knows SVG draws it; the style sheet
replaces it where the reader's screen is dark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


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
"""Colour by name. The components of a plan share seven hues, so that a picture is read by families, not by hunting."""

_COMPONENTS: Final[Mapping[str, str]] = {
    "parameters": "weights",
    "gathered_parameters": "weights",
    "persistent_parameters": "weights",
    "updated_weights": "weights",
    "gradients": "gradients",
    "gradient_of_the_head's_weight": "gradients",
    "optimizer_states": "optimizer",
    "master_weights": "optimizer",
    "step_temporaries": "optimizer",
    "logits_and_loss": "loss",
    "logits": "loss",
    "temporaries": "buffers",
    "log_softmax": "loss",
    "gradient_of_log_softmax": "loss",
    "gradient_of_logits": "loss",
    "soft_cap_of_logits": "loss",
    "logits_of_one_chunk": "loss",
    "reduce_buckets": "buffers",
    "offload_staging": "buffers",
    "communication_buffers": "buffers",
    "cuda_context": "runtime",
    "nccl_buffers": "runtime",
    "allocator_overhead": "runtime",
    "library_workspace": "runtime",
    "other": "other",
}
"""Family of a component of memory; what is not named here is an activation."""

_TIMES: Final[Mapping[str, str]] = {
    "matrix_products": "compute",
    "attention": "compute",
    "recomputation": "compute",
    "gradient_reduction": "links",
    "weight_gathering": "links",
    "updated_weights_gathered": "links",
    "all_reduces_of_a_number": "links",
    "all_to_all_of_heads": "links",
    "gradients_to_host": "pcie",
    "weights_from_host": "pcie",
    "updated_weights_to_host": "pcie",
    "updated_weights_to_gpu": "pcie",
    "all_reduce": "links",
    "all_gather": "links",
    "reduce_scatter": "links",
    "all_to_all": "links",
    "reduce": "links",
    "broadcast": "links",
    "copies_to_host": "pcie",
    "copies_to_device": "pcie",
    "optimizer_on_the_host": "host",
    "launch_overhead": "launch",
    "launches_of_the_step": "launch",
    "launches": "launch",
    "hooks": "launch",
    "bookkeeping": "launch",
}
"""Family of a component of time; what is not named here and has no NVMe in its name is memory-bound work."""


def key(name: str) -> str:
    """A component's name as JSON spells it: `gradient of logits` -> `gradient_of_logits`."""
    return name.lower().replace(" ", "_").replace("-", "_")


def memory_family(name: str) -> str:
    """The ink of a component of memory."""
    return _COMPONENTS.get(key(name), "activations")


def time_family(name: str) -> str:
    """The ink of a component of time."""
    spelled = key(name)
    if "nvme" in spelled:
        return "nvme"
    return _TIMES.get(spelled, "memory")


def style() -> str:
    """The style sheet of a picture that stands alone: dark where the screen is dark."""
    return f"@media (prefers-color-scheme: dark) {{\n{dark_rules()}\n}}"


def dark_rules() -> str:
    """Rules that replace each light colour by its dark one."""
    return "\n".join(
        f".f-{name}{{fill:{ink.dark}}} .s-{name}{{stroke:{ink.dark}}} .b-{name}{{background:{ink.dark}}}"
        for name, ink in INKS.items()
    )
