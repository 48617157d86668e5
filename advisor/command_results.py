"""What `advise()` returns for a command."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from ..estimators.json_form import to_json
from .command.advice import CommandAdvice
from .document.blocks import Document
from .results import Answer


@dataclass(frozen=True, kw_only=True, repr=False)
class AnswerForCommand(Answer, CommandAdvice):
    """The result of `advise(command=...)`: also `today`, `changed` and `proofs`."""

    def _document(self) -> Document:
        from .render.command_advice import command_advice_document

        changed = set() if self.changed is None else {*self.changed.files}
        # `save()` writes one file, to any path.
        return command_advice_document(self if changed <= {*self.files} else replace(self, files=()))

    def to_dict(self, *, all_candidates: bool = False) -> dict[str, Any]:  # noqa: ARG002  there are no others
        """Return the answer as the object that `--json` prints."""
        found: dict[str, Any] = to_json(self.to_json())
        return found

    @property
    def ds_config(self) -> dict[str, Any] | None:
        """DeepSpeed's configuration for the changed command, the first of its new files; None without one."""
        files = {} if self.changed is None else self.changed.files
        text = next((text for path, text in files.items() if path.endswith(".json")), None)
        return None if text is None else json.loads(text)
