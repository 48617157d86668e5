"""What to type in place of a file or a name that a command does not read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ...ds_configs.files import nearest_file
from ...estimators.errors import ConfigFileError, DsAdviseError, NoGpuError, UnknownModelError
from ...estimators.plan import PLANS
from ..question.gpu_text import meant_gpus, near_gpus, started
from ..question.other_names import meant_plan
from ..text.units import listed
from .commands import command_named, command_of, named_command
from .model_argument import is_model, positional_places
from .typed_line import (
    GPUS,
    STARTERS,
    divided_words,
    gpus_in_front,
    line,
    named_options,
    needed_files,
    question_for,
    typed_words,
    value_of,
    with_file,
    words_for,
)

if TYPE_CHECKING:
    from ..importers.imported_run import ImportedRun
    from ..importers.source import Source
    from ..importers.tool_format import Format

    _InForm = tuple[Source, Format]


def other_command(name: str, gpus: str = "") -> str:
    """Return the command for a file or a rule of lint that is no model; "" for a model or a name. gpus: in the command
    if none are typed. Raises YamlConfigError."""
    return _command_for(name, _in_form(Path(name)), gpus)


def _command_for(name: str, found: _InForm | None, gpus: str = "") -> str:
    """Return the command for a file, as `other_command`. found: the file as that of a training tool."""
    from ..question.file_question import is_ds_config, records_question  # imported here: names need none of it

    path, typed = Path(name), typed_words()
    known = value_of("--gpus", typed) or gpus
    gpus, model = known or GPUS, value_of("--model", typed) or "MODEL"
    if re.fullmatch(r"ds\d+", name, re.IGNORECASE):
        from ...validate.lint import RULES  # imported here: it is slow

        if name.upper() in (rule.code for rule in RULES):
            return f"ds-advise lint --explain {name.upper()}"
    if is_ds_config(path):
        if records_question(path):
            return line(["explain", name])
        # Without a model only lint has an answer.
        return line(["lint", name]) if model == "MODEL" else line(["explain", name, "--model", model, "--gpus", gpus])
    if path.suffix.lower() == ".py":
        printed = f", or, if it prints the configuration, python {name} | ds-advise lint -" * (typed[:1] == ["lint"])
        return f"ds-advise --gpus {gpus} -- {started(name, gpus)}{printed}"
    if not is_there(path) or not path.is_file() or _begins_object(path):
        return ""
    if (run := _run_of_tool(found)) is not None:
        if not known:
            from ..command.failed_training import COUNT, SIZE  # imported here: it is slow

            nodes = f"{run.nodes}x" if (run.nodes or 1) > 1 else ""
            gpus = f"{nodes}{run.gpus_per_node or COUNT}x{SIZE}"
        name += f" --model {model}" * (run.model is None)
    return _READERS.get(path.suffix.lower(), "").format(name=name, gpus=gpus)


def _run_of_tool(found: _InForm | None) -> ImportedRun | None:
    """Return the training in a file of a training tool; None if it is not understood, and for any other file."""
    with suppress(DsAdviseError):
        return None if found is None else found[1].read(found[0])
    return None


def _in_form(path: Path) -> _InForm | None:
    """Return a file of a training tool with its format; None for any other file. Raises YamlConfigError."""
    if path.suffix.lower() not in _OF_TOOLS or not is_there(path):
        return None
    from ..importers.answer import YamlConfigError, detect_format  # imported here: it is slow

    try:
        return detect_format(path)
    except YamlConfigError:
        raise
    except DsAdviseError:
        return None


def _is_not(name: str, found: _InForm | None, kind: str) -> str:
    """Return what a file of another kind is: `run.yaml is an accelerate configuration, not a model`."""
    return f"{name[:80]} is not {kind}" if found is None else f"{name[:80]} is {found[1].title}, not {kind}"


_OF_TOOLS = (".yaml", ".yml", ".toml")
_READERS: Mapping[str, str] = {
    **dict.fromkeys(_OF_TOOLS, "ds-advise from {name} --gpus {gpus}"),
    **dict.fromkeys((".log", ".txt", ".out", ".err"), "ds-advise why {name}"),
    **dict.fromkeys((".jsonl", ".csv", ".parquet"), "ds-advise MODEL --gpus {gpus} --data {name}"),
    **dict.fromkeys((".safetensors", ".bin", ".pt", ".pth", ".gguf"), "ds-advise FOLDER, with its config.json"),
}
"""Suffix of a file -> the command that reads it."""


def folder_instead(path: Path) -> str:
    """Return what to do in place of naming a file, or no file at all, as the folder of a checkpoint."""
    if path.suffix in (".pt", ".pth", ".safetensors", ".bin") and is_there(path):
        step = path.parent
        return f"write ds-advise checkpoint {step.parent if step.name.startswith('global_step') else step}"
    if command := other_command(str(path)):
        return f"write {command}"
    near = "" if is_there(path) else nearest_file(path, folders=True)
    return f"write {near}" if near else "name the folder of a checkpoint, such as output/checkpoint-500"


def _begins_object(path: Path) -> bool:
    """Return whether a file may hold a JSON object, whatever its suffix."""
    try:
        with path.open("rb") as file:
            return file.read(100).lstrip().startswith(b"{")
    except OSError:  # the command that reads it reports it
        return True


def is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long, a null byte
        return False


def models_instead(args: Sequence[str]) -> tuple[str, str] | None:
    """Return what is wrong and what to type if models stand in place of the files that a command needs; None for any
    other line."""
    command = command_of(args)
    if not (needed := needed_files(command)):
        return None
    own = words_for(command, args, command)
    typed = [own[at] for at in positional_places(command, own)]
    models = [word for word in typed if is_model(word)]
    if not models or (len(models) == 1 and len(typed) > len(needed)):
        return None
    are = f"{listed(models)} are models" if models[1:] else f"{models[0]} is a model"
    what = f"{command.name} reads {needed[0].kind}, and {are}"
    if len(models) == 1:
        return what, f"write {with_file(args[0], own)}"
    _, *options = question_for(command_named("advise"), args, command)
    return what, f"write {', and '.join(line([model, *options]) for model in models)}"


def refuse_data(path: Path) -> None:
    """Raise ConfigFileError for a file of data in place of the configuration of `train`, with the line in which it is
    the data."""
    from ..data.rows import SUFFIXES  # imported here: other mistakes need none of it

    is_missing = not is_there(path)
    if path.suffix.lower() == ".json":
        is_data = not is_missing and path.is_file() and not _begins_object(path)
    else:
        is_data = path.suffix.lower() in SUFFIXES
    if not is_data:
        return
    what = f"{path}: no such file" if is_missing else f"{path} is data, not a configuration"
    if value_of("--data", typed_words()):
        raise ConfigFileError(what, fix=f"leave {path} out")
    train = command_named("train")
    model, *options = question_for(train, typed_words(), train)
    data = (nearest_file(path) if is_missing else "") or str(path)
    raise ConfigFileError(what, fix=f"write {line(['train', '--model', model, '--data', data, *options])}")


def other_reader(error: DsAdviseError, args: Sequence[str]) -> tuple[str, str] | None:
    """Return what is wrong and what to type if what should be a JSON file is read by another command, or --gpus is
    behind `--`. args: the command line."""
    if isinstance(error, NoGpuError) and (described := gpus_in_front(args)) != [*args]:
        return "--gpus behind -- is an option of the command there", f"write {line(described)}"
    if found_models := models_instead(args):
        return found_models
    found = re.match("(.+): (not JSON|no such file)", error.what, re.DOTALL)
    name = found[1] if found and isinstance(error, ConfigFileError) else ""
    is_script, is_missing = args[:1] and args[0] in _RUNNING and name.endswith(".py"), found and found[2] != "not JSON"
    if is_missing and Path(name).suffix and not is_script:  # else it may be the name of a rule
        return None
    try:
        in_form = _in_form(Path(name))
    except ConfigFileError as in_yaml:
        return in_yaml.what, in_yaml.fix
    command, what = _command_for(name, in_form) if name else "", _is_not(name, in_form, "a DeepSpeed configuration")
    if is_script:
        near = (nearest_file(Path(name)) if is_missing else "") or name
        what = f"{name[:80]}: no such file" if is_missing else what
        own, _, users = " ".join(divided_words([near if word == name else word for word in args])).partition(" -- ")
        gpus = f" --gpus {GPUS}" if args[0] == "dry-run" and "--gpus" not in own else ""
        if users.split()[0] not in STARTERS and args[0] != "launch":
            users = started(users, value_of("--gpus", f"{own}{gpus}".split()))
        return what, f"write ds-advise {own}{gpus} -- {users}"
    run = _run_of_tool(in_form) if command else None
    # With a model, its part alone would be judged with another batch and sequence.
    is_judged = bool(value_of("--model", args))
    if run is not None and run.deepspeed is not None and run.deepspeed.path is not None and not is_judged:
        part = str(run.deepspeed.path)
        same = line([part if word == name else word for word in args])
        faults = "".join(f"; {fault}" for fault in run.faults)
        return f"{what}, but names one, {part}{faults}", f"write {same}, or {command}"
    return (what, f"write {command}") if command else None


_RUNNING = ("dry-run", "probe", "launch")
"""Commands that run the user's command."""


