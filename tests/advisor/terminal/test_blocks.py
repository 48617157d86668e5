"""Blocks of documents on terminals of different widths."""

from __future__ import annotations

import re

import pytest
from ds_advise.advisor.document import blocks as doc

from tests.helpers import printed_document


def _printed(block: doc.Block, width: int) -> str:
    return printed_document(doc.Document(subject="", verdict="", tone="good", blocks=[block], data={}), width)


def test_text_below_a_row_has_the_title_of_its_own_column() -> None:
    rows = [doc.Row(["step", "38 ms, 27,000 tokens/s", "14 ms, 71,600 tokens/s"])]
    text = _printed(doc.Table(["", "today", "advised"], rows), 40)
    assert "38 ms, 27,000 tokens/s\n" in text and "advised: 14 ms, 71,600 tokens/s\n" in text


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_marked_line_is_whole_and_the_others_are_cut(width: int) -> None:
    words = " ".join(f"word{number}" for number in range(40))
    lines = [doc.ExcerptLine(7, words), doc.ExcerptLine(0, "    code"), doc.ExcerptLine(12, words, ">")]
    before, code, first, *further = _printed(doc.Excerpt(lines, level="bad"), width).split("\n\n")[-1].splitlines()
    assert max(map(len, (before, first, *further))) <= width and before.endswith("...")
    assert re.match(r" +7 \| word0", before) and re.match(r" + \|     code$", code)
    assert re.match(r" +12 > word0", first) and all(re.match(r" + \| word", line) for line in further)
    assert " ".join(re.sub(r"^[ \d]+[|>] ", "", line) for line in (first, *further)) == words


def test_a_table_without_a_column_leaves_out_the_same_optional_ones() -> None:
    """The columns of a narrow terminal are named by their places in the whole table."""
    table = doc.Table(["a", "b", "c", "d"], [doc.Row(["1", "2", "3", "4"])], optional=(3, 2))
    left = table.without({1, 2})
    assert [left.head[at] for at in left.optional] == ["d"]
