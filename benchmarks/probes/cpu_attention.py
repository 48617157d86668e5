"""Torch's flash attention on one thread of this machine's CPU, against what `estimators/time/roofline.py` takes of it.

    python -m benchmarks.probes.cpu_attention

Rates are relative to products in fp32, timed in the same process; times are the process's, so other work disturbs
little.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from ds_advise.estimators.time.roofline import CPU_ATTENTION

_SHAPES = ((4, 128), (12, 64))
_TOKENS = (128, 512, 2048)


def main() -> None:
    torch.set_num_threads(1)
    square = torch.randn(1024, 1024)
    products = 2 * 1024**3 / _seconds(lambda: square @ square)
    print(f"products in fp32: {products / 1e9:.0f} GFLOP/s")
    print("| type | heads x width | tokens | pass | measured | taken |\n|---|---|---|---|---|---|")
    for dtype in (torch.bfloat16, torch.float32):
        for heads, width in _SHAPES:
            for tokens in _TOKENS:
                forward, backward = _passes(dtype, heads, width, tokens)
                flops = 2 * heads * width * tokens * (tokens + 1)
                for name, seconds, count in (("forward", forward, flops), ("backward", backward, 2.5 * flops)):
                    sixteen = name == "backward" and dtype != torch.float32
                    share, half = CPU_ATTENTION["backward in 16 bits" if sixteen else name]
                    taken = share * tokens / (tokens + half)
                    kind = str(dtype).removeprefix("torch.")
                    measured = count / seconds / products
                    print(f"| {kind} | {heads} x {width} | {tokens} | {name} | {measured:.2f} | {taken:.2f} |")


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
    """The quickest of five."""
    taken = []
    for _ in range(5):
        began = time.process_time()
        call()
        taken.append(time.process_time() - began)
    return min(taken)


if __name__ == "__main__":
    main()
