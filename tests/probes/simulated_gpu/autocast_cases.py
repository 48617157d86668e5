"""Types of results under autocast on the simulated GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
Made = Callable[..., torch.Tensor]


def results(dtype: torch.dtype) -> dict[str, torch.dtype]:
    """Type of the result of each operation, with inputs of one type, under autocast in bf16."""

    def made(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=dtype)

    square, batch, image = made(4, 4), made(2, 4, 4), made(1, 2, 6, 6)
    label = torch.tensor([0, 1, 2, 3], device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        found = {
            "linear": functional.linear(square, square),
            "matmul": square @ square,
            "addmm": torch.addmm(square, square, square),
            "bmm": torch.bmm(batch, batch),
            "conv2d": functional.conv2d(image, made(3, 2, 3, 3)),
            "prelu": functional.prelu(square, made(1)),
            "exp": square.exp(),
            "log": square.log(),
            "pow": square.pow(2),
            "rsqrt": square.rsqrt(),
            "layer_norm": functional.layer_norm(square, (4,)),
            "cross_entropy": functional.cross_entropy(square, label),
            "mse_loss": functional.mse_loss(square, square),
            "softmax": square.softmax(-1),
            "sum": square.sum(),
            "cumsum": square.cumsum(0),
            "prod": square.prod(),
            "relu": square.relu(),
            "add": square + square,
            "gelu": functional.gelu(square),
        }
    return {name: tensor.dtype for name, tensor in found.items()}


HALF = ("linear", "matmul", "addmm", "bmm", "conv2d", "prelu")
FLOAT = "exp log pow rsqrt layer_norm cross_entropy mse_loss softmax sum cumsum prod".split()  # noqa: SIM905
SAME = ("relu", "add", "gelu")
"""The lists of torch's documentation, "CUDA Ops that can autocast to float16" and "float32"."""


def case_inputs_in_single_precision(_: Any) -> None:
    assert results(FP32) == dict.fromkeys(HALF, BF16) | dict.fromkeys((*FLOAT, *SAME), FP32)


def case_inputs_in_half_precision(_: Any) -> None:
    assert results(BF16) == dict.fromkeys((*HALF, *SAME), BF16) | dict.fromkeys(FLOAT, FP32)


def case_the_widest_type_of_several(_: Any) -> None:
    half, single = (torch.randn(4, device="cuda", dtype=dtype) for dtype in (BF16, FP32))
    with torch.autocast("cuda", torch.bfloat16):
        assert torch.addcmul(half, half, single).dtype is FP32
        assert torch.addcmul(half, half, half).dtype is BF16
        assert torch.cat([half, single]).dtype is FP32
        assert torch.dot(half, single).dtype is FP32


def case_integers_and_double_stay(_: Any) -> None:
    numbers, double = torch.arange(4, device="cuda"), torch.zeros(4, 4, device="cuda", dtype=torch.float64)
    with torch.autocast("cuda", torch.bfloat16):
        assert numbers.sum().dtype is torch.int64
        assert double.exp().dtype is torch.float64
        assert (double @ double).dtype is torch.float64


def case_the_host_has_its_own_autocast(_: Any) -> None:
    on_host = torch.randn(4, 4)
    with torch.autocast("cuda", torch.bfloat16):
        assert (on_host @ on_host).dtype is FP32
    with torch.autocast("cpu", torch.bfloat16):
        assert (on_host @ on_host).dtype is BF16


def case_a_weight_is_cast_once(mode: Any) -> None:
    weight = torch.nn.Parameter(torch.randn(64, 64, device="cuda"))
    states = torch.randn(4, 64, device="cuda", dtype=BF16)
    with torch.autocast("cuda", torch.bfloat16):
        first = functional.linear(states, weight)
        before = mode._ledger.gpu.live_bytes
        second = functional.linear(states, weight)
        assert mode._ledger.gpu.live_bytes - before == 512, "its output alone"
    (first + second).sum().backward()
    assert weight.grad is not None and weight.grad.dtype is FP32
    with torch.no_grad():
        with torch.autocast("cuda", torch.bfloat16):
            first = functional.linear(states, weight)
            held = mode._ledger.gpu.live_bytes
        assert held - mode._ledger.gpu.live_bytes == 64 * 64 * 2, "the copy is released after autocast"


def case_names_of_the_context(_: Any) -> None:
    square = torch.randn(4, 4, device="cuda")
    assert not torch.is_autocast_enabled("cuda")
    with torch.autocast("cuda"):
        assert torch.is_autocast_enabled("cuda") and torch.is_autocast_enabled()
        assert (square @ square).dtype is FP16 is torch.get_autocast_gpu_dtype()
        with torch.autocast("cuda", enabled=False):
            assert (square @ square).dtype is FP32
        assert (square @ square).dtype is FP16
    with torch.cuda.amp.autocast(dtype=torch.bfloat16):
        assert (square @ square).dtype is BF16 is torch.get_autocast_dtype("cuda")
    assert (square @ square).dtype is FP32

    @torch.autocast("cuda", dtype=torch.bfloat16)
    def multiplied() -> torch.Tensor:
        return square @ square

    assert multiplied().dtype is BF16
