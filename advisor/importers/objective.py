"""What a training optimizes, by the names that its tool has for it."""

from __future__ import annotations

import re

from ..launch.script_arguments import ScriptArguments

SUPERVISED = "sft"
"""The next token of given samples; pre-training is the same."""

_OPTIONS = ("stage", "rlhf_type", "rl")
"""Options of LLaMA-Factory, ms-swift and axolotl that name it."""

_SUPERVISED = ("sft", "pt", "false", "none")

_KEYS = {
    "grpo": "num_generations reward_funcs num_generations_eval",
    "kto": "desirable_weight undesirable_weight",
    "reward": "center_rewards_coefficient reward_model process_reward_model",
    "dpo": "beta max_prompt_length precompute_ref_log_probs sync_ref_model",
}
"""Options of TRL's and axolotl's configurations that no supervised training has."""

_NAME = re.compile(r"(?:^|[/_.])(dpo|kto|ppo|grpo|orpo|cpo|rloo|gkd|bco|xpo|prm|reward)(?:[/_.]|$)")
"""In the name of a script, a module or a subcommand (`trl dpo`, `rlhf` of ms-swift names an option)."""


def objective_of(arguments: ScriptArguments, target: str) -> str:
    """`sft`, `dpo`, `kto`, `grpo`, `ppo`, `reward` and the like, in small letters.

    target: the script, the module or the tool's subcommand; "" for a configuration file.
    """
    named = arguments.text(*_OPTIONS)
    if named is not None and named.isalpha():
        name = named.lower()
        return SUPERVISED if name in _SUPERVISED else {"rm": "reward"}.get(name, name[:20])
    if match := _NAME.search(target):
        return match[1]
    given = (name for name, keys in _KEYS.items() for key in keys.split() if arguments.flag(key))
    return next(given, "dpo" if target == "rlhf" else SUPERVISED)  # ms-swift's default
