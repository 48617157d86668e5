"""Probes, launches and trainings of a tiny model with faults at random moments, two at a time, on a machine that is
busy besides.

    python -m benchmarks.probes.soak [--rounds 100] [--minutes M] [--seed 0] [--at-once 2] [--load N]
        [--kinds KIND ...] [--write]

Each round starts two commands (or `--at-once`) of two ranks on the CPU, each with one of `FAULTS`, while as many
processes as there are cores (or `--load`) do nothing but count. Every kind meets every fault of its own before one
comes again. A clock jumps for the processes of its command alone (`clock.c`, which is compiled first).

Probes and launches of a plain script are hit up to 40 s after their start (a rank's as soon as there is one). The
trainings of `soak_trainings` are hit after a step, and then resumed: they must end with the undisturbed training's
steps and losses. Where memory ran out, `--fallback` must have ended them without a resumption.

Ctrl-C ends it with the table of what was done until then.

Whatever happens, a command must end by itself (`LIMIT_S`) and without a traceback of ours. Afterwards none of its
processes is left, nor shared memory of its ranks, nor a lock on an extension; the ranks' records go forward in time;
and the store can be read and has no result of what was not done. At the end, one more probe must run, and no temporary
folder is left.

--write: put the table into docs/launch.md. Exit 1 where anything was lost or left.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import resource
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import psutil

from ..document import put
from .soak_trainings import (
    DAMAGES,
    EXACT,
    MEMORY,
    OTHER_PLAN,
    SHORT,
    Training,
    difference,
    limit,
    memory_limit_bytes,
)

LATEST_FAULT_S, LIMIT_S, GRACE_S = 40.0, 2400.0, 60.0
"""The last two are far more than an idle machine takes: a busy one may stretch everything."""
SWEPT_AFTER_S = 65.0
"""Folders of a killed ds-advise are removed by the next one, once they are a minute old (`probes/scratch.py`)."""

_MARK, _CLOCK = "DS_ADVISE_SOAK", "clock.so"
_CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": 1},
    "optimizer": {"type": "Adam", "params": {"lr": 1e-4, "torch_adam": True}},
}
_MODEL = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
_SCRIPT = """
import argparse, os, pathlib, time
buffers = "deepspeed_allreduce_buffer_{}_{MASTER_ADDR}_{MASTER_PORT}_*".format(os.getuid(), **os.environ)
pathlib.Path("buffers").write_text(buffers)
import deepspeed, torch
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int)
arguments = deepspeed.add_config_arguments(parser).parse_args()
deepspeed.init_distributed("gloo")
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))
engine, *_ = deepspeed.initialize(args=arguments, model=net, model_parameters=net.parameters())
for _ in range(100):
    loss = engine(torch.randn(2, 64)).mean()
    engine.backward(loss)
    engine.step()
    time.sleep(0.05)
