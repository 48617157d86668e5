"""Options of rollouts in the arguments of TRL's GRPOConfig and RLOOConfig."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ...estimators.objectives import OBJECTIVES
from ...estimators.rollouts import PROMPT_LEN
from .script_arguments import ScriptArguments

_COUNTS = (
    "num_generations",
    "max_completion_length",
    "steps_per_generation",
    "num_iterations",
    "vllm_tensor_parallel_size",
)
_SHARES = ("beta", "vllm_gpu_memory_utilization")


def rollout_options(arguments: ScriptArguments, objective: str | None) -> dict[str, Any]:
    """What the arguments decide on; nothing for an objective without completions. The sequence has `max_prompt_length`
    tokens, which TRL had until 0.27, or those that are assumed, and the completion's. GPUs of a server are not told:
    one is assumed."""
    spec = OBJECTIVES.get(objective or "")  # type: ignore[call-overload]
    if spec is None or spec.rollouts is None:
        return {}
    found: dict[str, Any] = {name: count for name in _COUNTS if (count := arguments.number(name)) is not None}
    for name in _SHARES:
        with suppress(ValueError):
            if (text := arguments.text(name)) is not None:
                found[name] = float(text)
    found["rollout"] = "generate"
    if arguments.flag("use_vllm"):
        found["rollout"] = f"vllm-{arguments.text('vllm_mode') or 'colocate'}"
    if found["rollout"] == "vllm-server":
        found["server_gpus"] = found.pop("vllm_tensor_parallel_size", 1)  # that of the training is for colocation
    found["vllm_enable_sleep_mode"] = "on" if arguments.flag("vllm_enable_sleep_mode") else "off"
    if arguments.flag("ds3_gather_for_generation") is False:
        found["ds3_gather_for_generation"] = "off"
    prompt = arguments.number("max_prompt_length") or PROMPT_LEN
    completion = found.get("max_completion_length") or spec.rollouts.max_completion_length
    return found | {"seq_len": prompt + completion}
