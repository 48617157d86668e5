"""Change a module as soon as it is imported."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Change = Callable[[ModuleType], None]


def on_import(name: str, change: Change) -> None:
    """Call `change` with a module: now if it is imported, else as soon as it is."""
    if name in sys.modules:
        change(sys.modules[name])
        return
    _finder.changes[name].append(change)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


class _Finder(MetaPathFinder):
    """Finds what the other finders find; the loader then changes the module."""

    def __init__(self) -> None:
        self.changes: dict[str, list[Change]] = defaultdict(list)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.changes:
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next((found for each in others if (found := each.find_spec(fullname, path, target))), None)
        loader: Any = spec and spec.loader
        if loader:
            execute = loader.exec_module

            def execute_and_change(module: ModuleType) -> None:
                execute(module)
                for change in self.changes[fullname]:
                    change(module)

            loader.exec_module = execute_and_change
        return spec


_finder = _Finder()
