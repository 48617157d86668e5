"""Models of types without a row: recorded from transformers' own code, and answered as any other."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import ds_advise
import pytest
from ds_advise.advisor.question.model_source import load_model
from ds_advise.estimators.errors import ModelConfigError, WorkloadError
from ds_advise.estimators.json_form import from_json, to_json
from ds_advise.estimators.memory.trainable import tensor_set
from ds_advise.estimators.models import catalogue
from ds_advise.estimators.models.lora import adapters
from ds_advise.estimators.models.model_shape import ModelShape
from ds_advise.estimators.models.vision_parts import freeze_parts
from ds_advise.estimators.workload import Workload
from ds_advise.probes.model_recorder.recorded_model import recorded_model

from tests.helpers import imports_of, sizes

NEMOTRON = sizes(1024, 4096, 2, 8, 2, 32000, model_type="nemotron", head_dim=128, pad_token_id=0)


@pytest.fixture(scope="module")
def nemotron() -> ModelShape:
    return recorded_model(NEMOTRON, name="nemotron", source="a file")


def test_a_recorded_model_has_the_parameters_of_its_class(nemotron: ModelShape) -> None:
    import torch
    from transformers import AutoModelForCausalLM, NemotronConfig

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(NemotronConfig(**NEMOTRON))
    assert nemotron.parameters == sum(parameter.numel() for parameter in model.parameters())
    (block,) = nemotron.blocks
    assert (block.count, block.attention.heads, block.attention.kv_heads) == (2, 8, 2)
    assert not nemotron.tied
    assert "layers recorded from transformers' own code" in nemotron.assumptions


def test_the_cached_recording_is_the_recording(own_store: Path) -> None:
    first = recorded_model(NEMOTRON, name="nemotron", source="")
    (file,) = (own_store.parent / "models").iterdir()
    other = recorded_model(NEMOTRON, name="other", source="a file")
    assert other == replace(first, name="other", source=other.source)
    assert other.source.startswith("a file; recorded from the code of transformers ")
    assert from_json(ModelShape, json.loads(json.dumps(to_json(first)))) == first
    file.write_text("{}", encoding="utf-8")  # a damaged file is recorded again
    assert recorded_model(NEMOTRON, name="nemotron", source="") == first


def test_the_second_answer_imports_no_torch(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(NEMOTRON), encoding="utf-8")
    recorded_model(json.loads((tmp_path / "config.json").read_text(encoding="utf-8")), name="", source="")
    program = (
        f"import ds_advise\nanswer = ds_advise.advise({str(tmp_path)!r}, gpus='2x24GB', deepspeed_estimate=False)\n"
        "assert answer.recommended is not None"
    )
    assert imports_of(program, ("torch",)) == []


def test_experts_are_adapted_as_peft_adapts_them() -> None:
    config = {
        **NEMOTRON,
        "model_type": "glm4_moe",
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 512,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
    }
    shape = recorded_model(config, name="glm4_moe", source="")
    dense, sparse = shape.blocks
    assert (dense.count, sparse.count, sparse.feed_forward.experts) == (1, 1, 8)
    chosen = adapters(shape, Workload(method="lora"))
    adapted = {tensor.name for tensor in sparse.tensors if chosen.adapter_rank(tensor)}
    assert {"mlp.experts.gate_up_proj", "mlp.experts.down_proj", "mlp.gate.weight"} <= adapted


def test_routers_that_return_several_tensors_are_not_adapted() -> None:
    """peft adds an adapter to the result of a linear layer, which is a tuple of PhiMoE's router."""
    config = {**NEMOTRON, "model_type": "phimoe", "num_local_experts": 4, "num_experts_per_tok": 2}
    shape = recorded_model(config, name="phimoe", source="")
    with pytest.raises(WorkloadError, match="cannot adapt the routers of phimoe"):
        adapters(shape, Workload(method="lora"))
    assert adapters(shape, Workload(method="lora", lora_targets=("q_proj",))).rank == 8


