"""A config.json that is broken in any way gives one clear error and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from ds_advise.estimators.errors import ModelConfigError
from ds_advise.estimators.models import catalogue
from ds_advise.estimators.models.families import FAMILIES, shape_from_config
from ds_advise.estimators.models.model_shape import ModelShape
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.estimators.small_models import sizes

CONFIGS: dict[str, dict[str, Any]] = {}
for entry in catalogue._entries():
    if entry["config"]["model_type"] in FAMILIES:
        CONFIGS.setdefault(entry["config"]["model_type"], entry["config"])
LLAMA = CONFIGS["llama"]

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
values = st.one_of(
    scalars,
    st.sampled_from([0, -1, 1, 2, 3, 7, 10**9, 10**400, 0.5, "128", "", [], {}, [0], [[["global"], 2]]]),
    st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=5,
    ),
)
OPTIONAL = """architectures layer_types sliding_window num_labels id2label head_dim attention_bias tie_word_embeddings
    mlp_only_layers text_config vision_config use_qk_norm qk_layernorm attention_types conv_kernel_size pos_att_type
    attention_dropout num_kv_heads add_cross_attention legacy use_sliding_window q_lora_rank attn_logit_softcapping"""


@settings(max_examples=300)
@given(data=st.data())
def test_no_value_in_any_field_brings_another_error(data: st.DataObject) -> None:
    """Every family; one to three fields changed, removed or added; inside nested configurations too."""
    config = dict(CONFIGS[data.draw(st.sampled_from(sorted(CONFIGS)))])
    for _ in range(data.draw(st.integers(1, 3))):
        inner = data.draw(st.sampled_from([None, *(name for name, value in config.items() if isinstance(value, dict))]))
        target = config
        if inner is not None and isinstance(config[inner], dict):
            target = config[inner] = dict(config[inner])
        name = data.draw(st.sampled_from(sorted({*target, *OPTIONAL.split()})))
        if data.draw(st.booleans()):
            target[name] = data.draw(values)
        else:
            target.pop(name, None)
    try:
        shape = shape_from_config(config, name="model")
    except ModelConfigError as error:
        assert "\n" not in str(error) and len(error.what) < 300
    else:
        assert isinstance(shape, ModelShape) and shape.parameters > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "model: hidden_size is missing"),
        ({"hidden_size": 0}, "model: hidden_size must lie between 1 and 1,048,576, not 0"),
        ({"hidden_size": "4096"}, "model: hidden_size must be a whole number, not '4096'"),
        ({"hidden_size": True}, "model: hidden_size must be a whole number, not True"),
        (
            {"hidden_size": 10**5000},
            "model: hidden_size must lie between 1 and 1,048,576, not a number of more than 64 bits",
        ),
        ({"num_key_value_heads": 5}, "model: num_attention_heads 32 is not a multiple of num_key_value_heads 5"),
        ({"tie_word_embeddings": "no"}, "model: tie_word_embeddings must be true or false, not 'no'"),
        ({"attention_dropout": 2}, "model: attention_dropout must lie between 0 and 1, not 2"),
        ({"model_type": None}, "model: model_type is missing"),
        ({"model_type": "rwkv"}, "model: no row describes model_type 'rwkv'"),
        ({"architectures": ["LlamaForQuantumAnswering"]}, "model: architectures names a class that is not supported"),
        (
            sizes(10**6, 10**6, 2000, 1000, 1000, 10**6),
            "model: hidden_size, num_hidden_layers and the others give 7.0e+15 parameters",
        ),
    ],
)
def test_the_error_names_the_field(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelConfigError) as caught:
        shape_from_config(LLAMA | change, name="model")
    assert caught.value.what == message


STATED = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        # A dimension that every file states is not guessed.
        *(({name: LLAMA[name] for name in LLAMA if name != field}, f"{field} is missing") for field in STATED),
        (CONFIGS["mixtral"] | {"num_experts_per_tok": 9}, "num_experts_per_tok 9 is more than the 8 experts"),
        (CONFIGS["gemma2"] | {"layer_types": ["full_attention"] * 2}, "layer_types has 2 entries for 26 layers"),
    ],
)
def test_missing_and_contradicting_fields_are_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelConfigError, match=message):
        shape_from_config(config, name="model")
