"""The Hugging Face Trainer of an observed rank: its length and checkpoints are noted, and it stops where requested."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Note = Callable[[dict[str, Any]], None]

STOP_FILE = "stop"
"""File that, once created in a node's record folder, makes the training save and stop."""

CHECKSUMS = "ds_advise_checksums.json"
"""File in a checkpoint with the size in bytes and the CRC-32 of each file, keyed by its path below the checkpoint
(`validate/checkpoint.py`)."""

_REQUESTED, _STOP_AT = "ds_advise/stop_asked", "ds_advise/stop_at"

_STEPS_AHEAD = 3
"""Number of steps between the choice of the last step and that step. Rank 0 chooses it. A rank that has completed step
k + 1 has used the weights of step k, which took all ranks' gradients. When it completes step s + 3, rank 0 has
therefore completed step s, in which it chose."""


def add_callback(module: Any, note: Note, folder: Path) -> None:
    """Add a callback to the defaults of every Trainer (transformers/trainer.py `DEFAULT_CALLBACKS`)."""
    from transformers.trainer_callback import TrainerCallback

    class Launched(TrainerCallback):  # its methods receive the Trainer's arguments
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            self.stop = _Stop(folder)
            if args.should_save:
                date_back(Path(args.output_dir))
            note({"trainer": {"total_steps": state.max_steps, "output_dir": str(Path(args.output_dir).resolve())}})

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            stop_at = self.stop.after(state.global_step)
            if stop_at is not None and state.global_step >= stop_at:
                control.should_save = control.should_training_stop = True

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            checkpoint = Path(args.output_dir, f"checkpoint-{state.global_step}").resolve()
            with contextlib.suppress(OSError):
                (checkpoint / CHECKSUMS).unlink(missing_ok=True)  # checksums of an earlier checkpoint in this folder
            note({"checkpoint": str(checkpoint)})

    module.DEFAULT_CALLBACKS.append(Launched)


def date_back(output_dir: Path) -> None:
    """Give checkpoints from the future (another machine's clock, or a clock that was set back) the present time. The
    Trainer would take them for the newest ones and remove each new one at once (`save_total_limit`; transformers 5.23
    trainer.py `_save_checkpoint` sorts by the time of the folders)."""
    now = time.time()
    for path in output_dir.glob("checkpoint-*"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime > now:
                os.utime(path, (now, now))


class _Stop:
    """Agreement of the ranks on the step to stop after, through the store of their rendezvous. It takes one request per
    step and no collective, and works across nodes."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / STOP_FILE
        self._requested = False
        self._store: Any = None
        self._rank = 0
        with contextlib.suppress(Exception):
            import torch.distributed as dist

            if dist.is_initialized() and dist.get_world_size() > 1:
                self._rank = dist.get_rank()
                self._store = dist.distributed_c10d._get_default_store()

    def after(self, step: int) -> int | None:
        """The step after which to stop; None while no stop is requested."""
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
