"""What to do with the answer: the file, the script's arguments, and the command for each launcher."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from rich.console import Console

from ...ds_configs.launch_commands import ALLOCATOR_SETTING, launch_commands, threads_setting
from ...ds_configs.training_arguments import (
    ATTENTION,
    python_source,
    training_arguments,
    training_arguments_snippet,
)
from ...estimators.hardware.cluster import Cluster
from ...estimators.hardware.host_defaults import cores_per_rank
from ...estimators.models.model_shape import ModelShape
from ...estimators.plan import Plan
from ...estimators.tiles import tiles_of
from ...estimators.workload import Workload
from ...probes.this_machine import can_bind_cores
from ..terminal.lines import blank, commands, copyable, sentence
from ..terminal.units import times
from ..terminal.words import checkpointing_words
from .candidate import Candidate
from .reasons import slower_with, slower_without_threads
from .recommendation import Recommendation, try_first_path

NOTED = 1.05
"""Threads that make a step so many times longer or shorter are worth a line; less is beyond the prediction."""

_TORCH_DTYPE = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32"}


def render_next_steps(answer: Recommendation, config_path: str, console: Console, *, details: bool = False) -> None:
    """Print what belongs to the recommended plan and to the one to try first; nothing where nothing may fit.

    config_path: the file that the commands name, written or not.
    details: with the script's arguments in full, and with every launcher's command.
    """
    if answer.recommended is None and answer.try_first is None:
        return
    blank(console)
    for path in answer.files:
        sentence(console, f"Wrote {path}.")
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
    gain = "" if safe is None else f", {times(candidate.tokens_per_s / safe.tokens_per_s)} as fast"
    sentence(
        console,
        f"Try first: {plan.rung}{gain}, micro batch {plan.micro_batch_size} x {plan.gradient_accumulation_steps}, "
        f"{checkpointing_words(plan)}. Where memory runs out, this command goes on with a plan that fits:",
    )
    commands(console, [_launch(config_path, answer.question.cluster)])


def _launch(config_path: str, cluster: Cluster) -> str:
    return f"ds-advise launch {shlex.quote(config_path)}{_place(cluster)} -- train.py"


def _in_short(answer: Recommendation, chosen: Candidate, config_path: str, console: Console) -> None:
    """What the script must be told, and one way to start it."""
    question, workload = answer.question, answer.question.workload
    if workload.framework == "hf":
        told = _arguments(answer, chosen, config_path)
        for elsewhere in ("output_dir", "deepspeed", "parallelism_config"):  # any, the command's, one of the lines
            told.pop(elsewhere, None)
        if told.get("gradient_checkpointing_kwargs") == {"use_reentrant": False} and workload.method == "full":
            del told["gradient_checkpointing_kwargs"]  # transformers 5's default, and without adapters either works
        words = ", ".join(f"{name}={python_source(value)}" for name, value in told.items())
        when = " before the model," if chosen.plan.zero_stage == 3 else ""
        more = " The script needs the lines that --details prints, too." if _has_lines(answer, chosen) else ""
        sentence(console, f"In the script, create TrainingArguments{when} with {words}.{more}")
    elif _script_lines(answer, chosen, config_path):
        sentence(console, "The script needs the lines that --details prints.")
    exports = [setting for setting, _ in _settings(answer, chosen)]
    sentence(console, "Start it (--details has all launchers and arguments):")
    commands(
        console, [*(f"export {setting}" for setting in exports), *_commands(answer, chosen, config_path)["deepspeed"]]
    )
    sentence(console, "Or have ds-advise see it fit, start it and watch it:")
    commands(console, [_launch(config_path, question.cluster)])


def _has_lines(answer: Recommendation, chosen: Candidate) -> bool:
    """Whether the script needs more than TrainingArguments."""
    workload = answer.question.workload
    tiled = workload.mlp == "tiled" or workload.loss == "tiled"
    return bool(_model_lines(workload)) or tiled or chosen.plan.ranks_per_sample > 1


def _script_lines(answer: Recommendation, chosen: Candidate, config_path: str) -> list[str]:
    """The lines of Python that the plan needs in the training script."""
    question, plan = answer.question, chosen.plan
    workload = question.workload
    lines = _model_lines(workload)
    if workload.framework == "hf":
        arguments = _arguments(answer, chosen, config_path)
        if plan.sequence_parallel_size > 1:
            lines += _SHARING_IMPORTS
        return lines + training_arguments_snippet(arguments).splitlines()
    if plan.gradient_checkpointing:
        enable = (
            "activation_checkpointing_enable(offload=True)"
            if plan.cpu_checkpointing
            else "gradient_checkpointing_enable()"
        )
        lines.append(f"model.{enable}")
    if plan.sequence_parallel_size > 1:
        lines += _sharing_lines(plan, workload)
    if plan.autotp_size > 1:
        lines += _splitting_lines(plan.autotp_size)
    if workload.loss == "fused" or workload.kernels == "liger":
        lines.append("liger_kernel.transformers._apply_liger_kernel_to_instance(model=model)")
    return lines + _tiling_lines(question.model, plan, workload, "model")


def _arguments(answer: Recommendation, chosen: Candidate, config_path: str) -> dict[str, Any]:
    """The script's TrainingArguments."""
    cluster = answer.question.cluster
    arguments = training_arguments(chosen.plan, answer.question.workload, cluster, config_path=config_path)
    return arguments | ({"use_cpu": True, "ddp_backend": "gloo"} if cluster.gpu.is_cpu else {})


