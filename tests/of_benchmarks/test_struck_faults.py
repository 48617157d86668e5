"""The table of faults is sound, and some of them are struck: the real launcher and engine, and the answer of `why`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ds_advise.probes.failures.messages import messages

from benchmarks.document import written
from benchmarks.struck_faults.__main__ import outcome
from benchmarks.struck_faults.strike import edited, faults, missing, strike

FAULTS = {fault.name: fault for fault in faults()}


def test_the_faults_have_known_messages_and_scripts_that_can_be_edited() -> None:
    known = {message.id for message in messages()}
    assert len(FAULTS) == len(faults()) >= 40
    assert {cause for fault in faults() for cause in fault.cause} <= known
    for fault in faults():
        compile(edited(fault), fault.name, "exec") if fault.cause != ("syntax-error",) else None


@pytest.mark.parametrize(
    "name",
    [
        "ranks without a launcher",
        "an argument of torchrun given to deepspeed",
        pytest.param("backward twice", marks=pytest.mark.slow),
        pytest.param("a copied checkpoint without the states of rank 1", marks=pytest.mark.slow),
    ],
)
def test_a_fault_that_is_struck_gets_its_cause_and_fix(tmp_path: Path, name: str) -> None:
    fault = FAULTS[name]
    assert not missing(fault)
    strike(fault, tmp_path / "train.log", tmp_path)
    found = outcome(fault, tmp_path / "train.log")
    assert found.cause_is_right and found.fix_is_right


def test_the_page_has_a_row_for_each_fault() -> None:
    """`python -m benchmarks.struck_faults --write` strikes them and brings it up to date."""
    text = written("why.md", "struck_faults/__main__")
    listed = {tuple(row.removeprefix("| ").split(" | ")[:2]) for row in text.splitlines() if row.startswith("| ")}
    struck = [fault for name, fault in FAULTS.items() if f": {name}." not in text]
    assert listed - {("fault", "started by")} == {(fault.name, fault.launcher) for fault in struck}
    assert len(struck) > 100


def test_accelerate_starts_what_is_given_its_option_of_deepspeed() -> None:
    assert FAULTS["an optimizer in the file and in the script"].launcher == "accelerate"


def test_a_program_that_must_be_missing_is_named() -> None:
    fault = FAULTS["--bind_cores_to_rank without numactl"]
    assert missing(replace(fault, needs="no bash")) == "a PATH without bash"
    assert not missing(replace(fault, needs="no program-of-nobody"))
