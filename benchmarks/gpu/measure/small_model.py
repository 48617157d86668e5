"""A model folder with random weights and a tokenizer, and chats to train it on, made without a network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_CHATS = 256


def make(folder: Path, chats: Path, description: Mapping[str, Any]) -> None:
    """description: fields of a `config.json`; the vocabulary is as large as they say, most of it unused."""
    import torch

    transformers: Any = import_module("transformers")
    fields = dict(description)
    config = transformers.CONFIG_MAPPING[fields.pop("model_type")].from_dict(fields)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"What is {number} and {number}, and what is it good for? " * 8},
                {"role": "assistant", "content": f"It is {2 * number}. " * 40},
            ]
        }
        for number in range(_CHATS)
    ]
    chats.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _tokenizer() -> Any:
    """Byte-level BPE with ChatML as its template, as Qwen's is made."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.train_from_iterator(
        ["what is the sum of the numbers and what is it good for"] * 4,
        trainers.BpeTrainer(
            vocab_size=300,
            special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    transformers: Any = import_module("transformers")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=_TEMPLATE
    )
