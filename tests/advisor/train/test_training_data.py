"""From data files to samples: every format in every kind of file, errors that name the row, loss on the answers."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from ds_advise.advisor.data.prepare import DataFile, cut, pack_bins, prepare
from ds_advise.advisor.data.rows import DataError, read_csv
from ds_advise.advisor.data.tokenizing import IGNORED
from ds_advise.probes.default_script.trainer import Collator
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
TRAINED = {
    "chat": (CHAT, ["4<|im_end|>", "7<|im_end|>"]),
    "instruction": (INSTRUCTION, ["1 + 4<|im_end|>"]),
    "prompt-completion": (COMPLETION, [" Paris<|im_end|>"]),
    "text": (TEXT, ["Once upon a time.<|im_end|>"]),
    "text-label": (NER, ['{"name": {"叶老桂": [[4, 6]]}}<|im_end|>']),
}


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tokenizer_folder)


def write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """The rows in the kind of file that the suffix names."""
    if path.suffix == ".parquet":
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


def prepared(folder: Path, tokenizer: Any, *rows: dict[str, Any], **given: Any) -> DataFile:
    return prepare(write(folder / "data.jsonl", rows), tokenizer, folder / "tokens", **given)


def shown(tokenizer: Any, data: DataFile, number: int = 0) -> list[tuple[str, bool]]:
    """The text of each stretch of one kind, and whether it is trained."""
    row = data.sequences[number]
    kinds = [label != IGNORED for label in row["labels"]]
    edges = [0, *(place for place, (before, after) in enumerate(pairwise(kinds), 1) if before != after), len(kinds)]
    return [(tokenizer.decode(row["input_ids"][start:end]), kinds[start]) for start, end in pairwise(edges)]


def trained(tokenizer: Any, data: DataFile) -> list[str]:
    return [text for text, is_trained in shown(tokenizer, data) if is_trained]


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet"])
@pytest.mark.parametrize("row_format", TRAINED)
def test_the_loss_counts_the_answers_of_every_format_in_every_kind_of_file(
    tmp_path: Path, tokenizer: Any, row_format: str, suffix: str
) -> None:
    row, answers = TRAINED[row_format]
    data = prepare(write(tmp_path / f"data{suffix}", [row] * 3), tokenizer, tmp_path / "tokens")
    assert (data.row_format, data.rows) == (row_format, 3)
    assert data.trained_tokens == sum(label != IGNORED for row in data.sequences for label in row["labels"])
    assert data.highest_id == max(map(max, data.sequences["input_ids"]))
    if (row_format, suffix) != (
        "text-label",
        ".csv",
    ):  # a CSV cell is text, so its JSON is the label as it stands there
        assert trained(tokenizer, data) == answers
    assert [path.name for path in (tmp_path / "tokens").iterdir()] == ["tokens.arrow"]  # no copy of the file is left


GOOD = json.dumps(INSTRUCTION)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", f"{GOOD}\n\n{{broken", "a.jsonl: line 3 cannot be read (Expecting property name"),
        ("a.jsonl", f"{GOOD}\n{GOOD[:-1]}\n{GOOD}", f"(Expecting ',' delimiter at column {len(GOOD)})"),
        ("a.jsonl", f'{GOOD}\n{{"instruction": 3, "output": "x"}}', "a.jsonl, row 2: instruction is not text"),
        ("a.jsonl", '{"colour": "red"}', "a.jsonl: fields colour match no known format"),
        ("a.json", '{"data": [{"instruction": "x", "output": "y"}]}', "a.json: fields data match no known format"),
        ("a.jsonl", '{"messages": [{"role": "user", "content": "x"}]}', "row 1: no message is the assistant's"),
        ("a.jsonl", '{"messages": [{"role": "user", "content": null}]}', "row 1: message 1 has no text"),
        ("a.csv", "instruction,output\nx,y\nx\n", "a.csv, line 3: 1 field, but the header names 2"),
        ("a.csv", 'instruction,output\nx,"y" z\n', "a.csv, line 2: "),
        ("a.csv", "instruction,output\n", "no rows"),
        ("a.csv", "x," * 1_000_000 + "output\n", "a.csv has 1,000,001 columns"),
        ("a.jsonl", json.dumps({f"c{i}": 1 for i in range(20)}), "c6, c7 and 12 more match no known format"),
        ("a.jsonl", "", "no rows"),
        ("a.docx", "x", "unknown kind of data file"),
        ("a.jsonl", '{"text": ""}\n{}\n', "every row is empty or has an empty answer (2)"),
        ("a.parquet", "x", "a.parquet: its rows cannot be read (Parquet file size is 1 bytes"),
    ],
)
def test_errors_name_the_place(tmp_path: Path, tokenizer: Any, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError) as error:
        prepare(tmp_path / name, tokenizer, tmp_path / "tokens")
    assert message in error.value.what
    assert error.value.fix


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".txt"])
def test_files_that_cannot_be_read(tmp_path: Path, tokenizer: Any, suffix: str) -> None:
    with pytest.raises(DataError, match=r"cannot be read .No such file"):
        prepare(tmp_path / f"none{suffix}", tokenizer, tmp_path / "tokens")
    text = b'{"text": "a \xff b"}\n' if suffix == ".jsonl" else b"instruction,output\nx,\xff\n"
    (tmp_path / f"a{suffix}").write_bytes(text)
    with pytest.raises(DataError, match=f"a{suffix}: not UTF-8 text"):
        prepare(tmp_path / f"a{suffix}", tokenizer, tmp_path / "tokens")


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_the_separator_follows_from_the_header(tmp_path: Path, separator: str) -> None:
    (tmp_path / "a.csv").write_text(f'instruction{separator}output\n"5, or 6"{separator}NA\n')
    assert [row.fields for row in read_csv(tmp_path / "a.csv")] == [{"instruction": "5, or 6", "output": "NA"}]


def test_rows_that_teach_nothing_are_left_out(tmp_path: Path, tokenizer: Any) -> None:
    """An empty row, an empty answer, one that is null; a call of a tool is an answer."""
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add"}}]}
    rows = [CHAT, {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": " "}]}, {}]
    data = prepared(tmp_path, tokenizer, *rows, {"messages": [{"role": "user", "content": "x"}, call]})
    assert (data.rows, data.empty_rows) == (2, 2)
    assert prepared(tmp_path, tokenizer, INSTRUCTION, INSTRUCTION | {"output": None}).empty_rows == 1


def test_a_text_is_trained_once_as_a_whole(tmp_path: Path, tokenizer: Any) -> None:
    """Its lines in order, and one end."""
    (tmp_path / "corpus.txt").write_text("Once upon a time.\n" * 2500)
    data = prepare(tmp_path / "corpus.txt", tokenizer, tmp_path / "tokens")
    tokens = [token for row in data.sequences for token in row["input_ids"]]
    assert data.divisible and data.trained_tokens == data.tokens and not data.empty_rows
    assert tokenizer.decode(tokens) == "Once upon a time.\n" * 2500 + "<|im_end|>"


def test_a_token_across_the_boundary_is_trained(tmp_path: Path, tokenizer: Any) -> None:
    """` th` + `e` is one token, which counts as in TRL."""
    data = prepared(tmp_path, tokenizer, {"prompt": "of th", "completion": "e"})
    assert shown(tokenizer, data) == [("of", False), (" the<|im_end|>", True)]


THOUGHTS = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\n' -}}
{%- if message['role'] == 'assistant' and loop.last -%}{{- '<think>\n\n</think>\n\n' -}}{%- endif -%}
{{- message['content'] + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"""
OPENED = THOUGHTS.replace(" and loop.last", " and false").replace(
    "assistant\n' -}}{%- endif", "assistant\n<think>' -}}{%- endif"
)


