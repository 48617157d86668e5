"""Python sources parsed without running them: their constants, functions, classes and literals."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


class _Unknown:
    """A value that only running the code would tell."""


UNKNOWN = _Unknown()


class ParsedSources:
    """Some files of a package, by their paths in it; files that are missing or cannot be parsed are left out."""

    def __init__(self, folder: Path, files: Iterable[str]) -> None:
        self.folder = folder
        self.trees = {name: tree for name in files if (tree := parse(folder / name)) is not None}
        self.constants = self._constants()

    def _constants(self) -> dict[str, Any]:
        """Every module-level NAME = literal of the files and of the `constants.py` in their folders."""
        constants: dict[str, Any] = {}
        missing = {f"{Path(name).parent}/constants.py" for name in self.trees} - set(self.trees)
        modules = [tree for name in sorted(missing) if (tree := parse(self.folder / name)) is not None]
        for tree in (*modules, *self.trees.values()):
            for name, value in assignments(tree):
                if (known := literal(value, constants)) is not UNKNOWN:
                    constants[name] = known
        return constants

    def functions(self, file: str, name: str) -> list[ast.FunctionDef]:
        """The functions of this name in a file, none in a file that was not read."""
        body = self.trees[file].body if file in self.trees else []
        return [node for node in body if isinstance(node, ast.FunctionDef) and node.name == name]

    def literal(self, node: ast.expr | None) -> Any:
        return literal(node, self.constants)

    def find_class(self, file: str, name: str) -> ast.ClassDef | None:
        """The class of this name in a file, else in any other that was read."""
        for tree in (self.trees[file], *self.trees.values()):
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and node.name == name:
                    return node
        return None


def parse(file: Path) -> ast.Module | None:
    try:
        return ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None


def assignments(tree: ast.Module | ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """(name, expression) of each NAME = expression of a module or class."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value


def literal(node: ast.expr | None, constants: dict[str, Any]) -> Any:
    """The value of a literal, a known name, `pp_int(x)`, a product, or a list of these; else UNKNOWN."""
    match node:
        case None:
            return UNKNOWN
        case ast.Name(id=name):
            return constants.get(name, UNKNOWN)
        case ast.Call(func=ast.Name(id="pp_int"), args=[first, *_]):
            value = literal(first, constants)
            return int(value) if isinstance(value, int | float) else UNKNOWN
        case ast.Attribute(value=ast.Name(id="sys"), attr="maxsize"):
            return 2**63 - 1
        case ast.BinOp(op=ast.Mult() | ast.Pow() as operator):
            left, right = literal(node.left, constants), literal(node.right, constants)
            if isinstance(left, int) and isinstance(right, int):
                return left * right if isinstance(operator, ast.Mult) else left**right if right < 64 else UNKNOWN
        case ast.List(elts=items) | ast.Tuple(elts=items):
            values = [literal(item, constants) for item in items]
            return UNKNOWN if any(value is UNKNOWN for value in values) else values
    try:
        return ast.literal_eval(node)
    except ValueError:
        return UNKNOWN