torch.distributed.destroy_process_group()
"""
_WORDS = {
    "probe": ["probe", "ds_config.json", "--model", "model", "--no-dry-run", "--seq-len", "32", "--stall", "300"],
    "launch": ["launch", "ds_config.json", "--no-check", "--log-dir", "log", "--stall", "300"],
}


@dataclass
class Trial:
    """One command with its fault."""

    kind: str
    fault: str
    folder: Path
    process: subprocess.Popen[bytes]
    strikes_at: float
    mark: str
    training: Training | None = None
    at_step: int = 0
    """Step of the training after which it is struck; `strikes_at` is without effect then."""
    struck: bool = False
    """The fault happened before the command ended."""
    wrong: list[str] = field(default_factory=list)

    def ranks(self) -> list[psutil.Process]:
        """Its processes that run the model, as far as there are any."""
        with contextlib.suppress(psutil.Error):
            return [
                child
                for child in psutil.Process(self.process.pid).children(recursive=True)
                if _module(child) in ("ds_advise.probes.real_run", "ds_advise.advisor.launch.rank")
            ]
        return []

    def left(self) -> list[psutil.Process]:
        """Every process that it or one of its own has started and that is still there."""
        return [process for process in psutil.process_iter() if self.mark in _environment(process)]


def _kill_a_rank(trial: Trial) -> None:
    _signal(_one_rank(trial), signal.SIGKILL)


def _stop_a_rank(trial: Trial) -> None:
    stopped = _one_rank(trial)
    _signal(stopped, signal.SIGSTOP)
    time.sleep(5)
    _signal(stopped, signal.SIGCONT)


def _one_rank(trial: Trial) -> list[psutil.Process]:
    """Raises LookupError where there is none yet."""
    if not (ranks := trial.ranks()):
        raise LookupError
    return ranks[:1]


def _stop(trial: Trial) -> None:
    trial.process.send_signal(signal.SIGSTOP)
    time.sleep(5)
    trial.process.send_signal(signal.SIGCONT)


def _remove_folders(trial: Trial) -> None:
    for folder in (trial.folder / "log", *(trial.folder / "tmp").iterdir()):
        shutil.rmtree(folder, ignore_errors=True)


def _jump(trial: Trial) -> None:
    hour_ns = 3600 * 10**9
    # A file that was changed a moment ago may have the time of the kernel's last tick.
    jump = struct.pack("qq", random.choice((-hour_ns, hour_ns)), time.time_ns() - 10**7)
    with (trial.folder / "clock").open("r+b") as mapped:  # it must never be shorter than it was
        mapped.write(jump)


def _full_disk() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def _little_memory() -> None:
    limit = random.choice((300, 700, 1100)) * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


FAULTS: dict[str, Callable[[Trial], Any]] = {
    "none": lambda _: None,
    "a rank is killed": _kill_a_rank,
    "a rank is suspended for 5 s": _stop_a_rank,
    "ds-advise is killed": lambda trial: trial.process.kill(),
    "ds-advise is suspended for 5 s": _stop,
    "Ctrl-C": lambda trial: trial.process.send_signal(signal.SIGINT),
    "SIGTERM": lambda trial: trial.process.terminate(),
    "its folders are removed": _remove_folders,
    "the clock jumps by an hour": _jump,
    "no file may grow": lambda _: None,
    "little memory": lambda _: None,
}
_HARMLESS = ("none", "ds-advise is suspended for 5 s", "the clock jumps by an hour")
_FROM_THE_START = {"no file may grow": _full_disk, "little memory": _little_memory}

_MEMORY = ("memory runs out at the start", "memory runs out after a step")
_TRAINING_FAULTS: dict[str, Callable[[Trial], Any]] = {
    **{fault: strike for fault, strike in FAULTS.items() if strike is not _remove_folders},
    "the disk is full at a checkpoint": lambda trial: limit(_pids(trial), resource.RLIMIT_FSIZE, 50_000),
    **dict.fromkeys(DAMAGES, lambda trial: trial.process.kill()),
    _MEMORY[0]: lambda _: None,
    _MEMORY[1]: lambda trial: limit(_pids(trial), resource.RLIMIT_DATA, 2**30),
}
for _fault in _FROM_THE_START:
    del _TRAINING_FAULTS[_fault]
ALL = {**FAULTS, **_TRAINING_FAULTS}
"""Every fault, by its name."""


def _pids(trial: Trial) -> list[int]:
    """Raises LookupError where there are none yet."""
    _one_rank(trial)
    return [rank.pid for rank in trial.ranks()]


def _cases(kinds: Sequence[str]) -> list[tuple[str, str]]:
    """(kind, fault). A damaged checkpoint is what `train` chooses; a script's user names it. Memory runs out twice."""
    cases = [(kind, fault) for kind in kinds for fault in (FAULTS if kind in _WORDS else _TRAINING_FAULTS)]
    cases = [case for case in cases if case[0] == "train" or case[1] not in DAMAGES]
    return cases + [case for case in cases if case[1] in _MEMORY]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=math.inf, help="no round begins after them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=2, help="commands of a round")
    parser.add_argument("--load", type=int, default=os.cpu_count(), help="processes that only count")
    parser.add_argument("--kinds", nargs="+", choices=[*_WORDS, *SHORT], default=[*_WORDS, *SHORT])
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    # A shell that starts it in the background has SIGINT ignored, and every command would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    dice = random.Random(given.seed)
    with tempfile.TemporaryDirectory(prefix="soak-") as name, _load(given.load):
        here = Path(name)
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-O2", Path(__file__).with_name("clock.c"), "-o", here / _CLOCK], check=True
        )
        trials: list[Trial] = []
        shuffled = _cases(given.kinds)
        dice.shuffle(shuffled)
        cases = cycle(shuffled)
        for kind in _WORDS.keys() & given.kinds:  # what is compiled at first use is there afterwards
            _run([_start(here, kind, kind, "none", dice)])
        for training in [each for each in (*SHORT.values(), *MEMORY.values()) if each.command in given.kinds]:
            _run([_start(here, _reference(training), training.command, "none", dice, training)])
        until = time.monotonic() + 60 * given.minutes
        with contextlib.suppress(KeyboardInterrupt):  # the table is of what was done
            for number in range(given.rounds):
                if time.monotonic() > until:
                    break
                pair = [
                    _start(here, f"{number}-{each}", kind, fault, dice)
                    for each, (kind, fault) in enumerate(islice(cases, given.at_once))
                ]
                _run(pair)
                trials += pair
                for trial in pair:
                    ended = f"{trial.process.returncode} {trial.wrong}"
                    print(f"{trial.mark}: {trial.kind}, {trial.fault}: {ended}", flush=True)
                    if trial.wrong:
                        print((trial.folder / "output").read_text(errors="replace")[-8000:], flush=True)
        wrong = _afterwards(here, trials)
    text = _table(trials, wrong)
    print(text)
    if given.write:
        put("launch.md" if _WORDS.keys() & given.kinds else "train.md", "probes/soak", text)
    return int(bool(wrong) or any(trial.wrong for trial in trials))


