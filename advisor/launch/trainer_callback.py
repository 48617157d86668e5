"""The Trainer's side of a launch: its length, its checkpoints, and a stop that all ranks make after the same step."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from ...probes.rank_processes.event_log import EventLog

STOP_FILE = "stop"
"""Made in the record folder of a node by whoever wants its training to save and stop."""

_REQUESTED, _STOP_AT = "ds_advise/stop_asked", "ds_advise/stop_at"

_STEPS_AHEAD = 3
"""Rank 0 names the step to stop after. A rank that has completed step k + 1 has used the weights of step k, which took
all ranks' gradients; so when it completes step s + 3, rank 0 has completed step s, where it named that step."""


def add_callback(module: Any, events: EventLog, folder: Path) -> None:
    """Put the callback among those that every Trainer starts with (transformers/trainer.py `DEFAULT_CALLBACKS`)."""
    from transformers.trainer_callback import TrainerCallback

    class Launched(TrainerCallback):  # its methods take what the Trainer gives them
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            self.stop = _Stop(folder)
            events.note(
                {"trainer": {"total_steps": state.max_steps, "output_dir": str(Path(args.output_dir).resolve())}}
            )

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            stop_at = self.stop.after(state.global_step)
            if stop_at is None:
                return
            if not self.stop.is_reported:
                self.stop.is_reported = True
                events.note({"stop_at": stop_at})
            if state.global_step >= stop_at:
                control.should_save = control.should_training_stop = True

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            events.note({"checkpoint": str(Path(args.output_dir, f"checkpoint-{state.global_step}").resolve())})

    module.DEFAULT_CALLBACKS.append(Launched)


class _Stop:
    """Agrees with the other ranks on the step to stop after, through the store in which they met: a look is one request
    to it, needs no collective, and works across nodes."""

    def __init__(self, folder: Path) -> None:
        self._file, self._requested, self.is_reported = folder / STOP_FILE, False, False
        self._store: Any = None
        self._rank = 0
        with contextlib.suppress(Exception):
            import torch.distributed as dist

            if dist.is_initialized() and dist.get_world_size() > 1:
                self._rank = dist.get_rank()
                self._store = dist.distributed_c10d._get_default_store()

    def after(self, step: int) -> int | None:
        """The step after which to stop, None while nobody wants it."""
        if not self._requested and self._file.exists():
            self._requested = True
            if self._store is not None:
                self._store.set(_REQUESTED, "1")
        if self._store is None:
            return step if self._requested else None
        if self._store.check([_STOP_AT]):
            return int(self._store.get(_STOP_AT))
        if self._rank == 0 and self._store.check([_REQUESTED]):
            self._store.set(_STOP_AT, str(step + _STEPS_AHEAD))
            return step + _STEPS_AHEAD
        return None
