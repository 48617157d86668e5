"""The reader that keeps places: JSON as Python's json has it, Hjson as DeepSpeed's hjson has it, and one line for the
rest."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from ds_advise.estimators.errors import ConfigFileError
from ds_advise.validate.lint import apply, read_document
from ds_advise.validate.lint.config_file import Edit, Remove, Rename, Replace
from ds_advise.validate.lint.document_reader import MAX_BYTES
from hypothesis import given
from hypothesis import strategies as st

VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**20), 10**20),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.text(max_size=6).filter(lambda text: not any("\ud800" <= char <= "\udfff" for char in text)),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)


@given(
    config=st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), VALUES, max_size=5),
    indent=st.sampled_from([None, 0, 2]),
    ascii_only=st.booleans(),
)
def test_json_is_read_as_pythons_json_reads_it(config: dict[str, object], indent: int | None, ascii_only: bool) -> None:
    """Every value, and every key's place: the text there is the key."""
    text = json.dumps(config, indent=indent, ensure_ascii=ascii_only)
    document = read_document(text.encode(), name="x")
    assert document.value == config and not document.extensions
    for member in document.members:
        value: Any = config
        for name in member.path:
            value = value[int(name) if isinstance(value, list) else name]
        assert json.loads(text[member.start : member.end]) == member.path[-1]
        assert json.loads(text[member.value_start : member.value_end]) == value
        line, column = document.place(member.start)
        assert text.split("\n")[line - 1][column - 1] == '"'


HJSON = [
    '{"a": 1, # a remark\n "b": 2}',
    '{/* one */ "a": /* two */ 1}',
    "{a: 1, b: 2}",
    "{a: 'x'}",
    '{"a": 1,}',
    '{"a": 1\n "b": 2}',
    '{"a": [1\n 2]}',
    '{"a": "x" "b": [1] "c": 2}',
    "{a: some words, more\n b: 1}",
    "{a: True\n b: 1}",
    "{a: some words\n b: 1}",
    "{a: 1 2\n}",
    "{a: null # none\n}",
    '\n\n{"a": 5e8}\n# the end',
    "{'it': 'a \"quoted\" word'}",
]


@pytest.mark.parametrize("text", HJSON)
def test_hjson_is_read_as_deepspeed_reads_it(text: str) -> None:
    """The same value as the hjson package's; what is more than JSON is noted."""
    hjson = pytest.importorskip("hjson")
    document = read_document(text.encode(), name="x")
    assert document.value == hjson.loads(text)
    assert bool(document.extensions) == (not _is_json(text))


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "empty"),
        (b"[1, 2]", "a list, not an object"),
        (b'"{}"', "a single value, not an object"),
        (b"ds_config = {'train_batch_size': 8}", "begin with {, but with ds_config ="),
        (b"train_batch_size: 8", "begin with {"),
        (b"{'bf16': {'enabled': True},\n}", "True is Python"),
        (b"{'steps_per_print': float('inf')}", "float(...) is Python"),
        (b"{", "closing }"),
        (b'{"a"', "colon"),
        (b'{"a":', "value is missing"),
        (b'{"a": "', "string"),
        (b'{"a": [1', "closing ]"),
        (b'{"a": "\n"}', "line break"),
        (b'{"a": "\\q"}', "backslash"),
        (b"{} x", "follows"),
        (b'{"a": 1 "b": 2}', 'a comma is missing before "b" (line 1, column 8)'),
        (b'{"a": 500_000}', "500_000 is not a JSON number (line 1, column 7)"),
        (b'{"a": "b" ?}', "a comma or } is missing"),
        (b"{,}", "key is missing"),
        (
            b'{\n<<<<<<< HEAD\n "a": 1\n=======\n "a": 2\n>>>>>>> other\n}',
            "not JSON: an unresolved merge conflict on lines 2 to 6 (line 2, column 1)",
        ),
        (b'{\r\n "a":\r\n<<<<<<< HEAD\r\n1\r\n=======\r\n2\r\n>>>>>>>\r\n}', "conflict on lines 3 to 7"),
        (b"{/*", "comment"),
        (b'{"a": ' + b"9" * 5000 + b"}", "5000 digits"),
        (b'{"a":' + b"[" * 100_000, "nested"),
        (b"\xff\xfe{\x00}\x00", "UTF-16"),
        ('{"ü": 1}'.encode("latin-1"), "UTF-8"),
        (b"\x00", "not text"),
        (b" " * (MAX_BYTES + 1), "larger"),
        (b'{"a": "\\ud83"}', "backslash"),
    ],
)
def test_a_file_without_a_configuration_is_one_line(raw: bytes, message: str) -> None:
    """The file's name, what is wrong and, within text, where, and what to do."""
    with pytest.raises(ConfigFileError) as error:
        read_document(raw, name="ds_config.json")
    assert error.value.what.startswith("ds_config.json: ") and message in error.value.what
    assert "\n" not in str(error.value) and error.value.fix


