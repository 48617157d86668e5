"""`ds-advise mcp`: the commands as tools of the Model Context Protocol, and the manual as its resources.

Nothing is declared twice. A tool's name, description and arguments are those of its command, its result is the
command's output with --json, and the schemas of the results are those of `ds-advise schema`.
"""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from ... import __version__
from .help import GroupedCommand
from .options import DEBUG, CommandWithUsersCommand, Whole

if TYPE_CHECKING:
    from mcp.server import Server

TOOLS = ("advise", "explain", "lint", "check", "compare", "from", "rent", "checkpoint", "doctor")
"""Commands that compute their answer from files and arithmetic, without a training and without writing a file by
default."""

_PACKAGE = Path(__file__).parents[2]
_SKILL = Path(__file__).with_name("SKILL.md")

_WRITES = ("destination", "html", "plot", "to_hf")
"""Parameters with the name of a file to write."""

_WITHHELD = frozenset(
    (
        # Forms of the answer.
        *("as_json", "quiet", "debug", "no_write", "details", "markdown", "language", "report", "form"),
        *("force", "fix"),  # these would replace a file of the user's
        *("probe", "advise budget"),  # a run on this machine's GPUs
    )
)
"""Parameters that no tool has, or, after a command's name, that this command's tool lacks."""

_TYPES: Mapping[str, dict[str, Any]] = {
    "N": {"type": "integer", "minimum": 1},
    "N|max": {"anyOf": [{"type": "integer", "minimum": 1}, {"const": "max"}]},
    "N|no-accumulation": {"anyOf": [{"type": "integer", "minimum": 1}, {"const": "no-accumulation"}]},
    "boolean": {"type": "boolean"},
    "float": {"type": "number"},
}
"""JSON Schema by name of Click's type. All other types are text."""


@click.command(cls=GroupedCommand)
@click.option(
    "--skill",
    is_flag=True,
    help="Print the skill, a page that describes to an agent when and how to use the tools, and exit.",
)
@DEBUG
def mcp(skill: bool) -> int:
    """Serve advise, explain, lint, check, compare, from, rent, checkpoint and doctor to an agent on stdin and stdout.

    Add `ds-advise mcp` to the agent's list of MCP servers; the agent starts it. The tools have the arguments of the
    commands and return their JSON; the manual is served as resources. Files are written only if an argument names one,
    and none is replaced.

    \b
    ds-advise mcp --skill > ~/.claude/skills/ds-advise/SKILL.md

    Exit code: 0, or 2 if it cannot start.
    """
    if skill:
        click.echo(_SKILL.read_text(encoding="utf-8"), nl=False)
        return 0
    import anyio
    from mcp.server.stdio import stdio_server

    served = server()

    async def serve() -> None:
        async with stdio_server() as (reading, writing):
            await served.run(reading, writing, served.create_initialization_options())

    anyio.run(serve)
    return 0


