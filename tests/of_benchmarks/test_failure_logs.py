"""The page of failure messages is the table, and public failed logs get their cause."""

from __future__ import annotations

import re

import pytest
from ds_advise.probes.failures.diagnosis import diagnose_text

from benchmarks.document import written
from benchmarks.failure_logs import Score, cases, scores
from benchmarks.failure_messages import table


def test_the_page_has_the_table_of_messages() -> None:
    """`python -m benchmarks.failure_messages --write` brings it up to date."""
    assert written("messages.md", "failure_messages") == table()


def test_public_logs_get_their_cause_and_no_other_stated_as_certain() -> None:
    """Cause, phase and fix, besides what the log alone does not show; the threads differ from each other."""
    found = [*scores()]
    assert len({each.source for each in found}) == len(found) >= 544
    assert [each.source for each in found if each.wrong_as_certain] == []
    assert [each.found for each in found if not each.right] == ["", "", "gpu-outside"]
    assert [_thread(each) for each in found if each.found and each.phase is False] == [
        "ms-swift/issues/3399",
        "RL/issues/2871",
        _OF_NO_LOOP,
    ]
    missing = ["peft/issues/335", "nanoGPT/pull/236", "LLaVA/issues/1808"]
    missing += ["zeroRumor_AAAI/issues/7", "lmms-finetune/issues/64"]
    # a shape of the user's own code, an explanation after the training, an octree: no fix of a table
    missing += [_thread(each) for each in found if re.search("of a NeuS|with captum|of a NeRF-like", each.source)]
    missing.append(_OF_NO_LOOP)
    assert len(missing) == 9
    assert [_thread(each) for each in found if each.found and each.fix is False] == missing
    assert sum(each.fix is not None for each in found) >= 225 and sum(not each.expected for each in found) >= 40


_OF_NO_LOOP = (
    "a public repository: notebook export of a recurrent text-classifier training, error in the prediction cell"
)
"""A forward pass under torch.no_grad() in a cell of its own, whose lines around the call are no frames."""


def _thread(score: Score) -> str:
    return score.source.split("/", 4)[-1]


PREFIXES = (
    "3: ",
    "worker-1: ",
    "[default1]:",
    "[1,3]<stderr>:",
    "(Worker pid=77, ip=10.0.0.3) ",
    "2026-05-01T10:00:00.123456789Z ",
    "Nov 29 17:53:01 node-3 train[4]: ",
    "trainer-1  | ",
    "2026-05-01 10:00:00,123 ERROR ",
    "\x1b[36m",
)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_what_stands_in_front_of_the_lines_changes_no_diagnosis(prefix: str) -> None:
    """Except where a terminal broke the lines, so that the next one's prefix is within a frame, and where the prefix
    makes one rank of several: the last exception of a rank counts."""
    logs = [case["log"] for case in cases()]
    changed = 0
    for log in logs:
        ways = (log, "".join(f"{prefix}{line}\n" for line in log.splitlines()))
        found = [(each.message, each.phase) for each in map(diagnose_text, ways)]
        changed += found[0] != found[1]
    assert changed <= 4


def test_the_logs_keep_the_format_of_launchers() -> None:
    logs = [case["log"] for case in cases()]
    assert sum("[rank" in log for log in logs) >= 10 and sum("Traceback" in log for log in logs) >= 30
