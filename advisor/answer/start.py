"""Start of a training under a plan: configuration, script lines, environment variables, and commands."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...ds_configs.emit import ds_config
from ...ds_configs.files import free_bytes
from ...ds_configs.job_files import JobFile
from ...ds_configs.launch_commands import (
    ALLOCATOR_SETTING,
    Launcher,
    launch_commands,
    threads_setting,
    unset_threads,
)
from ...ds_configs.read import saves_model
from ...ds_configs.training_script import (
    GPTQ_PACKAGES,
    arguments_class,
    fsdp_arguments,
    model_lines,
    pageable_inputs,
    python_source,
    script_arguments,
    script_lines,
    server_commands,
    trainer_lines,
    trl_requirement,
)
from ...ds_configs.unquantized_copy import (
    copy_bytes,
    copy_lines,
    has_copy,
    loaded_checkpoint,
    loads_checkpoint,
    quantized_remark,
    trains_gptq,
)
from ...estimators.objectives import OBJECTIVES
from ...estimators.time.job import checkpoint_bytes
from ...estimators.time.step_time import estimate_time
from ...estimators.workload import Workload
from ..document.blocks import Block, Commands, Sentence
from ..question.cluster import gpus_argument
from ..question.file_question import record
from ..question.question import Question
from ..search.candidate import Candidate
from ..text.labels import checkpointing_title
from ..text.units import alternatives, capitalised, ended, gib, times
from .recommendation import OwnScript, Recommendation, try_first_path

_SERVER = "Start the generation server before the training:"
_LAUNCHED_BY_DS_ADVISE = "Or let ds-advise check, start and watch it:"
_OR_DRY_RUN = "Or let ds-advise check, start and watch it, or dry-run it without a GPU:"


def plan_config(answer: Recommendation, candidate: Candidate) -> dict[str, Any]:
    """Return the DeepSpeed configuration of a plan."""
    question = answer.question
    return ds_config(
        candidate.plan, question.model, question.workload, question.cluster, flavor=question.workload.framework
    )


def written_config(answer: Recommendation, candidate: Candidate) -> dict[str, Any]:
    """Return the configuration of a plan as it is written to a file: with the record of its question."""
    figures = {
        "device_bytes_per_gpu": candidate.device_bytes,
        "host_bytes_per_node": candidate.memory.host_bytes_per_node,
        "step_seconds": candidate.time.step_s,
        "tokens_per_second": candidate.tokens_per_s,
        "unit": answer.question.model.unit,
        "fit_probability": candidate.fit.probability,
    }
    return plan_config(answer, candidate) | record(answer.question, candidate.plan, figures)


def rank_variables(answer: Recommendation) -> dict[str, str]:
    """Return the variables that every rank needs under any plan."""
    gpu = answer.question.cluster.gpu
    if gpu.is_cpu:
        return {"DS_ACCELERATOR": "cpu"}
    if gpu.vendor == "NVIDIA" and answer.question.workload.software.expandable_segments:
        return dict([ALLOCATOR_SETTING.split("=")])
    return {}


def start_settings(answer: Recommendation, chosen: Candidate) -> list[tuple[str, str]]:
    """Return the variables to set before the start, each with a sentence on the reason."""
    cluster = answer.question.cluster
    variables = " ".join(f"{name}={value}" for name, value in rank_variables(answer).items())
    if cluster.gpu.is_cpu:
        why = "Before the start (otherwise DeepSpeed looks for a GPU, and every rank uses all cores):"
        return [(f"{variables} {threads_setting(cluster)}", why)]
    settings: list[tuple[str, str]] = []
    if variables:
        why = "Before the start (without it, fragmentation can take a quarter more memory):"
        if cluster.nodes > 1:
            why = "Before the start, on every node (without it, fragmentation can take a quarter more memory):"
        settings.append((variables, why))
    if chosen.plan.offload_optimizer != "none" and cluster.threads_per_rank is None:  # the user has not set the threads
        launchers: tuple[Launcher, ...] = ("torchrun", "accelerate", "deepspeed")
        by_speed = dict[str, list[str]]()
        for launcher in launchers[1:2] if _only_by_accelerate(answer) else launchers:
            by_speed.setdefault(f"{_unset_speed(answer, chosen, launcher):.2f}", []).append(launcher)
        slower = [f"{speed} x as fast by {alternatives(by)}" for speed, by in by_speed.items() if speed != "1.00"]
        effect = f" (without it {', '.join(slower)})" if slower else ""
        settings.append((threads_setting(cluster), f"For the optimizer on the host{effect}:"))
    return settings


def _unset_speed(answer: Recommendation, chosen: Candidate, launcher: Launcher) -> float:
    """Return the speed of the plan with the launcher's own number of threads, as a share of that with an equal part of
    the cores."""
    question = answer.question
    cluster = replace(question.cluster, threads_per_rank=unset_threads(launcher, question.cluster))
    return chosen.time.step_s / estimate_time(question.model, question.workload, cluster, chosen.plan).step_s


def start_commands(answer: Recommendation, chosen: Candidate, config_path: str) -> dict[str, list[str]]:
    """Return the command lines that start the training, by launcher."""
    cluster, bind_cores = answer.question.cluster, False
    sets = chosen.plan.offload_optimizer != "none"
    if sets and cluster.is_this_machine and cluster.threads_per_rank is None:  # the user has not set the threads
        from ...probes.machine import can_bind_cores  # imported here: most questions are about other machines

        bind_cores = can_bind_cores(cluster.gpus_per_node)
    commands = launch_commands(
        cluster,
        config_path=config_path,
        framework=answer.question.workload.framework,
        sets_threads=sets,
        bind_cores=bind_cores,
    )
    return {"accelerate": commands["accelerate"]} if _only_by_accelerate(answer) else commands


def _only_by_accelerate(answer: Recommendation) -> bool:
    """Whether only accelerate's launcher works. PPOTrainer creates its own Accelerator, which gets its settings only
    from accelerate's launcher (trl 1.12 experimental/ppo/ppo_trainer.py `__init__`)."""
    return OBJECTIVES[answer.question.workload.objective].value_model


