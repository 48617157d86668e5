"""Dimensions of catalogue models, from which memory and time are computed."""

from __future__ import annotations

from ds_advise.estimators.models import catalogue
from ds_advise.estimators.models.families import shape_from_config


def test_a_model_without_a_language_head_has_no_logits() -> None:
    assert catalogue.find("bert-base-uncased").vocab_size == 0
    vit = catalogue.find("vit-base-patch16-224")
    assert (vit.vocab_size, vit.num_labels, vit.encoder_len(2048)) == (0, 1000, 197)


def test_dropout_follows_the_config_and_else_the_class() -> None:
    (block,) = catalogue.find("gpt2").blocks
    assert (block.hidden_dropout, block.attention_dropout) == (0.1, 0.1)
    config = catalogue.config("openai-community/gpt2") | {"resid_pdrop": 0, "attn_pdrop": 0.25}
    (block,) = shape_from_config(config, name="gpt2").blocks
    assert (block.hidden_dropout, block.attention_dropout) == (0.0, 0.25)
