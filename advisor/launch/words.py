"""The parts of a command that trains: what stands in front of its program, the program, and its options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...probes.command.words import Program, is_python, launcher_of, peel, program_of
from ..importers.script_arguments import ScriptArguments


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
    def _script(self) -> int:
        """Number of words up to the script; 1 for a tool's own command."""
        if self.program is not None:
            return len(self.words) - len(self.program.arguments)
        return next((place for place, word in enumerate(self.words, start=1) if word.endswith(".py")), 1)

    @property
    def options(self) -> ScriptArguments:
        """The options of the script, without those of a launcher in front."""
        return ScriptArguments(self.words[self._script :])

    def replace_options(self, values: Mapping[str, str]) -> tuple[str, ...]:
        """The command with other values of the script's options."""
        return (*self.prefix, *self.words[: self._script], *self.options.replace_values(values))


def read_command(words: Sequence[str]) -> TrainingCommand:
    """The parts of a command. It starts its ranks itself if a launcher stands in front, and if its program is no Python
    file: a console script, such as `llamafactory-cli`, or a shell script. Raises DsAdviseError if it has no
    program."""
    rest, launcher = list(words), ""
    while layer := peel(rest):
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
