"""Data sets of the `datasets` library are cut to the rows that a dry run needs."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from .imports import on_import


class Rows:
    """Cuts what `load_dataset` and `load_from_disk` return.

    most: rows of a data set that are kept; None for all.
    cut: rows before the cut, by the name of the data set or its split.
    """

    def __init__(self, most: int | None) -> None:
        self.most = most
        self.cut: dict[str, int] = {}

    def install(self) -> None:
        """Patch the library when it is imported."""
        if self.most is not None:
            on_import("datasets", self._patch)

    def _patch(self, module: ModuleType) -> None:
        for name in ("load_dataset", "load_from_disk"):
            setattr(module, name, self._cutting(getattr(module, name)))
        select = module.Dataset.select

        def selected(data: Any, indices: Any, *arguments: Any, **options: Any) -> Any:
            if self.cut:  # the script knows the rows before the cut
                indices = [index for index in indices if index < len(data)]
            return select(data, indices, *arguments, **options)

        module.Dataset.select = selected

    def _cutting(self, load: Callable[..., Any]) -> Callable[..., Any]:
        def loaded(*arguments: Any, **options: Any) -> Any:
            return self._first_rows(load(*arguments, **options), str(options.get("split") or "data"))

        return loaded

    def _first_rows(self, data: Any, name: str) -> Any:
        assert self.most is not None, "it is installed for a number of rows"
        if isinstance(data, dict):
            for split in data:
                data[split] = self._first_rows(data[split], str(split))
        elif hasattr(data, "select") and len(data) > self.most:
            self.cut[name] = len(data)
            data = data.select(range(self.most))
        elif hasattr(data, "take") and not hasattr(data, "__len__"):  # an iterable data set
            data = data.take(self.most)
        return data
