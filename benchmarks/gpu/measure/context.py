"""What a process holds on the GPU in addition to its tensors: the CUDA context, cuBLAS's workspaces, loaded kernels."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from typing import Any

from ds_advise.probes.real_run.measure import device_bytes

from ..machine.place import NotPossibleError, Place
from ..outcome import Outcome


def measure(_arguments: dict[str, Any], place: Place) -> Outcome:
    """Bytes after each of the things that a training does first, by torch, CUDA, NVML and nvidia-smi."""
    if place.device != "cuda":
        raise NotPossibleError("a CPU has no context")
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    before = _nvml()
    import torch

    torch.cuda.init()  # type: ignore[no-untyped-call]
    torch.ones(1, device="cuda")
    stages = {"before": {"nvml": before}, "context": _held()}
    left = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    for name, action in _first_uses(left).items():
        action()
        torch.cuda.synchronize()
        stages[name] = _held()
    stages["product in another thread"] = _in_a_thread(lambda: left.detach() @ left.detach())
    stages["product on another stream"] = _on_a_stream(lambda: left.detach() @ left.detach())
    properties = torch.cuda.get_device_properties(0)
    return {
        "value": {
            "stages": stages,
            "total_bytes": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
            "workspace_config": os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""),
            "nvidia_smi": _nvidia_smi(),
        }
    }


def _first_uses(left: Any) -> dict[str, Callable[[], object]]:
    """In the order of a training's first step; each loads kernels or takes a workspace."""
    import torch

    heads = torch.randn(1, 8, 512, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    def attention() -> None:
        output = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        output.sum().backward()  # type: ignore[no-untyped-call]

    def loss() -> None:
        logits, labels = left.float(), torch.zeros(2048, dtype=torch.long, device="cuda")
        torch.nn.functional.cross_entropy(logits, labels).backward()  # type: ignore[no-untyped-call]

    return {
        "product": lambda: left.detach() @ left.detach(),
        "backward of a product": lambda: (left @ left).sum().backward(),
        "attention and its backward": attention,
        "loss and its backward": loss,
        "fused AdamW": lambda: torch.optim.AdamW([left], fused=True).step(),
    }


def _held() -> dict[str, Any]:
    """Now: allocated and reserved (torch), used of the whole device (CUDA), and what NVML says of it."""
    import torch

    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return {
        "allocated": torch.cuda.memory_allocated(),
        "reserved": torch.cuda.memory_reserved(),
        "used_by_cuda": total - free,
        "process_by_nvml": device_bytes(0),
        "nvml": _nvml(),
    }


def _in_a_thread(action: Callable[[], object]) -> dict[str, Any]:
    """A thread has cuBLAS handles of its own."""
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()
    return _held()


def _on_a_stream(action: Callable[[], object]) -> dict[str, Any]:
    import torch

    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        action()
    return _held()


def _nvml() -> int | None:
    """Bytes in use on the whole GPU, as its driver counts them."""
    import pynvml

    pynvml.nvmlInit()
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)
    finally:
        pynvml.nvmlShutdown()


def _nvidia_smi() -> dict[str, str]:
    """What the command prints of memory, of the device and by process."""
    questions = {
        "device": ["--query-gpu=name,memory.used,memory.reserved,memory.total", "--format=csv"],
        "processes": ["--query-compute-apps=pid,used_memory", "--format=csv"],
    }
    answers = {}
    for name, options in questions.items():
        try:
            asked = subprocess.run(["nvidia-smi", *options], capture_output=True, text=True, timeout=20)
            answers[name] = asked.stdout + asked.stderr
        except (OSError, subprocess.SubprocessError) as error:
            answers[name] = str(error)
    return answers
