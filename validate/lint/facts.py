"""What a DeepSpeed version knows of a configuration: its keys, their types, defaults, deprecations and successors."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from ...probes.store_path import store_path

_BUNDLED = Path(__file__).with_name("bundled_facts.json")
_FORM = 1
"""Version of the cached file's form."""

_CLASSES = ("optimizer_classes", "schedulers", "torch_optimizers", "torch_schedulers")


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldType:
    """A field's type.

    name: bool, int, float, str, path, dict, any; unwritable (an object that no file can hold); list (of the one in
    `parts`); union (of `parts`); choice (an enumeration of `choices`, whose values are converted); literal (one of
    `choices`).
    """

    name: str
    optional: bool = False
    choices: tuple[Any, ...] = ()
    parts: tuple[FieldType, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigField:
    """A key of a block that DeepSpeed checks.

    name: its own name; alias: the usual name in files, "" for the same.
    bounds: (sign, number) pairs: "gt", "ge", "lt", "le".
    block:  the path of the block that is its value, "" for a plain value.
    successor: of a deprecated key. moves: DeepSpeed gives the successor its value, and refuses both together.
    """

    name: str
    type: FieldType
    alias: str = ""
    default: Any = None
    default_known: bool = False
    bounds: tuple[tuple[str, float], ...] = ()
    block: str = ""
    deprecated: bool = False
    successor: str = ""
    moves: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigBlock:
    """An object of the configuration. strict: DeepSpeed refuses keys that are not in `fields` (a pydantic class)."""

    path: str
    strict: bool
    fields: tuple[ConfigField, ...] = ()
    keys: tuple[str, ...] = ()

    def field(self, key: str) -> ConfigField | None:
        """By its name or its alias."""
        return next((found for found in self.fields if key in (found.name, found.alias)), None)

    def names(self) -> tuple[str, ...]:
        """Every key that may stand in it, under the name that files use."""
        return self.keys + tuple(found.alias or found.name for found in self.fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """An argument of an optimizer's or scheduler's class."""

    name: str
    required: bool


Signatures = Mapping[str, tuple[Parameter, ...]]


@dataclass(frozen=True, kw_only=True)
class DeepSpeedFacts:
    """What a version knows.

    removed:    path of a key that it refuses, because the feature is gone -> its words.
    optimizers: names (in lower case) for which DeepSpeed has code; other names are classes of torch.optim.
    optimizer_classes, schedulers, torch_optimizers, torch_schedulers: classes with their arguments.
    origin:     whose facts: the installed version's, or those of the version that this package carries.
    """

    version: str
    blocks: tuple[ConfigBlock, ...]
    removed: Mapping[str, str] = field(default_factory=dict)
    optimizers: tuple[str, ...] = ()
    optimizer_classes: Signatures = field(default_factory=dict)
    schedulers: Signatures = field(default_factory=dict)
    torch_optimizers: Signatures = field(default_factory=dict)
    torch_schedulers: Signatures = field(default_factory=dict)
    origin: Literal["installed", "bundled"] = "installed"

    @cached_property
    def _by_path(self) -> dict[str, ConfigBlock]:
        return {block.path: block for block in self.blocks}

    def block(self, path: str) -> ConfigBlock | None:
        return self._by_path.get(path)

    @cached_property
    def _places(self) -> dict[str, list[str]]:
        places: dict[str, list[str]] = {}
        for block in self.blocks:
            names = {*block.keys, *(name for found in block.fields for name in (found.name, found.alias) if name)}
            for name in names:
                places.setdefault(name, []).append(block.path)
        return places

    def places(self, key: str) -> list[str]:
        """The paths of all blocks that know a key."""
        return self._places.get(key, [])

    def default(self, path: str) -> Any:
        """DeepSpeed's default of a key in a strict block, None where it has no plain value."""
        owner, _, name = path.rpartition(".")
        block = self.block(owner)
        found = block.field(name) if block else None
        return found.default if found is not None else None

    def at_least(self, version: str) -> bool:
        return _numbers(self.version) >= _numbers(version)


def installed_version(package: str = "deepspeed") -> str | None:
    """An installed package's version, without importing it; None without one."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def load_facts() -> DeepSpeedFacts:
    """The installed version's facts, from this user's cache or from its sources; without one, the bundled version's.

    A cached file that cannot be read is written anew; a cache that cannot be written is done without.
    """
    version = installed_version()
    folder = source_folder("deepspeed") if version else None
    if version is None or folder is None:
        return from_json(json.loads(_BUNDLED.read_text(encoding="utf-8")), origin="bundled")
    both = f"deepspeed-{version}-torch-{installed_version('torch')}"  # whose optimizers are among the facts
    cached = store_path().with_name(f"{_file_name(both)}-facts-{_FORM}.json")
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        facts = from_json(json.loads(cached.read_text(encoding="utf-8")), origin="installed")
        if facts.version == version:
            return facts
    from .read_facts import read_facts

    facts = read_facts(folder, version, source_folder("torch"))
    with contextlib.suppress(OSError):
        _write(cached, to_json(facts))
    return facts


def to_json(facts: DeepSpeedFacts) -> dict[str, Any]:
    """JSON-ready; defaults that are left out are those of the dataclasses."""
    form = asdict(facts)
    form.pop("origin")
    return form


def from_json(form: Mapping[str, Any], *, origin: Literal["installed", "bundled"]) -> DeepSpeedFacts:
    """The reverse of `to_json`. Raises KeyError, TypeError or ValueError for another form."""
    blocks = tuple(
        ConfigBlock(
            path=block["path"],
            strict=block["strict"],
            keys=tuple(block["keys"]),
            fields=tuple(_field(found) for found in block["fields"]),
        )
        for block in form["blocks"]
    )
    return DeepSpeedFacts(
        version=str(form["version"]),
        blocks=blocks,
        removed=dict(form["removed"]),
        origin=origin,
        optimizers=tuple(form["optimizers"]),
        **{name: _signatures(form[name]) for name in _CLASSES},
    )


def _signatures(form: Mapping[str, Any]) -> Signatures:
    return {
        name: tuple(Parameter(name=str(found["name"]), required=bool(found["required"])) for found in parameters)
        for name, parameters in form.items()
    }


def _field(form: Mapping[str, Any]) -> ConfigField:
    bounds = tuple((str(sign), float(number)) for sign, number in form["bounds"])
    return ConfigField(**{**form, "type": _type(form["type"]), "bounds": bounds})


def _type(form: Mapping[str, Any]) -> FieldType:
    return FieldType(
        name=form["name"],
        optional=form["optional"],
        choices=tuple(form["choices"]),
        parts=tuple(_type(part) for part in form["parts"]),
    )


def source_folder(package: str) -> Path | None:
    """Where an installed package's sources are, without importing it."""
    spec = find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def _file_name(version: str) -> str:
    return "".join(char if char.isalnum() or char in ".+-" else "_" for char in version)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".")[:3] if part.isdigit())


def _write(target: Path, form: dict[str, Any]) -> None:
    """Beside the target and renamed, because two commands may read it at once."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=target.parent, suffix=".tmp")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(form, file)
    Path(temporary).replace(target)
