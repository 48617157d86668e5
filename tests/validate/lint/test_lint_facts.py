"""The facts that lint reads from DeepSpeed's sources, against DeepSpeed's own classes and look-ups."""

from __future__ import annotations

import importlib
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from ds_advise.validate.lint import load_facts
from ds_advise.validate.lint.read_deepspeed import CLASSES
from ds_advise.validate.lint.rules_types import VALIDATED_TYPES
from ds_advise.validate.lint.values import find_problem

from tests.helpers import imports_of

from .lint_cases import codes, facts, judged

POOL: list[Any] = [
    *(None, True, False, 0, 1, 2, 3, 4, -1, 0.5, 1.0, 1e9, math.inf, math.nan, 2**70),
    *("", "2", "2.0", "true", "yes", "none", "cpu", "nvme", "1e3", "0.5", "abc", "TRUE", " 2 ", "1_000", "z1", "torch"),
    *("3.", ".5", "+3", "-3", "1__0", "1.5", "nan", "-inf", "\u0663", "2.00", "9" * 25, "t", "Off", "true "),
    *([], ["a"], [1], ["z1"], {}),
]
AROUND: dict[str, dict[str, Any]] = {
    "loss_scale_window": {"enabled": True},
    "min_loss_scale": {"enabled": True},
    "compute_grad_norm": {"stage": 2},
}
"""Field -> others with which its class checks it, or takes any value."""
OTHER_NUMBERS = {
    "loss_scale": ("\u0663",),
    **dict.fromkeys(("loss_scale_window", "min_loss_scale"), ("2.0", "2.00")),
}
"""Texts that Python's `float` and `int` in a validator read otherwise than pydantic; DS022 is about numbers as text."""
TEXT_OR_LIST = {"classes", "names", "name_suffixes"}


@pytest.fixture(scope="module", autouse=True)
def cpu() -> None:
    """No probing for vendors' libraries."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")


def test_every_optimizer_that_torch_exports_is_known() -> None:
    """DeepSpeed's `_is_supported_optimizer` looks the type up in torch.optim, which has some from private files."""
    import torch

    classes = {name for name, each in vars(torch.optim).items() if isinstance(each, type)}
    assert {*facts().torch_optimizers} == classes - {"Optimizer"} >= {"Adafactor", "AdamW"}
    config = {"train_batch_size": 8, "zero_optimization": {"stage": 2}, "optimizer": {"type": "Adafactor"}}
    assert {"DS501", "DS504"} & codes(judged(config)) == {"DS504"}
    assert not {"DS501", "DS504"} & codes(judged(config | {"zero_allow_untested_optimizer": True}))


def _classes() -> dict[str, Any]:
    """Block -> DeepSpeed's class, those of nested blocks too."""
    from deepspeed.runtime.config_utils import DeepSpeedConfigModel

    found: dict[str, Any] = {}

    def add(path: str, cls: Any) -> None:
        found[path] = cls
        for name, info in cls.model_fields.items():
            for part in (info.annotation, *getattr(info.annotation, "__args__", ())):
                if isinstance(part, type) and issubclass(part, DeepSpeedConfigModel):
                    add(f"{path}.{info.alias or name}", part)

    for path, (file, name) in CLASSES.items():
        add(path, getattr(importlib.import_module("deepspeed." + file[:-3].replace("/", ".")), name))
    return found


def test_the_fields_are_those_of_deepspeeds_classes() -> None:
    """Names, aliases, defaults, deprecations and successors, of every checked block."""
    for path, cls in _classes().items():
        block = facts().block(path)
        assert block is not None and block.strict
        assert {field.name for field in block.fields} == set(cls.model_fields)
        for field in block.fields:
            info = cls.model_fields[field.name]
            extra = info.json_schema_extra or {}
            assert field.alias == (info.alias or "")
            assert (field.deprecated, field.successor) == (bool(extra.get("deprecated")), extra.get("new_param", ""))
            if field.default_known and not field.block:
                default = info.get_default()
                assert field.default == getattr(default, "value", default)


def test_values_are_judged_as_deepspeeds_classes_judge_them() -> None:
    """Each field with 36 values of all kinds: taken here where the class takes it, refused where it raises."""
    compared = 0
    for path, cls in _classes().items():
        block = facts().block(path)
        assert block is not None
        for field in block.fields:
            if field.block:
                continue
            qualified = block.qualified_path(field.usual_name)
            kind, around = VALIDATED_TYPES.get(qualified, (field.type,))[0], AROUND.get(field.name, {})
            for value in POOL:
                is_names = field.name in TEXT_OR_LIST and isinstance(value, str)
                if is_names or value in OTHER_NUMBERS.get(field.name, ()):
                    continue
                try:
                    cls(**around, **{field.alias or field.name: value})
                    taken = True
                except Exception:
                    taken = False
                assert taken == (find_problem(kind, value) is None), (path, field.name, value)
                compared += 1
    assert compared > 4000


