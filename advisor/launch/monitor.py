"""The lines that show how a training goes, and the messages in between."""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ..text.units import gib, rate, seconds, times
from .command import costly_switches
from .failures import failure_of, last_lines
from .host import HostWatcher, MemorySample, oom_kills
from .records import Records
from .request import LaunchOutcome, LaunchRequest, LaunchStatus, Peaks, TrainingFailure

_PLAIN_EVERY_S = 30.0
"""Between lines where there is no terminal to draw over; the first steps are printed at once."""

_PRINTED_AT_ONCE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What the lines show; None for what is not known (yet)."""

    step: int
    total_steps: int | None
    loss: float | None
    tokens_per_s: float | None
    step_s: float | None
    device_bytes: int | None
    """The fullest GPU's."""
    device_peak_bytes: int | None
    device_predicted_bytes: int | None
    host_bytes: int
    """All of this node's processes'."""
    host_peak_bytes: int
    host_predicted_bytes: int | None

    @property
    def steps(self) -> str:
        parts = [f"step {self.step}" + (f"/{self.total_steps}" if self.total_steps else "")]
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4g}")
        if self.tokens_per_s is not None:
            parts.append(f"{rate(self.tokens_per_s)} tokens/s")
        if self.total_steps and self.step < self.total_steps and self.step_s is not None:
            parts.append(f"{seconds((self.total_steps - self.step) * self.step_s)} left")
        return "  ".join(parts)

    @property
    def memory(self) -> str:
        host = (self.host_bytes, self.host_peak_bytes, self.host_predicted_bytes)
        if self.device_bytes is None:
            return f"host GiB: {_sizes(host)}"
        gpu = (self.device_bytes, self.device_peak_bytes, self.device_predicted_bytes)
        return f"GPU GiB: {_sizes(gpu)}; host: {_sizes(host, labelled=False)}"


def _sizes(sizes: tuple[int | None, ...], *, labelled: bool = True) -> str:
    """Memory now, at its peak and as predicted, as far as it is known."""
    labels = (" now", " peak", " predicted") if labelled else ("", "", "")
    known = ((size, label) for size, label in zip(sizes, labels, strict=True) if size is not None)
    return ", ".join(f"{gib(size)}{label}" for size, label in known)


