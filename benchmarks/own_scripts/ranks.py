"""Compare the dry run of a command with two ranks that really train on the CPU.

    python -m benchmarks.own_scripts.ranks DIR [NAME...]                 the scripts of scripts.toml, prepared in DIR
    python -m benchmarks.own_scripts.ranks DIR --folder F -- COMMAND     a command typed in folder F

Prints a Markdown table of the largest relative differences of the bytes of tensors, GPU and host together, at the end
of each phase and at its peak. What a phase of loading holds at its peak is not compared: weights are read there.

On a CPU, host and GPU are one memory: what the script itself makes on the host and moves is one tensor there and two in
the dry run. Batches of data loaders are copied on both sides.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.own_scripts import environments
from benchmarks.own_scripts.__main__ import PACKAGE, environment_of, load_scripts, run_limited, words_of

WORLD_SIZE = 2
WORKER = Path(__file__).with_name("ranks_worker.py")
CLOSE = 0.005
ONLY_ON_ONE = {"between"}
"""Phases that are listed where they allocate much on a GPU, which a real rank has not."""

DRY_RUN = """import json, sys
sys.path.insert(0, {packages!r})
from pathlib import Path
from ds_advise.estimators.errors import DsAdviseError
from ds_advise.estimators.hardware import Cluster, find_gpu
from ds_advise.estimators.json_form import to_json
from ds_advise.probes.command import run
from ds_advise.probes.command.request import CommandRequest
run._START = run._START.replace("ds_advise.probes.command.worker import main", "ds_advise.benchmarks.own_scripts"
    ".ranks_worker import dry_run as main")
cluster = Cluster(gpu=find_gpu("H100"), nodes=1, gpus_per_node={world_size})
request = CommandRequest(words={words!r}, folder=Path.cwd(), cluster=cluster, iterations={steps}, rank=0, rows=1 << 40)
try:
    found = run.dry_run_command(request, timeout_s={limit})
    answer = {{"phases": to_json(found.result)["phases"], "observed": to_json(found.observed)}}
except DsAdviseError as error:
    answer = {{"error": str(error) + " " + error.why + getattr(error, "details", "")}}
print(json.dumps(answer))
"""
"""The dry run in a process with the script's variables."""


def real_ranks(python: Path, words: list[str], folder: Path, variables: dict[str, str], log: Path, limit: float) -> Any:
    """The answer of rank 0."""
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "ds_advise").symlink_to(PACKAGE, target_is_directory=True)
        start = [python, "-m", "torch.distributed.run", f"--nproc_per_node={WORLD_SIZE}", "--master_port=0"]
        command = [str(word) for word in [*start, WORKER, scratch, "0", *words]]
        _, printed = run_limited(command, folder, variables, log, limit)
        with log.open("a", encoding="utf-8") as file:
            file.write(printed)
        answers = [Path(scratch) / f"rank{rank}.json" for rank in range(WORLD_SIZE)]
        found = [json.loads(path.read_text()) for path in answers if path.exists()]
        failed = [answer for answer in found if "error" in answer]
        return (failed or found or [{"error": f"no answer, see {log}"}])[0]


