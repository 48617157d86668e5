"""Dimensions of catalogue models, from which memory and time are computed."""

from __future__ import annotations

from ds_advise.estimators.models import catalogue
from ds_advise.estimators.models.families import shape_from_config


def test_gemma_2_alternates_windows_and_has_four_norms() -> None:
    """Layers that differ in their window only are gathered in two blocks."""
    shape = catalogue.find("gemma-2-9b")
    assert [(block.count, block.attention.window) for block in shape.blocks] == [(21, 4096), (21, None)]
    assert {block.norm_count for block in shape.blocks} == {4}
    assert shape.logit_softcap and all(block.attention.softcap for block in shape.blocks)


def test_linear_attention_stands_three_times_between_full() -> None:
    """Its tower is held and idle."""
    shape = catalogue.find("Qwen3.5-27B")
    assert [block.count for block in shape.blocks] == [3, 1] * 16
    linear, full = (block.attention for block in shape.blocks[:2])
    assert (linear.heads, linear.kv_heads, linear.chunk, linear.rotary) == (48, 16, 64, False)
    assert (full.heads, full.kv_heads, full.head_dim, full.gated) == (24, 4, 256, True)
    assert any("text-only" in assumption for assumption in shape.assumptions)
    assert shape.encoder_len(2048) == 2048


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
