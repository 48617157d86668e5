"""What to do with the answer: the file, the script's arguments, and the command for each launcher."""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.console import Console

from ...ds_configs.script_lines import model_lines, script_arguments, script_lines, trainer_lines
from ...ds_configs.training_arguments import python_source
from ...estimators.hardware.cluster import Cluster
from ...estimators.hardware.host_defaults import cores_per_rank
from ...estimators.phrase import named, phrase
from ..answer.reasons import slower_with
from ..answer.recommendation import Recommendation, try_first_path
from ..answer.start import NOTED, sets_threads, start_commands, start_settings
from ..search.candidate import Candidate
from ..text.labels import checkpointing_words
from ..text.lines import blank, commands, copyable, sentence
from ..text.units import times


def render_next_steps(answer: Recommendation, config_path: str, console: Console, *, details: bool = False) -> None:
    """Print what belongs to the recommended plan and to the one to try first; nothing where nothing may fit.

    config_path: the file that the commands name, written or not.
    details: with the script's arguments in full, and with every launcher's command.
    """
    if answer.recommended is None and answer.try_first is None:
        return
    blank(console)
    for path in answer.files:
        sentence(console, phrase("Wrote {path}.", path=path))
    if answer.try_first is not None:
        _try_first(answer, answer.try_first, str(try_first_path(Path(config_path))), console)
    if answer.recommended is None:
        return
    if details:
        _script(answer, answer.recommended, config_path, console)
        _start(answer, answer.recommended, config_path, console)
    else:
        _in_short(answer, answer.recommended, config_path, console)


def _try_first(answer: Recommendation, candidate: Candidate, config_path: str, console: Console) -> None:
    """The start of a plan that is only likely to fit, and what happens where it does not."""
    plan, safe = candidate.plan, answer.recommended
    start = named(plan.rung)
    if safe is not None:
        start = phrase(
            "{rung}, {ratio} as fast", rung=plan.rung, ratio=times(candidate.tokens_per_s / safe.tokens_per_s)
        )
    sentence(
        console,
        phrase(
            "Try first: {plan}, micro batch {size} x {steps}, {checkpointing}. Where memory runs out, this command "
            "goes on with a plan that fits:",
            plan=start,
            size=plan.micro_batch_size,
            steps=plan.gradient_accumulation_steps,
            checkpointing=checkpointing_words(plan),
        ),
    )
    commands(console, [_launch(answer, candidate, config_path)])


def _launch(answer: Recommendation, candidate: Candidate, config_path: str) -> str:
    told = " --software pinned-inputs=no" if _leaves_inputs_pageable(answer, candidate) else ""
    return f"ds-advise launch {shlex.quote(config_path)}{_place(answer.question.cluster)}{told} -- train.py"


def _in_short(answer: Recommendation, chosen: Candidate, config_path: str, console: Console) -> None:
    """What the script must be told, and one way to start it."""
    question, workload = answer.question, answer.question.workload
    if workload.framework == "hf":
        told = script_arguments(workload, chosen.plan, question.cluster, config_path)
        for elsewhere in ("output_dir", "deepspeed", "parallelism_config"):  # any, the command's, one of the lines
            told.pop(elsewhere, None)
        if told.get("gradient_checkpointing_kwargs") == {"use_reentrant": False} and workload.method == "full":
            del told["gradient_checkpointing_kwargs"]  # transformers 5's default, and without adapters either works
        words = ", ".join(f"{name}={python_source(value)}" for name, value in told.items())
        said = (
            phrase("In the script, create TrainingArguments before the model, with {arguments}.", arguments=words)
            if chosen.plan.zero_stage == 3
            else phrase("In the script, create TrainingArguments with {arguments}.", arguments=words)
        )
        if _has_lines(answer, chosen):
            said = phrase("{sentence} The script needs the lines that --details prints, too.", sentence=said)
        sentence(console, said)
    elif script_lines(question.model, workload, chosen.plan, question.cluster, config_path):
        sentence(console, phrase("The script needs the lines that --details prints."))
    exports = [setting for setting, _ in start_settings(answer, chosen)]
    sentence(console, phrase("Start it (--details has all launchers and arguments):"))
    commands(
        console,
        [*(f"export {setting}" for setting in exports), *start_commands(answer, chosen, config_path)["deepspeed"]],
    )
    sentence(console, phrase("Or have ds-advise see it fit, start it and watch it:"))
    commands(console, [_launch(answer, chosen, config_path)])


