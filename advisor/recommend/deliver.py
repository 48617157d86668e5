"""What the user gets: the printed answer (or JSON), the configuration file, the commands, and the exit code."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from ...ds_configs.emit import ds_config
from ...ds_configs.write import write_config
from ...estimators.errors import ConfigFileError
from .recommendation import Recommendation
from .to_json import json_form

Destination = Path | Literal["-"] | None
"""Where the configuration goes: a file, stdout, or nowhere."""


def deliver(
    answer: Recommendation, destination: Destination, *, force: bool, as_json: bool, all_candidates: bool
) -> int:
    """Write the recommended configuration, print the answer, and return the exit code.

    A file that may not be written does not cost the user the answer: that is printed first, then the error is raised.
    """
    config = recommended_config(answer)
    failure: ConfigFileError | None = None
    if config is not None and isinstance(destination, Path):
        try:
            write_config(config, destination, force=force)
            answer = replace(answer, files=(str(destination),))
        except ConfigFileError as error:
            failure = error
    if as_json:
        print(json.dumps(json_form(answer, all_candidates=all_candidates), indent=1))
    else:
        if destination == "-" and config is not None:
            print(json.dumps(config, indent=2))
        _print_answer(answer, destination, all_candidates=all_candidates)
    if failure is not None:
        raise failure
    return 0 if answer.recommended is not None else 1


def recommended_config(answer: Recommendation) -> dict[str, Any] | None:
    """The DeepSpeed configuration of the recommended plan, None where nothing fits."""
    if answer.recommended is None:
        return None
    question = answer.question
    return ds_config(
        answer.recommended.estimate.plan,
        question.model,
        question.workload,
        question.cluster,
        flavor=question.workload.framework,
    )


def _print_answer(answer: Recommendation, destination: Destination, *, all_candidates: bool) -> None:
    """The answer for people on stdout, or on stderr where stdout carries the configuration."""
    # Imported here: JSON output needs no terminal library.
    from rich.console import Console

    from .next_steps import render_next_steps
    from .report import render

    console = Console(file=sys.stderr if destination == "-" else sys.stdout, highlight=False)
    render(answer, console, all_candidates=all_candidates)
    config_path = str(destination) if isinstance(destination, Path) else "ds_config.json"
    render_next_steps(answer, config_path, console)
