"""What to do with the answer: the file, the script's arguments, and the command for each launcher."""

from __future__ import annotations

from rich.console import Console

from ..ds_configs.launch_commands import launch_commands
from ..ds_configs.training_arguments import training_arguments, training_arguments_snippet
from .lines import blank, copyable, sentence
from .recommendation import Recommendation


def render_next_steps(answer: Recommendation, config_path: str, console: Console) -> None:
    """Print what belongs to the recommended plan; nothing where nothing fits.

    config_path: the file that the commands name, written or not.
    """
    if answer.recommended is None:
        return
    question, plan = answer.question, answer.recommended.estimate.plan
    framework = question.workload.framework
    blank(console)
    for path in answer.files:
        sentence(console, f"Wrote {path}.")
    if framework == "hf":
        sentence(console, "In the training script:")
        snippet = training_arguments_snippet(training_arguments(plan, question.workload, config_path=config_path))
        copyable(console, snippet.splitlines())
    elif plan.gradient_checkpointing:
        sentence(console, "In the training script: model.gradient_checkpointing_enable()")
    sentence(console, "Start it with one of:" if question.cluster.nodes == 1 else
             "Start it with one of (torchrun and accelerate on every node):")
    for lines in launch_commands(question.cluster, config_path=config_path, framework=framework).values():
        copyable(console, lines)
