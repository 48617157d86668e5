"""Classes of optimizers and schedulers with the arguments that a configuration can give them."""

from __future__ import annotations

import ast
from pathlib import Path

from .facts import Parameter, Signatures
from .parsed import parse

_OPTIMIZERS = (
    "ops/adam/fused_adam.py",
    "ops/adam/cpu_adam.py",
    "ops/lion/fused_lion.py",
    "ops/lion/cpu_lion.py",
    "ops/adagrad/cpu_adagrad.py",
    "ops/lamb/fused_lamb.py",
)


def deepspeed_optimizers(folder: Path) -> Signatures:
    return {name: found for file in _OPTIMIZERS for name, found in signatures(folder / file).items()}


def torch_optimizers(folder: Path) -> Signatures:
    files = sorted((folder / "optim").glob("[a-z]*.py"))
    own = [file for file in files if file.stem not in ("lr_scheduler", "optimizer", "swa_utils")]
    return {name: found for file in own for name, found in signatures(file).items() if not name.startswith("_")}


def torch_schedulers(folder: Path) -> Signatures:
    found = signatures(folder / "optim" / "lr_scheduler.py")
    return {name: parameters for name, parameters in found.items() if not name.startswith("_")}


def signatures(file: Path) -> Signatures:
    """Each class of a file with its arguments but `self` and the first one, which is the optimizer or its
    parameters."""
    tree = parse(file)
    return {
        node.name: _parameters(function.args)
        for node in (tree.body if tree is not None else ())
        if isinstance(node, ast.ClassDef)
        for function in node.body
        if isinstance(function, ast.FunctionDef) and function.name == "__init__"
    }


def _parameters(arguments: ast.arguments) -> tuple[Parameter, ...]:
    names = [argument.arg for argument in arguments.args]
    required = names[: len(names) - len(arguments.defaults)]
    keywords = [argument.arg for argument in arguments.kwonlyargs]
    return tuple(
        Parameter(name=name, required=name in required and name not in keywords) for name in names[2:] + keywords
    )
