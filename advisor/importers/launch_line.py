"""What the directives of a Slurm script ask for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from ...ds_configs.launch_commands import Launcher
from ..launch.script_arguments import ScriptArguments
from .shell_words import Command, Word

_DIRECTIVE = re.compile(r"^#SBATCH[ \t]+(.+?)[ \t]*(?:[ \t]#.*)?$", re.MULTILINE)
_OPTION = re.compile(r"(?:^|(?<= ))(--[\w-]+|-[A-Za-z])(?:[ =]+)?([^\s-]\S*)?")
_SHORT = {"-N": "--nodes", "-n": "--ntasks", "-G": "--gpus", "-c": "--cpus-per-task"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """An allocation; None for what the directives leave open."""

    nodes: int | None = None
    gpus_per_node: int | None = None
    gpu: str | None = None
    """The kind of GPU as the cluster's administrators call it, such as `a100`."""
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
    """The job of a script, None where it has no directives."""
    given: dict[str, str] = {}
    for directive in _DIRECTIVE.findall(text):
        for name, value in _OPTION.findall(directive):
            given[_SHORT.get(name, name)] = value
    if not given:
        return None
    nodes = _count(given.get("--nodes"))
    gpus, gpu = _gpus(given.get("--gpus-per-node") or given.get("--gres", "").removeprefix("gpu:").split(",")[0])
    if gpus is None and (total := _gpus(given.get("--gpus", ""))[0]):
        gpus, gpu = max(1, total // (nodes or 1)), _gpus(given["--gpus"])[1]
    tasks = _count(given.get("--ntasks-per-node"))
    if tasks is None and (total_tasks := _count(given.get("--ntasks"))):
        tasks = max(1, total_tasks // (nodes or 1))
    return SlurmJob(nodes=nodes, gpus_per_node=gpus, gpu=gpu, tasks_per_node=tasks)


def _gpus(text: str) -> tuple[int | None, str | None]:
    """(number, kind) of `4` and `a100:4`."""
    kind, _, number = text.rpartition(":")
    return _count(number), kind or None


def _count(text: str | None) -> int | None:
    """`4`, and the least of `4-8`."""
    match = re.match(r"\d{1,5}(?=$|-)", text or "")
    return int(match[0]) if match else None


Program = Literal["script", "llama-factory", "axolotl", "ms-swift"]

_LAUNCHERS: Mapping[str, Launcher] = {"torchrun": "torchrun", "deepspeed": "deepspeed", "accelerate": "accelerate"}
_TOOLS: Mapping[str, Program] = {
    "llamafactory-cli": "llama-factory",
    "lmf": "llama-factory",
    "axolotl": "axolotl",
    "swift": "ms-swift",
}
_MODULES: Mapping[str, Launcher] = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
_AXOLOTL_MODULES = ("axolotl.cli.train", "axolotl.train")
_TRAINS: Mapping[Program, tuple[str, ...]] = {
    "llama-factory": ("train",),
    "axolotl": ("train",),
    "ms-swift": ("sft", "pt", "rlhf"),
    "script": (),
}
_NO_COMMANDS = ("echo", "printf", "source", ".", "cd", "mkdir", "pip", "pip3", "export", "which", "module", "ls", "rm")
_NO_VALUE = frozenset(
    [
        "standalone",
        "no_python",
        "use_deepspeed",
        "use_fsdp",
        "multi_gpu",
        "cpu",
        "debug",
        "dynamo_use_fullgraph",
        "force",
        "no_local_rank",
        "no_ssh",
        "save_pid",
        "enable_each_rank_log",
        "bind_cores_to_rank",
        "quiet",
        "verbose",
    ]
)
"""Options of launchers that take no value (torch 2.13 distributed/run.py, accelerate 1.15 commands/launch.py, deepspeed
0.19.8 launcher/runner.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchLine:
    """A training command."""

    program: Program
    launcher: Launcher | Literal[""]
    """"" for none."""
    launcher_options: ScriptArguments
    target: str
    """The script, the module, or the tool's subcommand."""
    arguments: tuple[Word, ...]
    """What the program is given."""
    end: int
    """Where the command ends in the text."""
    environment: Mapping[str, str]

    @property
    def texts(self) -> list[str]:
        return [word.text for word in self.arguments]

    @property
    def configuration(self) -> str | None:
        """The YAML or JSON file that holds the arguments, where the first of them is one."""
        first = self.texts[0] if self.arguments else ""
        first = ScriptArguments(self.texts).text("config") or first
        return first if first.endswith((".yaml", ".yml", ".json")) else None

    @property
    def overrides(self) -> dict[str, str | list[str]]:
        """What stands beside the configuration file, and counts more: `name=value`, which LLaMA-Factory takes, and
        options."""
        words = [word if word.startswith("-") or "=" not in word else f"--{word}" for word in self.texts]
        given = ScriptArguments(words[words[:1] == [self.configuration] :]).given
        return {name: value for name, value in given.items() if name != "config"}

    def counts(self) -> tuple[int | None, int | None]:
        """(nodes, processes of each), None for what the command leaves open."""
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
        environment = {name: value for name, value in self.environment.items() if value.isdigit()}
        nodes = nodes or _number(environment.get("NNODES"))
        per_node = per_node or _number(environment.get("NPROC_PER_NODE"))
        visible = self.environment.get("CUDA_VISIBLE_DEVICES", "")
        if per_node is None and re.fullmatch(r"\d+(,\d+)*", visible):
            # Plain python and `swift` without NPROC_PER_NODE run one process, whatever GPUs are visible.
            per_node = len(visible.split(",")) if self.launcher or self.program in ("llama-factory", "axolotl") else 1
        return nodes, per_node


def training_lines(commands: Sequence[Command]) -> list[LaunchLine]:
    """The commands that train, as far as can be told: those of the tools, and scripts that are given training
    arguments; where there are none, scripts under a launcher."""
    lines = [line for command in commands if (line := _line(command)) is not None]
    sure = [line for line in lines if line.program != "script" or _has_training_arguments(line)]
    return sure or [line for line in lines if line.launcher]


def _has_training_arguments(line: LaunchLine) -> bool:
    arguments = ScriptArguments(line.texts)
    return arguments.are_training_arguments or arguments.passes_a_config


def _line(command: Command) -> LaunchLine | None:
    words = list(command.words)
    if not words or words[0].text in _NO_COMMANDS:
        return None
    for index, word in enumerate(words):
        name = PurePath(word.text).name
        rest = words[index + 1 :]
        if name in _TOOLS:
            return _of_tool(_TOOLS[name], rest, command)
        if name in _LAUNCHERS:
            return _launched(_LAUNCHERS[name], rest[1:] if name == "accelerate" else rest, command)
        if re.fullmatch(r"python(\d(\.\d+)?)?(\.exe)?", name):
            return _by_python(rest, command)
    return None


def _by_python(words: list[Word], command: Command) -> LaunchLine | None:
    while words and words[0].text.startswith("-"):
        option = words.pop(0).text
        if option == "-m" and words:
            module = words.pop(0).text
            if module in _MODULES:
                return _launched(_MODULES[module], words, command)
            return _program("", ScriptArguments(()), module, words, command)
        if option == "-c":
            return None
    return _program("", ScriptArguments(()), words[0].text, words[1:], command) if words else None


def _launched(launcher: Launcher, words: list[Word], command: Command) -> LaunchLine | None:
    given: list[str] = []
    while words and words[0].text.startswith("-"):
        option = words.pop(0).text
        if option in ("-m", "--module"):
            break
        name = option.lstrip("-").partition("=")[0].replace("-", "_")
        given.append("--" + option.lstrip("-"))
        if "=" not in option and name not in _NO_VALUE and words and not words[0].text.startswith("--"):
            given.append(words.pop(0).text)
    if not words:
        return None
    return _program(launcher, ScriptArguments(given), words[0].text, words[1:], command)


def _program(
    launcher: Launcher | Literal[""], options: ScriptArguments, target: str, words: list[Word], command: Command
) -> LaunchLine:
    program: Program = "axolotl" if target in _AXOLOTL_MODULES else "script"
    texts = [word.text for word in words]
    if program == "script" and ({"--finetuning_type", "--cutoff_len"} & set(texts) or _names_a_configuration(texts)):
        program = "llama-factory"
    return LaunchLine(
        program=program,
        launcher=launcher,
        launcher_options=options,
        target=target,
        arguments=tuple(words),
        end=command.end,
        environment=command.environment,
    )


def _names_a_configuration(texts: list[str]) -> bool:
    return bool(texts) and texts[0].endswith((".yaml", ".yml"))


def _of_tool(program: Program, words: list[Word], command: Command) -> LaunchLine | None:
    if not words or words[0].text not in _TRAINS[program]:
        return None
    return LaunchLine(
        program=program,
        launcher="",
        launcher_options=ScriptArguments(()),
        target=words[0].text,
        arguments=tuple(words[1:]),
        end=command.end,
        environment=command.environment,
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
