"""Models that are a module of the user's: FILE.py:FUNCTION, or an object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...estimators.errors import ModelConfigError, WorkloadError
from ...estimators.models.model_shape import Input, ModelShape, OwnModule
from ...estimators.workload import DEFAULT_SEQ_LEN

_MOST_DIGITS = 9
"""Digits of a dimension; Python refuses to read numbers of thousands of digits."""

_SCALAR = "scalar"
_TYPES = ("float", "int64", "int32", "uint8", "bool", "float32")


def is_own_module(model: str) -> bool:
    return ".py:" in model


def inputs_of(shapes: str | None, types: str | None) -> tuple[Input, ...]:
    """The inputs of `3,32,32+scalar` and `float+int64`; none for None. Raises WorkloadError for any other text."""
    if shapes is None:
        if types is not None:
            raise WorkloadError("--input-dtype needs --input-shape", fix="pass --input-shape, such as 3,32,32")
        return ()
    names = [name.strip() for name in (types or "float").split("+")]
    given = shapes.split("+")
    names = names * len(given) if len(names) == 1 else names
    if len(names) != len(given) or not {*names} <= {*_TYPES}:
        raise WorkloadError(
            f"--input-dtype {types!r:.40} does not fit --input-shape {shapes!r:.40}",
            why=f"it is one type for all inputs or one for each, of {', '.join(_TYPES)}",
            fix="write it as int64, or float+int64",
        )
    return tuple(Input(_sizes(text), name) for text, name in zip(given, names, strict=True))


def _sizes(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if parts == [_SCALAR]:
        return ()
    if not all(part.isascii() and part.isdigit() and len(part) <= _MOST_DIGITS and int(part) > 0 for part in parts):
        raise WorkloadError(
            f"--input-shape {text[:40]!r} is not a shape",
            why="it is the size of one sample, by dimension",
            fix="write it as 3,32,32; several inputs as 3,32,32+77; one number per sample as scalar",
        )
    return tuple(int(part) for part in parts)


def options_of_module(shape: ModelShape, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that follow from a module. Raises WorkloadError for those that do not apply to it."""
    assert shape.module is not None
    checkpointing = given["gradient_checkpointing"]
    if given["method"] != "full":
        raise WorkloadError(
            f"--method {given['method']} does not apply to a module of your own",
            why="its own code makes its adapters",
            fix="let the function return get_peft_model(...), and leave --method out",
        )
    if checkpointing == "offload" or (checkpointing == "on" and not shape.module.checkpointing):
        raise WorkloadError(
            f"{shape.name} does not offer --gradient-checkpointing {checkpointing}",
            why="its class has none of the methods that transformers, timm and diffusers have for it, such as "
            "gradient_checkpointing_enable",
            fix="leave --gradient-checkpointing out",
        )
    if not shape.module.checkpointing:
        checkpointing = "off"
    return {"framework": "deepspeed", "seq_len": None, "gradient_checkpointing": checkpointing}


def module_of_file(model: str, given: Mapping[str, Any]) -> ModelShape:
    """The shape of the module of FILE.py:FUNCTION, recorded in a subprocess. Raises DsAdviseError."""
    from ...probes.dry_run.run import DryRunError
    from ...probes.model_recorder.own_module import record_module

    inputs = inputs_of(given["input_shape"], given["input_dtype"])
    seq_len = given["seq_len"] if isinstance(given["seq_len"], int) else DEFAULT_SEQ_LEN
    try:
        return record_module(OwnModule(model, inputs), seq_len)
    except DryRunError as error:
        raise _cannot(model, f"{error.what}, {error.why}" if error.why else error.what, error.fix) from error


def module_of_object(model: Any, example_inputs: Any, loss_fn: Any) -> ModelShape:
    """The shape of a torch.nn.Module, or of one that a function returns. Raises ModelConfigError where it cannot be
    recorded."""
    from ...probes.model_recorder.module import recorded_object

    name = getattr(model, "__name__", type(model).__name__)
    if example_inputs is None:
        raise _cannot(name, "the shapes of its inputs are not known", "pass example_inputs, the arguments of `forward`")
    try:
        return recorded_object(model, example_inputs, loss_fn)
    except Exception as error:  # the module's code raises anything
        raise _cannot(name, f"{type(error).__name__}: {error}"[:300], "") from error


def _cannot(name: str, why: str, fix: str) -> ModelConfigError:
    return ModelConfigError(
        f"{name} cannot be recorded",
        why=why,
        fix=fix or "ds-advise probe runs any module on a GPU, or with --device cpu",
    )
