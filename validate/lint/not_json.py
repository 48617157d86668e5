"""What a file is that holds no ds_config: Python, YAML, or accelerate's own configuration."""

from __future__ import annotations

import ast
import re
from typing import NamedTuple

_PYTHON_VALUE = re.compile(r"\b(True|False|None)[ \t]*[,}\]]")
"""Hjson ends text at the end of the line: to DeepSpeed such a value is the text `True,`."""

_KEY_LINE = re.compile(r"(?:---[^\n]*\n)?(?:[ \t]*(?:#[^\n]*)?\n)*([A-Za-z_][\w.-]*)[ \t]*:(?:[ \t]|\r?\n|$)")
_NAMED_FILE = re.compile(r"^\s*deepspeed_config_file:\s*['\"]?([^\s'\"#]+)", re.MULTILINE)


class OtherFormat(NamedTuple):
    """What a text is, after "it is", and what to do."""

    what: str
    fix: str


def python_dict(text: str) -> OtherFormat | None:
    """For a dict as Python writes it, with a value in it that neither JSON nor Hjson reads as meant."""
    if _PYTHON_VALUE.search(text) is None:
        return None
    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return OtherFormat("a Python dict", _dumped("ds_config")) if isinstance(value, dict) else None


def other_format(text: str) -> OtherFormat | None:
    """For a text that is not read as an object: Python code with a dict in it, YAML; None where it is neither."""
    name = _dict_in_code(text)
    if name is not None:
        return OtherFormat("Python code", _dumped(name))
    key = _KEY_LINE.match(text)
    if key is None:
        return None
    if "distributed_type:" in text or "deepspeed_config:" in text:
        named = _NAMED_FILE.search(text)
        fix = f"lint the file that it names: {named[1]}" if named else "lint the file of its deepspeed_config_file"
        return OtherFormat("accelerate's own configuration", fix)
    return OtherFormat("YAML, or an object without braces", "write it as JSON, which all readers of the file take")


def _dict_in_code(text: str) -> str | None:
    """The name that Python code gives a dict, "ds_config" for one without; None where it is no code or has none."""
    try:
        tree = ast.parse(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    dicts = [node for node in ast.walk(tree) if isinstance(node, ast.Dict) and node.keys]
    if not dicts:
        return None
    named = (node for node in ast.walk(tree) if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict))
    target = next((target for node in named for target in node.targets if isinstance(target, ast.Name)), None)
    return target.id if target is not None else "ds_config"


def _dumped(name: str) -> str:
    return f"write it to a file and lint that: json.dump({name}, open('ds_config.json', 'w'))"
