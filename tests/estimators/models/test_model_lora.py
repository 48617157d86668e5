"""LoRA's adapters against peft, QLoRA's four bits against transformers, on models on the meta device."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from ds_advise.advisor.question.model_source import model_shape
from ds_advise.estimators.errors import WorkloadError
from ds_advise.estimators.memory.trainable import tensor_set
from ds_advise.estimators.models import catalogue
from ds_advise.estimators.models.families import shape_from_config
from ds_advise.estimators.models.lora import adapters, linear_modules, quantized, trained_copies
from ds_advise.estimators.models.model_shape import ModelShape, Tensor
from ds_advise.estimators.workload import Software, Workload

from tests.estimators.small_models import BERT, DEEPSEEK, GPT, T5, TEXT, Config, on_meta, small

PADDED = TEXT | {"num_hidden_layers": 3, "pad_token_id": 0}
V3 = small("deepseek_v3", DEEPSEEK | PADDED | {"num_key_value_heads": 4})
MIXTRAL = small("mixtral", PADDED, num_local_experts=4)
GPT2 = small("gpt2", GPT)
CASES: list[tuple[Config, list[str] | None]] = [
    *((small("llama", PADDED), targets) for targets in (None, ["q_proj", "v_proj"], ["lm_head", "down_proj"])),
    (small("qwen2", PADDED, tie_word_embeddings=True), None),
    (small("phi3", PADDED), None),
    *((MIXTRAL, targets) for targets in (None, ["q_proj", "w1", "w2", "w3"], ["w1", "w3"])),
    (small("qwen2_moe", PADDED, num_experts=4, moe_intermediate_size=32), None),
    (small("qwen3_moe", PADDED, num_experts=4, num_experts_per_tok=2, mlp_only_layers=[0]), None),
    (small("olmoe", PADDED, num_experts=4, num_experts_per_tok=2), None),
    (small("gpt_oss", PADDED, num_local_experts=4), None),
    *((V3, targets) for targets in (None, ["down_proj"], ["q_a_proj", "kv_b_proj"])),
    (V3 | {"model_type": "deepseek_v2", "q_lora_rank": None}, None),
    *((GPT2, targets) for targets in (None, ["c_attn", "mlp.c_proj"])),
    (small("t5", T5, d_kv=16), None),  # recorded, as the next one
    (small("bert", BERT, architectures=["BertForMaskedLM"], max_position_embeddings=512), ["query", "value"]),
]


def lora_tensors(
    model: ModelShape, rank: int, targets: list[str] | None, *, dora: bool = False
) -> list[tuple[Tensor, int]]:
    """The tensors of every adapter, with their number of occurrences."""
    named = tuple(targets) if targets else None
    chosen = adapters(model, Workload(method="lora", lora_rank=rank, lora_targets=named, dora=dora))
    return [(matrix, count) for tensor, count in model.tensor_counts for matrix in chosen.matrices(tensor)]


def relative(name: str, prefixes: list[str]) -> str:
    """peft's full name without the place of the layer, as inside a `Block`."""
    name = name.removeprefix("base_model.model.")
    for prefix in prefixes:
        if name.startswith(f"{prefix}."):
            return name.removeprefix(f"{prefix}.").partition(".")[2]
    return name


@pytest.mark.parametrize(
    ("config", "targets"), CASES, ids=lambda value: str(value["model_type"] if isinstance(value, dict) else value)
)
def test_adapters_are_those_of_peft(config: dict[str, Any], targets: list[str] | None) -> None:
    """Names, shapes and number of all adapters, for all linear layers and for named ones."""
    assert_adapters(config, targets)


@pytest.mark.parametrize("config", [small("llama", PADDED), GPT2], ids=lambda config: config["model_type"])
def test_dora_adds_a_magnitude_of_each_output(config: dict[str, Any]) -> None:
    assert_adapters(config, None, dora=True)
    with pytest.raises(WorkloadError, match="only without dropout and DoRA"):
        adapters(model_shape(MIXTRAL, name="model"), Workload(method="lora", dora=True))


