"""A layer's matrix products on one thread of this machine's CPU, against `estimators/time/roofline.py`.

    python -m benchmarks.probes.cpu_products

Every product finds its operands in memory, as in training, where the other layers' were there before: it takes the next
of so many that no cache holds them. The large product and the sum of two tensors that the rates are read off are
timed in the same process. Times are the process's, so other work disturbs little.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from statistics import median

import torch
from ds_advise.estimators.time.roofline import MEMORY_SHARE, product_s

_SHAPES = (
    (128, 512, 512),
    (128, 512, 2048),
    (128, 2048, 512),
    (512, 768, 768),
    (512, 768, 2048),
    (128, 512, 16),
    (512, 768, 16),
    (512, 16, 2048),
)
_LARGE = 1024
_CACHE_BYTES = 64 * 2**20


def main() -> None:
    torch.set_num_threads(1)
    print("| type | rows x inner x columns | pass | measured us | taken |\n|---|---|---|---:|---:|")
    for dtype in (torch.bfloat16, torch.float32):
        kind, (rate, bandwidth) = str(dtype).removeprefix("torch."), _rates(dtype)
        errors: list[float] = []
        for rows, inner, columns in _SHAPES:
            for name, shape, turned in (
                ("forward", (rows, inner, columns), (False, True)),
                ("input's gradient", (rows, columns, inner), (False, False)),
                ("weight's gradient", (columns, rows, inner), (True, False)),
            ):
                measured = _product(dtype, shape, turned)
                taken = product_s(*shape, copies=1, rate=rate, bandwidth=bandwidth, element=dtype.itemsize, is_cpu=True)
                errors.append(taken / measured - 1)
                sizes = f"{rows} x {inner} x {columns}"
                print(f"| {kind} | {sizes} | {name} | {1e6 * measured:.0f} | {errors[-1]:+.0%} |")
        print(f"| {kind}, median of sizes | | | | {median(map(abs, errors)):.0%} |")


def _rates(dtype: torch.dtype) -> tuple[float, float]:
    """FLOP/s of the large product; bytes per second of memory, as operations get them."""
    large = _product(dtype, (_LARGE,) * 3, (False, False))
    left, right, out = (torch.ones(_CACHE_BYTES // 4) for _ in range(3))
    summed = _seconds(lambda: torch.add(left, right, out=out))
    return 2 * _LARGE**3 / large, MEMORY_SHARE * 3 * left.nbytes / summed


def _product(dtype: torch.dtype, shape: tuple[int, int, int], turned: tuple[bool, bool]) -> float:
    """Seconds of (rows x inner) by (inner x columns); `turned`: the operand is stored the other way round."""
    rows, inner, columns = shape
    pairs = max(1, _CACHE_BYTES // (dtype.itemsize * inner * (rows + columns)))
    lefts, rights = (
        [_operand(height, width, dtype, other) for _ in range(pairs)]
        for height, width, other in ((rows, inner, turned[0]), (inner, columns, turned[1]))
    )
    turn = count()

    def product() -> torch.Tensor:
        which = next(turn) % pairs
        return lefts[which] @ rights[which]

    return _seconds(product)


def _operand(height: int, width: int, dtype: torch.dtype, turned: bool) -> torch.Tensor:
    return torch.randn(width, height).to(dtype).t() if turned else torch.randn(height, width).to(dtype)


def _seconds(call: Callable[[], object]) -> float:
    """The median of 21."""
    taken = []
    for _ in range(21):
        began = time.process_time()
        call()
        taken.append(time.process_time() - began)
    return median(taken)


if __name__ == "__main__":
    main()
