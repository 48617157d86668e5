"""From a model's name to its `ModelShape`: a local folder, the catalogue, the Hugging Face hub, or a module of the
user's (FILE.py:FUNCTION, or an object).

Only a `config.json` is read. No weights are read, no code from a model's folder is executed, and no pickle is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ...ds_configs.files import nearest_file, read_json_object
from ...estimators.errors import ModelConfigError, NoSuchModelError, UnknownModelError, WorkloadError
from ...estimators.models import catalogue
from ...estimators.models.families import UnknownModelTypeError, shape_from_config
from ...estimators.models.model_shape import Input, ModelShape, UserModule
from ...estimators.models.training_dtype import published_dtype
from ...estimators.workload import DEFAULT_SEQ_LEN


def load_model(name_or_path: str, *, offline: bool = False, with_image: bool = False) -> ModelShape:
    """The model of a name, a folder, a `config.json` or a hub id.

    The order is: a folder with a `config.json`, or such a file itself; the catalogue; the hub, its local cache first.
    `offline` forbids the network, not the cache. Parameters are counted from the configuration, not the weights.
    with_image: a model that is recorded with samples of text, which leave its vision tower idle, is recorded with an
    image in each sample instead.

    Raises UnknownModelError if there is no such model or the hub cannot be reached, and ModelConfigError for an invalid
    `config.json`.
    """
    found = _resolve(name_or_path, offline=offline)
    if isinstance(found, ModelShape):
        if not (with_image and found.idle_tower):
            return found
        return model_shape(catalogue.config(found.name), name=found.name, source=found.source, with_image=True)
    name, config = name_or_path.strip(), _read(found.file)
    return model_shape(config, name=name, source=found.source, with_image=with_image)


def model_shape(config: dict[str, Any], *, name: str, source: str = "", with_image: bool = False) -> ModelShape:
    """The shape of a model from its `config.json`, by the row of its type, else recorded from transformers' code.
    Raises ModelConfigError."""
    try:
        shape = shape_from_config(config, name=name, source=source)
    except UnknownModelTypeError:
        # Imported here: its imports take milliseconds that most answers do not need.
        from ...probes.model_recorder.recorded_model import recorded_model

        shape = recorded_model(config, name=name, source=source, with_image=with_image)
    return replace(shape, dtype=published_dtype(config))


def load_config(name_or_path: str, *, offline: bool = False) -> dict[str, Any]:
    """The `config.json` of `load_model(name_or_path)`. Raises the same errors."""
    found = _resolve(name_or_path, offline=offline)
    return catalogue.config(found.name) if isinstance(found, ModelShape) else _read(found.file)


class _ConfigFile(NamedTuple):
    file: Path
    source: str


def _resolve(name_or_path: str, *, offline: bool) -> ModelShape | _ConfigFile:
    name = name_or_path.strip()
    if is_user_module(name):
        raise UnknownModelError(
            f"{name[:80]} is your own module, which this command does not record",
            fix=f"use ds-advise {name[:80]} --input-shape 3,32,32, or ds-advise dry-run",
        )
    try:
        path = Path(name).expanduser()
        is_folder = path.is_dir()
        file = path / "config.json" if is_folder else path
        if name and file.is_file():
            return _ConfigFile(file, str(file))
    except (OSError, RuntimeError, ValueError):  # too long for a path, the home of an unknown user, a null byte
        is_folder = False
    can_only_be_a_path = name.startswith(("/", "./", "../", "~")) or name in (".", "..")
    if can_only_be_a_path or name.endswith(".json") or name.count("/") > 1:  # a hub id has one slash
        near = "" if is_folder else nearest_file(Path(name), holding="config.json")
        raise UnknownModelError(
            f"{name}: no config.json in this folder" if is_folder else f"{name}: no such file or folder",
            fix=f"write {near}"
            if near
            else "give the folder that holds the model's config.json, a catalogue name, or a hub id",
        )
    try:
        return listed_model(name)
    except UnknownModelError:
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
            raise
    from .hub import config_from_hub  # imported here: its imports take milliseconds

    return _ConfigFile(config_from_hub(name, offline=offline), f"config.json of {name} on the hub")


def listed_model(name: str) -> ModelShape:
    """The model of a name in the catalogue. Raises the errors of `catalogue.find`; for a name that is like none there,
    but like the folder of a model, one that names the folder."""
    try:
        return catalogue.find(name)
    except NoSuchModelError as error:
        folder = "" if error.meant else nearest_file(Path(name), holding="config.json")
        if not folder:
            raise
        nearest = NoSuchModelError(f"no model named {name[:80]!r}", fix=f"write {folder}")
        nearest.meant = folder
        raise nearest from None


def _read(file: Path) -> dict[str, Any]:
    return read_json_object(
        file, error=ModelConfigError, what="a model's config.json", fix="give a config.json as transformers writes it"
    )


def guessed_name(name: str, model: ModelShape) -> str:
    """What was guessed of a name without a size, as a sentence; "" for nothing. model: what was found by the name."""
    is_guess = model.source.startswith("catalogue") and catalogue.names_size(model.name)
    if not is_guess or catalogue.names_size(name):
        return ""
    return f"{name[:80]} is {model.name}, the only one of its sizes in the catalogue"


def id_in_address(text: str) -> str:
    """The hub id in the address of a model's page or of one of its files; "" for any other text."""
    found = re.match(r"https?://[\w.-]+/([\w.-]+/[\w.-]+)(?:[/?#].*)?$", text)
    return found[1] if found else ""


