"""Errors that a user can cause: what, why, and the next command."""

from __future__ import annotations

import copyreg
from typing import Any


class DsAdviseError(Exception):
    """Base class of the errors that a user can cause. Each of the three parts is one line."""

    exit_code: int = 2
    """Exit code of the command line."""

    def __init__(self, what: str, *, why: str = "", fix: str = "") -> None:
        """what: the problem, with the offending value. why: the cause, or the reason why no value can be assumed. fix:
        the flag, file or command that helps, without a full stop."""
        super().__init__(what)
        self.what, self.why, self.fix = (_without_stop(part) for part in (what, why, fix))

    def __str__(self) -> str:
        return error_line(self.what, self.why, self.fix)

    @property
    def reason(self) -> str:
        """`what: why`, without the fix."""
        return error_line(self.what, self.why)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Without __init__, whose keywords differ between the classes: errors come back from other processes.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


def error_line(what: str, why: str = "", fix: str = "") -> str:
    """The line of an error: `what: why; fix`, without the parts that are empty."""
    line = f"{what}: {why}" if why else what
    if fix and line.endswith("?"):
        return f"{line} {fix[0].upper()}{fix[1:]}"
    word = fix.partition(" ")[0]
    if word.istitle() and word.isalpha():  # a sentence of its own in the table of messages
        fix = f"{fix[0].lower()}{fix[1:]}"
    return f"{line}; {fix}" if fix else line


def _without_stop(text: str) -> str:
    """Return the text without the final full stop that another library's message may have."""
    return text[:-1] if text.endswith(".") and text[-2:-1].isalnum() else text


def check_kind(value: object, kinds: type | tuple[type, ...], argument: str, fix: str) -> None:
    """Raise DsAdviseError for an argument of Python that has another type than those that it takes. fix: what to
    pass."""
    if not isinstance(value, kinds):
        raise DsAdviseError(f"{argument} is {str(value)[:40]!r}, of the type {type(value).__name__}", fix=fix)


class UnknownModelError(DsAdviseError):
    """The catalogue, the file system and the hub have no model of this name."""

    names: tuple[str, ...] = ()
    """Hub ids in the message, to choose from: those that the name fits, or the nearest ones."""


class NoSuchModelError(UnknownModelError):
    """The catalogue has no model of this name."""

    meant = ""
    """Hub id of a name that is nearly the same; "" without one."""


class ModelConfigError(DsAdviseError):
    """A model's config.json is malformed, too large, or lacks a field."""


class ClusterError(DsAdviseError):
    """The description of GPUs, host memory or storage is unknown or contradictory."""


class NoGpuError(ClusterError):
    """This machine has no GPU that could stand for those that no option describes."""


class WorkloadError(DsAdviseError):
    """A training setting is impossible or contradicts another one."""


class UnsupportedPlanError(WorkloadError):
    """DeepSpeed, the Trainer or the GPUs cannot run a plan; `why` names the obstacle."""


class UnknownOptionError(DsAdviseError, TypeError):
    """A function has no keyword argument of this name."""


class ConfigFileError(DsAdviseError):
    """A file cannot be read, or exists and must not be overwritten."""
