"""The public `advise()`: of a model, or of the user's training command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Unpack

from ..estimators.errors import WorkloadError
from ..estimators.models.model_shape import ModelShape
from .advise import answer, build_question, documented
from .question.options import QuestionOptions
from .results import Answer


@documented
def advise(
    model: str | ModelShape | Any = None,
    *,
    command: Sequence[str] | None = None,
    config_file: Path | str | None = None,
    example_inputs: Any = None,
    loss_fn: Callable[[Any, Any], Any] | None = None,
    sharding: Literal["zero", "fsdp"] = "zero",
    deepspeed_estimate: bool = False,
    say: Callable[[str], None] = lambda _: None,
    **options: Unpack[QuestionOptions],
) -> Answer:
    """The fastest DeepSpeed configuration that fits, with memory and time of every strategy.

    model: a catalogue name in any spelling, a folder or `config.json`, a hub id, "FILE.py:FUNCTION" (the file is
        executed, in a subprocess), a `torch.nn.Module` or a function that returns one, or a `ModelShape`.
    command: the words of a training command in place of a model: ["torchrun", "train.py", ...]. It is run unmodified on
        a simulated GPU in the working folder, where nothing is written; its training becomes the question, and the
        recommended plan is proved by a dry run of the changed command. The answer is an `AnswerForCommand`: also
        `today` (the command as it is), `changed` (words, texts of new files, lines to change) and `proofs`. Options
        then replace what the command decides; with others than the machine, the batch and the risk there is no proof.
    config_file: with a command that names no DeepSpeed configuration, its configuration.
    example_inputs: of a module that is given as an object: the arguments of its `forward` with any number of samples, a
        tensor, a tuple or a dict by name.
    loss_fn: of such a module: the loss by output and inputs; by default the output's `loss`, or its mean.
    sharding: "fsdp" also predicts plain PyTorch, for comparison (`Recommendation.pytorch_baseline`).
    deepspeed_estimate: also show DeepSpeed's own estimate in reports and data. `Answer.deepspeed_estimate` has it
        either way, computed when it is read (it imports torch and deepspeed, which takes seconds).
    say: receives progress and warnings, such as one about quantized weights.

    Raises `DsAdviseError` for a question that cannot be answered. If no plan fits, `fits` is False.
    """
    if (model is None) == (command is None):
        raise WorkloadError(
            "advise() takes a model or a command", fix='pass advise("Qwen2.5-14B") or advise(command=[...])'
        )
    if command is not None:
        # Imported here: few answers are about a command.
        from .command.advise import advise_command
        from .command_results import AnswerForCommand

        file = None if config_file is None else Path(config_file)
        return AnswerForCommand.of(advise_command(command, options, config_file=file, say=say))
    question = build_question(model, example_inputs=example_inputs, loss_fn=loss_fn, say=say, **options)
    found = answer(question, sharding=sharding)
    return Answer.of(replace(found, shows_deepspeed_estimate=deepspeed_estimate))