@pytest.mark.parametrize(
    ("changes", "answers"),
    [
        ({"eos_token": "<|endoftext|>"}, ["4<|im_end|>", "7<|im_end|><|endoftext|>"]),  # the end must be learned
        ({"chat_template": THOUGHTS}, ["<think>\n\n</think>\n\n7<|im_end|>"]),  # Qwen3: earlier answers are changed
        ({"chat_template": OPENED}, ["4<|im_end|>", "7<|im_end|>"]),  # DeepSeek-R1: the prompt opens otherwise
    ],
)
def test_answers_of_other_templates(
    tmp_path: Path, tokenizer: Any, changes: dict[str, str], answers: list[str]
) -> None:
    """The text is the template's, and answers that it does not keep are counted."""
    other = _copy(tokenizer, **changes)
    data = prepared(tmp_path, other, CHAT)
    assert trained(other, data) == answers
    assert data.untrained_turns == 2 - len(answers)
    whole = other.apply_chat_template(CHAT["messages"], tokenize=False).rstrip()
    assert other.decode(data.sequences[0]["input_ids"]).removesuffix("<|endoftext|>") == whole


def test_a_tokenizer_without_a_template_gets_the_documented_one(tmp_path: Path, tokenizer: Any) -> None:
    plain = _copy(tokenizer, chat_template=None)
    assert shown(plain, prepared(tmp_path, plain, CHAT)) == [
        ("### System:\nAdd.\n\n### User:\n2+2\n\n### Assistant:\n", False),
        ("4<|im_end|>", True),
        ("\n\n### User:\n3+4\n\n### Assistant:\n", False),
        ("7<|im_end|>", True),
    ]
    assert plain.chat_template, "saved with the tokenizer"
    without = _copy(tokenizer, chat_template=None)
    prepared(tmp_path, without, {"text": "2+2"})
    assert not without.chat_template, "text alone does not make a chat model"


