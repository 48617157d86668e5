"""What the words of a command name without the libraries of the command: prefixes, the program, the interpreter.

The process that starts a dry run uses this module, so it imports nothing outside the standard library.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path, PurePath
from typing import NamedTuple

from ...ds_configs.files import nearest_file
from ...estimators.errors import DsAdviseError

_RANKS = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT")
_SIZES = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE")
RANK_VARIABLES = frozenset(_RANKS + _SIZES)
"""Variables that place a process among the others. The simulation sets them."""

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=", re.ASCII)
_PYTHON = re.compile(r"python[\d.]*")
_SHELLS = ("bash", "sh", "zsh", "dash")
_WRAPPERS: Mapping[str, str] = {
    "env": "",
    "exec": "",
    "nohup": "",
    "setsid": "",
    "time": "-f -o --format --output",
    "nice": "-n --adjustment",
    "stdbuf": "-i -o -e --input --output --error",
    "numactl": "-C -m -N -i -p --physcpubind --membind --cpunodebind --interleave --preferred",
}
"""Commands that run the command behind their options, with the options that take a value."""

_RUNNERS: Mapping[str, str] = {
    "uv": "--with --with-editable --with-requirements --extra --no-extra --group --no-group --only-group -p --python"
    " --package --env-file --directory --project --index --default-index -i --index-url --extra-index-url -f"
    " --find-links --config-file --cache-dir -P --upgrade-package --refresh-package --reinstall-package --resolution"
    " --prerelease --link-mode --color -C --config-setting",
    "poetry": "",
    "pdm": "-p --project",
    "pipenv": "",
}
"""Project managers, whose `run` starts a command in the project's environment, with the options that take a value."""

_SRUN_FLAGS = (
    "-E -H -I -K -k -l -O -Q -s -u -v -X -Z --preserve-env --hold --immediate --kill-on-bad-exit --no-kill --label"
    " --overcommit --quiet --oversubscribe --unbuffered --verbose --disable-status --no-allocate --exclusive --overlap"
    " --pty --exact --contiguous --spread-job --use-min-nodes --multi-prog --interactive --container-writable"
    " --container-mount-home --no-container-mount-home --container-remap-root --no-container-remap-root"
)
"""Options of srun that take no value as a word of its own."""


class Layer(NamedTuple):
    """What one command in front of another one says."""

    words: list[str]
    """The command behind it."""
    name: str = ""
    variables: Mapping[str, str] = {}
    tasks_per_node: int | None = None
    nodes: int | None = None


class Program(NamedTuple):
    """What Python runs."""

    target: str
    is_module: bool
    arguments: list[str]