def has_fsdp_file(question: Question, plain: Candidate) -> bool:
    """Whether a file for accelerate starts a plan of plain PyTorch: FSDP2, or FSDP 1 with NF4 weights. accelerate
    trains the other weights of FSDP 1 as fp32 copies, which the predicted plan does not have (accelerate 1.15
    accelerator.py `prepare_model`), and FSDP 1 flattens no integers (torch 2.13 distributed/fsdp/_flat_param.py)."""
    workload = question.workload
    is_nf4 = workload.method == "qlora" and workload.quantization == "nf4" and workload.uses_trainer
    return plain.plan.sharding == "fsdp2" or (plain.plan.sharding == "fsdp" and is_nf4)


NO_FSDP_FILE = "It has no fp32 master weights, and no configuration is written for it."
"""What is said of a plan of plain PyTorch without such a file."""


def next_steps(
    answer: Recommendation, config_path: str, *, details: bool, dry_run: bool = True, launchers: bool = True
) -> Iterator[Block]:
    """Yield the next steps for the recommended plan and for the one to try first; empty if no plan may fit.
    config_path: the file that the commands name, whether written or not. details: include all lines of the script and
    every launcher's command. dry_run: include the command that dry-runs the script. launchers: include the job files
    whose start repeats the arguments of the default script."""
    yield from _checkpoint_to_load(answer)
    yield from _trl_version(answer)
    if answer.try_first is not None and not _only_by_accelerate(answer):
        yield from _try_first(answer, answer.try_first, str(try_first_path(Path(config_path))))
    chosen = answer.recommended
    if chosen is not None:
        if answer.script is not None:
            yield from _own_script(answer, chosen, answer.script)
        else:
            yield from (_in_full if details else _in_short)(answer, chosen, config_path)
        if answer.script is None and not _only_by_accelerate(answer):
            launch, cluster = _launch(answer, config_path), answer.question.cluster
            if cluster.gpu.is_cpu or not dry_run:
                yield from (Sentence(_LAUNCHED_BY_DS_ADVISE), Commands([launch]))
            else:
                # Then the file knows the GPUs on this machine; a report is read on others.
                recorded = answer.question.asked is not None and not details
                gpus = "" if recorded else f" --gpus {shlex.quote(gpus_argument(cluster))}"
                simulated = f"ds-advise dry-run {shlex.quote(config_path)}{gpus} -- train.py"
                yield from (Sentence(_OR_DRY_RUN), Commands([launch, simulated]))
    elif answer.taken is not None:
        yield from _pytorch_steps(answer, answer.taken)
    for file in answer.job_files:
        if not launchers and repeats_script(answer, file):
            continue
        how = "Or" if chosen is not None or answer.taken is None else "Start it"
        yield from (Sentence(f"{how} with {file.path}:"), Commands(file.start))


def _trl_version(answer: Recommendation) -> Iterator[Block]:
    """Yield the version of TRL that the objective's trainer needs, if its newest ones have none."""
    needed, trainer = trl_requirement(answer.question.workload), OBJECTIVES[answer.question.workload.objective].trainer
    if needed != "trl" and answer.shown is not None:
        yield from (Sentence(f"Newer versions of TRL have no {trainer}:"), Commands([f'pip install "{needed}"']))


