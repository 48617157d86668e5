"""The package whose class or function refused an argument, and whether the installed version takes it."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from functools import cache
from typing import NamedTuple

from ...estimators.objectives import OBJECTIVES
from ...probes.failures.finding import Finding
from ...probes.installed_packages import installed_version, source_folder
from ..importers.imported_run import known_names

_FILES = {
    "Accelerator": ("accelerate", "accelerator.py"),
    "DataLoaderConfiguration": ("accelerate", "utils/dataclasses.py"),
    "Init": ("deepspeed", "runtime/zero/partition_parameters.py"),
    "DeepSpeedEngine": ("deepspeed", "runtime/engine.py"),
    "init_distributed": ("deepspeed", "comm/comm.py"),
    "LoraConfig": ("peft", "tuners/lora/config.py"),
    "PeftConfig": ("peft", "config.py"),
    "PeftConfigMixin": ("peft", "config.py"),
    "get_peft_model": ("peft", "mapping_func.py"),
    "prepare_model_for_kbit_training": ("peft", "utils/other.py"),
    "BitsAndBytesConfig": ("transformers", "utils/quantization_config.py"),
    "Trainer": ("transformers", "trainer.py"),
    "Seq2SeqTrainer": ("transformers", "trainer_seq2seq.py"),
    "TrainingArguments": ("transformers", "training_args.py"),
    "Seq2SeqTrainingArguments": ("transformers", "training_args_seq2seq.py"),
}
"""Classes and functions that trainings call, and base classes of those -> their package and its file (accelerate 1.15,
deepspeed 0.19.8, peft 0.20, transformers 5.24)."""

OF_TRL = {objective.config or "SFTConfig" for objective in OBJECTIVES.values()}
"""TRL's classes of arguments, which have those of TrainingArguments, too."""

_CALL = r"([A-Za-z_][\w.]*)\([^()]*"
"""A call in the code of a frame up to one of its arguments, or to the end of the line."""


class Callee(NamedTuple):
    """What was called, such as `unwrap_model` of `Accelerator`."""

    package: str
    name: str
    method: str = "__init__"


def owner(first: Finding) -> Callee | None:
    """The class or function that refused an argument; None if its package is not known. Python before 3.10 names no
    class: there the code of the last frame does."""
    words = first.named.get("callee", "").split(".")
    if words in ([""], ["__init__"]):
        code = first.error.frames[-1].code if first.error.frames else ""
        called = re.search(rf"{_CALL}\b{first.named.get('argument')}=", code) or re.search(f"{_CALL}$", code)
        words = called[1].split(".") if called else []
    for place, word in enumerate(words):
        package = "trl" if word.replace("Trainer", "Config") in OF_TRL else _FILES[word][0] if word in _FILES else ""
        if package:
            return Callee(package, word, *words[place + 1 : place + 2])
    return None


def fix_of(callee: Callee, argument: str) -> str:
    """The fix by package: an upgrade if the version that is installed here takes the argument."""
    package = callee.package
    if argument in _taken(callee):
        return f"pip install -U {package}: {_titled(package)} takes {argument}, so that of the log is probably older"
    return (
        f"Install the {package} for which the script was written (its requirements name it), or change the argument as "
        f"the documentation of the installed {package} says"
    )


def _titled(package: str) -> str:
    installed = installed_version(package)
    return f"{package} {installed}" if installed else f"a newer {package}"


def names_of_trl(config: str) -> set[str]:
    """The arguments that TRL's class of arguments has beside those of TrainingArguments; none if they are not
    listed."""
    return known_names(f"trl-{config.removesuffix('Config').lower()}")


def _taken(callee: Callee) -> Collection[str]:
    """The arguments that the installed version takes; of TRL's classes of arguments those of its list. Empty if they
    are not known."""
    if callee.name not in OF_TRL:
        return _installed(callee)
    return names_of_trl(callee.name) | _installed(Callee("transformers", "TrainingArguments"))


@cache
def _installed(callee: Callee) -> frozenset[str]:
    """The arguments by the sources, which are read and not imported."""
    file = _FILES.get(callee.name)
    folder = source_folder(callee.package) if file is not None else None
    path = folder / file[1] if folder is not None and file is not None else None
    if path is None or not path.is_file():
        return frozenset()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(name for node in tree.body for name in _arguments(node, callee))


def _arguments(node: ast.stmt, callee: Callee) -> Iterator[str]:
    """Yield the arguments of a function, of a method of a class, or of a class of data. A class without the method also
    has those of its base classes."""
    if isinstance(node, ast.FunctionDef) and node.name == callee.name:
        yield from (each.arg for each in (*node.args.args, *node.args.kwonlyargs))
    if not isinstance(node, ast.ClassDef) or node.name != callee.name:
        return
    methods = [part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == callee.method]
    for method in methods:
        yield from (each.arg for each in (*method.args.args, *method.args.kwonlyargs))
    if methods:
        return
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name) and callee.method == "__init__":
            yield part.target.id
    for base in node.bases:
        if isinstance(base, ast.Name):
            yield from _installed(callee._replace(name=base.id))
