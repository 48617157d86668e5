"""Settings of a ds_config as DeepSpeed resolves them: the written value, the value that fills `auto`, or the
default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from ...ds_configs.config_keys import CONFIG_KEYS, acts_at
from ...estimators.hardware import Cluster
from ...estimators.plan import Plan
from ...estimators.workload import Workload
from ...validate.lint.facts import DeepSpeedFacts
from ...validate.lint.rules_types import MICRO, STEPS, TOTAL
from ...validate.lint.values import read_value

Origin = Literal["file", "auto", "derived", "default", "unset"]
"""file: written in the file. auto: written as `auto`; the value fills it. derived: computed from the other batch sizes
and the number of GPUs. default: DeepSpeed's default. unset: no value."""

_ACTIVATORS = {"device": "none", "enabled": False}
"""Keys that enable their block, each with the value that disables the block's other keys."""

_DEEPEST = 8
"""DeepSpeed's deepest key has five names; deeper nesting is treated as one value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A value and its origin. An `auto` of unknown value has the value "auto"."""

    value: Any
    origin: Origin

    @property
    def is_default(self) -> bool:
        """Whether the configuration does not decide it: it has DeepSpeed's default, or no value."""
        return self.origin in ("default", "unset")

    def same_as(self, other: Setting) -> bool:
        """Whether DeepSpeed treats both values as equal: 5e8 equals 500000000, but true does not equal 1. NaN equals
        nothing, not even itself."""
        alike = isinstance(self.value, bool) == isinstance(other.value, bool)
        return alike and bool(self.value == other.value or repr(self.value) == repr(other.value))


UNSET = Setting(value=None, origin="unset")

AUTO = Setting(value="auto", origin="auto")
"""An `auto` of unknown value."""


