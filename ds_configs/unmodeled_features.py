"""Features of DeepSpeed that a plan does not hold: recognised, so that nothing is left out in silence.

Source: deepspeed 0.19.8 runtime/zenflow/, runtime/superoffload/, runtime/engine.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from .read import autoep_size_in, is_true

FIRST_WITHOUT_AUTOEP = (5, 23)
"""transformers from which on DeepSpeed 0.19.8 cannot initialize AutoEP: it calls `registry.get(key, default)`
(module_inject/auto_ep_presets/base.py), which from 5.23.0 on takes no default (utils/output_capturing.py). 5.0 and 5.8
were seen to train; up to 5.22.0 the registry is a plain dict."""


class BeyondPlan(NamedTuple):
    """A feature that is on."""

    key: str
    """Where it stands, with dots."""
    name: str
    predicted: str
    """What a prediction is of instead, as a sentence."""
    not_dry_run: str = ""
    """Why a dry run cannot run it, as a sentence; empty where it can."""


def beyond_plans(config: Mapping[str, Any]) -> Iterator[BeyondPlan]:
    """The features of a ds_config that predictions of memory and time leave out."""
    zero = _block(config, "zero_optimization")
    if zero.get("zenflow") is not None:
        yield BeyondPlan(
            "zero_optimization.zenflow",
            "ZenFlow",
            "predictions are of the plain offload: neither the states of the chosen columns, which stay on the GPU, "
            "nor the steps that the host leaves out or hides are counted",
            "ZenFlow chooses columns by their gradients' values, which a dry run does not have",
        )
    if _block(zero, "offload_optimizer").get("super_offload") is True and zero.get("stage") == 3:
        yield BeyondPlan(
            "zero_optimization.offload_optimizer.super_offload",
            "SuperOffload",
            "predictions are of the plain offload: the optimizer's own process and what it hides are not counted",
            "SuperOffload asks for CUDA by name, and a dry run has none",
        )
    if _block(config, "compile").get("deepcompile") is True:
        yield BeyondPlan(
            "compile.deepcompile",
            "DeepCompile",
            "predictions and dry runs are of the model as it is without engine.compile(): fused kernels and "
            "DeepCompile's passes are not counted",
        )
    if is_true(_block(config, "torch_autocast").get("enabled")):
        yield BeyondPlan(
            "torch_autocast",
            "torch_autocast",
            "predictions are of a training in the weights' own type: neither activations nor reduced gradients of the "
            "lower type are counted",
            "the simulated GPU knows none of autocast's casts, and would count activations of the weights' type",
        )
    experts = _block(config, "expert_parallel")
    if experts.get("enabled") is True and autoep_size_in(config) == 1:
        yield BeyondPlan(
            "expert_parallel",
            "AutoEP",
            "predictions are of experts that ZeRO shards like all weights: neither experts that stay on their ranks "
            "nor the all-to-alls of tokens are counted",
        )


def _block(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = values.get(name)
    return found if isinstance(found, Mapping) else {}
