"""What DeepSpeed rejected in a configuration file, in lint's words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...estimators.errors import ConfigFileError
from ...probes.run_errors import DryRunError
from ...validate.lint.document_reader import read_document
from ...validate.lint.installed_facts import load_facts
from ...validate.lint.lint import lint


@contextmanager
def rejected_setting(file: Path | None) -> Iterator[None]:
    """Raise ConfigFileError with lint's first error of `file` in place of the engine's exception while it reads its
    configuration, which may name a class or a Python attribute but no key. None: no file, so nothing is replaced."""
    try:
        yield
    except DryRunError as error:
        if file is None or error.phase not in ("load", "initialize"):
            raise
        findings = lint(read_document(file.read_bytes(), name=file.name), facts=load_facts()).findings
        first = next((finding for finding in findings if finding.severity == "error"), None)
        if first is None:
            raise
        place = f"{file.name}:{first.line}: {first.what}"
        raise ConfigFileError(
            place, why=f"DeepSpeed rejects this configuration ({first.code})", fix=first.fix
        ) from error