VALIDATORS = {
    "_validate_loss_scale": {"fp16": {"enabled": True, "loss_scale": -1}},
    "_reject_non_integer_scale_params": {"fp16": {"enabled": True, "loss_scale_window": True}},
    "_validate_dynamic_loss_scale_params": {"fp16": {"enabled": True, "min_loss_scale": 0}},
    "compute_grad_norm_valid": {"zero_optimization": {"stage": 3, "compute_grad_norm": False}},
    "offload_ratio_check": {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}},
    "validate_fields": {"zero_optimization": {"stage": 0, "zenflow": {"update_interval": 0}}},
    "_coerce_container_types": {"zero_optimization": {"stage": 3, "leaf_module": 1}},
    "_validate_entries": {"zero_optimization": {"stage": 3, "leaf_module": {"names": [1]}}},
    **dict.fromkeys(("overlap_comm_valid", "elastic_checkpoint_deprecated", "set_pipeline", "check_enabled")),
}
"""Each validator of DeepSpeed's classes, with keys that it refuses; None for those that refuse nothing."""


def test_what_each_validator_of_deepspeeds_classes_refuses_is_an_error() -> None:
    """A new validator needs a rule, or the remark that it refuses nothing."""
    decorated = {
        name
        for cls in _classes().values()
        for kind in ("field_validators", "model_validators")
        for name in getattr(cls.__pydantic_decorators__, kind)
    }
    assert decorated <= {*VALIDATORS}
    for name, config in VALIDATORS.items():
        for path, values in (config or {}).items():
            with pytest.raises(Exception, match=r"validation error|must be a mapping"):
                _classes()[path](**values)
            assert codes(judged({"train_batch_size": 8, path: values}), "error"), name


class _Watched(dict[str, Any]):
    """A dictionary that writes down which keys are looked up in it."""

    def __init__(self, values: dict[str, Any], seen: dict[str, set[str]], path: str = "") -> None:
        super().__init__(
            {
                key: _Watched(value, seen, f"{path}.{key}".lstrip(".")) if isinstance(value, dict) else value
                for key, value in values.items()
            }
        )
        self.seen = seen.setdefault(path, set())

    def get(self, key: Any, default: Any = None) -> Any:
        self.seen.add(key)
        return super().get(key, default)

    def __getitem__(self, key: Any) -> Any:
        self.seen.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: Any) -> bool:
        self.seen.add(key)
        return super().__contains__(key)

    def keys(self) -> Any:
        return self

    def __copy__(self) -> _Watched:
        return self


def test_the_keys_are_those_that_deepspeed_looks_up() -> None:
    """A configuration that writes down what is read from it, given to DeepSpeedConfig."""
    from deepspeed.runtime.config import DeepSpeedConfig

    seen: dict[str, set[str]] = {}
    DeepSpeedConfig(
        _Watched(
            {
                "train_batch_size": 2,
                "aio": {},
                "activation_checkpointing": {},
                "optimizer": {"type": "Adam", "params": {}},
                "scheduler": {"type": "WarmupLR", "params": {}},
                "checkpoint": {"parallel_write": {}, "writer": {}},
                "data_types": {},
                "flops_profiler": {},
                "autotuning": {},
                "torch_autocast": {},
                "timers": {"throughput": {}},
            },
            seen,
        )
    )
    for path, keys in seen.items():
        block = facts().block(path)
        if block is None or block.strict:
            continue
        elsewhere = {
            "allgather_size",
            "sequence_parallel_size",
            "data_parallel_size",
        }  # read by initialize, or for `true`
        if not facts().at_least("0.19.7"):
            elsewhere |= {"eigenvalue", "mode", "attention"}  # where such blocks are on
        assert keys - {name for name in facts().removed if "." not in name} - {"model_info"} <= set(block.keys), path
        assert set(block.keys) - keys <= elsewhere, path


def test_the_second_call_reads_the_cache(own_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file per version in the store's folder; the sources are not read again."""
    first = load_facts()
    (cached,) = own_store.parent.glob("deepspeed-*-facts-*.json")
    assert first.version in cached.name
    monkeypatch.setattr("ds_advise.validate.lint.read_deepspeed.read_facts", None)
    assert load_facts() == first


@pytest.mark.parametrize("content", ["", "[]", '{"version": "0.0.1"}', "null", '{"version": null, "blocks": [1]}'])
def test_a_broken_cache_is_rewritten(own_store: Path, content: str) -> None:
    """A half-written or foreign file is no reason to fail."""
    right = load_facts()
    (cached,) = own_store.parent.glob("deepspeed-*-facts-*.json")
    cached.write_text(content)
    assert load_facts() == right
    assert json.loads(cached.read_text())["version"] == right.version


def test_reading_the_sources_imports_neither_deepspeed_nor_torch() -> None:
    """They are parsed; an import of torch alone takes longer than lint may."""
    program = "from ds_advise.validate.lint import load_facts; load_facts()"
    assert imports_of(program, ("torch", "deepspeed", "pydantic", "numpy")) == []