def server() -> Server[Any]:
    """The server, which needs a transport to run. Raises ModuleNotFoundError without the package `mcp`."""
    import anyio
    from mcp import MCPError, types
    from mcp.server import Server

    from .main import program

    commands = {name: cast("click.Command", program.get_command(click.Context(program), name)) for name in TOOLS}
    resources = _resources()

    async def list_tools(_context: Any, _params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=name,
                    description=_description(command),
                    input_schema=input_schema(command),
                    annotations=types.ToolAnnotations(
                        read_only_hint=not any(each.name in _WRITES for each in command.params),
                        destructive_hint=False,
                        open_world_hint=False,
                    ),
                )
                for name, command in commands.items()
            ]
        )

    async def call_tool(_context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        if params.name not in commands:
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name!r}; there are {', '.join(TOOLS)}")
        try:
            words = command_line(params.name, commands[params.name], params.arguments or {})
            # A separate process: a client can cancel it, and nothing it prints reaches the protocol's stream.
            program = [sys.executable, "-P", "-m", "ds_advise", *words]
            done = await anyio.run_process(program, stdin=subprocess.DEVNULL, check=False)
        except ValueError as error:  # an unknown argument, or a null character in a value
            return types.CallToolResult(content=[types.TextContent(text=str(error))], is_error=True)
        printed, messages = (stream.decode(errors="replace").strip() for stream in (done.stdout, done.stderr))
        try:
            form: Any = json.loads(printed)
            printed = json.dumps(form, separators=(",", ":"))
        except ValueError:  # the rules of lint are listed as text
            form = None
        return types.CallToolResult(
            content=[types.TextContent(text=text) for text in (printed, messages) if text],
            structured_content=form if isinstance(form, dict) else None,
            is_error=done.returncode not in (0, 1),
        )

    async def list_resources(_context: Any, _params: Any) -> types.ListResourcesResult:
        return types.ListResourcesResult(
            resources=[types.Resource(uri=uri, name=title) for uri, (title, _) in resources.items()]
        )

    async def read_resource(_context: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        if params.uri not in resources:
            raise MCPError(types.INVALID_PARAMS, f"there is no resource {params.uri}")
        text = resources[params.uri][1]()
        return types.ReadResourceResult(contents=[types.TextResourceContents(uri=params.uri, text=text)])

    return Server(
        "ds-advise",
        version=__version__,
        instructions=_SKILL.read_text(encoding="utf-8").partition("\n---\n")[2].strip(),
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
    )


def input_schema(command: click.Command) -> dict[str, Any]:
    """The JSON Schema of a tool's arguments: the command's parameters under their Python names. Long descriptions stand
    once, at `advise`."""
    shown = _parameters(command)
    return {
        "type": "object",
        "properties": {name: _schema(each, is_whole=command.name == "advise") for name, each in shown.items()},
        "required": [name for name, each in shown.items() if each.required or _is_model(each)],
        "additionalProperties": False,
    }


def _is_model(parameter: click.Parameter) -> bool:
    """Whether the parameter names the model: a tool needs it, where the terminal also takes a command behind `--`."""
    return isinstance(parameter, click.Argument) and parameter.name == "model"


def command_line(name: str, command: click.Command, arguments: Mapping[str, Any]) -> list[str]:
    """The words of the command line for a tool's arguments. Raises ValueError for an argument that the tool does not
    have."""
    shown = _parameters(command)
    if unknown := sorted({*arguments} - {*shown}):
        raise ValueError(f"there is no argument {unknown[0]!r}; there are {', '.join(shown)}")
    pairs = [(shown[each], arguments[each]) for each in shown if arguments.get(each) not in (None, False)]
    options = [
        each.opts[-1] if value is True else f"{each.opts[-1]}={value}"
        for each, value in pairs
        if isinstance(each, click.Option)
    ]
    if "destination" not in arguments and any(each.name == "no_write" for each in command.params):
        options.append("--no-write")
    words = [value if isinstance(value, list) else [value] for each, value in pairs if isinstance(each, click.Argument)]
    values = [*map(str, chain(*words))]
    if not isinstance(command, CommandWithUsersCommand):
        # -- so that a value that begins with a dash is not read as an option.
        return [name, "--json", *options, "--", *values]
    # There a command of the user's would follow.
    if dashed := next((value for value in values if value.startswith("-")), None):
        raise ValueError(f"{dashed[:40]!r} begins with a dash")
    return [name, "--json", *options, *values]


def _parameters(command: click.Command) -> dict[str, click.Parameter]:
    return {
        each.name: each
        for each in command.params
        if each.name and not {each.name, f"{command.name} {each.name}"} & _WITHHELD
    }


_LONG = 160
"""Characters of a description that is shortened where it is repeated."""


def _shortened(text: str) -> str:
    """The beginning of a description, up to the first list or explanation."""
    return text if len(text) <= _LONG else f"{re.split('[;:(.]', text)[0].strip()} (as for advise)."


def _schema(parameter: click.Parameter, *, is_whole: bool) -> dict[str, Any]:
    kind = parameter.type
    if isinstance(kind, click.Choice):
        form: dict[str, Any] = {"type": "string", "enum": [*kind.choices]}
    elif isinstance(kind, Whole):
        form = {"type": "integer", "minimum": kind.least} | ({} if kind.most is None else {"maximum": kind.most})
    else:
        form = dict(_TYPES.get(kind.name, {"type": "string"}))
    if parameter.nargs != 1:
        form = {"type": "array", "items": form}
    text = (parameter.help if isinstance(parameter, click.Option) else parameter.metavar) or ""
    form["description"] = text if is_whole else _shortened(text)
    if isinstance(parameter.default, str | int | float) and parameter.name not in _WRITES:
        form["default"] = parameter.default
    return form


def _description(command: click.Command) -> str:
    """The command's help without the example command lines."""
    return "\n\n".join(part for part in inspect.cleandoc(command.help or "").split("\n\n") if not part.startswith("\b"))


def _resources() -> dict[str, tuple[str, Callable[[], str]]]:
    """Address -> (title, text) of every resource: the pages of the manual, and the schemas of the results."""
    from .schema import command_schema

    found: dict[str, tuple[str, Callable[[], str]]] = {}
    for page in sorted((_PACKAGE / "docs").glob("*.md")):
        title = page.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        found[f"ds-advise://manual/{page.stem}"] = title, partial(page.read_text, encoding="utf-8")
    for name in TOOLS:
        title = f"JSON Schema of the result of {name}"
        found[f"ds-advise://schema/{name}"] = title, lambda name=name: json.dumps(command_schema(name))  # type: ignore[misc]
    return found
