"""The parts of a command that trains: what stands in front of its program, the program, and its arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ...ds_configs.launch_commands import COUNTS, Counts, Launcher, Rendezvous, launcher_words
from ...estimators.hardware import Cluster
from .words import Program, is_assignment, is_python, launcher_of, option_name, peel, program_of

_LAUNCHERS: Mapping[str, Launcher] = {
    "torchrun": "torchrun",
    "torch.distributed.launch": "torchrun",
    "deepspeed": "deepspeed",
    "accelerate launch": "accelerate",
}
"""Launcher as `launcher_of` names it -> the one whose options it takes."""

_STARTED_BY_DEFAULT = {"torchrun": 1, "torch.distributed.launch": 1}
"""Ranks that a launcher starts if none are typed (torch 2.13 distributed/run.py). accelerate's reads a file or counts
the machine's GPUs, and DeepSpeed's counts those, of which it heeds CUDA_VISIBLE_DEVICES only without a number (0.19.8
launcher/runner.py `main`)."""

_RENDEZVOUS = frozenset({"config_file", "hostfile", "rdzv_endpoint", "master_addr", "main_process_ip"})
"""Options of launchers that say where the nodes meet, or may do so."""


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

    @property
    def ranks(self) -> int | None:
        """The number of ranks that is typed for the launcher, of a node or of all as it counts them, or that it starts
        without one; None if it takes the number from the machine, and for no launcher."""
        counts = self._counts
        if counts is None:
            return None
        typed = [value for _, name, value in self._launcher_options() if name == counts.ranks]
        if not typed:
            return _STARTED_BY_DEFAULT.get(self.launcher)
        return int(typed[-1]) if typed[-1].isdigit() else None

    def replace_counts(self, nodes: int, gpus_per_node: int) -> tuple[str, ...]:
        """The command with this number of ranks where its launcher has another or none. A command for another number
        of nodes stays as it is: its rendezvous is that of its nodes. So does one that names the hosts or GPUs."""
        counts, words = self._counts, list(self.words)
        if counts is None:
            return (*self.prefix, *words)
        ranks = str(nodes * gpus_per_node if counts.of_all_nodes else gpus_per_node)
        typed = [*self._launcher_options()]
        named = {name: value for _, name, value in typed}
        named_nodes = named.get(counts.nodes, "")
        if named_nodes.isdigit() and int(named_nodes) != nodes:
            return (*self.prefix, *words)
        for place, name, value in typed:
            if name == counts.ranks and value.isdigit():
                flag, equals, _ = words[place].partition("=")
                words[place if equals else place + 1] = f"{flag}={ranks}" if equals else ranks
        counts_itself = self.launcher == "deepspeed" or (nodes > 1 and not named_nodes)
        if counts.ranks not in named and not counts_itself and self._first_option is not None:
            words[self._first_option : self._first_option] = [f"--{counts.ranks}", ranks]
        return (*self.prefix, *words)

    def join_nodes(self, cluster: Cluster) -> tuple[str, ...]:
        """The command on several nodes, with the options of a rendezvous if its launcher has none. It is started on
        every node, with DeepSpeed's launcher on one."""
        launcher, first = _LAUNCHERS.get(self.launcher), self._first_option
        typed = {name for _, name, _ in self._launcher_options()}
        if cluster.nodes == 1 or launcher is None or first is None or typed & {COUNTS[launcher].nodes, *_RENDEZVOUS}:
            return (*self.prefix, *self.words)
        rendezvous = Rendezvous("hostfile" if launcher == "deepspeed" else "static")
        added, is_new = list[str](), True
        for word in launcher_words(launcher, cluster, [], rendezvous=rendezvous, program=[]):
            is_new = option_name(word) not in typed if word.startswith("--") else is_new
            added += [word] * is_new
        return (*self.prefix, *self.words[:first], *added, *self.words[first:])

    @property
    def _counts(self) -> Counts | None:
        """The launcher's options with the numbers of nodes and of ranks; None without a launcher that has them."""
        launcher = _LAUNCHERS.get(self.launcher)
        return None if launcher is None else COUNTS[launcher]

    @property
    def _first_option(self) -> int | None:
        """The place behind the launcher; None for a command without one."""
        found = launcher_of(program_of(self.words))
        return None if found is None else len(self.words) - len(found[1])

    def _launcher_options(self) -> Iterator[tuple[int, str, str]]:
        """(place in the words, name, value) of the launcher's options, with the next word as the value of an option
        without an equals sign."""
        for place in range(self._first_option or 0, self._script):
            flag, equals, value = self.words[place].partition("=")
            if flag.startswith("-"):
                following = self.words[place + 1] if place + 1 < len(self.words) else ""
                yield place, option_name(flag), value if equals else following

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
