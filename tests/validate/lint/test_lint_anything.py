"""Anything at all as a ds_config: findings with a line that exists, or one error."""

from __future__ import annotations

import json

from ds_advise.advisor.answer.lint_file import lint_settings
from ds_advise.estimators.errors import ConfigFileError, DsAdviseError
from ds_advise.validate.lint import apply, lint, read_document
from hypothesis import given, settings
from hypothesis import strategies as st

from .lint_cases import facts

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


def judged(raw: bytes) -> None:
    """Lint it and apply its fixes, on its own and for a model on GPUs."""
    try:
        document = read_document(raw, name="x", as_meant=True)
    except ConfigFileError:  # no JSON, a lone surrogate, a number of hundreds of digits
        return
    report = lint(document, facts=facts())
    assert all(1 <= finding.line <= raw.count(b"\n") + 1 for finding in report.findings)
    apply(document, report.edits)
    given = {"framework": None, "model": "gpt2", "gpus": "2x24GB", "ram": None, "seq_len": None, "offline": True}
    try:
        lint(document, facts=facts(), **lint_settings(document.value, **given))
    except DsAdviseError as error:
        assert "\n" not in str(error)


@settings(max_examples=60)
@given(data=st.data(), cut=st.integers(0, 400), piece=st.binary(max_size=3))
def test_any_values_of_known_keys_are_judged(data: st.DataObject, cut: int, piece: bytes) -> None:
    """Keys that DeepSpeed knows with values of any type and depth, and the text with bytes replaced."""
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
    raw = json.dumps(config, indent=1).encode("utf-8", "surrogatepass")
    judged(raw)
    judged(raw[:cut] + piece + raw[cut + 1 :])