def _has_lines(answer: Recommendation, chosen: Candidate) -> bool:
    """Whether the script needs more than TrainingArguments."""
    workload = answer.question.workload
    tiled = workload.mlp == "tiled" or workload.loss == "tiled"
    pageable = _leaves_inputs_pageable(answer, chosen)
    return bool(model_lines(workload)) or tiled or pageable or chosen.plan.ranks_per_sample > 1


def _leaves_inputs_pageable(answer: Recommendation, chosen: Candidate) -> bool:
    """Whether layers' inputs wait on the host without being page-locked."""
    return chosen.plan.cpu_checkpointing and not answer.question.workload.software.pinned_inputs


def _script(answer: Recommendation, chosen: Candidate, config_path: str, console: Console) -> None:
    """What the script needs."""
    plan, workload = chosen.plan, answer.question.workload
    lines = script_lines(answer.question.model, workload, plan, answer.question.cluster, config_path)
    if lines:
        sentence(console, "In the training script:")
        copyable(console, lines)
        if workload.framework == "hf" and plan.zero_stage == 3:
            sentence(console, "Create the TrainingArguments before the model: it is then sharded while it loads.")
    if later := trainer_lines(answer.question.model, workload, plan):
        sentence(console, "Once the Trainer is made, before trainer.train():")
        copyable(console, later)
    if plan.cpu_checkpointing:
        sentence(console, "offload needs a version of transformers that knows it, such as 5.23.")
    if plan.sequence_parallel_size > 1:
        _sharing_collator(plan.sequence_parallel_size, console)


def _start(answer: Recommendation, chosen: Candidate, config_path: str, console: Console) -> None:
    """What is set before the start, and every launcher's command."""
    cluster = answer.question.cluster
    for setting, why in start_settings(answer, chosen):
        sentence(console, why)
        commands(console, [f"export {setting}"])
    if cluster.threads_per_rank is not None and not cluster.gpu.is_cpu and sets_threads(answer, chosen):
        _kept_threads(answer, chosen, cluster.threads_per_rank, console)
    by_launcher = start_commands(answer, chosen, config_path)
    everywhere = " and ".join(launcher for launcher in by_launcher if launcher != "deepspeed")
    sentence(console, f"Start it with one of{f' ({everywhere} on every node)' if cluster.nodes > 1 else ''}:")
    for command in by_launcher.values():
        commands(console, command)
    sentence(console, phrase("Or have ds-advise see it fit, start it and watch it:"))
    commands(console, [_launch(answer, chosen, config_path)])


def _sharing_collator(ranks: int, console: Console) -> None:
    """What GPUs that share samples want of the data loader (deepspeed `UlyssesSPDataLoaderAdapter`)."""
    sentence(
        console,
        "DeepSpeed's loader for shared samples gives nothing in every second epoch: repeat the data instead of the "
        f"epoch. Every batch needs position_ids and a length that {ranks} divides. In the data collator, with batch "
        f"padded to a multiple of {ranks}:",
    )
    copyable(
        console, ['batch["position_ids"] = torch.arange(batch["input_ids"].shape[1]).expand_as(batch["input_ids"])']
    )


def _kept_threads(answer: Recommendation, chosen: Candidate, threads: int, console: Console) -> None:
    """The threads that the user has set, and what others would gain."""
    part = cores_per_rank(answer.question.cluster)
    ratio = 1 / slower_with(answer.question, chosen, part)
    worth = f"; with {part}, the cores per rank, a step would be {times(ratio)} as fast" if ratio > NOTED else ""
    sentence(console, f"OMP_NUM_THREADS={threads} is set here and stays{worth}.")


def _place(cluster: Cluster) -> str:
    """Where `ds-advise launch` starts the ranks, if not on the GPUs of this machine."""
    if cluster.gpu.is_cpu:
        return f" --device cpu --ranks {cluster.gpus_per_node}"
    return " --hostfile hostfile" if cluster.nodes > 1 else ""