@dataclass(frozen=True)
class ConfigSettings:
    """The settings of one configuration."""

    config: Mapping[str, Any]
    facts: DeepSpeedFacts
    plan: Plan | None = None
    """`plan`, `workload` and `cluster` supply the values for `auto` and derived defaults; None if model or GPUs are
    unknown."""
    workload: Workload | None = None
    cluster: Cluster | None = None

    def paths(self) -> set[str]:
        """Return every written key under its usual name."""
        return set(self._written)

    @cached_property
    def invalid_blocks(self) -> frozenset[str]:
        """The blocks that have another value than an object, which DeepSpeed refuses."""
        return frozenset(
            path
            for path, value in self._written.items()
            if value is not None and value != "auto" and self.facts.block(path) is not None
        )

    def get_block(self, path: str) -> Setting:
        """Return a whole block as one setting, with its keys by their paths in it."""
        keys = {
            key.removeprefix(f"{path}."): value for key, value in self._written.items() if key.startswith(f"{path}.")
        }
        return Setting(value=keys, origin="file") if keys else self.get(path)

    def get(self, path: str) -> Setting:
        """Return the setting at a path such as `zero_optimization.stage`."""
        if not self.active(path):
            return UNSET
        written = self._written.get(path)
        if written is not None:
            if written != "auto":
                return Setting(value=written, origin="file")
            filled = self._filled(path)
            return Setting(value="auto" if filled is None else filled, origin="auto")
        return self.default(path)

    def active(self, path: str) -> bool:
        """Whether the key's block is enabled. The key that enables a block always counts as active."""
        owner, _, name = path.rpartition(".")
        if not owner or name in _ACTIVATORS:
            return True
        switch = next((name for name in _ACTIVATORS if self._knows(f"{owner}.{name}")), None)
        return switch is None or not self.get(f"{owner}.{switch}").same_as(
            Setting(value=_ACTIVATORS[switch], origin="default")
        )

    def acts(self, path: str) -> bool:
        """Whether the key has an effect at this ZeRO stage; `aio` keys also need an offload to NVMe."""
        if path.startswith("aio."):
            return any(
                self.get(f"zero_optimization.{block}.device").value == "nvme"
                for block in ("offload_optimizer", "offload_param")
            )
        return acts_at(path, self.stage())

    def stage(self) -> int:
        """Return the ZeRO stage."""
        value = self.get("zero_optimization.stage").value
        return value if isinstance(value, int) else 0

    def default(self, path: str) -> Setting:
        """Return the value of a key that is not written: DeepSpeed's default, or what follows from other keys."""
        if path == "zero_optimization.overlap_comm":
            return Setting(value=self.stage() == 3, origin="default")  # None, resolved by the stage
        derived = self._batch().get(path)
        if derived is not None:
            return Setting(value=derived, origin="derived")
        # With one of the two others, DeepSpeed takes 1 (runtime/config.py `_set_batch_related_parameters`).
        if path == STEPS and sum(self._written.get(each) is not None for each in (TOTAL, MICRO)) == 1:
            return Setting(value=1, origin="default")
        owner, _, name = path.rpartition(".")
        default = self._arguments.get(name) if owner == "optimizer.params" else self.facts.default(path)
        return UNSET if default is None else Setting(value=default, origin="default")

    def _filled(self, path: str) -> Any:
        """Return the value that replaces `auto`; None if only the Trainer knows it."""
        known = CONFIG_KEYS.get(path)
        by_hidden_size = known is not None and known.filled_from_hidden_size is not None
        if self.plan is not None:
            values: dict[str, Any] = {**self._batch(), "gradient_clipping": 1.0}
            if self.workload is not None:
                for precision in ("bf16", "fp16"):
                    values[f"{precision}.enabled"] = self.workload.precision == precision
            if known is not None and by_hidden_size:
                values[path] = getattr(self.plan, known.field)
            if path in values:
                return values[path]
        in_zero = path.rpartition(".")[0] == "zero_optimization"
        return self.default(path).value if in_zero and not by_hidden_size and self._knows(path) else None

    def _batch(self) -> dict[str, int]:
        if self.plan is None or self.cluster is None:
            return {}
        micro, accumulation = self.plan.micro_batch_size, self.plan.gradient_accumulation_steps
        return {
            MICRO: micro,
            STEPS: accumulation,
            TOTAL: micro * accumulation * self.cluster.world_size // self.plan.sequence_parallel_size,
        }

    def _knows(self, path: str) -> bool:
        owner, _, name = path.rpartition(".")
        block = self.facts.block(owner)
        return block is not None and block.field(name) is not None

    @cached_property
    def _arguments(self) -> dict[str, Any]:
        """The default of each argument of the optimizer's class."""
        kind = self._written.get("optimizer.type")
        if not isinstance(kind, str):
            return {}
        found = self.facts.optimizer_parameters(
            self.facts.optimizer_name(kind),
            on_cpu=self.get("zero_optimization.offload_optimizer.device").value in ("cpu", "nvme"),
            torch_adam=self._written.get("optimizer.params.torch_adam") is True,
        )
        return {parameter.name: parameter.default for parameter in found or ()}

    @cached_property
    def _written(self) -> dict[str, Any]:
        return dict(_leaves(self.config, "", self.facts))


def _leaves(block: Mapping[str, Any], path: str, facts: DeepSpeedFacts) -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of everything that is not an object, each key under its usual name."""
    known = facts.block(path)
    for key, value in block.items():
        name, field = key, known.field(key) if known is not None else None
        successor = known.field(field.successor) if known is not None and field is not None and field.moves else None
        shown = successor or field
        if not path and key == "bfloat16":
            name = "bf16"
        elif shown is not None:
            name = shown.usual_name
        here = f"{path}.{name}".lstrip(".")
        if successor is not None and successor.block and isinstance(value, bool):
            if value:  # a deprecated switch such as `cpu_offload`, replaced by a block
                yield f"{successor.block}.device", "cpu"
        elif here == "zero_optimization" and isinstance(value, bool):
            yield "zero_optimization.stage", int(value)  # DeepSpeed reads the oldest form this way
        elif isinstance(value, Mapping) and here.count(".") < _DEEPEST:
            yield from _leaves(value, here, facts)
        elif known is not None and known.strict and shown is not None and value != "auto":
            yield here, read_value(shown.type, value)
        else:
            yield here, value
