"""`launch`: start the ranks, watch them, end them."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from ...ds_configs.launch_commands import LAUNCHER_MODULES, config_arguments, launcher_words
from ...estimators.errors import ConfigFileError
from ...probes.rank_processes import extension_lock
from ...probes.search_path import search_path
from ..terminal.units import gib, times
from .environment import costly_switches, plan_environment
from .ranks.trainer_callback import STOP_FILE
from .request import Failure, LaunchRequest, Outcome, Peaks
from .watch.display import Display, Status
from .watch.failures import failure_of
from .watch.host import Node, Sample, oom_kills
from .watch.records import Records

_POLL_S, _SAMPLE_S = 0.1, 1.0

_NAN_STEPS = 5
"""Optimizer steps in a row whose loss is no number. A step that overflows in fp16 has a finite loss, so after these the
weights are lost, and every further hour of the GPUs with them."""

_NEAR_LIMIT = 0.95
"""Share of a GPU's or the host's memory from which a warning is due: the next longer batch may be the last."""

_SWAPPED_BYTES = 64 * 2**20
"""Written to swap while the training runs; less is the system tidying up."""


def launch(request: LaunchRequest, *, verbose: bool = False, console: Console | None = None) -> Outcome:
    """Run the training to its end and tell how it ended; whatever happens, no process of it is left.

    Every rank runs the script through `rank`, so its steps are seen and its output is kept in `request.folder`. Ctrl-C
    and SIGTERM are passed on once: the Trainer saves and stops after the same step on every rank; another script gets
    SIGTERM, and what it does then is its own business. A second one ends all at once.

    verbose: show rank 0's output. console: where progress is told, default stderr.

    Raises ConfigFileError where the folder cannot be made, or the process cannot be started.
    """
    display = Display(console or Console(stderr=True, highlight=False))
    return _Training(request, display, verbose=verbose).run()


def launch_line(request: LaunchRequest, *, port: int | None = None) -> list[str]:
    """The words of the command that starts the ranks, as `launch` runs it.

    port: on one node; None leaves the launcher's default. Variables that the plan needs are in the environment of the
        command,
    and for nodes that are reached by ssh, which passes none on, among its arguments.
    """
    script = request.script
    by_ssh = request.rendezvous is not None and request.rendezvous.kind == "hostfile"
    by_launcher = request.launcher == "accelerate" and request.passes_config
    config = (
        []
        if by_launcher or not request.passes_config
        else config_arguments(request.framework, str(request.config_path))
    )
    variables = [word for name, value in environment_of(request).items() for word in ("--set", f"{name}={value}")]
    target = [
        f"{__package__}.ranks.rank",
        "--folder",
        str(request.folder),
        *(variables if by_ssh else []),
        *(["--is-module"] if script.is_module else []),
        script.target,
        *script.arguments,
        *config,
    ]
    return launcher_words(
        request.launcher,
        request.cluster,
        target,
        is_module=True,
        rendezvous=request.rendezvous,
        port=port,
        config_path=str(request.config_path) if by_launcher else None,
        program=[sys.executable, "-m", LAUNCHER_MODULES[request.launcher]],
    )


def predicted_host_bytes(request: LaunchRequest) -> int | None:
    """Of all ranks of a node while it trains; None for the CPU as the device, where the processes are without CUDA's
    libraries and smaller than those that the closed form knows."""
    if request.prediction is None or request.device == "cpu":
        return None
    return request.prediction.memory.host_training_bytes_per_node


def environment_of(request: LaunchRequest) -> dict[str, str]:
    """The variables that are set for the ranks."""
    zero = request.config.get("zero_optimization")
    offload = zero.get("offload_optimizer") if isinstance(zero, dict) else None
    offloads = isinstance(offload, dict) and offload.get("device", "none") != "none"
    return {
        **plan_environment(
            device=request.device, offloads_optimizer=offloads, ranks_per_node=request.cluster.gpus_per_node
        ),
        **request.environment,
    }


class _Training:
    """One training while it runs."""

    def __init__(self, request: LaunchRequest, display: Display, *, verbose: bool) -> None:
        self._request, self._display, self._verbose = request, display, verbose
        self._records = Records(request.folder)
        self._warnings: list[str] = []
        self._signals = 0
        self._passed_on = False
        self._peak_host, self._peak_device = 0, 0
        self._shown = 0
        self._failure: Failure | None = None

    def run(self) -> Outcome:
        request = self._request
        _make_folder(request.folder)
        for sentence in costly_switches():
            self._warn(sentence)
        kills_before = oom_kills()
        self._began, began = time.time(), time.monotonic()
        with self._signals_counted():
            process = self._start()
            try:
                with self._display:
                    self._watch(process)
            finally:
                _end(process)
        self._records.read()
        code = process.returncode
        kills = {file: count - kills_before.get(file, count) for file, count in oom_kills().items()}
        stopped = self._signals > 0 and self._failure is None
        if code and not stopped and self._failure is None:
            self._failure = failure_of(self._records, request.folder, code, kills)
        return self._outcome(stopped=stopped, seconds=time.monotonic() - began)

    def _start(self) -> subprocess.Popen[bytes]:
        request = self._request
        words = launch_line(request, port=None if request.rendezvous else free_port())
        leash = [sys.executable, "-m", f"{__package__}.ranks.supervisor", str(os.getpid()), *words]
        environment = {**os.environ, "PATH": search_path(), **environment_of(request)}
        with (request.folder / "launcher.log").open("wb") as log:
            return subprocess.Popen(
                leash,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=environment,
            )

    @contextlib.contextmanager
    def _signals_counted(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM are only counted, and answered by the loop that watches."""

        def count(*_: object) -> None:
            self._signals += 1

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, count) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        node, sampled_at = Node(process.pid), -math.inf
        first: Sample | None = None
        while process.poll() is None:
            self._records.read()
            now = time.monotonic()
            if now - sampled_at >= _SAMPLE_S:
                sampled_at, sample = now, node.look()
                first = first or sample
                self._take(sample, first, node.memory_bytes)
            if self._verbose:
                self._show_output()
            self._failure = self._futile()
            if self._failure is not None:
                return
            if self._signals > 1 or (self._signals and not self._passed_on and not self._pass_on()):
                self._display.say("ds-advise: ending at once")
                return
            time.sleep(_POLL_S)
        if self._verbose:
            self._show_output()

    def _take(self, sample: Sample, first: Sample, host_memory_bytes: int) -> None:
        """Remember the peaks, draw the line, and warn of what was not warned of yet."""
        request, records = self._request, self._records
        fullest = max(sample.gpus, default=None) if request.device == "cuda" else None
        self._peak_host = max(self._peak_host, sample.host_bytes)
        self._peak_device = max(self._peak_device, fullest[0] if fullest else 0)
        memory = None if request.prediction is None else request.prediction.memory
        losses = records.last_losses(1)
        self._display.show(
            Status(
                step=records.step,
                total_steps=self._total_steps,
                loss=losses[0] if losses else None,
                tokens_per_s=records.tokens_per_s(request.cluster.world_size),
                step_s=records.recent_step_s(),
                device_bytes=fullest[0] if fullest else None,
                device_peak_bytes=self._peak_device or None,
                device_predicted_bytes=None if memory is None else memory.device_bytes_per_gpu,
                host_bytes=sample.host_bytes,
                host_peak_bytes=self._peak_host,
                host_predicted_bytes=predicted_host_bytes(request),
            )
        )
        for used, total in sample.gpus if request.device == "cuda" else ():
            if used >= _NEAR_LIMIT * total:
                self._warn(
                    "a GPU's memory is nearly full: a longer batch may not fit",
                    f"{gib(used)} of {gib(total)} GiB in use",
                )
        if sample.free_bytes <= (1 - _NEAR_LIMIT) * host_memory_bytes:
            self._warn(
                "the host's memory is nearly full: the kernel may kill a rank", f"{gib(sample.free_bytes)} GiB left"
            )
        if sample.swapped_out_bytes - first.swapped_out_bytes > _SWAPPED_BYTES:
            self._warn(
                "the host swaps: its memory does not suffice, and every step waits for the disk",
                f"{gib(sample.swapped_out_bytes - first.swapped_out_bytes)} GiB written to swap so far",
            )
        slow = records.slow_rank()
        if slow is not None:
            self._warn(
                f"rank {slow[0]} is slow, and all others wait for it",
                f"its forward pass takes {times(slow[1])} the others'",
            )

    def _warn(self, what: str, figures: str = "") -> None:
        """Once for each `what`."""
        if not any(warning.startswith(what) for warning in self._warnings):
            self._warnings.append(f"{what} ({figures})" if figures else what)
            self._display.say(f"ds-advise: {self._warnings[-1]}")

    def _futile(self) -> Failure | None:
        """Why to go on would be in vain."""
        losses, first = self._records.last_losses(_NAN_STEPS), self._records.first("first_step")
        if len(losses) == _NAN_STEPS and all(math.isnan(loss) for loss in losses):
            return Failure(
                kind="nan_loss",
                rank=None,
                step=self._records.step,
                message="the loss is not a number",
                evidence=(f"the losses of the last {_NAN_STEPS} steps",),
            )
        if first is not None and first <= self._request.resumes_after:
            return Failure(
                kind="not_resumed",
                rank=None,
                step=first,
                evidence=(f"its first step was {first}",),
                message=f"the script began anew instead of resuming after step {self._request.resumes_after}",
            )
        return None

    @property
    def _total_steps(self) -> int | None:
        trainer = self._records.first("trainer")
        return int(trainer["total_steps"]) if trainer else self._request.total_steps

    def _pass_on(self) -> bool:
        """Tell the training to save and stop; answers whether there was anybody to tell."""
        self._passed_on = True
        if self._records.first("trainer"):
            self._display.say(
                "ds-advise: stopping: the Trainer saves a checkpoint within the next steps; once more ends it now"
            )
            (self._request.folder / STOP_FILE).touch()
            return True
        there = [rank.pid for rank in self._records.ranks if rank.pid and rank.gone_at is None]
        if there:
            self._display.say(
                "ds-advise: stopping: SIGTERM goes to the script, and whether it saves is its own business; once "
                "more ends it now"
            )
        for pid in there:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        return bool(there)

    def _show_output(self) -> None:
        """What rank 0 has printed since."""
        with contextlib.suppress(OSError), (self._request.folder / "rank0.log").open("rb") as stream:
            stream.seek(self._shown)
            whole, newline, _ = stream.read().rpartition(b"\n")
            self._shown += len(whole) + len(newline)
            for line in whole.decode(errors="replace").splitlines():
                self._display.say(line)

    def _outcome(self, *, stopped: bool, seconds: float) -> Outcome:
        records, on_cuda = self._records, self._request.device == "cuda"
        firsts = [rank.first_step_at for rank in records.ranks if rank.first_step_at is not None]
        return Outcome(
            status="failed" if self._failure else "stopped" if stopped else "finished",
            failure=self._failure,
            last_step=records.step,
            seconds=seconds,
            folder=self._request.folder,
            peaks=Peaks(
                allocated_bytes=records.highest("allocated_peak_bytes"),
                reserved_bytes=records.highest("reserved_peak_bytes"),
                device_bytes=self._peak_device or None if on_cuda else None,
                host_bytes=self._peak_host,
            ),
            first_step_s=max(firsts) - self._began if firsts else None,
            step_s=records.step_s,
            tokens_per_s=records.tokens_per_s(self._request.cluster.world_size),
            losses=tuple(records.losses),
            checkpoint=records.first("checkpoint"),
            warnings=tuple(self._warnings),
        )


def _make_folder(folder: Path) -> None:
    """The folder of one launch: records of another would be read as this one's."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        used = any(folder.glob("rank*.jsonl"))
    except OSError as error:
        raise ConfigFileError(
            f"{folder} cannot be made ({error.strerror})",
            why="the ranks' output is kept there",
            fix="pass a folder that can be written to with --log-dir",
        ) from None
    if used:
        raise ConfigFileError(
            f"{folder} holds the records of another launch",
            why="they would be mixed with this one's",
            fix="pass a new folder with --log-dir",
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the leash, which takes all with it."""
    if process.poll() is None:
        process.terminate()
    process.wait()
    extension_lock.abandon_all()


def free_port() -> int:
    """A TCP port that nobody listens on at the moment, so that two trainings on one machine do not meet."""
    with socket.socket() as server:
        server.bind(("", 0))
        return int(server.getsockname()[1])
