"""The default script of a recommended plan, as files of the user's, and its command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...ds_configs.launch_commands import Rendezvous, launcher_words, shell_line
from ...probes.default_script import words
from ...probes.run import Run
from .recommendation import OwnScript, Recommendation

_LEFT_OUT = ("report_to", "save_strategy", "disable_tqdm")
"""Arguments of a dry run that a training leaves at their defaults."""


def script_files(answer: Recommendation, path: Path, config_path: str) -> tuple[list[tuple[Path, str]], OwnScript]:
    """Return the paths and texts of the script that trains the recommended plan, and how it is started.

    Under plain DeepSpeed `trainer.py` loads a transformers model and makes adapters; it stands beside the script.
    """
    assert answer.recommended is not None, "a plan fits"
    question = answer.question
    module = question.model.module
    run = Run.from_plan(
        answer.recommended.plan,
        question.model,
        question.workload,
        question.cluster,
        description=module.factory if module else None,
    )
    script = words.script_of(run)
    reads_files = script.name == words.TRAINER.name and question.workload.objective != "embedding"
    files = [(path, script.read_text("utf-8"))]
    if script.name == "engine.py" and (module is None or question.workload.method != "full"):
        files.append((path.with_name(words.TRAINER.name), words.TRAINER.read_text("utf-8")))
    arguments: dict[str, Any] = {} if module else {"model_name_or_path": question.model.name}
    arguments |= {name: value for name, value in words.script_arguments(run).items() if name not in _LEFT_OUT}
    if script.name != "engine.py" and question.epochs is not None:  # engine.py counts steps
        arguments["num_train_epochs"] = question.epochs
    config = {name: config_path for name in ("deepspeed", "deepspeed_config") if arguments.pop(name, None) is not None}
    own, config_words = words.option_words(arguments), words.option_words(config)
    rendezvous = Rendezvous("static") if question.cluster.nodes > 1 else None
    start = launcher_words("torchrun", question.cluster, [str(path), *own, *config_words], rendezvous=rendezvous)
    return files, OwnScript(str(path), tuple(own), tuple(config_words), shell_line(start), reads_files)