def _checkpoint_to_load(answer: Recommendation) -> Iterator[Block]:
    """Yield what the script loads instead of a quantized checkpoint, with the lines that make a copy in bf16; and what
    loads GPTQ weights."""
    model, workload = answer.question.model, answer.question.workload
    if answer.taken is None and answer.try_first is None:
        return
    if trains_gptq(workload):
        loaded = loaded_checkpoint(model, workload)
        replaced = "" if loads_checkpoint(model, workload) else f" ({loaded}: the name or path of such a checkpoint)"
        yield Sentence(f"The script loads weights quantized with GPTQ{replaced}. Install what runs them:")
        yield Commands([f"pip install {' '.join(GPTQ_PACKAGES)}"])
        return
    if loads_checkpoint(model, workload):
        return
    if not has_copy(model):
        yield Sentence(ended(capitalised(quantized_remark(model, workload))))
        return
    need = f"{gib(copy_bytes(model))} GiB of RAM and on the drive"
    yield Sentence(
        f"The checkpoint is quantized ({model.quantized}). The plan loads a copy in bf16; make it once ({need}):"
    )
    yield Commands(copy_lines(model), is_python=True)
    yield Sentence(f"Then load {loaded_checkpoint(model, workload)} in the script, not {model.name}.")


def repeats_script(answer: Recommendation, file: JobFile) -> bool:
    """Return whether the start of a job file repeats the arguments of the default script."""
    words = answer.script.arguments[:1] if answer.script else ()
    return any(word in line for word in words for line in file.start)


def _server(answer: Recommendation) -> Iterator[Block]:
    """Yield the start of the vLLM server, if there is one, for the checkpoint that the training loads."""
    question = answer.question
    served = loaded_checkpoint(question.model, question.workload) or question.model.name
    if server := server_commands(question.workload, question.cluster, served):
        yield from (Sentence(_SERVER), Commands(server))


def _own_script(answer: Recommendation, chosen: Candidate, script: OwnScript) -> Iterator[Block]:
    where = " on every node" if answer.question.cluster.nodes > 1 else ""
    yield from _server(answer)
    data = "it trains on random rows until it gets your data"
    if script.reads_files:
        data = "without --train_file FILE (Arrow: input_ids, labels; ds-advise train makes it) its rows are random"
    yield Sentence(f"Start {script.path}{where}; {data}:")
    exports = [f"export {setting}" for setting, _ in start_settings(answer, chosen)]
    yield Commands([*exports, script.start])


def _pytorch_steps(answer: Recommendation, plain: Candidate) -> Iterator[Block]:
    """Yield the script's part of a plan of plain PyTorch, and what starts it if no file does."""
    question, workload = answer.question, answer.question.workload
    if workload.uses_trainer:
        arguments = fsdp_arguments(workload, plain.plan, question.cluster, epochs=question.epochs)
        arguments.pop("output_dir", None)
        yield from _arguments_sentence(workload, arguments)
        if lines := model_lines(question.model, workload, plain.plan):
            yield from (Sentence("The script also needs:"), Commands(lines, is_python=True))
    if answer.job_files:
        return
    if has_fsdp_file(question, plain):
        yield Sentence("--emit accelerate writes the file that starts it.")
    else:
        yield Sentence(NO_FSDP_FILE)


def _arguments_sentence(workload: Workload, arguments: dict[str, Any], early: str = "") -> Iterator[Block]:
    source = ", ".join(f"{name}={python_source(value, name)}" for name, value in arguments.items())
    yield Sentence(f"In the script, create {arguments_class(workload)}{early} with {source}.")


def _try_first(answer: Recommendation, candidate: Candidate, config_path: str) -> Iterator[Block]:
    plan, safe = candidate.plan, answer.recommended
    start: str = plan.strategy
    if safe is not None:
        ratio = times(candidate.tokens_per_s / safe.tokens_per_s)
        start = f"{plan.strategy}, {ratio} as fast"
    yield Sentence(
        f"Try first: {start}, micro batch {plan.micro_batch_size} x {plan.gradient_accumulation_steps}, "
        f"{checkpointing_title(plan)}. If memory runs out, this command continues with a plan that fits:"
    )
    yield Commands([_launch(answer, config_path)])


def _launch(answer: Recommendation, config_path: str, nodes: str = " --hostfile hostfile") -> str:
    """Return the command of `ds-advise launch`. nodes: its option for several nodes."""
    cluster = answer.question.cluster
    place = nodes if cluster.nodes > 1 else ""
    if cluster.gpu.is_cpu:
        place = f" --device cpu --ranks {cluster.gpus_per_node}"
    return f"ds-advise launch {shlex.quote(config_path)}{place} -- train.py"


