"""Functions that open files in compiled code, or write to other machines, once their module is imported."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

from .files import View
from .imports import on_import

_OPENING = {  # the first path among the arguments is the file
    "cv2": ("imread", "imwrite"),
    "h5py": ("File.__init__",),
    "lmdb": ("open",),
    "pyarrow": ("OSFile", "create_memory_map", "memory_map"),
    "pyarrow.parquet.core": ("ParquetWriter.__init__", "_resolve_filesystem_and_path"),
    "safetensors": ("safe_open", "serialize_file"),
    "sentencepiece": ("SentencePieceProcessor.LoadFromFile",),
    "sqlite3": ("connect",),
    "tokenizers": ("Tokenizer.from_file", "Tokenizer.save"),
    "torch": ("UntypedStorage.from_file",),
}
_WRITING = (
    "ParquetWriter.__init__",
    "Tokenizer.save",
    "connect",
    "create_memory_map",
    "imwrite",
    "open",
    "serialize_file",
)
_WRITING_MODES = frozenset({"w", "wb", "w-", "x", "a", "r+"})
_WITH_MODE = ("File.__init__", "OSFile", "memory_map")

_BOUND_EARLY = frozenset({"glob", "pathlib", "pathlib._local", "tempfile"})
"""Modules with classes that keep the functions of `os` in static methods or default arguments."""

_HUB = "huggingface_hub.hf_api"
_PUBLISHING = ("create_repo", "create_commit", "create_branch", "create_tag", "delete_repo", "update_repo_settings")


def install(view: View) -> None:
    """Patch the modules that are loaded, and the others when they are imported."""
    for name in (*_OPENING, _HUB):
        on_import(name, functools.partial(_patch, view))


def rebind(replacements: Mapping[Any, Any]) -> None:
    """Replace objects under every name that a module gives them, also for code that imported them by `from`."""
    new = {id(each): replacement for each, replacement in replacements.items()}
    for module in list(sys.modules.values()):
        with contextlib.suppress(Exception):  # something else than a module
            for name, value in list(vars(module).items()):
                if id(value) in new:
                    setattr(module, name, new[id(value)])
                elif issubclass(type(value), type) and value.__module__ in _BOUND_EARLY:
                    _rebind_members(value, new)


def _rebind_members(owner: type, new: Mapping[int, Any]) -> None:
    for name, value in list(vars(owner).items()):
        if isinstance(value, staticmethod) and id(value.__func__) in new:
            setattr(owner, name, staticmethod(new[id(value.__func__)]))
        elif isinstance(value, FunctionType) and value.__defaults__:
            value.__defaults__ = tuple(new.get(id(each), each) for each in value.__defaults__)


def _patch(view: View, module: ModuleType) -> None:
    if module.__name__ == _HUB:
        _publish_nothing(module)
    for path in _OPENING.get(module.__name__, ()):
        *owners, name = path.split(".")
        owner: Any = module
        for each in owners:
            owner = getattr(owner, each, None)
        function = getattr(owner, name, None)
        if function is None:  # another version
            continue
        new = _in_view(view, function, path)
        if owner is module:
            rebind({function: new})
        elif isinstance(inspect.getattr_static(owner, name), staticmethod):
            setattr(owner, name, staticmethod(new))
        else:
            setattr(owner, name, new)


def _in_view(view: View, function: Callable[..., Any], path: str) -> Callable[..., Any]:
    def place(value: Any, writing: bool) -> Any:
        if not isinstance(value, str | os.PathLike) or value == ":memory:":
            return value
        text = os.fsdecode(value)
        return view.written(text) if writing else view.read(text)

    def call(*arguments: Any, **options: Any) -> Any:
        modes = {each for each in (*arguments[1:], options.get("mode")) if isinstance(each, str)}
        writing = path in _WRITING or (path in _WITH_MODE and bool(modes & _WRITING_MODES))
        positional = list(arguments)
        for index, value in enumerate(positional):
            if isinstance(value, str | os.PathLike):
                positional[index] = place(value, writing)
                break
        else:
            for name, value in options.items():
                if isinstance(value, str | os.PathLike):
                    options[name] = place(value, writing)
                    break
        return function(*positional, **options)

    return call


def _publish_nothing(module: Any) -> None:
    """Methods of the Hugging Face Hub's client that change a repository answer as if they had."""

    def create_repo(own: Any, repo_id: str, **_: Any) -> Any:
        return module.RepoUrl(f"{own.endpoint}/{repo_id}")

    def create_commit(own: Any, repo_id: str, *_: Any, commit_message: str = "", **__: Any) -> Any:
        url = f"{own.endpoint}/{repo_id}/commit/{'0' * 40}"
        return module.CommitInfo(commit_url=url, commit_message=commit_message, commit_description="", oid="0" * 40)

    new = {"create_repo": create_repo, "create_commit": create_commit}
    for name in _PUBLISHING:
        original = getattr(module.HfApi, name, None)
        if original is None:
            continue
        replaced = new.get(name, lambda *_, **__: None)
        setattr(module.HfApi, name, replaced)
        for each in list(sys.modules.values()):
            bound = vars(each).get(name) if isinstance(each, ModuleType) else None
            if isinstance(bound, MethodType) and bound.__func__ is original:
                setattr(each, name, MethodType(replaced, bound.__self__))