def _swapped(name: str) -> str:
    """Return the typed line with a word that is in the place of the model behind the model; "" without a model."""
    typed = typed_words()
    if not (own := named_command(typed)):
        return ""
    model, *options = question_for(command_named(own), typed, command_named(own))
    return line([own, model, *options, name]) if is_model(model) else ""


def with_strategy(plan: str) -> str:
    """Return the line that explains a plan for the typed question."""
    typed = typed_words()
    question = question_for(command_named("explain"), typed, command_of(typed))
    return line(["explain", *question, "--strategy", plan])


def refuse_unknown(name: str, what: str = "", fix: str = "") -> None:
    """Raise UnknownModelError for a word that is no model before the machine is looked for. what: the message. fix:
    what to write, in place of the nearest models."""
    from ..question.model_source import id_in_address, is_user_module, listed_model, load_config

    path = Path(name)
    in_form = _in_form(path)
    if command := "" if is_user_module(name) else _command_for(name, in_form):
        raise UnknownModelError(_is_not(name, in_form, "a model"), fix=f"write {command}")
    if path.suffix.lower() in (".json", *_READERS) and not is_there(path):
        near = nearest_file(path)
        fix = f"write {near}" if near else "name a model, such as Qwen2.5-14B, or its folder"
        raise UnknownModelError(f"{name[:80]}: no such file", fix=fix)
    if hub := id_in_address(name):
        raise UnknownModelError(f"{name[:80]} is the address of a model, not its name", fix=f"write {hub}")
    is_folder = is_there(path) and path.is_dir()
    if is_there(path) and path.is_file():
        load_config(name, offline=True)  # raises for a file that is no JSON
    if "/" in name or is_user_module(name) or (is_there(path) and not is_folder) or is_there(path / "config.json"):
        return
    try:
        listed_model(name)
    except UnknownModelError as error:
        if is_folder:
            fix = "name the folder that has the model's config.json"
            raise UnknownModelError(f"the folder {name[:80]} has no config.json", fix=fix) from None
        if gpus := meant_gpus(name) or next(iter(near_gpus(name)), ""):
            fix = f"write {with_gpus(name, gpus)}"
            raise UnknownModelError(f"{name!r} describes GPUs, not a model", fix=fix) from None
        if plan := meant_plan(name) if name.lower().startswith(("zero", "ddp", "fsdp", "ds_z")) else "":
            fix = f"write {with_strategy(plan)}"
        elif what and "_" not in name and (typed := _swapped(name)):  # a part in front of the model
            fix = f"write {typed}"
        raise UnknownModelError(what or error.what, why=error.why * (not fix), fix=fix or error.fix) from None


