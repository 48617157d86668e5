"""The errors of dry runs, from the answers of their processes."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..estimators.errors import DsAdviseError
from .failures.messages import find_message

NAME_A_CONFIG = "ds-advise dry-run ds_config.json --gpus ... -- COMMAND"
"""The command line that names a configuration, for a command that is not known here."""


def way_to_deepspeed(*, takes_config: bool) -> tuple[str, str]:
    """(why, fix) for a training without DeepSpeed. takes_config: whether accelerate or a Trainer prepares it, which use
    a configuration that the command does not name."""
    if takes_config:
        return "", f"name a configuration, which accelerate and the Trainer then use: {NAME_A_CONFIG}"
    return "nothing in it takes a DeepSpeed configuration", "train by deepspeed.initialize, accelerate or a Trainer"


_NEEDS_VALUES = ("DynamicOutputShapeException", "DataDependentOutputException", "GuardOnDataDependentSymNode")


class DryRunError(DsAdviseError):
    """A failed dry run. details: the traceback or the output."""

    misspelt = ""
    """What to write for options that the script's parser refused and nearly has; "" if that is not the failure."""

    def __init__(self, what: str, *, phase: str, details: str = "", why: str = "", fix: str = "") -> None:
        super().__init__(what, why=why, fix=fix)
        self.phase = phase
        self.details = details


class NeedsValuesError(DryRunError):
    """The model's control flow or shapes depend on values: only a probe can run it."""


class CommandFailedError(DryRunError):
    """The user's script failed. details: its traceback or the end of its output."""

    exit_code = 1
    script_traceback = ""
    """Traceback of the script's exception, without the frames of this package; "" if it raised none."""


class ScriptExitError(CommandFailedError):
    """The user's script ended itself with an exit code, as it also does without a dry run."""


class NoEngineError(CommandFailedError):
    """The script trained without DeepSpeed. takes_config: whether it would take a configuration that the command does
    not name (`way_to_deepspeed`)."""

    def __init__(self, what: str, *, takes_config: bool = False, **parts: str) -> None:
        super().__init__(what, **parts)
        self.takes_config = takes_config


_ROOTS = (f"{Path(__file__).parents[1]}/", f"{Path(__file__).resolve().parents[1]}/")
"""This package's folder, and where a link to it leads."""


def users_line(frames: Iterable[traceback.FrameSummary]) -> str:
    """FILE:LINE of the innermost frame in the user's code; "" if there is none."""
    libraries = ("site-packages", "dist-packages", str(Path(os.__file__).parent))
    lines = [
        f"{frame.filename}:{frame.lineno}"
        for frame in frames
        if not any(part in frame.filename for part in libraries) and not _is_internal(frame.filename)
    ]
    return lines[-1] if lines else ""


def _is_internal(file: str) -> bool:
    """Whether a file is this package's, or no file. A checkout may hold the environment with the libraries."""
    inside = [file.removeprefix(root) for root in _ROOTS if file.startswith(root)]
    return file.startswith("<") or any("-packages/" not in path for path in inside)


def script_traceback(error: BaseException) -> str:
    """The traceback of an exception without the frames of this package."""
    found = traceback.TracebackException.from_exception(error)
    each: traceback.TracebackException | None = found
    while each is not None:
        each.stack = traceback.StackSummary.from_list(frame for frame in each.stack if not _is_internal(frame.filename))
        each = each.__cause__ or each.__context__
    return "".join(found.format())