def peel(words: Sequence[str]) -> Layer | None:
    """The first layer of a command: a variable, a wrapper such as `nohup`, `uv run` or `srun`; None if there is none.

    Errors: options that change the command in a way that is not followed.
    """
    if not words:
        raise DsAdviseError("the command has no program", fix="give the script after --")
    head, rest = words[0], list(words[1:])
    name = PurePath(head).name
    if _ASSIGNMENT.match(head):
        variable, _, value = head.partition("=")
        return Layer(rest, variables={variable: value})
    if name in _WRAPPERS:
        options, rest = _options(rest, _WRAPPERS[name].split())
        if name == "env" and options:
            why = "only the variables that it sets are followed"
            raise DsAdviseError(f"env {next(iter(options))}", why=why, fix="give the command without this option")
        return Layer(rest)
    if name in _RUNNERS and rest[:1] == ["run"]:
        options, rest = _options(rest[1:], _RUNNERS[name].split())
        as_module = name == "uv" and not {"-m", "--module"}.isdisjoint(options)
        return Layer(["python", "-m", *rest] if as_module else rest, f"{name} run")
    if name == "srun":
        options, rest = _options(rest, None)
        nodes, tasks, per_node = (
            _count(options, *names) for names in (("-N", "--nodes"), ("-n", "--ntasks"), ("--ntasks-per-node",))
        )
        if per_node is None and tasks is not None:
            per_node = max(1, tasks // (nodes or 1))
        return Layer(rest, "srun", tasks_per_node=per_node, nodes=nodes)
    return None


def inner(words: Sequence[str]) -> Sequence[str]:
    """The words of a command without its layers, from its program on. Errors: those of `peel`."""
    while layer := peel(words):
        words = layer.words
    return words


def _options(words: list[str], valued: Sequence[str] | None) -> tuple[dict[str, str], list[str]]:
    """The options before the first other word, and the words from there. valued: the options that take a value; None
    are all but srun's flags."""
    options: dict[str, str] = {}
    at = 0
    while at < len(words) and words[at].startswith("-"):
        name, equals, value = words[at].partition("=")
        at += 1
        if name == "--":
            break
        if not equals and name[1] != "-" and len(name) > 2:  # -N2
            name, value = name[:2], name[2:]
        elif not equals and (name not in _SRUN_FLAGS.split() if valued is None else name in valued):
            value, at = "".join(words[at : at + 1]), at + 1
        options[name] = value
    return options, words[at:]


def _count(options: Mapping[str, str], *names: str) -> int | None:
    """The number of an option; the larger one of srun's range `2-4`."""
    numbers = [value.rpartition("-")[2] for name, value in options.items() if name in names]
    return int(numbers[-1]) if numbers and numbers[-1].isdecimal() else None


def is_python(word: str) -> bool:
    return _PYTHON.fullmatch(PurePath(word).name) is not None


def program_of(words: Sequence[str]) -> Program:
    """The program of a command without prefixes: a file, or a module of `python -m`. Python's other options are
    dropped.

    Errors: Python runs no file and no module (`python -c`, an interactive Python).
    """
    if not is_python(words[0]):
        return Program(words[0], False, list(words[1:]))
    rest = list(words[1:])
    while rest and rest[0].startswith("-") and rest[0] != "-":
        option = rest.pop(0)
        if option.startswith("--"):
            rest = rest[1:] if option == "--check-hash-based-pycs" else rest
            continue
        for place, letter in enumerate(option[1:], start=2):
            if letter in "cmWX":
                value = option[place:] or (rest.pop(0) if rest else "")
                if letter == "m" and value:
                    return Program(value, True, rest)
                rest = [] if letter == "c" else rest
                break
    if not rest or rest[0] == "-":
        why = "only a script file or a module can be run"
        raise DsAdviseError(f"{shlex.join(words[:2])} names no script", why=why, fix="give a script file after --")
    return Program(rest[0], False, rest[1:])


_LAUNCHERS: Mapping[str, str] = {
    "torchrun": "torchrun",
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torch.distributed.launch",
    "deepspeed": "deepspeed",
    "deepspeed.launcher.runner": "deepspeed",
    "accelerate-launch": "accelerate launch",
    "accelerate.commands.launch": "accelerate launch",
}


def launcher_of(program: Program) -> tuple[str, list[str]] | None:
    """The launcher (`torchrun`, `torch.distributed.launch`, `deepspeed`, `accelerate launch`) that a program is, and
    its arguments."""
    name = program.target if program.is_module else PurePath(program.target).name
    if name in ("accelerate", "accelerate.commands.accelerate_cli") and program.arguments[:1] == ["launch"]:
        return "accelerate launch", program.arguments[1:]
    return (_LAUNCHERS[name], program.arguments) if name in _LAUNCHERS else None


def is_assignment(word: str) -> bool:
    return _ASSIGNMENT.match(word) is not None


class ShellLine(NamedTuple):
    """One simple command of a shell's text."""

    number: int
    text: str
    words: list[str]


def shell_text(words: Sequence[str], folder: Path) -> tuple[str, str] | None:
    """(name, text) of what a shell runs: the file of `bash train.sh`, the text of `bash -c`; None for other commands.

    Errors: OSError, UnicodeDecodeError of the file.
    """
    if PurePath(words[0]).name not in _SHELLS:
        if PurePath(words[0]).suffix == ".sh":
            return words[0], (folder / words[0]).read_text(encoding="utf-8")
        return None
    rest, is_text = list(words[1:]), False
    while rest and rest[0][:1] in ("-", "+"):
        option = rest.pop(0)
        is_text |= "c" in option and not option.startswith("--")
        if option[-1:] in ("o", "O"):  # -euo pipefail
            rest = rest[1:]
    if not rest:
        return None
    return ("", rest[0]) if is_text else (rest[0], (folder / rest[0]).read_text(encoding="utf-8"))


_REDIRECTION = re.compile(r"(?<![^\s)])(?:\d|&)?(?:>>?|<)\s*(?:&\d|[^\s;&|]+)")


def shell_lines(text: str) -> Iterator[ShellLine]:
    """The simple commands of a shell's text, without redirections. Variables are those of this process where it has
    them. Lines that no shell could split are left out."""
    number, pending = 1, ""
    for count, line in enumerate(text.splitlines(), start=1):
        number = number if pending else count
        pending += line.strip()
        if line.endswith("\\"):
            pending = pending[:-1].rstrip() + " "
            continue
        whole, pending = _REDIRECTION.sub("", pending).strip(), ""
        lexer = shlex.shlex(whole, posix=True, punctuation_chars=";&|()")
        lexer.whitespace_split = True
        try:
            tokens = list(lexer)
        except ValueError:
            continue
        command: list[str] = []
        for token in [*tokens, ";"]:
            if set(token) <= set(";&|()"):
                if command:
                    yield ShellLine(number, whole, command)
                command = []
            else:
                command.append(os.path.expandvars(token))


def option_name(flag: str) -> str:
    """The name of an option as Python has it: `--micro-batch` is `micro_batch`."""
    return flag.lstrip("-").replace("-", "_")


def script_in(words: Iterable[str]) -> str:
    """The script among the words of a command; "" without one. No launcher has an option whose value is a .py file."""
    return next((word for word in words if word.endswith(".py") and not word.startswith("-")), "")


def check_script(words: Sequence[str], folder: Path) -> None:
    """Errors: the script that a command names, itself or behind a launcher, or its DeepSpeed configuration is not in
    `folder`."""
    words = inner(words)
    program = program_of(words)
    target = program.target
    is_script = not program.is_module and (is_python(words[0]) or target.endswith(".py") or os.sep in target)
    if launcher := launcher_of(program):
        target = script_in(launcher[1])
        is_script = {"-m", "--module", "--no-python", "--no_python"}.isdisjoint(launcher[1])
    elif not is_script and not program.is_module and not shutil.which(target) and (near := _misspelled(target)):
        raise DsAdviseError(f"there is no {target}", why="it is no command on PATH", fix=f"write {near}")
    for file in (target if is_script else "", *_configs_in(words)):
        if file and not (folder / file).exists():
            near = nearest_file(folder / file)
            fix = f"write {Path(file).with_name(Path(near).name)}" if near else f"give its path from {folder}"
            raise DsAdviseError(f"there is no file {file}", fix=fix)


def _misspelled(program: str) -> str:
    """Return the launcher whose name a word is nearly; "" for a launcher and any other word."""
    from difflib import get_close_matches  # imported here: only a word that is on no PATH needs it

    known = ("python", "python3", "accelerate", *_LAUNCHERS)
    return "" if program in known else next(iter(get_close_matches(program, known, n=1, cutoff=0.8)), "")


_CONFIG_OPTIONS = ("deepspeed", "deepspeed_config", "deepspeed_config_file")
"""Options of the Trainer, of DeepSpeed and of `accelerate launch` that name a configuration. A script's own options,
such as ds_config, may be read in another way."""


def _configs_in(words: Sequence[str]) -> Iterator[str]:
    """Yield the files of configurations that a command names. Such an option may also hold JSON or its base64, which
    has no dot, or be a switch."""
    for word, after in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        value = value if equals else after
        is_named = name.startswith("--") and option_name(name) in _CONFIG_OPTIONS
        if is_named and "." in value and not value.lstrip().startswith(("-", "{")):
            yield value


_TOOLS: Mapping[str, Sequence[str]] = {
    "llamafactory-cli": ("train",),
    "lmf": ("train",),
    "axolotl": ("train",),
    "swift": ("sft", "pt", "rlhf"),
    "trl": ("sft", "dpo", "grpo", "kto", "reward", "rloo"),
}
"""Commands of tools, with their subcommands that train."""


def is_training(words: Sequence[str]) -> bool:
    """Whether a command may start a training: a launcher, a Python file or module, or a tool's own command."""
    try:
        words = inner(words)
        return launcher_of(program_of(words)) is not None or is_python(words[0]) or _is_by_tool(words)
    except DsAdviseError:  # `python -c`, an assignment alone
        return False


def _is_by_tool(words: Sequence[str]) -> bool:
    return "".join(words[1:2]) in _TOOLS.get(PurePath(words[0]).name, ())


def tools_file(words: Sequence[str]) -> str:
    """The configuration with which a tool's own command trains; "" for another command, and without one."""
    try:
        words = inner(words)
    except DsAdviseError:  # a prefix without a program
        return ""
    if not _is_by_tool(words):
        return ""
    parts = [part for word in words[1:] for part in re.split("(?<=^--config)=", word)]
    named = [part for before, part in pairwise(parts) if before in (parts[0], "--config") and part[:1] != "-"]
    return next((part for part in named if PurePath(part).suffix in (".yaml", ".yml", ".json")), "")


def interpreter_of(
    words: Sequence[str], *, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> Path | None:
    """The Python interpreter that runs the command, if it is another one than this process's; else None. environment:
    the command's, by default this process's.

    It is the one that the command names; of `uv run` and the like that of the project's `.venv`; of a console script
    or launcher that of its first line; of `python` and of a script without an interpreter that of the active virtual
    environment, else the one on PATH if it has torch.

    Errors: the command names an interpreter that is not there.
    """
    folder, environment = folder or Path.cwd(), os.environ if environment is None else environment
    path, in_project = environment.get("PATH"), False
    while layer := peel(words):
        words, path = layer.words, layer.variables.get("PATH", path)
        in_project |= layer.name.endswith(" run")
    head = words[0] if words else ""
    if is_python(head) and "/" in head:
        if not (folder / head).is_file():
            raise DsAdviseError(f"there is no interpreter {head}", fix="give the path of a Python interpreter")
        return _other(folder / head)
    if in_project:
        for parent in (folder, *folder.parents):
            if (own := parent / ".venv" / "bin" / "python").is_file():
                return _other(own)
    if not is_python(head) and not head.endswith(".py"):
        file = shutil.which(str(folder / head) if "/" in head else head, path=path)
        if file and (named := shebang(Path(file))) and "/" in named and Path(named).is_file():
            return _other(Path(named))
    virtual = environment.get("VIRTUAL_ENV", "")
    if virtual and (active := Path(virtual) / "bin" / "python").is_file():
        return _other(active)
    bare = shutil.which(head if is_python(head) else "python", path=path)
    return _other(Path(bare)) if bare and _has_torch(Path(bare)) else None


def shebang(file: Path) -> str | None:
    """The Python interpreter in the first line of a script: a path, or `python3` after `env`; None if it is no Python
    script. Long paths stand in a second line, `'''exec' PATH`."""
    try:
        with file.open("rb") as stream:
            lines = [stream.readline(4096).decode(errors="replace") for _ in range(2)]
    except OSError:
        return None
    if not lines[0].startswith("#!"):
        return None
    words = lines[0][2:].split()
    if lines[1].startswith("'''exec'"):
        words = shlex.split(lines[1].removeprefix("'''exec'"))[:1]
    return next((word for word in words if is_python(word)), None)


def _other(python: Path) -> Path | None:
    """None for this process's interpreter. The file itself is a link to one that many environments share."""
    return None if python.parent.resolve() == Path(sys.executable).parent.resolve() else python


def _has_torch(python: Path) -> bool:
    prefixes = {python.parent.parent, python.resolve().parent.parent}
    prefixes |= {Path("/usr/local")} if Path("/usr") in prefixes else set()
    return any(any(prefix.glob("lib/python3*/*-packages/torch")) for prefix in prefixes)
