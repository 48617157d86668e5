"""A module of the user's, recorded in a subprocess and kept until its code changes. Imports no torch."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...estimators.json_form import from_json, to_json
from ...estimators.models.model_shape import ModelShape, OwnModule
from ..dry_run.run import DryRunError, absolute_factory, answers
from .recorded_model import cached, cached_file, keep


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRecording:
    """The shape of a module, and the files that made it."""

    shape: ModelShape
    files: Mapping[str, str]
    """Their digests by their paths."""

    @property
    def is_current(self) -> bool:
        return all(_digest(path) == digest for path, digest in self.files.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRequest:
    """A module to record, for the subprocess."""

    module: OwnModule
    seq_len: int
    """The second argument of the file's `make_batch`."""

    def answer(self) -> ModuleRecording:
        """Raises UnusableModelError, UnrecordableError, and what the module's code raises."""
        from .module import recorded_file

        file = self.module.factory.rpartition(":")[0]
        opened, folder = {file}, str(Path(file).parent)

        def note(event: str, arguments: tuple[Any, ...]) -> None:
            if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(folder):
                opened.add(arguments[0])

        sys.addaudithook(note)  # for the rest of the process
        shape = recorded_file(self.module, self.seq_len)
        libraries = tuple(sysconfig.get_paths().values())
        imported = (getattr(module, "__file__", None) or "" for module in list(sys.modules.values()))
        read = opened.union(path for path in imported if not path.startswith(libraries))
        return ModuleRecording(shape=shape, files={path: _digest(path) for path in read if not path.endswith(".pyc")})


def _digest(path: str) -> str:
    """ "" where there is no such file."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest() if Path(path).is_file() else ""


def record_module(module: OwnModule, seq_len: int, *, timeout_s: float = 600.0) -> ModelShape:
    """The shape of the module of a file, which runs in a subprocess where it, or a file that it read from its folder or
    imported, has changed since the last time. Raises DryRunError where it cannot be recorded."""
    request = ModuleRequest(module=module._replace(factory=absolute_factory(module.factory)), seq_len=seq_len)
    file = cached_file(to_json(request))
    known = cached(file, ModuleRecording)
    if known is not None and known.is_current:
        return known.shape
    (answer,) = answers([request], timeout_s)
    if isinstance(answer, DryRunError):
        raise answer
    keep(file, answer)
    return from_json(ModuleRecording, answer).shape
