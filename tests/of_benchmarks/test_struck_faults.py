"""The table of faults is sound, and some of them are struck: the real launcher and engine, and the answer of `why`."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds_advise.probes.failures.messages import messages

from benchmarks.document import written
from benchmarks.struck_faults.__main__ import outcome
from benchmarks.struck_faults.strike import edited, faults, missing, strike

FAULTS = {fault.name: fault for fault in faults()}


def test_at_least_forty_faults_have_known_messages_and_scripts_that_can_be_edited() -> None:
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
    rows = written("why.md", "struck_faults/__main__").splitlines()
    listed = {row.split(" | ")[0].removeprefix("| ") for row in rows if row.startswith("| ")}
    assert listed - {"fault"} <= FAULTS.keys() and len(listed) > 100