def simulated_rank(words: list[str], folder: Path, variables: dict[str, str], log: Path, limit: float) -> Any:
    text = DRY_RUN.format(packages=str(PACKAGE.parent), world_size=WORLD_SIZE, words=tuple(words), steps=4, limit=limit)
    _, printed = run_limited([sys.executable, "-c", text], folder, variables, log, limit + 30)
    try:
        return json.loads(printed.strip().splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        return {"error": f"no answer, see {log}"}


def compare(dry: dict[str, Any], real: dict[str, Any]) -> dict[str, Any]:
    """What agrees, and the relative differences by (iteration, phase, "live" or "peak")."""
    phases = [
        {(phase["iteration"], phase["phase"]): phase for phase in each["phases"] if phase["phase"] not in ONLY_ON_ONE}
        for each in (dry, real)
    ]
    ours, theirs = phases
    differences = {}
    for key in ours:
        for figure in ("live", "peak") if key in theirs else ():
            if key[1] == "load" and figure == "peak":
                continue
            name = f"total_{figure}_bytes"
            more = ours[key][name] - theirs[key][name]
            differences[*key, figure] = (more / max(1, theirs[key][name]), more)
    engines = [each["observed"]["engines"] for each in (dry, real)]
    return {
        "order": list(ours) == list(theirs),
        "phases": [list(ours), list(theirs)],
        "parameters": _same(engines, "parameters", "trainable_parameters", "trainable_dtypes", "optimizer"),
        "configuration": _same(engines, "config", "micro_batch_size", "gradient_accumulation_steps", "zero_stage"),
        "differences": differences,
        "lengths": [each["observed"]["batch_lengths"] for each in (dry, real)],
    }


def held(answer: dict[str, Any]) -> dict[str, Counter[str]]:
    remark = next(each for each in answer["observed"]["remarks"] if each.startswith("held "))
    return {name: Counter(sizes) for name, sizes in json.loads(remark[5:]).items()}


def only_one_side(dry: dict[str, Any], real: dict[str, Any], place: str) -> list[str]:
    """The largest tensors that one side holds at the end or the peak of a phase and the other does not."""
    ours, theirs = (held(each)[place] for each in (dry, real))
    for each in (ours, theirs):  # their categories may differ
        for text in list(each):
            each[text.rpartition(" ")[0]] += each.pop(text)
    lines = [("dry ", text, count) for text, count in (ours - theirs).items()]
    lines += [("real", text, count) for text, count in (theirs - ours).items()]
    lines.sort(key=lambda line: -int(line[1].split()[0]) * line[2])
    return [f"{side} {count} x {text}" for side, text, count in lines[:12]]


def _same(engines: list[Any], *names: str) -> list[str]:
    """What differs."""
    ours, theirs = engines
    if len(ours) != len(theirs):
        return [f"{len(ours)} engines, not {len(theirs)}"]
    return [
        f"{name}: {one[name]} against {other[name]}"
        for one, other in zip(ours, theirs, strict=True)
        for name in names
        if one[name] != other[name]
    ]


def report(name: str, found: dict[str, Any], *, verbose: bool) -> str:
    """A row of the table."""
    if verbose:
        for key, (relative, size) in found["differences"].items():
            print("   ", *key, f"{relative:+.3%} {size:+,}", file=sys.stderr)
        for what in ("parameters", "configuration", "lengths"):
            print("   ", what, found[what], file=sys.stderr)
        if not found["order"]:
            print("    phases", *found["phases"], sep="\n      ", file=sys.stderr)
    cells = [name, "yes" if found["order"] else "no"]
    cells += ["equal" if not found[what] else "differ" for what in ("parameters", "configuration")]
    for figure in ("live", "peak"):
        sizes = {key: value[0] for key, value in found["differences"].items() if key[2] == figure}
        worst = max(sizes, key=lambda key: abs(sizes[key]))
        cells.append(f"{sizes[worst]:+.2%} ({worst[1]} of {worst[0]})")
    return "| " + " | ".join(cells) + " |"


HEAD = """| script | order of phases | trained parameters | configuration | live bytes, largest difference | peak |
| --- | --- | --- | --- | --- | --- |"""


def run_both(
    name: str, python: Path, words: list[str], folder: Path, variables: dict[str, str], results: Path, limit: float
) -> str:
    answers = {}
    stem = results / f"{name.replace(' ', '_').replace('/', '_')}.ranks"
    for kind in ("dry", "real"):
        begin = time.monotonic()
        log = Path(f"{stem}.{kind}.log")
        if kind == "dry":
            answers[kind] = simulated_rank(words, folder, variables, log, limit)
        else:
            answers[kind] = real_ranks(python, words, folder, variables, log, limit)
        Path(f"{stem}.{kind}.json").write_text(json.dumps(answers[kind]))
        print(f"{name}: {kind} {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
        if "error" in answers[kind]:
            print(answers[kind]["error"][-3000:], file=sys.stderr)
            last = answers[kind]["error"].strip().splitlines()
            return f"| {name} | {kind} run failed: {(last or [''])[0 if kind == 'dry' else -1][:200]} | | | | |"
    found = compare(answers["dry"], answers["real"])
    for kind, answer in answers.items():
        for remark in answer["observed"]["remarks"]:
            if not remark.startswith("held "):
                print(f"  {kind}: {remark[-1500:]}", file=sys.stderr)
    for place, (relative, _) in found["differences"].items():
        if abs(relative) > CLOSE:
            lines = only_one_side(answers["dry"], answers["real"], " ".join(map(str, place)))
            print(f"  {place}: {relative:+.2%}", *lines, sep="\n    ", file=sys.stderr)
    return report(name, found, verbose=True)


def ranks_words(script: dict[str, Any], root: Path) -> list[str]:
    """The command for two ranks with the tiny model and the shorter arguments of `--check`, or those of `ranks`."""
    shorter = script.get("ranks", script.get("check", "").replace("--max_steps 1", "").replace("--use_cpu", ""))
    command = script["command"].replace("{models}", "{root}/models/tiny") + " " + shorter
    return words_of({**script, "command": command, "gpus": f"{WORLD_SIZE}xH100"}, root, check=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", metavar="DIR", type=Path)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--limit", type=float, default=400.0, help="seconds for each run")
    parser.add_argument("names", nargs="*", metavar="NAME")
    own, _, command = " ".join(map(shlex.quote, sys.argv[1:])).partition(" -- ")
    arguments = parser.parse_intermixed_args(shlex.split(own))
    root = arguments.root.resolve()
    results = root / "results"
    results.mkdir(exist_ok=True, parents=True)
    rows = []
    if arguments.folder:
        variables = dict(os.environ, PYTHONUNBUFFERED="1", HF_HUB_OFFLINE="1", HF_HOME=str(root / "cache"))
        variables["PATH"] = f"{Path(sys.executable).parent}:{variables['PATH']}"
        words = shlex.split(command)
        name = shlex.join(word for word in words if word.endswith((".py", ".json")))
        folder = arguments.folder.resolve()
        rows.append(run_both(name, Path(sys.executable), words, folder, variables, results, arguments.limit))
    else:
        _, scripts = load_scripts(arguments.names)
        for script in (script for script in scripts if "cannot" not in script):
            python = root / "env" / script["environment"] / "bin" / "python"
            folder = environments.working_folder(root, script, models="models/tiny")
            words = ranks_words(script, root)
            row = run_both(
                script["name"],
                python,
                words,
                folder,
                environment_of(script, root, check=False),
                results,
                arguments.limit,
            )
            print(row, flush=True)
            rows.append(row)
    print(HEAD, *rows, sep="\n")


if __name__ == "__main__":
    main()
