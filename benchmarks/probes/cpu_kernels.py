"""A layer's matrix products and torch's flash attention on one thread of this machine's CPU, against
`estimators/time/roofline.py`.

    python -m benchmarks.probes.cpu_kernels

Every product reads its operands from memory, as in training: it takes the next of so many that no cache holds them. The
rates of a large product and of a sum of two tensors are measured in the same process. Times are the process's, so that
other work disturbs little.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import cycle
from statistics import median

import torch
from ds_advise.estimators.time.roofline import CPU_ATTENTION, MEMORY_SHARE, product_s

_LAYERS = (
    *((128, 512, 512), (128, 512, 2048), (128, 2048, 512), (512, 768, 768), (512, 768, 2048)),
    *((128, 512, 16), (512, 768, 16), (512, 16, 2048)),
)
"""Rows, inner size and columns of forward products."""
_HEADS = ((4, 128), (12, 64))
_TOKENS = (128, 512, 2048)
_LARGE = 1024
_CACHE_BYTES = 64 * 2**20

Row = tuple[str, float, float]
"""What, seconds measured, seconds predicted."""


def products(dtype: torch.dtype) -> Iterator[Row]:
    rate = 2 * _LARGE**3 / _product(dtype, (_LARGE,) * 3, (False, False))
    left, right, out = (torch.ones(_CACHE_BYTES // 4) for _ in range(3))
    bandwidth = MEMORY_SHARE * 3 * left.nbytes / _seconds(lambda: torch.add(left, right, out=out))
    for rows, inner, columns in _LAYERS:
        for name, shape, turned in (
            ("forward", (rows, inner, columns), (False, True)),
            ("input's gradient", (rows, columns, inner), (False, False)),
            ("weight's gradient", (columns, rows, inner), (True, False)),
        ):
            predicted = product_s(*shape, copies=1, rate=rate, bandwidth=bandwidth, element=dtype.itemsize, is_cpu=True)
            yield f"{rows} x {inner} x {columns}, {name}", _product(dtype, shape, turned), predicted


def attention(dtype: torch.dtype) -> Iterator[Row]:
    """The predicted rates are relative to products in fp32."""
    square = torch.randn(_LARGE, _LARGE)
    rate = 2 * _LARGE**3 / _seconds(lambda: square @ square)
    for heads, width in _HEADS:
        for tokens in _TOKENS:
            flops = 2 * heads * width * tokens * (tokens + 1)
            forward, backward = _passes(dtype, heads, width, tokens)
            for name, seconds, count in (("forward", forward, flops), ("backward", backward, 2.5 * flops)):
                key = "backward in 16 bits" if name == "backward" and dtype != torch.float32 else name
                share, half = CPU_ATTENTION[key]
                predicted = count / (rate * share * tokens / (tokens + half))
                yield f"attention of {heads} x {width}, {tokens} tokens, {name}", seconds, predicted


def _product(dtype: torch.dtype, shape: tuple[int, int, int], turned: tuple[bool, bool]) -> float:
    """Seconds of (rows x inner) by (inner x columns); `turned`: the operand is stored transposed."""
    rows, inner, columns = shape
    count = max(1, _CACHE_BYTES // (dtype.itemsize * inner * (rows + columns)))
    pairs = cycle(
        [(_operand(rows, inner, dtype, turned[0]), _operand(inner, columns, dtype, turned[1])) for _ in range(count)]
    )

    def product() -> torch.Tensor:
        left, right = next(pairs)
        return left @ right

    return _seconds(product)


def _operand(height: int, width: int, dtype: torch.dtype, turned: bool) -> torch.Tensor:
    return torch.randn(width, height).to(dtype).t() if turned else torch.randn(height, width).to(dtype)


def _passes(dtype: torch.dtype, heads: int, width: int, tokens: int) -> tuple[float, float]:
    """Seconds of a forward and of a backward pass of causal attention."""
    query, key, value = (torch.randn(1, heads, tokens, width, dtype=dtype).requires_grad_() for _ in range(3))

    def forward() -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)

    output = forward()
    gradient = torch.randn_like(output)
    backward = _seconds(lambda: torch.autograd.grad(output, (query, key, value), gradient, retain_graph=True))
    return _seconds(forward), backward


def _seconds(call: Callable[[], object]) -> float:
    """The median of 21."""
    taken = []
    for _ in range(21):
        began = time.process_time()
        call()
        taken.append(time.process_time() - began)
    return median(taken)


def main() -> None:
    torch.set_num_threads(1)
    for kind in (products, attention):
        for dtype in (torch.bfloat16, torch.float32):
            name, errors = str(dtype).removeprefix("torch."), []
            for what, measured, predicted in kind(dtype):
                errors.append(abs(predicted / measured - 1))
                print(f"{name} {what}: {1e6 * measured:.0f} us, predicted {predicted / measured - 1:+.0%}", flush=True)
            print(f"{name} {kind.__name__}: median error {median(errors):.0%}")


if __name__ == "__main__":
    main()