def package_of(error: BaseException) -> str:
    """The installed package of the innermost frame, ignoring pydantic, which validates on behalf of its caller."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    names = [file.split("-packages/")[1].split("/")[0] for file in files if "-packages/" in file]
    return next((name for name in reversed(names) if not name.startswith("pydantic")), "")


def crash_error(status: int, phase: str, printed: str) -> DryRunError:
    """The error for a process that ended without an answer."""
    if status < 0:
        name = signal.Signals(-status).name
        if name == "SIGKILL":
            return DryRunError(
                f"the dry run was killed (SIGKILL, during {phase})",
                phase=phase,
                details=printed,
                why="the system kills a process when the memory of the machine runs out",
                fix="free memory, or use fewer --iterations",
            )
        what = f"the dry run crashed ({name}, during {phase})"
    else:
        what = f"the dry run ended without an answer (exit code {status}, during {phase})"
    last_line = next((line.strip() for line in reversed(printed.splitlines()) if line.strip()), "")
    return DryRunError(what, phase=phase, details=printed, why=last_line, fix="report it with the output of --debug")


def worker_error(answer: Mapping[str, Any]) -> DsAdviseError:
    """The error for the subprocess's exception, with its original message and a fix."""
    if answer["kind"] in ("NoEngine", "NoStep"):
        return command_error(answer)
    kind, phase, where = answer["kind"], answer["phase"], answer["where"]
    text = " ".join(line.strip() for line in answer["error"].splitlines() if "errors.pydantic.dev" not in line)
    why = f"raised at {where}" if where else ""
    fix = answer.get("fix", "")
    needs_values = kind in _NEEDS_VALUES or "meta tensor" in text or "register_meta function" in text
    if needs_values:
        text = f"{where or 'the model'} needs real values: {text[:200]}"
        why = "a dry run and a recording have shapes but no values"
        fix = (
            "avoid shapes that depend on values (use a mask instead of an index), or probe it: ds-advise probe, "
            "without a GPU with --device cpu; ds-advise launch has --no-check"
        )
    elif kind == "MemoryError":
        text = "this machine is out of memory"
        fix = "free memory, or use fewer --iterations"
    elif answer["package"] == "deepspeed" and phase in ("load", "initialize"):
        why = "DeepSpeed rejects this configuration"
        fix = "correct the setting in its message"
    elif kind == "UnrecordableError":
        why = ""
    elif answer["package"] == "transformers" and (known := find_message(text)) is not None:
        known = known.about(text)
        text, why, fix = text.partition(". ")[0], known.cause, known.fix
    elif where or not text:
        text = f"{kind}: {text}" if text else kind
    chosen = NeedsValuesError if needs_values else DryRunError
    during = f" (during {phase})" if phase else ""
    return chosen(f"{text}{during}", phase=phase, details=answer["traceback"], why=why, fix=fix)


def ended_error(status: int, phase: str, printed: str, where: str) -> DsAdviseError:
    """The error for a process without an answer. where: the line at which it crashed."""
    if status >= 0:
        lines = [line.strip() for line in printed.splitlines() if line.strip()]
        return CommandFailedError(
            f"the script ended its process with exit code {status} (during {phase})",
            phase=phase,
            details=printed,
            why=lines[-1] if lines else "",
            fix="see its output with --debug",
        )
    if status == -signal.SIGKILL:
        return crash_error(status, phase, printed)
    name = signal.Signals(-status).name
    return CommandFailedError(f"the script ended by {name} (during {phase})", phase=phase, details=printed, why=where)


def command_error(answer: Mapping[str, Any]) -> DsAdviseError:
    """The error for an exception in the script's process."""
    kind, phase, where = answer["kind"], answer["phase"], answer.get("where", "")
    misspelt = answer.get("misspelt", "")
    text = " ".join(line.strip() for line in str(answer["error"]).splitlines() if line.strip())
    details = f"{answer.get('printed', '')}\n{answer.get('traceback', '')}"
    if kind == "NoEngine":
        why, fix = way_to_deepspeed(takes_config=answer["takes_config"])
        why = f"deepspeed.initialize was never called{f', and {why}' if why else ''}"
        parts = {"phase": phase, "details": details, "why": why, "fix": fix}
        if answer["trained"]:
            return NoEngineError("the script trained without DeepSpeed", takes_config=answer["takes_config"], **parts)
        return CommandFailedError("the script ended before it trained", **parts)
    if kind == "NoStep":
        what = f"the script ended before an optimizer step (during {phase})"
        return CommandFailedError(what, phase=phase, details=details, why="its DeepSpeed engine was not trained")
    if kind == "SystemExit":
        code = text.isdecimal() or text.startswith("-")
        what = f"the script exited with {f'code {text}' if code else 'the message'} (during {phase})"
        lines = [line.strip() for line in str(answer.get("printed", "")).splitlines() if line.strip()]
        said = (lines[-1] if lines else "") if code else text
        known = find_message(said)
        fix = "see its output with --debug" if known is None else known.about(said).fix
        ended = ScriptExitError(
            what,
            phase=phase,
            details=details,
            why=", ".join(filter(None, (said, f"at {where}" if where else ""))),
            fix=misspelt or fix,
        )
        ended.misspelt = misspelt
        return ended
    if answer.get("what"):  # an error of this package
        parts = {"phase": phase, "details": details, "why": answer["why"], "fix": answer["fix"]}
        if kind == "PlainTrainingError":
            return NoEngineError(answer["what"], takes_config=answer["takes_config"], **parts)
        error = DryRunError if phase == "start" else CommandFailedError  # at the start no script ran
        return error(answer["what"], **parts)
    raised = f"{kind}: {text}" if text and kind not in text else text or kind
    failed = CommandFailedError(
        f"the script failed{f' at {where}' if where else ''} (during {phase})",
        phase=phase,
        details=details,
        why=raised,
        fix="it needs more host memory than is free here" if kind == "MemoryError" else misspelt,
    )
    failed.misspelt = misspelt
    failed.script_traceback = answer.get("script_traceback", "")
    return failed