def _script(answer: Recommendation, chosen: Candidate, config_path: str, console: Console) -> None:
    """What the script needs."""
    plan, workload = chosen.plan, answer.question.workload
    lines = _script_lines(answer, chosen, config_path)
    if lines:
        sentence(console, "In the training script:")
        copyable(console, lines)
        if workload.framework == "hf" and plan.zero_stage == 3:
            sentence(console, "Create the TrainingArguments before the model: it is then sharded while it loads.")
    if workload.framework == "hf" and (tiling := _tiling_lines(answer.question.model, plan, workload, "trainer.model")):
        sentence(console, "Once the Trainer is made, before trainer.train():")
        copyable(console, tiling)
    if plan.cpu_checkpointing:
        sentence(console, "offload needs a version of transformers that knows it, such as 5.23.")
    if plan.sequence_parallel_size > 1:
        _sharing_collator(plan.sequence_parallel_size, console)


def _settings(answer: Recommendation, chosen: Candidate) -> list[tuple[str, str]]:
    """The variables to set before the start, each with the sentence that says why."""
    cluster = answer.question.cluster
    where = " on every node" if cluster.nodes > 1 else ""
    if cluster.gpu.is_cpu:
        why = "Before the start (or else DeepSpeed looks for a GPU, and every rank takes all cores):"
        return [(f"DS_ACCELERATOR=cpu {threads_setting(cluster)}", why)]
    found = []
    if cluster.gpu.vendor == "NVIDIA" and answer.question.workload.software.expandable_segments:
        comma = "," if where else ""
        why = f"Before the start{comma}{where} (fragmentation can take a quarter more without it):"
        found.append((ALLOCATOR_SETTING, why))
    costs = _costs_without_threads(answer, chosen)
    if costs:
        why = f"And for the optimizer on the host{where} (without it a step takes {costs}):"
        found.append((threads_setting(cluster), why))
    return found


def _start(answer: Recommendation, chosen: Candidate, config_path: str, console: Console) -> None:
    """What is set before the start, and every launcher's command."""
    cluster = answer.question.cluster
    for setting, why in _settings(answer, chosen):
        sentence(console, why)
        commands(console, [f"export {setting}"])
    if cluster.threads_per_rank is not None and not cluster.gpu.is_cpu and _sets_threads(answer, chosen):
        _kept_threads(answer, chosen, cluster.threads_per_rank, console)
    by_launcher = _commands(answer, chosen, config_path)
    everywhere = " and ".join(launcher for launcher in by_launcher if launcher != "deepspeed")
    sentence(console, f"Start it with one of{f' ({everywhere} on every node)' if cluster.nodes > 1 else ''}:")
    for command in by_launcher.values():
        commands(console, command)
    sentence(console, "Or have ds-advise see it fit, start it and watch it:")
    commands(console, [_launch(config_path, cluster)])


def _commands(answer: Recommendation, chosen: Candidate, config_path: str) -> dict[str, list[str]]:
    """The lines that start it, by launcher."""
    question = answer.question
    sets_threads = _sets_threads(answer, chosen)
    return launch_commands(
        question.cluster,
        config_path=config_path,
        framework=question.workload.framework,
        sets_threads=sets_threads,
        bind_cores=sets_threads and _binds_cores(question.cluster),
    )


def _sets_threads(answer: Recommendation, chosen: Candidate) -> bool:
    """Whether the host's threads make a difference to the step."""
    slower = slower_without_threads(answer.question, chosen)
    return any(max(ratio, 1 / ratio) > NOTED for ratio in slower.values())


def _tiling_lines(model: ModelShape, plan: Plan, workload: Workload, name: str) -> list[str]:
    """How a script lets feed-forward and loss of the model called `name` work on tiles; nothing where they do not."""
    tiles = tiles_of(model, workload, plan)
    calls = {"tile_feed_forward": tiles.mlp, "tile_loss": tiles.loss}
    used = {function: count for function, count in calls.items() if count}
    if not used:
        return []
    return [
        f"from ds_advise.ds_configs.tiled_compute import {', '.join(used)}",
        *(f"{function}({name}, tiles={count})" for function, count in used.items()),
    ]


