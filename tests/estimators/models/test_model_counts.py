"""Parameter counts of the catalogue, and the dimensions that memory and time are computed from."""

from __future__ import annotations

from typing import Any

import pytest
from ds_advise.estimators.models import catalogue
from ds_advise.estimators.models.families import shape_from_config

ENTRIES = catalogue._entries()


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["id"])
def test_the_count_by_arithmetic_is_the_recorded_one(entry: dict[str, Any]) -> None:
    """The recorded count is that of the transformers class, built on the meta device; each entry has its sources, and
    a row or a recording."""
    shape = catalogue.find(entry["id"])
    assert shape.parameters == entry["parameters"]
    assert shape.parameters == sum(tensor.numel * count for tensor, count in shape.tensor_counts)
    assert entry["sources"] and all(entry["sources"])
    assert shape.source.startswith("catalogue: ")


def test_a_model_without_a_language_head_has_no_logits() -> None:
    assert catalogue.find("bert-base-uncased").vocab_size == 0
    vit = catalogue.find("vit-base-patch16-224")
    assert (vit.vocab_size, vit.num_labels, vit.encoder_len(2048)) == (0, 1000, 197)


def test_dropout_follows_the_config_and_else_the_class() -> None:
    (block,) = catalogue.find("gpt2").blocks
    assert (block.hidden_dropout, block.attention_dropout) == (0.1, 0.1)
    config = next(entry["config"] for entry in ENTRIES if entry["id"] == "openai-community/gpt2")
    (block,) = shape_from_config(config | {"resid_pdrop": 0, "attn_pdrop": 0.25}, name="gpt2").blocks
    assert (block.hidden_dropout, block.attention_dropout) == (0.0, 0.25)
