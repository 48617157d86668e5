"""A module of the user's, recorded in a subprocess. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from ...estimators.json_form import from_json
from ...estimators.models.model_shape import ModelShape, OwnModule
from ..dry_run.run import DryRunError, absolute_factory, answers


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRequest:
    """A module to record, for the subprocess."""

    module: OwnModule
    seq_len: int
    """The second argument of the file's `make_batch`."""

    def answer(self) -> ModelShape:
        """Raises UnusableModelError, UnrecordableError, and what the module's code raises."""
        from .module import recorded_file

        return recorded_file(self.module, self.seq_len)


def record_module(module: OwnModule, seq_len: int, *, timeout_s: float = 600.0) -> ModelShape:
    """The shape of the module of a file, which runs in a subprocess. Raises DryRunError where it cannot be recorded."""
    request = ModuleRequest(module=module._replace(factory=absolute_factory(module.factory)), seq_len=seq_len)
    (answer,) = answers([request], timeout_s)
    if isinstance(answer, DryRunError):
        raise answer
    return from_json(ModelShape, answer)
