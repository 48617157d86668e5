"""The parts of a command that trains: what stands in front of its program, the program, and its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...ds_configs.launch_commands import COUNTS
from .words import Program, is_assignment, is_python, launcher_of, option_name, peel, program_of


class TrainingCommand(NamedTuple):
    """A command in parts."""

    prefix: tuple[str, ...]
    """Variables and commands that run the one behind them, such as `nohup`, `uv run` and `srun`."""
    words: tuple[str, ...]
    """The rest."""
    program: Program | None
    """The Python script or module that is started; None for a command that starts its ranks itself."""
    launcher: str
    """The launcher that is typed in front of the script: "torchrun", "deepspeed", "srun", ...; "" for none."""

    @property
    def before(self) -> list[str]:
        """The prefix for a process: `A=1 python train.py` is a shell's word for `env`."""
        return ["env"] * bool(self.prefix and is_assignment(self.prefix[0])) + list(self.prefix)

    @property
    def _script(self) -> int:
        """Number of words up to the script; 1 for a tool's own command."""
        if self.program is not None:
            return len(self.words) - len(self.program.arguments)
        return next((place for place, word in enumerate(self.words, start=1) if word.endswith(".py")), 1)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of the script, without those of a launcher in front."""
        return self.words[self._script :]

    def replace_counts(self, nodes: int, gpus_per_node: int) -> tuple[str, ...]:
        """The command with this number of ranks where another is typed for its launcher. A command for another number
        of nodes stays as it is: its rendezvous is that of its nodes."""
        words = list(self.words)
        wanted = {option: nodes * gpus_per_node if of_all else gpus_per_node for _, option, of_all in COUNTS.values()}
        nodes_options = {counts.nodes for counts in COUNTS.values()}
        for place in range(self._script if self.launcher else 0):
            flag, equals, typed = words[place].partition("=")
            name, at = option_name(flag), place if equals else place + 1
            value = typed if equals else words[at] if at < len(words) else ""
            if not value.isdigit() or not flag.startswith("--"):
                continue
            if name in nodes_options and int(value) != nodes:
                return (*self.prefix, *self.words)
            if name in wanted:
                words[at] = f"{flag}={wanted[name]}" if equals else str(wanted[name])
        return (*self.prefix, *words)

    def replace_arguments(self, arguments: Sequence[str]) -> tuple[str, ...]:
        """The command with other arguments of the script."""
        return (*self.prefix, *self.words[: self._script], *arguments)


def read_command(words: Sequence[str]) -> TrainingCommand:
    """The parts of a command. It starts its ranks itself if a launcher stands in front, and if its program is no Python
    file: a console script, such as `llamafactory-cli`, or a shell script. Raises DsAdviseError if it has no
    program."""
    rest, launcher = list(words), ""
    while (layer := peel(rest)) and rest[len(rest) - len(layer.words) :] == layer.words:
        rest, launcher = layer.words, "srun" if layer.name == "srun" else launcher
    prefix = tuple(words[: len(words) - len(rest)])
    if not is_python(rest[0]) and not rest[0].endswith(".py"):
        found = launcher_of(Program(rest[0], False, rest[1:]))
        return TrainingCommand(prefix, tuple(rest), None, found[0] if found else launcher)
    program = program_of(rest)
    found = launcher_of(program)
    if found or launcher:
        return TrainingCommand(prefix, tuple(rest), None, found[0] if found else launcher)
    return TrainingCommand(prefix, tuple(rest), program, "")