@pytest.mark.parametrize(
    ("config", "software", "adapted"),
    [
        (MIXTRAL, (5, 0), {"q_proj", "k_proj", "v_proj", "o_proj"}),
        (
            small("qwen3_moe", PADDED, num_experts=4, num_experts_per_tok=2),
            (5, 0),
            {"q_proj", "k_proj", "v_proj", "o_proj"},
        ),
        (small("qwen3_moe", PADDED, num_experts=4, num_experts_per_tok=2), (4, 57), None),
        (small("llama", PADDED), (5, 0), None),
    ],
    ids=["mixtral", "qwen3_moe", "qwen3_moe of transformers 4", "llama"],
)
def test_the_linear_modules_are_those_that_tools_list(
    config: dict[str, Any], software: tuple[int, int], adapted: set[str] | None
) -> None:
    """Names of modules of classes with "Linear" in their name, as LLaMA-Factory's `find_all_linear_modules`: fused
    experts are none. Where all linear layers are modules they are peft's "all-linear"."""
    shape = model_shape(config, name="model")
    named = linear_modules(shape, Software(transformers=software))
    assert (None if named is None else {*named}) == adapted
    if named is not None:
        modules = on_meta(config, shape.architecture).named_modules()
        listed = {path.rpartition(".")[2] for path, module in modules if "Linear" in type(module).__name__}
        assert {*named} == listed - {"lm_head"}


def assert_adapters(config: dict[str, Any], targets: list[str] | None, *, dora: bool = False) -> None:
    import peft

    shape = model_shape(config, name="model")
    model = on_meta(config, shape.architecture)
    settings = peft.LoraConfig(r=4, target_modules=targets or "all-linear", use_dora=dora)
    adapted = peft.get_peft_model(model, settings)
    theirs = {name: tuple(parameter.shape) for name, parameter in adapted.named_parameters() if parameter.requires_grad}

    prefixes = [block.prefix for block in shape.blocks]
    inside = Counter((relative(name, prefixes), numbers) for name, numbers in theirs.items())
    ours: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for tensor, count in lora_tensors(shape, 4, targets, dora=dora):
        ours[tensor.name, tensor.shape] += count
    assert ours == inside


@pytest.mark.parametrize(
    "config", [config for config, targets in CASES if targets is None], ids=lambda config: config["model_type"]
)
def test_four_bits_are_what_transformers_hands_to_bitsandbytes(config: dict[str, Any]) -> None:
    """Linear layers but those that its quantizer keeps; fused experts and their routers are none."""
    from torch import nn
    from transformers.pytorch_utils import Conv1D
    from transformers.quantizers.base import HfQuantizer
    from transformers.quantizers.quantizers_utils import should_convert_module

    shape = model_shape(config, name="model")
    model = on_meta(config, shape.architecture)
    kept = HfQuantizer.get_modules_to_not_convert(model, None, model._keep_in_fp32_modules)
    theirs = sum(
        module.weight.numel()
        for name, module in model.named_modules()
        if should_convert_module(name, kept) and (isinstance(module, Conv1D) or type(module) is nn.Linear)
    )
    workload = Workload(method="qlora")
    assert theirs == sum(tensor.numel * count for tensor, count in shape.tensor_counts if quantized(tensor, workload))


@pytest.mark.parametrize(
    ("model", "rank", "targets", "what", "hint"),
    [
        (
            "Qwen2.5-14B",
            8,
            ["q_proj", "query_key_value"],
            "no linear layer named 'query_key_value'",
            "it has: q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, lm_head",
        ),
        # Fused experts by their new name, norms, embeddings and parts of names get no adapter.
        *(
            ("Mixtral-8x7B", 8, [target], "no linear layer", "")
            for target in ("experts.gate_up_proj", "proj", "", "norm", "embed_tokens")
        ),
        # peft adapts gate and up together or not at all.
        ("Mixtral-8x7B", 8, ["w1"], "lack w3", ""),
        ("gpt2", 0, None, "rank", ""),
    ],
)
def test_modules_that_peft_cannot_adapt_are_refused(model: str, rank: int, targets: Any, what: str, hint: str) -> None:
    with pytest.raises(WorkloadError, match=what) as caught:
        lora_tensors(catalogue.find(model), rank, targets)
    assert hint in f"{caught.value.why} {caught.value.fix}"


EXPERTS = {"moe_intermediate_size": 48, "num_experts": 6, "num_local_experts": 6, "num_experts_per_tok": 2}
SIX_EXPERTS = TEXT | EXPERTS | {"num_hidden_layers": 2}