def test_a_template_that_refuses_a_row(tmp_path: Path, tokenizer: Any) -> None:
    strict = _copy(tokenizer, chat_template="{{ raise_exception('System role not supported') }}")
    with pytest.raises(DataError, match=r"row 1: .*System role not supported"):
        prepared(tmp_path, strict, CHAT)


def test_a_system_message_for_chats_without_one(tmp_path: Path, tokenizer: Any) -> None:
    data = prepared(tmp_path, tokenizer, CHAT, SHORT_CHAT, system="Be brief.")
    assert shown(tokenizer, data, 0)[0][0].startswith("<|im_start|>system\nAdd.<|im_end|>\n")
    assert shown(tokenizer, data, 1)[0][0].startswith("<|im_start|>system\nBe brief.<|im_end|>\n")


def test_plain_text_begins_as_the_tokenizer_begins_it(tmp_path: Path, tokenizer: Any) -> None:
    """Llama's tokenizer adds a beginning, which is not trained; the tests' own does not."""
    from tokenizers.processors import TemplateProcessing

    beginning = _copy(tokenizer, bos_token="<|endoftext|>")
    assert shown(beginning, prepared(tmp_path, beginning, TEXT)) == [("Once upon a time.<|im_end|>", True)]
    beginning.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", beginning.bos_token_id)]
    )
    assert shown(beginning, prepared(tmp_path, beginning, TEXT))[0] == ("<|endoftext|>", False)


def test_messages_reach_the_template_whole(tmp_path: Path, tokenizer: Any) -> None:
    """ShareGPT's roles and fields become those of templates; further fields are the template's to read, null ones are
    not there."""
    calls = _copy(
        tokenizer, chat_template="{% for m in messages %}{{ m.role }}:{{ m.content }}{{ m.tool_calls }};{% endfor %}"
    )
    row = {
        "messages": [
            {"from": "human", "value": [{"type": "text", "text": "x"}], "tool_calls": None},
            {"from": "gpt", "value": None, "tool_calls": ["add"]},
        ]
    }
    data = prepared(tmp_path, calls, row)
    assert calls.decode(data.sequences[0]["input_ids"]) == "user:x;assistant:['add'];<|im_end|>"
    assert trained(tokenizer, prepared(tmp_path, tokenizer, SHAREGPT)) == ["hello you<|im_end|>"]


def _samples(folder: Path, tokenizer: Any, *texts: str, **given: Any) -> tuple[Any, list[list[int]]]:
    """The samples of prompts of 8 tokens with these completions."""
    data = prepared(folder, tokenizer, *({"prompt": "abcdefgh", "completion": text} for text in texts))
    samples = cut(data, folder, **{"packing": False, "evaluation_share": 0, "seed": 0} | given)
    return samples, Dataset.from_file(str(folder / "train.arrow"))["input_ids"][:]


def test_samples_are_cut_and_those_without_an_answer_dropped(tmp_path: Path, tokenizer: Any) -> None:
    """The first token of a sample is never predicted, so an answer of one token there is none."""
    samples, rows = _samples(tmp_path, tokenizer, "xyzxyz", "x", seq_len=10)
    assert [tokenizer.decode(row) for row in rows] == ["abcdefghxy", "abcdefghx<|im_end|>"]
    assert samples.cuts == (1, 0)
    samples, rows = _samples(tmp_path, tokenizer, "xyz", "xyz", seq_len=9)
    assert (len(rows), samples.cuts) == (2, (2, 0))
    with pytest.raises(DataError, match="no sample keeps an answer within 8 tokens"):
        _samples(tmp_path, tokenizer, "xyz", seq_len=8)


