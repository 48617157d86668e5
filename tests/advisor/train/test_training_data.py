"""From data files to samples: every shape in every kind of file, errors that name the line, loss on the answers
only."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ds_advise.advisor.data.prepare import (
    Index,
    Tokens,
    TokenWriter,
    cut,
    evaluation_split,
    index_of,
    open_tokens,
    prepare,
)
from ds_advise.advisor.data.rows import DataError, Row, read_rows
from ds_advise.advisor.data.shapes import ROW_SHAPES, Chat, PlainText, TextPart, recognise, teaches_nothing
from ds_advise.advisor.data.tokenizing import Renderer, Tokenized, tokenize
from ds_advise.advisor.text import output as progress
from ds_advise.advisor.train.rank import IGNORED, Collator, TokenDataset
from hypothesis import given
from hypothesis import strategies as st

CHAT = {
    "messages": [
        {"role": "system", "content": "Add."},
        {"role": "user", "content": "2+2"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "3+4"},
        {"role": "assistant", "content": "7"},
    ]
}
SHAREGPT = {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello you"}]}
INSTRUCTION = {"instruction": "5=", "input": "", "output": "1 + 4"}
COMPLETION = {"prompt": "The capital of France is", "completion": " Paris"}
TEXT = {"text": "Once upon a time."}
NER = {"text": "浙商银行叶老桂", "label": {"name": {"叶老桂": [[4, 6]]}}}
SHORT_CHAT = {"messages": [{"role": "user", "content": "5="}, {"role": "assistant", "content": "1 + 4"}]}
ROWS = {"chat": CHAT, "instruction": INSTRUCTION, "prompt-completion": COMPLETION, "text": TEXT, "text-label": NER}


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tokenizer_folder)


def write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """The rows in the kind of file that the suffix names."""
    if path.suffix == ".parquet":
        from datasets import Dataset

        Dataset.from_list(list(rows)).to_parquet(str(path))
    elif path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, rows[0])
            writer.writeheader()
            writer.writerows(
                {name: value if isinstance(value, str) else json.dumps(value) for name, value in row.items()}
                for row in rows
            )
    elif path.suffix == ".json":
        path.write_text(json.dumps(list(rows), ensure_ascii=False, indent=2), encoding="utf-8")
    else:
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def shown(tokenizer: Any, sequence: Tokenized) -> list[tuple[str, bool]]:
    """The text of each stretch of one kind."""
    kinds = [*sequence.is_trained]
    edges = [0, *(place for place, (before, after) in enumerate(pairwise(kinds), 1) if before != after), len(kinds)]
    return [(tokenizer.decode(sequence.ids[start:end]), kinds[start]) for start, end in pairwise(edges)]


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet"])
@pytest.mark.parametrize("shape", ROWS)
def test_every_shape_is_recognised_in_every_kind_of_file(
    tmp_path: Path, tokenizer: Any, shape: str, suffix: str
) -> None:
    data = prepare(write(tmp_path / f"data{suffix}", [ROWS[shape]] * 3), tokenizer, tmp_path / "tokens")
    expected = prepare(write(tmp_path / "same.jsonl", [ROWS[shape]] * 3), tokenizer, tmp_path / "same")
    assert (data.shape, data.rows) == (shape, 3)
    assert 0 < data.trained_tokens <= data.tokens
    if (shape, suffix) != ("text-label", ".csv"):  # a CSV cell is text, so its JSON is the label as it stands there
        assert data.opened().ids.tolist() == expected.opened().ids.tolist()
        assert data.opened().is_trained.tolist() == expected.opened().is_trained.tolist()


def test_json_files_of_the_other_kinds(tmp_path: Path) -> None:
    lines = tmp_path / "train.json"
    lines.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in (NER, NER)), encoding="utf-8")
    assert [row.place for row in read_rows(lines)] == ["train.json, line 1", "train.json, line 2"]
    inside = tmp_path / "inside.json"
    inside.write_text(json.dumps({"version": 1, "data": [INSTRUCTION, INSTRUCTION]}))
    assert [row.fields for row in read_rows(inside)] == [INSTRUCTION, INSTRUCTION]
    single = tmp_path / "single.json"
    single.write_text(json.dumps(CHAT))
    assert [row.fields for row in read_rows(single)] == [CHAT]


GOOD = json.dumps(INSTRUCTION)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", f"{GOOD}\n\n{{broken", "a.jsonl, line 3: not JSON"),
        ("a.jsonl", f"{GOOD}\n[1]", "a.jsonl, line 2: a list where an object is needed"),
        ("a.jsonl", f'{GOOD}\n{{"instruction": "x"}}', "a.jsonl, line 2: output is missing"),
        ("a.jsonl", f'{GOOD}\n{{"instruction": 3, "output": "x"}}', "a.jsonl, line 2: instruction is not text"),
        ("a.jsonl", '{"colour": "red"}', "a.jsonl, line 1: fields colour match no known shape"),
        ("a.jsonl", '{"messages": [{"role": "user", "content": "x"}]}', "line 1: no message is the assistant's"),
        ("a.jsonl", '{"messages": [{"role": "wizard", "content": "x"}]}', "line 1: message 1 has the role 'wizard'"),
        ("a.jsonl", '{"messages": [{"role": "user", "content": null}]}', "line 1: message 1 has no text"),
        ("a.json", f"[{GOOD},\n{GOOD},\n", "a.json, line 3: not JSON"),
        ("a.json", f"[{GOOD}, 3]", "a.json, element 2: a number where"),
        ("a.json", '{"a": 1,\n"b": 2}', "a.json: holds neither"),
        ("a.csv", "instruction,output\nx,y\nx\n", "a.csv, line 3: 1 field, but the header names 2"),
        ("a.csv", "instruction,output\nx,y,z\n", "a.csv, line 2: 3 fields, but the header names 2"),
        ("a.csv", 'instruction,output\nx,"y" z\n', "a.csv, line 2: "),
        ("a.jsonl", "", "no rows"),
        ("a.docx", "x", "unknown kind of data file"),
        ("a.txt", f"{GOOD}\n{GOOD}", "a.txt: holds JSON Lines"),
        ("a.jsonl", f'{GOOD}\n{{"instruction" 3}}', "a.jsonl, line 2: not JSON (Expecting ':' delimiter, column 16)"),
        ("a.jsonl", '{"text": ""}\n{}\n', "every row is empty or has an empty answer (2)"),
        ("a.parquet", "x", "a.parquet: not Parquet"),
    ],
)
def test_a_broken_row_is_named(tmp_path: Path, tokenizer: Any, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError) as error:
        prepare(tmp_path / name, tokenizer, tmp_path / "tokens")
    assert message in error.value.what
    assert error.value.fix


def test_a_file_that_is_not_there(tmp_path: Path, tokenizer: Any) -> None:
    for name in ("a.jsonl", "a.json", "a.csv", "a.parquet"):
        with pytest.raises(DataError, match="cannot be read"):
            prepare(tmp_path / name, tokenizer, tmp_path / "tokens")


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".txt"])
def test_the_line_that_is_not_utf8_is_named(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"a{suffix}").write_bytes(b'{"text": "x"}\n' * 20_000 + b'{"text": "f\xfcnf"}\n')
    if suffix == ".txt":
        (tmp_path / "a.txt").write_bytes(b"x\n" * 20_000 + b"f\xfcnf\n")
    with pytest.raises(DataError, match=f"a{suffix}, line 20001: not UTF-8"):
        list(read_rows(tmp_path / f"a{suffix}"))


def test_empty_rows_and_answers_are_counted_and_left_out(tmp_path: Path, tokenizer: Any) -> None:
    empty = [
        {},
        {"instruction": "", "output": ""},
        {"instruction": "5=", "output": " \n"},
        {"instruction": "5=", "output": None},
        {"instruction": None, "output": None},
        {"instruction": "6=", "output": ""},
    ]
    data = prepare(
        write(tmp_path / "a.jsonl", [empty[0], INSTRUCTION, *empty[1:], INSTRUCTION]), tokenizer, tmp_path / "a"
    )
    assert (data.rows, data.empty_rows) == (2, 6)
    assert data.empty_places == tuple(f"a.jsonl, line {line}" for line in (1, 3, 4, 5, 6))
    silent = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": ""}]}
    calling = {"messages": [silent["messages"][0], {**silent["messages"][1], "tool_calls": ["add"]}]}
    assert teaches_nothing(Chat(messages=tuple(silent["messages"])))
    assert not teaches_nothing(Chat(messages=tuple(calling["messages"])))
    assert teaches_nothing(ROW_SHAPES["prompt-completion"].sample(Row("", {"prompt": "x", "completion": None})))


def test_a_text_file_is_one_text(tmp_path: Path, tokenizer: Any) -> None:
    (tmp_path / "corpus.txt").write_text("Once upon a time.\n" * 10_000)
    data = prepare(tmp_path / "corpus.txt", tokenizer, tmp_path / "tokens")
    assert data.shape == "text" and data.divisible and data.rows == 3
    tokens = data.opened().ids.tolist()
    assert tokens.count(tokenizer.eos_token_id) == 1 and tokens[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(tokens[:-1]) == "Once upon a time.\n" * 10_000
    assert [row.place for row in read_rows(tmp_path / "corpus.txt")][:2] == [
        "corpus.txt, line 1",
        "corpus.txt, line 3642",
    ]


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_the_separator_follows_from_the_header(tmp_path: Path, separator: str) -> None:
    (tmp_path / "a.csv").write_text(f'instruction{separator}output\n"5, or 6"{separator}x\n')
    [row] = read_rows(tmp_path / "a.csv")
    assert row.fields == {"instruction": "5, or 6", "output": "x"}


@pytest.mark.parametrize(
    ("row", "trained"),
    [
        (CHAT, ["4<|im_end|>", "7<|im_end|>"]),
        (SHAREGPT, ["hello you<|im_end|>"]),
        (INSTRUCTION, ["1 + 4<|im_end|>"]),
        (COMPLETION, [" Paris<|im_end|>"]),
        (TEXT, ["Once upon a time.<|im_end|>"]),
        (NER, ['{"name": {"叶老桂": [[4, 6]]}}<|im_end|>']),
    ],
)
def test_the_loss_counts_the_answers_and_their_ends(tokenizer: Any, row: dict[str, Any], trained: list[str]) -> None:
    [sequence] = _tokenized(tokenizer, [row])
    assert [text for text, is_trained in shown(tokenizer, sequence) if is_trained] == trained


def test_trained_tokens_follow_the_prompt_of_inference(tokenizer: Any) -> None:
    [sequence] = _tokenized(tokenizer, [INSTRUCTION])
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "5="}], add_generation_prompt=True)["input_ids"]
    assert sequence.ids[: len(prompt)] == prompt
    assert sequence.is_trained == [False] * len(prompt) + [True] * (len(sequence.ids) - len(prompt))


def test_a_merge_across_the_boundary_is_not_made(tokenizer: Any) -> None:
    """`th` + `e` would be one token in the whole text; the prompt alone ends with `th`, so the answer is the token
    `e`."""
    [joint] = tokenizer(["the"], add_special_tokens=False)["input_ids"]
    assert len(joint) == 1, "this tokenizer merges them"
    [sequence] = tokenize(tokenizer, [[TextPart("th", False), TextPart("e", True)]])
    assert shown(tokenizer, sequence) == [("th", False), ("e", True)]


def test_sentencepiece_puts_no_space_before_an_answer() -> None:
    """A tokenizer that begins any text with a space (Llama 2's) is given the text so far, not the answer alone."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {
        word: number for number, word in enumerate(["<unk>", "</s>", "\u2581ask", ":", "yes", "\u2581yes", "\u2581"])
    }
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(prepend_scheme="always", split=True), pre_tokenizers.Split(":", "isolated")]
    )
    inner.decoder = decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="</s>", unk_token="<unk>")
    parts = [TextPart("ask:", False), TextPart("yes", True)]
    assert tokenizer(["yes"], add_special_tokens=False)["input_ids"] == [[words["\u2581yes"]]]
    [sequence] = tokenize(tokenizer, [parts])
    assert sequence == Tokenized([words["\u2581ask"], words[":"], words["yes"]], [False, False, True])