_SHARING_IMPORTS = [
    "from accelerate.parallelism_config import ParallelismConfig",
    "from accelerate.utils import DeepSpeedSequenceParallelConfig",
]


def _sharing_lines(plan: Plan, workload: Workload) -> list[str]:
    """How a script of one's own lets GPUs share samples; the loss is the mean of the ranks', exact where each has as
    many labels."""
    return [
        "from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF, UlyssesSPDataLoaderAdapter",
        "mpu = UlyssesSPAttentionHF.register_with_transformers(",
        f'    model, core_attn_implementation="{ATTENTION[workload.attention]}",',
        f"    sequence_parallel_size={plan.sequence_parallel_size}, micro_batch_size={plan.micro_batch_size})",
        "engine, *_ = deepspeed.initialize(model=model, config=config, mpu=mpu, ...)",
        "group = mpu.get_sequence_parallel_group()",
        "loader = UlyssesSPDataLoaderAdapter(",
        "    loader, sp_rank=mpu.get_sequence_parallel_rank(), sp_group=group,",
        f"    sp_world_size={plan.sequence_parallel_size}, device=engine.device)",
        'loss = engine(**batch, labels=batch["shift_labels"]).loss  # of this rank\'s tokens',
        "loss = torch.stack(torch.distributed.nn.functional.all_gather(loss, group=group)).mean()",
    ]


def _splitting_lines(ranks: int) -> list[str]:
    """How a script of one's own gives GPUs that split layers the same samples; DeepSpeed compares their first batch."""
    return [
        "sampler = DistributedSampler(",
        f"    dataset, num_replicas=torch.distributed.get_world_size() // {ranks},",
        f"    rank=torch.distributed.get_rank() // {ranks})",
    ]


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


def _binds_cores(cluster: Cluster) -> bool:
    """Whether the deepspeed launcher is told to bind cores: on this machine, where that works and the user has not
    chosen the threads."""
    return cluster.is_this_machine and cluster.threads_per_rank is None and can_bind_cores(cluster.gpus_per_node)


def _kept_threads(answer: Recommendation, chosen: Candidate, threads: int, console: Console) -> None:
    """The threads that the user has set, and what others would gain."""
    part = cores_per_rank(answer.question.cluster)
    ratio = 1 / slower_with(answer.question, chosen, part)
    worth = f"; with {part}, the cores per rank, a step would be {times(ratio)} as fast" if ratio > NOTED else ""
    sentence(console, f"OMP_NUM_THREADS={threads} is set here and stays{worth}.")


def _costs_without_threads(answer: Recommendation, chosen: Candidate) -> str:
    """`1.1 x as long with deepspeed, 2.9 x as long with torchrun`; "" where the user has set the threads, or they make
    no difference."""
    if answer.question.cluster.threads_per_rank is not None:
        return ""
    by_cost: dict[str, list[str]] = {}
    for launcher, ratio in slower_without_threads(answer.question, chosen).items():
        if ratio > NOTED:
            by_cost.setdefault(times(ratio), []).append(launcher)
    return ", ".join(f"{cost} as long with {' or '.join(launchers)}" for cost, launchers in by_cost.items())


def _place(cluster: Cluster) -> str:
    """Where `ds-advise launch` starts the ranks, if not on the GPUs of this machine."""
    if cluster.gpu.is_cpu:
        return f" --device cpu --ranks {cluster.gpus_per_node}"
    return " --hostfile hostfile" if cluster.nodes > 1 else ""


def _model_lines(workload: Workload) -> list[str]:
    """How the model is loaded and adapted, where that is not transformers' default."""
    arguments = []
    if workload.attention in ATTENTION and workload.attention != "sdpa":
        arguments.append(f"    attn_implementation={json.dumps(ATTENTION[workload.attention])},")
    if workload.method == "qlora" and workload.quantization == "nf4":  # a GPTQ checkpoint says so itself
        arguments += [
            "    quantization_config=BitsAndBytesConfig(",
            '        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,',
            f"        bnb_4bit_compute_dtype={_TORCH_DTYPE[workload.precision]}),",
        ]
    lines = ["from_pretrained(", "    ...,", *arguments, ")"] if arguments else []
    if workload.method != "full":
        targets = list(workload.lora_targets) if workload.lora_targets else "all-linear"
        dropout = f", lora_dropout={workload.lora_dropout:g}" if workload.lora_dropout else ""
        lines.append(f"LoraConfig(r={workload.lora_rank}, target_modules={json.dumps(targets)}{dropout})")
    return lines
