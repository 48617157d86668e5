"""What a dry run cannot compute, known before torch is imported."""

from __future__ import annotations

from ...estimators.workload import Workload


def unknown_kernels(workload: Workload) -> str:
    """Description of the kernels that fake tensors cannot run; "" if they can run all."""
    if workload.method == "qlora":
        return "the kernels of quantized weights"
    if workload.loss in ("in-place", "chunked", "value-head"):
        return f"the {workload.loss} loss"
    if workload.kernels != "torch":
        return f"{workload.kernels}'s kernels"
    return "the Triton kernel of 2023" if workload.attention == "triton" else ""
