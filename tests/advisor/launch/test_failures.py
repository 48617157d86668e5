"""How the failure of a training is named, from the records of its ranks."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest
from ds_advise.advisor.launch.failures import classify_failure

from tests.advisor.launch.requests import step_event, write_events


def _error(at: float, kind: str, message: str, number: int | None = None) -> dict[str, Any]:
    return {"time": at, "error": {"type": kind, "message": message, "errno": number, "details": ""}}


def _exit(at: float, code: int) -> dict[str, Any]:
    return {"time": at, "exit": code}


KILLED = _exit(2.0, -9)
LOST = _error(1.0, "RuntimeError", "Connection closed by peer [127.0.0.1]:1234")
OUT_OF_MEMORY = _error(2.0, "OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB")
ALLOCATOR = _error(1.0, "RuntimeError", "DefaultCPUAllocator: can't allocate memory: you tried")
COMPILER = _error(1.0, "RuntimeError", "Error building extension 'fused_adam': cc1plus: Cannot allocate memory")
ARCHIVE = _error(1.0, "RuntimeError", "basic_ios::clear: iostream error")
SEMAPHORE = _error(1.0, "OSError", "[Errno 28] No space left on device", 28)
SEMAPHORE["error"]["details"] = "sl = self._semlock = _multiprocessing.SemLock("
WATCHDOG = _error(1.0, "DistBackendError", "Watchdog caught collective operation timeout: WorkNCCL")
BOTH = {"engine_ranks": 2}
TRAINER = {"trainer": {"output_dir": "/"}}
OOM_KILLER = "the kernel's OOM killer"

FAILURES: dict[str, tuple[list[list[dict[str, Any]]], str, int, str]] = {
    "a peer fails earlier": ([[LOST], [OUT_OF_MEMORY]], "gpu_out_of_memory", 1, "OutOfMemoryError on rank 1"),
    OOM_KILLER: ([[LOST], [KILLED]], "host_out_of_memory", 1, "memory.events: oom_kill rose by 1"),
    "killed by another process": ([[LOST], [KILLED]], "lost_rank", 1, "rank 1 was killed by SIGKILL"),
    "killed after another": ([[_exit(5.0, -9)], [KILLED]], "lost_rank", 1, "rank 1 was killed by SIGKILL"),
    "ended by the launcher": ([[_exit(0.5, -15)], [KILLED]], "lost_rank", 1, "rank 1 was killed by SIGKILL"),
    "torch's allocator on the CPU": ([[], [ALLOCATOR]], "host_out_of_memory", 1, "RuntimeError on rank 1"),
    "a compiler's memory": ([[], [COMPILER]], "crash", 1, "the compiler of a DeepSpeed extension failed"),
    "disk": ([[TRAINER, _error(1.0, "OSError", "No space left", 28)], []], "disk_full", 0, "errno 28 (ENOSPC)"),
    "free space": ([[TRAINER, _error(1.0, "OSError", "No space left", 28)], []], "disk_full", 0, "GiB free in /"),
    "torch's archive on a full disk": ([[], [ARCHIVE]], "disk_full", 1, "RuntimeError on rank 1"),
    "a full /dev/shm": ([[], [SEMAPHORE]], "crash", 1, "/dev/shm is full, not the disk"),
    "NCCL": ([[WATCHDOG], []], "communication_timeout", 0, "DistBackendError on rank 0"),
    "the script's own error": (
        [[_error(1.0, "ValueError", "no such column")], [LOST]],
        *("crash", 0, "ValueError on rank 0"),
    ),
    "exit code": ([[{"end": 0}, _exit(1.0, 3)], []], "crash", 0, "rank 0 ended with exit code 3"),
    # The others are ended only after a rank has ended: the first end is the cause.
    "SIGTERM to a rank": (
        [[BOTH, LOST, _exit(3.0, 1)], [BOTH, _exit(2.0, -15)]],
        "lost_rank",
        1,
        "rank 1 died of SIGTERM",
    ),
    "a rank leaves": (
        [[BOTH, LOST, _exit(3.0, 1)], [BOTH, _exit(2.0, 3)]],
        "crash",
        1,
        "rank 1 ended with exit code 3",
    ),
    "a rank is done early": (
        [[BOTH, LOST, _exit(3.0, 1)], [BOTH, step_event(13, 1.0), _exit(2.0, 0)]],
        *("ended_early", 1, "rank 1 ended early, without an error, after step 13, while rank 0 went on"),
    ),
    "another node's rank": ([[LOST, _exit(3.0, 1)], [_exit(2.0, -15)]], "crash", 0, "RuntimeError on rank 0"),
}
"""Name -> events of the ranks, kind, rank, evidence."""


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_named_with_its_evidence(tmp_path: Path, name: str) -> None:
    """The error of the rank that failed first, and its evidence."""
    ranks, kind, number, evidence = FAILURES[name]
    records = write_events(tmp_path, *ranks)
    failure = classify_failure(records, tmp_path, 1, {"memory.events": int(name == OOM_KILLER)})
    assert (failure.kind, failure.rank, failure.step) == (kind, number, records.step)
    assert any(evidence in each for each in (failure.message, *failure.evidence, failure.cause))
    assert not any("exit" in each for each in failure.evidence), "the message says it"


EVALUATION = """  File "transformers/trainer.py", line 2863, in evaluate
    output = eval_loop(
  File "transformers/trainer.py", line 3015, in evaluation_loop
    all_preds.add(logits)
"""
SAVING = """  File "transformers/trainer.py", line 3369, in _save_checkpoint
    self.save_model(output_dir, _internal_call=True)
  File "deepspeed/runtime/engine.py", line 4507, in _zero3_consolidated_16bit_state_dict
    get_layer_state_dict(self.module, prefix="")
"""

STEP = """  File "deepspeed/runtime/engine.py", line 2341, in step
    self._take_model_step(lr_kwargs)
"""


@pytest.mark.parametrize(
    ("details", "moment", "fix"),
    [
        (EVALUATION, "it was raised in an evaluation", "per_device_eval_batch_size"),
        (SAVING, "it was raised while a checkpoint was saved", "stage3_gather_16bit_weights_on_model_save"),
        (STEP, "it was raised in the optimizer's step", ""),
    ],
)
def test_memory_that_ran_out_in_an_evaluation_or_at_a_checkpoint_has_its_own_fix(
    tmp_path: Path, details: str, moment: str, fix: str
) -> None:
    """The frames of the traceback decide; in a step, another plan is the fix."""
    event = _error(2.0, "OutOfMemoryError", "CUDA out of memory. Tried to allocate 18.55 GiB.")
    event["error"]["details"] = details
    failure = classify_failure(write_events(tmp_path, [step_event(500, 1.0), event], []), tmp_path, 1, {})
    assert failure.kind == "gpu_out_of_memory"
    assert [each for each in failure.evidence if "raised" in each] == ([moment] if moment else [])
    assert fix in failure.fix if fix else not failure.fix


WATCHDOG_LOG = (
    "[rank0]:[E1012 10:33:15.204112031 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=1845, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600017 "
    "milliseconds before timing out.\nterminate called after throwing an instance of 'c10::DistBackendError'\n"
)


def test_a_collective_that_timed_out_is_named_with_its_wait_and_the_ranks_steps(tmp_path: Path) -> None:
    """NCCL's watchdog aborts the process, which reports nothing itself."""
    records = write_events(tmp_path, [step_event(14, 1.0), _exit(2.0, -6)], [step_event(13, 1.0)])
    (tmp_path / "rank0.log").write_text(WATCHDOG_LOG)
    failure = classify_failure(records, tmp_path, 1, {})
    assert failure.kind == "communication_timeout"
    assert "ALLREDUCE had waited for 10 minutes" in failure.evidence
    assert "rank 1 had completed step 13" in failure.evidence
    assert "ddp_timeout" in failure.fix and "DEEPSPEED_TIMEOUT" in failure.fix


@pytest.mark.parametrize(("ended", "rank", "who"), [(1, 0, "rank 0"), (0, None, "a rank")])
def test_a_rank_whose_end_nobody_reports_is_named_if_it_is_the_only_one(
    tmp_path: Path, ended: int, rank: int | None, who: str
) -> None:
    """A shell script that starts the ranks ends with 128 + the signal of one of them."""
    failure = classify_failure(write_events(tmp_path, [], [{"end": 0}] * ended), tmp_path, 128 + 9, {})
    assert (failure.kind, failure.rank, failure.message) == ("lost_rank", rank, f"{who} was killed by SIGKILL")
    assert failure.evidence == ("the kernel's OOM counters did not rise; which process sent the signal is not known",)


def test_a_moved_folder_is_the_cause(tmp_path: Path) -> None:
    """The ranks fail because they cannot write there, and their records are elsewhere."""
    records = write_events(tmp_path, [step_event(4, 1.0)], [step_event(5, 1.0)])
    failure = classify_failure(records, tmp_path / "gone", 1, {})
    assert (failure.kind, failure.rank, failure.step) == ("crash", None, 4)
    assert "gone was moved or removed" in failure.message and "move it back" in failure.fix


@pytest.mark.parametrize("ranks", [[[], []], [[LOST, _exit(3.0, 1)], [_exit(3.0, -15)]]])
def test_a_launcher_that_is_killed_is_named(tmp_path: Path, ranks: list[list[dict[str, Any]]]) -> None:
    """Not a rank, which at most lost its connection to it."""
    failure = classify_failure(write_events(tmp_path, *ranks), tmp_path, -9, {})
    assert (failure.kind, failure.rank) == ("lost_rank", None)
    assert failure.message == "the launcher was killed by SIGKILL"


@pytest.mark.parametrize(
    ("status", "message", "evidence"),
    [
        (-11, "rank 1 died of SIGSEGV", "last line of rank 1: a warning"),
        (-6, "a warning", "exit signal 6 (SIGABRT) of rank 1"),  # what aborts says why
        (3, "rank 1 ended with exit code 3", "last line of rank 1: a warning"),
        (2, "a warning", "exit code 2 of rank 1"),
    ],
)
def test_the_last_line_of_a_log_is_no_cause_by_itself(tmp_path: Path, status: int, message: str, evidence: str) -> None:
    (tmp_path / "rank1.log").write_text("a warning\n")
    failure = classify_failure(write_events(tmp_path, [], [_exit(2.0, status)]), tmp_path, 1, {})
    assert failure.message == message and evidence in failure.evidence


def test_a_limit_of_file_sizes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _limit: (300 << 10, -1))
    failure = classify_failure(write_events(tmp_path, [], [ARCHIVE]), tmp_path, 1, {})
    assert "every file is limited to 0.3 MiB (ulimit -f)" in failure.evidence
