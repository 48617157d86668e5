"""The objectives, methods and models under which an option of a question is possible and has an effect."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from ...estimators.models.model_shape import ModelShape
from ...estimators.models.vision_parts import select_parts
from ...estimators.objectives import OBJECTIVES, ObjectiveSpec
from ...estimators.workload import Objective
from .option import Option
from .options import OPTIONS, names_in
from .rollout_options import RolloutOptions


def effective_objectives(name: str) -> tuple[Objective, ...]:
    """The objectives in which an option has an effect; under the others it is refused or ignored. The training methods
    are those of its declaration (`Option.methods`)."""
    return tuple(objective for objective, spec in OBJECTIVES.items() if _has_effect(name, spec))


def _has_effect(name: str, spec: ObjectiveSpec) -> bool:
    if name in names_in(RolloutOptions):
        return spec.rollouts is not None and name not in spec.lacks
    if name == "precompute_ref_log_probs":
        return spec.reference_passes > 0
    # The metrics of TRL's trainers are computed batch by batch.
    return name != "eval_logits" or not spec.trainer


def warnings_of_method(options: Iterable[Option], method: str) -> Iterator[str]:
    """Yield a warning for each of these options that has no effect with a training method."""
    for option in options:
        if option.methods and method not in option.methods:
            yield f"{option.flag} has no effect with --method {method}"


def impossible_words(name: str) -> dict[Objective, list[str]]:
    """Return the words of an option that an objective refuses, by objective; empty for an option that has none."""
    obstacles: Mapping[str, Callable[[str, Objective], bool]] = {
        "loss": lambda word, objective: word not in ("auto", *OBJECTIVES[objective].losses),
        "framework": lambda word, objective: bool(obstacle_to_framework(word, objective)),
    }
    if name not in obstacles:
        return {}
    return {
        objective: refused
        for objective in OBJECTIVES
        if (refused := [word for word in OPTIONS[name].choices if obstacles[name](word, objective)])
    }


_TOOL_ROLLOUTS: Mapping[str, tuple[Objective, ...]] = {
    # LLaMA-Factory ff6d4d1 train/tuner.py: of these only the stage ppo, with a loop of its own (train/ppo/trainer.py).
    "llama-factory": (),
    # axolotl 067b021 utils/schemas/enums.py RLType
    "axolotl": ("grpo",),
    # ms-swift 3602360 swift/arguments/rlhf_args.py rlhf_type; PPO has a loop of its own (swift/rlhf_trainers).
    "ms-swift": ("grpo",),
}
"""Objectives with completions that the tools train by TRL's trainers."""


def obstacle_to_framework(framework: str, objective: Objective) -> str:
    """Return why a value of `--framework` does not train an objective as it is counted, which is by TRL's trainer if it
    has one; "" if it does. `hf` and `deepspeed` say who reads the configuration."""
    spec = OBJECTIVES[objective]
    if framework == "trl" and spec.labels is not None and not spec.trainer:
        return "TRL's trainers have no such loss"
    if spec.rollouts is not None and objective not in _TOOL_ROLLOUTS.get(framework, (objective,)):
        return f"TRL's own trainer is what is counted, and {framework} has another or none"
    return ""


def impossible_options(model: ModelShape) -> frozenset[str]:
    """Return the options that are refused or have no effect with a model, whatever the other options are."""
    lacking = {
        "images_per_sample": model.image is None,
        "max_pixels": model.image is None or not model.image.resized,
        "freeze": not select_parts(model, ["vision-tower"]),  # of a text model only all of it could be frozen
        "experts": not model.is_moe,
    }
    return frozenset(name for name, is_lacking in lacking.items() if is_lacking)
