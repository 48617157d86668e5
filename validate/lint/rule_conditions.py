"""Checks of a key's value: `at`, and its conditions.

    at("zero_optimization.legacy_stage1", on & stages(1, 2, 3))

reports the key if it is on at one of these stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .linted_config import LintedConfig, shown
from .rule import RuleCheck, Violation, violation

_DTYPE_NAMES = {
    "fp16": ("fp16", "float16", "half", "torch.float16"),
    "fp32": ("fp32", "float32", "float", "torch.float32"),
    "bf16": ("bf16", "bfloat16", "torch.bfloat16"),
    "int8": ("int8", "torch.int8"),
}
DTYPES = {name: dtype for dtype, names in _DTYPE_NAMES.items() for name in names}
"""Dtype names of `runtime/config.py DtypeEnum`."""


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


given = Condition(lambda config, path: config.has(path))
not_null = Condition(lambda config, path: config.get(path) is not None)
empty = Condition(lambda config, path: not config.get(path))
on = Condition(lambda config, path: config.flag(path))
off = Condition(lambda config, path: config.off(path))
any_set = Condition(lambda config, path: any(config.block(path).values()))
without_type = Condition(lambda config, path: isinstance(config.get(path), dict) and config.get(f"{path}.type") is None)
for_trainer = Condition(lambda config, _: config.framework == "hf")
fp16 = Condition(lambda config, _: config.fp16)
bf16 = Condition(lambda config, _: config.bf16)
accumulates_in_fp32 = Condition(lambda config, _: DTYPES.get(config.text("data_types.grad_accum_dtype")) == "fp32")
has_adam = Condition(lambda config, _: config.has_adam)
may_have_adam = Condition(lambda config, _: config.may_have_adam)
torch_adam = Condition(lambda config, _: config.flag("optimizer.params.torch_adam"))
per_matrix = Condition(lambda config, _: config.optimizer_spec is not None and config.optimizer_spec.per_matrix)
offloaded = Condition(lambda config, _: config.offload("optimizer") != "none")
states_in_ram = Condition(lambda config, _: config.offload("optimizer") == "cpu")
param_on_nvme = Condition(lambda config, _: config.offload("param") == "nvme")
swaps = Condition(
    lambda config, _: config.stage == 3 and "nvme" in (config.offload("optimizer"), config.offload("param"))
)
to_nvme = Condition(lambda config, path: config.offload(_offload_of(path)) == "nvme")
"""The key's offload block is on NVMe."""

in_use = Condition(lambda config, path: config.offload(_offload_of(path)) != "none")
"""The key's offload block offloads."""

one_node = Condition(lambda config, _: config.cluster is not None and config.cluster.nodes == 1)


splits_ranks_unevenly = Condition(
    lambda config, path: (
        (size := config.number(path) or 0) > 1
        and not size % 1
        and config.world_size is not None
        and config.world_size % size > 0
    )
)
"""The value is a group size that does not divide the number of GPUs."""


def _offload_of(path: str) -> str:
    return path.split(".")[1].removeprefix("offload_")


def stages(*wanted: int) -> Condition:
    return Condition(lambda config, _: config.stage in wanted)


def equals(*values: Any) -> Condition:
    return Condition(lambda config, path: config.get(path) in values)


def number(test: Callable[[float], bool]) -> Condition:
    """The value is a number that satisfies the test."""

    def holds(config: LintedConfig, path: str) -> bool:
        found = config.number(path)
        return found is not None and test(found)

    return Condition(holds)


def is_on(other: str) -> Condition:
    """Another key is on."""
    return Condition(lambda config, _: config.flag(other))


def is_off(other: str) -> Condition:
    """Another key is off."""
    return Condition(lambda config, _: config.off(other))


def is_missing(other: str) -> Condition:
    """Another key is absent or null."""
    return Condition(lambda config, _: config.get(other) is None)


def at(paths: str | Sequence[str], when: Condition, what: str = "{name} is {value}", /, **more: object) -> RuleCheck:
    """A check that reports each key that satisfies the condition.

    what:   a sentence with {name}, the key's last name; {block}, the name before it; {value}, its value as JSON;
        {number}, its value as a number; {stage}, {optimizer} and {ranks}, the number of GPUs; and the fields in `more`,
        which may be functions of the configuration.
    """

    def check(config: LintedConfig) -> Iterator[Violation]:
        for path in (paths,) if isinstance(paths, str) else paths:
            if when.holds(config, path):
                number = config.number(path)
                words: dict[str, Any] = {
                    "name": path.rpartition(".")[2],
                    "block": path.rpartition(".")[0].rpartition(".")[2],
                    "value": shown(config.get(path)),
                    "number": "" if number is None else f"{number:g}",
                    "stage": config.stage,
                    "optimizer": config.optimizer,
                    "ranks": config.world_size,
                }
                words |= {name: value(config) if callable(value) else value for name, value in more.items()}
                yield violation(path, what, **words)

    return check