def _in_short(answer: Recommendation, chosen: Candidate, config_path: str) -> Iterator[Block]:
    question, workload, plan = answer.question, answer.question.workload, chosen.plan
    if workload.uses_trainer:
        arguments = script_arguments(workload, plan, question.cluster, config_path, epochs=question.epochs)
        for elsewhere in ("output_dir", "deepspeed"):  # any folder works; the command line sets deepspeed
            arguments.pop(elsewhere, None)
        if arguments.get("gradient_checkpointing_kwargs") == {"use_reentrant": False} and workload.method == "full":
            del arguments["gradient_checkpointing_kwargs"]  # transformers 5's default; either works here
        yield from _arguments_sentence(workload, arguments, " before the model," if plan.zero_stage == 3 else "")
        if lines := model_lines(question.model, workload, plan) + pageable_inputs(plan, workload):
            yield from (Sentence("The script also needs:"), Commands(lines, is_python=True))
        yield from _after_trainer(answer, chosen)
    else:
        yield from _script_blocks(answer, chosen, config_path)
    # On several nodes, .deepspeed_env sets the variables on each node.
    settings = start_settings(answer, chosen) if question.cluster.nodes == 1 else []
    exports = (f"export {setting}" for setting, _ in settings)
    yield from _server(answer)
    commands = next(iter(start_commands(answer, chosen, config_path).values()))
    text = "Start it (--details has all launchers and arguments):"
    yield from (Sentence(text), Commands([*exports, *commands]))


def _in_full(answer: Recommendation, chosen: Candidate, config_path: str) -> Iterator[Block]:
    cluster = answer.question.cluster
    yield from _script_blocks(answer, chosen, config_path)
    if answer.question.workload.uses_trainer:
        yield Sentence(_checkpoints(answer, chosen, config_path))
    yield from _server(answer)
    for setting, why in start_settings(answer, chosen):
        yield from (Sentence(why), Commands([f"export {setting}"]))
    by_launcher = start_commands(answer, chosen, config_path)
    first, *others = by_launcher
    yield from (Sentence(f"Start it with {first}:"), Commands(by_launcher[first]))
    for launcher in others:
        how = f"Or with {launcher}:"
        if launcher == "srun":
            how = "Or with srun in a Slurm allocation (--emit slurm writes a job script):"
        elif cluster.nodes > 1:
            how = f"Or with {launcher} on every node:"
        yield from (Sentence(how), Commands(by_launcher[launcher]))
    if "srun" in by_launcher:
        command = _launch(answer, config_path, " --slurm")
        yield from (Sentence("Or let ds-advise check, start and watch it there:"), Commands([command]))


def _script_blocks(answer: Recommendation, chosen: Candidate, config_path: str) -> Iterator[Block]:
    plan, question, workload = chosen.plan, answer.question, answer.question.workload
    cluster = question.cluster
    if lines := script_lines(question.model, workload, plan, cluster, config_path, epochs=question.epochs):
        yield from (Sentence("In the training script:"), Commands(lines, is_python=True))
        if workload.uses_trainer and plan.zero_stage == 3:
            kind = arguments_class(workload)
            early = f"Create the {kind} before the model: it is then sharded while it loads."
            yield Sentence(early)
    if plan.cpu_checkpointing:
        yield Sentence("offload needs a version of transformers that supports it, such as 5.23.")
    yield from _after_trainer(answer, chosen)


def _after_trainer(answer: Recommendation, chosen: Candidate) -> Iterator[Block]:
    if lines := trainer_lines(answer.question.model, answer.question.workload, chosen.plan):
        yield from (Sentence("After the Trainer is created, before trainer.train():"), Commands(lines, is_python=True))
    if chosen.plan.sequence_parallel_size > 1:
        # deepspeed `UlyssesSPDataLoaderAdapter`
        yield Sentence(
            "DeepSpeed's Ulysses data loader is empty in every second epoch: repeat the data instead. In the "
            f"data collator, pad the batch to a multiple of {chosen.plan.sequence_parallel_size}, and add:"
        )
        line = 'batch["position_ids"] = torch.arange(batch["input_ids"].shape[1]).expand_as(batch["input_ids"])'
        yield Commands([line], is_python=True)


def _checkpoints(answer: Recommendation, chosen: Candidate, config_path: str) -> str:
    """Return the size of checkpoints, how many fit, and the effect of two arguments. The Trainer deletes the oldest
    checkpoint only after it has saved a new one (transformers 5.23 trainer.py `_save_checkpoint`)."""
    question, stage = answer.question, chosen.plan.zero_stage
    one = checkpoint_bytes(question.model, question.workload, stage)
    text = f"A checkpoint takes {gib(one)} GiB, and the Trainer keeps all of them"
    if question.cluster.is_this_machine:
        free = free_bytes(Path(config_path).parent)
        text = f"{text}: {free // one:,} fit into the {gib(free)} GiB free here"
    text = f"{text}; save_total_limit=1 needs room for two"
    if saves_model(plan_config(answer, chosen)):
        small = gib(checkpoint_bytes(question.model, question.workload, stage, only_model=True))
        text = f"{text}; with save_only_model=True each takes {small} GiB, but training cannot resume from it"
    return f"{text}."
