"""Text in parts to token numbers, with the boundary between prompt and answer where inference has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .shapes import TextPart


class Tokenized(NamedTuple):
    """Token numbers of one sample, and for each whether the loss counts it."""

    ids: list[int]
    is_trained: list[bool]


def tokenize(tokenizer: Any, samples: Sequence[Sequence[TextPart]]) -> list[Tokenized]:
    """Each sample's parts as one sequence. No special tokens are added: the text has them.

    A tokenizer may split "prompt + answer" otherwise than the prompt alone, which is all that inference gives it. So a
    part that tokenizes by itself as it does in the whole is taken so; otherwise as what the text up to its end has
    beyond the text before it; and where even that begins otherwise (characters merged across the boundary), by itself.
    """
    wholes = _encode(tokenizer, ["".join(part.text for part in parts) for parts in samples])
    pieces = iter(_encode(tokenizer, [part.text for parts in samples for part in parts]))
    tokenized = []
    for parts, whole in zip(samples, wholes, strict=True):
        split = [next(pieces) for _ in parts]
        if [number for piece in split for number in piece] != whole:
            split = _in_order(tokenizer, parts, split)
        tokenized.append(
            Tokenized(
                [number for piece in split for number in piece],
                [part.is_trained for part, piece in zip(parts, split, strict=True) for _ in piece],
            )
        )
    return tokenized


def _in_order(tokenizer: Any, parts: Sequence[TextPart], alone: Sequence[list[int]]) -> list[list[int]]:
    """Part after part. SentencePiece, for one, puts a space before whatever text it is given, so before each part
    alone."""
    text, before, split = "", list[int](), list[list[int]]()
    for part, by_itself in zip(parts, alone, strict=True):
        text += part.text
        [until] = _encode(tokenizer, [text])
        split.append(until[len(before) :] if until[: len(before)] == before else by_itself)
        before = before + split[-1]
    return split


def _encode(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    # verbose=False: it would warn of texts longer than the model; cutting them is our business.
    numbers: list[list[int]] = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    return numbers
