"""Speeds of what a step is made of, by shape: products, attention, the loss's memory-bound work, Adam, copies.

`ds-advise bench` measures squares and large buffers; these are the shapes that trainings have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from ds_advise.probes.benchmark import Task
from ds_advise.probes.benchmark_rank import Stopwatch, measure_host_link

from ..machine.place import NotPossibleError, Place
from ..outcome import Outcome

_BUDGET_S = 0.4
"""Of one figure; a kernel takes microseconds to some ten milliseconds."""

Figure = dict[str, Any]


def measure(arguments: dict[str, Any], place: Place) -> Outcome:
    """arguments: for keys of `_GROUPS` what they take, several times. The figures, as many as memory allows."""
    import torch

    def settle() -> None:
        if place.device == "cuda":
            torch.cuda.synchronize()

    watch = Stopwatch(synchronize=settle, broadcast=lambda number: number)
    figures: list[Figure] = []
    too_large = []
    for group, sizes in arguments.items():
        for size in sizes:
            try:
                figures += _GROUPS[group](watch, place.device, *size)
            except torch.OutOfMemoryError:
                too_large.append([group, *size])
                torch.cuda.empty_cache()
    return {"value": {"figures": figures, "too_large": too_large, "budget_s": _BUDGET_S}}


def _timed(watch: Stopwatch, action: Callable[[], object], **what: Any) -> Figure:
    seconds = sorted(watch.samples(action, _BUDGET_S))
    middle = seconds[len(seconds) // 2]
    return {**what, "seconds": middle, "lowest_s": seconds[0], "highest_s": seconds[-1], "repeats": len(seconds)}


def _products(watch: Stopwatch, device: str, rows: int, inner: int, columns: int, dtype: str) -> Iterable[Figure]:
    """One linear layer's product, as its forward pass has it and as its two gradients have it."""
    import torch

    kind = getattr(torch, dtype)
    inputs = torch.randn(rows, inner, device=device).to(kind)
    weight = torch.randn(columns, inner, device=device).to(kind)
    result = torch.randn(rows, columns, device=device).to(kind)
    flops = 2 * rows * inner * columns
    for name, action in (
        ("forward", lambda: inputs @ weight.t()),
        ("input gradient", lambda: result @ weight),
        ("weight gradient", lambda: result.t() @ inputs),
    ):
        yield _timed(watch, action, kernel="product", how=name, shape=[rows, inner, columns], dtype=dtype, flops=flops)


def _attention(
    watch: Stopwatch, device: str, length: int, heads: int, kv_heads: int, head_dim: int, tokens: int
) -> Iterable[Figure]:
    """Causal attention over `tokens` in samples of `length`, forward and backward, with as many keys as heads have."""
    import torch

    attend: Any = torch.nn.functional.scaled_dot_product_attention
    batch = max(1, tokens // length)
    query, key, value = (
        torch.randn(batch, count, length, head_dim, device=device, dtype=torch.bfloat16, requires_grad=True)
        for count in (heads, kv_heads, kv_heads)
    )
    grouped = {"enable_gqa": True} if heads != kv_heads else {}
    output = attend(query, key, value, is_causal=True, **grouped)
    gradient = torch.randn_like(output)
    flops = 2 * batch * heads * length * (length + 1) * head_dim  # two products over the causal half
    what = {"kernel": "attention", "shape": [batch, heads, kv_heads, length, head_dim], "dtype": "bfloat16"}
    with torch.no_grad():
        yield _timed(
            watch, lambda: attend(query, key, value, is_causal=True, **grouped), how="forward", flops=flops, **what
        )
    yield _timed(
        watch,
        lambda: torch.autograd.grad(output, (query, key, value), gradient, retain_graph=True),
        how="backward",
        flops=5 * flops // 2,
        **what,
    )


def _elementwise(watch: Stopwatch, device: str, rows: int, columns: int) -> Iterable[Figure]:
    """Memory-bound work of a layer and of the loss; bytes that each moves at least."""
    import torch

    functional = torch.nn.functional
    values = torch.randn(rows, columns, device=device, dtype=torch.bfloat16)
    other, scale = torch.randn_like(values), torch.ones(columns, device=device, dtype=torch.bfloat16)
    size = values.nbytes
    for name, moved, action in (
        ("sum", 3 * size, lambda: values + other),
        ("silu", 2 * size, lambda: functional.silu(values)),
        ("RMS norm", 2 * size, lambda: functional.rms_norm(values, (columns,), scale)),
        ("cast to fp32", 3 * size, lambda: values.float()),
        ("log-softmax of fp32", 4 * size, lambda: functional.log_softmax(values.float(), dim=-1)),
    ):
        yield _timed(watch, action, kernel="elementwise", how=name, shape=[rows, columns], moved_bytes=moved)


def _fused_adam(watch: Stopwatch, device: str, parameters: int) -> Iterable[Figure]:
    """One step of DeepSpeed's FusedAdam and of torch's over fp32 masters in one tensor."""
    import torch

    weights = torch.nn.Parameter(torch.zeros(parameters, device=device))
    weights.grad = torch.full_like(weights, 1e-3)
    moved = 28 * parameters  # weight, gradient, two moments read; all but the gradient written
    adams: dict[str, Callable[[], Any]] = {"torch": lambda: torch.optim.AdamW([weights], fused=True)}
    if device == "cuda":
        from deepspeed.ops.adam import FusedAdam

        adams["DeepSpeed"] = lambda: FusedAdam([weights])
    for name, make in adams.items():
        try:
            optimizer = make()
        except Exception as error:
            yield {"kernel": "Adam", "how": name, "parameters": parameters, "error": str(error)[:500]}
            continue
        yield _timed(watch, optimizer.step, kernel="Adam", how=name, parameters=parameters, moved_bytes=moved)
        del optimizer


def _copies(watch: Stopwatch, device: str, size_bytes: int) -> Iterable[Figure]:
    """Between host and GPU, page-locked and pageable, by size."""
    if device != "cuda":
        raise NotPossibleError("copies to a GPU need one")
    task = Task(group="host_link", device="cuda", ranks=1, threads=1, budget_s=4 * _BUDGET_S, buffer_bytes=size_bytes)
    for figure in measure_host_link(task, device, watch):
        yield {"kernel": "copy", **asdict(figure)}


def _launches(watch: Stopwatch, device: str, count: int) -> Iterable[Figure]:
    """The host's time for an operation that the device does in next to none, of several kinds."""
    import torch

    one = torch.ones(16, 16, device=device, dtype=torch.bfloat16)
    tracked = torch.ones(16, 16, device=device, dtype=torch.bfloat16, requires_grad=True)
    linear = torch.nn.Linear(16, 16, device=device, dtype=torch.bfloat16)
    for name, action in (
        ("in-place product with a number", lambda: one.mul_(1.0)),
        ("sum", lambda: one + one),
        ("matrix product", lambda: one @ one),
        ("sum under autograd", lambda: tracked + one),
        ("linear layer under autograd", lambda: linear(one)),
    ):

        def several(action: Callable[[], object] = action) -> None:
            for _ in range(count):
                action()

        yield _timed(watch, several, kernel="launch", how=name, operations=count)


_GROUPS: dict[str, Callable[..., Iterable[Figure]]] = {
    "products": _products,
    "attention": _attention,
    "elementwise": _elementwise,
    "fused Adam": _fused_adam,
    "copies": _copies,
    "launches": _launches,
}
