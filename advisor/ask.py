"""The public `advise()`: of a model, or of the user's training command."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Unpack

from ..estimators.errors import WorkloadError
from ..estimators.models.model_shape import ModelShape
from .advise import answer, build_question
from .documented import documented
from .question.options import QuestionOptions
from .results import Answer


@documented
def advise(
    model: str | ModelShape | Any = None,
    *,
    command: Sequence[str] | str | None = None,
    config_file: Path | str | None = None,
    example_inputs: Any = None,
    loss_fn: Callable[[Any, Any], Any] | None = None,
    sharding: Literal["zero", "fsdp"] = "zero",
    deepspeed_estimate: bool = False,
    say: Callable[[str], None] | None = None,
    **options: Unpack[QuestionOptions],
) -> Answer:
    """Recommend the fastest DeepSpeed configuration that fits, with memory and time of every strategy.

        >>> answer = ds_advise.advise("Qwen2.5-14B", gpus="2x32GB", ram="512GB", method="lora")
        >>> answer.strategy, answer.tokens_per_second, answer.device_bytes_per_gpu
        >>> answer.save("ds_config.json")

    Memory is in bytes, time in seconds, speed in tokens per second of all GPUs. No GPU, weights or network are needed.

    model: a catalogue name in any spelling, a folder or `config.json`, a hub id, "FILE.py:FUNCTION" (the file is
        executed, in a subprocess), a `torch.nn.Module` or a function that returns one, or a `ModelShape`.
    command: a training command in place of a model, as a line or as words: ["torchrun", "train.py", ...]. It is run
        unmodified on a simulated GPU in the working folder, where nothing is written; its training becomes the
        question, and the recommended plan is proved by a dry run of the changed command. The answer is an
        `AnswerForCommand`: also `today` (the command as it is), `changed` (words, texts of new files, lines to change)
        and `proofs`. Options then replace what the command decides; with others than the machine, the batch and the
        risk there is no proof.
    config_file: with a command that names no DeepSpeed configuration, its configuration.
    example_inputs: of a module that is given as an object: the arguments of its `forward` with any number of samples, a
        tensor, a tuple or a dict by name.
    loss_fn: of such a module: the loss by output and inputs; by default the output's `loss`, or its mean.
    sharding: "fsdp" also predicts plain PyTorch (`Answer.pytorch_baseline`), whose plan counts as one that fits
        if no DeepSpeed plan does.
    deepspeed_estimate: also show DeepSpeed's own estimate in reports and data. `Answer.deepspeed_estimate` has it
        either way, computed when it is read (it imports torch and deepspeed, which takes seconds).
    say: called with each line of progress and each warning, such as one about quantized weights; None for silence.

    Returns an `Answer`, which prints itself. If no plan fits, its `fits` is False.

    Raises `DsAdviseError` for a question that cannot be answered; its message says what to pass instead.
    """
    say = say or (lambda _: None)
    if (model is None) == (command is None):
        raise WorkloadError(
            "advise() takes a model or a command", fix='pass advise("Qwen2.5-14B") or advise(command=[...])'
        )
    if command is not None:
        # Imported here: few answers are about a command.
        from .command.advise import advise_command
        from .command_results import AnswerForCommand

        file = None if config_file is None else Path(config_file)
        words = shlex.split(command) if isinstance(command, str) else command
        return AnswerForCommand.of(advise_command(words, options, config_file=file, say=say, on_task=say))
    question = build_question(model, example_inputs=example_inputs, loss_fn=loss_fn, say=say, **options)
    found = answer(question, sharding=sharding)
    return Answer.of(replace(found, shows_deepspeed_estimate=deepspeed_estimate))
