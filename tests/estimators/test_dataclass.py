"""Dataclasses that are made quickly behave as the standard library's."""

import dataclasses
import inspect
import pickle

import pytest
from ds_advise.estimators import dataclass as quick

KINDS = [{"frozen": frozen, "slots": slots} for frozen in (True, False) for slots in (True, False)]


def both(**kind):
    """The same class made by the standard library and by ours, and how each copies."""
    for module in (dataclasses, quick):

        class Made:
            size: int
            names: list[str] = module.field(default_factory=list)
            label: str = "none"
            kept: dict[str, int] = module.field(default_factory=dict, init=False, repr=False, compare=False)

            def __post_init__(self):
                self.names.append("made")

        yield module.dataclass(**kind)(Made), module.replace


@pytest.mark.parametrize("kind", [*KINDS, {"kw_only": True}], ids=str)
def test_it_is_made_copied_and_compared_as_the_standard_one(kind):
    (standard, copied), (ours, copied_quickly) = both(**kind)
    assert str(inspect.signature(standard)).count(",") == str(inspect.signature(ours)).count(",")
    assert repr(copied(standard(size=3), label="b")) == repr(copied_quickly(ours(size=3), label="b"))
    assert dataclasses.asdict(standard(size=1)) == dataclasses.asdict(ours(size=1))
    assert ours(size=1) == ours(size=1) != ours(size=2)
    assert ours(size=1) != standard(size=1)
    with pytest.raises(TypeError, match="size"):
        ours()


@dataclasses.dataclass(frozen=True)
class _Standard:
    number: int
    text: str = ""


@quick.dataclass(frozen=True, slots=True)
class _Quick:
    number: int
    text: str = ""


def test_a_frozen_one_is_hashed_kept_and_unpickled():
    value = _Quick(1, "a")
    assert hash(value) == hash(_Standard(1, "a"))
    assert pickle.loads(pickle.dumps(value)) == value
    for change in (lambda: setattr(value, "number", 2), lambda: delattr(value, "number")):
        with pytest.raises(dataclasses.FrozenInstanceError, match="number"):
            change()


def test_one_that_can_change_has_no_hash():
    _, (ours, _) = both(frozen=False)
    with pytest.raises(TypeError, match="unhashable"):
        hash(ours(size=1))
