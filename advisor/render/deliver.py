"""What the user gets: the printed answer (or JSON), the configuration file, the commands, and the exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...ds_configs.emit import ds_config
from ...ds_configs.write import write_config
from ...estimators.errors import ConfigFileError
from ..answer.recommendation import Recommendation, try_first_path
from ..search.candidate import Candidate
from ..text.language import SAMPLES, Language, speaking
from ..text.output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from ..answer.advice import Advice

Destination = Path | Literal["-"] | None
"""Where the configuration goes: a file, stdout, or nowhere."""


def deliver(
    answer: Recommendation,
    destination: Destination,
    output: Output,
    *,
    force: bool,
    all_candidates: bool,
    details: bool = False,
    instead: Callable[[Recommendation], str] | None = None,
    language: Language = "en",
) -> int:
    """Write the recommended configuration, show the answer, and return the exit code.

    instead: makes a text that people get in place of the printed answer.
    language: of the printed answer; whatever is made for programs or written to files is English.

    A file that may not be written does not cost the user the answer: that is shown first, then the error is raised.
    """
    config, failure = recommended_config(answer), None
    if isinstance(destination, Path):
        answer, failure = _written(answer, destination, force=force)
    if destination == "-" and config is not None:
        print(json.dumps(config, indent=2))

    def form() -> Advice:
        from ..answer.advice import advice_of  # imported here: only JSON needs it

        return advice_of(answer, all_candidates=all_candidates)

    def render_all(console: Console) -> None:
        if instead is not None:
            print(instead(answer), end="")
            return
        # Imported here: JSON needs no terminal library.
        from ..text.lines import can_encode
        from .answer import render
        from .next_steps import render_next_steps

        path = str(destination) if isinstance(destination, Path) else "ds_config.json"
        with speaking(language if can_encode(console, SAMPLES[language]) else "en"):
            render(answer, console, all_candidates=all_candidates, details=details)
            render_next_steps(answer, path, console, details=details)

    if destination == "-" and output.mode == "human":
        render_all(output.console(on_stderr=True))
    else:
        output.show(form, render_all)
    if failure is not None:
        raise failure
    return 0 if answer.recommended is not None else 1


def _written(
    answer: Recommendation, destination: Path, *, force: bool
) -> tuple[Recommendation, ConfigFileError | None]:
    """The answer with the files that were written for it, and why one could not be."""
    plans = ((answer.recommended, destination), (answer.try_first, try_first_path(destination)))
    for candidate, path in plans:
        if candidate is not None:
            try:
                write_config(_config(answer, candidate), path, force=force)
            except ConfigFileError as error:
                return answer, error
            answer = replace(answer, files=(*answer.files, str(path)))
    return answer, None


def recommended_config(answer: Recommendation) -> dict[str, Any] | None:
    """The DeepSpeed configuration of the recommended plan, None where nothing fits."""
    return None if answer.recommended is None else _config(answer, answer.recommended)


def _config(answer: Recommendation, candidate: Candidate) -> dict[str, Any]:
    question = answer.question
    return ds_config(
        candidate.plan, question.model, question.workload, question.cluster, flavor=question.workload.framework
    )
