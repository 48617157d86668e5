"""What the user gets: the printed answer (or JSON), the configuration file, the commands, and the exit code."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...ds_configs.emit import ds_config
from ...ds_configs.write import write_config
from ...estimators.errors import ConfigFileError
from ..terminal.output import Output
from .recommendation import Recommendation
from .to_json import json_form

if TYPE_CHECKING:
    from rich.console import Console

Destination = Path | Literal["-"] | None
"""Where the configuration goes: a file, stdout, or nowhere."""


def deliver(
    answer: Recommendation, destination: Destination, output: Output, *, force: bool, all_candidates: bool
) -> int:
    """Write the recommended configuration, show the answer, and return the exit code.

    A file that may not be written does not cost the user the answer: that is shown first, then the error is raised.
    """
    config = recommended_config(answer)
    failure: ConfigFileError | None = None
    if config is not None and isinstance(destination, Path):
        try:
            write_config(config, destination, force=force)
            answer = replace(answer, files=(str(destination),))
        except ConfigFileError as error:
            failure = error
    if destination == "-" and config is not None:
        print(json.dumps(config, indent=2))

    def render_all(console: Console) -> None:
        # Imported here: JSON needs no terminal library.
        from .next_steps import render_next_steps
        from .report import render

        render(answer, console, all_candidates=all_candidates)
        render_next_steps(answer, str(destination) if isinstance(destination, Path) else "ds_config.json", console)

    if destination == "-" and output.mode == "human":
        render_all(output.console(on_stderr=True))
    else:
        output.show(lambda: json_form(answer, all_candidates=all_candidates), render_all)
    if failure is not None:
        raise failure
    return 0 if answer.recommended is not None else 1


def recommended_config(answer: Recommendation) -> dict[str, Any] | None:
    """The DeepSpeed configuration of the recommended plan, None where nothing fits."""
    if answer.recommended is None:
        return None
    question = answer.question
    return ds_config(
        answer.recommended.plan, question.model, question.workload, question.cluster, flavor=question.workload.framework
    )