def test_every_expert_of_llama_4_computes_every_token_and_layers_attend_within_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beside a vision tower of three layers, which text leaves idle."""
    # transformers 5.24.0 reads this attribute of the language model's output, which has none, and raises.
    monkeypatch.setattr("transformers.modeling_outputs.MoeCausalLMOutputWithPast.image_outputs", None, raising=False)
    small = {"hidden_size": 64, "intermediate_size": 32, "intermediate_size_mlp": 96, "head_dim": 8, "vocab_size": 64}
    small["num_hidden_layers"] = 4
    text = {**NEMOTRON, **small, "model_type": "llama4_text", "num_local_experts": 4, "attention_chunk_size": 8192}
    vision = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 48}
    config = {"model_type": "llama4", "architectures": ["Llama4ForConditionalGeneration"], "pad_token_id": 0}
    shape = recorded_model({**config, "text_config": text, "vision_config": vision}, name="llama4", source="")
    assert shape.idle_tower
    rotated, whole = shape.blocks
    assert (rotated.count, whole.count) == (3, 1)
    assert (rotated.attention.window, whole.attention.window) == (8192, None)
    assert rotated.feed_forward.experts_per_token == rotated.feed_forward.experts == 4


@pytest.mark.parametrize("hub_id", ["EleutherAI/gpt-neo-125m", "stabilityai/stablelm-2-1_6b"])
@pytest.mark.usefixtures("own_store")
def test_a_shipped_recording_is_what_the_installed_transformers_runs(hub_id: str) -> None:
    """The catalogue answers it without torch."""
    shipped = catalogue.find(hub_id)
    assert shipped == recorded_model(catalogue.config(hub_id), name=hub_id, source=shipped.source.rpartition(";")[0])


def test_a_folder_as_transformers_writes_it_is_read(tmp_path: Path) -> None:
    """An infinite value is an object there: `"time_step_limit": [0.0, {"__float__": "Infinity"}]`."""
    import torch
    from transformers import Mamba2Config, Mamba2ForCausalLM

    small = {"num_heads": 8, "head_dim": 64, "hidden_size": 256, "vocab_size": 1000, "n_groups": 1, "state_size": 16}
    config = Mamba2Config(num_hidden_layers=2, **small)
    config.save_pretrained(tmp_path)
    assert "__float__" in (tmp_path / "config.json").read_text(encoding="utf-8")
    with torch.device("meta"):
        model = Mamba2ForCausalLM(config)
    assert load_model(str(tmp_path)).parameters == sum(parameter.numel() for parameter in model.parameters())


MIXERS: dict[str, dict[str, Any]] = {
    "Mamba2": {"num_heads": 8, "head_dim": 64, "n_groups": 1, "state_size": 16},
    "NemotronH": {"intermediate_size": 512, "moe_intermediate_size": 128},
    "GraniteMoeHybrid": {"layer_types": ["mamba", "attention"], "mamba_n_heads": 8, "shared_intermediate_size": 256},
    "Qwen3Next": {
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
        "layer_types": ["linear_attention", "full_attention"],
    },
}
"""Architectures whose layers have no attention: all of them, or some."""


@pytest.mark.parametrize("kind", MIXERS)
def test_a_folder_with_layers_without_attention_gets_a_step_time(kind: str, tmp_path: Path) -> None:
    """With its other sizes as transformers' own configuration has them, written by it."""
    import transformers

    small: dict[str, Any] = {"hidden_size": 256, "vocab_size": 1000, "num_hidden_layers": 2}
    if kind == "NemotronH":  # its number of layers follows from their kinds
        del small["num_hidden_layers"]
    getattr(transformers, f"{kind}Config")(**small, **MIXERS[kind]).save_pretrained(tmp_path)
    answer = ds_advise.advise(str(tmp_path), gpus="2x24GB", deepspeed_estimate=False)
    assert answer.recommended is not None and answer.recommended.time.step_s > 0


