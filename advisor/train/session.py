"""`ds-advise train` from the options to the exit code: a training anew, one that is only shown, one that goes on.

`options` are those that say what is trained, under the names that the command gives them; `advice` are the keyword
arguments of `advise` among them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from ...estimators.models.model_shape import ModelShape
from ..question.cluster import cluster_here, cluster_of, memory_limit_bytes
from ..question.model_source import load_model
from ..text.output import Output
from .folder import TrainingFolder
from .proposal import Proposal, propose
from .report import json_form, render_proposal, render_proven, render_start, render_trained
from .settings import TrainingSettings
from .train import Trained, TrainingControls, proven, resume, start


def train_anew(
    options: Mapping[str, Any], advice: Mapping[str, Any], path: Path, controls: TrainingControls, *, force: bool
) -> int:
    """Propose, prove, train and save; answers the exit code. The options are kept for --resume.

    force: use a folder that is not empty.
    """
    output, folder = controls.output, TrainingFolder(path)
    settings, shape = _read(options)
    cluster = cluster_here(options)
    folder.claim(force=force)
    with folder.held():
        folder.keep_options(options)
        proposed = _proposed(settings, shape, {**advice, "gpus": cluster}, folder, output)
        if proposed.answer.recommended is None:
            return _not_started(proposed, output)
        ready = proven(proposed, memory_limit_bytes=memory_limit_bytes(options), output=output)
        _tell(output, lambda console: render_proven(proposed, ready, console))
        if ready.answer.recommended is None:
            return _not_started(ready, output)
        return _ended(start(ready, controls), ready, output)


def show(options: Mapping[str, Any], advice: Mapping[str, Any], path: Path, output: Output) -> int:
    """Print what `train_anew` would write into the folder and start; nothing of it stays."""
    settings, shape = _read(options)
    cluster = cluster_of(options)
    with TemporaryDirectory() as temporary:
        folder = TrainingFolder(Path(temporary))
        folder.claim(force=False)
        proposed = _proposed(settings, shape, {**advice, "gpus": cluster}, folder, output)
        if proposed.answer.recommended is None:
            return _not_started(proposed, output)
        place = TrainingFolder(path)
        output.show(lambda: json_form(proposed, None), lambda console: render_start(proposed, place, console))
        return 0


def go_on(given: Mapping[str, Any], path: Path, controls: TrainingControls) -> int:
    """Resume the training in a folder with the options that it kept, from which the given ones must not differ."""
    folder = TrainingFolder(path)
    options = folder.kept_options(given)
    settings, shape = _read(options)
    cluster = cluster_here(options)
    with folder.held():
        return _ended(resume(shape, cluster, folder, controls, merging=settings.merge), None, controls.output)


def _proposed(
    settings: TrainingSettings, shape: ModelShape, question: Mapping[str, Any], folder: TrainingFolder, output: Output
) -> Proposal:
    proposed = propose(settings, shape, question, folder, output.say)
    _tell(output, lambda console: render_proposal(proposed, console))
    return proposed


def _read(options: Mapping[str, Any]) -> tuple[TrainingSettings, ModelShape]:
    settings = TrainingSettings.of(options)
    return settings, load_model(settings.model, offline=settings.offline)


def _not_started(proposed: Proposal, output: Output) -> int:
    """What people want to know of it they have been told."""
    output.show(lambda: json_form(proposed, None), lambda _: None)
    return 1


def _ended(trained: Trained, proposed: Proposal | None, output: Output) -> int:
    output.show(lambda: json_form(proposed, trained), lambda console: render_trained(trained, console))
    return 0 if trained.finished else 1


def _tell(output: Output, render: Callable[[Console], object]) -> None:
    """What comes before the answer is for people alone."""
    if output.mode == "human":
        render(output.console())
