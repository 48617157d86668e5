"""The arithmetic against transformers itself: every family's class is built on the meta device, and every tensor
compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import compress
from typing import Any, cast

import pytest
from ds_advise.estimators.memory.trainable import tensor_set
from ds_advise.estimators.models import catalogue
from ds_advise.estimators.models.families import FAMILIES, shape_from_config
from ds_advise.estimators.models.model_shape import ModelShape, Tensor
from ds_advise.estimators.workload import Workload

from tests.estimators.small_models import DEEPSEEK, GPT, TEXT, Config, on_meta, small

# Families without a class in transformers: their remote code is never run, so only their counts are tested.
ENTRIES = [entry for entry in catalogue._entries() if entry["config"]["model_type"] in FAMILIES]
REMOTE_CODE = {"baichuan", "chatglm", "internlm2", "minicpm", "qwen"}
DEPTH_FIELDS = "num_hidden_layers n_layer n_layers"

DELTA = TEXT | {
    "head_dim": 16,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
}
DELTA_EXPERTS = DELTA | {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 16,
}
QWEN_TOWER = {"depth": 2, "hidden_size": 32, "intermediate_size": 40, "num_heads": 2, "out_hidden_size": 64}
IMAGES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
SIGLIP = small("siglip_vision_model", IMAGES, vision_use_head=False)
PIXTRAL = small("pixtral", IMAGES)
QWEN_VISION = {
    "model_type": "qwen2_5_vl",
    "depth": 5,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_heads": 4,
    "in_channels": 3,
    "patch_size": 7,
    "spatial_merge_size": 2,
    "window_size": 28,
    "out_hidden_size": 64,
    "fullatt_block_indexes": [1, 3],
}
DEEP_VISION = {
    "depth": 3,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_heads": 4,
    "out_hidden_size": 64,
    "deepstack_visual_indexes": [0, 2],
    "num_position_embeddings": 16,
}
# What the catalogue's models do not show: flags, other heads, and families beyond it.
VARIANTS: list[Config] = [
    small("llama", attention_bias=True, mlp_bias=True, head_dim=24),
    small("llama", architectures=["LlamaModel"]),
    small("llama", architectures=["LlamaForSequenceClassification"], num_labels=5),
    small("llama", num_key_value_heads=None),
    small("mistral", sliding_window=None, head_dim=24),
    small("ministral3", head_dim=24),
    small("qwen2", use_sliding_window=True, sliding_window=16, max_window_layers=1),
    small("qwen3", attention_bias=True, use_sliding_window=True, max_window_layers=3),
    small("qwen3", architectures=["Qwen3ForSequenceClassification"], id2label={"0": "a", "1": "b"}),
    small("phi3", sliding_window=16, pad_token_id=0),
    small("olmo", attention_bias=True),
    small("olmo2", attention_bias=True),
    small("olmo3"),
    small("ernie4_5", use_bias=True, head_dim=24),
    small("gemma", attention_bias=True),
    small("gemma2", attention_bias=True, attn_logit_softcapping=None),
    small("gemma3_text", num_hidden_layers=7, sliding_window_pattern=3),
    small("granite", attention_bias=True, mlp_bias=True),
    small("smollm3", attention_bias=True, mlp_bias=True, pad_token_id=0),
    small("smollm3", use_sliding_window=True, sliding_window=8, pad_token_id=0),
    small("glm", attention_bias=False, pad_token_id=0),
    small("glm4", pad_token_id=0),
    small("starcoder2", use_bias=False, sliding_window=8),
    small("mixtral", num_local_experts=4, tie_word_embeddings=True),
    small("olmoe", num_experts=4, num_experts_per_tok=2, attention_bias=True),
    small("qwen2_moe", num_experts=4, decoder_sparse_step=2, mlp_only_layers=[3], use_sliding_window=True)
    | {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 48},
    small("qwen3_moe", num_experts=8, mlp_only_layers=[0, 2], moe_intermediate_size=32, attention_bias=True),
    small("qwen3_5_text", DELTA, attention_bias=True, tie_word_embeddings=True),
    small("qwen3_5_text", DELTA, full_attention_interval=2),
    small("qwen3_5_moe_text", DELTA_EXPERTS),
    small("qwen3_next", DELTA_EXPERTS, mlp_only_layers=[1]),
    small("qwen3_5", {"text_config": small("qwen3_5_text", DELTA), "vision_config": QWEN_TOWER})
    | {"architectures": ["Qwen3_5ForConditionalGeneration"], "tie_word_embeddings": True},
    small("qwen3_5_moe", {"text_config": small("qwen3_5_moe_text", DELTA_EXPERTS), "vision_config": QWEN_TOWER})
    | {"architectures": ["Qwen3_5MoeForConditionalGeneration"]},
    small("gpt_oss", num_local_experts=4, attention_bias=False),
    small("deepseek_v2", DEEPSEEK, attention_bias=True, mlp_bias=True),
    small("deepseek_v2", DEEPSEEK, q_lora_rank=None, first_k_dense_replace=0),
    small("deepseek_v3", DEEPSEEK, q_lora_rank=None, n_shared_experts=2),
    small("gpt2", GPT, n_inner=80, tie_word_embeddings=False),
    small("gpt2", GPT, architectures=["GPT2Model"]),
    small("gpt2", GPT, architectures=["GPT2ForSequenceClassification"]),
    small("gpt_bigcode", GPT, multi_query=False),
    {"model_type": "mpt", "d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 128, "expansion_ratio": 3},
    *(
        {
            "model_type": "gemma3",
            "text_config": {"num_hidden_layers": 2, "model_type": "gemma3_text"},
            "vision_config": vision,
            "mm_tokens_per_image": 4,
        }
        for vision in (SIGLIP, small("siglip_vision_model", IMAGES))
    ),
    small("mistral3", {"text_config": small("mistral"), "vision_config": PIXTRAL}, multimodal_projector_bias=True)
    | {"tie_word_embeddings": False},
    small("mistral3", {"text_config": small("ministral3"), "vision_config": PIXTRAL}),
    small("qwen2_5_vl", vision_config=QWEN_VISION),
    small("qwen2_5_vl", {"text_config": TEXT, "vision_config": QWEN_VISION}, tie_word_embeddings=True),
    small("qwen2_vl", vision_config={"depth": 3, "embed_dim": 48, "hidden_size": 64, "num_heads": 4, "mlp_ratio": 2}),
    small("qwen3_vl", {"text_config": TEXT, "vision_config": DEEP_VISION}),
    small("qwen3_vl_moe", {"text_config": TEXT | {"num_experts": 4}, "vision_config": DEEP_VISION}),
]


def shallow(config: Mapping[str, Any]) -> dict[str, Any]:
    """A catalogue model at full width with few layers (four: enough for a mixture of dense and sparse ones)."""
    cut = {name: min(value, 4) if name in DEPTH_FIELDS.split() else value for name, value in config.items()}
    return {name: shallow(value) if isinstance(value, Mapping) else value for name, value in cut.items()}


def first_of_each_family() -> list[dict[str, Any]]:
    firsts: dict[str, dict[str, Any]] = {}
    for entry in ENTRIES:
        firsts.setdefault(entry["config"]["model_type"], shallow(entry["config"]))
    return [config for model_type, config in firsts.items() if model_type not in REMOTE_CODE]


def expand(shape: ModelShape) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the model with its full name."""
    yield from ((tensor.name, tensor) for tensor in shape.outside)
    layers: Counter[str] = Counter()
    for block in shape.blocks:
        for _ in range(block.count):
            yield from ((f"{block.prefix}.{layers[block.prefix]}.{tensor.name}", tensor) for tensor in block.tensors)
            layers[block.prefix] += 1


