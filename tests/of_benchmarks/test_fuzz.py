"""Anything at all as a ds_config, a config.json or an argument: an answer or one line (at length:
benchmarks/fuzz.py)."""

from __future__ import annotations

import json
from pathlib import Path

from ds_advise.estimators.errors import ConfigFileError
from ds_advise.validate.lint import lint, read_document
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.fuzz import fuzz

from ..validate.lint.lint_cases import facts

JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=8),
        st.sampled_from(["auto", "cpu", "nvme", "none", "3", "true", "AdamW", "Muon", "WarmupLR", "fp16"]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=8,
)


def test_hundreds_of_broken_inputs_break_nothing(tmp_path: Path) -> None:
    """The mutator of the benchmark, with a seed of its own."""
    tally = fuzz(400, 42, tmp_path, facts())
    assert tally.broken == []
    assert min(tally.answered, tally.refused) > 40


@settings(max_examples=100)
@given(data=st.data())
def test_any_values_of_known_keys_are_judged(data: st.DataObject) -> None:
    """Keys that DeepSpeed knows with values of any type and depth; every finding has a line that exists."""
    config: dict[str, object] = {}
    for block in data.draw(st.lists(st.sampled_from(facts().blocks), max_size=4)):
        found = data.draw(st.one_of(JSON, st.dictionaries(st.sampled_from(block.names() or ("x",)), JSON, max_size=4)))
        node = config
        *owners, name = block.path.split(".") if block.path else [""]
        for owner in owners:
            inner = node.setdefault(owner, {})
            if not isinstance(inner, dict):
                inner = node[owner] = {}
            node = inner
        if name:
            node[name] = found
        elif isinstance(found, dict):
            config |= found
    text = json.dumps(config, indent=1)
    try:
        document = read_document(text.encode("utf-8", "surrogatepass"), name="x")
    except ConfigFileError:  # a lone surrogate, a number of hundreds of digits
        return
    report = lint(document, facts=facts())
    assert all(1 <= finding.line <= text.count("\n") + 1 for finding in report.findings)
