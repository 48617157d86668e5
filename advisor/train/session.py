"""`ds-advise train` from the options to the exit code: a new training, a dry one, a resumed one.

`options` are the command's options, by name; `advice` are the keyword arguments of `advise` among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from ...ds_configs.files import write_config
from ...estimators.models.model_shape import ModelShape
from ..question.cluster import cluster_here, cluster_of, memory_limit_bytes
from ..question.model_source import load_model
from ..text.output import Output
from .folder import TrainingFolder
from .proposal import Proposal, propose
from .report import render_proposal, render_proven, render_start, render_trained, training_report
from .settings import TrainingSettings
from .train import Trained, TrainingControls, proven, resume, start


def train_anew(
    options: Mapping[str, Any], advice: Mapping[str, Any], path: Path, controls: TrainingControls, *, force: bool
) -> int:
    """Propose, prove, train and save; returns the exit code. The options are kept for --resume.

    force: use a folder that is not empty.
    """
    output, folder, trained = controls.output, TrainingFolder(path), None
    settings, shape = _read(options)
    cluster = cluster_here(options)
    folder.claim(force=force)
    with folder.held():
        write_config(options, folder.options, force=True)
        ready = _proposed(settings, shape, {**advice, "gpus": cluster}, folder, output)
        if ready.answer.recommended is not None:
            proposed, ready = ready, proven(ready, memory_limit_bytes=memory_limit_bytes(options), output=output)
            if output.mode == "human":
                render_proven(proposed, ready, output.console())
        if ready.answer.recommended is not None:
            trained = start(ready, controls)
    return _show_end(trained, ready, output)


def show(options: Mapping[str, Any], advice: Mapping[str, Any], path: Path, output: Output) -> int:
    """Print what `train_anew` would write into the folder and start; all files are temporary."""
    settings, shape = _read(options)
    cluster = cluster_of(options)
    with TemporaryDirectory() as temporary:
        folder = TrainingFolder(Path(temporary))
        folder.claim(force=False)
        proposed = _proposed(settings, shape, {**advice, "gpus": cluster}, folder, output)
        if proposed.answer.recommended is None:
            return _show_end(None, proposed, output)
        place = TrainingFolder(path)
        output.show(lambda: training_report(proposed, None), lambda console: render_start(proposed, place, console))
        return 0


def go_on(given: Mapping[str, Any], path: Path, controls: TrainingControls) -> int:
    """Resume the training in a folder with the options that it kept; the given ones must equal them."""
    folder = TrainingFolder(path)
    options = folder.kept_options(given)
    settings, shape = _read(options)
    cluster = cluster_here(options)
    with folder.held():
        trained = resume(shape, cluster, folder, controls, merging=settings.merge)
    return _show_end(trained, None, controls.output)


def _read(options: Mapping[str, Any]) -> tuple[TrainingSettings, ModelShape]:
    settings = TrainingSettings.of(options)
    return settings, load_model(settings.model, offline=settings.offline)


def _proposed(
    settings: TrainingSettings, shape: ModelShape, question: Mapping[str, Any], folder: TrainingFolder, output: Output
) -> Proposal:
    proposed = propose(settings, shape, question, folder, output.say)
    if output.mode == "human":
        render_proposal(proposed, output.console())
    return proposed


def _show_end(trained: Trained | None, proposed: Proposal | None, output: Output) -> int:
    def render(console: Console) -> None:
        if trained is not None:
            render_trained(trained, console)

    output.show(lambda: training_report(proposed, trained), render)
    return 0 if trained is not None and trained.finished else 1
