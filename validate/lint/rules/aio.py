"""DS45x: asynchronous I/O, which moves swapped tensors."""

from __future__ import annotations

from collections.abc import Iterator

from ..linted_config import LintedConfig, shown
from ..rule import Hit, Rules, hit
from .examples import NVME, plain, zero

rules = Rules()

_SOURCE = "runtime/swap_tensor/aio_config.py"
_SWAPS = zero(3, offload_optimizer=NVME)


@rules.warning(
    "DS451 aio.thread_count, which is an old name",
    why="the key's name is intra_op_parallelism; under the old one it is ignored",
    fix="write intra_op_parallelism",
    source=_SOURCE,
    bad=plain(zero_optimization=_SWAPS, aio={"thread_count": 8}),
    good=plain(zero_optimization=_SWAPS, aio={"intra_op_parallelism": 8, "queue_depth": 32}),
)
def thread_count(config: LintedConfig) -> Iterator[Hit]:
    if config.has("aio.thread_count"):
        yield hit("aio.thread_count", "thread_count is ignored")


@rules.advice(
    "DS452 aio without NVMe",
    why="only swapping to NVMe reads these settings",
    fix="remove the block",
    source="runtime/zero/stage3.py, runtime/swap_tensor/",
    bad=plain(zero_optimization=zero(2), aio={"queue_depth": 32}),
    good=plain(zero_optimization=_SWAPS, aio={"queue_depth": 32, "intra_op_parallelism": 8}),
)
def unused(config: LintedConfig) -> Iterator[Hit]:
    if config.block("aio") and not _swaps(config):
        yield hit("aio", "nothing is swapped to NVMe")


@rules.advice(
    "DS453 NVMe with one thread",
    why="DeepSpeed's defaults, 8 requests in flight from one thread, leave a modern drive idle",
    fix='set "intra_op_parallelism": 8 and "queue_depth": 32, or what ds_nvme_tune finds',
    source=_SOURCE,
    bad=plain(zero_optimization=_SWAPS),
    good=plain(zero_optimization=_SWAPS, aio={"intra_op_parallelism": 8, "queue_depth": 32}),
)
def idle_drive(config: LintedConfig) -> Iterator[Hit]:
    threads = config.get("aio.intra_op_parallelism")
    if _swaps(config) and threads in (None, 1):
        yield hit("aio.intra_op_parallelism", "one thread reads and writes")


@rules.error(
    "DS454 aio settings that are not numbers",
    why="DeepSpeed computes buffer sizes with them and hands them to the I/O library",
    fix="write a whole number above zero",
    source="runtime/swap_tensor/partitioned_param_swapper.py _configure_aio",
    bad=plain(zero_optimization=_SWAPS, aio={"block_size": "1M", "intra_op_parallelism": 8}),
    good=plain(zero_optimization=_SWAPS, aio={"block_size": 1048576, "intra_op_parallelism": 8}),
)
def no_number(config: LintedConfig) -> Iterator[Hit]:
    for name in ("block_size", "queue_depth", "intra_op_parallelism"):
        value = config.get(f"aio.{name}")
        wrong = value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1)
        if wrong and _swaps(config):
            yield hit(f"aio.{name}", f"{name} is {shown(value)}")


def _swaps(config: LintedConfig) -> bool:
    return config.stage == 3 and "nvme" in (config.offload("optimizer"), config.offload("param"))
