"""The configuration that rules check: as DeepSpeed receives it, with the known facts of the version, the model and the
GPUs.

`problem` decides by pydantic's rules whether DeepSpeed accepts a value, without importing pydantic, which browsers
lack. The accessors of `LintedConfig` return the declared type whatever the file holds; other rules report values of a
wrong type.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property, reduce
from typing import Any, NamedTuple

from ...ds_configs.read import is_true, plan_from_ds_config
from ...estimators.errors import ConfigFileError
from ...estimators.hardware import Cluster
from ...estimators.models.model_shape import ModelShape
from ...estimators.optimizers import OptimizerSpec, optimizer_of_type
from ...estimators.phrase import Phrase, named, phrase
from ...estimators.plan import Plan
from ...estimators.workload import Framework, Workload
from .document import Document
from .facts import ConfigField, DeepSpeedFacts, FieldType

_SIGNS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}

_WORDS: Mapping[str, str] = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "path": "a path",
    "list": "a list",
    "dict": "an object",
}
"""Name of a type -> its description."""


def problem(field: ConfigField, value: Any) -> Phrase | None:
    """Why DeepSpeed rejects a value; None if it accepts it. value: never "auto", which DeepSpeed drops before
    validation."""
    try:
        taken = _taken(field.type, value)
    except ValueError:
        return phrase("is {value}, which is not {wanted}", value=shown(value), wanted=wanted(field.type))
    if field.bounds and isinstance(taken, int | float):
        for sign, bound in field.bounds:
            holds = {"gt": taken > bound, "ge": taken >= bound, "lt": taken < bound, "le": taken <= bound}
            if not holds[sign]:
                fields = {"value": shown(value), "sign": named(_SIGNS[sign]), "bound": f"{bound:g}"}
                return phrase("is {value}, but must be {sign} {bound}", **fields)
    return None


def is_converted_text(field: ConfigField, value: Any) -> bool:
    """Whether a value is a number or truth value written as text: DeepSpeed converts it, other readers do not."""
    numeric = field.type.name in ("bool", "int", "float") or (
        field.type.name == "choice" and all(isinstance(choice, int) for choice in field.type.choices)
    )
    return isinstance(value, str) and numeric and not problem(field, value)


def number_in(value: Any) -> int | float | None:
    """The finite number written in a text, an integer if it has no decimal point; None for anything else."""
    if not isinstance(value, str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    if not abs(number) < 1e300 or "_" in value:
        return None
    return int(number) if number == int(number) and not ("." in value or "e-" in value.lower()) else number


def shown(value: Any) -> str:
    """A value in JSON, cut to a short length."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except ValueError:
        text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """The known name closest to a misspelled one; "" if none is close."""
    return next(iter(get_close_matches(name[:60], list(known), n=1, cutoff=cutoff)), "")


def wanted(kind: FieldType) -> Phrase:
    """The description of a type: `a whole number`, `one of "none", "cpu", "nvme"`."""
    if kind.choices:
        return phrase("one of {values}", values=", ".join(map(shown, kind.choices)))
    if kind.name == "union":
        return reduce(lambda one, other: phrase("{one} or {other}", one=one, other=other), map(wanted, kind.parts))
    words = named(_WORDS.get(kind.name, "a value that a file can hold"))
    return phrase("{one} or {other}", one=words, other="null") if kind.optional and kind.name == "dict" else words


def _plainly_right(kind: FieldType, value: Any) -> bool:
    if value is None or kind.name == "any":
        return kind.optional or kind.name == "any"
    if kind.choices:
        return any(value == choice and type(value) is type(choice) for choice in kind.choices)
    if kind.name == "list":
        return isinstance(value, list) and all(_plainly_right(part, item) for part in kind.parts for item in value)
    if kind.name == "float":
        return type(value) in (int, float) and abs(value) < 1e300
    return type(value) is {"bool": bool, "int": int, "str": str, "path": str, "dict": dict}.get(kind.name)


_YES, _NO = ("1", "on", "t", "true", "y", "yes"), ("0", "off", "f", "false", "n", "no")
TRUTHS = dict.fromkeys(_YES, True) | dict.fromkeys(_NO, False)
"""Words in lower case that pydantic accepts as a truth value."""