def _reference(training: Training) -> str:
    """The name of the undisturbed training."""
    return f"{training.command}-{training.steps}"


def _start(
    here: Path, name: str, kind: str, fault: str, dice: random.Random, training: Training | None = None
) -> Trial:
    folder = here / name
    (folder / "tmp").mkdir(parents=True)
    if training is None and kind in SHORT:
        training = (MEMORY if fault in _MEMORY else SHORT)[kind]
    if training is not None:
        training.prepare(here, folder)
    else:
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text(json.dumps(_MODEL))
        (folder / "ds_config.json").write_text(json.dumps(_CONFIG))
        (folder / "train.py").write_text(_SCRIPT)
    mark = f"{_MARK}={name}-{os.getpid()}"
    words = training.words(folder) if training else [*_WORDS[kind], "--device", "cpu"]
    words += ["--", "train.py"] if kind == "launch" else []
    (folder / "clock").write_bytes(bytes(16))
    clock = {"LD_PRELOAD": str(here / _CLOCK), "CLOCK_JUMP": str(folder / "clock")} if ALL[fault] is _jump else {}
    limited = _FROM_THE_START.get(fault)
    if fault == _MEMORY[0] and training is not None:
        limit_bytes = memory_limit_bytes(here / _reference(training))
        limited = partial(resource.setrlimit, resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "ds_advise", *words],
            cwd=folder,
            env={**os.environ, **_shared(here), **clock, "TMPDIR": str(folder / "tmp"), _MARK: mark.partition("=")[2]},
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            preexec_fn=limited,
        )
    at_step = 0 if training is None else dice.randrange(1, training.steps // 2)
    if fault == _MEMORY[1] or fault in DAMAGES:
        at_step = training.save_steps * (2 if fault in DAMAGES else 1) + 1 if training else 0
    strikes_at = time.monotonic() + dice.uniform(0, LATEST_FAULT_S)
    return Trial(
        kind=kind,
        fault=fault,
        folder=folder,
        process=process,
        strikes_at=strikes_at,
        mark=mark,
        training=training,
        at_step=at_step,
    )


def _shared(here: Path) -> dict[str, str]:
    """What all commands have in common: the store, and the folder of extensions, which may hold compiled ones."""
    extensions = os.environ.get("TORCH_EXTENSIONS_DIR", str(here / "extensions"))
    return {"DS_ADVISE_CACHE": str(here / "cache"), "TORCH_EXTENSIONS_DIR": extensions}


def _run(pair: Sequence[Trial]) -> None:
    """Let the faults happen, wait for the ends, and note what is wrong."""
    try:
        _run_to_the_end(pair)
    finally:
        for trial in pair:
            _signal(trial.left(), signal.SIGKILL, every=True)


def _run_to_the_end(pair: Sequence[Trial]) -> None:
    began = time.monotonic()
    while any(trial.process.poll() is None for trial in pair) and time.monotonic() - began < LIMIT_S:
        for trial in pair:
            if not trial.struck and _is_due(trial) and trial.process.poll() is None:
                with contextlib.suppress(LookupError):  # it strikes later
                    _strike(trial)
        time.sleep(0.1)
    for trial in pair:
        if trial.process.poll() is None:
            trial.wrong.append(f"it did not end: {_listed(trial.left())}")
            trial.process.kill()
        trial.process.wait()
    with ThreadPoolExecutor() as pool:
        list(pool.map(_go_on, [trial for trial in pair if trial.training]))
    for trial in pair:
        patience = time.monotonic() + GRACE_S
        while (left := trial.left()) and time.monotonic() < patience:
            time.sleep(0.2)
        if left:
            trial.wrong.append(f"left: {_listed(left)}")
            _signal(left, signal.SIGKILL, every=True)
        _judge(trial)


def _is_due(trial: Trial) -> bool:
    training = trial.training
    if training is None:
        return time.monotonic() >= trial.strikes_at
    if trial.folder.name == _reference(training):
        _note_peak(trial)
    if trial.fault in DAMAGES:
        return len(training.whole_checkpoints(trial.folder)) > 1
    return training.step(trial.folder) >= trial.at_step


def _note_peak(trial: Trial) -> None:
    """Keep the most `Data` of a rank (what RLIMIT_DATA limits) of the undisturbed training."""
    kept = trial.folder / "peak"
    sizes = [int(kept.read_text()) if kept.exists() else 0]
    for rank in trial.ranks():
        with contextlib.suppress(OSError, IndexError):
            status = Path(f"/proc/{rank.pid}/status").read_text()
            sizes.append(1024 * int(status.partition("VmData:")[2].split()[0]))
    kept.write_text(str(max(sizes)))


def _go_on(trial: Trial) -> None:
    """Resume a training that did not finish, and compare its losses with the undisturbed ones."""
    training, output = trial.training, trial.folder / "output"
    assert training is not None
    if trial.fault in DAMAGES and trial.struck:
        DAMAGES[trial.fault](training.whole_checkpoints(trial.folder)[-1])
    code, resumptions = trial.process.returncode, 0
    while code and resumptions < 2:
        resumptions += 1
        with output.open("ab") as end, contextlib.suppress(subprocess.TimeoutExpired):
            code = subprocess.run(
                [sys.executable, "-m", "ds_advise", *training.resumed(trial.folder)],
                cwd=trial.folder,
                env={**os.environ, **_shared(trial.folder.parent), _MARK: trial.mark.partition("=")[2]},
                stdout=end,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                timeout=LIMIT_S,
                check=False,
            ).returncode
    text = output.read_text(errors="replace")
    fell_back = "continuing with" in text
    if trial.fault in _MEMORY and (not fell_back or resumptions):
        trial.wrong.append("no fallback was taken")
    if trial.fault in DAMAGES and trial.struck and "is damaged:" not in text:
        trial.wrong.append("the damage was not named")
    undisturbed = training.losses(trial.folder.parent / _reference(training))
    if other := difference(training.losses(trial.folder), undisturbed, OTHER_PLAN if fell_back else EXACT):
        trial.wrong.append(f"after {resumptions} resumptions {other}")


def _strike(trial: Trial) -> None:
    with contextlib.suppress(OSError, psutil.Error):
        ALL[trial.fault](trial)
    trial.struck = True


def _judge(trial: Trial) -> None:
    output = (trial.folder / "output").read_text(errors="replace")
    # A line that begins with it is ours; those of a rank that is shown are indented.
    if any(line.startswith("Traceback") for line in output.splitlines()) and trial.process.returncode >= 0:
        trial.wrong.append("a traceback")
    trial.wrong += _left_by_ranks(trial.folder)
    undisturbed = trial.fault in _HARMLESS or (not trial.struck and trial.fault not in _FROM_THE_START)
    if undisturbed and trial.process.returncode != 0:
        last = output.strip().splitlines()[-1:]
        trial.wrong.append(f"undisturbed, it ended with {trial.process.returncode}: {last}")


def _left_by_ranks(folder: Path) -> list[str]:
    """What is wrong with their records and their shared memory."""
    wrong = []
    for path in (*folder.glob("log*/rank*.jsonl"), *folder.glob("out/training/**/rank*.jsonl")):
        times = []
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):  # where the disk was full
                times.append(json.loads(line)["time"])
        if times and (times != sorted(times) or times[-1] - times[0] > LIMIT_S):
            wrong.append(f"{path.name} goes back or far forward in time")
    if (folder / "buffers").exists():
        wrong += [f"{path} is left" for path in Path("/dev/shm").glob((folder / "buffers").read_text())]
    return wrong