def test_a_tokenizer_without_a_template_gets_the_documented_one(tokenizer: Any) -> None:
    plain = _copy(tokenizer, chat_template=None)
    [sequence] = _tokenized(plain, [CHAT])
    assert shown(plain, sequence) == [
        ("### System:\nAdd.\n\n### User:\n2+2\n\n### Assistant:\n", False),
        ("4<|im_end|>", True),
        ("\n\n### User:\n3+4\n\n### Assistant:\n", False),
        ("7<|im_end|>", True),
    ]
    assert plain.chat_template, "saved with the tokenizer"


def test_end_of_text_is_learned_after_another_end_of_a_turn(tokenizer: Any) -> None:
    base = _copy(tokenizer, eos_token="<|endoftext|>")
    [sequence] = _tokenized(base, [INSTRUCTION])
    assert shown(base, sequence)[-1] == ("1 + 4<|im_end|><|endoftext|>", True)


THOUGHTS = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\n' -}}
{%- if message['role'] == 'assistant' and loop.last -%}{{- '<think>\n\n</think>\n\n' -}}{%- endif -%}
{{- message['content'] + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"""


def test_earlier_answers_that_the_template_changes_are_not_trained(tokenizer: Any) -> None:
    """Qwen3's way: an empty thought before the last answer only. The last is trained with it, the earlier is counted as
    not."""
    thinking = _copy(tokenizer, chat_template=THOUGHTS)
    renderer = Renderer(thinking)
    [sample] = [ROW_SHAPES["chat"].sample(row) for row in _rows([CHAT])]
    parts = renderer.parts(sample, "row 1")
    assert [part.text for part in parts if part.is_trained] == ["<think>\n\n</think>\n\n7<|im_end|>"]
    assert (
        "".join(part.text for part in parts) == thinking.apply_chat_template(CHAT["messages"], tokenize=False).rstrip()
    )
    assert renderer.untrained_turns == 1


def test_an_answer_that_the_template_opens_otherwise(tokenizer: Any) -> None:
    """DeepSeek-R1's way: the prompt ends with `<think>`, which the finished turn does not have; the answer is still
    found."""
    finished, waiting = "assistant\n' }}{% endif", "assistant\n<think>' }}{% endif"
    assert finished in tokenizer.chat_template
    opening = _copy(tokenizer, chat_template=tokenizer.chat_template.replace(finished, waiting))
    [sequence] = _tokenized(opening, [INSTRUCTION])
    assert shown(opening, sequence)[-1] == ("1 + 4<|im_end|>", True)


def test_a_template_that_refuses_a_row(tokenizer: Any) -> None:
    strict = _copy(tokenizer, chat_template="{{ raise_exception('System role not supported') }}")
    with pytest.raises(DataError, match=r"row 1: .*System role not supported"):
        _tokenized(strict, [CHAT])


def test_a_system_message_for_chats_without_one(tokenizer: Any) -> None:
    renderer = Renderer(tokenizer, system="Be brief.")
    own, none = (Chat(messages=tuple(row["messages"])) for row in (CHAT, {"messages": CHAT["messages"][1:3]}))
    assert "Be brief." not in renderer.parts(own, "")[0].text
    assert renderer.parts(none, "")[0].text.startswith("<|im_start|>system\nBe brief.<|im_end|>\n")


def test_plain_text_begins_as_the_tokenizer_begins_it(tokenizer: Any) -> None:
    """Llama's tokenizer adds a beginning; the tests' own does not."""
    from tokenizers.processors import TemplateProcessing

    beginning = _copy(tokenizer, bos_token="<|endoftext|>")
    assert Renderer(beginning).parts(PlainText(parts=(TextPart("x", True),)), "") == [TextPart("x<|im_end|>", True)]
    beginning.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", beginning.bos_token_id)]
    )
    assert Renderer(beginning).parts(PlainText(parts=(TextPart("x", True),)), "")[0] == TextPart("<|endoftext|>", False)


def test_the_shape_can_be_chosen(tmp_path: Path, tokenizer: Any) -> None:
    file = write(tmp_path / "data.jsonl", [NER])
    assert prepare(file, tokenizer, tmp_path / "a").shape == "text-label"
    data = prepare(file, tokenizer, tmp_path / "b", shape="text")
    assert data.divisible
    assert data.trained_tokens == data.tokens


def test_tool_calls_reach_the_template(tokenizer: Any) -> None:
    """Fields of a message besides its text are the template's to read; null ones, as Parquet has them, are not
    there."""
    calls = _copy(
        tokenizer, chat_template="{% for m in messages %}{{ m.role }}:{{ m.content }}{{ m.tool_calls }};{% endfor %}"
    )
    row = {
        "messages": [
            {"role": "user", "content": "x", "tool_calls": None},
            {"role": "assistant", "content": None, "tool_calls": ["add"]},
        ]
    }
    [sequence] = _tokenized(calls, [row])
    assert calls.decode(sequence.ids) == "user:x;assistant:['add'];<|im_end|>"


def test_samples_are_cut_and_those_without_an_answer_dropped(tmp_path: Path) -> None:
    tokens = _tokens(tmp_path, [([1, 2, 3, 4], [0, 1, 1, 1]), ([5, 6, 7, 8], [0, 0, 0, 1]), ([9, 10], [0, 1])])
    index, cuts = index_of(tokens, np.arange(3), seq_len=3, divisible=False, packing=False)
    assert _samples(tokens, index) == [[[1, 2, 3]], [[9, 10]]]
    assert (cuts.truncated, cuts.dropped) == (2, 1)


def test_plain_text_goes_on_in_the_next_sample(tmp_path: Path) -> None:
    tokens = _tokens(tmp_path, [([1, 2, 3, 4, 5, 6, 7], [1] * 7), ([8, 9], [1, 1])])
    index, cuts = index_of(tokens, np.arange(2), seq_len=3, divisible=True, packing=False)
    assert _samples(tokens, index) == [[[1, 2, 3]], [[4, 5, 6]], [[8, 9]]]
    assert (cuts.truncated, cuts.dropped) == (0, 1)


@given(st.lists(st.integers(2, 20), min_size=1, max_size=60), st.integers(2, 24))
def test_packing_keeps_every_piece_once_and_whole(lengths: list[int], seq_len: int) -> None:
    starts = np.concatenate([[0], np.cumsum(lengths)])
    tokens = Tokens(ids=np.arange(starts[-1], dtype=np.int32), is_trained=np.ones(starts[-1], np.bool_), starts=starts)
    index, _ = index_of(tokens, np.arange(len(lengths)), seq_len=seq_len, divisible=False, packing=True)
    samples = [[ids for piece in sample for ids in piece] for sample in _samples(tokens, index)]
    kept = [range(start, start + min(length, seq_len)) for start, length in zip(starts[:-1], lengths, strict=True)]
    assert sorted(token for sample in samples for token in sample) == [token for tokens in kept for token in tokens]
    sizes = sorted(map(len, samples))
    assert sizes[-1] <= seq_len
    assert len(sizes) == 1 or sizes[0] + sizes[1] > seq_len


@given(st.integers(2, 500), st.floats(0.001, 0.99), st.integers(0, 10))
def test_the_split_takes_the_share_and_is_the_same_again(rows: int, share: float, seed: int) -> None:
    trained, evaluated = evaluation_split(rows, share, seed)
    assert sorted([*trained, *evaluated]) == list(range(rows))
    assert len(trained)
    assert abs(len(evaluated) - rows * share) <= 1
    assert [list(part) for part in evaluation_split(rows, share, seed)] == [list(trained), list(evaluated)]


def test_batches_are_padded_and_masked(tmp_path: Path, tokenizer: Any) -> None:
    data = prepare(write(tmp_path / "data.jsonl", [SHORT_CHAT, CHAT]), tokenizer, tmp_path / "tokens")
    samples = cut(data, tmp_path, seq_len=256, packing=False, evaluation_share=0, seed=0)
    dataset = TokenDataset(data.folder, samples.train)
    batch = Collator(pad_id=tokenizer.pad_token_id, seq_len=256, packing=False)([dataset[0], dataset[1]])
    assert {name: len(values) for name, values in batch.items()} == {"input_ids": 2, "labels": 2, "attention_mask": 2}
    assert batch["input_ids"].shape[1] % 8 == 0
    first, mask = batch["input_ids"][0], batch["attention_mask"][0].bool()
    assert (
        tokenizer.decode(first[mask]) == tokenizer.apply_chat_template(SHORT_CHAT["messages"], tokenize=False).rstrip()
    )
    assert (
        tokenizer.decode([number for number in batch["labels"][0].tolist() if number != IGNORED]) == "1 + 4<|im_end|>"
    )
    assert (batch["labels"][~batch["attention_mask"].bool()] == IGNORED).all()


def test_packed_samples_do_not_see_each_other(tmp_path: Path, tokenizer: Any) -> None:
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    data = prepare(write(tmp_path / "data.jsonl", [SHORT_CHAT, CHAT, SHAREGPT]), tokenizer, tmp_path / "tokens")
    samples = cut(data, tmp_path, seq_len=200, packing=True, evaluation_share=0, seed=0)
    dataset, index = TokenDataset(data.folder, samples.train), Index.load(samples.train)
    assert (len(dataset), len(index.pieces(0))) == (1, 3)
    batch = Collator(pad_id=0, seq_len=200, packing=True)([dataset[0]])
    assert batch["input_ids"].shape[1] > samples.tokens
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        Qwen2Config(
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            vocab_size=300,
            use_cache=False,
        )
    ).eval()
    with torch.no_grad():
        packed = model(**batch).logits[0]
        begin = 0
        for piece in index.pieces(0):
            ids = torch.from_numpy(data.opened().ids[piece].astype(np.int64))[None]
            alone = model(input_ids=ids).logits[0]
            torch.testing.assert_close(packed[begin : begin + len(alone)], alone, atol=1e-5, rtol=1e-4)
            assert batch["labels"][0, begin] == IGNORED
            begin += len(alone)


def test_rows_are_taken_in_batches_without_losing_any(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"prompt": f"{number}", "completion": "."} for number in range(2001)]
    monkeypatch.setattr(progress, "_EVERY_S", 0.0)
    printed: list[str] = []
    data = prepare(write(tmp_path / "data.jsonl", rows), tokenizer, tmp_path / "tokens", say=printed.append)
    assert data.rows == 2001
    shares = [re.fullmatch(r"data.jsonl: ([\d,]+) rows, (\d+) % of 0 MB, .* left", line) for line in printed]
    assert [match and match[1] for match in shares] == ["1,000", "2,000", "2,001"]
    assert shares[0] and 45 <= int(shares[0][2]) <= 65 and shares[2] and shares[2][2] == "100"
    tokens = data.opened()
    for number in (0, 999, 1000, 2000):
        assert tokenizer.decode(tokens.ids[tokens.starts[number] : tokens.starts[number + 1]]) == f"{number}.<|im_end|>"


def test_no_sample_left(tmp_path: Path, tokenizer: Any) -> None:
    data = prepare(write(tmp_path / "data.jsonl", [INSTRUCTION]), tokenizer, tmp_path / "tokens")
    with pytest.raises(DataError, match="no sample keeps an answer within 4 tokens"):
        cut(data, tmp_path, seq_len=4, packing=False, evaluation_share=0, seed=0)


def _rows(values: Iterable[dict[str, Any]]) -> list[Any]:
    return [Row(f"row {number}", value) for number, value in enumerate(values, 1)]


def _tokenized(tokenizer: Any, values: Iterable[dict[str, Any]]) -> list[Tokenized]:
    renderer = Renderer(tokenizer)
    return tokenize(
        tokenizer, [renderer.parts(ROW_SHAPES[recognise(row)].sample(row), row.place) for row in _rows(values)]
    )


def _copy(tokenizer: Any, **changes: Any) -> Any:
    from copy import deepcopy

    copied = deepcopy(tokenizer)
    for name, value in changes.items():
        setattr(copied, name, value)
    return copied


def _tokens(folder: Path, sequences: Iterable[tuple[list[int], list[int]]]) -> Tokens:
    with TokenWriter(folder / "flat") as writer:
        for ids, is_trained in sequences:
            writer.add(Tokenized(ids, [bool(flag) for flag in is_trained]))
    return open_tokens(folder / "flat")


def _samples(tokens: Tokens, index: Index) -> list[list[list[int]]]:
    return [[tokens.ids[piece].tolist() for piece in index.pieces(number)] for number in range(len(index))]
