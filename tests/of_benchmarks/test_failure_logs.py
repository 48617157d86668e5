"""The page of failure messages is the table, and public failed logs get their cause."""

from __future__ import annotations

import json

from benchmarks.document import written
from benchmarks.failure_logs import LOGS, scores
from benchmarks.failure_messages import table


def test_the_page_has_the_table_of_messages() -> None:
    """`python -m benchmarks.failure_messages --write` brings it up to date."""
    assert written("messages.md", "failure_messages") == table()


def test_public_logs_get_their_cause_and_no_other_stated_as_certain() -> None:
    """Cause, phase and fix; the threads differ from each other."""
    found = [*scores()]
    assert len({each.source for each in found}) == len(found) >= 200
    assert [each.source for each in found if each.wrong_as_certain] == []
    assert [each.found for each in found if not each.right] == ["", ""]
    assert [each.source for each in found if each.found and (each.phase is False or each.fix is False)] == []
    assert sum(each.fix is not None for each in found) >= 60 and sum(not each.expected for each in found) >= 20


def test_the_logs_keep_the_format_of_launchers() -> None:
    logs = [json.loads(line)["log"] for line in LOGS.read_text(encoding="utf-8").splitlines()]
    assert sum("[rank" in log for log in logs) >= 10 and sum("Traceback" in log for log in logs) >= 30
