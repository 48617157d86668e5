"""The training command of a script: its launcher, the program that it starts, its processes, and the Slurm job."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from ...ds_configs.launch_commands import Launcher
from .script_arguments import ScriptArguments
from .shell_words import Command

_DIRECTIVE = re.compile(r"^#SBATCH[ \t]+(.+?)[ \t]*(?:[ \t]#.*)?$", re.MULTILINE)
_OPTION = re.compile(r"(?:^|(?<= ))(--[\w-]+|-[A-Za-z])(?:[ =]+)?([^\s-]\S*)?")
_SHORT = {"-N": "--nodes", "-n": "--ntasks", "-G": "--gpus", "-c": "--cpus-per-task"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """A Slurm allocation; fields that the directives leave open are None."""

    nodes: int | None = None
    gpus_per_node: int | None = None
    gpu: str | None = None
    """The cluster administrators' name for the kind of GPU, such as `a100`."""
    tasks_per_node: int | None = None

    def variables(self) -> dict[str, str]:
        """The variables that Slurm sets in the job, as far as they follow from the directives."""
        nodes, gpus, tasks = self.nodes or 1, self.gpus_per_node, self.tasks_per_node
        known = {"SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes}
        if gpus:
            known |= {"SLURM_GPUS_ON_NODE": gpus, "SLURM_GPUS_PER_NODE": gpus}
        if tasks:
            known |= {"SLURM_NTASKS_PER_NODE": tasks, "SLURM_NTASKS": nodes * tasks}
        return {name: str(value) for name, value in known.items()}


def read_slurm(text: str) -> SlurmJob | None:
    """The job of a script, None if it has no directives."""
    options: dict[str, str] = {}
    for directive in _DIRECTIVE.findall(text):
        for name, value in _OPTION.findall(directive):
            options[_SHORT.get(name, name)] = value
    if not options:
        return None
    nodes = _count(options.get("--nodes"))
    gpus, gpu = _gpus(options.get("--gpus-per-node") or options.get("--gres", "").removeprefix("gpu:").split(",")[0])
    if gpus is None and (total := _gpus(options.get("--gpus", ""))[0]):
        gpus, gpu = max(1, total // (nodes or 1)), _gpus(options["--gpus"])[1]
    tasks = _count(options.get("--ntasks-per-node"))
    if tasks is None and (total_tasks := _count(options.get("--ntasks"))):
        tasks = max(1, total_tasks // (nodes or 1))
    return SlurmJob(nodes=nodes, gpus_per_node=gpus, gpu=gpu, tasks_per_node=tasks)


def _gpus(text: str) -> tuple[int | None, str | None]:
    kind, _, number = text.rpartition(":")
    return _count(number), kind or None


def _count(text: str | None) -> int | None:
    """The number in `4`, and the smaller number in `4-8`."""
    match = re.match(r"\d{1,5}(?=$|-)", text or "")
    return int(match[0]) if match else None


Program = Literal["script", "llama-factory", "axolotl", "ms-swift", "trl", "openrlhf"]

_LAUNCHERS: Mapping[str, Launcher] = {
    "torchrun": "torchrun",
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "deepspeed": "deepspeed",
    "deepspeed.launcher.runner": "deepspeed",
    "accelerate": "accelerate",
    "accelerate.commands.launch": "accelerate",
}
"""Launchers by command or module."""

_TOOLS: Mapping[str, tuple[Program, tuple[str, ...]]] = {
    "llamafactory-cli": ("llama-factory", ("train",)),
    "lmf": ("llama-factory", ("train",)),
    "axolotl": ("axolotl", ("train",)),
    "swift": ("ms-swift", ("sft", "pt", "rlhf")),
    "trl": ("trl", ("sft", "dpo", "grpo", "kto", "reward", "rloo")),
}
"""Tools by command, with the subcommands that train."""

_NOT_READ = {"verl": "verl", "megatron": "Megatron-LM", "nemo": "NeMo"}
"""Tools with a training loop of their own, by their Python package."""

OF_TRL = frozenset(
    ["dataset_text_field", "packing", "dataset_mixture", "dataset_mixer", "assistant_only_loss", "completion_only_loss"]
)
"""Options of TRL's configurations that are not in TrainingArguments."""

_OTHER_COMMANDS = re.compile(r"echo|printf|source|\.|cd|mkdir|pip|pip3|export|which|module|ls|rm|test|\[\[?")
_SWITCHES = re.compile(
    r"standalone|no_python|use_deepspeed|use_fsdp|multi_gpu|cpu|debug|dynamo_use_fullgraph|force|no_local_rank|no_ssh|"
    r"save_pid|enable_each_rank_log|bind_cores_to_rank|quiet|verbose"
)
"""Launcher options that take no value (torch 2.13 distributed/run.py, accelerate 1.15 commands/launch.py, deepspeed
0.19.8 launcher/runner.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchLine:
    program: Program
    launcher: Launcher | Literal[""]
    """The launcher; "" for none."""
    launcher_options: ScriptArguments
    target: str
    """The script, the module, or the tool's subcommand."""
    arguments: tuple[str, ...]
    """The arguments of the program."""
    environment: Mapping[str, str]

    @property
    def tool_not_read(self) -> str:
        """The program's tool if it has a training loop of its own; "" otherwise."""
        return _NOT_READ.get(self.target.partition(".")[0], "")

    @property
    def configuration(self) -> str | None:
        """The YAML or JSON file with the arguments, if the first argument is such a file."""
        first = ScriptArguments(self.arguments).text("config") or "".join(self.arguments[:1])
        return first if first.endswith((".yaml", ".yml", ".json")) and not first.startswith("-") else None

    @property
    def overrides(self) -> dict[str, str | list[str]]:
        """The options that take precedence over the configuration file. LLaMA-Factory takes them as `name=value`."""
        words = [word if word.startswith("-") or "=" not in word else f"--{word}" for word in self.arguments]
        options = ScriptArguments(words[words[:1] == [self.configuration] :]).by_name
        return {name: value for name, value in options.items() if name != "config"}

    def counts(self) -> tuple[int | None, int | None]:
        """(nodes, processes per node); None for a number that the command leaves open."""
        options = self.launcher_options
        if self.launcher == "accelerate":
            nodes, total = options.number("num_machines"), options.number("num_processes")
            per_node = None if total is None else max(1, total // (nodes or 1))
        else:
            nodes = options.number("nnodes", "num_nodes")
            per_node = options.number("nproc_per_node", "num_gpus")
        if self.launcher == "deepspeed" and (include := options.text("include")):
            hosts = [host for host in include.split("@") if host]
            nodes, per_node = len(hosts), len(hosts[0].rpartition(":")[2].split(","))
        nodes = nodes or _count(self.environment.get("NNODES"))
        per_node = per_node or _count(self.environment.get("NPROC_PER_NODE"))
        visible = self.environment.get("CUDA_VISIBLE_DEVICES", "")
        if per_node is None and re.fullmatch(r"\d+(,\d+)*", visible):
            # Plain python and `swift` without NPROC_PER_NODE run one process for any number of visible GPUs.
            per_node = len(visible.split(",")) if self.launcher or self.program in ("llama-factory", "axolotl") else 1
        return nodes, per_node


def training_lines(commands: Sequence[Command]) -> list[LaunchLine]:
    """The commands that train: those of the tools, and scripts with training arguments. If there are none, scripts
    under a launcher."""
    lines = [line for command in commands if (line := _line(command)) is not None]
    # Scripts also call python for downloads and conversions: training arguments tell them apart.
    sure = [line for line in lines if line.program != "script" or _has_training_arguments(line)]
    return sure or [line for line in lines if line.launcher]


def _has_training_arguments(line: LaunchLine) -> bool:
    arguments = ScriptArguments(line.arguments)
    names_a_file = "".join(line.arguments[:1]).endswith((".yaml", ".yml"))
    return names_a_file or arguments.are_training_arguments or arguments.passes_a_config or bool(line.tool_not_read)


def _line(command: Command) -> LaunchLine | None:
    words = list(command.words)
    if not words or _OTHER_COMMANDS.fullmatch(words[0]):
        return None
    for index, word in enumerate(words):
        name, rest = PurePath(word).name, words[index + 1 :]
        if name in _TOOLS:
            program, subcommands = _TOOLS[name]
            if not rest or rest[0] not in subcommands:
                return None
            if program != "trl":
                return _program(command, rest, program=program)
            options = [word.replace("--accelerate_config", "--config_file") for word in rest[1:]]
            return _program(command, rest, program=program, launcher="accelerate", options=options)
        if name in _LAUNCHERS:
            return _launched(command, rest[1:] if name == "accelerate" else rest, _LAUNCHERS[name])
        if re.fullmatch(r"python(\d(\.\d+)?)?(\.exe)?", name):
            return _by_python(command, rest)
    return None


def _by_python(command: Command, words: list[str]) -> LaunchLine | None:
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option == "-c":
            return None
        if option == "-m" and words:
            launcher = _LAUNCHERS.get(words[0])
            return _program(command, words) if launcher is None else _launched(command, words[1:], launcher)
    return _program(command, words)


def _launched(command: Command, words: list[str], launcher: Launcher) -> LaunchLine | None:
    options: list[str] = []
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option in ("-m", "--module"):
            break
        name = option.lstrip("-").partition("=")[0].replace("-", "_")
        options.append("--" + option.lstrip("-"))
        if "=" not in option and not _SWITCHES.fullmatch(name) and words and not words[0].startswith("--"):
            options.append(words.pop(0))
    return _program(command, words, launcher=launcher, options=options)


def _program(
    command: Command,
    words: list[str],
    *,
    program: Program = "script",
    launcher: Launcher | Literal[""] = "",
    options: Sequence[str] = (),
) -> LaunchLine | None:
    if not words:
        return None
    target, texts = words[0], words[1:]
    if target in ("axolotl.cli.train", "axolotl.train"):
        program = "axolotl"
    elif target.startswith("openrlhf.cli.train_"):
        program = "openrlhf"
    elif program == "script" and texts:
        if {"--finetuning_type", "--cutoff_len"} & set(texts):
            program = "llama-factory"
        elif OF_TRL & {text[2:].partition("=")[0] for text in texts if text.startswith("--")}:
            program = "trl"
    return LaunchLine(
        program=program,
        launcher=launcher,
        launcher_options=ScriptArguments(options),
        target=target,
        arguments=tuple(texts),
        environment=command.environment,
    )
