"""A stand-in for a tokenizer that is not at hand: four bytes of text are a token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

BYTES_PER_TOKEN = 4
"""What byte-pair encodings reach in practice (README of openai/tiktoken: "on average, in practice, each token
corresponds to about 4 bytes"); Chinese text and code have fewer bytes a token with small vocabularies."""


class FourBytes:
    """As much of a tokenizer as `prepare` uses. Its numbers mean nothing; how many they are is the estimate.

    Its chat template marks every message like ChatML, which takes about five tokens.
    """

    eos_token = "<e>\n"  # one token
    bos_token = ""
    bos_token_id = None
    chat_template = "ChatML"

    def apply_chat_template(self, messages: Sequence[Any], *, add_generation_prompt: bool, **_: Any) -> str:
        text = "".join(f"<start>{each['role']}\n{each['content']}<end>\n" for each in messages)
        return f"{text}<start>assistant\n" if add_generation_prompt else text

    def __call__(self, texts: str | Sequence[str], **_: Any) -> dict[str, list[Any]]:
        if isinstance(texts, str):
            return {"input_ids": self._numbers(texts)}
        return {"input_ids": [self._numbers(text) for text in texts]}

    def _numbers(self, text: str) -> list[int]:
        return [0] * -(-len(text.encode()) // BYTES_PER_TOKEN)
