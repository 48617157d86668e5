"""Training scripts of other projects, unmodified, each run by `ds-advise dry-run -- COMMAND`.

    python -m benchmarks.own_scripts --prepare DIR [NAME...]   environments, sources, models and data below DIR
    python -m benchmarks.own_scripts --check DIR [NAME...]     each command on this CPU with a model of two layers
    python -m benchmarks.own_scripts --run DIR [NAME...]       each command in the dry run; a Markdown table
    python -m benchmarks.own_scripts --list

The commands are in scripts.toml. `--run` and `--check` write DIR/results/NAME.json and .log, and --run prints the table
of all results that DIR holds; NAME is part of a script's name.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

from benchmarks.own_scripts import environments

PACKAGE = Path(__file__).resolve().parent.parent.parent  # the import package ds_advise


def load_scripts(names: list[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    listed = tomllib.loads((Path(__file__).parent / "scripts.toml").read_text(encoding="utf-8"))
    scripts = [script for script in listed["scripts"] if not names or any(name in script["name"] for name in names)]
    if not scripts:
        raise SystemExit(f"No script's name contains {' or '.join(names)}.")
    return listed, scripts


def fill_in(typed: str, script: dict[str, Any], root: Path, *, check: bool) -> str:
    """`typed` with its places filled in."""
    environment = root / "env" / script["environment"]
    count = "1" if check else script["gpus"].partition("x")[0]
    places: dict[str, Any] = {
        "root": root,
        "data": root / "data",
        "models": root / "models" / "tiny" if check else root / "models",
    }
    places |= {"site": environments.site_packages(environment), "n": count}
    for name, place in places.items():
        typed = typed.replace("{" + name + "}", str(place))
    return typed


def words_of(script: dict[str, Any], root: Path, *, check: bool) -> list[str]:
    """The words of the command."""
    typed = script["command"]
    if check:
        typed = script.get("check_command", typed + " " + script.get("check", ""))
        typed = typed.replace("zero3", "zero2")  # with --use_cpu, transformers shards at loading and never gathers
    return shlex.split(fill_in(typed, script, root, check=check))


def environment_of(script: dict[str, Any], root: Path, *, check: bool) -> dict[str, str]:
    """Variables of the shell in which the command is typed: its environment is active, and the hub is not reached."""
    binaries = root / "env" / script["environment"] / "bin"
    made = dict(os.environ, PATH=f"{binaries}:{os.environ['PATH']}", VIRTUAL_ENV=str(binaries.parent))
    made |= {"HF_HOME": str(root / "cache"), "HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled", "PYTHONUNBUFFERED": "1"}
    made |= {name: fill_in(text, script, root, check=check) for name, text in script.get("variables", {}).items()}
    made.pop("PYTHONPATH", None)
    return made


def working_folder(script: dict[str, Any], root: Path, *, check: bool) -> Path:
    """The folder in which the command is typed, with the places in the user's files filled in."""
    filled = {name: fill_in(text, script, root, check=check) for name, text in script.get("files", {}).items()}
    replaced = {
        name: {old: fill_in(new, script, root, check=check) for old, new in changes.items()}
        for name, changes in script.get("replace", {}).items()
    }
    made = {**script, "files": filled, "replace": replaced}
    return environments.working_folder(root, made, models="models/tiny" if check else "models")


def run_limited(
    words: list[str], folder: Path, variables: dict[str, str], log: Path, limit: float
) -> tuple[int | None, str]:
    """Exit status, or None past `limit` seconds, and standard output; standard error goes to `log`."""
    with log.open("w", encoding="utf-8") as errors:
        started = subprocess.Popen(
            words, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )
        try:
            printed, _ = started.communicate(timeout=limit)
            return started.returncode, printed
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            printed, _ = started.communicate()
            return None, printed


