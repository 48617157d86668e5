"""Monitor of a training: reads the ranks' reports, samples the machine's memory, shows the progress, and warns."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from pathlib import Path

from ...estimators.errors import DsAdviseError
from ...probes.failures.messages import Message, find_message
from ...probes.machine import memory_groups, read_pairs
from ...probes.real_run.sampling import MemorySampler
from ...probes.real_run.stacks import missing_in_collective, positions, stall_fix
from ...validate.checkpoint import checkpoint_step, write_checksums
from ..text.display import Display
from ..verification.prediction import ENGINE_SETTINGS
from ..verification.run_view import RunView
from .failures import MOVED, classify_failure, known_cause, last_lines
from .records import Records, nan_from
from .request import FailureKind, LaunchOutcome, LaunchRequest, LaunchStatus, Peaks, TrainingFailure


def oom_kills() -> dict[str, int]:
    """Number of processes that the kernel has killed because memory ran out, by the counter's file: of this cgroup and
    its ancestors (cgroup v2 memory.events, v1 memory.oom_control), and of the machine (/proc/vmstat)."""
    counts = {str(group.events_file): group.killed for group in memory_groups()}
    machine = Path("/proc/vmstat")
    count = read_pairs(machine, " ").get("oom_kill", "")
    counts[str(machine)] = int(count) if count.isdecimal() else None
    return {name: count for name, count in counts.items() if count is not None}


_NAN_STEPS = 5
"""Number of consecutive optimizer steps with a NaN loss after which the training is ended. A step that overflows in
fp16 has a finite loss; after this number of NaN losses the weights are lost and further steps are wasted."""

_SILENT_S = 600.0
"""Seconds without a step and without output of any rank. NCCL's watchdog has the same limit (torch 2.13
`distributed/constants.py` default_pg_nccl_timeout)."""

_PATIENCE_S = 1.0
"""Time after which the reason for waiting is printed."""


def _write_checksums(checkpoint: Path) -> None:
    with contextlib.suppress(OSError, DsAdviseError):  # the Trainer may have removed it, or the disk is full
        write_checksums(checkpoint)


def _samples_per_step(records: Records) -> int | None:
    engine, size = records.first("engine"), records.first("data_parallel_size")
    return engine["micro_batch_size"] * engine["gradient_accumulation_steps"] * size if engine and size else None


class Monitor:
    """pid: the process whose descendants are the training."""

    def __init__(self, request: LaunchRequest, display: Display, pid: int) -> None:
        self.records = Records(request.folder)
        self._request = request
        self._prediction = request.prediction
        self._display = display
        self._warnings: list[str] = []
        self._began = time.monotonic()
        self._oom_kills_before = oom_kills()
        self._memory = MemorySampler(pid, gpus=request.device == "cuda")
        self._view = RunView(request.run.cluster, self._prediction)
        self._output_shown = 0
        self._checksum_threads: dict[str, threading.Thread] = {}
        """The checkpoints of this training -> the threads that write their checksums."""

    def look(self) -> None:
        """Read the records and, once a second, the memory of the training and of the machine. An error does not end the
        training; it is printed once."""
        try:
            self._look()
        except Exception as error:
            self._warn("the monitor has an error, the training goes on", f"{type(error).__name__}: {error}")

    def _look(self) -> None:
        self.records.read()
        self._start_checksums()
        if not self._memory.sample():
            return
        # An extension is built without a line of output, here or by a process of another command.
        if self._memory.compiles or self.records.awaits_build:
            self.records.heard_at = time.monotonic()
        if differences := self._differences():
            self._view.prediction = None
            self._warn("the script trains with a different plan than the one that was checked", "; ".join(differences))
        self._display.show(self._view.view(self.records, self._memory))
        for rank in self.records.ranks:
            if rank.is_suspended:
                self._warn(rank.obstacle)
        if left := self.records.left:
            self._warn(left.obstacle, left.remedy)
        if not self._request.folder.exists():
            self._warn(f"{self._request.folder} {MOVED}")
        self._warn_of_silence(time.monotonic() - self.records.heard_at)

    def show_output(self) -> None:
        """Print the lines that rank 0 has written since the last call."""
        with contextlib.suppress(OSError), (self._request.folder / "rank0.log").open("rb") as stream:
            stream.seek(self._output_shown)
            whole, newline, _ = stream.read().rpartition(b"\n")
            self._output_shown += len(whole) + len(newline)
            for line in whole.decode(errors="replace").splitlines():
                self._display.echo(line)

    def abort_reason(self) -> TrainingFailure | None:
        """The failure for which the training should be ended; None if it should go on."""
        records, resumed, stall_s = self.records, self._request.resumes_after, self._request.stall_s

        def failure(
            kind: FailureKind, step: int, message: str, *evidence: str, known: Message | None = None, fix: str = ""
        ) -> TrainingFailure:
            return TrainingFailure(
                kind=kind,
                rank=None,
                step=step,
                message=message,
                evidence=evidence,
                fix=fix if known is None else known.fix,
                **known_cause(known)._asdict(),
            )

        losses, first = [loss for _, loss in records.losses[-_NAN_STEPS:]], records.first_step
        started, joined = self._request.run.cluster.world_size, records.first("engine_ranks")
        if joined is not None and joined < started:
            message = f"{started} ranks were started, but the engine has {joined}: they train copies of the model"
            return failure("fewer_ranks", records.step, message, "the size of torch's process group")
        if len(losses) == _NAN_STEPS and all(map(math.isnan, losses)):
            finite = [step for step, loss in records.losses if not math.isnan(loss)]
            since = next(step for step, _ in records.losses if not finite or step > finite[-1])
            evidence = f"the losses of the last {_NAN_STEPS} steps"
            message = f"the loss is NaN since step {since}, so the training was ended after step {records.step}"
            known = find_message("{'loss': nan}")
            known = known and known.computed_in(records.first("dtype") or "")
            return failure("nan_loss", records.step, message, evidence, known=known)
        if first is not None and first <= resumed:
            message = f"the script started from the beginning instead of resuming after step {resumed}"
            return failure("not_resumed", first, message, f"its first step was {first}")
        # Of several nodes another one may build it, in a folder that they share.
        if self._request.run.cluster.nodes == 1 and (stuck := records.stuck) is not None:
            return failure("hang", records.step, stuck.obstacle, fix=stuck.remedy)
        if stall_s is not None and time.monotonic() - records.heard_at > stall_s:
            message = f"no rank has completed a step or printed a line for {stall_s:.0f} s"
            obstacles = [rank.obstacle for rank in records.ranks if rank.obstacle]
            lines = last_lines(records, self._request.folder)  # before the stacks follow them
            where = positions(records.ranks, self._request.folder)
            conclusion = missing_in_collective(where)
            if conclusion:
                return failure("hang", records.step, f"{message}: {conclusion}", *obstacles, *map(str, where))
            return failure("hang", records.step, message, *obstacles, *map(str, where), *lines, fix=stall_fix(where))
        return None

    def outcome(self, exit_code: int, failure: TrainingFailure | None, *, stopped: bool) -> LaunchOutcome:
        """The outcome of the training after its launcher has ended with `exit_code`. failure: the reason for ending it,
        if any."""
        # The ranks have written events since the last look.
        self.records.read()
        self._start_checksums()
        for name, thread in self._checksum_threads.items():
            thread.join(_PATIENCE_S)
            if thread.is_alive():
                self._display.say(f"writing the checksums of {name} ...")
                thread.join()
        records, request = self.records, self._request
        if exit_code and failure is None and not stopped:
            kills = {file: count - self._oom_kills_before.get(file, count) for file, count in oom_kills().items()}
            failure = classify_failure(records, request.folder, exit_code, kills)
        elif not stopped:
            failure = failure or self.abort_reason()  # a training that ended before the first look
        # A stop that comes after the last step changes nothing if the script then ends by itself.
        is_cut = stopped and (exit_code != 0 or not records.made_all_steps)
        status: LaunchStatus = "failed" if failure else "stopped" if is_cut else "finished"
        tokens, step_s = records.speed(request.run.cluster.world_size)
        first_steps = [next(iter(rank.steps.values()))[0] for rank in records.ranks if rank.steps]
        losses = tuple((step, loss if math.isfinite(loss) else None) for step, loss in dict(records.losses).items())
        before = nan_from(losses) if failure is not None and failure.kind == "nan_loss" and losses else math.inf
        saved = next(([*map(Path, rank.checkpoints)] for rank in records.ranks if rank.checkpoints), [])
        checkpoint = next((path for path in reversed(saved) if checkpoint_step(path) < before and path.exists()), None)
        return LaunchOutcome(
            status=status,
            stop_requested=stopped,
            failure=failure,
            last_step=records.step,
            total_steps=records.total_steps,
            seconds=time.monotonic() - self._began,
            folder=request.folder,
            launcher=None if request.command.program is None else request.launcher,
            config=request.config_path,
            peaks=Peaks(
                allocated_bytes=records.highest("allocated_peak_bytes"),
                reserved_bytes=records.highest("reserved_peak_bytes"),
                device_bytes=self._memory.device_peak_bytes,
                host_bytes=self._memory.host_peak_bytes,
            ),
            first_step_s=max(first_steps) - self._began if first_steps else None,
            step_s=step_s,
            tokens_per_step=tokens,
            tokens_per_s=tokens / step_s if tokens and step_s else None,
            samples_per_step=_samples_per_step(records),
            losses=losses,
            phases=records.phases,
            predicted=self._prediction,
            engine=records.first("engine") or {},
            plain=records.first("plain") or "",
            differences=self._differences(),
            checkpoint=checkpoint,
            warnings=tuple(each for each in self._warnings if failure is None or not each.startswith(failure.message)),
        )

    def _start_checksums(self) -> None:
        """Start writing the checksums of each checkpoint once every rank has saved its part. On several nodes no
        checksums are written, because the state of the other nodes' ranks is unknown."""
        ranks, cluster = self.records.ranks, self._request.run.cluster
        if cluster.nodes > 1 or len(ranks) < cluster.gpus_per_node:
            return
        for folder in set[str].intersection(*(set(rank.checkpoints) for rank in ranks)) - self._checksum_threads.keys():
            thread = threading.Thread(target=_write_checksums, args=(Path(folder),), daemon=True)
            self._checksum_threads[folder] = thread
            thread.start()

    def _differences(self) -> tuple[str, ...]:
        """The engine's settings that differ from the plan, because the script may set them itself."""
        engine = self.records.first("engine")
        if engine is None or self._prediction is None:
            return ()
        planned = self._prediction.engine
        return tuple(
            f"{title} {engine[name]} instead of {planned[name]}"
            for name, title in ENGINE_SETTINGS.items()
            if engine[name] != planned[name]
        )

    def warn_of_obstacle(self) -> None:
        """Warn of what keeps the ranks from going on, if anything does: a stop hides it."""
        if obstacle := self.records.obstacle:
            self._warn(obstacle)

    def _warn_of_silence(self, silent_s: float) -> None:
        """Warn about silence: the ranks may wait for each other, or for a lost rank until their timeout."""
        if silent_s > _SILENT_S:
            output = "; ".join(last_lines(self.records, self._request.folder))
            pids = ", ".join(str(rank.pid) for rank in self.records.ranks if rank.pid)
            shown = f"py-spy dump --pid shows where they are: {pids}" if pids else "no rank has started"
            silence = f"no rank has completed a step or printed a line for {_SILENT_S / 60:.0f} min"
            self._warn(silence, f"{output}; {shown}")

    def _warn(self, warning: str, figures: str = "") -> None:
        """Print each `warning` once."""
        if not any(earlier.startswith(warning) for earlier in self._warnings):
            self._warnings.append(f"{warning} ({figures})" if figures else warning)
            self._display.say(self._warnings[-1])