def with_gpus(name: str, gpus: str) -> str:
    """Return the typed line with the GPUs, which are in the place of the model, behind `--gpus`. The model may be in
    another place, or behind `--gpus`. A command without `--gpus` is named with the one that answers for these GPUs."""
    typed = typed_words()
    other = value_of("--gpus", typed)
    words = [word for word in typed if word not in ("--gpus", f"--gpus={other}", other)]
    model = [] if any(map(is_model, words)) else [other if other and is_model(other) else "MODEL"]
    own = [part for word in words for part in (model if word == name else [word])]
    command = command_of(typed)
    if "--gpus" in named_options(command):
        return line([*own, "--gpus", gpus])
    question = question_for(command_named("advise"), own, command)
    return f"{line(own)}, or, for these GPUs, {line([*question, '--gpus', gpus])}"


def refuse_unknown_side(name: str) -> None:
    """Raise ConfigFileError for a side of a comparison that is neither a strategy nor like the name of a file."""
    if name in PLANS or is_there(Path(name)) or not re.fullmatch(r"\w[\w-]*", name):
        return
    near = meant_plan(name)
    fix = f"write {near}" if near else f"write one of {', '.join(PLANS)}, or the path of a file"
    raise ConfigFileError(f"no strategy or file {name[:40]!r}", fix=fix)