def last_error(text: str) -> str:
    """The last line of a log that names an error: what a traceback ends with."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if "Error" in line.split(":")[0] or line.startswith("error:")]
    named = [line for line in named if not line.startswith(("torch.distributed.elastic", "subprocess.CalledProcess"))]
    return (named or lines or [""])[-1][:300]


def check_one(script: dict[str, Any], root: Path, limit: float) -> dict[str, Any]:
    """The command itself on this machine's CPU, one process, the tiny model."""
    folder = working_folder(script, root, check=True)
    log = root / "results" / f"{folder.name}.check.log"
    variables = environment_of(script, root, check=True) | {
        "DS_ACCELERATOR": "cpu",
        "ACCELERATE_USE_CPU": "true",
        "CUDA_VISIBLE_DEVICES": "",
    }
    begin = time.monotonic()
    status, printed = run_limited(words_of(script, root, check=True), folder, variables, log, limit)
    with log.open("a", encoding="utf-8") as errors:
        errors.write(printed)
    ended = "ran to its end" if status == 0 else "time limit" if status is None else last_error(log.read_text("utf-8"))
    return {"seconds": round(time.monotonic() - begin, 1), "ended": ended}


def dry_run_one(script: dict[str, Any], root: Path, limit: float) -> dict[str, Any]:
    """The dry run of the command; its JSON, or the sentence with which it failed."""
    folder = working_folder(script, root, check=False)
    log = root / "results" / f"{folder.name}.log"
    tool = [sys.executable, "-m", "ds_advise", "dry-run", "--gpus", script["gpus"], "--json", "--"]
    variables = environment_of(script, root, check=False) | {"PYTHONPATH": str(PACKAGE.parent)}
    begin = time.monotonic()
    status, printed = run_limited([*tool, *words_of(script, root, check=False)], folder, variables, log, limit)
    seconds = round(time.monotonic() - begin, 1)
    log.with_suffix(".out").write_text(printed, encoding="utf-8")
    try:
        return {"seconds": seconds, "answer": json.loads(printed)}
    except json.JSONDecodeError:
        said = "time limit" if status is None else last_error(log.read_text("utf-8") + printed)
        return {"seconds": seconds, "error": said}


def row(script: dict[str, Any], result: dict[str, Any] | None) -> list[str]:
    """Script, GPUs, seconds, how it ended, peak GiB, seconds a step: what the answer's JSON says, in one place."""
    opening = [script["name"], script["gpus"]]
    if "cannot" in script:
        return [*opening, "", f"not run: {script['cannot']}", "", ""]
    if result is None:
        return [*opening, "", "not run yet", "", ""]
    seconds = f"{result['seconds']:.0f}"
    if "error" in result:
        return [*opening, seconds, result["error"], "", ""]
    answer = result["answer"]
    observed, peak = answer["observed"], answer["peak"]["allocated_bytes_per_gpu"] / 2**30
    step = answer["step_s"]
    ended = f"{observed['ended']}, {observed['steps']} steps; {answer['verdict']}"
    return [*opening, seconds, ended, f"{peak:.2f}", "" if step is None else f"{step:.3g}"]


def table(root: Path, scripts: list[dict[str, Any]]) -> str:
    heads = ["script", "GPUs", "time, s", "ended", "peak, GiB", "step, s"]
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for script in scripts:
        path = root / "results" / f"{script['name'].replace(' ', '_')}.json"
        result = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row(script, result)) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    for name in ("prepare", "check", "run"):
        what.add_argument(f"--{name}", metavar="DIR", type=Path)
    what.add_argument("--list", action="store_true")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for each script")
    parser.add_argument("names", nargs="*", metavar="NAME")
    arguments = parser.parse_args()
    listed, scripts = load_scripts(arguments.names)
    if arguments.list:
        print(
            "\n".join(
                f"{script['name']} ({script['gpus']}): {' '.join(script['command'].split())}" for script in scripts
            )
        )
        return
    runnable = [script for script in scripts if "cannot" not in script]
    if arguments.prepare:
        environments.prepare(arguments.prepare.resolve(), listed, runnable)
        return
    root = (arguments.run or arguments.check).resolve()
    (root / "results").mkdir(exist_ok=True)
    for script in runnable:
        result = (dry_run_one if arguments.run else check_one)(script, root, arguments.limit)
        stem = script["name"].replace(" ", "_") + ("" if arguments.run else ".check")
        (root / "results" / f"{stem}.json").write_text(json.dumps(result, indent=2), encoding="utf-8")
        said = result["ended"] if arguments.check else " | ".join(row(script, result)[2:])
        print(f"{script['name']}: {said} ({result['seconds']} s)", file=sys.stderr, flush=True)
    if arguments.run:
        print(table(root, scripts))


if __name__ == "__main__":
    main()
