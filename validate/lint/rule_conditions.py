"""Checks of a key's value: `at`, and its conditions.

    at("zero_optimization.reduce_scatter", ~off & per_matrix & stages(3), "gradients are scattered")

reports the key unless it is off, for an optimizer that needs whole matrices, at stage 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .linted_config import LintedConfig
from .rule import RuleCheck, Severity, Violation, violation
from .values import json_text


@dataclass(frozen=True)
class Condition:
    """A predicate of a configuration and the key that a rule checks; `&` and `|` join two, `~` negates one."""

    holds: Callable[[LintedConfig, str], bool]

    def __and__(self, other: Condition) -> Condition:
        return Condition(lambda config, path: self.holds(config, path) and other.holds(config, path))

    def __or__(self, other: Condition) -> Condition:
        return Condition(lambda config, path: self.holds(config, path) or other.holds(config, path))

    def __invert__(self) -> Condition:
        return Condition(lambda config, path: not self.holds(config, path))


def that(test: Callable[[LintedConfig], bool]) -> Condition:
    """A condition of the configuration alone."""
    return Condition(lambda config, _: test(config))


always = that(lambda _: True)
present = Condition(lambda config, path: config.has(path))
null = Condition(lambda config, path: config.get(path) is None)
"""The key is absent or null."""
truthy = Condition(lambda config, path: bool(config.get(path)))
"""The key has a value that Python takes as true, as keys that no class validates are read."""
on = Condition(lambda config, path: config.flag(path))
off = Condition(lambda config, path: config.off(path))
for_trainer = that(lambda config: config.framework == "hf")
fp16 = that(lambda config: config.fp16)
bf16 = that(lambda config: config.bf16)
decided = ~for_trainer | that(
    lambda config: not config.precision_is_auto and any(map(config.has, ("fp16.enabled", "bf16.enabled")))
)
"""The file decides the precision, not the Trainer or accelerate."""
known_optimizer = that(lambda config: config.optimizer in (*config.facts.optimizers, *config.facts.torch_optimizers))
"""The optimizer block's type is DeepSpeed's or torch's."""
has_adam = that(lambda config: config.has_adam)
lamb = that(lambda config: config.optimizer == "lamb")
has_betas = has_adam | lamb | that(lambda config: config.optimizer == "lion")
"""The optimizer's step takes two betas (ops/adam, ops/lamb and ops/lion: `beta1, beta2 = group['betas']`)."""
may_have_adam = has_adam | that(lambda config: not config.optimizer)
"""The optimizer is DeepSpeed's Adam (optimizer block), or the Trainer's own AdamW (no block)."""
torch_adam = that(lambda config: config.torch_adam)
cpu_adam = may_have_adam & ~torch_adam
"""Under offload the optimizer is DeepSpeed's CPU Adam."""
per_matrix = that(lambda config: config.optimizer_spec is not None and config.optimizer_spec.per_matrix)
offloaded = that(lambda config: config.offload("optimizer") != "none")
swaps = that(lambda config: config.stage == 3 and "nvme" in (config.offload("optimizer"), config.offload("param")))
to_nvme = Condition(lambda config, path: config.offload(_offload_name(path)) == "nvme")
"""The key's offload block is on NVMe."""
in_use = Condition(lambda config, path: config.offload(_offload_name(path)) != "none")
"""The key's offload block offloads."""
splits_ranks_unevenly = Condition(
    lambda config, path: (
        (size := config.positive(path)) > 1 and config.world_size is not None and config.world_size % size > 0
    )
)
"""The value is a group size that does not divide the number of GPUs."""


def _offload_name(path: str) -> str:
    return path.split(".")[1].removeprefix("offload_")


def stages(*wanted: int) -> Condition:
    """The ZeRO stage is one of these. A number that is no stage has an error of its own and is none of them."""
    return that(lambda config: config.existing_stage in wanted)


def scheduler(*types: str) -> Condition:
    """The scheduler block's type is one of these."""
    return that(lambda config: config.scheduler in types)


def equals(*values: Any) -> Condition:
    return Condition(lambda config, path: config.get(path) in values)


def number(test: Callable[[float], bool]) -> Condition:
    """The value is a number that satisfies the test."""

    def holds(config: LintedConfig, path: str) -> bool:
        found = config.number(path)
        return found is not None and test(found)

    return Condition(holds)


def is_on(other: str) -> Condition:
    return that(lambda config: config.flag(other))


def is_off(other: str) -> Condition:
    return that(lambda config: config.off(other))


def is_missing(other: str) -> Condition:
    """Another key is absent or null."""
    return that(lambda config: config.get(other) is None)


@dataclass(frozen=True)
class KeyCheck:
    """A check of keys. what: the effect; "" if it depends on the values."""

    check: RuleCheck
    paths: tuple[str, ...]
    what: str

    def __call__(self, config: LintedConfig) -> Iterator[Violation]:
        return self.check(config)


def key_name(path: str) -> str:
    return path.rpartition(".")[2]


def at(
    paths: str | Sequence[str],
    when: Condition,
    what: str | Callable[[LintedConfig, str], str] = lambda config, path: (
        f"{key_name(path)} is {json_text(config.get(path)) if config.has(path) else 'missing'}"
    ),
    *,
    severity: Severity | None = None,
    why: str = "",
    fix: str = "",
) -> KeyCheck:
    """A check that reports each key that satisfies the condition.

    what:     the effect, or a function of the configuration and the key's path that returns it.
    severity: None for the rule's.
    why:      the case of the rule's reason; "" for the whole.
    fix:      the fix of this case; "" for the rule's.
    """

    keys = (paths,) if isinstance(paths, str) else (*paths,)

    def check(config: LintedConfig) -> Iterator[Violation]:
        for path in keys:
            if when.holds(config, path):
                effect = what if isinstance(what, str) else what(config, path)
                yield violation(path, effect, severity=severity, why=why, fix=fix)

    return KeyCheck(check, keys, what if isinstance(what, str) else "")
