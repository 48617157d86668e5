"""The errors that a user can cause: what was wrong, why it matters, the next command."""

from __future__ import annotations


class DsAdviseError(Exception):
    """A question that cannot be answered as it was asked.

    Every error says three things, each one line without a full stop at the end of `fix`:

    what: what was wrong, naming the offending value;
    why:  why it matters or why it cannot be guessed;
    fix:  the exact flag, file or command that mends it.
    """

    def __init__(self, what: str, *, why: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what, self.why, self.fix = what, why, fix

    def __str__(self) -> str:
        return "  ".join(part for part in (self.what, self.why, self.fix) if part)


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
