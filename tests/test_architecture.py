"""The folders' arrows point one way, and the fast path stays free of slow imports."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import ds_advise
import pytest

from tests.helpers import imports_of

PACKAGE = Path(ds_advise.__file__).parent
MAY_IMPORT: dict[str, set[str]] = {
    "estimators": set(),
    "ds_configs": {"estimators"},
    "probes": {"estimators", "ds_configs"},
    "validate": {"estimators", "ds_configs", "probes"},
    "advisor": {"estimators", "ds_configs", "probes", "validate"},
}
OF_OTHER_ANSWERS = ("probes.failures.diagnosis", "advisor.command.failed_training", "advisor.train.settings")
"""Modules of this package for a log and for a training, which are slow to import."""

SLOW = (
    "torch",
    "deepspeed",
    "transformers",
    "accelerate",
    "pydantic",
    "numpy",
    "huggingface_hub",
    "psutil",
    "sqlite3",
    "ds_advise.advisor.html_report",
)


CHECKOUT = Path(__file__).parents[1]

PACKAGE_FILES = [
    *PACKAGE.glob("__*__.py"),
    *(path for folder in MAY_IMPORT for path in sorted((PACKAGE / folder).rglob("*.py"))),
]

Module = tuple[str, ...]
"""A module by its names below `ds_advise`; a folder's `__init__.py` has the folder's name."""


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(root: Path = PACKAGE, folders: tuple[str, ...] = tuple(MAY_IMPORT)) -> dict[Module, set[Module]]:
    """The modules of the folders that each module imports, at any depth of its code."""
    paths = {
        path.relative_to(root).with_suffix("").parts: path
        for folder in folders
        for path in sorted((root / folder).rglob("*.py"))
    }
    modules = {name[:-1] if name[-1] == "__init__" else name for name in paths}
    graph: dict[Module, set[Module]] = {module: set() for module in modules}
    for name, path in paths.items():
        module = name[:-1] if name[-1] == "__init__" else name
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.ImportFrom):
                target = _target(node, package=name[:-1])
                graph[module] |= {
                    (*target, alias.name) if (*target, alias.name) in modules else target for alias in node.names
                }
        graph[module] = (graph[module] & modules) - {module}
    return graph


def _target(node: ast.ImportFrom, package: Module) -> Module:
    names = tuple(node.module.split(".")) if node.module else ()
    if node.level:
        return package[: len(package) - node.level + 1] + names
    return names[1:] if names[0] == "ds_advise" else ()


def _module(path: Path) -> Module:
    name = path.relative_to(PACKAGE).with_suffix("").parts
    return name[:-1] if name[-1] == "__init__" else name


def names_of(tree: ast.Module) -> set[str]:
    """The names that a module binds, and more: also those of its functions and classes."""
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def circle(graph: dict[Any, set[Any]]) -> list[Any]:
    """One circle of the graph, whose last member is its first; empty where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_a_folder_imports_only_what_stands_below_it() -> None:
    """estimators <- ds_configs <- probes <- validate <- advisor, and never back up."""
    upwards = [
        (".".join(module), ".".join(target))
        for module, targets in imports().items()
        for target in targets
        if target[0] not in MAY_IMPORT[module[0]] | {module[0]}
    ]
    assert not upwards


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert not circle(imports())
    assert not circle(imports(CHECKOUT, ("benchmarks",)))


def test_every_name_that_a_module_imports_from_another_exists() -> None:
    """Also inside of a function, whose call alone would show it. Nothing is imported for it: all modules take long."""
    trees = {path: _tree(path) for path in PACKAGE_FILES}
    modules = {_module(path): names_of(tree) for path, tree in trees.items()}
    lacking = [
        f"{path}:{node.lineno}: {alias.name}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.level or str(node.module).startswith("ds_advise"))
        for alias in node.names
        for target in [_target(node, package=path.relative_to(PACKAGE).parts[:-1])]
        if (*target, alias.name) not in modules and not {alias.name, "__getattr__"} & modules.get(target, set())
        if not (PACKAGE.joinpath(*target, alias.name)).is_dir()
    ]
    assert not lacking


def test_only_their_own_tests_import_the_benchmarks() -> None:
    others = [path for path in (CHECKOUT / "tests").rglob("*.py") if path.parent.name != "of_benchmarks"]
    names = ("import benchmarks", "from benchmarks")
    assert not [path for path in others if any(line.startswith(names) for line in path.read_text().splitlines())]


def test_no_rooms_of_a_folder_import_each_other_in_a_circle() -> None:
    """In every folder; its modules count as rooms."""
    circles = {}
    for folder in {module[:depth] for module in imports() for depth in range(1, len(module))}:
        rooms: dict[str, set[str]] = defaultdict(set)
        for module, targets in imports().items():
            for target in targets:
                if all(name[: len(folder)] == folder and len(name) > len(folder) for name in (module, target)):
                    rooms[module[len(folder)]] |= {target[len(folder)]} - {module[len(folder)]}
        if circle(rooms):
            circles[folder] = circle(rooms)
    assert not circles


def test_the_answer_in_python_loads_no_slow_library_either() -> None:
    """As little as the command, which needs rich to print; DeepSpeed's estimate is computed when it is read."""
    asked = "import ds_advise\nanswer = ds_advise.advise('Qwen2.5-14B', gpus='2x32GB', offline=True)\n"
    assert imports_of(f"{asked}assert answer.fits and answer.ds_config", (*SLOW, "rich")) == []
    assert imports_of(f"{asked}assert answer.deepspeed_estimate.gpu_bytes", ("deepspeed",)) == ["deepspeed"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["Qwen2.5-14B", "--gpus", "2x32GB", "--no-write", "--no-deepspeed-estimate"],
        ["compare", "zero2", "zero3", "--model", "gpt2", "--gpus", "2xA40", "--offline", "--json"],
    ],
    ids=["help", "answer", "compare"],
)
def test_the_analytic_answer_loads_no_slow_library(arguments: list[str]) -> None:
    """The answer comes at once: nothing of torch, DeepSpeed or pydantic is imported on the way to it."""
    names = (*SLOW, *(f"ds_advise.{name}" for name in OF_OTHER_ANSWERS))
    assert imports_of(f"from ds_advise.advisor.cli.main import run\nassert run({arguments!r}) == 0", names) == []
