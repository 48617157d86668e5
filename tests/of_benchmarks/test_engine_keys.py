"""Keys of the engine's configuration in dry runs, and the classes that the package has of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from ds_advise.validate.lint import load_facts
from ds_advise.validate.lint.key_effects import follows, without_effect

from benchmarks.engine_keys.report import all_keys
from benchmarks.engine_keys.study import Change, Study, all_changes
from tests.training_scripts.forked_ranks import start_server

CHANGES = tuple(all_changes(load_facts()))


def wrong(base: str, changes: Sequence[Change]) -> list[str]:
    """Settings with an effect that the closed form has not, and that the package does not name."""
    start_server()
    study = Study(base, None, 2, offline=False)
    study.singles(changes, alone=[change for change in changes if change.path not in without_effect()])
    plan = study.setting.plan
    verdicts = [study.verdict((change,)) for change in changes]
    assert any(verdict.outcome.kind == "differs" for verdict in verdicts), "the dry runs notice a change"
    return [
        f"{verdict.changes[0]}: {verdict.errors or verdict.unsupported}"
        for verdict in verdicts
        if verdict.outcome.kind == "differs" and not verdict.follows and follows(verdict.changes[0].path, plan)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("base", ["stage 2", "stage 3"])
def test_some_keys_are_followed_or_named(base: str) -> None:
    """One group of keys without effect, and keys whose bytes the closed form has."""
    names = ("grad_accum_dtype", "contiguous_gradients", "round_robin_gradients", "communication_data_type")
    acting = [change for change in CHANGES if change.path.rpartition(".")[2] in names]
    idle = {change.path: change for change in CHANGES if change.path in without_effect()}
    assert not wrong(base, [*acting, *list(idle.values())[:40]])


@pytest.mark.slow
def test_the_keys_that_act_are_followed() -> None:
    """One value of each, in bf16. Every value and base takes an hour: `python -m benchmarks.engine_keys`."""
    acting = {each.path: each for each in CHANGES if each.path not in without_effect() and follows(each.path)}
    assert not wrong("stage 3, cpu", [each for path, each in acting.items() if not path.startswith("fp16.")])


def test_every_key_of_the_installed_engine_has_a_class() -> None:
    """A key without an entry, such as one of a newer DeepSpeed, is named."""
    assert len(all_keys(load_facts())) > 200
    assert not follows("zero_optimization.a_key_of_a_later_release")
    assert follows("steps_per_print") and follows("zero_optimization.overlap_comm")
    assert not follows("hybrid_engine.enabled")