def compare(config: Mapping[str, Any]) -> tuple[ModelShape, Any]:
    import torch
    from transformers import Trainer
    from transformers.pytorch_utils import Conv1D

    shape = shape_from_config(config, name="model")
    model = on_meta(dict(config), shape.architecture)
    ours = list(expand(shape))
    assert len(ours) == len(dict(ours)), "a name occurs twice"
    # A tied tensor has several names; any of them is right.
    theirs = dict(model.named_parameters(remove_duplicate=False))
    shapes = {name: tuple(parameter.shape) for name, parameter in theirs.items()}
    assert {name: tensor.shape for name, tensor in ours} == {
        name: shape for name, shape in shapes.items() if name in dict(ours)
    }
    assert {id(theirs[name]) for name, _ in ours} == {id(parameter) for parameter in theirs.values()}
    assert len(ours) == len(list(model.parameters()))
    linear = {
        f"{name}.weight" for name, module in model.named_modules() if isinstance(module, (torch.nn.Linear, Conv1D))
    }
    names = {name for name, tensor in ours if tensor.linear}
    assert names == linear & {name for name, _ in ours}
    if shape.vocab_size and not shape.tied:
        assert shape.outside[-1].role == "head", "the head must come last, as in `parameters()`"
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    decays = set(Trainer.get_decay_parameter_names(cast(Any, None), model))
    without = (parameter.numel() for name, parameter in model.named_parameters() if name not in decays)
    trained = tensor_set(shape, Workload())
    assert sorted(without) == sorted(compress(trained.trainable, trained.without_decay)), "the rule of weight decay"
    return shape, model


def describe(config: Mapping[str, Any]) -> str:
    return config.get("architectures", [config["model_type"]])[0]


@pytest.mark.parametrize("config", first_of_each_family(), ids=describe)
def test_a_catalogue_model_of_each_family_has_transformers_tensors(config: dict[str, Any]) -> None:
    """Names, shapes and which of them are linear layers, at full width."""
    shape, model = compare(config)
    if shape.vocab_size:
        output, embedding = model.get_output_embeddings(), model.get_input_embeddings()
        assert shape.tied == (output.weight is embedding.weight)
        assert output.weight.shape[0] == shape.vocab_size


@pytest.mark.parametrize("config", VARIANTS, ids=describe)
def test_switches_and_heads_have_transformers_tensors(config: dict[str, Any]) -> None:
    """Biases, norms, windows, sparse layers, nulls and classification heads change the tensors as they do in
    transformers."""
    shape, model = compare(config)
    layer_types = getattr(model.config, "layer_types", None)
    if layer_types is not None and "sliding_window" in model.config.to_dict() and model.config.sliding_window:
        windows = Counter(block.attention.window for block in shape.blocks for _ in range(block.count))
        assert windows[model.config.sliding_window] == layer_types.count("sliding_attention")


def test_every_family_is_compared_with_transformers() -> None:
    """No family can be added without a comparison."""
    compared = {config["model_type"] for config in first_of_each_family() + VARIANTS}
    assert compared | REMOTE_CODE == set(FAMILIES)