_TYPES = ("float", "int64", "int32", "uint8", "bool", "float32")


def is_user_module(model: str) -> bool:
    return ".py:" in model


def parse_inputs(text: str | None, types: str | None) -> tuple[Input, ...]:
    """The inputs in `3,32,32+scalar` and `float+int64`; empty for None. Raises WorkloadError for any other text."""
    if text is None:
        if types is not None:
            raise WorkloadError("--input-dtype needs --input-shape", fix="pass --input-shape, such as 3,32,32")
        return ()
    names = [name.strip() for name in (types or "float").split("+")]
    shapes = text.split("+")
    names = names * len(shapes) if len(names) == 1 else names
    if len(names) != len(shapes) or not {*names} <= {*_TYPES}:
        raise WorkloadError(
            f"--input-dtype {types!r:.40} does not fit --input-shape {text!r:.40}",
            why=f"it is one type for all inputs or one type per input, from {', '.join(_TYPES)}",
            fix="write it as int64, or float+int64",
        )
    return tuple(Input(_sizes(text), name) for text, name in zip(shapes, names, strict=True))


def _sizes(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if parts == ["scalar"]:
        return ()
    if not all(re.fullmatch(r"0*[1-9][0-9]{0,8}", part) for part in parts):
        raise WorkloadError(
            f"--input-shape {text[:40]!r} is not a shape",
            why="it lists the dimensions of one sample",
            fix="write it as 3,32,32; several inputs as 3,32,32+77; one number per sample as scalar",
        )
    return tuple(int(part) for part in parts)


def module_options(shape: ModelShape, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that follow from a module. Raises WorkloadError for options that do not apply to a module."""
    assert shape.module is not None
    checkpointing = options["gradient_checkpointing"]
    if options["method"] != "full":
        raise WorkloadError(
            f"--method {options['method']} does not apply to a module of your own",
            why="its own code creates the adapters",
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


def shape_from_file(model: str, options: Mapping[str, Any]) -> ModelShape:
    """The shape of the module of FILE.py:FUNCTION, recorded in a subprocess. Raises DsAdviseError."""
    from ...probes.dry_run.run import DryRunError
    from ...probes.model_recorder.recorded_model import record_module

    inputs = parse_inputs(options["input_shape"], options["input_dtype"])
    seq_len = options["seq_len"] if isinstance(options["seq_len"], int) else DEFAULT_SEQ_LEN
    try:
        return record_module(UserModule(model, inputs), seq_len)
    except DryRunError as error:
        fix = error.fix
        if not fix and inputs and error.why:  # raised by the module's own code
            fix = "if its forward raised this, check --input-shape, the shapes of all of its arguments"
        why = ", ".join(filter(None, (error.what.rstrip("."), error.why)))
        raise _not_recordable(model, why, fix) from error


def shape_from_object(model: Any, example_inputs: Any, loss_fn: Any) -> ModelShape:
    """The shape of a torch.nn.Module, or of one that a function returns. Raises ModelConfigError if it cannot be
    recorded."""
    from ...probes.model_recorder.module import recorded_object

    if hasattr(model, "model_type") and hasattr(model, "save_pretrained") and not hasattr(model, "forward"):
        name = model.__name__ if isinstance(model, type) else type(model).__name__
        raise ModelConfigError(
            f"{name} is a configuration of transformers, not a model",
            fix='write it to a folder, config.save_pretrained("FOLDER"), and pass "FOLDER"',
        )
    if not callable(model):
        raise ModelConfigError(
            f"{str(model).partition(chr(10))[0][:40]!r} is not a model",
            fix='pass a name such as "Qwen2.5-14B", a folder or a torch.nn.Module',
        )
    name = getattr(model, "__name__", type(model).__name__)
    if example_inputs is None:
        raise _not_recordable(
            name, "the shapes of its inputs are not known", "pass example_inputs, the arguments of `forward`"
        )
    try:
        return recorded_object(model, example_inputs, loss_fn)
    except Exception as error:  # the module's code raises anything
        raise _not_recordable(name, f"{type(error).__name__}: {error}"[:300], "") from error


def _not_recordable(name: str, why: str, fix: str) -> ModelConfigError:
    return ModelConfigError(
        f"{name} cannot be recorded",
        why=why,
        fix=fix or "ds-advise probe runs any module on a GPU, or with --device cpu",
    )