def test_plain_text_goes_on_in_the_next_sample(tmp_path: Path, tokenizer: Any) -> None:
    data = prepared(tmp_path, tokenizer, {"text": "abcdef"}, {"text": "xyz"})
    samples = cut(data, tmp_path, seq_len=3, packing=False, evaluation_share=0, seed=0)
    rows = Dataset.from_file(str(tmp_path / "train.arrow"))["input_ids"][:]
    assert [tokenizer.decode(row) for row in rows] == ["abc", "def", "xyz"]
    assert samples.cuts == (0, 2)  # a sample of the end alone has nothing to predict


@given(st.lists(st.integers(2, 20), min_size=1, max_size=60))
def test_packing_keeps_every_piece_once_and_whole(lengths: list[int]) -> None:
    bins = pack_bins(np.asarray(lengths), 20)
    assert sorted(piece for pieces in bins for piece in pieces) == list(range(len(lengths)))
    sizes = sorted(sum(lengths[piece] for piece in pieces) for pieces in bins)
    assert sizes[-1] <= 20
    assert len(sizes) == 1 or sizes[0] + sizes[1] > 20


def test_the_split_takes_the_share_and_is_the_same_again(tmp_path: Path, tokenizer: Any) -> None:
    texts = ["x" * number for number in range(1, 11)]
    samples, rows = _samples(tmp_path, tokenizer, *texts, seq_len=32, evaluation_share=0.25, seed=3)
    held_out = Dataset.from_file(str(tmp_path / "evaluation.arrow"))["input_ids"][:]
    assert (samples.train_samples, samples.evaluation_samples) == (8, 2)
    assert sorted(map(len, [*rows, *held_out])) == list(range(10, 20))
    assert _samples(tmp_path, tokenizer, *texts, seq_len=32, evaluation_share=0.25, seed=3)[1] == rows
    assert _samples(tmp_path, tokenizer, *texts[:2], seq_len=32, evaluation_share=0.9)[0].train_samples == 1


def test_batches_are_padded_and_masked(tmp_path: Path, tokenizer: Any) -> None:
    cut(
        prepared(tmp_path, tokenizer, SHORT_CHAT, CHAT),
        tmp_path,
        seq_len=256,
        packing=False,
        evaluation_share=0,
        seed=0,
    )
    rows = Dataset.from_file(str(tmp_path / "train.arrow"))
    batch = Collator(pad_id=tokenizer.pad_token_id, seq_len=256)([rows[0], rows[1]])
    assert {name: len(values) for name, values in batch.items()} == {"input_ids": 2, "labels": 2, "attention_mask": 2}
    assert batch["input_ids"].shape[1] % 8 == 0
    first, mask = batch["input_ids"][0], batch["attention_mask"][0].bool()
    assert (
        tokenizer.decode(first[mask]) == tokenizer.apply_chat_template(SHORT_CHAT["messages"], tokenize=False).rstrip()
    )
    answer = [number for number in batch["labels"][0].tolist() if number != IGNORED]
    assert tokenizer.decode(answer) == "1 + 4<|im_end|>"
    assert (batch["labels"][~batch["attention_mask"].bool()] == IGNORED).all()


def test_packed_samples_do_not_see_each_other(tmp_path: Path, tokenizer: Any) -> None:
    """The model computes for each piece what it computes for the row alone, and no piece's first token is trained."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    data = prepared(tmp_path, tokenizer, SHORT_CHAT, CHAT, SHORT_CHAT)
    samples = cut(data, tmp_path, seq_len=200, packing=True, evaluation_share=0, seed=0)
    rows = Dataset.from_file(str(tmp_path / "train.arrow"))
    assert (len(rows), samples.tokens) == (1, data.tokens)
    batch = Collator(pad_id=0, seq_len=200)([rows[0]])
    assert set(batch) == {"input_ids", "labels", "position_ids"} and batch["input_ids"].shape[1] > samples.tokens
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"num_key_value_heads": 2, "vocab_size": 300}
    model = AutoModelForCausalLM.from_config(Qwen2Config(**sizes, use_cache=False)).eval()
    pieces = sorted(data.sequences["input_ids"][:], key=len, reverse=True)
    with torch.no_grad():
        logits, begin = model(**batch).logits[0], 0
        for piece in pieces:
            alone = model(input_ids=torch.tensor([piece])).logits[0]
            torch.testing.assert_close(logits[begin : begin + len(alone)], alone, atol=1e-5, rtol=1e-4)
            assert batch["labels"][0, begin] == IGNORED
            begin += len(alone)


def _copy(tokenizer: Any, **changes: Any) -> Any:
    copied = deepcopy(tokenizer)
    for name, value in changes.items():
        setattr(copied, name, value)
    return copied