_INTEGER = re.compile(r"\s*([+-]?\d+(?:_\d+)*)(?:\.0+)?\s*", re.ASCII)


def _taken(kind: FieldType, value: Any) -> Any:
    return value if _plainly_right(kind, value) else _converted(kind, value)


def _converted(kind: FieldType, value: Any) -> Any:
    """The value that pydantic converts a value of another type to. Raises ValueError if it rejects the value.

    Source: pydantic-core 2 (input/shared.rs, validators/enum_.rs).
    """
    if kind.name == "union":
        for part in kind.parts:
            with contextlib.suppress(ValueError):
                return _taken(part, value)
    elif kind.name == "list" and isinstance(value, list):
        return [_taken(part, item) for part in kind.parts for item in value]
    elif kind.name == "choice" and not all(isinstance(choice, str) for choice in kind.choices):
        if (number := _whole(value)) in kind.choices:
            return number
    elif kind.name == "bool":
        if isinstance(value, str) and value.lower() in TRUTHS:
            return TRUTHS[value.lower()]
        if isinstance(value, int | float) and value in (0, 1):
            return bool(value)
    elif kind.name == "int":
        return _whole(value)
    elif kind.name == "float" and isinstance(value, int | float | str) and str(value).isascii():
        return float(value)
    raise ValueError


def _whole(value: Any) -> int:
    if isinstance(value, str) and (match := _INTEGER.fullmatch(value)):
        return int(match[1])
    if isinstance(value, bool | int) or (isinstance(value, float) and abs(value) < 2**63 and not value % 1):
        return int(value)
    raise ValueError


class FilledBatch(NamedTuple):
    """Values for an `auto` batch, and gradient checkpointing, which no file contains; a size is None if it needs no
    value."""

    micro_batch_size: int | None = None
    gradient_accumulation_steps: int | None = None
    gradient_checkpointing: bool = True
    words: str = ""
    """The description of values that the advice filled in; "" if none."""

    def plan(self, config: Mapping[str, Any], model: ModelShape, cluster: Cluster) -> Plan:
        """The plan of a configuration with these values. Raises like `plan_from_ds_config`."""
        return plan_from_ds_config(
            config,
            model,
            cluster,
            micro_batch_size=self.micro_batch_size,
            gradient_accumulation_steps=self.gradient_accumulation_steps,
            gradient_checkpointing=self.gradient_checkpointing,
        )


NOTHING_FILLED = FilledBatch()


