"""How long the process is blocked in collectives, on a backend that blocks the process (gloo)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

_COLLECTIVES = """all_reduce reduce broadcast barrier all_gather all_gather_into_tensor all_gather_object reduce_scatter
    reduce_scatter_tensor all_to_all all_to_all_single scatter gather"""


class CollectiveTime:
    """Counts from `install` on; `seconds` is the sum so far. Nested calls count once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0

    def install(self) -> None:
        """Wrap torch's collectives and the wait for those that were started; before DeepSpeed is imported."""
        import torch.distributed as dist

        for name in _COLLECTIVES.split():
            setattr(dist, name, self._timed(getattr(dist, name)))
        work: Any = dist.Work
        work.wait = self._timed(work.wait)

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            self._depth += 1
            try:
                return call(*args, **kwargs)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.seconds += time.perf_counter() - started

        return timed