class Display:
    """Draws the progress over itself on a terminal; elsewhere prints it as one line now and then."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._printed_at, self._printed_step = 0.0, 0

    def __enter__(self) -> Display:
        if self._console.is_terminal:
            self._live = Live(Text("starting ..."), console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(Text(text), soft_wrap=True)

    def show(self, progress: Progress) -> None:
        if self._live is not None:
            # Two lines, which 80 columns hold.
            self._live.update(Text(f"{progress.steps}\n{progress.memory}", overflow="ellipsis", no_wrap=True))
            return
        step, now = progress.step, time.monotonic()
        if step != self._printed_step and (step <= _PRINTED_AT_ONCE or now - self._printed_at > _PLAIN_EVERY_S):
            self._printed_at, self._printed_step = now, step
            self.say(f"{progress.steps}  {progress.memory}")


_SAMPLE_S = 1.0

_NAN_STEPS = 5
"""Optimizer steps in a row whose loss is no number. A step that overflows in fp16 has a finite loss, so after these the
weights are lost, and every further hour of the GPUs with them."""

_NEAR_LIMIT = 0.95
"""Share of a GPU's or the host's memory from which a warning is due: the next longer batch may be the last."""

_SWAPPED_BYTES = 64 * 2**20
"""Written to swap while the training runs; less is the system tidying up."""

_SILENT_S = 600.0
"""Without a step and without a line from any rank; NCCL's watchdog, too, takes ranks that have waited so long for lost
(torch 2.13 `distributed/constants.py` default_pg_nccl_timeout)."""

_SETTINGS = {
    "zero_stage": "ZeRO",
    "micro_batch_size": "micro batch",
    "gradient_accumulation_steps": "accumulation",
}
"""Fields of `Plan` that a rank reports of its engine -> their titles."""


class Monitor:
    """What was seen of one training so far."""

    def __init__(self, request: LaunchRequest, display: Display) -> None:
        self.records = Records(request.folder)
        self._request, self._display = request, display
        self._warnings: list[str] = []
        self._began = time.monotonic()
        self._oom_kills_before = oom_kills()
        self._host: HostWatcher | None = None
        self._sampled_at, self._swapped_before = -math.inf, 0
        self._peak_host_bytes, self._peak_device_bytes = 0, 0
        self._output_shown = 0
        self._slow: tuple[int, float] | None = None
        for sentence in costly_switches():
            self._warn(sentence)

    def look(self, pid: int) -> None:
        """Read the records and, once a second, the memory of the descendants of process `pid` and of the machine."""
        self.records.read()
        now = time.monotonic()
        if now - self._sampled_at < _SAMPLE_S:
            return
        self._sampled_at, self._host, is_first = now, self._host or HostWatcher(pid), self._host is None
        sample = self._host.sample()
        if is_first:
            self._swapped_before = sample.swapped_out_bytes
        self._display.show(self._progress(sample))
        if differences := self._differences():
            self._warn("the script trains by another plan than the one that was checked", "; ".join(differences))
        self._warn_of_memory(sample, self._host.memory_bytes)
        self._warn_of_silence(now - self.records.heard_at)
        if self._slow is None and (slow := self.records.slow_rank()) is not None:
            self._slow = slow
            number, ratio = slow
            last = self.records.step
            figures = f"its forward pass took {times(ratio)} the others' in the steps before {last}"
            self._warn(f"rank {number} is slow, and all others wait for it", figures)

    def show_output(self) -> None:
        """Print the lines that rank 0 has written since the last call."""
        with contextlib.suppress(OSError), (self._request.folder / "rank0.log").open("rb") as stream:
            stream.seek(self._output_shown)
            whole, newline, _ = stream.read().rpartition(b"\n")
            self._output_shown += len(whole) + len(newline)
            for line in whole.decode(errors="replace").splitlines():
                self._display.say(line)

    def futility(self) -> TrainingFailure | None:
        """Why it makes no sense to go on; None where it does."""
        records, resumed = self.records, self._request.resumes_after
        losses, first = records.last_losses(_NAN_STEPS), records.first("first_step")
        silent_s, stall_s = time.monotonic() - records.heard_at, self._request.stall_s
        if len(losses) == _NAN_STEPS and all(map(math.isnan, losses)):
            message = "the loss is not a number"
            evidence: tuple[str, ...] = (f"the losses of the last {_NAN_STEPS} steps",)
            return TrainingFailure(kind="nan_loss", rank=None, step=records.step, message=message, evidence=evidence)
        if first is not None and first <= resumed:
            evidence = (f"its first step was {first}",)
            message = f"the script began anew instead of resuming after step {resumed}"
            return TrainingFailure(kind="not_resumed", rank=None, step=first, message=message, evidence=evidence)
        if stall_s is not None and silent_s > stall_s:
            message = f"no rank has made a step or printed a line for {stall_s:.0f} s"
            evidence = last_lines(records, self._request.folder)
            return TrainingFailure(kind="hang", rank=None, step=records.step, message=message, evidence=evidence)
        return None

    def outcome(self, exit_code: int, failure: TrainingFailure | None, *, stopped: bool) -> LaunchOutcome:
        """How the training ended, once its launcher has ended with `exit_code`; failure: why it was ended."""
        self.records.read()
        records, request = self.records, self._request
        if exit_code and failure is None and not stopped:
            kills = {file: count - self._oom_kills_before.get(file, count) for file, count in oom_kills().items()}
            failure = failure_of(records, request.folder, exit_code, kills)
        status: LaunchStatus = "failed" if failure else "stopped" if stopped else "finished"
        tokens = records.tokens_per_step(request.run.cluster.world_size)
        first_steps = [rank.first_step_at for rank in records.ranks if rank.first_step_at is not None]
        return LaunchOutcome(
            status=status,
            failure=failure,
            last_step=records.step,
            seconds=time.monotonic() - self._began,
            folder=request.folder,
            peaks=Peaks(
                allocated_bytes=records.highest("allocated_peak_bytes"),
                reserved_bytes=records.highest("reserved_peak_bytes"),
                device_bytes=self._peak_device_bytes or None,
                host_bytes=self._peak_host_bytes,
            ),
            first_step_s=max(first_steps) - self._began if first_steps else None,
            step_s=records.step_s,
            tokens_per_step=tokens,
            tokens_per_s=tokens / records.step_s if tokens and records.step_s else None,
            losses=tuple(records.losses),
            differences=self._differences(),
            checkpoint=records.first("checkpoint"),
            warnings=tuple(self._warnings),
        )

    def _differences(self) -> tuple[str, ...]:
        """Where the engine's settings are not the plan's: the script may set them itself."""
        engine, prediction = self.records.first("engine"), self._request.prediction
        if engine is None or prediction is None:
            return ()
        return tuple(
            f"{title} {engine[name]} instead of {getattr(prediction.plan, name)}"
            for name, title in _SETTINGS.items()
            if engine[name] != getattr(prediction.plan, name)
        )

    def _progress(self, sample: MemorySample) -> Progress:
        request, records, predicted = self._request, self.records, self._request.prediction
        device_bytes = max((used for used, _ in self._gpus(sample)), default=None)
        self._peak_host_bytes = max(self._peak_host_bytes, sample.host_bytes)
        self._peak_device_bytes = max(self._peak_device_bytes, device_bytes or 0)
        trainer, losses = records.first("trainer"), records.last_losses(1)
        return Progress(
            step=records.step,
            total_steps=int(trainer["total_steps"]) if trainer else request.total_steps,
            loss=losses[0] if losses else None,
            tokens_per_s=records.recent_tokens_per_s(request.run.cluster.world_size),
            step_s=records.recent_step_s(),
            device_bytes=device_bytes,
            device_peak_bytes=self._peak_device_bytes or None,
            device_predicted_bytes=None if predicted is None else predicted.memory.device_bytes_per_gpu,
            host_bytes=sample.host_bytes,
            host_peak_bytes=self._peak_host_bytes,
            host_predicted_bytes=request.predicted_host_bytes,
        )

    def _warn_of_memory(self, sample: MemorySample, host_memory_bytes: int) -> None:
        for used, total in self._gpus(sample):
            if used >= _NEAR_LIMIT * total:
                in_use = f"{gib(used)} of {gib(total)} GiB in use"
                self._warn("a GPU's memory is nearly full: a longer batch may not fit", in_use)
        if sample.free_bytes <= (1 - _NEAR_LIMIT) * host_memory_bytes:
            left = f"{gib(sample.free_bytes)} GiB left"
            self._warn("the host's memory is nearly full: the kernel may kill a rank", left)
        swapped = sample.swapped_out_bytes - self._swapped_before
        if swapped > _SWAPPED_BYTES:
            self._warn(
                "the host swaps: its memory does not suffice, and every step waits for the disk",
                f"{gib(swapped)} GiB written to swap so far",
            )

    def _warn_of_silence(self, silent_s: float) -> None:
        """The ranks may wait for each other, or for a lost one, which nothing but a timeout of theirs ends."""
        if silent_s > _SILENT_S:
            said = "; ".join(last_lines(self.records, self._request.folder))
            pids = ", ".join(str(rank.pid) for rank in self.records.ranks if rank.pid)
            shown = f"py-spy dump --pid shows where they are: {pids}" if pids else "no rank has started"
            self._warn(f"no rank has made a step or printed a line for {_SILENT_S / 60:.0f} min", f"{said}; {shown}")

    def _gpus(self, sample: MemorySample) -> tuple[tuple[int, int], ...]:
        """(used, total) of the GPUs that it trains on."""
        return sample.gpus if self._request.device == "cuda" else ()

    def _warn(self, warning: str, figures: str = "") -> None:
        """Once for each `warning`."""
        if not any(earlier.startswith(warning) for earlier in self._warnings):
            self._warnings.append(f"{warning} ({figures})" if figures else warning)
            self._display.say(f"ds-advise: {self._warnings[-1]}")
