"""Errors in the words of Python: arguments in place of the command's options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from ...estimators.errors import DsAdviseError
from ...estimators.plan import PLANS
from .options import OPTIONS


@contextmanager
def python_words() -> Iterator[None]:
    """Raise the errors of the block with arguments in place of options: `gpus="2x24GB"` for `--gpus 2x24GB`."""
    try:
        yield
    except DsAdviseError as error:
        error.what, error.why, error.fix = map(in_python, (error.what, error.why, error.fix))
        raise


_ARGUMENTS = {"set": "settings", "strategy": "strategy"}
"""Options of commands that are arguments of `estimate()`."""


def in_python(text: str) -> str:
    """The text of an error with the options of the command line as arguments: `gpus="2x24GB"` for `--gpus 2x24GB`."""

    def argument(found: re.Match[str]) -> str:
        name, value = found[1].replace("-", "_"), found[2] or ""
        if name in _ARGUMENTS:
            return f'{_ARGUMENTS[name]}="{value}"' if value in PLANS else f"{_ARGUMENTS[name]} {value}".rstrip()
        if name not in OPTIONS:
            return found[0]
        option, bare = OPTIONS[name], value.rstrip(".:")
        if bare.isdigit() or value.startswith("'"):
            return f"{name}={value}"
        if bare and bare == option.metavar:  # a placeholder
            shown = f"{name}={bare}" if int in option.types or option.kind == "number" else f'{name}="{bare}"'
            return f"{shown}{value[len(bare) :]}"
        if bare and (bare in option.choices or bare == option.default or re.search(r"\d", bare)):
            return f'{name}="{bare}"{value[len(bare) :]}'
        return f"{name} {value}".rstrip()

    explained = r'ds_advise.estimate(MODEL, strategy="\1") '
    text = re.sub(r"ds-advise explain MODEL --strategy (\w[\w-]*) (?!--set)", explained, text)
    return text if "ds-advise " in text else re.sub(r"--([a-z][a-z-]*)(?:[ =]('[^']*'|[\w./:@+-]+))?", argument, text)
