"""What the user gets: the printed answer (or JSON), the configuration file, the commands, and the exit code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ...ds_configs.write import config_text, write_config
from ...estimators.errors import ConfigFileError
from ..answer.recommendation import Recommendation, try_first_path
from ..answer.start import plan_config, recommended_config
from ..text.language import SAMPLES, Language, use_language
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

    instead: makes a text that replaces the printed answer.
    language: of the printed answer; JSON and files are English.

    Where a file may not be written, the answer is shown first, then the error is raised.
    """
    config, failure = recommended_config(answer), None
    if isinstance(destination, Path):
        answer, failure = _written(answer, destination, force=force)
    if destination == "-" and config is not None:
        print(config_text(config), end="")

    def form() -> Advice:
        from ..answer.advice import advice_of  # imported here: only JSON needs it

        return advice_of(answer, all_candidates=all_candidates)

    def print_all(console: Console) -> None:
        if instead is not None:
            print(instead(answer), end="")
            return
        # Imported here: JSON needs no terminal library.
        from ..text.lines import can_encode
        from .answer import print_answer

        path = str(destination) if isinstance(destination, Path) else "ds_config.json"
        with use_language(language if can_encode(console, SAMPLES[language]) else "en"):
            print_answer(answer, console, config_path=path, all_candidates=all_candidates, details=details)

    if destination == "-" and output.mode == "human":
        print_all(output.console(on_stderr=True))
    else:
        output.show(form, print_all)
    if failure is not None:
        raise failure
    return 0 if answer.recommended is not None else 1


def _written(
    answer: Recommendation, destination: Path, *, force: bool
) -> tuple[Recommendation, ConfigFileError | None]:
    """The answer with the files that were written, and why one could not be."""
    for candidate, path in ((answer.recommended, destination), (answer.try_first, try_first_path(destination))):
        if candidate is not None:
            try:
                write_config(plan_config(answer, candidate), path, force=force)
            except ConfigFileError as error:
                return answer, error
            answer = replace(answer, files=(*answer.files, str(path)))
    return answer, None
