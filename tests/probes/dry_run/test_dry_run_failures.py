"""How a dry run fails: the true error, where it happened, and what to do; never an empty report."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ds_advise.estimators.errors import DsAdviseError
from ds_advise.estimators.models.model_shape import Input
from ds_advise.estimators.workload import Workload
from ds_advise.probes.command.request import CommandRequest
from ds_advise.probes.command.run import dry_run_command
from ds_advise.probes.dry_run.run import DryRunError, dry_run
from ds_advise.probes.model_recorder.process import answer
from ds_advise.probes.recording.result import DryRunResult
from ds_advise.probes.run import Run
from ds_advise.probes.run_errors import worker_error

from tests.helpers import SMALL_LLAMA, fork_outcomes, h100s

FILE = """
import torch
import neighbour

def net(): return neighbour.same(torch.nn.Linear(4, 4))
def raises(): return {}["missing"]
class Pair(torch.nn.Linear):
    def forward(self, row, label): return super().forward(row)
def pair(): return Pair(4, 4)
"""
BATCH = (
    FILE
    + """
def make_batch(micro_batch_size, seq_len):
    return torch.zeros(micro_batch_size, 4).reshape(3)
"""
)
PLAIN = {
    "train_batch_size": 4,
    "optimizer": {"type": "Adam", "params": {"lr": 0.001}},
    "zero_optimization": {"stage": 1},
}
OWN = Workload(precision="fp32", framework="deepspeed")
TRAINER = Workload(precision="fp32", framework="hf")
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {  # name -> file, function, other keys of the configuration
    "works": ("own.py", "net", {}),
    "raises": ("own.py", "raises", {}),
    "one_input_of_two": ("own.py", "pair", {}),
    "bad_batch": ("batch.py", "net", {}),
    "unknown_optimizer": ("own.py", "net", {"optimizer": {"type": "Adamm", "params": {"lr": 0.1}}}),
    "wrong_batch": ("own.py", "net", {"train_micro_batch_size_per_gpu": 3}),
    "auto": ("own.py", "net", {"zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}}),
    "dropped_auto": ("own.py", "net", {"zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}}),
    "own_boundaries": (
        *("own.py", "net", {"managed_gradient_accumulation": False, "zero_optimization": {"stage": 2}}),
    ),
    "typo": ("own.py", "net", {"zero_optimization": {"stage": 1, "overlap_com": True}}),
}


Outcomes = dict[str, DryRunResult | DryRunError]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    folder = tmp_path_factory.mktemp("own")
    (folder / "own.py").write_text(FILE)
    (folder / "batch.py").write_text(BATCH)
    (folder / "neighbour.py").write_text("def same(module): return module\n")
    dry_runs = {
        name: partial(
            dry_run,
            Run(
                config={**PLAIN, **more},
                model=f"{folder / file}:{function}",
                workload=TRAINER if name == "auto" else OWN,
                gradient_checkpointing=False,
                inputs=(Input((4,)),),
                cluster=h100s(2),
            ),
            iterations=1,
        )
        for name, (file, function, more) in CASES.items()
    }
    return dict(zip(dry_runs, fork_outcomes(list(dry_runs.values())), strict=True))


def test_one_failure_leaves_the_others_alone(outcomes: Outcomes) -> None:
    """A file may import its neighbours, and plain DeepSpeed gets an `auto` that it takes as its default."""
    result = outcomes["works"]
    assert isinstance(result, DryRunResult) and result.parameters == 20
    assert isinstance(outcomes["dropped_auto"], DryRunResult)
    assert isinstance(outcomes["own_boundaries"], DryRunResult)  # every step() makes an optimizer step


def test_a_training_without_a_step_is_an_error() -> None:
    error = worker_error({"error": "", "kind": "NoStep", "phase": "forward", "trained": False})
    assert "ended before an optimizer step (during forward)" in error.what


@pytest.mark.parametrize(
    ("name", "phase", "words"),
    [
        ("raises", "load", ("KeyError: 'missing'", "load", "own.py:")),
        ("auto", "start", ('nothing replaces "auto" at zero_optimization.reduce_bucket_size', "write a number there")),
        ("one_input_of_two", "preparation", ("forward of Pair takes row, label: ", "--input-shape 3,32,32+scalar")),
        ("bad_batch", "preparation", ("RuntimeError", "preparation", "batch.py:")),
        ("unknown_optimizer", "initialize", ("Adamm", "DeepSpeed rejects")),
        ("wrong_batch", "load", ("accumulation steps", "DeepSpeed rejects")),
        ("typo", "load", ("overlap_com", "DeepSpeed rejects")),
    ],
)
def test_a_failure_is_reported_with_its_phase_and_cause(
    outcomes: Outcomes, name: str, phase: str, words: tuple[str, ...]
) -> None:
    """The exception with file and line, DeepSpeed's own message, and what to do."""
    error = outcomes[name]
    assert isinstance(error, DryRunError) and error.phase == phase
    assert all(word in f"{error.what} {error.why} {error.fix}" for word in words), str(error)