def test_a_projector_that_trains_alone_has_images(tmp_path: Path) -> None:
    """The parts that text leaves idle: nothing would train without an image in each sample."""
    vision = sizes(64, 128, 2, 2, 2, 1, model_type="clip_vision_model", image_size=56, patch_size=14)
    text = sizes(128, 256, 2, 2, 2, 1000, model_type="llama")
    config = {"model_type": "llava", "text_config": text, "vision_config": vision, "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert load_model(str(tmp_path)).idle_tower
    answer = ds_advise.advise(
        str(tmp_path), gpus="2x24GB", freeze="vision-tower,language-model", deepspeed_estimate=False
    )
    assert answer.recommended is not None
    assert "one image of 17 patches in each sample" in answer.assumptions
    shape = freeze_parts(load_model(str(tmp_path), with_image=True), ("vision-tower", "language-model"))
    assert tensor_set(shape, Workload()).trainable_numel == (64 + 1) * 128 + (128 + 1) * 128


def test_an_encoder_decoder_has_two_stacks() -> None:
    config = {
        "model_type": "bart",
        "d_model": 256,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "encoder_ffn_dim": 512,
        "decoder_ffn_dim": 512,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "vocab_size": 1000,
        "max_position_embeddings": 2048,
    }
    encoder, decoder = recorded_model(config, name="bart", source="").blocks
    assert (encoder.stack, encoder.count, encoder.attention.causal) == ("encoder", 2, False)
    assert (decoder.stack, decoder.count, decoder.attention.causal) == ("decoder", 3, True)
    assert decoder.cross_attention is not None and decoder.cross_attention.cross
    # The decoder's layers read the encoder's output, which requires a gradient; masks and tables do not.
    outside = [
        [slot for slot in block.program.slots if slot.source > 0] for block in (encoder, decoder) if block.program
    ]
    assert [any(slot.needs_grad for slot in slots) for slots in outside] == [False, True]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model_type": "no_such_type"}, "transformers .* has no model type 'no_such_type'"),
        ({"model_type": "wav2vec2"}, "has no trainable class"),
        ({"model_type": "hunyuan_v1_dense", "head_dim": None}, "cannot be built from this configuration"),
        ({"num_attention_heads": 0}, "does not run without data"),
        ({"num_hidden_layers": 10**6}, "1,000,000 layers"),
    ],
)
def test_unrecordable_models_are_refused_with_a_reason(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ModelConfigError, match="could not be recorded") as caught:
        recorded_model({**NEMOTRON, **changes}, name="a model", source="")
    assert re.search(why, caught.value.why)


@pytest.mark.parametrize(
    ("changes", "iterations"),
    [
        pytest.param({"model_type": "mamba", "state_size": 8}, (-1.0, 1.0), marks=pytest.mark.slow),
        ({"model_type": "minimax", "num_local_experts": 2, "block_size": 128}, (0.0, 1 / 128)),
    ],
)
def test_a_loop_over_tokens_or_chunks_is_one_iteration_that_repeats(
    changes: dict[str, Any], iterations: tuple[float, float]
) -> None:
    small = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 64}
    shape = recorded_model({**NEMOTRON, **small, "head_dim": 8, **changes}, name="a model", source="")
    programs = [block.program for block in shape.blocks if block.program]
    found = {each.repeats for program in programs for each in program.instructions} - {(1.0, 0.0, 0.0)}
    assert [each[:2] for each in found] == [pytest.approx(iterations)]


SMALL_T5 = {"d_model": 64, "d_ff": 128, "d_kv": 16, "num_layers": 2, "num_heads": 4, "vocab_size": 64}


@pytest.mark.parametrize(
    ("config", "counts"),
    [
        # Boxes of tokens; an image as a list; patches in place of the encoder's tokens; types of tokens.
        pytest.param({"model_type": "udop", **SMALL_T5}, [1, 1, 1, 1], marks=pytest.mark.slow),
        (
            {"model_type": "pix2struct"}
            | {"text_config": {"hidden_size": 128, "d_ff": 64, "num_layers": 2, "num_heads": 2}}
            | {"vision_config": {"hidden_size": 128, "d_ff": 64, "num_hidden_layers": 3, "num_attention_heads": 2}},
            [3, 1, 1],
        ),
        # Experts by the name that a value has, and in shares of the tokens that values say.
        pytest.param(
            {"model_type": "switch_transformers", **SMALL_T5, "num_decoder_layers": 2, "num_experts": 2},
            None,
            marks=pytest.mark.slow,
        ),
        (
            {"model_type": "jetmoe", "num_local_experts": 4, "num_hidden_layers": 2, "hidden_size": 64}
            | {"intermediate_size": 128, "num_key_value_heads": 2, "kv_channels": 16, "vocab_size": 64},
            [2],
        ),
    ],
    ids=lambda given: given["model_type"] if isinstance(given, dict) else "",
)
def test_classes_get_the_inputs_that_they_need_and_experts_equal_shares(
    config: dict[str, Any], counts: list[int] | None
) -> None:
    shape = recorded_model(config, name="a model", source="")
    assert counts is None or [block.count for block in shape.blocks] == counts
    assert all(block.program for block in shape.blocks)


def test_kernels_and_code_from_elsewhere_are_not_loaded(monkeypatch: pytest.MonkeyPatch, nemotron: ModelShape) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    elsewhere = {
        "attn_implementation": "someone/kernels",
        "auto_map": {"AutoModelForCausalLM": "evil.Model"},
        "quantization_config": {"quant_method": "someone"},
    }
    shape = recorded_model({**NEMOTRON, **elsewhere}, name="nemotron", source="")
    assert shape.blocks == nemotron.blocks
