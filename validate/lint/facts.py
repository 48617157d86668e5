"""The configuration keys of a DeepSpeed version: types, defaults, deprecations and successors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from ...estimators.optimizers import deepspeed_optimizer
from .. import parse_version
from .values import FieldType


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigField:
    """A key of a block that DeepSpeed validates."""

    name: str
    type: FieldType
    alias: str = ""
    """The usual name in files; "" if it is `name`."""
    default: Any = None
    default_known: bool = False
    description: str = ""
    """DeepSpeed's own description; "" if it has none."""
    block: str = ""
    """The path of the block that is the value; "" for a plain value."""
    deprecated: bool = False
    successor: str = ""
    moves: bool = False
    """Whether DeepSpeed assigns a deprecated key's value to the successor and rejects both together."""

    @property
    def usual_name(self) -> str:
        return self.alias or self.name

    @property
    def names(self) -> tuple[str, ...]:
        return (self.alias, self.name) if self.alias else (self.name,)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigBlock:
    """An object of the configuration."""

    path: str
    strict: bool
    """Whether a pydantic class validates the block: DeepSpeed then rejects keys that are not in `fields`."""
    fields: tuple[ConfigField, ...] = ()
    keys: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Key -> DeepSpeed's default, for keys with a plain default."""

    def field(self, key: str) -> ConfigField | None:
        return next((known for known in self.fields if key in known.names), None)

    def names(self) -> tuple[str, ...]:
        """All keys of the block, under their usual names in files."""
        return self.keys + tuple(known.usual_name for known in self.fields)

    def successor_name(self, field: ConfigField) -> str:
        """The usual name of the key that replaces a deprecated one of the block; "" without one."""
        successor = self.field(field.successor)
        return field.successor if successor is None else successor.usual_name

    def qualified_path(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """An argument of an optimizer's or scheduler's class."""

    name: str
    required: bool
    default: Any = None
    """None if there is none, or it is no literal."""


Signatures = Mapping[str, tuple[Parameter, ...]]
"""Class name -> its arguments."""


@dataclass(frozen=True, kw_only=True)
class DeepSpeedFacts:
    """The facts of one DeepSpeed version, stored as JSON (`estimators.json_form`)."""

    version: str
    blocks: tuple[ConfigBlock, ...]
    removed: Mapping[str, str] = field(default_factory=dict)
    """Path of a key that DeepSpeed rejects because its feature was removed -> its message."""
    optimizers: tuple[str, ...] = ()
    """Optimizer names (in lower case) that DeepSpeed implements; other names are classes of torch.optim."""
    optimizer_classes: Signatures = field(default_factory=dict)
    schedulers: Signatures = field(default_factory=dict)
    torch_optimizers: Signatures = field(default_factory=dict)
    torch_schedulers: Signatures = field(default_factory=dict)
    origin: Literal["installed", "bundled"] = "installed"
    """The source of the facts: the installed version, or the version bundled with this package."""

    @cached_property
    def _by_path(self) -> dict[str, ConfigBlock]:
        return {block.path: block for block in self.blocks}

    def block(self, path: str) -> ConfigBlock | None:
        return self._by_path.get(path)

    @cached_property
    def _owners(self) -> dict[str, list[str]]:
        owners: dict[str, list[str]] = {}
        for block in self.blocks:
            for name in {*block.keys, *(name for known in block.fields for name in known.names)}:
                owners.setdefault(name, []).append(block.path)
        return owners

    def owners(self, key: str) -> list[str]:
        """The paths of all blocks that have a key."""
        return self._owners.get(key, [])

    def find_field(self, path: str) -> ConfigField | None:
        """The field at the path of a strict block's key; None if there is none."""
        owner, _, name = path.rpartition(".")
        block = self.block(owner)
        return block.field(name) if block else None

    def knows(self, path: str) -> bool:
        """Whether this version has a key; True for keys of blocks that are not read here."""
        owner, _, name = path.rpartition(".")
        block = self.block(owner)
        return block is None or owner in self.owners(name)

    def default(self, path: str) -> Any:
        """DeepSpeed's default of a key; None if it has no plain one."""
        if known := self.find_field(path):
            return known.default
        owner, _, name = path.rpartition(".")
        block = self.block(owner)
        return block.defaults.get(name) if block is not None else None

    def optimizer_name(self, kind: str) -> str:
        """The name of the optimizer block's type: DeepSpeed's in lower case, a class of torch.optim unchanged."""
        return kind.lower() if kind.lower() in self.optimizers else kind

    def optimizer_parameters(self, name: str, *, on_cpu: bool, torch_adam: bool) -> tuple[Parameter, ...] | None:
        """The arguments that a configuration can pass to the class of an optimizer (`optimizer_name`); None if unknown.
        on_cpu: whether its states are offloaded. torch_adam: whether the block asks for torch's Adam."""
        spec = deepspeed_optimizer(name)
        if spec is None:
            return self.torch_optimizers.get(name)
        cls = (spec.cpu_class if on_cpu else "") or spec.gpu_class
        found = self.optimizer_classes.get(cls) if cls else self.torch_optimizers.get(spec.block_type)
        if not spec.is_adam or found is None:
            return found
        if torch_adam:
            found = self.torch_optimizers.get(spec.block_type, ())
        own = ("torch_adam", "adam_w_mode", "fp32_optimizer_states")
        arguments = (parameter for parameter in found if parameter.name != "adamw_mode")
        return (*arguments, *(Parameter(name=each, required=False) for each in own))

    def drops_auto(self, path: str) -> bool:
        """Whether the class of a block replaces the text "auto" by the default."""
        block = self.block(path)
        return block is not None and block.strict

    def without_autos(self, values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
        """The values of a block as plain DeepSpeed reads them: its classes drop "auto" (runtime/config_utils.py
        `DeepSpeedConfigModel.__init__`), so the key has its default."""
        drops = self.drops_auto(path)
        return {
            name: self.without_autos(value, f"{path}.{name}".lstrip(".")) if isinstance(value, dict) else value
            for name, value in values.items()
            if not (drops and isinstance(value, str) and value == "auto")
        }

    def at_least(self, version: str) -> bool:
        return parse_version(self.version) >= parse_version(version)
