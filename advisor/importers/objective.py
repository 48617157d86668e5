"""What a training optimizes, by the names that its tool has for it."""

from __future__ import annotations

import re

from ...estimators.workload import NEXT_TOKEN
from ..launch.script_arguments import ScriptArguments

_OPTIONS = ("stage", "rlhf_type", "rl")
"""Options of LLaMA-Factory, ms-swift and axolotl that name it."""

_NAMES = {"sft": NEXT_TOKEN, "pt": NEXT_TOKEN, "false": NEXT_TOKEN, "none": NEXT_TOKEN, "rm": "reward", "ipo": "dpo"}
"""Their values with another name here."""

_KEYS = {
    "grpo": "num_generations reward_funcs num_generations_eval",
    "kto": "desirable_weight undesirable_weight",
    "reward": "center_rewards_coefficient reward_model process_reward_model",
    "dpo": "beta max_prompt_length precompute_ref_log_probs sync_ref_model",
}
"""Options of TRL's and axolotl's configurations that no supervised training has."""

_NAME = re.compile(r"(?:^|[/_.])(dpo|kto|ppo|grpo|orpo|simpo|cpo|rloo|gkd|bco|xpo|prm|rm|reward)(?:[/_.]|$)")
"""In the name of a script, a module or a subcommand (`trl dpo`, `rlhf` of ms-swift names an option)."""


def objective_of(arguments: ScriptArguments, target: str, path: str) -> str:
    """A key of `estimators.objectives.OBJECTIVES`, or another tool's word in small letters, such as `grpo` or `ppo`.

    target: the script, the module or the tool's subcommand; "" for a configuration file. path: of the file.
    """
    named = arguments.text(*_OPTIONS)
    if named is not None and named.isalpha():
        preference = arguments.text("pref_loss") if named == "dpo" else None  # of LLaMA-Factory
        return preference if preference in ("orpo", "simpo") else _NAMES.get(named.lower(), named.lower()[:20])
    if match := _NAME.search(target):
        return _NAMES.get(match[1], match[1])
    given = next((name for name, keys in _KEYS.items() for key in keys.split() if arguments.flag(key)), NEXT_TOKEN)
    if given == "dpo" and (match := _NAME.search(path)):  # ORPO's and CPO's files have the same options
        return match[1]
    return "dpo" if given == NEXT_TOKEN and target == "rlhf" else given  # ms-swift's default