class Leaves:
    """Ends the process that unpickles it."""

    def __reduce__(self) -> Any:
        return os._exit, (3,)


def test_a_process_that_ends_without_an_answer_is_reported_with_its_exit_code() -> None:
    with pytest.raises(DryRunError, match="exit code 3, during start") as caught:
        answer(Leaves(), timeout_s=3000)  # type: ignore[arg-type]
    assert "--debug" in caught.value.fix


def test_a_missing_file_is_reported_before_torch_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ds_advise.probes.command.run.start", None)
    with pytest.raises(DryRunError, match="no such file"):
        dry_run(Run(config=PLAIN, model="nowhere.py:net", cluster=h100s(2)))
    for launcher in (
        [],
        ["python"],
        ["env", "A=1", "torchrun", "--nproc_per_node", "2"],
        ["deepspeed", "--num_gpus=2"],
    ):
        request = CommandRequest(words=(*launcher, "nowhere.py", "own.py"), folder=Path.cwd(), cluster=h100s(2))
        with pytest.raises(DsAdviseError, match=r"there is no file nowhere.py; give its path from"):
            dry_run_command(request)


def test_kernels_that_are_not_known_are_refused() -> None:
    """It would show the memory of another training."""
    run = Run(config={}, model=SMALL_LLAMA, cluster=h100s(1), workload=Workload(method="qlora"))
    with pytest.raises(DryRunError, match="a dry run does not support"):
        dry_run(run)


def test_an_older_torch_is_refused_with_the_version_that_dry_runs_need(monkeypatch: pytest.MonkeyPatch) -> None:
    from ds_advise.probes.simulated_gpu import device

    monkeypatch.setattr("torch.__version__", "2.11.0+cu130")
    with pytest.raises(RuntimeError, match=r"need torch 2\.13 or newer, and this is torch 2\.11\.0"):
        device.register()


def test_a_model_without_code_in_transformers_has_its_cause_and_fix() -> None:
    text = (
        "The checkpoint you are trying to load has model type `qwen9` but Transformers does not recognize this "
        "architecture. This could be because of an issue with the checkpoint, or because your version is out of date."
    )
    answer = {"error": text, "kind": "ValueError", "phase": "", "where": "trainer.py:282", "package": "transformers"}
    error = worker_error(answer | {"traceback": ""})
    assert error.what.endswith("does not recognize this architecture")
    assert "older than the model" in error.why and "pip install -U transformers" in error.fix


def test_cause_and_fix_of_a_known_error_have_its_names() -> None:
    answer = {"kind": "AttributeError", "phase": "step 1", "where": "trainer.py:9", "package": "transformers"}
    error = worker_error(answer | {"error": "'MyTrainer' object has no attribute 'deepspeed'", "traceback": ""})
    assert "the installed Trainer sets no deepspeed" in error.why
    assert "its current Trainer has deepspeed" in error.fix