@dataclass(frozen=True, kw_only=True)
class LintedConfig:
    """A configuration with its context; `cluster`, `model` and `workload` may be unknown."""

    document: Document
    values: dict[str, Any]
    """The values as DeepSpeed reads them, including `auto`."""
    facts: DeepSpeedFacts
    framework: Framework
    """The reader of the file: "hf" (the Trainer or accelerate, which fill `auto`) or "deepspeed"."""
    cluster: Cluster | None = None
    model: ModelShape | None = None
    workload: Workload | None = None
    batch: FilledBatch = NOTHING_FILLED
    """The values for `auto`."""

    def has(self, path: str) -> bool:
        return self.document.member(tuple(path.split("."))) is not None

    def get(self, path: str) -> Any:
        """The value at a path; None if there is none."""
        node: Any = self.values
        for name in path.split("."):
            if not isinstance(node, dict) or name not in node:
                return None
            node = node[name]
        return node

    def knows(self, key: str) -> bool:
        """Whether this version has a key at the top level."""
        block = self.facts.block("")
        return block is not None and key in block.keys

    def block(self, path: str) -> dict[str, Any]:
        """The object at a path; empty if there is none."""
        found = self.get(path)
        return found if isinstance(found, dict) else {}

    def number(self, path: str) -> int | float | None:
        """The finite number at a path, or None."""
        found = self.get(path)
        right = isinstance(found, int | float) and not isinstance(found, bool) and abs(found) < 1e300
        return found if right else None

    def flag(self, path: str) -> bool:
        """Whether DeepSpeed reads the value as true."""
        found = self.get(path)
        return is_true(found) or (isinstance(found, int | float) and bool(found))

    def off(self, path: str) -> bool:
        """Whether DeepSpeed reads the value as false."""
        found = self.get(path)
        if isinstance(found, str):
            return not TRUTHS.get(found.lower(), True)
        return isinstance(found, int | float) and found == 0

    def text(self, path: str) -> str:
        found = self.get(path)
        return found if isinstance(found, str) else ""

    def zero(self, name: str) -> Any:
        """A value of zero_optimization under any of its names; DeepSpeed's default if it is absent or `auto`."""
        for path in self._zero_paths(name):
            value = self.get(path)
            if value is not None and value != "auto":
                return value
        return self.facts.default(f"zero_optimization.{name}")

    def zero_number(self, name: str) -> int:
        """A whole number of zero_optimization; 0 for any other value."""
        value = self.zero(name)
        return int(value) if isinstance(value, int | float) and abs(value) < 1e300 else 0

    def zero_path(self, name: str) -> str:
        """The path of a value of zero_optimization in the file; "" if it is absent."""
        return next(filter(self.has, self._zero_paths(name)), "")

    def zero_place(self, name: str) -> str:
        """`zero_path`, or the path with the usual name if the value is absent."""
        field = self.facts.find_field(f"zero_optimization.{name}")
        return self.zero_path(name) or f"zero_optimization.{field.usual_name if field else name}"

    def _zero_paths(self, name: str) -> list[str]:
        field = self.facts.find_field(f"zero_optimization.{name}")
        return [f"zero_optimization.{key}" for key in (field.names if field else (name,))]

    @cached_property
    def stage(self) -> int:
        """The ZeRO stage; 0 if it is absent or does not exist."""
        value = self.get("zero_optimization")
        if isinstance(value, bool):
            return int(value)
        stage = self.get("zero_optimization.stage")
        if isinstance(stage, str) and stage.strip() in ("0", "1", "2", "3"):
            return int(stage)
        return int(stage) if isinstance(stage, int | float) and stage in (0, 1, 2, 3) else 0

    def offload(self, what: str) -> str:
        """The device of `optimizer` or `param`: "none", "cpu" or "nvme"; deprecated flags are considered."""
        device = self.get(f"zero_optimization.offload_{what}.device")
        if device in ("cpu", "nvme"):
            return str(device)
        old = "cpu_offload" if what == "optimizer" else "cpu_offload_param"
        return "cpu" if self.flag(f"zero_optimization.{old}") else "none"

    @cached_property
    def bf16_block(self) -> str:
        """The name of the block that DeepSpeed reads as bf16."""
        return "bfloat16" if self.get("bf16") is None and self.get("bfloat16") is not None else "bf16"

    @property
    def bf16(self) -> bool:
        return self.flag(f"{self.bf16_block}.enabled")

    @property
    def fp16(self) -> bool:
        return self.flag("fp16.enabled")

    @property
    def optimizer(self) -> str:
        """DeepSpeed's optimizer name in lower case, or the class name of a torch.optim optimizer unchanged; "" if there
        is none."""
        name = self.text("optimizer.type")
        return name.lower() if name.lower() in self.facts.optimizers else name

    @cached_property
    def optimizer_spec(self) -> OptimizerSpec | None:
        """The row of the optimizer block's type; None without a block or for an unknown optimizer."""
        return optimizer_of_type(self.optimizer)

    @property
    def has_adam(self) -> bool:
        """Whether the optimizer block names DeepSpeed's Adam or AdamW."""
        return self.optimizer_spec is not None and self.optimizer_spec.is_adam

    @property
    def may_have_adam(self) -> bool:
        """Whether the optimizer is DeepSpeed's Adam (optimizer block), or the Trainer's own AdamW (no block)."""
        return not self.optimizer or self.has_adam

    @property
    def world_size(self) -> int | None:
        return self.cluster.world_size if self.cluster is not None else None

    @cached_property
    def plan(self) -> Plan | None:
        """The plan of the configuration on this cluster; None if it is invalid or the context is unknown."""
        if self.model is None or self.cluster is None:
            return None
        try:
            return self.batch.plan(self.values, self.model, self.cluster)
        except ConfigFileError:
            return None

    def is_auto(self, path: str) -> bool:
        return bool(self.get(path) == "auto")