def _afterwards(here: Path, trials: Sequence[Trial]) -> list[str]:
    """What is wrong once all have ended."""
    wrong = [f"{path} is left" for path in Path(_shared(here)["TORCH_EXTENSIONS_DIR"]).glob("*/lock")]
    store = here / "cache" / "results.sqlite"
    with contextlib.closing(sqlite3.connect(store)) as database:
        if database.execute("pragma integrity_check").fetchone() != ("ok",):
            wrong.append("the store is damaged")
    listed = subprocess.run(
        [sys.executable, "-m", "ds_advise", "history", "--json"],
        env={**os.environ, **_shared(here)},
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        wrong.append("the history cannot be read")
    elif (kept := listed.stdout.count('"kind": "probe"')) > 1 + sum(trial.kind == "probe" for trial in trials):
        wrong.append(f"{kept} probes are kept, more than were made")
    time.sleep(SWEPT_AFTER_S)
    for folder in {trial.folder for trial in trials if any((trial.folder / "tmp").glob("ds-advise-*"))}:
        last = subprocess.run(
            [sys.executable, "-m", "ds_advise", *_WORDS["probe"], "--device", "cpu"],
            cwd=folder,
            env={**os.environ, **_shared(here), "TMPDIR": str(folder / "tmp")},
            capture_output=True,
            check=False,
        )
        if last.returncode:
            wrong.append(f"the next probe ended with {last.returncode}")
        wrong += [f"{path.name} is left" for path in (folder / "tmp").glob("ds-advise-*")]
    return wrong


@contextlib.contextmanager
def _load(processes: int) -> Any:
    """Processes that only count."""
    counting = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in counting:
            process.kill()
            process.wait()


def _table(trials: Sequence[Trial], wrong: Sequence[str]) -> str:
    ended: dict[str, Counter[int]] = defaultdict(Counter)
    for trial in trials:
        ended[trial.fault][trial.process.returncode] += 1
    lines = ["| fault | runs | in time | exit codes | lost or left |", "|---|---|---|---|---|"]
    for fault in ALL:
        codes = ", ".join(f"{code} ({count})" for code, count in sorted(ended[fault].items()))
        mistakes = [mistake for trial in trials if trial.fault == fault for mistake in trial.wrong]
        at_once = (*_FROM_THE_START, _MEMORY[0])
        struck = sum(trial.struck or fault in at_once for trial in trials if trial.fault == fault)
        if not (runs := sum(ended[fault].values())):
            continue
        lines.append(f"| {fault} | {runs} | {struck} | {codes} | {'; '.join(mistakes) or 'nothing'} |")
    kinds = Counter(trial.kind for trial in trials)
    total = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    return "\n".join(lines) + f"\n\n{total}. Afterwards: {'; '.join(wrong) or 'nothing was lost or left'}.\n"


def _listed(processes: Sequence[psutil.Process]) -> str:
    """What they are and what they have done, for whoever looks for the cause."""
    output = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            seconds = sum(process.cpu_times()[:2])
            output.append(f"{' '.join(process.cmdline()[1:6])} ({process.status()}, {seconds:.0f} s of a core)")
    return "; ".join(output)


def _module(process: psutil.Process) -> str:
    """The module that a Python process runs as its program, "" for none."""
    with contextlib.suppress(psutil.Error, ValueError, IndexError):
        words: list[str] = process.cmdline()
        return words[words.index("-m") + 1]
    return ""


def _environment(process: psutil.Process) -> set[str]:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return set()
        return {f"{name}={value}" for name, value in process.environ().items() if name == _MARK}
    except psutil.Error:
        return set()


def _signal(processes: Sequence[psutil.Process], number: int, *, every: bool = False) -> None:
    for process in processes if every else processes[:1]:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


if __name__ == "__main__":
    sys.exit(main())
