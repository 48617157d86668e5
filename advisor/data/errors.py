"""Data that cannot be trained on."""

from __future__ import annotations

from ...estimators.errors import DsAdviseError


class DataError(DsAdviseError):
    """A data file, or one of its rows, that cannot be read or has no known shape."""