MISTAKES = {
    '{"a": 8 "b": {"c": [1 true]}}': '{"a": 8, "b": {"c": [1, true]}}',
    '{"a": {"b": True}, "c": [None]}': '{"a": {"b": true}, "c": [null]}',
    '{"a": 500_000_000, "b": .5}': '{"a": 500000000, "b": 0.5}',
    '{"type": AdamW, "path": /local/nvme}': '{"type": "AdamW", "path": "/local/nvme"}',
    '{"a": True, # a remark\n "b": 1}': '{"a": true, # a remark\n "b": 1}',
    '{“a”: {“b”: true}, "c": 1}': '{"a": {"b": true}, "c": 1}',
    '{"a": “b”, “c”: [“d”]}': '{"a": "b", "c": ["d"]}',
    "{\u2018a\u2019: \u201eb\u201c}": '{"a": "b"}',
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_value_that_hjson_takes_for_text_is_read_as_it_is_meant(text: str) -> None:
    """What replaces the mistakes is read by hjson with these values, which it did not have before."""
    hjson = pytest.importorskip("hjson")
    document = read_document(text.encode(), name="x", as_meant=True)
    assert document.plain_text(document.mistakes) == MISTAKES[text]
    assert document.value == hjson.loads(MISTAKES[text])
    try:
        assert hjson.loads(text) != document.value and document.is_hjson
    except hjson.HjsonDecodeError:
        assert not document.is_hjson
    with pytest.raises(ConfigFileError, match=re.escape(document.mistakes[0].mistake)):
        read_document(text.encode(), name="x")


def test_duplicates_are_found_at_every_depth() -> None:
    """The path and both places of each. Keys of two objects of one name are not repeated."""
    document = read_document(b'{"a": {"b": 1, "b": 2}, "a": {"b": 3}, "c": [{"d": 1, "d": 1}, {"d": 1}]}', name="x")
    found = [(second.path, first.start, second.start) for first, second in document.duplicates()]
    assert found == [(("a", "b"), 7, 15), (("a",), 1, 24), (("c", "0", "d"), 46, 54)]
    assert document.value["a"] == {"b": 3}


def test_a_removal_from_the_last_of_two_objects_of_one_name_leaves_the_first() -> None:
    text = '{"a": {"b": 1, "c": 2}, "x": 1, "a": {"c": 3, "b": 4}}'
    edited, made = apply(read_document(text.encode(), name="x"), [Remove(("a", "b"))])
    assert made == 1 and edited == '{"a": {"b": 1, "c": 2}, "x": 1, "a": {"c": 3}}'


TEXT = """{
  "a": 1,
  "b": {"x": 1, "y": 2},
  "c": [1, 2]
}
"""


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ([Remove(("a",))], TEXT.replace('"a": 1,\n  ', "")),
        ([Remove(("c",))], TEXT.replace(',\n  "c": [1, 2]', "")),
        ([Remove(("b", "y"))], TEXT.replace(', "y": 2', "")),
        ([Remove(("b", "x")), Remove(("b", "y"))], TEXT.replace('{"x": 1, "y": 2}', "{}")),
        ([Remove(("a",)), Remove(("b",)), Remove(("c",))], "{\n}\n"),
        ([Rename(("a",), "d")], TEXT.replace('"a"', '"d"')),
        ([Rename(("a",), "c")], TEXT),
        ([Replace(("b", "x"), {"z": True})], TEXT.replace('"x": 1', '"x": {"z": true}')),
        ([Rename(("b", "x"), "z"), Replace(("b", "z"), 5)], TEXT.replace('"x": 1', '"z": 5')),
        ([Remove(("q", "r")), Replace(("q",), 1)], TEXT),
    ],
    ids=str,
)
def test_edits_change_only_what_they_must(edits: list[Edit], expected: str) -> None:
    """Order, indentation and line breaks of the rest stay."""
    text, _ = apply(read_document(TEXT.encode(), name="x"), edits)
    assert text == expected
    json.loads(text)


def test_a_removal_never_takes_a_comment_with_it() -> None:
    """It is left to the user then."""
    text = '{\n  "a": 1, # why a\n  "b": 2\n}'
    assert apply(read_document(text.encode(), name="x"), [Remove(("a",))]) == (text, 0)


@given(
    config=st.dictionaries(st.sampled_from("abcd"), VALUES, min_size=1, max_size=4),
    data=st.data(),
    indent=st.sampled_from([None, 2, 4]),
)
def test_removing_a_key_leaves_the_others(config: dict[str, object], data: st.DataObject, indent: int | None) -> None:
    """For any object and any key in it."""
    key = data.draw(st.sampled_from(sorted(config)))
    text, made = apply(read_document(json.dumps(config, indent=indent).encode(), name="x"), [Remove((key,))])
    assert made == 1
    assert json.loads(text) == {name: value for name, value in config.items() if name != key}
