"""The Auto classes of transformers that load a model, by the tables of the installed version."""

from __future__ import annotations

import re
from functools import cache

from ...probes.installed_packages import source_folder

_TABLE = re.compile(r"^(MODEL_FOR_\w+_MAPPING)_NAMES = OrderedDict\((.*?)^\)", re.MULTILINE | re.DOTALL)
_CLASS = re.compile(r"^class _?(AutoModel\w+)\(_BaseAutoModelClass\):\n    _model_mapping = (\w+)", re.MULTILINE)
_MODEL = re.compile(r"\btransformers\.models\.(\w+)\.")

_NO_TASK = ("AutoModelForPreTraining", "AutoModelForTextEncoding")
"""Classes of no training's task: parts of models, and other names of the classes of tasks."""


def auto_classes(module: str) -> list[str]:
    """The Auto classes for the model whose configuration is in a module of transformers, in the order of their tables.
    Empty if transformers is not installed, or does not have the model."""
    found = _MODEL.search(f"{module}.")
    return [name for name, models in _tables().items() if found and found[1] in models and name not in _NO_TASK]


@cache
def _tables() -> dict[str, frozenset[str]]:
    """The types of models by the class that loads them (transformers 5.24 models/auto/modeling_auto.py). It is read,
    and not imported, which takes seconds."""
    folder = source_folder("transformers")
    path = folder and folder / "models" / "auto" / "modeling_auto.py"
    if path is None or not path.is_file():
        return {}
    text = path.read_text(encoding="utf-8")
    models = {found[1]: frozenset(re.findall(r'\(\s*"([\w-]+)",', found[2])) for found in _TABLE.finditer(text)}
    return {found[1]: models.get(found[2], frozenset()) for found in _CLASS.finditer(text)}