@pytest.mark.parametrize(
    ("config", "targets", "tensors", "elements"),
    [
        ({"model_type": "qwen2_moe", "shared_expert_intermediate_size": 80}, None, 108, 24_248),
        ({"model_type": "qwen2_moe", "shared_expert_intermediate_size": 80}, ("q_proj", "up_proj"), 32, 7_552),
        ({"model_type": "qwen3_moe", "head_dim": 16}, None, 92, 20_272),
        ({"model_type": "mixtral"}, ("q_proj", "v_proj", "w1", "w2", "w3"), 80, 24_832),
    ],
)
def test_before_transformers_5_each_layer_of_an_expert_has_its_own_adapter(
    config: Config, targets: tuple[str, ...] | None, tensors: int, elements: int
) -> None:
    """Counted with peft 0.17.1 and transformers 4.51.3, which the tests do not install."""
    model = shape_from_config(SIX_EXPERTS | config, name="experts")
    software = Software(transformers=(4, 51))
    workload = Workload(method="lora", lora_rank=4, lora_targets=targets, lora_dropout=0.05, software=software)
    trained, chosen = tensor_set(model, workload).trainable, adapters(model, workload)
    assert (len(trained), sum(trained)) == (tensors, elements)
    assert not any(chosen.folds(tensor) for tensor, _ in model.tensor_counts)


def test_dropout_is_refused_where_experts_are_folded() -> None:
    """peft refuses it, too; other modules of the same model may have it."""
    shape = shape_from_config(MIXTRAL, name="model")
    peft = pytest.importorskip("peft")
    with pytest.raises(ValueError, match="lora_dropout"):
        peft.get_peft_model(
            on_meta(MIXTRAL, shape.architecture), peft.LoraConfig(r=4, target_modules="all-linear", lora_dropout=0.1)
        )
    with pytest.raises(WorkloadError, match="without dropout"):
        adapters(shape, Workload(method="lora", lora_dropout=0.1))
    assert adapters(shape, Workload(method="lora", lora_dropout=0.1, lora_targets=("q_proj",))).rank


def test_gptq_takes_as_much_more_than_nf4_as_was_measured() -> None:
    """Allocated between steps with Llama 3 8B, micro batch 4, one A100: 5,913,897,984 bytes with AutoGPTQ and
    5,884,111,872 with bitsandbytes (foundation-model-stack/fms-acceleration
    scripts/benchmarks/refs/a100_80gb_liger.csv)."""
    model = catalogue.find("Meta-Llama-3-8B")
    bases = [tensor_set(model, Workload(method="qlora", quantization=name)).frozen_bytes for name in ("gptq", "nf4")]
    assert bases[0] - bases[1] == pytest.approx(5_913_897_984 - 5_884_111_872, rel=0.03)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("saved", [("embed_tokens",), ("lm_head",), ("embed_tokens", "lm_head")])
def test_copies_of_modules_are_those_of_peft(saved: tuple[str, ...], tied: bool) -> None:
    """By name and size, with the adapters in peft's order; the originals stay frozen."""
    import peft

    config = small("llama", PADDED, architectures=["LlamaForCausalLM"], tie_word_embeddings=tied)
    shape = shape_from_config(config, name="x")
    workload = Workload(method="lora", lora_rank=4, modules_to_save=saved)
    model = peft.get_peft_model(
        on_meta(config, shape.architecture),
        peft.LoraConfig(r=4, target_modules="all-linear", modules_to_save=list(saved)),
    )
    trained = {name: value.numel() for name, value in model.named_parameters() if value.requires_grad}
    tensors = tensor_set(shape, workload)
    assert sorted(tensors.trainable) == sorted(trained.values())
    assert tensors.numel == sum(value.numel() for value in model.parameters())
    copies = {tensor.name: tensor.numel for tensor in trained_copies(shape, workload).tensors}
    assert copies == {
        name.removeprefix("base_model.model."): numel for name, numel in trained.items() if "modules_to_save" in name
    }


def test_modules_that_cannot_be_trained_whole_are_named() -> None:
    shape = shape_from_config(small("llama", tie_word_embeddings=False), name="x")
    with pytest.raises(WorkloadError) as caught:
        trained_copies(shape, Workload(method="lora", modules_to_save=("norm",)))
    assert "embed_tokens, lm_head" in str(caught.value.why)
    assert not trained_copies(shape, Workload(modules_to_save=("norm",))).tensors  # full fine-tuning copies nothing
