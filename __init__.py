"""Predict which DeepSpeed configurations fit and how fast they run, and recommend the fastest that fits.

    >>> import ds_advise
    >>> answer = ds_advise.advise("Qwen2.5-14B", gpus="2x32GB")
    >>> answer  # prints the answer of the command line; a notebook shows a report
    >>> answer.strategy, answer.tokens_per_second, answer.device_bytes_per_gpu
    >>> answer.save()  # writes ds_config.json

advise: the fastest configuration that fits, for a model or for a training command.
estimate: memory and time of one plan.
read_run, dry_run: memory of a configuration under the real DeepSpeed engine, on a simulated GPU.

Memory is in bytes, time in seconds. Errors of the caller are `DsAdviseError`.
"""

# The root of the repository is this package; its folders are the subpackages (see the table in README.md).

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .estimators.errors import DsAdviseError

if TYPE_CHECKING:
    from .advisor.advise import estimate
    from .advisor.ask import advise
    from .advisor.plan_estimate import PlanEstimate
    from .advisor.question.run import read_run
    from .advisor.results import Answer
    from .probes.dry_run.run import dry_run
    from .probes.run import Run

__version__ = "0.1.0"
__all__ = ["Answer", "DsAdviseError", "PlanEstimate", "Run", "advise", "dry_run", "estimate", "read_run"]

_LAZY = {
    "advise": ".advisor.ask",
    "estimate": ".advisor.advise",
    "Answer": ".advisor.results",
    "PlanEstimate": ".advisor.plan_estimate",
    "read_run": ".advisor.question.run",
    "dry_run": ".probes.dry_run.run",
    "Run": ".probes.run",
}


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    """Import the public names when they are first used: `ds-advise --help` needs none of them."""
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
