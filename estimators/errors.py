"""Errors that a user can cause: what, why, and the next command."""

from __future__ import annotations

from .phrase import named


class DsAdviseError(Exception):
    """A question that cannot be answered. The three parts are one line each."""

    def __init__(self, what: str, *, why: str = "", fix: str = "") -> None:
        """what: what was wrong, naming the value. why: the reason, or why it cannot be guessed. fix: the flag, file or
        command that helps, without a full stop. A catalogue may have literals and `phrase`s."""
        super().__init__(what)
        self.what, self.why, self.fix = (named(_without_stop(part)) for part in (what, why, fix))

    def __str__(self) -> str:
        return "  ".join(part for part in (self.what, self.why, self.fix) if part)


def _without_stop(text: str) -> str:
    """Without the full stop of another library's message."""
    return text[:-1] if text.endswith(".") and text[-2:-1].isalnum() else text


class UnknownModelError(DsAdviseError):
    """No model of this name in the catalogue, in a folder, or on the hub."""


class ModelConfigError(DsAdviseError):
    """A model's config.json that is broken, too large, or lacks a field."""


class ClusterError(DsAdviseError):
    """GPUs, host memory or storage that are unknown or contradict each other."""


class WorkloadError(DsAdviseError):
    """A training setting that is impossible or contradicts another one."""


class ConfigFileError(DsAdviseError):
    """A file that cannot be read, or that will not be overwritten."""
