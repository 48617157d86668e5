"""The dry run of a command against the dry run of a name, for one of the cases of `benchmarks.own_scripts.equality`."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.own_scripts import equality
from tests.helpers import sizes


def test_the_trainer_holds_what_the_dry_run_of_its_model_says(tmp_path: Path) -> None:
    """ZeRO-3 with `auto` values: from the second step on, peaks and live bytes of all phases are equal."""
    equality.write_model(tmp_path / "small", sizes(256, 1024, 3, 8, 4, 152_064))
    words = equality.commands(tmp_path, "small", "4xA100-40GB", {"stage": 3}, [])
    by_name, by_command = (equality.dry_run(tmp_path, each) for each in words)
    found = equality.differences(by_name, by_command)
    assert {phase for iteration, phase, _ in found if iteration == 2} == {"forward", "backward", "step"}
    different = {key: share for key, share in found.items() if key[0] > 1 and share > 0.001}
    assert not different
    (engine,) = by_command["observed"]["engines"]
    assert (engine["zero_stage"], engine["micro_batch_size"], engine["data_parallel_size"]) == (3, 2, 4)
    zero = engine["config"]["zero_optimization"]
    assert "auto" not in json.dumps(engine["config"]) and zero["stage"] == 3
